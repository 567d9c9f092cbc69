//! Accepts or refuses the probes that a predictor proposes: a running job at another cap or clock.
//!
//! The predictor estimates the information gain of a probe. The placer checks that the probe disturbs no
//! other job. A probe costs run time of the job and energy of the site; both have a limit here. A probe
//! never changes the GPUs of a job: a proposal for another number of GPUs or nodes is refused.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::messages::Probe;
use wattle_common::messages::job_record::{PROBES_MAX, ProbeRecord};
use wattle_common::{Energy, Frequency, Power, Timestamp};

use crate::state::job::{Job, State};
use crate::state::job_forecast::remaining_alone;

/// Relative difference below which two caps, or two clocks, count as equal.
const SAME: f64 = 0.02;

/// The period of the energy limit for probes.
pub const ENERGY_OVER: Duration = Duration::from_secs(86_400);

/// The limits of probing: the table `[probe]` of `deploy/placer.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProbeConfig {
    /// Whether probes are granted.
    pub enabled: bool,
    /// Largest share of a job's expected duration for all its probes, 0 to 1. A job too short for one
    /// probe is not probed.
    pub time_share_max: f64,
    /// Largest energy of probed GPUs over any 24 hours, kWh.
    pub energy_kwh_per_day_max: f64,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self { enabled: false, time_share_max: 0.05, energy_kwh_per_day_max: 1.0 }
    }
}

impl ProbeConfig {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The invalid key and the remedy.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.time_share_max) {
            return Err(format!(
                "probe.time_share_max = {} is out of range: expected a share from 0 to 1, such as 0.05 for 5 %",
                self.time_share_max
            ));
        }
        if !(self.energy_kwh_per_day_max.is_finite() && self.energy_kwh_per_day_max >= 0.0) {
            return Err("probe.energy_kwh_per_day_max must be 0 or more".to_owned());
        }
        Ok(())
    }
}

/// The input of the decision on one proposal.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The time.
    pub now: Timestamp,
    /// The job.
    pub job: &'a Job,
    /// Whether the job shares no GPU.
    pub alone: bool,
    /// The proposal.
    pub probe: &'a Probe,
    /// The current cap, if any: the lower of the site's and the job's.
    pub cap: Option<Power>,
    /// The current maximum clock, likewise.
    pub clock: Option<Frequency>,
    /// Lowest and default cap of the job's GPUs, if known.
    pub limits: Option<(Power, Power)>,
    /// Lowest and highest clock that the job's GPUs can be locked to, if known.
    pub clocks: Option<(Frequency, Frequency)>,
    /// Earlier probes of this job.
    pub made: &'a [ProbeRecord],
    /// Largest possible energy of all probes over the last 24 hours.
    pub drawn: Energy,
}

/// The setting that a probe changes; the other settings stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A cap.
    Cap(Power),
    /// A maximum clock.
    Clock(Frequency),
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cap(cap) => cap.fmt(f),
            Self::Clock(clock) => clock.fmt(f),
        }
    }
}

/// A granted probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The probed setting.
    pub look: Look,
    /// The cap of each GPU of the job during the probe.
    pub cap: Power,
    /// Duration.
    pub span: Duration,
    /// Largest possible energy of the GPUs during the probe.
    pub energy_max: Energy,
    /// The job's expected duration.
    pub length: Duration,
}

impl Granted {
    /// The record of the probe, started now.
    #[must_use]
    pub fn made(&self, now: Timestamp) -> ProbeRecord {
        ProbeRecord {
            at_us: now,
            cap_mw: self.cap,
            clock_mhz_max: match self.look {
                Look::Cap(_) => None,
                Look::Clock(clock) => Some(clock),
            },
            duration_ms: u64::try_from(self.span.as_millis()).unwrap_or(u64::MAX),
            energy_mj_max: self.energy_max,
        }
    }
}

/// Why a proposal is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refusal {
    /// It is for another number of GPUs or nodes than the job has.
    OtherSize,
    /// It names neither a cap nor a clock, or both: the effects of both cannot be separated.
    NotOneThing,
    /// The job shares a GPU.
    NotAlone,
    /// Its placement is under observation.
    Observed,
    /// The cap range of the GPUs is unknown.
    LimitsUnknown,
    /// The clock range of the GPUs is unknown.
    ClocksUnknown,
    /// The cap is not lower than the current one.
    NoLowerCap,
    /// The clock is not lower than the current one or the highest.
    NoLowerClock,
    /// This cap or clock was probed before.
    LookedAt,
    /// The job had the largest number of probes.
    Enough,
    /// The duration of the job is unknown.
    LengthUnknown,
    /// The probes would exceed their share of the job's duration.
    TooShort {
        /// Duration of all its probes with this one.
        spent: Duration,
        /// Its expected duration.
        length: Duration,
        /// The largest share.
        share_max: f64,
    },
    /// The job could miss its deadline.
    Deadline {
        /// The deadline.
        deadline: Timestamp,
    },
    /// The energy limit for probes is reached.
    Energy {
        /// The limit, kWh.
        kwh_max: f64,
    },
}

