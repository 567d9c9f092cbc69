//! The name of a running process, unique over restarts and machines.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, test_kill_process};
use wattle_common::messages::LeaseHolder;

use crate::clock;

static HOLDERS: AtomicU32 = AtomicU32::new(1);

/// The name of this machine.
#[must_use]
pub fn machine() -> String {
    read("/proc/sys/kernel/hostname").unwrap_or_default()
}

/// Machine, process and start of this process, for people.
#[must_use]
pub fn name() -> String {
    let (pid, began) = (std::process::id(), clock::started_at().as_us());
    format!("{}, process {pid}, started {began}", machine())
}

/// A new holder of a lease in this process.
#[must_use]
pub fn holder() -> LeaseHolder {
    let number = HOLDERS.fetch_add(1, Ordering::Relaxed);
    let instance = match number {
        1 => name(),
        number => format!("{}, number {number}", name()),
    };
    LeaseHolder { instance, boot: boot(), pid_namespace: pid_namespace(), pid: std::process::id() }
}

/// Whether a holder of a lease is known to have ended: its process ran in this boot and this process
/// namespace, in which no process has its id any more.
#[must_use]
pub fn has_ended(holder: &LeaseHolder) -> bool {
    let is_here = holder.boot.is_some()
        && holder.boot == boot()
        && holder.pid_namespace.is_some()
        && holder.pid_namespace == pid_namespace();
    let pid = i32::try_from(holder.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid.filter(|_| is_here) else { return false };
    test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
}

/// The id of the machine's boot.
pub(crate) fn boot() -> Option<String> {
    read("/proc/sys/kernel/random/boot_id")
}

fn pid_namespace() -> Option<String> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(link.to_string_lossy().into_owned())
}

fn read(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_process_does_not_change() {
        assert_eq!(name(), name());
        assert_ne!(holder().instance, holder().instance, "two holders in one process");
    }

    #[test]
    fn only_a_process_of_this_machine_is_known_to_have_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = LeaseHolder { pid: child.id(), ..holder() };
        // Until it is waited for, the process has its id.
        assert!(!has_ended(&ended));
        child.wait().unwrap();
        assert!(has_ended(&ended));
        assert!(!has_ended(&holder()), "this process");
        let other = Some("another".to_owned());
        assert!(!has_ended(&LeaseHolder { boot: other.clone(), ..ended.clone() }));
        assert!(!has_ended(&LeaseHolder { pid_namespace: other, ..ended.clone() }));
        assert!(!has_ended(&LeaseHolder { boot: None, ..ended }));
    }
}
