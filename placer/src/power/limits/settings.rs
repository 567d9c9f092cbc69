//! The settings that the limits choose from: a ladder of falling power, and the setting at a price.

use wattle_common::Power;
use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::power::energy_cost::Charge;
use crate::power::model::JobGpus;
use crate::power::promises::Promise;
use crate::power::step::{best_step, least_energy};
use crate::state::job::Job;
use crate::state::operating_points::OperatingPoint;

/// Caps on the ladder below the known operating points, as fractions of the highest power.
const CAP_STEPS: u32 = 20;

/// The desired setting and, under a power limit, all settings of less power, each with the expected power of
/// one GPU in watts, descending.
pub(super) fn ladder(
    input: PlanningInput<'_>,
    gpus: JobGpus<'_>,
    desired: GpuSetting,
) -> Vec<(GpuSetting, f64)> {
    if !input.limits.is_power_limited() {
        return vec![(desired, gpus.expected_w(input, desired))];
    }
    settings_below(input, gpus, desired)
}

/// A setting and all of less power, each with the expected power of one GPU in watts, descending.
fn settings_below(
    input: PlanningInput<'_>,
    gpus: JobGpus<'_>,
    desired: GpuSetting,
) -> Vec<(GpuSetting, f64)> {
    let rung = |setting: GpuSetting| (setting, gpus.expected_w(input, setting));
    let mut ladder = vec![rung(desired)];
    if gpus.is_fixed {
        return ladder;
    }
    let points = gpus.job.operating_points_on(gpus.gpu_type);
    let points = points.map_or(&[][..], |points| points.with_gpus(gpus.gpus));
    let mut lower: Vec<(GpuSetting, f64)> =
        points.iter().map(|point| rung(point.setting)).collect();
    lower.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if let Some(power) = input.state.gpu_power(gpus.gpu_type)
        && let Some(least) = power.cap_min
    {
        let fraction = |k: u32| power.most.scale(f64::from(k) / f64::from(CAP_STEPS));
        let caps = (1..CAP_STEPS).rev().map(fraction).filter(|cap| *cap > least).chain([least]);
        let lowest_w = lower.last().map_or(f64::INFINITY, |rung| rung.1);
        let clock_mhz_max = lower.last().map_or(desired, |rung| rung.0).clock_mhz_max;
        let capped = |cap: Power| {
            let setting = GpuSetting { cap_mw: Some(cap), clock_mhz_max };
            // More than the cap where measurements exceed it.
            (setting, gpus.drawn_w(input, cap).max(gpus.expected_w(input, setting)))
        };
        lower.extend(caps.filter(|cap| cap.as_w() < lowest_w).map(capped));
    }
    for rung in lower {
        if ladder.last().is_some_and(|last| rung.1 < last.1) {
            ladder.push(rung);
        }
    }
    ladder
}

/// The least power of one GPU with a job to which the limits can lower it, watts.
pub(crate) fn least_gpu_w(input: PlanningInput<'_>, gpus: JobGpus<'_>) -> f64 {
    let ladder = settings_below(input, gpus, GpuSetting::DEFAULT);
    ladder.last().map_or(f64::INFINITY, |rung| rung.1)
}

/// The settings of a job on this number of GPUs by falling power, the default first: the speed relative to the default one
/// on `reference` GPUs, and the power of one GPU above idle, watts. `None` where they are not known.
pub(crate) fn settings_of(
    input: PlanningInput<'_>,
    job: &Job,
    gpu_type: &str,
    gpus: u32,
    reference: u32,
) -> Option<Vec<(f64, f64)>> {
    let is_fixed = job.state.gpus().is_some_and(|on| input.state.has_fixed_caps(on));
    let of = JobGpus { job, gpu_type, gpus, is_fixed };
    let ladder = settings_below(input, of, GpuSetting::DEFAULT);
    let idle_w = input.state.gpu_power(gpu_type)?.idle.as_w();
    let speeds = speeds(of, reference, &ladder, idle_w);
    let above = |(rung, speed): (&(GpuSetting, f64), Option<f64>)| {
        Some((speed?, (rung.1 - idle_w).max(0.0)))
    };
    ladder.iter().zip(speeds).map(above).collect()
}

