//! The means by which a set of jobs draws less power, gentlest first.
//!
//! 1. **Caps and clocks.** Each job has a floor, the least performance that its promise permits now. Above the floors
//!    the settings have the greatest weighted performance that fits ([`raise`]): on the concave hulls of performance
//!    over power, steps are taken by what they gain per watt.
//! 2. **Fewer GPUs**, where the floors exceed the power: below its lowest cap a job gives way by GPUs alone. The job with the
//!    longest remaining allowance first, the largest of its numbers of GPUs that suffices. A job that has fewer keeps them
//!    while something has to give.
//! 3. **Pauses**, where the floors exceed the power nevertheless: of the jobs that may be paused, the one with the longest remaining
//!    allowance first. A paused job stays paused until another one has a longer allowance by [`PAUSE_LEAST_S`] and both
//!    restarts, so that pauses alternate and restarts are rare.
//! 4. **A shortfall** or **broken promises**, where neither suffices. Promises break in the order of their weights, the
//!    least first: first by lower settings, then by pauses of jobs that can stop.
//!
//! The number of GPUs of a job is chosen by the policy, within what is chosen here; a floor holds for the GPUs that the job
//! had before.
//!
//! Pure: the live placer, the simulator and a forecast of an event call the same functions.

/// Least length of a pause, s.
const PAUSE_LEAST_S: f64 = 900.0;
/// A pause ends with this much of the allowance left besides the restart, s: decisions are a minute apart.
const PAUSE_ENDS_S: f64 = 120.0;
/// The share of its speed that a running job loses to a cap at its predicted power, at most: what a pause leaves for the
/// rest of the event.
const CAPPED_SHARE: f64 = 0.02;
/// A pause lasts at least this many times the cost of the restart after it.
const PAUSE_RESTARTS: f64 = 10.0;

/// A job as the means see it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidate {
    /// Its settings by falling power, the fastest first: performance (speed relative to the default setting), and the
    /// power of all its GPUs above idle, watts.
    pub(crate) settings: Vec<(f64, f64)>,
    /// The least performance that its promise permits.
    pub(crate) floor: f64,
    /// Smaller numbers of GPUs with the least power at which its floor holds, by falling power; empty: it keeps its number.
    pub(crate) fewer: Vec<Fewer>,
    /// The smaller number that it has now.
    pub(crate) has_fewer: Option<u32>,
    /// What it may still lose, seconds of its speed.
    pub(crate) left_s: f64,
    /// The weight of its performance.
    pub(crate) weight: f64,
    /// Whether it can be stopped at all.
    pub(crate) can_stop: bool,
    /// What it may still lose, seconds of its speed, if its promise permits pauses.
    pub(crate) pause_s: Option<f64>,
    /// The cost of a restart, s.
    pub(crate) restart_s: f64,
    /// Whether it is paused now.
    pub(crate) is_paused: bool,
}

/// A number of GPUs, and the power of all of them above idle, watts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fewer {
    pub(crate) gpus: u32,
    pub(crate) watts: f64,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// It runs at least at this one of its settings.
    Runs(usize),
    /// It runs on at most this number of GPUs.
    Fewer(u32),
    /// It is paused.
    Pauses,
}

/// The chosen means.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    /// Of each job, the setting to which it may be lowered, or a pause.
    pub(crate) lowest: Vec<Means>,
    /// The jobs whose promises break.
    pub(crate) broken: Vec<usize>,
    /// What does not fit nevertheless, watts.
    pub(crate) short_w: f64,
}

impl Candidate {
    /// The last setting at its floor.
    pub(crate) fn at_floor(&self) -> usize {
        let fast = |setting: &(f64, f64)| setting.0 + 1e-9 >= self.floor;
        self.settings.iter().rposition(fast).unwrap_or(0)
    }

    fn watts(&self, means: Means) -> f64 {
        match means {
            Means::Runs(at) => self.settings.get(at).map_or(0.0, |setting| setting.1),
            Means::Fewer(gpus) => {
                let known = self.fewer.iter().find(|fewer| fewer.gpus == gpus);
                known.map_or(0.0, |fewer| fewer.watts)
            }
            Means::Pauses => 0.0,
        }
    }

    /// The number of GPUs with which it draws less than at its floor by at least this much, else its smallest one; `None`: its
    /// promise forbids another number, or its allowance does not cover the restart.
    fn fewer_by(&self, excess_w: f64) -> Option<Fewer> {
        if self.has_fewer.is_none() && self.left_s < PAUSE_RESTARTS * self.restart_s {
            return None;
        }
        let own_w = self.watts(Means::Runs(self.at_floor()));
        let suffices = |fewer: &&Fewer| own_w - fewer.watts >= excess_w;
        let present = self.fewer.iter().find(|fewer| Some(fewer.gpus) == self.has_fewer);
        let present = present.filter(suffices);
        let found = present.or_else(|| self.fewer.iter().find(suffices)).or(self.fewer.last());
        found.filter(|fewer| fewer.watts < own_w).copied()
    }

