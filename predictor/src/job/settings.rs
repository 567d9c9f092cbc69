//! Observed effect of each cap and clock on a job, from its own readings without the prior.
//!
//! The history stores this, and priors for other jobs are made from it. With the prior included, the
//! history would learn from its own predictions.

use wattle_common::observation::{JobShape, Observation, POWER_SD};

use std::collections::BTreeMap;

use super::cap_clock_response::{CapClockResponse, Output};
use crate::history::{AtSetting, SETTINGS_MAX};
use crate::model::cap::{self, GpuSpec};
use crate::statistics::regression::{Gaussian, Row, fit};

/// Wider than any effect of a cap.
const ANYTHING: Gaussian = Gaussian { mean: 0.0, sd: 1.0 };
/// Less precise effects are not stored.
const SD_MAX: f64 = 0.1;
/// Largest number of configurations with a level.
const LEVELS_MAX: usize = 8;

/// Effects that `windows` show under each knot of `response`, for the current number of GPUs; `demand` is
/// the natural logarithm of one GPU's exclusive power on these GPUs.
pub(super) fn raw(
    windows: &[Observation],
    response: &CapClockResponse,
    gpu: &GpuSpec,
    demand: impl Fn(JobShape) -> f64,
) -> Vec<AtSetting> {
    let knots = response.knots();
    let exclusive = || windows.iter().filter(|w| w.is_exclusive());
    // Effects are relative to the default setting, which must have been observed.
    if knots.is_empty() || !exclusive().any(|w| cap::is_default(gpu, w.setting())) {
        return Vec::new();
    }
    // On fewer GPUs each draws more power, and the same cap has a larger effect.
    let shift = |half, w: &Observation| response.shift(half, w.setting(), demand(w.shape()));
    let slow =
        half(exclusive(), response, |w| Some((-w.rate?.ln() - shift(Output::Slow, w), w.rate_sd)));
    let power = half(exclusive(), response, |w| {
        Some((w.gpu_power_w?.ln() - shift(Output::Power, w), POWER_SD))
    });
    let sure = |seen: &[Gaussian], i: usize| seen.get(i).copied().filter(|s| s.sd < SD_MAX);
    knots
        .iter()
        .enumerate()
        .map(|(i, setting)| AtSetting {
            setting: *setting,
            ln_power: Some(response.ln_power()),
            slow: sure(&slow, i),
            power: sure(&power, i),
        })
        .filter(|at| at.slow.is_some() || at.power.is_some())
        .take(SETTINGS_MAX)
        .collect()
}

/// One level for each configuration and one deviation from it for each setting.
fn half<'a>(
    windows: impl Iterator<Item = &'a Observation>,
    response: &CapClockResponse,
    of: impl Fn(&Observation) -> Option<(f64, f64)>,
) -> Vec<Gaussian> {
    let mut levels: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    let mut seen = Vec::new();
    for window in windows {
        let at = (window.gpus, window.nodes);
        let next = levels.len();
        let level = if next < LEVELS_MAX || levels.contains_key(&at) {
            *levels.entry(at).or_insert(next)
        } else {
            continue;
        };
        if let (Some(knot), Some((y, sd))) = (response.knot(window.setting()), of(window)) {
            seen.push((level, knot, y, sd));
        }
    }
    let Some((_, _, first, _)) = seen.first().copied() else { return Vec::new() };
    let knots = response.knots().len();
    let rows: Vec<Row> = seen
        .into_iter()
        .map(|(level, knot, y, sd)| {
            let mut x = vec![0.0; levels.len() + knots];
            x[level] = 1.0;
            if let Some(knot) = knot {
                x[levels.len() + knot] = 1.0;
            }
            Row { x, y: y - first, sd }
        })
        .collect();
    let mut priors = vec![Gaussian { mean: 0.0, sd: 3.0 }; levels.len()];
    priors.resize(levels.len() + knots, ANYTHING);
    let posterior = fit(&rows, &priors);
    (0..knots).map(|i| posterior.marginal(levels.len() + i)).collect()
}
