//! Jobs drawn where there is no trace: arrivals, sizes, durations and repetition as in Microsoft's
//! Philly traces.
//!
//! Users start campaigns: jobs on as many GPUs, one after the other within seconds, of about the
//! same length. Campaigns start as a Poisson process whose rate follows the hour, the day of the
//! week and a level that each day inherits in part from the day before. A user's next campaign is
//! often of the kind of the last one; then it is as long, give or take. Every distribution is
//! tabulated in `catalog/generator.toml`, which `catalog/derive.py` prints from the public table.
//!
//! What a job computes nobody has published: like a trace without models, its workload is drawn
//! from the catalog's mix, the same for all campaigns of one kind. The same number and seed give
//! the same jobs; a larger number begins with the smaller one's.

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

/// What the generated trace is called.
pub const NAME: &str = "builtin";

/// Most jobs that are drawn: more are no trace any more.
pub const JOBS_MAX: usize = 10_000_000;

/// The moments of the jobs that the distributions were fitted to.
#[must_use]
pub fn fitted_moments() -> &'static Moments {
    &Fitted::get().moments
}

/// The first `jobs` jobs, at most [`JOBS_MAX`], that follow from `seed`.
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
        // Whatever is still to come arrives no earlier than this campaign begins.
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
    Trace { name: NAME.to_owned(), format: "generated", jobs, notes: Vec::new() }
}

fn us(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

/// A job that was drawn; by arrival, then as drawn.
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
    /// Which of several shares.
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

/// What a user ran last.
#[derive(Clone, Copy)]
struct Habit {
    gpus: u32,
    score: f64,
    kind: u64,
}

/// One campaign: when it begins, whose it is, and what its jobs are like.
struct Campaign {
    at_s: f64,
    user: usize,
    gpus: u32,
    /// Where its durations stand in their distribution, as a normal score.
    score: f64,
    kind: u64,
}

/// Campaigns without end.
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

    /// Campaigns a second, now.
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
        // The mean of a lognormal's levels is 1.
        let deviation = arrivals.day_deviation;
        let level = (deviation * self.level - deviation * deviation / 2.0).exp();
        arrivals.per_day / DAY_S * hour * weekday * level
    }

    /// The next campaign. Within an hour the rate is constant, and what is left of a waiting time at
    /// the hour's end is waited at the next hour's rate: exact for such a process.
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