    /// Whether its allowance covers a pause.
    fn may_pause(&self) -> bool {
        let Some(left_s) = self.pause_s else { return false };
        // The allowance spread over the rest is what the floor permits.
        let rest_s = left_s / (1.0 - self.floor).max(CAPPED_SHARE);
        let least_s = match self.is_paused {
            // The restart loses time, too.
            true => PAUSE_ENDS_S + 2.0 * self.restart_s + CAPPED_SHARE * rest_s,
            false => PAUSE_LEAST_S.max(PAUSE_RESTARTS * self.restart_s),
        };
        left_s >= least_s
    }

    /// The order of pauses: the greatest first.
    fn pause_rank(&self) -> f64 {
        let stays = if self.is_paused { PAUSE_LEAST_S + 2.0 * self.restart_s } else { 0.0 };
        self.pause_s.unwrap_or(0.0) + stays
    }
}

/// The means that fit into this power above idle, watts. Only where promises may break all of them do.
pub(crate) fn choose(jobs: &[Candidate], limit_w: f64, may_break: bool) -> Chosen {
    let mut lowest: Vec<Means> = jobs.iter().map(|job| Means::Runs(job.at_floor())).collect();
    let drawn = jobs.iter().zip(&lowest).map(|(job, means)| job.watts(*means));
    let mut excess_w = drawn.sum::<f64>() - limit_w;
    let mut resizable: Vec<usize> = (0..jobs.len()).filter(|&i| !jobs[i].is_paused).collect();
    let rank = |i: usize| (jobs[i].has_fewer.is_some(), jobs[i].left_s);
    resizable.sort_by(|&a, &b| {
        let ((a_has, a_s), (b_has, b_s)) = (rank(a), rank(b));
        b_has.cmp(&a_has).then(b_s.total_cmp(&a_s))
    });
    for index in resizable {
        if excess_w <= 0.0 {
            break;
        }
        if let Some(fewer) = jobs[index].fewer_by(excess_w) {
            excess_w -= jobs[index].watts(lowest[index]) - fewer.watts;
            lowest[index] = Means::Fewer(fewer.gpus);
        }
    }
    let mut by_allowance: Vec<usize> = (0..jobs.len()).filter(|&i| jobs[i].may_pause()).collect();
    by_allowance.sort_by(|&a, &b| jobs[b].pause_rank().total_cmp(&jobs[a].pause_rank()));
    for index in by_allowance {
        if excess_w <= 0.0 {
            break;
        }
        excess_w -= jobs[index].watts(lowest[index]);
        lowest[index] = Means::Pauses;
    }
    let mut broken = Vec::new();
    if may_break {
        let mut by_weight: Vec<usize> = (0..jobs.len()).collect();
        by_weight.sort_by(|&a, &b| jobs[a].weight.total_cmp(&jobs[b].weight));
        let slower =
            |i: usize| (lowest[i] != Means::Pauses, Means::Runs(jobs[i].settings.len().max(1) - 1));
        let slower: Vec<(bool, Means)> = (0..jobs.len()).map(slower).collect();
        let steps = by_weight.iter().filter(|&&i| slower[i].0).map(|&i| (i, slower[i].1));
        let stops = by_weight.iter().filter(|&&i| jobs[i].can_stop).map(|&i| (i, Means::Pauses));
        for (index, means) in steps.chain(stops) {
            if excess_w <= 0.0 {
                break;
            }
            // Fewer GPUs draw less than the lowest setting of all of them.
            let is_lower = jobs[index].watts(means) <= jobs[index].watts(lowest[index]);
            if lowest[index] != means && is_lower {
                excess_w -= jobs[index].watts(lowest[index]) - jobs[index].watts(means);
                lowest[index] = means;
                broken.push(index);
            }
        }
        broken.sort_unstable();
        broken.dedup();
    }
    let short_w = excess_w.max(0.0);
    Chosen { lowest, broken, short_w }
}

