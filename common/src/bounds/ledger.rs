//! Entries of the energy ledger.

use std::time::Duration;

use super::{
    CLOCK_TOLERANCE, DATE_TOLERANCE, GPU_POWER_W_MAX, HOST_POWER_W_MAX, JOBS_PER_NODE_MAX,
    OutOfBounds, at_most, invalid, not_ahead,
};
use crate::codec;
use crate::comparison::{ComparedEnergy, RATIO_MAX};
use crate::id::GpuIndex;
use crate::messages::{LedgerEntry, UnknownEnergy};
use crate::subject::Subject;
use crate::time::Timestamp;
use crate::topology::GPUS_PER_NODE_MAX;
use crate::units::{Energy, Power};

/// Longest span of one entry: the profiler's energy counters cover the time without a profiler, such
/// as a month of maintenance.
pub const LEDGER_SPAN_MAX: Duration = Duration::from_secs(31 * 86_400);

/// Time by which an energy counter's reading may precede or follow the span that it is counted in.
/// NVML's counters advance every 20 to 100 ms, a driver that hangs answers seconds later.
pub const METER_GRACE: Duration = Duration::from_secs(10);

/// Largest number of intervals of unknown energy in one entry: 16 for each of 64 GPUs.
pub const UNKNOWN_MAX: usize = 1_024;

/// The entry of a stored message of the ledger; `None` if it cannot be decoded, is of another node than its
/// subject's, or has a number outside its limits. The reader's clock may be behind by [`DATE_TOLERANCE`].
#[must_use]
pub fn plausible_ledger_entry(
    subject: &str,
    payload: &[u8],
    now: Timestamp,
) -> Option<LedgerEntry> {
    let entry: LedgerEntry = codec::decode_json(payload).ok()?;
    let subject = subject.parse::<Subject>().ok()?;
    let holds = subject.node() == Some(&entry.node)
        && check_ledger_entry(&entry, now + DATE_TOLERANCE).is_ok();
    holds.then_some(entry)
}

/// Checks an entry of the energy ledger: its span, and its energy against the largest power of its GPUs
/// and host.
///
/// # Errors
/// The first field outside its limits.
pub fn check_ledger_entry(entry: &LedgerEntry, now: Timestamp) -> Result<(), OutOfBounds> {
    not_ahead("until_us", entry.until_us, now, CLOCK_TOLERANCE)?;
    if entry.until_us < entry.from_us {
        return Err(invalid(
            "until_us",
            entry.until_us,
            format_args!("from_us = {} or later", entry.from_us),
        ));
    }
    let span = entry.until_us.since(entry.from_us);
    if span > LEDGER_SPAN_MAX {
        let expected = format!("a span of at most {} s", LEDGER_SPAN_MAX.as_secs());
        return Err(invalid("from_us", entry.from_us, expected));
    }
    at_most("number of GPUs", entry.energy_mj_gpus.len(), GPUS_PER_NODE_MAX as usize)?;
    at_most("number of jobs", entry.jobs.len(), JOBS_PER_NODE_MAX)?;
    let most = |w: u64, span: Duration| Power::from_w(w).over(span + METER_GRACE);
    let check = |field, energy: Energy, most: Energy| {
        if energy <= most {
            return Ok(());
        }
        let expected = format!("at most {} J in {} s", most.as_j(), span.as_secs());
        Err(invalid(field, format_args!("{} J", energy.as_j()), expected))
    };
    at_most("number of unknown intervals", entry.unknown.len(), UNKNOWN_MAX)?;
    for unknown in &entry.unknown {
        check_interval(unknown, entry)?;
        let jobs = unknown.jobs.len().max(unknown.admissions.len());
        at_most("number of jobs", jobs, JOBS_PER_NODE_MAX)?;
        let span = unknown.until_us.since(unknown.from_us);
        check("unknown.energy_mj", unknown.energy_mj, most(GPU_POWER_W_MAX, span))?;
        let estimate = unknown.estimate_mj.unwrap_or_default();
        check("unknown.estimate_mj", estimate, most(GPU_POWER_W_MAX, span))?;
    }
    for (gpu, energy) in (0..).zip(&entry.energy_mj_gpus) {
        let span = span + unknown_before(entry, gpu);
        check("energy_mj_gpus", energy.unwrap_or_default(), most(GPU_POWER_W_MAX, span))?;
    }
    check("energy_mj_host", entry.energy_mj_host, most(HOST_POWER_W_MAX, span))?;
    // A job's energy in an entry may have been drawn before it, but never more than all GPUs can draw.
    let all = GPU_POWER_W_MAX * u64::from(GPUS_PER_NODE_MAX);
    entry.jobs.iter().try_for_each(|job| {
        check("jobs.energy_mj", job.energy_mj, most(all, span))?;
        job.compared.map_or(Ok(()), |compared| check_compared(&compared, job.energy_mj))
    })
}

/// Checks the compared part of a job's energy: it is a part, and its ratios are plausible.
fn check_compared(compared: &ComparedEnergy, whole: Energy) -> Result<(), OutOfBounds> {
    let ratio = |default: u64, here: u64| default as f64 <= RATIO_MAX * here as f64 + 1.0;
    let energy = (compared.energy_mj_default.as_mj(), compared.energy_mj.as_mj());
    let time = (compared.gpu_time_us_default, compared.gpu_time_us);
    if compared.energy_mj <= whole && ratio(energy.0, energy.1) && ratio(time.0, time.1) {
        return Ok(());
    }
    let expected = format!("a part of the job's energy, and ratios of at most {RATIO_MAX}");
    Err(invalid("jobs.compared", format_args!("{compared:?}"), expected))
}

