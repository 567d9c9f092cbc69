//! Whether a predictor's proposal to look at a job under another cap is followed.
//!
//! The predictor knows what a look would teach; only the placer knows what else the cards are for.
//! A probe is paid by the job itself and by the site's energy, so both have a budget here. It must
//! not decide what to look at, and it places nothing: a proposal of other GPUs or nodes is refused,
//! since no policy changes a running job's size yet.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::messages::Probe;
use wattle_common::messages::job_record::{PROBES_MAX, ProbeMade};
use wattle_common::{Energy, Power, Timestamp};

use crate::job::{Job, State};
use crate::outlook::remaining_alone;

/// Two caps that differ by less are one reading, as a share.
const SAME_CAP: f64 = 0.02;

/// The span over which the site's energy for probes is counted.
pub const ENERGY_OVER: Duration = Duration::from_secs(86_400);

/// What an operator allows: the table `[probe]` of `deploy/placer.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProbeConfig {
    /// Whether proposals are followed at all.
    pub enabled: bool,
    /// The share of a job's expected length that its probes may take together, 0 to 1. A job too
    /// short for one is not probed.
    pub time_share_max: f64,
    /// Energy that cards may draw while they are probed, over any 24 hours, kWh.
    pub energy_kwh_per_day_max: f64,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self { enabled: false, time_share_max: 0.05, energy_kwh_per_day_max: 1.0 }
    }
}

impl ProbeConfig {
    /// What cannot be.
    ///
    /// # Errors
    /// Names the key and the remedy.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.time_share_max) {
            return Err(format!(
                "probe.time_share_max = {} is no share; write 0.05 for 5 %",
                self.time_share_max
            ));
        }
        if !(self.energy_kwh_per_day_max.is_finite() && self.energy_kwh_per_day_max >= 0.0) {
            return Err("probe.energy_kwh_per_day_max must be 0 or more".to_owned());
        }
        Ok(())
    }
}

/// All that is looked at before a proposal is followed.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The time.
    pub now: Timestamp,
    /// The job the proposal is about.
    pub job: &'a Job,
    /// Whether nobody else is on its GPUs.
    pub alone: bool,
    /// The proposal.
    pub probe: &'a Probe,
    /// The site's cap for every GPU.
    pub site_cap: Option<Power>,
    /// Lowest and default cap that all of the job's cards take, where they say.
    pub limits: Option<(Power, Power)>,
    /// Probes made of this job.
    pub made: &'a [ProbeMade],
    /// What probes of all jobs may have drawn over the last 24 hours.
    pub drawn: Energy,
}

/// A probe that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The cap of each of the job's cards.
    pub cap: Power,
    /// For how long.
    pub span: Duration,
    /// The most its cards may draw meanwhile.
    pub energy_max: Energy,
    /// The job's expected length.
    pub length: Duration,
}

/// Why a proposal is not followed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refusal {
    /// It is for other GPUs or nodes than the job has.
    OtherSize,
    /// It is for a locked clock, or no cap is named.
    NotACap,
    /// Somebody else is on its GPUs.
    NotAlone,
    /// Its placement is being observed.
    Observed,
    /// The cards do not say which caps they take.
    LimitsUnknown,
    /// The cap would not be lower than the one that stands.
    NoLowerCap,
    /// That cap was looked at already.
    LookedAt,
    /// So many probes were made.
    Enough,
    /// Nobody knows how long the job is.
    LengthUnknown,
    /// The job is too short for the share that probes may take.
    TooShort {
        /// All its probes with this one.
        spent: Duration,
        /// Its expected length.
        length: Duration,
        /// The share allowed.
        share_max: f64,
    },
    /// The job's deadline would be in danger.
    Deadline {
        /// The deadline.
        deadline: Timestamp,
    },
    /// The site's energy for probes is spent.
    Energy {
        /// The budget, kWh.
        kwh_max: f64,
    },
}

