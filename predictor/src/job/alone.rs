//! What a job is alone at the default: its busy share, and one card's power.
//!
//! Its own windows say it; else the class's, else what is believed of its kind. Nothing here knows
//! what caps or neighbours do.

use std::collections::BTreeMap;

use wattle_common::id::WorkloadId;
use wattle_common::numerics::median_high;

use super::power::{PowerAlone, Seen};
use super::{Context, Job, order};
use crate::fit::Belief;
use crate::history::{LEVELS_MAX, PowerLevel, Profile, Stored};
use crate::model::cap::{self, Card};
use crate::prior;
use wattle_common::observation::{Observation, POWER_SD};

/// A job that draws well under a low cap draws about what it does at the default, but its peaks may
/// be cut: by up to a tenth in the Zeus traces.
const LOW_CAP_SD: f64 = 0.06;
/// Busy share of windows that repeat: NVML counts whole sampling periods.
const BUSY_SD: f64 = 0.03;

/// Busy share alone: what was seen alone; else the job's own part beside others, which is a little
/// less; else the class's; else anything.
pub(super) fn busy(windows: &[Observation], class: &Profile) -> (Belief, bool) {
    let alone: Vec<f64> = windows.iter().filter(|w| w.alone()).filter_map(|w| w.busy).collect();
    let beside: Vec<f64> =
        windows.iter().filter(|w| !w.alone()).filter_map(|w| w.busy_job).collect();
    let own = |seen: Vec<f64>, between: f64| {
        let n = seen.len() as f64;
        median_high(seen.into_iter())
            .map(|mean| Belief { mean, sd: (BUSY_SD * BUSY_SD / n + between * between).sqrt() })
    };
    match own(alone, 0.01).or(class.busy).or_else(|| own(beside, 0.1)) {
        Some(belief) => (belief, true),
        None => (prior::UTILIZATION, false),
    }
}

/// A job's windows that no cap or clock held back, with what its card drew in them, watts.
pub(super) fn free<'a>(job: &'a Job, card: &Card) -> Vec<(&'a Observation, f64)> {
    let shifts = order::shifts(job.windows(), card, |w| Some((w.gpu_power_w?.ln(), POWER_SD)));
    let mut free: Vec<(&Observation, f64)> = job
        .windows()
        .iter()
        .zip(shifts)
        .filter(|(w, _)| w.alone())
        .filter_map(|(w, shift)| Some((w, w.gpu_power_w? * shift.exp())))
        .filter(|(w, watts)| cap::is_free(card, *watts, w.setting()))
        .collect();
    // A cap that hardly binds still cuts peaks: where the default itself was seen, that says it.
    let default = |(w, _): &(&Observation, f64)| cap::is_default(card, w.setting());
    if free.iter().any(default) {
        free.retain(default);
    }
    free
}

/// What a job's own cards drew at the default, by its GPUs.
pub(super) fn powers(job: &Job, card: &Card) -> Vec<PowerLevel> {
    let mut by_count: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let free = free(job, card).into_iter();
    // What was cut a little by a low cap tells of the job, but is no level for others.
    for (window, watts) in free.filter(|(w, _)| cap::is_default(card, w.setting())) {
        by_count.entry(window.gpus).or_default().push(watts.ln());
    }
    let level = |(gpus, seen): (u32, Vec<f64>)| {
        let sd = POWER_SD / (seen.len() as f64).sqrt();
        let ln_power = Stored { mean: median_high(seen.into_iter())?, sd };
        Some(PowerLevel { gpus, ln_power })
    };
    by_count.into_iter().filter_map(level).take(LEVELS_MAX).collect()
}

/// One card's power alone at the default: from windows no cap or clock held back, and from those of
/// the class by their GPUs; else above what was seen held back; else the kind of network's.
pub(super) fn power(job: &Job, context: Context<'_>) -> PowerAlone {
    let card = context.card;
    let alone = || job.windows().iter().filter(|w| w.alone());
    let free = free(job, card);
    let gpus = free.last().map_or(job.gpus.max, |(w, _)| w.gpus);
    let held = alone().filter_map(|w| w.gpu_power_w).max_by(f64::total_cmp);
    let level = match (context.class.ln_power, held) {
        // By their GPUs, its jobs' powers stand among the rows.
        (Some(class), _) if !context.class.powers.is_empty() => Belief { sd: 0.5, ..class },
        (Some(class), _) => class,
        // Somewhere between what a cap let through and what the card can draw.
        (None, Some(held)) if free.is_empty() => {
            let (low, high) = (held.ln(), (0.97 * card.cap_default_w).max(held * 1.02).ln());
            Belief { mean: (low + high) / 2.0, sd: (high - low).max(0.04) / 3.0 }
        }
        (None, _) => {
            let workload = job.workload.as_ref().map(WorkloadId::as_str);
            let (share, _) = prior::power_share(workload, card.power_carried);
            let guess = if card.cap_known { 0.0 } else { 0.4 };
            Belief { mean: share.mean + card.cap_default_w.ln(), sd: f64::hypot(share.sd, guess) }
        }
    };
    let own = free.iter().map(|(w, watts)| {
        let sd = if cap::is_default(card, w.setting()) { POWER_SD } else { LOW_CAP_SD };
        Seen { gpus: w.gpus, ln_watts: watts.ln(), sd }
    });
    let like = context.class.powers.iter().map(|(gpus, belief)| Seen {
        gpus: *gpus,
        ln_watts: belief.mean,
        sd: belief.sd,
    });
    let rows: Vec<Seen> = own.chain(like).collect();
    let is_seen = !rows.is_empty() || context.class.ln_power.is_some();
    PowerAlone::fit(gpus, level, &rows, is_seen)
}
