//! A set of jobs followed through an event, step by step, with the means that the placer chooses.

use wattle_common::Timestamp;
use wattle_common::job::Flexibility;
use wattle_common::messages::ExpectedInstant;
use wattle_common::rng::Stream;
use wattle_common::time::{scaled, span_s};

use super::loads::{END_OF_90, Load, Rung};
use crate::power::means::{Candidate, Means, choose, raise};

/// A step of the event, in which means do not change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
    /// The span of the table to which it belongs.
    pub(super) span: usize,
    /// The limit without the event, watts.
    pub(super) other_w: f64,
    /// The limit with it, watts.
    pub(super) limit_w: f64,
    /// Whether the target is reached and not over.
    pub(super) at_target: bool,
}

impl Step {
    pub(super) fn seconds(&self) -> f64 {
        self.until.since(self.from).as_secs_f64()
    }

    fn middle(&self) -> Timestamp {
        self.from + self.until.since(self.from) / 2
    }
}

/// Random values: the errors of power and speed of each workload, and when jobs start and end.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    /// Standard normals by workload: of power, and of speed.
    errors: Vec<(f64, f64)>,
    /// A standard normal by job.
    times: Vec<f64>,
}

impl Draw {
    /// Every value as it is expected.
    pub(super) fn expected(loads: &[Load]) -> Self {
        let classes = loads.iter().map(|load| load.class + 1).max().unwrap_or(0);
        Self { errors: vec![(0.0, 0.0); classes], times: vec![0.0; loads.len()] }
    }

    /// The values of a number.
    pub(super) fn of(number: u64, loads: &[Load]) -> Self {
        let random = &mut Stream::new(number, "event plan");
        let mut draw = Self::expected(loads);
        draw.errors.iter_mut().for_each(|error| *error = (random.normal(), random.normal()));
        draw.times.iter_mut().for_each(|time| *time = random.normal());
        draw
    }

    /// An instant at the job's quantile of its interval.
    fn at(&self, job: usize, instant: ExpectedInstant) -> Timestamp {
        let z = self.times[job];
        let at = instant.at_us;
        let end = if z < 0.0 { instant.from_us } else { instant.until_us };
        let away = scaled(end.since(at).max(at.since(end)), (z.abs() / END_OF_90).min(4.0));
        if z < 0.0 { at - away.min(at.since(Timestamp::EPOCH)) } else { at + away }
    }
}

/// How a run chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rules {
    /// Promises break where floors exceed the limit. Otherwise a shortfall is part of it, which does not fall.
    pub(super) may_break: bool,
    /// The shortfall that is declared beforehand, watts.
    pub(super) declared_w: f64,
    /// A shortfall is a multiple of this, watts.
    pub(super) short_step_w: f64,
    /// Jobs get what their floors leave; otherwise they stay there.
    pub(super) raises: bool,
}

impl Rules {
    /// Jobs stay at their floors.
    pub(super) const AT_FLOORS: Self =
        Self { may_break: false, declared_w: 0.0, short_step_w: 1.0, raises: false };
}

/// Power above that of the nodes without jobs in a step, watts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drawn {
    /// Without the event.
    pub(super) without_w: f64,
    /// With it.
    pub(super) with_w: f64,
    /// What pauses and held starts save.
    pub(super) pauses_w: f64,
    /// What fewer GPUs save.
    pub(super) gpus_w: f64,
    /// What caps and clocks save.
    pub(super) caps_w: f64,
    /// What does not fit.
    pub(super) short_w: f64,
}

/// A job over the event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Followed {
    /// Since when it is present.
    pub(super) entered: Option<Timestamp>,
    /// How long it is, s.
    pub(super) present_s: f64,
    /// What it loses, seconds of its speed.
    pub(super) lost_s: f64,
    pub(super) paused_s: f64,
    pub(super) fewer_gpus_s: f64,
    /// How long its start is held back, s.
    pub(super) held_s: f64,
    /// What breaking its promise saves at the target, J.
    pub(super) broken_j: f64,
    pub(super) is_broken: bool,
}