/// The speed at each setting of a ladder relative to the default one on `reference` GPUs; below the slowest known
/// setting proportional to its power above idle, because an idle GPU does no work. Absent where no speed is known.
pub(super) fn speeds(
    gpus: JobGpus<'_>,
    reference: u32,
    ladder: &[(GpuSetting, f64)],
    idle_w: f64,
) -> Vec<Option<f64>> {
    let points = gpus.job.operating_points_on(gpus.gpu_type);
    let default = points.and_then(|points| points.point(reference, GpuSetting::DEFAULT));
    let mut slowest: Option<(f64, f64)> = None;
    let relative = |&(setting, gpu_w): &(GpuSetting, f64)| {
        let point = points.zip(default).and_then(|(points, default)| {
            Some(points.point(gpus.gpus, setting)?.steps_per_s / default.steps_per_s)
        });
        if let Some(speed) = point {
            slowest = Some((speed, gpu_w));
        }
        let above = |watts: f64| (watts - idle_w).max(0.0);
        point
            .or_else(|| slowest.map(|(speed, watts)| speed * above(gpu_w) / above(watts).max(1e-9)))
    };
    ladder.iter().map(relative).collect()
}

/// Of the settings from the default one down, the one with the most work per joule ([`floor`]).
pub(crate) fn economical_setting(input: PlanningInput<'_>, gpus: JobGpus<'_>) -> usize {
    floor(input, gpus, &settings_below(input, gpus, GpuSetting::DEFAULT))
}

/// The index of the lowest setting on a ladder that a promise permits: the last one at its floor.
pub(super) fn promised_floor(
    gpus: JobGpus<'_>,
    promise: &Promise,
    ladder: &[(GpuSetting, f64)],
    idle_w: f64,
) -> usize {
    let speeds = speeds(gpus, promise.gpus, ladder, idle_w);
    if speeds.iter().all(Option::is_none) {
        return ladder.len() - 1;
    }
    let permits = |speed: &Option<f64>| speed.is_some_and(|speed| speed + 1e-9 >= promise.floor);
    speeds.iter().rposition(permits).unwrap_or(0)
}

/// The index of the lowest setting on a ladder that the limits choose while something else can give: the one with
/// the most work per charged joule. Below it the same power completes less work. The operating points of a job
/// with a bound on its slowdown are within that bound, so its floor is too.
///
/// The last index where no speed is known.
pub(super) fn floor(
    input: PlanningInput<'_>,
    gpus: JobGpus<'_>,
    ladder: &[(GpuSetting, f64)],
) -> usize {
    let charge = Charge::on(input, gpus.gpu_type);
    let points = gpus.job.operating_points_on(gpus.gpu_type);
    // With the power that the limits count, which may be above that of the operating point.
    let joules = |&(setting, gpu_power_w): &(GpuSetting, f64)| {
        let point = points?.point(gpus.gpus, setting)?;
        Some(charge.joules_per_step(&OperatingPoint { gpu_power_w, ..*point }))
    };
    let known = ladder.iter().enumerate().filter_map(|(at, rung)| Some((at, joules(rung)?)));
    let best = known.min_by(|a, b| a.1.total_cmp(&b.1));
    best.map_or(ladder.len() - 1, |(at, _)| at)
}

/// The setting by PowerFlow's rule: from the least energy of a training step up, as long as the best step
/// saves at least the price in relative time per relative energy.
pub(super) fn priced_setting(input: PlanningInput<'_>, gpus: JobGpus<'_>) -> GpuSetting {
    let price = input.limits.price;
    if price <= 0.0 {
        return GpuSetting::DEFAULT;
    }
    let points = gpus.job.operating_points_on(gpus.gpu_type);
    let points = points.map_or(&[][..], |points| points.with_gpus(gpus.gpus));
    let charge = Charge::on(input, gpus.gpu_type);
    let Some(mut at) = least_energy(&charge, points) else { return GpuSetting::DEFAULT };
    while let Some(step) = best_step(&charge, at, points.iter()).filter(|s| s.ratio >= price) {
        at = step.to;
    }
    at.setting
}
