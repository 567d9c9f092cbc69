//! The site's rules on restarts of running jobs: how many a job may have within a day, and what a restart costs
//! beside the time that it takes.
//!
//! The number of stops within a day is bounded: a job that was moved or resized so often keeps its GPUs, except for
//! a deadline, failed GPUs, a limit or a deferral. Preemption by rank is not bounded, like settling
//! ([`super::settling`]). A job of one size may be stopped 4 times: on ElasticFlow's 876 jobs at fixed sizes that
//! changes the mean completion time by less than 0.2 % and saves a quarter of the restarts. An elastic job, whose
//! owner accepts other sizes, may be stopped 24 times: 4 would lengthen the mean completion time of the same jobs by
//! 18 % (`docs/measurements/restarts.md`).
//!
//! The time of a restart is measured ([`crate::state::restarts`]). `wattle` charges two things more, because it
//! would otherwise restart a job for any gain above that time:
//!
//! * **Risk.** A share of restarts fails and is repeated, so that a restart takes `1 / (1 - share)` times as long.
//! * **Patience.** Each stop within the last day beyond those that a job of one size may have adds
//!   [`RestartRules::patience_ms`] to the next restart: an elastic job that is stopped again and again needs a larger
//!   gain each time.

use std::time::Duration;

use serde::Deserialize;
use wattle_common::Timestamp;

use crate::state::job::Job;

/// The time within which stops count.
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3_600);
const PER_DAY_MAX: u32 = 4;
const ELASTIC_PER_DAY_MAX: u32 = 24;
/// Our own choice. On ElasticFlow's 876 elastic jobs it saves an eighth of all restarts and a third of those of the
/// job with the most, for 0.2 % of mean completion time without a power limit.
const PATIENCE_MS: u64 = 50_000;
/// Our own choice: no public trace states how many restarts from a checkpoint fail.
const FAILING_SHARE: f64 = 0.01;
/// The largest failing share that is accepted.
const FAILING_SHARE_MAX: f64 = 0.5;

/// The rules, `[restarts]` in the placer's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RestartRules {
    /// Most stops of a job of one size by plans within 24 hours; above 32: no bound.
    pub per_day_max: u32,
    /// The same of an elastic job.
    pub elastic_per_day_max: u32,
    /// What each stop within the last 24 hours beyond `per_day_max` adds to the cost of the next restart,
    /// milliseconds.
    pub patience_ms: u64,
    /// The share of restarts that fail and are repeated, 0 to 0.5.
    pub failing_share: f64,
}

impl Default for RestartRules {
    fn default() -> Self {
        Self {
            per_day_max: PER_DAY_MAX,
            elastic_per_day_max: ELASTIC_PER_DAY_MAX,
            patience_ms: PATIENCE_MS,
            failing_share: FAILING_SHARE,
        }
    }
}

impl RestartRules {
    /// Checks the values.
    ///
    /// # Errors
    /// Names the key and the permitted values.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=FAILING_SHARE_MAX).contains(&self.failing_share) {
            return Err(format!(
                "failing_share = {}: give a share from 0 to {FAILING_SHARE_MAX}, as in 0.01 for 1 %",
                self.failing_share
            ));
        }
        for (key, most) in
            [("per_day_max", self.per_day_max), ("elastic_per_day_max", self.elastic_per_day_max)]
        {
            if most == 0 {
                return Err(format!(
                    "{key} must be greater than 0; a job without checkpoint signal is never stopped"
                ));
            }
        }
        Ok(())
    }

    /// What is charged for a restart that takes this long, s, after this many stops within a day.
    pub(crate) fn charged_s(&self, stops: usize, restart_s: f64) -> f64 {
        let beyond = stops.saturating_sub(self.per_day_max as usize);
        let patience_s = Duration::from_millis(self.patience_ms).as_secs_f64();
        restart_s / (1.0 - self.failing_share) + patience_s * beyond as f64
    }

    /// Until when a job keeps its GPUs because of its stops within a day; `None`: it may be stopped.
    pub(crate) fn keeps_until(&self, now: Timestamp, job: &Job) -> Option<Timestamp> {
        let is_elastic = job.facts.request.min < job.facts.request.max;
        let most = if is_elastic { self.elastic_per_day_max } else { self.per_day_max };
        let mut stops = job.restarts.stops_since(now, DAY);
        let passed = stops.clone().count().checked_sub(most as usize)?;
        // The oldest of the last `most` stops has to pass.
        Some(*stops.nth(passed)? + DAY)
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::job::GpuRequest;

    use super::*;
    use crate::state::job::JobFacts;

    fn stopped(most_gpus: u32, at_s: &[u64]) -> Job {
        let request = GpuRequest { min: 1, max: most_gpus };
        let mut job = Job::new(JobFacts::new("a".parse().unwrap(), request), 0);
        at_s.iter().for_each(|&at| job.restarts.stop_requested_at(Timestamp::from_s(at)));
        job
    }

    #[test]
    fn each_further_stop_within_a_day_makes_the_next_costlier() {
        let rules = RestartRules { per_day_max: 1, failing_share: 0.2, ..RestartRules::default() };
        let charged = |now: u64, at: &[u64]| {
            let stops = stopped(1, at).restarts.stops_since(Timestamp::from_s(now), DAY).count();
            rules.charged_s(stops, 40.0)
        };
        assert!((charged(100, &[]) - 50.0).abs() < 1e-9);
        assert!((charged(100, &[10]) - 50.0).abs() < 1e-9);
        assert!((charged(100, &[10, 20, 30]) - 150.0).abs() < 1e-9);
        // The first stop is more than a day ago.
        assert!((charged(86_411, &[10, 20, 30]) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_job_keeps_its_gpus_until_its_stops_are_a_day_old() {
        let rules =
            RestartRules { per_day_max: 2, elastic_per_day_max: 3, ..RestartRules::default() };
        let keeps = |now: u64, most_gpus: u32, at: &[u64]| {
            rules.keeps_until(Timestamp::from_s(now), &stopped(most_gpus, at))
        };
        assert_eq!(keeps(100, 1, &[10]), None);
        assert_eq!(keeps(100, 1, &[10, 20]), Some(Timestamp::from_s(86_410)));
        assert_eq!(keeps(100, 1, &[10, 20, 30]), Some(Timestamp::from_s(86_420)));
        assert_eq!(keeps(86_410, 1, &[10, 20]), None);
        assert_eq!(keeps(100, 8, &[10, 20]), None);
        assert_eq!(keeps(100, 8, &[10, 20, 30]), Some(Timestamp::from_s(86_410)));
        let unbounded = RestartRules { per_day_max: 33, ..RestartRules::default() };
        assert_eq!(unbounded.keeps_until(Timestamp::from_s(100), &stopped(1, &[1; 40])), None);
    }

    #[test]
    fn bad_values_are_refused() {
        for (rules, named) in [
            (RestartRules { failing_share: 0.6, ..RestartRules::default() }, "failing_share = 0.6"),
            (RestartRules { failing_share: f64::NAN, ..RestartRules::default() }, "failing_share"),
            (RestartRules { per_day_max: 0, ..RestartRules::default() }, "per_day_max must"),
            (RestartRules { elastic_per_day_max: 0, ..RestartRules::default() }, "elastic_per"),
        ] {
            let error = rules.check().unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        assert_eq!(RestartRules::default().check(), Ok(()));
    }
}
