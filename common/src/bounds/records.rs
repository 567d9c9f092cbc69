//! Records of jobs, as the placer stores them.

use std::time::Duration;

use super::{
    ATTEMPT_MAX, DATE_TOLERANCE, DURATION_MAX, GPUS_MAX, INTEGER_MAX, OutOfBounds, RATE_MAX,
    STOPS_MAX, at_most, check_gpus, check_job, invalid, not_ahead,
};
use crate::messages::JobRecord;
use crate::time::Timestamp;
use crate::topology::NODES_MAX;

/// Checks the numbers of a job's record, of which every service reads a part.
///
/// # Errors
/// The first field outside its limits.
pub fn check_record(record: &JobRecord, now: Timestamp) -> Result<(), OutOfBounds> {
    check_job(&record.spec)?;
    let gpus = record.spec.gpus;
    if gpus.min == 0 || gpus.min > gpus.max {
        let expected = format_args!("1 to gpus.max = {}", gpus.max);
        return Err(invalid("gpus.min", gpus.min, expected));
    }
    at_most("attempt", record.attempt, ATTEMPT_MAX)?;
    at_most("early_stops", record.early_stops, ATTEMPT_MAX)?;
    at_most("stops_unsaved", record.stops_unsaved, ATTEMPT_MAX)?;
    for (field, at) in [
        ("phase_since_us", Some(record.phase_since_us)),
        ("started_at_us", record.started_at_us),
        ("ended_at_us", record.ended_at_us),
        ("step_at_us", record.step_at_us),
    ] {
        at.map_or(Ok(()), |at| not_ahead(field, at, now, DATE_TOLERANCE))?;
    }
    let stops = record.stops_us.iter();
    stops.clone().try_for_each(|at| not_ahead("stops_us", *at, now, DATE_TOLERANCE))?;
    at_most("number of stops_us", stops.count(), STOPS_MAX)?;
    if let Some(placement) = &record.placement {
        at_most("number of shares", placement.shares.len(), NODES_MAX)?;
        placement.shares.iter().try_for_each(|share| check_gpus("gpus of a share", &share.gpus))?;
    }
    at_most("step", record.step.unwrap_or(0), INTEGER_MAX)?;
    at_most("steps_total", record.steps_total.unwrap_or(0), INTEGER_MAX)?;
    number("steps_per_s", record.steps_per_s, RATE_MAX)?;
    let work_s_max = DURATION_MAX.as_secs_f64() * f64::from(GPUS_MAX);
    number("work_s", record.work_s, work_s_max)?;
    at_most("gpu_time_ms", record.gpu_time_ms.unwrap_or(0), INTEGER_MAX)?;
    at_most("run_time_ms", record.run_time_ms.unwrap_or(0), INTEGER_MAX)?;
    let costs = record.restarts.iter().map(|restart| restart.cost_ms).chain(record.restart_cost_ms);
    costs.into_iter().try_for_each(|ms| span("cost_ms of a restart", ms))
}

fn span(field: &'static str, ms: u64) -> Result<(), OutOfBounds> {
    if Duration::from_millis(ms) <= DURATION_MAX {
        return Ok(());
    }
    Err(invalid(field, ms, format_args!("at most {}", DURATION_MAX.as_millis())))
}

fn number(field: &'static str, value: Option<f64>, max: f64) -> Result<(), OutOfBounds> {
    match value.filter(|value| !(0.0..=max).contains(value)) {
        Some(value) => Err(invalid(field, value, format_args!("0 to {max}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::codec;
    use crate::messages::{LaunchReport, RestartRecord};

    const NOW: Timestamp = Timestamp::from_s(2_000_000_000);

    fn golden<T: serde::de::DeserializeOwned>(name: &str) -> T {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1").join(name);
        codec::decode_json(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn numbers_of_records_are_limited() {
        for name in ["job-record.json", "job-record-ran.json"] {
            assert_eq!(check_record(&golden(name), NOW), Ok(()), "{name}");
        }
        let field = |change: &dyn Fn(&mut JobRecord)| {
            let mut changed = golden("job-record-ran.json");
            change(&mut changed);
            check_record(&changed, NOW).err().map(|error| error.field)
        };
        assert_eq!(field(&|r| r.spec.gpus.min = 0), Some("gpus.min"));
        assert_eq!(field(&|r| r.spec.gpus.min = r.spec.gpus.max + 1), Some("gpus.min"));
        assert_eq!(field(&|r| r.attempt = u32::MAX), Some("attempt"));
        assert_eq!(field(&|r| r.ended_at_us = Some(Timestamp::FOREVER)), Some("ended_at_us"));
        assert_eq!(field(&|r| r.step = Some(u64::MAX)), Some("step"));
        assert_eq!(field(&|r| r.work_s = Some(f64::NAN)), Some("work_s"));
        let cost =
            |r: &mut JobRecord| r.restarts = vec![RestartRecord { gpus: 1, cost_ms: u64::MAX }];
        assert_eq!(field(&cost), Some("cost_ms of a restart"));
    }

    /// The number of an adopted run continues in the job's record.
    #[test]
    fn attempts_of_reported_runs_are_limited() {
        let mut report: LaunchReport = golden("launch-report.json");
        assert_eq!(super::super::check_launch_report(&report, NOW), Ok(()));
        report.jobs[0].attempt = u32::MAX;
        let error = super::super::check_launch_report(&report, NOW).unwrap_err();
        assert_eq!(error.field, "attempt");
    }
}