impl Followed {
    /// What it loses, a share.
    pub(super) fn loss(&self) -> f64 {
        if self.present_s > 0.0 { self.lost_s / self.present_s } else { 0.0 }
    }
}

/// An event as it is expected to pass.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) steps: Vec<Drawn>,
    pub(super) jobs: Vec<Followed>,
}

/// A job in a step: the setting to which it may go, and those above.
struct Placed {
    job: usize,
    /// Speed, power and number of GPUs, by falling power.
    rungs: Vec<(f64, f64, u32)>,
}

/// The jobs with the errors of a draw.
struct Drawing<'a> {
    loads: &'a [Load],
    draw: &'a Draw,
    /// Whether a job may be above the setting to which it goes.
    raises: bool,
}

impl Drawing<'_> {
    fn watts(&self, job: usize, watts: f64) -> f64 {
        let load = &self.loads[job];
        watts * (1.0 + self.draw.errors[load.class].0 * load.power_error).clamp(0.2, 3.0)
    }

    fn speed(&self, job: usize, speed: f64) -> f64 {
        let load = &self.loads[job];
        let slowest = load.own.last().map_or(1.0, |rung| rung.speed);
        let depth = ((1.0 - speed) / (1.0 - slowest).max(1e-9)).clamp(0.0, 1.0);
        let error = self.draw.errors[load.class].1 * load.speed_error * depth;
        if depth > 0.0 { (speed * (1.0 + error)).clamp(0.0, 1.0) } else { speed }
    }

    /// Its own settings: performance and power.
    fn own(&self, job: usize) -> Vec<(f64, f64)> {
        let rungs = self.loads[job].own.iter();
        rungs.map(|rung| (self.speed(job, rung.speed), self.watts(job, rung.watts))).collect()
    }

    /// The settings from the fastest on to this one of its own.
    fn down_to(&self, job: usize, last: usize) -> Placed {
        let load = &self.loads[job];
        let last = load.own[last];
        let is_above = |rung: &&Rung| rung.watts > last.watts && rung.speed > last.speed;
        let above = load.hull.iter().filter(|_| self.raises).filter(is_above);
        let rungs = above
            .chain([&last])
            .map(|rung| (self.speed(job, rung.speed), self.watts(job, rung.watts), rung.gpus))
            .collect();
        Placed { job, rungs }
    }
}

