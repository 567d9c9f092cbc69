//! The time limits of a scenario's jobs, for policies that read them: those of the trace, and drawn ones.
//!
//! A drawn limit follows the model of Tsafrir, Etsion and Feitelson ("Modeling User Runtime Estimates", JSSPP 2005) as
//! published with its program: the estimates of users are few round values. 20 of them cover 89 % of the jobs, and the
//! most popular one is the largest that the site permits. Multiples of the run time, as in older models, give a
//! scheduler too much information (Tsafrir, "Using Inaccurate Estimates Accurately", JSSPP 2010).
//!
//! * **Values.** The largest limit, the 15 values that are popular at all four sites of the paper, and the model's round
//!   values up to 20. The largest limit is the longest run time or stated limit of the scenario in whole days.
//! * **Shares.** Those of the 20 values by popularity, in the order of one of the four sites (CTC); the model draws the
//!   order from the four.
//! * **Draw.** A job's limit is drawn among the values that are at least its run time, by their shares. The draw depends
//!   on the seed and the id of the job alone.
//!
//! Our own choices: the 11 % of the jobs with rarer values are left out, so are the repeated values of one user; and the
//! shares of the model hold for all jobs together, while here they hold among the values a job may have.

use std::time::Duration;

use wattle_common::rng::Stream;
use wattle_world::World;

use crate::scenario::{Scenario, SimJob};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Beginning of the note of a run on its time limits.
const NOTE: &str = "time limits ";

/// The note on time limits among those of a run.
pub(crate) fn note_of(notes: &[String]) -> Option<&str> {
    notes.iter().find(|note| note.starts_with(NOTE)).map(String::as_str)
}

/// Number of popular values.
const VALUES: usize = 20;

/// The values that are among the 20 most popular ones at all four sites, seconds.
const AT_ALL_SITES: [u64; 15] = [
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    20 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    4 * HOUR,
    5 * HOUR,
    6 * HOUR,
    8 * HOUR,
    10 * HOUR,
    12 * HOUR,
    18 * HOUR,
];

/// Further values are multiples of these, the largest multiples first, seconds.
const ROUND: [u64; 7] = [200 * HOUR, 100 * HOUR, 50 * HOUR, 10 * HOUR, 5 * HOUR, 2 * HOUR, HOUR];

/// The popularity rank of the largest limit, then of the others by size, at CTC.
const RANKS: [u32; VALUES] =
    [1, 3, 4, 2, 12, 9, 8, 18, 6, 7, 11, 20, 16, 5, 14, 13, 10, 15, 17, 19];

/// Share of the 20 values together, per cent.
const SHARE_OF_ALL: f64 = 89.0;

/// Share of the value with this popularity rank, from 2 to 20, per cent.
fn share(rank: u32) -> f64 {
    14.0491 * (-0.177_531 * f64::from(rank)).exp() + 0.462_513
}

/// The time limits of a scenario's jobs.
#[derive(Clone, Debug)]
pub(crate) struct TimeLimits {
    /// In the order of the scenario's jobs.
    limits: Vec<Duration>,
    /// The largest limit.
    most: Duration,
    /// Number of drawn limits.
    drawn: usize,
    /// Whether the trace has priorities.
    has_priorities: bool,
}

impl TimeLimits {
    /// The limits of the jobs, on the scenario's cluster.
    pub(crate) fn new(world: &World, scenario: &Scenario) -> Self {
        let run_time_s = |job| scenario.run_time_s(world, job).unwrap_or_default();
        let longest_s = scenario.jobs.iter().map(|job| {
            let limit_s = job.time_limit.unwrap_or_default().as_secs_f64();
            limit_s.max(run_time_s(job))
        });
        let days = (longest_s.fold(0.0, f64::max) / DAY as f64).ceil();
        let values = popular_values(DAY * (days as u64).max(1));
        let draw = |job| draw(scenario.seed, job, run_time_s(job), &values);
        let limits = scenario.jobs.iter().map(|job| job.time_limit.unwrap_or_else(|| draw(job)));
        Self {
            limits: limits.collect(),
            most: Duration::from_secs(values[0].0),
            drawn: scenario.jobs.iter().filter(|job| job.time_limit.is_none()).count(),
            has_priorities: scenario.jobs.iter().any(|job| job.site_priority > 0),
        }
    }

    /// The limit of the scenario's job with this index.
    pub(crate) fn of(&self, job: u32) -> Duration {
        self.limits[job as usize]
    }