/// Grants or refuses a proposal.
///
/// # Errors
/// The reason of the refusal.
pub fn judge(config: &ProbeConfig, case: &Case<'_>) -> Result<Granted, Refusal> {
    let Case { now, job, probe, made, .. } = *case;
    let State::Running { on, since, observation, .. } = &job.state else {
        return Err(Refusal::NotAlone);
    };
    let (gpus, nodes) = (on.gpu_count(), on.node_count());
    if (probe.gpus, probe.nodes) != (gpus, nodes) {
        return Err(Refusal::OtherSize);
    }
    let wanted = match (probe.cap_mw, probe.clock_mhz_max) {
        (Some(cap), None) => Look::Cap(cap),
        (None, Some(clock)) => Look::Clock(clock),
        (None, None) | (Some(_), Some(_)) => return Err(Refusal::NotOneThing),
    };
    if observation.is_some() {
        return Err(Refusal::Observed);
    }
    if !case.alone {
        return Err(Refusal::NotAlone);
    }
    let (look, cap) = within_limits(case, wanted)?;
    if made.iter().any(|past| is_same_setting(past, look)) {
        return Err(Refusal::LookedAt);
    }
    if made.len() >= PROBES_MAX {
        return Err(Refusal::Enough);
    }
    let left = remaining_alone(now, job, gpus, nodes).ok_or(Refusal::LengthUnknown)?;
    let length = now.since(*since) + left;
    let span = Duration::from_millis(probe.duration_ms);
    let before: u64 = made.iter().map(|past| past.duration_ms).fold(0, u64::saturating_add);
    let spent = span.saturating_add(Duration::from_millis(before));
    if spent.as_secs_f64() > config.time_share_max * length.as_secs_f64() || span.is_zero() {
        return Err(Refusal::TooShort { spent, length, share_max: config.time_share_max });
    }
    // The job is assumed to make no progress during the probe.
    if let Some(deadline) = job.facts.deadline
        && now + left.saturating_add(span) > deadline
    {
        return Err(Refusal::Deadline { deadline });
    }
    // A GPU draws at most its cap.
    let energy_max =
        Energy::from_mj((cap.as_w() * f64::from(gpus) * 1e3 * span.as_secs_f64()) as u64);
    if (case.drawn + energy_max).as_kwh() > config.energy_kwh_per_day_max {
        return Err(Refusal::Energy { kwh_max: config.energy_kwh_per_day_max });
    }
    Ok(Granted { look, cap, span, energy_max, length })
}

/// The probed setting, raised to the lower limit of the GPUs, and the cap during the probe. The predictor
/// does not know the lower limit.
fn within_limits(case: &Case<'_>, wanted: Look) -> Result<(Look, Power), Refusal> {
    let (lowest, default) = case.limits.ok_or(Refusal::LimitsUnknown)?;
    let stands = case.cap.map_or(default, |cap| cap.min(default));
    match wanted {
        Look::Cap(cap) => {
            let cap = cap.max(lowest);
            if cap.as_w() >= stands.as_w() * (1.0 - SAME) {
                return Err(Refusal::NoLowerCap);
            }
            Ok((Look::Cap(cap), cap))
        }
        Look::Clock(clock) => {
            let (lowest, highest) = case.clocks.ok_or(Refusal::ClocksUnknown)?;
            let clock = clock.max(lowest);
            let top = case.clock.map_or(highest, |clock| clock.min(highest));
            if f64::from(clock.as_mhz()) >= f64::from(top.as_mhz()) * (1.0 - SAME) {
                return Err(Refusal::NoLowerClock);
            }
            Ok((Look::Clock(clock), stands))
        }
    }
}

