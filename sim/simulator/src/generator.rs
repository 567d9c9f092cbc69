//! Synthetic traces with the arrivals, sizes, durations and repetition of Microsoft's Philly
//! traces.
//!
//! Users start campaigns: jobs on equal numbers of GPUs within seconds of each other and of similar
//! duration. Campaigns start as a Poisson process whose rate depends on the hour, the day of the
//! week, and a daily level that is correlated with the previous day's. A user's next campaign often
//! repeats the kind of the last one, with correlated duration. Every distribution is tabulated in
//! `catalog/generator.toml`, which `catalog/derive.py` prints from the public table.
//!
//! The public table has no workloads. As for a trace without models, they are drawn from the
//! catalog's mix, one for all campaigns of a kind. The same number and seed give the same jobs; a
//! larger number of jobs starts with the jobs of a smaller one.

mod fitted;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use wattle_common::JobId;
use wattle_common::rng::Stream;

use crate::trace::{Trace, TraceJob};
pub use fitted::Moments;
use fitted::{Fitted, Tabulated};

const HOUR_S: f64 = 3_600.0;
const DAY_S: f64 = 24.0 * HOUR_S;

/// The name of a generated trace.
pub const NAME: &str = "builtin";

/// Most jobs of a generated trace.
pub const JOBS_MAX: usize = 10_000_000;

/// Moments of the jobs to which the distributions were fitted.
#[must_use]
pub fn fitted_moments() -> &'static Moments {
    &Fitted::get().moments
}

/// The first `jobs` jobs, at most [`JOBS_MAX`], drawn from `seed`.
#[must_use]
pub fn generate(jobs: usize, seed: u64) -> Trace {
    let wanted = jobs.min(JOBS_MAX);
    let mut campaigns = Campaigns::new(Fitted::get(), seed);
    let mut lengths = Draws::new(seed, "lengths");
    let mut durations = Draws::new(seed, "durations");
    let mut waiting: BinaryHeap<Reverse<Draft>> = BinaryHeap::new();
    let mut drafts = Vec::with_capacity(wanted.min(1 << 20));
    let mut order = 0;
    while drafts.len() < wanted {
        let campaign = campaigns.next();
        // Later jobs arrive no earlier than the start of this campaign.
        while drafts.len() < wanted
            && waiting.peek().is_some_and(|Reverse(draft)| draft.at_us <= us(campaign.at_s))
        {
            drafts.extend(waiting.pop().map(|Reverse(draft)| draft));
        }
        let class = campaigns.fitted.class(campaign.gpus);
        let count = lengths.of(&class.length).round().max(1.0) as u64;
        let alike = campaigns.fitted.campaigns.alike;
        let mut at_s = campaign.at_s;
        for _ in 0..count {
            let own = durations.normal();
            let score = alike.sqrt() * campaign.score + (1.0 - alike).sqrt() * own;
            waiting.push(Reverse(Draft {
                at_us: us(at_s),
                order,
                seconds: class.seconds.at(score).round().max(1.0) as u64,
                gpus: campaign.gpus,
                user: campaign.user,
                kind: campaign.kind,
            }));
            order += 1;
            at_s += lengths.of(&campaigns.fitted.campaigns.gap_s);
        }
    }
    let first = drafts.first().map_or(0, |draft| draft.at_us);
    let jobs = drafts.iter().enumerate().filter_map(|(i, draft)| draft.job(i, first)).collect();
    Trace { name: NAME.to_owned(), format: "generated", jobs, notes: Vec::new(), origin: None }
}

fn us(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

/// A drawn job, ordered by arrival, then by draw.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Draft {
    at_us: u64,
    order: u64,
    seconds: u64,
    gpus: u32,
    user: usize,
    kind: u64,
}

impl Draft {
    fn job(&self, index: usize, first_us: u64) -> Option<TraceJob> {
        let submit = Duration::from_micros(self.at_us - first_us);
        let user = format!("u{}", self.user + 1);
        let id = JobId::new(&index.to_string()).ok()?;
        Some(TraceJob {
            recurs_as: Some(format!("{user}/{}", self.kind)),
            user: Some(user),
            ..TraceJob::new(id, submit, Duration::from_secs(self.seconds), self.gpus)
        })
    }
}