    /// Where limits and priorities are from.
    pub(crate) fn note(&self) -> String {
        let order = if self.has_priorities {
            "priorities of the trace"
        } else {
            "first come, first served"
        };
        let (drawn, jobs) = (self.drawn, self.limits.len());
        if drawn == 0 {
            return format!("{NOTE}as in the trace; order: {order}");
        }
        let whose =
            if drawn == jobs { String::new() } else { format!(" for {drawn} of {jobs} jobs") };
        let hours = self.most.as_secs() / HOUR;
        format!(
            "{NOTE}drawn{whose}, among {VALUES} round values up to {hours} h as users choose them \
             (Tsafrir, Etsion, Feitelson, JSSPP 2005); order: {order}"
        )
    }
}

/// The popular limits below and at `most`, seconds, with their shares; the largest first, then by size.
fn popular_values(most: u64) -> Vec<(u64, f64)> {
    let mut values: Vec<u64> = AT_ALL_SITES.into_iter().filter(|value| *value < most).collect();
    let multiples = ROUND.iter().flat_map(|step| (1..=most / step).rev().map(move |n| n * step));
    for value in multiples {
        if values.len() + 1 < VALUES && value < most && !values.contains(&value) {
            values.push(value);
        }
    }
    values.sort_unstable();
    let others: f64 = (2..=VALUES as u32).map(share).sum();
    let share_of = |rank| if rank == 1 { SHARE_OF_ALL - others } else { share(rank) };
    let all = std::iter::once(most).chain(values);
    all.zip(RANKS).map(|(value, rank)| (value, share_of(rank))).collect()
}

/// A limit of at least the run time.
fn draw(seed: u64, job: &SimJob, run_time_s: f64, values: &[(u64, f64)]) -> Duration {
    let long_enough = || values.iter().filter(|(value, _)| *value as f64 >= run_time_s);
    let shares: f64 = long_enough().map(|(_, share)| share).sum();
    let mut rest = shares * Stream::new(seed, &format!("time limit {}", job.id)).unit();
    let chosen = long_enough().find(|(_, share)| {
        rest -= share;
        rest < 0.0
    });
    // The largest value is the first, and no run takes longer.
    Duration::from_secs(chosen.unwrap_or(&values[0]).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace;

    fn scenario(text: &str) -> (World, Scenario) {
        let world = World::builtin();
        let trace = trace::parse("t.csv", text.as_bytes()).unwrap();
        let scenario = Scenario::from_trace(&world, &trace, &"2x8:v100".parse().unwrap(), 7);
        (world, scenario.unwrap())
    }

    #[test]
    fn twenty_values_have_the_shares_of_the_model() {
        let values = popular_values(7 * DAY);
        assert_eq!(values.len(), VALUES);
        assert_eq!(values[0].0, 7 * DAY);
        let hours: Vec<u64> = values[16..].iter().map(|(value, _)| value / HOUR).collect();
        assert_eq!(hours, [50, 100, 150, 160]);
        let sum: f64 = values.iter().map(|(_, share)| share).sum();
        assert!((sum - SHARE_OF_ALL).abs() < 1e-9, "{sum}");
        assert!((values[0].1 - 21.7).abs() < 0.1, "{values:?}");
        assert!(values[1..].iter().all(|(_, share)| *share < values[0].1));
        assert_eq!(popular_values(DAY).len(), VALUES);
    }

    #[test]
    fn drawn_limits_hold_the_run_and_depend_on_the_seed_and_the_job_alone() {
        let rows: String = (0..400).map(|i| format!("j{i},{i},{},1,x\n", 30 + 217 * i)).collect();
        let header = "job_id,submit_s,duration_s,num_gpus,vc\n";
        let (world, all) = scenario(&(header.to_owned() + &rows));
        let limits = TimeLimits::new(&world, &all);
        let values: Vec<u64> =
            popular_values(2 * DAY).into_iter().map(|(value, _)| value).collect();
        for (job, limit) in all.jobs.iter().zip(&limits.limits) {
            assert!(Some(limit.as_secs_f64()) >= all.run_time_s(&world, job), "{}", job.id);
            assert!(values.contains(&limit.as_secs()), "{limit:?}");
        }
        assert!(
            limits.note().starts_with("time limits drawn, among 20 round values up to 48 h"),
            "{}",
            limits.note()
        );
    }
}