/// Whether and how the proposal is followed.
///
/// # Errors
/// Why it is not.
pub fn judge(config: &ProbeConfig, case: &Case<'_>) -> Result<Granted, Refusal> {
    let Case { now, job, probe, made, .. } = *case;
    let State::Running { on, since, observation, .. } = &job.state else {
        return Err(Refusal::NotAlone);
    };
    let (gpus, nodes) = (on.gpu_count(), on.node_count());
    if (probe.gpus, probe.nodes) != (gpus, nodes) {
        return Err(Refusal::OtherSize);
    }
    let Some(cap) = probe.cap_mw.filter(|_| probe.clock_mhz_max.is_none()) else {
        return Err(Refusal::NotACap);
    };
    if observation.is_some() {
        return Err(Refusal::Observed);
    }
    if !case.alone {
        return Err(Refusal::NotAlone);
    }
    let (lowest, default) = case.limits.ok_or(Refusal::LimitsUnknown)?;
    // The predictor does not know how low a card goes: what lies below is looked at there.
    let cap = cap.max(lowest);
    let stands = case.site_cap.map_or(default, |site| site.min(default));
    if cap.as_w() >= stands.as_w() * (1.0 - SAME_CAP) {
        return Err(Refusal::NoLowerCap);
    }
    if made.iter().any(|past| (past.cap_mw.as_w() / cap.as_w() - 1.0).abs() < SAME_CAP) {
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
    // As if the job stood still meanwhile.
    if let Some(deadline) = job.facts.deadline
        && now + left.saturating_add(span) > deadline
    {
        return Err(Refusal::Deadline { deadline });
    }
    // No card draws more than its cap.
    let energy_max =
        Energy::from_mj((cap.as_w() * f64::from(gpus) * 1e3 * span.as_secs_f64()) as u64);
    if (case.drawn + energy_max).as_kwh() > config.energy_kwh_per_day_max {
        return Err(Refusal::Energy { kwh_max: config.energy_kwh_per_day_max });
    }
    Ok(Granted { cap, span, energy_max, length })
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherSize => {
                write!(f, "it would need other GPUs, and no policy moves a job to learn")
            }
            Self::NotACap => write!(f, "only lower caps are looked at"),
            Self::NotAlone => write!(f, "others are on its GPUs"),
            Self::Observed => write!(f, "its placement is being observed"),
            Self::LimitsUnknown => write!(f, "its cards have not said which caps they take"),
            Self::NoLowerCap => write!(f, "that is not below the cap that stands"),
            Self::LookedAt => write!(f, "that cap was looked at already"),
            Self::Enough => write!(f, "{PROBES_MAX} probes were made of it, which must do"),
            Self::LengthUnknown => write!(
                f,
                "nobody knows how long the job is: it reports no total of steps, and its owner \
                 said nothing"
            ),
            Self::TooShort { spent, length, share_max } => write!(
                f,
                "with it {} s would go to probes, more than {:.0} % of the job's {} s",
                spent.as_secs(),
                100.0 * share_max,
                length.as_secs()
            ),
            Self::Deadline { deadline } => write!(f, "its deadline {deadline} would be in danger"),
            Self::Energy { kwh_max } => {
                write!(f, "the {kwh_max} kWh that probes may draw in a day are spent")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;
    use crate::job::JobFacts;
    use crate::set::{GpuSet, NodeKey};
    use wattle_common::JobId;
    use wattle_common::job::{CardSetting, GpuRequest};

    const NOW: Timestamp = Timestamp::from_s(1_000);

    /// Running alone on one GPU since 100 s ago, for 2,000 s in all.
    fn job() -> Job {
        let facts = JobFacts {
            id: JobId::new("a").unwrap(),
            workload: None,
            request: GpuRequest::exactly(1),
            exclusive: false,
            can_stop: true,
            deadline: None,
            duration_alone: Some(Duration::from_secs(2_000)),
            memory_mib_max: None,
            submitted_at: Timestamp::EPOCH,
        };
        Job {
            state: State::Running {
                setting: CardSetting::DEFAULT,
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
            site_cap: None,
            limits: Some((Power::from_w(100), Power::from_w(250))),
            made: &[],
            drawn: Energy::ZERO,
        };
        change(&mut case);
        judge(&ProbeConfig { enabled: true, ..ProbeConfig::default() }, &case)
    }

    fn made(watts: u64, seconds: u64) -> ProbeMade {
        ProbeMade {
            at_us: NOW,
            cap_mw: Power::from_w(watts),
            duration_ms: 1_000 * seconds,
            energy_mj_max: Energy::from_j(watts * seconds),
        }
    }

    #[test]
    fn what_fits_every_budget_is_granted() {
        let granted = ask(&job(), &probe(), |_| {}).unwrap();
        assert_eq!(granted.cap, Power::from_w(100));
        assert_eq!(granted.span, Duration::from_secs(30));
        assert_eq!(granted.energy_max, Energy::from_j(3_000));
        assert_eq!(granted.length, Duration::from_secs(2_000));
        // A cap below what the card takes is raised to its lowest.
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
        assert_eq!(refused(&a, &Probe { cap_mw: None, ..probe() }, &|_| {}), Refusal::NotACap);
        assert_eq!(refused(&a, &p, &|case| case.alone = false), Refusal::NotAlone);
        assert_eq!(refused(&a, &p, &|case| case.limits = None), Refusal::LimitsUnknown);
        let site = |case: &mut Case<'_>| case.site_cap = Some(Power::from_w(100));
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

    /// What the job itself reports stands above its owner's word.
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