/// The time before the entry whose energy of a GPU became known in it.
fn unknown_before(entry: &LedgerEntry, gpu: GpuIndex) -> Duration {
    let own = entry.unknown.iter().filter(|unknown| unknown.gpu == gpu);
    let first = own.map(|unknown| unknown.from_us).min();
    first.map_or(Duration::ZERO, |first| entry.from_us.since(first))
}

/// Checks the GPU and the interval of unknown energy.
fn check_interval(unknown: &UnknownEnergy, entry: &LedgerEntry) -> Result<(), OutOfBounds> {
    if unknown.gpu as usize >= entry.energy_mj_gpus.len() {
        let gpus = entry.energy_mj_gpus.len();
        return Err(invalid("unknown.gpu", unknown.gpu, format_args!("one of {gpus} GPUs")));
    }
    let ordered = unknown.from_us <= unknown.until_us && unknown.until_us <= entry.until_us;
    if !ordered || entry.until_us.since(unknown.from_us) > LEDGER_SPAN_MAX {
        let expected = format!(
            "an interval of at most {} s that ends within the entry",
            LEDGER_SPAN_MAX.as_secs()
        );
        return Err(invalid("unknown.from_us", unknown.from_us, expected));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::DATE_TOLERANCE;
    use super::*;
    use crate::id::NodeId;
    use crate::messages::UnknownCause;

    const NOW: Timestamp = Timestamp::from_s(1_000_000_000);

    fn entry(from: Timestamp, until: Timestamp) -> LedgerEntry {
        LedgerEntry {
            node: NodeId::new("n0").unwrap(),
            from_us: from,
            until_us: until,
            energy_mj_gpus: vec![Some(Energy::from_j(60 * 300)), None],
            energy_mj_host: Energy::from_j(60 * 400),
            jobs: vec![],
            unknown: vec![],
        }
    }

    /// A GPU that was not readable for a day before the entry.
    fn unreadable_for_a_day() -> UnknownEnergy {
        let day = Duration::from_secs(86_400);
        UnknownEnergy {
            jobs: Vec::new(),
            admissions: [].into(),
            gpu: 0,
            cause: UnknownCause::GpuLost,
            from_us: NOW - day,
            until_us: NOW,
            energy_mj: Power::from_w(300).over(day),
            unmeasured: false,
            estimate_mj: None,
        }
    }

    #[test]
    fn energy_that_became_known_late_is_within_the_limits_of_its_interval() {
        let unknown = unreadable_for_a_day();
        let mut late = entry(NOW - Duration::from_secs(60), NOW);
        late.energy_mj_gpus[0] = Some(unknown.energy_mj);
        let refused = |entry: &LedgerEntry| check_ledger_entry(entry, NOW).err().map(|e| e.field);
        assert_eq!(refused(&late), Some("energy_mj_gpus"), "no interval explains the energy");
        late.unknown.push(unknown);
        assert_eq!(refused(&late), None);
        let field = |change: &dyn Fn(&mut UnknownEnergy)| {
            let mut changed = late.clone();
            change(&mut changed.unknown[0]);
            refused(&changed)
        };
        assert_eq!(field(&|u| u.gpu = 2), Some("unknown.gpu"));
        assert_eq!(field(&|u| u.from_us = Timestamp::EPOCH), Some("unknown.from_us"));
        assert_eq!(field(&|u| u.until_us = NOW + Duration::from_secs(1)), Some("unknown.from_us"));
        assert_eq!(field(&|u| u.from_us = u.until_us), Some("unknown.energy_mj"));
        let impossible = Some(Energy::from_mj(u64::MAX));
        assert_eq!(field(&|u| u.estimate_mj = impossible), Some("unknown.estimate_mj"));
        late.unknown = vec![unreadable_for_a_day(); UNKNOWN_MAX + 1];
        assert_eq!(refused(&late), Some("number of unknown intervals"));
    }

    #[test]
    fn spans_and_energies_are_limited() {
        let minute = Duration::from_secs(60);
        let good = entry(NOW - minute, NOW);
        assert_eq!(check_ledger_entry(&good, NOW), Ok(()));
        let field = |change: &dyn Fn(&mut LedgerEntry)| {
            let mut changed = good.clone();
            change(&mut changed);
            check_ledger_entry(&changed, NOW).err().map(|error| error.field)
        };
        assert_eq!(field(&|e| e.until_us = Timestamp::FOREVER), Some("until_us"));
        assert_eq!(field(&|e| e.until_us = NOW + DATE_TOLERANCE), Some("until_us"));
        assert_eq!(field(&|e| e.until_us = NOW - 2 * minute), Some("until_us"));
        assert_eq!(field(&|e| e.from_us = Timestamp::EPOCH), Some("from_us"));
        assert_eq!(
            field(&|e| e.energy_mj_gpus[1] = Some(Energy::from_j(400_000))),
            Some("energy_mj_gpus")
        );
        assert_eq!(
            field(&|e| e.energy_mj_host = Energy::from_mj(u64::MAX)),
            Some("energy_mj_host")
        );
        assert_eq!(field(&|e| e.energy_mj_gpus = vec![None; 65]), Some("number of GPUs"));
        assert_eq!(field(&|e| e.from_us = NOW - LEDGER_SPAN_MAX), None);
        assert_eq!(field(&|e| e.until_us = NOW + CLOCK_TOLERANCE), None);
    }
}
