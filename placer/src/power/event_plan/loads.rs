//! The present jobs as the plan of an event sees them: settings, promise, expected times, and the errors of both.

use std::collections::BTreeMap;

use wattle_common::Timestamp;
use wattle_common::event::JobPerformance;
use wattle_common::job::{Flexibility, GpuSetting};
use wattle_common::messages::{ExpectedInstant, ExpectedTimes, Surface, SurfacePoint};
use wattle_common::{JobId, WorkloadId};

use crate::plan::input::PlanningInput;
use crate::power::bounds::Bound;
use crate::power::limits::{economical_setting, least_gpu_w, settings_of};
use crate::power::model::JobGpus;
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::{Job, State};
use crate::state::operating_points::OperatingPoints;

/// The quantile of a standard normal at either end of a 90 % interval.
pub(super) const END_OF_90: f64 = 1.645;

/// A setting of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rung {
    /// The speed relative to that at the default setting on the job's own GPUs.
    pub(super) speed: f64,
    /// The power of all its GPUs above idle, watts.
    pub(super) watts: f64,
    /// Number of GPUs.
    pub(super) gpus: u32,
}

/// A present job.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) id: JobId,
    pub(super) arrival: u64,
    pub(super) gpus: u32,
    pub(super) promise: Option<Flexibility>,
    pub(super) can_stop: bool,
    pub(super) restart_s: f64,
    /// Its settings on its own number of GPUs by falling power, the present one first.
    pub(super) own: Vec<Rung>,
    /// The concave hull of speed over power, of all settings and sizes, by falling power.
    pub(super) hull: Vec<Rung>,
    /// The one of its own settings with the most work per joule.
    pub(super) economical: usize,
    /// Standard deviation of the power above idle, a share of it.
    pub(super) power_error: f64,
    /// Standard deviation of the speed at the slowest setting relative to the default one, a share of it.
    pub(super) speed_error: f64,
    /// Its workload, by number.
    pub(super) class: usize,
    /// When it starts; absent: it runs.
    pub(super) start: Option<ExpectedInstant>,
    /// When it ends; absent: not known, after the event.
    pub(super) end: Option<ExpectedInstant>,
    /// What is counted of it in an event under way: since when, and what it has lost, s.
    pub(super) counted: Option<(Timestamp, f64)>,
}

impl Load {
    /// With this part of its power.
    fn by(mut self, part: f64) -> Self {
        for rung in self.own.iter_mut().chain(&mut self.hull) {
            rung.watts *= part;
        }
        self
    }

    /// The last one of its own settings with this speed.
    pub(super) fn at_speed(&self, floor: f64) -> usize {
        self.own.iter().rposition(|rung| rung.speed + 1e-9 >= floor).unwrap_or(0)
    }

    /// The setting to which it goes at least where it has a promise, else the one with the most work per joule.
    pub(super) fn undisturbed_floor(&self) -> usize {
        match self.promise {
            Some(promise) => self.at_speed(1.0 - promise.loss()),
            None => self.economical,
        }
    }

    /// The weight of its speed.
    pub(super) fn weight(&self) -> f64 {
        1.0 - self.promise.map_or(0.0, Flexibility::loss)
    }

    /// Whether its promise permits pauses.
    pub(super) fn may_pause(&self) -> bool {
        self.can_stop && self.promise.is_some_and(|promise| promise.may_pause)
    }
}

/// The present jobs.
#[derive(Clone, Copy)]
pub(super) struct Present<'a> {
    pub(super) input: PlanningInput<'a>,
    /// The site or the feeder; absent: no node of the feeder is known.
    pub(super) bound: Option<&'a Bound>,
    /// Whether the policy changes numbers of GPUs.
    pub(super) is_elastic: bool,
    pub(super) times: &'a BTreeMap<JobKey, ExpectedTimes>,
    pub(super) counted: &'a BTreeMap<JobId, JobPerformance>,
    /// The event is under way, so that settings are lower than they would be.
    pub(super) is_lowered: bool,
}

