//! Specifications and progress of jobs, and budgets.

use std::time::Duration;

use super::{
    DATE_TOLERANCE, DURATION_MAX, GPUS_MAX, INTEGER_MAX, OutOfBounds, RATE_MAX, at_most, invalid,
    not_ahead,
};
use crate::job::{Flexibility, JobSpec, SiteJob};
use crate::messages::{BudgetRecord, BudgetStatus, JobProgressed};
use crate::progress::Progress;
use crate::time::Timestamp;

/// Largest accepted slowdown, per mille: a thousand times as slow.
const SLOWDOWN_PERMILLE_MAX: u32 = 1_000_000;

/// Longest id in the site's scheduler.
const SITE_ID_LEN_MAX: usize = 32;

/// Longest name of a partition, bytes.
const PARTITION_LEN_MAX: usize = 256;

/// Checks the numbers of a job's specification.
///
/// # Errors
/// The first field outside its limits.
pub fn check_job(spec: &JobSpec) -> Result<(), OutOfBounds> {
    at_most("gpus.max", spec.gpus.max, GPUS_MAX)?;
    for (field, ms) in [
        ("slack_ms", spec.slack_ms),
        ("duration_ms_estimate", spec.duration_ms_estimate),
        ("time_limit_ms", spec.time_limit_ms),
    ] {
        if let Some(ms) = ms
            && Duration::from_millis(ms) > DURATION_MAX
        {
            return Err(invalid(field, ms, format_args!("at most {}", DURATION_MAX.as_millis())));
        }
    }
    at_most(
        "max_slowdown_permille",
        spec.max_slowdown_permille.unwrap_or(0),
        SLOWDOWN_PERMILLE_MAX,
    )?;
    spec.flexibility.map_or(Ok(()), Flexibility::check)?;
    spec.site.as_ref().map_or(Ok(()), check_site_job)
}

fn check_site_job(site: &SiteJob) -> Result<(), OutOfBounds> {
    let is_id = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    if site.id.is_empty() || site.id.len() > SITE_ID_LEN_MAX || !is_id(&site.id) {
        let expected = format_args!("at most {SITE_ID_LEN_MAX} digits and underscores");
        return Err(invalid("site.id", site.id.escape_debug(), expected));
    }
    if let Some(partition) = site.partition.as_ref().filter(|name| name.len() > PARTITION_LEN_MAX) {
        let expected = format_args!("at most {PARTITION_LEN_MAX} bytes");
        return Err(invalid("site.partition", partition.escape_debug(), expected));
    }
    match site.nodes {
        Some(0) => Err(invalid("site.nodes", 0, "at least 1")),
        nodes => at_most("site.nodes", nodes.unwrap_or(1), GPUS_MAX),
    }
}

/// Checks a report of a job's progress.
///
/// # Errors
/// The first field outside its limits.
pub fn check_progress(message: &JobProgressed, now: Timestamp) -> Result<(), OutOfBounds> {
    not_ahead("at_us", message.at_us, now, DATE_TOLERANCE)?;
    check_steps(message.step, message.steps_total, message.steps_per_epoch)?;
    match message.steps_per_s {
        Some(rate) if !(0.0..=RATE_MAX).contains(&rate) => {
            Err(invalid("steps_per_s", rate, format_args!("0 to {RATE_MAX}")))
        }
        _ => Ok(()),
    }
}

/// Checks the numbers of a progress line, before the profiler adds them to its messages.
///
/// # Errors
/// The first value outside its limits.
pub fn check_progress_line(line: &Progress) -> Result<(), OutOfBounds> {
    check_steps(line.step, line.steps_total, line.steps_per_epoch)
}

fn check_steps(step: u64, total: Option<u64>, per_epoch: Option<u64>) -> Result<(), OutOfBounds> {
    [("step", Some(step)), ("steps_total", total), ("steps_per_epoch", per_epoch)]
        .into_iter()
        .try_for_each(|(field, steps)| at_most(field, steps.unwrap_or(0), INTEGER_MAX))
}

/// Checks a stored budget with its status.
///
/// # Errors
/// The first field outside its limits.
pub fn check_budget(
    record: &BudgetRecord,
    status: Option<&BudgetStatus>,
    now: Timestamp,
) -> Result<(), OutOfBounds> {
    if !record.budget.is_valid() {
        let expected = "quantities above 0 and a window from a minute to a year";
        return Err(invalid("budget", format_args!("{:?}", record.budget), expected));
    }
    not_ahead("since_us", record.since_us, now, DATE_TOLERANCE)?;
    let Some(status) = status else { return Ok(()) };
    not_ahead("window_from_us", status.window_from_us, now, DATE_TOLERANCE)?;
    not_ahead("at_us", status.at_us, now, DATE_TOLERANCE)?;
    for (name, price) in [("price", Some(status.price)), ("price_integral", status.price_integral)]
    {
        let Some(price) = price.filter(|price| !(0.0..=1.0).contains(price)) else { continue };
        return Err(invalid(name, price, "0 to 1"));
    }
    status
        .counted_until_us
        .values()
        .try_for_each(|until| not_ahead("counted_until_us", *until, now, DATE_TOLERANCE))
}