/// Follows the jobs through the steps. `base_w`: what the nodes draw without jobs; `returned`: the end of the event with
/// its ramps.
pub(super) fn run(
    loads: &[Load],
    steps: &[Step],
    draw: &Draw,
    base_w: f64,
    returned: Timestamp,
    rules: Rules,
) -> Run {
    let drawing = Drawing { loads, draw, raises: rules.raises };
    let starts: Vec<Option<Timestamp>> =
        (0..loads.len()).map(|job| loads[job].start.map(|start| draw.at(job, start))).collect();
    let ends: Vec<Timestamp> = (0..loads.len())
        .map(|job| loads[job].end.map_or(Timestamp::FOREVER, |end| draw.at(job, end)))
        .collect();
    let settings: Vec<Vec<(f64, f64)>> = (0..loads.len()).map(|job| drawing.own(job)).collect();
    let now = steps.first().map_or(returned, |step| step.from);
    let mut jobs: Vec<Followed> = loads.iter().map(|load| counted(load, now)).collect();
    let mut has_started: Vec<bool> = starts.iter().map(Option::is_none).collect();
    let mut is_paused = vec![false; loads.len()];
    let mut drawn = Vec::with_capacity(steps.len());
    let mut declared_w = rules.declared_w;
    for step in steps {
        let (at, seconds) = (step.middle(), step.seconds());
        let mut sum = Drawn::default();
        // Those that run, with promises and without, and those that would start.
        let (mut promised, mut others, mut new) = (Vec::new(), Vec::new(), Vec::new());
        for (job, load) in loads.iter().enumerate() {
            let begins = starts[job].unwrap_or(step.from);
            if begins > at {
                continue;
            }
            if ends[job] > at {
                sum.without_w += settings[job].first().map_or(0.0, |one| one.1);
            }
            let later = span_s(jobs[job].lost_s + jobs[job].held_s);
            if ends[job] + later <= at {
                continue;
            }
            match (has_started[job], load.promise) {
                (false, _) => new.push(job),
                (true, Some(_)) => promised.push(job),
                (true, None) => others.push(job),
            }
        }
        sum.without_w = sum.without_w.min((step.other_w - base_w).max(0.0));
        let requested_w = step.limit_w - base_w;
        let candidates: Vec<Candidate> = promised
            .iter()
            .map(|&job| {
                let end = ends[job].min(returned);
                let followed = &mut jobs[job];
                let entered = *followed.entered.get_or_insert(step.from);
                let one = candidate(
                    &loads[job],
                    &settings[job],
                    followed.lost_s,
                    (entered, step.from, end),
                );
                // What a floor gives back later is not spent at once.
                let least = if rules.raises { 0.0 } else { loads[job].weight() };
                Candidate { floor: one.floor.max(least), is_paused: is_paused[job], ..one }
            })
            .collect();
        let lowest_w = |job: usize| settings[job].last().map_or(0.0, |one| one.1);
        let fixed: Vec<usize> =
            others.iter().copied().filter(|&job| !loads[job].can_stop).collect();
        let fixed_w: f64 = fixed.iter().map(|&job| lowest_w(job)).sum();
        let first = choose(&candidates, requested_w + declared_w - fixed_w, rules.may_break);
        sum.short_w = declared_w + first.short_w;
        let (mut left_w, mut chosen) = (requested_w + declared_w, first);
        if !rules.may_break && chosen.short_w > 0.0 {
            declared_w += multiple(chosen.short_w, rules.short_step_w);
            left_w = requested_w + declared_w;
            chosen = choose(&candidates, left_w - fixed_w, false);
        }
        let mut used_w = fixed_w;
        let mut placed: Vec<Placed> = Vec::new();
        let mut stopped: Vec<usize> = Vec::new();
        for (index, (&job, means)) in promised.iter().zip(&chosen.lowest).enumerate() {
            let is_broken = chosen.broken.contains(&index);
            let floor_w = settings[job].get(candidates[index].at_floor()).map_or(0.0, |one| one.1);
            let watts = match *means {
                Means::Pauses => {
                    stopped.push(job);
                    0.0
                }
                // The present number of GPUs of each candidate is its only one.
                Means::Fewer(_) => 0.0,
                Means::Runs(last) => {
                    placed.push(drawing.down_to(job, last));
                    settings[job].get(last).map_or(0.0, |one| one.1)
                }
            };
            used_w += watts;
            if is_broken {
                jobs[job].is_broken = true;
                if step.at_target {
                    jobs[job].broken_j += (floor_w - watts).max(0.0) * seconds;
                }
            }
        }
        // The rest of the jobs, in the order of their arrival, as far as they fit.
        let economical = |job: usize| settings[job][loads[job].undisturbed_floor()].1;
        let fixed_more: f64 = fixed.iter().map(|&job| economical(job) - lowest_w(job)).sum();
        let to_floor = used_w + fixed_more <= left_w;
        for &job in &fixed {
            let last =
                if to_floor { loads[job].undisturbed_floor() } else { settings[job].len() - 1 };
            placed.push(drawing.down_to(job, last));
        }
        used_w += if to_floor { fixed_more } else { 0.0 };
        for &job in others.iter().filter(|&&job| loads[job].can_stop).chain(&new) {
            let watts = economical(job);
            if used_w + watts <= left_w {
                used_w += watts;
                has_started[job] = true;
                placed.push(drawing.down_to(job, loads[job].undisturbed_floor()));
            } else if has_started[job] {
                stopped.push(job);
            } else {
                jobs[job].held_s += seconds;
                sum.pauses_w += settings[job].first().map_or(0.0, |one| one.1);
            }
        }
        let at = if rules.raises {
            let all: Vec<(Candidate, usize)> =
                placed.iter().map(|one| raisable(&loads[one.job], &one.rungs)).collect();
            raise(&all, left_w)
        } else {
            placed.iter().map(|one| one.rungs.len() - 1).collect()
        };
        for (one, at) in placed.iter().zip(at) {
            let (load, followed) = (&loads[one.job], &mut jobs[one.job]);
            let (speed, watts, gpus) = one.rungs[at];
            followed.entered.get_or_insert(step.from);
            let restart_s = if is_paused[one.job] { load.restart_s.min(seconds) } else { 0.0 };
            is_paused[one.job] = false;
            followed.present_s += seconds;
            followed.lost_s += (1.0 - speed) * (seconds - restart_s) + restart_s;
            let saved_w = (settings[one.job].first().map_or(0.0, |first| first.1) - watts).max(0.0);
            if gpus < load.gpus {
                followed.fewer_gpus_s += seconds;
                sum.gpus_w += saved_w;
            } else {
                sum.caps_w += saved_w;
            }
            sum.with_w += watts;
        }
        for &job in &stopped {
            let followed = &mut jobs[job];
            followed.entered.get_or_insert(step.from);
            followed.present_s += seconds;
            followed.lost_s += seconds;
            followed.paused_s += seconds;
            is_paused[job] = true;
            sum.pauses_w += settings[job].first().map_or(0.0, |first| first.1);
        }
        drawn.push(sum);
    }
    Run { steps: drawn, jobs }
}