/// The jobs that run or are expected to, and the number of those that are not.
pub(super) fn loads(present: &Present<'_>) -> (Vec<Load>, u32) {
    let Present { input, times, counted, .. } = *present;
    let mut classes: BTreeMap<Option<WorkloadId>, usize> = BTreeMap::new();
    let (mut found, mut waiting) = (Vec::new(), 0);
    let Some(bound) = present.bound else { return (found, waiting) };
    for (key, job) in input.state.running().chain(input.state.queue()) {
        let part = match job.state.gpus() {
            Some(on) => bound.part_of(on),
            // It may continue on any node.
            None if !bound.is_local() || counted.contains_key(&job.facts.id) => bound.most_share(),
            None => 0.0,
        };
        if part <= 0.0 {
            continue;
        }
        let times = times.get(&key);
        let own = counted.get(&job.facts.id);
        let start = times.and_then(|times| times.start);
        let runs = matches!(job.state, State::Running { .. });
        // A job that an event pauses is one that runs.
        if !runs && start.is_none() && own.is_none() {
            waiting += 1;
            continue;
        }
        let number = classes.len();
        let class = *classes.entry(job.facts.workload.clone()).or_insert(number);
        let end = times.and_then(|times| times.end);
        let start = start.filter(|_| !runs && own.is_none());
        match load(present, job, own) {
            Some(load) => found.push(Load { class, start, end, ..load.by(part) }),
            None => waiting += 1,
        }
    }
    found.sort_by_key(|load| load.arrival);
    (found, waiting)
}

fn load(present: &Present<'_>, job: &Job, counted: Option<&JobPerformance>) -> Option<Load> {
    let Present { input, is_elastic, is_lowered, .. } = *present;
    let state = input.state;
    let on = job.state.gpus();
    let gpus = counted.map(|counted| counted.gpus).filter(|gpus| *gpus > 0);
    let gpus = gpus.or_else(|| on.map(GpuSet::gpu_count));
    let gpus = gpus.or(job.next_gpus).unwrap_or(job.facts.request.min);
    let any_type = || state.nodes().first().map(|node| node.facts.gpu_type.as_str());
    let by_surface = || job.operating_points.as_ref().map(|points| points.gpu_type.as_str());
    let gpu_type = state.gpu_type_of(job).or_else(by_surface).or_else(any_type)?;
    let idle_w = state.gpu_power(gpu_type).map_or(0.0, |power| power.idle.as_w());
    let is_fixed = on.is_some_and(|on| state.has_fixed_caps(on));
    let of = JobGpus { job, gpu_type, gpus, is_fixed };
    let setting = job.setting().filter(|_| !is_lowered).unwrap_or(GpuSetting::DEFAULT);
    let present_w = f64::from(gpus) * (of.expected_w(input, setting) - idle_w).max(0.0);
    if !present_w.is_finite() {
        return None;
    }
    let ladder = |size: u32| {
        let settings = settings_of(input, job, gpu_type, size, gpus)?;
        let rung = |(speed, watts)| Rung { speed, watts: f64::from(size) * watts, gpus: size };
        Some(settings.into_iter().map(rung).collect::<Vec<Rung>>())
    };
    // Without a known speed it is in proportion to the power.
    let unknown = || {
        let least_w = f64::from(gpus) * (least_gpu_w(input, of) - idle_w).max(0.0);
        let rung = |watts: f64| Rung { speed: watts / present_w.max(1e-9), watts, gpus };
        vec![rung(present_w), rung(least_w.min(present_w))]
    };
    let is_known = settings_of(input, job, gpu_type, gpus, gpus).is_some();
    let all = ladder(gpus).unwrap_or_else(unknown);
    let economical = all[economical_setting(input, of).min(all.len() - 1)].watts.min(present_w);
    // No limit raises a job above its present setting.
    let first = all.iter().position(|rung| rung.watts <= present_w + 1e-9);
    let own = all[first.unwrap_or(all.len() - 1)..].to_vec();
    let economical = own.iter().rposition(|rung| rung.watts + 1e-9 >= economical).unwrap_or(0);
    let promise = job.facts.flexibility.filter(|_| is_known);
    let resizes = is_elastic
        && job.facts.can_stop
        && job.facts.flexibility.is_none_or(|promise| promise.may_resize);
    let points = job.operating_points_on(gpu_type);
    let sizes = points.into_iter().flat_map(OperatingPoints::sizes);
    let fewer = sizes.filter(|size| resizes && *size < gpus).filter_map(ladder).flatten();
    let hull = hull(own.iter().copied().chain(fewer).collect());
    let surface = job.surface_on(gpu_type);
    let (power_error, speed_error) =
        surface.map_or((0.0, 0.0), |surface| errors(surface, gpus, idle_w));
    Some(Load {
        id: job.facts.id.clone(),
        arrival: job.arrival,
        gpus,
        promise,
        can_stop: job.facts.can_stop,
        restart_s: state.restart_cost(job, gpus).as_secs_f64(),
        own,
        hull,
        economical,
        power_error,
        speed_error,
        class: 0,
        start: None,
        end: None,
        counted: counted.map(|counted| (counted.from_us, counted.lost_s)),
    })
}