/// Whether `past` probed the same setting.
fn is_same_setting(past: &ProbeRecord, look: Look) -> bool {
    let same = |a: f64, b: f64| (a / b - 1.0).abs() < SAME;
    match (past.clock_mhz_max, look) {
        (None, Look::Cap(cap)) => same(past.cap_mw.as_w(), cap.as_w()),
        (Some(past), Look::Clock(clock)) => {
            same(f64::from(past.as_mhz()), f64::from(clock.as_mhz()))
        }
        (None, Look::Clock(_)) | (Some(_), Look::Cap(_)) => false,
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherSize => {
                write!(f, "it needs another number of GPUs, and a probe never moves a job")
            }
            Self::NotOneThing => write!(f, "a probe changes one cap or one clock"),
            Self::NotAlone => write!(f, "the job shares a GPU"),
            Self::Observed => write!(f, "its placement is under observation"),
            Self::LimitsUnknown => write!(f, "the cap range of its GPUs is unknown"),
            Self::ClocksUnknown => {
                write!(f, "the clock range of its GPUs is unknown")
            }
            Self::NoLowerCap => write!(f, "it is not below the current cap"),
            Self::NoLowerClock => write!(f, "it is not below the current clock"),
            Self::LookedAt => write!(f, "this setting was probed before"),
            Self::Enough => write!(f, "the job had {PROBES_MAX} probes, the maximum"),
            Self::LengthUnknown => write!(
                f,
                "the duration of the job is unknown: report steps_total, or submit it with --estimate"
            ),
            Self::TooShort { spent, length, share_max } => write!(
                f,
                "its probes would take {} s, more than {:.0} % of the job's {} s",
                spent.as_secs(),
                100.0 * share_max,
                length.as_secs()
            ),
            Self::Deadline { deadline } => write!(f, "the job could miss its deadline {deadline}"),
            Self::Energy { kwh_max } => {
                write!(f, "the energy limit for probes of {kwh_max} kWh per day is reached")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;
    use crate::state::gpu_set::{GpuSet, NodeKey};
    use crate::state::job::JobFacts;
    use wattle_common::JobId;
    use wattle_common::job::{GpuRequest, GpuSetting};

    const NOW: Timestamp = Timestamp::from_s(1_000);

    /// Running alone on one GPU since 100 s ago, for 2,000 s in all.
    fn job() -> Job {
        let facts = JobFacts {
            can_stop: true,
            duration_alone: Some(Duration::from_secs(2_000)),
            ..JobFacts::new(JobId::new("a").unwrap(), GpuRequest::exactly(1))
        };
        Job {
            state: State::Running {
                setting: GpuSetting::DEFAULT,
                on: GpuSet::on(NodeKey(0), 1),
                since: Timestamp::from_s(900),
                observation: None,
            },
            ..Job::new(facts, 0)
        }
    }

    fn probe() -> Probe {
        Probe {
            gpus: 1,
            nodes: 1,
            cap_mw: Some(Power::from_w(100)),
            clock_mhz_max: None,
            duration_ms: 30_000,
            gain: 0.5,
            cost_time: 0.2,
            reason: None,
        }
    }

    fn ask<'a>(
        job: &'a Job,
        probe: &'a Probe,
        change: impl FnOnce(&mut Case<'a>),
    ) -> Result<Granted, Refusal> {
        let mut case = Case {
            now: NOW,
            job,
            alone: true,
            probe,
            cap: None,
            clock: None,
            limits: Some((Power::from_w(100), Power::from_w(250))),
            clocks: Some((Frequency::from_mhz(405), Frequency::from_mhz(1_380))),
            made: &[],
            drawn: Energy::ZERO,
        };
        change(&mut case);
        judge(&ProbeConfig { enabled: true, ..ProbeConfig::default() }, &case)
    }

    fn made(watts: u64, seconds: u64) -> ProbeRecord {
        ProbeRecord {
            at_us: NOW,
            cap_mw: Power::from_w(watts),
            clock_mhz_max: None,
            duration_ms: 1_000 * seconds,
            energy_mj_max: Energy::from_j(watts * seconds),
        }
    }

    #[test]
    fn what_fits_every_budget_is_granted() {
        let granted = ask(&job(), &probe(), |_| {}).unwrap();
        assert_eq!(
            (granted.look, granted.cap),
            (Look::Cap(Power::from_w(100)), Power::from_w(100))
        );
        assert_eq!(granted.span, Duration::from_secs(30));
        assert_eq!(granted.energy_max, Energy::from_j(3_000));
        assert_eq!(granted.length, Duration::from_secs(2_000));
        // A cap below the GPU's lowest is raised to it.
        let low = Probe { cap_mw: Some(Power::from_w(50)), ..probe() };
        assert_eq!(ask(&job(), &low, |_| {}).unwrap().cap, Power::from_w(100));
    }

    #[test]
    fn every_rule_refuses() {
        let refused = |job: &Job, probe: &Probe, change: &dyn Fn(&mut Case<'_>)| {
            ask(job, probe, |case| change(case)).unwrap_err()
        };
        let (a, p) = (job(), probe());
        assert_eq!(refused(&a, &Probe { gpus: 2, ..probe() }, &|_| {}), Refusal::OtherSize);
        let nothing = Probe { cap_mw: None, ..probe() };
        let both = Probe { clock_mhz_max: Some(Frequency::from_mhz(900)), ..probe() };
        assert_eq!(refused(&a, &nothing, &|_| {}), Refusal::NotOneThing);
        assert_eq!(refused(&a, &both, &|_| {}), Refusal::NotOneThing);
        assert_eq!(refused(&a, &p, &|case| case.alone = false), Refusal::NotAlone);
        assert_eq!(refused(&a, &p, &|case| case.limits = None), Refusal::LimitsUnknown);
        let site = |case: &mut Case<'_>| case.cap = Some(Power::from_w(100));
        assert_eq!(refused(&a, &p, &site), Refusal::NoLowerCap);
        let past = [made(101, 30)];
        assert_eq!(ask(&a, &p, |case| case.made = &past).unwrap_err(), Refusal::LookedAt);
        let past = [made(200, 80)];
        let short = ask(&a, &p, |case| case.made = &past).unwrap_err();
        assert!(matches!(short, Refusal::TooShort { spent, .. } if spent.as_secs() == 110));
        let kwh = |case: &mut Case<'_>| case.drawn = Energy::from_j(3_599_000);
        assert_eq!(refused(&a, &p, &kwh), Refusal::Energy { kwh_max: 1.0 });
        let mut urgent = job();
        urgent.facts.deadline = Some(NOW + Duration::from_secs(1_900 + 29));
        assert!(matches!(refused(&urgent, &p, &|_| {}), Refusal::Deadline { .. }));
        let mut unknown = job();
        unknown.facts.duration_alone = None;
        assert_eq!(refused(&unknown, &p, &|_| {}), Refusal::LengthUnknown);
        // 599 s are too short for half a minute in twenty.
        let mut short = job();
        short.facts.duration_alone = Some(Duration::from_secs(599));
        assert!(matches!(refused(&short, &p, &|_| {}), Refusal::TooShort { .. }));
        short.facts.duration_alone = Some(Duration::from_secs(600));
        assert!(ask(&short, &p, |_| {}).is_ok());
    }

    fn at_clock(mhz: u32) -> Probe {
        Probe { cap_mw: None, clock_mhz_max: Some(Frequency::from_mhz(mhz)), ..probe() }
    }

    /// A clock is probed under the cap in force, which bounds the power draw of the GPUs.
    #[test]
    fn a_clock_is_granted_and_refused_as_a_cap_is() {
        let granted = ask(&job(), &at_clock(900), |_| {}).unwrap();
        assert_eq!(granted.look, Look::Clock(Frequency::from_mhz(900)));
        assert_eq!((granted.cap, granted.energy_max), (Power::from_w(250), Energy::from_j(7_500)));
        let low = ask(&job(), &at_clock(300), |_| {}).unwrap();
        assert_eq!(low.look, Look::Clock(Frequency::from_mhz(405)), "raised to the lowest");
        let capped = |case: &mut Case<'_>| case.cap = Some(Power::from_w(150));
        assert_eq!(ask(&job(), &at_clock(900), capped).unwrap().cap, Power::from_w(150));

        let refused = |mhz, change: &dyn Fn(&mut Case<'_>)| {
            ask(&job(), &at_clock(mhz), |case| change(case)).unwrap_err()
        };
        assert_eq!(refused(900, &|case| case.clocks = None), Refusal::ClocksUnknown);
        assert_eq!(refused(1_380, &|_| {}), Refusal::NoLowerClock);
        let site = |case: &mut Case<'_>| case.clock = Some(Frequency::from_mhz(900));
        assert_eq!(refused(900, &site), Refusal::NoLowerClock);
        // A look under a cap shows nothing of a clock, and the other way round.
        let past = [None, Some(Frequency::from_mhz(905))]
            .map(|clock_mhz_max| ProbeRecord { clock_mhz_max, ..made(100, 30) });
        for (i, looked_at) in [(0, &probe()), (1, &at_clock(900))] {
            let again = ask(&job(), looked_at, |case| case.made = &past[i..=i]).unwrap_err();
            assert_eq!(again, Refusal::LookedAt);
            assert!(ask(&job(), looked_at, |case| case.made = &past[1 - i..2 - i]).is_ok());
        }
    }

    /// The steps that the job reports take precedence over its owner's estimate.
    #[test]
    fn length_is_counted_from_steps_where_they_are_reported() {
        let mut job = job();
        job.progress = Some(Progress {
            at: NOW,
            step: 1_900,
            steps_total: Some(2_000),
            ..Progress::default()
        });
        // 100 steps of 2,000 in 2,000 s are left, and it ran for 100 s.
        let short = ask(&job, &probe(), |_| {}).unwrap_err();
        assert!(
            matches!(short, Refusal::TooShort { length, .. } if length.as_secs() == 200),
            "{short:?}"
        );
    }
}
