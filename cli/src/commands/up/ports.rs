//! Free ports for the servers of `wattle up`.
//!
//! They are below the ephemeral ports of Linux (`net.ipv4.ip_local_port_range`, by default from 32,768), which the
//! system gives to any connection: between the choice and the start of a server, or while it is started again, another
//! program could get such a port.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context as _;

const RANGE: Range<u16> = 10_000..17_000;

/// Choices of this process so far.
static CHOICES: AtomicU32 = AtomicU32::new(0);

/// A free port. It is chosen once, so that a restarted server has the same address.
pub(super) fn free() -> anyhow::Result<u16> {
    // Processes begin at different ports, and a port that this one has chosen may still be without its server.
    let half = u32::from(RANGE.end - RANGE.start) / 2;
    let choice = CHOICES.fetch_add(1, Ordering::Relaxed);
    let first = std::process::id().wrapping_add(choice.wrapping_mul(half));
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    find(first, is_free).with_context(|| format!("no port in {RANGE:?} is free"))
}

/// The free port of [`RANGE`] that follows this number, which is taken modulo its length.
fn find(first: u32, is_free: impl Fn(u16) -> bool) -> Option<u16> {
    let count = u32::from(RANGE.end - RANGE.start);
    let offsets = (0..count).map(|step| (first % count + step) % count);
    let mut ports = offsets.filter_map(|offset| Some(RANGE.start + u16::try_from(offset).ok()?));
    ports.find(|port| is_free(*port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_free_port_is_found_and_none_is_ephemeral() {
        let last = RANGE.end - 1;
        assert_eq!(find(0, |_| true), Some(10_000));
        assert_eq!(find(7_005, |_| true), Some(10_005));
        assert_eq!(find(5, |port| port > 10_007), Some(10_008));
        assert_eq!(find(u32::from(last), |port| port == 10_003), Some(10_003));
        assert_eq!(find(6_999, |port| port != last), Some(10_000));
        assert_eq!(find(17, |_| false), None);
        // The default of Linux, Documentation/networking/ip-sysctl.rst.
        assert!((0..7_000).all(|first| find(first, |_| true).is_some_and(|port| port < 32_768)));
    }

    #[test]
    fn two_choices_of_a_process_differ_while_neither_is_in_use() {
        assert_ne!(free().expect("a port"), free().expect("a port"));
    }
}