/// The upper concave hull of speed over power, by falling power.
fn hull(mut rungs: Vec<Rung>) -> Vec<Rung> {
    rungs.sort_by(|a, b| a.watts.total_cmp(&b.watts).then(a.speed.total_cmp(&b.speed)));
    let mut hull: Vec<Rung> = Vec::new();
    for rung in rungs {
        if hull.last().is_some_and(|last| rung.speed <= last.speed) {
            continue;
        }
        while let [.., a, b] = hull[..] {
            let rise =
                |from: Rung, to: Rung| (to.speed - from.speed) / (to.watts - from.watts).max(1e-9);
            if rise(b, rung) < rise(a, b) {
                break;
            }
            hull.pop();
        }
        if hull.last().is_some_and(|last| rung.watts - last.watts < 1e-9) {
            hull.pop();
        }
        hull.push(rung);
    }
    hull.reverse();
    hull
}

/// The standard deviations of power above idle, and of the speed at the slowest setting relative to the default one.
fn errors(surface: &Surface, gpus: u32, idle_w: f64) -> (f64, f64) {
    let alone = |point: &&SurfacePoint| {
        point.gpus == gpus && point.neighbours.is_empty() && point.global_batch.is_none()
    };
    let points = || surface.points.iter().filter(alone);
    let is_default =
        |point: &&SurfacePoint| point.cap_mw.is_none() && point.clock_mhz_max.is_none();
    let Some(default) = points().find(is_default) else { return (0.0, 0.0) };
    let power = default.gpu_power_w;
    let power_error = (power.high - power.low) / 2.0 / (power.mean - idle_w).max(1.0) / END_OF_90;
    let rate = |point: &SurfacePoint| point.steps_per_s.unwrap_or(point.relative_speed);
    let slowest = points().min_by(|a, b| rate(a).mean.total_cmp(&rate(b).mean));
    let own = rate(default).error();
    // The error that both have in common does not change their ratio.
    let of_ratio =
        slowest.map_or(0.0, |point| (rate(point).error().powi(2) - own.powi(2)).max(0.0));
    let speed_error = of_ratio.sqrt() / END_OF_90;
    let sane = |error: f64| if error.is_finite() { error.clamp(0.0, 1.0) } else { 1.0 };
    (sane(power_error), sane(speed_error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hull_has_falling_gains_and_the_fewest_gpus_where_they_are_better() {
        let rung = |speed, watts, gpus| Rung { speed, watts, gpus };
        let own =
            [rung(1.0, 400.0, 4), rung(0.9, 300.0, 4), rung(0.5, 200.0, 4), rung(0.2, 100.0, 4)];
        let fewer = [rung(0.7, 200.0, 2), rung(0.6, 150.0, 2)];
        let found = hull(own.into_iter().chain(fewer).collect());
        let expected =
            [rung(1.0, 400.0, 4), rung(0.9, 300.0, 4), rung(0.6, 150.0, 2), rung(0.2, 100.0, 4)];
        assert_eq!(found, expected);
        let gain = |a: &Rung, b: &Rung| (a.speed - b.speed) / (a.watts - b.watts);
        assert!(found.windows(3).all(|w| gain(&w[0], &w[1]) < gain(&w[1], &w[2]) + 1e-12));
    }
}
