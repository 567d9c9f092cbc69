//! What a job showed under each cap and clock, taken at its word: by its own readings alone.
//!
//! This is what the history keeps, and other jobs' expectations are made of. Were it drawn towards
//! what was expected, as a job's own curve is, the history would learn from its own echo.

use std::collections::BTreeMap;

use super::held::{Half, Held};
use crate::fit::{Belief, Row, fit};
use crate::history::{AtSetting, SETTINGS_MAX, Stored};
use crate::model::cap::{self, Card};
use wattle_common::observation::{Observation, POWER_SD};

/// As wide as anything a cap does.
const ANYTHING: Belief = Belief { mean: 0.0, sd: 1.0 };
/// What is less sure than this is not kept.
const SD_MAX: f64 = 0.1;
/// Configurations whose levels are told apart.
const LEVELS_MAX: usize = 8;

/// What `windows` show under each of `held`'s settings, as it would be on the GPUs the job has now;
/// `demand` is the logarithm of what its card draws at the default on so many.
pub(super) fn raw(
    windows: &[Observation],
    held: &Held,
    card: &Card,
    demand: impl Fn(u32) -> f64,
) -> Vec<AtSetting> {
    let knots = held.knots();
    let alone = || windows.iter().filter(|w| w.alone());
    // Nothing can be relative to a default that was not seen.
    if knots.is_empty() || !alone().any(|w| cap::is_default(card, w.setting())) {
        return Vec::new();
    }
    // Fewer GPUs draw more each, and feel the same cap more.
    let shift = |half, w: &Observation| held.shift(half, w.setting(), demand(w.gpus));
    let slow = half(alone(), held, |w| Some((-w.rate?.ln() - shift(Half::Slow, w), w.rate_sd)));
    let power =
        half(alone(), held, |w| Some((w.gpu_power_w?.ln() - shift(Half::Power, w), POWER_SD)));
    let sure = |seen: &[Stored], i: usize| seen.get(i).copied().filter(|s| s.sd < SD_MAX);
    knots
        .iter()
        .enumerate()
        .map(|(i, setting)| AtSetting {
            setting: *setting,
            ln_power: Some(held.ln_power()),
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
    held: &Held,
    of: impl Fn(&Observation) -> Option<(f64, f64)>,
) -> Vec<Stored> {
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
        if let (Some(knot), Some((y, sd))) = (held.knot(window.setting()), of(window)) {
            seen.push((level, knot, y, sd));
        }
    }
    let Some((_, _, first, _)) = seen.first().copied() else { return Vec::new() };
    let knots = held.knots().len();
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
    let mut beliefs = vec![Belief { mean: 0.0, sd: 3.0 }; levels.len()];
    beliefs.resize(levels.len() + knots, ANYTHING);
    let posterior = fit(&rows, &beliefs);
    (0..knots).map(|i| posterior.belief(levels.len() + i).into()).collect()
}
