//! Limits of the numbers in messages: times, generations, spans, counts, lengths.
//!
//! Every service applies them when a message enters, before any number is used. Each rule exists once,
//! as a named constant with its reason. A message outside its limits is ignored with an alarm
//! ([`OutOfBounds`]); it changes no state and is never retried.
//!
//! Times are in the system's time of the receiver. The limits on the past are the receivers' own: an
//! old message is outdated, which every handler tolerates.

mod jobs;
mod ledger;
pub mod orders;
mod records;
mod reports;
mod surfaces;
mod windows;

use std::fmt::Display;
use std::time::Duration;

use crate::id::GpuIndex;
use crate::time::Timestamp;
use crate::topology::GPUS_PER_NODE_MAX;

pub use jobs::{check_budget, check_job, check_progress, check_progress_line};
pub use ledger::{
    LEDGER_SPAN_MAX, METER_GRACE, UNKNOWN_MAX, check_ledger_entry, plausible_ledger_entry,
};
pub use orders::{
    GENERATION_JUMP_MAX, GENERATION_MAX, LEASE_DEFAULT, LEASE_MAX_DEFAULT, OrderRefused,
    OrderVersion, check_order, lease_end, next_generation,
};
pub use records::check_record;
pub use reports::{check_launch_report, check_power_report};
pub use surfaces::{check_one_type, check_surface};
pub use windows::{check_champion, check_window};

/// Largest difference of two synchronised machines' clocks. NTP keeps them within milliseconds;
/// Kerberos refuses a ticket at the same limit (RFC 4120, section 8.2).
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(300);

/// Largest lead of a date that a wrong clock explains, such as one in the wrong time zone. A date
/// further ahead is an invalid value.
pub const DATE_TOLERANCE: Duration = Duration::from_secs(86_400);

/// Longest duration that a message may state: ten years, more than the life of a GPU.
pub const DURATION_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Largest integer that every JSON reader represents exactly (RFC 8259, section 6).
pub const INTEGER_MAX: u64 = 1 << 53;

/// Largest number of GPUs of a job.
pub const GPUS_MAX: u32 = 65_536;

/// Largest number of jobs in one order or report: 64 GPUs with 64 jobs each.
pub const JOBS_PER_NODE_MAX: usize = 4_096;

/// Largest attempt number of a job. It is half of the type's range, so that the next number always exists.
pub const ATTEMPT_MAX: u32 = u32::MAX / 2;

/// Stops that are kept of a job.
pub const STOPS_MAX: usize = 32;

/// Largest number of co-tenants in one message.
pub const NEIGHBOURS_MAX: usize = 16;

/// Largest power of one GPU, watts: several times that of any GPU on the market.
pub const GPU_POWER_W_MAX: u64 = 5_000;

/// Largest power of a node without its GPUs, watts: the supply of several racks.
pub const HOST_POWER_W_MAX: u64 = 100_000;

/// Largest device memory of one GPU, MiB: 16 TiB.
pub const MEMORY_MIB_MAX: u64 = 1 << 24;

/// Largest step rate, steps per second: far above the rate of any training step.
pub const RATE_MAX: f64 = 1e7;

/// Longest text of a report, bytes: an error message, a path, a UUID.
pub const TEXT_LEN_MAX: usize = 8 << 10;

/// A number of a message that is outside its limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value}: expected {expected}")]
pub struct OutOfBounds {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// The accepted values.
    pub expected: String,
}

pub(crate) fn invalid(
    field: &'static str,
    value: impl Display,
    expected: impl Display,
) -> OutOfBounds {
    OutOfBounds { field, value: value.to_string(), expected: expected.to_string() }
}

fn at_most<T: PartialOrd + Display>(
    field: &'static str,
    value: T,
    max: T,
) -> Result<(), OutOfBounds> {
    if value <= max { Ok(()) } else { Err(invalid(field, value, format_args!("at most {max}"))) }
}

/// Checks that a date is at most `lead` ahead of `now`.
fn not_ahead(
    field: &'static str,
    at: Timestamp,
    now: Timestamp,
    lead: Duration,
) -> Result<(), OutOfBounds> {
    if at <= now + lead {
        return Ok(());
    }
    let expected = format!("at most {} s ahead of {now}; check both clocks", lead.as_secs());
    Err(invalid(field, at, expected))
}

fn check_gpus(field: &'static str, gpus: &[GpuIndex]) -> Result<(), OutOfBounds> {
    at_most(field, gpus.len(), GPUS_PER_NODE_MAX as usize)?;
    gpus.iter().try_for_each(|gpu| at_most(field, *gpu, GPUS_PER_NODE_MAX - 1))
}

fn check_text(field: &'static str, text: &str) -> Result<(), OutOfBounds> {
    if text.len() <= TEXT_LEN_MAX {
        return Ok(());
    }
    let expected = format!("at most {TEXT_LEN_MAX} bytes");
    Err(invalid(field, format_args!("{} bytes", text.len()), expected))
}