/// The next multiple of a step.
pub(super) fn multiple(watts: f64, step_w: f64) -> f64 {
    (watts / step_w).ceil() * step_w
}

/// By how much the floors of the running jobs exceed a limit before the event, watts.
pub(super) fn short_w(
    loads: &[Load],
    limit_w: f64,
    base_w: f64,
    from: Timestamp,
    returned: Timestamp,
) -> f64 {
    let own = |load: &Load| -> Vec<(f64, f64)> {
        load.own.iter().map(|rung| (rung.speed, rung.watts)).collect()
    };
    let (mut candidates, mut left_w) = (Vec::new(), limit_w - base_w);
    for load in loads.iter().filter(|load| load.start.is_none()) {
        let end = load.end.map_or(returned, |end| end.at_us.min(returned));
        match load.promise {
            Some(_) if from < end => {
                let (entered, lost_s) = load.counted.unwrap_or((from, 0.0));
                candidates.push(candidate(load, &own(load), lost_s, (entered, from, end)));
            }
            Some(_) => {}
            None if load.can_stop => {}
            None => left_w -= load.own.last().map_or(0.0, |rung| rung.watts),
        }
    }
    if candidates.is_empty() { 0.0 } else { choose(&candidates, left_w, false).short_w }
}

/// A job of which an event under way has counted something.
fn counted(load: &Load, now: Timestamp) -> Followed {
    let Some((from, lost_s)) = load.counted else { return Followed::default() };
    let present_s = now.since(from).as_secs_f64();
    Followed { entered: Some(from), present_s, lost_s, ..Followed::default() }
}

fn candidate(
    load: &Load,
    settings: &[(f64, f64)],
    lost_s: f64,
    (entered, now, end): (Timestamp, Timestamp, Timestamp),
) -> Candidate {
    let loss = load.promise.map_or(1.0, Flexibility::loss);
    let left_s = loss * end.since(entered).as_secs_f64() - lost_s;
    let floor = 1.0 - left_s / end.since(now).as_secs_f64().max(1.0);
    Candidate {
        settings: settings.to_vec(),
        floor: floor.clamp(0.0, 1.0),
        weight: load.weight(),
        can_stop: load.can_stop,
        pause_s: load.may_pause().then_some(left_s),
        restart_s: load.restart_s,
        left_s,
        ..Candidate::default()
    }
}

fn raisable(load: &Load, rungs: &[(f64, f64, u32)]) -> (Candidate, usize) {
    let candidate = Candidate {
        settings: rungs.iter().map(|rung| (rung.0, rung.1)).collect(),
        weight: load.weight(),
        ..Candidate::default()
    };
    (candidate, rungs.len() - 1)
}