/// The settings of these jobs with the greatest weighted performance that fit into this power above idle, watts, each
/// from the first to the given last one of its own.
pub(crate) fn raise(jobs: &[(Candidate, usize)], limit_w: f64) -> Vec<usize> {
    let mut at: Vec<usize> = jobs.iter().map(|(_, last)| *last).collect();
    let watts = |(job, last): &(Candidate, usize)| job.settings.get(*last).map_or(0.0, |one| one.1);
    let mut left_w = limit_w - jobs.iter().map(watts).sum::<f64>();
    let mut steps: Vec<(f64, usize, usize)> = Vec::new();
    for (index, (job, last)) in jobs.iter().enumerate() {
        let mut from = *last;
        while let Some((gain, to)) = best_step(job, from) {
            steps.push((gain, index, to));
            from = to;
        }
    }
    steps.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(b.2.cmp(&a.2)));
    for (_, index, to) in steps {
        let settings = &jobs[index].0.settings;
        let more_w = settings[to].1 - settings[at[index]].1;
        if more_w <= left_w {
            left_w -= more_w;
            at[index] = to;
        }
    }
    at
}

/// The step from a setting to a faster one with the greatest gain per watt, and that gain.
fn best_step(job: &Candidate, from: usize) -> Option<(f64, usize)> {
    let (slow, low_w) = *job.settings.get(from)?;
    let faster = job.settings[..from].iter().enumerate().filter(|(_, one)| one.0 > slow);
    let gains =
        faster.map(|(to, one)| (job.weight * (one.0 - slow) / (one.1 - low_w).max(1e-9), to));
    // Of equal gains the longest step.
    gains.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(floor: f64, weight: f64, settings: &[(f64, f64)]) -> Candidate {
        Candidate {
            settings: settings.to_vec(),
            floor,
            fewer: Vec::new(),
            has_fewer: None,
            left_s: 1_000.0,
            weight,
            can_stop: true,
            pause_s: None,
            restart_s: 30.0,
            is_paused: false,
        }
    }

    const SETTINGS: [(f64, f64); 4] = [(1.0, 400.0), (0.95, 300.0), (0.8, 200.0), (0.4, 100.0)];

    #[test]
    fn settings_above_the_floors_have_the_greatest_weighted_performance() {
        let jobs = [job(0.9, 0.9, &SETTINGS), job(0.5, 0.5, &SETTINGS)];
        let chosen = choose(&jobs, 700.0, false);
        assert_eq!(chosen.lowest, [Means::Runs(1), Means::Runs(2)]);
        let at = |limit_w| raise(&[(jobs[0].clone(), 1), (jobs[1].clone(), 2)], limit_w);
        assert_eq!(at(500.0), [1, 2]);
        // 0.15 of the second job's speed for 100 W, at half the weight, are worth more than 0.05 of the first one's.
        assert_eq!(at(600.0), [1, 1]);
        assert_eq!(at(700.0), [0, 1]);
        assert_eq!(at(799.0), [0, 1]);
        assert_eq!(at(800.0), [0, 0]);
        assert_eq!(at(450.0), [1, 2], "never below the given settings");
    }

    #[test]
    fn gpus_are_given_back_before_any_job_pauses_the_longest_allowance_first() {
        let fewer = |gpus, watts| Fewer { gpus, watts };
        let resizes = |left_s| Candidate {
            fewer: vec![fewer(2, 60.0), fewer(1, 30.0)],
            left_s,
            pause_s: Some(left_s),
            ..job(0.4, 0.4, &SETTINGS)
        };
        let jobs = [resizes(3_000.0), resizes(5_000.0), job(0.8, 0.8, &SETTINGS)];
        let runs = [Means::Runs(3), Means::Runs(3), Means::Runs(2)];
        let chosen = |jobs: &[Candidate], limit_w| choose(jobs, limit_w, false).lowest;
        assert_eq!(chosen(&jobs, 400.0), runs, "the floors suffice");
        assert_eq!(
            chosen(&jobs, 370.0),
            [runs[0], Means::Fewer(2), runs[2]],
            "the mildest that suffices"
        );
        assert_eq!(chosen(&jobs, 340.0), [runs[0], Means::Fewer(1), runs[2]]);
        assert_eq!(chosen(&jobs, 300.0), [Means::Fewer(2), Means::Fewer(1), runs[2]]);
        // One that has fewer keeps them, also with the shorter allowance.
        let mut begun = jobs.clone();
        (begun[0].has_fewer, begun[0].left_s) = (Some(1), 100.0);
        assert_eq!(chosen(&begun, 370.0), [Means::Fewer(1), runs[1], runs[2]]);
        // Pauses follow, and an allowance below ten restarts covers no restart.
        assert_eq!(chosen(&jobs, 240.0), [Means::Fewer(1), Means::Pauses, runs[2]]);
        let short = [resizes(200.0), jobs[2].clone()];
        assert_eq!(chosen(&short, 280.0), [runs[0], runs[2]]);
    }

    #[test]
    fn no_settings_are_better_than_those_that_are_raised() {
        use wattle_common::rng::Stream;
        for seed in 0..200 {
            let random = &mut Stream::new(seed, "means");
            let mut one = || {
                let mut speed = 1.0;
                let settings = (0..5).map(|n| {
                    let setting = (speed, 50.0 * f64::from(5 - n));
                    // Concave: each step costs more speed than the one before.
                    speed -= 0.02 * f64::from(n + 1) + 0.02 * random.unit();
                    setting
                });
                let settings: Vec<(f64, f64)> = settings.collect();
                (job(0.0, 0.5 + random.unit(), &settings), 4)
            };
            let jobs = [one(), one(), one()];
            let value = |at: &[usize]| -> f64 {
                jobs.iter().zip(at).map(|((job, _), at)| job.weight * job.settings[*at].0).sum()
            };
            for limit_w in [150.0, 300.0, 450.0, 600.0, 750.0] {
                let at = raise(&jobs, limit_w);
                let drawn = |at: &[usize]| -> f64 {
                    jobs.iter().zip(at).map(|((job, _), at)| job.settings[*at].1).sum()
                };
                assert!(drawn(&at) <= limit_w);
                let all = (0..125).map(|n| [n % 5, n / 5 % 5, n / 25]);
                let best = all.filter(|at| drawn(at) <= limit_w).map(|at| value(&at));
                let best = best.fold(0.0, f64::max);
                assert!((value(&at) - best).abs() < 1e-9, "seed {seed}, {limit_w} W");
            }
        }
    }

    #[test]
    fn the_job_with_the_longest_allowance_is_paused_and_stays_so_for_a_while() {
        let pausable = |left_s, is_paused| Candidate {
            pause_s: Some(left_s),
            is_paused,
            ..job(0.8, 0.5, &SETTINGS)
        };
        let chosen = |jobs: &[Candidate]| choose(jobs, 450.0, false).lowest;
        let fixed = job(0.8, 0.9, &SETTINGS);
        let (runs, pauses) = (Means::Runs(2), Means::Pauses);
        let jobs = |a, b| [fixed.clone(), a, b];
        assert_eq!(
            chosen(&jobs(pausable(5_000.0, false), pausable(4_000.0, false))),
            [runs, pauses, runs]
        );
        // It stays paused until the other has a longer allowance by a quarter of an hour and two restarts.
        assert_eq!(
            chosen(&jobs(pausable(3_100.0, true), pausable(4_000.0, false))),
            [runs, pauses, runs]
        );
        assert_eq!(
            chosen(&jobs(pausable(3_000.0, true), pausable(4_000.0, false))),
            [runs, runs, pauses]
        );
        // Of 500 s for the last 16,700 s two thirds are kept for what a cap may cost.
        let late = |left_s| Candidate { floor: 0.97, ..pausable(left_s, true) };
        assert_eq!(chosen(&jobs(late(500.0), late(400.0)))[1..], [Means::Runs(0); 2]);
        assert_eq!(chosen(&jobs(pausable(500.0, true), late(400.0)))[1], pauses);
        // An allowance below the least pause is none.
        let short = choose(&jobs(pausable(800.0, false), pausable(800.0, false)), 450.0, false);
        assert_eq!((short.lowest, short.broken), (vec![runs; 3], vec![]));
        assert!((short.short_w - 150.0).abs() < 1e-9);
    }

    #[test]
    fn promises_break_by_weight_first_by_settings_then_by_pauses() {
        let jobs = [job(0.95, 0.9, &SETTINGS), job(0.8, 0.5, &SETTINGS), job(0.8, 0.75, &SETTINGS)];
        let (last, pauses) = (Means::Runs(3), Means::Pauses);
        let chosen = |limit_w| {
            let chosen = choose(&jobs, limit_w, true);
            (chosen.lowest, chosen.broken)
        };
        assert_eq!(chosen(700.0), (vec![Means::Runs(1), Means::Runs(2), Means::Runs(2)], vec![]));
        assert_eq!(chosen(600.0), (vec![Means::Runs(1), last, Means::Runs(2)], vec![1]));
        assert_eq!(chosen(500.0), (vec![Means::Runs(1), last, last], vec![1, 2]));
        assert_eq!(chosen(200.0), (vec![last, pauses, last], vec![0, 1, 2]));
        let kept = choose(&jobs, 200.0, false);
        assert!(kept.broken.is_empty() && (kept.short_w - 500.0).abs() < 1e-9);
    }
}