/// A stream of draws from tabulated distributions.
struct Draws(Stream);

impl Draws {
    fn new(seed: u64, of: &str) -> Self {
        Self(Stream::new(seed, &format!("builtin {of}")))
    }
    fn normal(&mut self) -> f64 {
        self.0.normal()
    }
    fn of(&mut self, table: &Tabulated) -> f64 {
        let score = self.normal();
        table.at(score)
    }
    /// An index drawn with these weights.
    fn which(&mut self, shares: &[f64]) -> usize {
        let mut left = self.0.unit() * shares.iter().sum::<f64>();
        for (i, share) in shares.iter().enumerate() {
            left -= share;
            if left < 0.0 {
                return i;
            }
        }
        shares.len().saturating_sub(1)
    }
}

/// A user's last campaign.
#[derive(Clone, Copy)]
struct Habit {
    gpus: u32,
    score: f64,
    kind: u64,
}

/// One campaign.
struct Campaign {
    at_s: f64,
    user: usize,
    gpus: u32,
    /// The normal score of its durations.
    score: f64,
    kind: u64,
}

/// An infinite sequence of campaigns.
struct Campaigns {
    fitted: &'static Fitted,
    arrivals: Draws,
    days: Draws,
    users: Draws,
    habits: Vec<Option<Habit>>,
    kinds: u64,
    at_s: f64,
    day: u64,
    /// The day's level, as a normal score.
    level: f64,
}

impl Campaigns {
    fn new(fitted: &'static Fitted, seed: u64) -> Self {
        let mut days = Draws::new(seed, "days");
        Self {
            fitted,
            arrivals: Draws::new(seed, "arrivals"),
            level: days.normal(),
            days,
            users: Draws::new(seed, "users"),
            habits: vec![None; fitted.users.shares.len()],
            kinds: 0,
            at_s: 0.0,
            day: 0,
        }
    }

    /// The current rate, campaigns per second.
    fn rate(&mut self) -> f64 {
        let arrivals = &self.fitted.arrivals;
        let day = (self.at_s / DAY_S) as u64;
        while self.day < day {
            let kept = arrivals.day_correlation;
            self.level = kept * self.level + (1.0 - kept * kept).sqrt() * self.days.normal();
            self.day += 1;
        }
        let hour = arrivals.hour[(self.at_s % DAY_S / HOUR_S) as usize % arrivals.hour.len()];
        let weekday = arrivals.weekday[day as usize % arrivals.weekday.len()];
        // The lognormal levels have mean 1.
        let deviation = arrivals.day_deviation;
        let level = (deviation * self.level - deviation * deviation / 2.0).exp();
        arrivals.per_day / DAY_S * hour * weekday * level
    }

    /// The next campaign. The rate is constant within an hour; the rest of a waiting time at the
    /// end of an hour is scaled to the next hour's rate, which is exact for this process.
    fn next(&mut self) -> Campaign {
        let mut expected = -(1.0 - self.arrivals.0.unit()).ln();
        loop {
            let rate = self.rate();
            let hour_ends = ((self.at_s / HOUR_S).floor() + 1.0) * HOUR_S;
            let in_hour = rate * (hour_ends - self.at_s);
            if expected < in_hour {
                self.at_s += expected / rate;
                break;
            }
            expected -= in_hour;
            self.at_s = hour_ends;
        }
        let user = self.users.which(&self.fitted.users.shares);
        let (again, fresh) = (self.users.0.unit(), self.users.normal());
        let habit = match self.habits[user] {
            Some(last) if again < self.fitted.users.repeats => {
                let kept = self.fitted.users.alike;
                let score = kept * last.score + (1.0 - kept * kept).sqrt() * fresh;
                Habit { score, ..last }
            }
            _ => {
                let size = self.users.which(&self.fitted.sizes.shares);
                self.kinds += 1;
                Habit { gpus: self.fitted.sizes.gpus[size], score: fresh, kind: self.kinds }
            }
        };
        self.habits[user] = Some(habit);
        let Habit { gpus, score, kind } = habit;
        Campaign { at_s: self.at_s, user, gpus, score, kind }
    }
}
