//! What a window shows in which a GPU had a cap beside a locked clock.
//!
//! A GPU is as slow as the tighter one of the two makes it, so their effects do not add. Below a power limit every GPU
//! has a cap beside its clock, mostly a looser one: with the effects of both, a clock would seem to slow the job by what
//! the cap does not, and its surface would have too high a speed and power at that clock.
//!
//! | evidence | the window counts as one |
//! |---|---|
//! | the mean clock reached the locked one, or the power is far below the cap ([`BITE`]) | at the clock alone |
//! | the mean clock is lower, and the power is near the cap | at the cap alone, and at the mean clock alone: a capped GPU works and draws as at the clock to which its cap lowers it |
//! | other | at both |
//!
//! Without the second one a clock whose power was predicted too low would keep its prediction: its GPUs have their
//! predicted power as their cap, so they never show what they draw without it.

use std::borrow::Cow;

use wattle_common::observation::Observation;

use super::cap_clock_response::{non_default_cap, non_default_clock};
use crate::model::cap::{BITE, GpuSpec};

/// Share of the locked clock from which the mean clock reaches it.
const REACHED: f64 = 0.99;
/// Share of a cap from which power is near it: a GPU that its cap slows draws a few per cent less.
const NEAR_CAP: f64 = 0.9;

/// The windows by what limited them.
pub(super) fn limited<'w>(
    windows: Cow<'w, [Observation]>,
    gpu: &GpuSpec,
) -> Cow<'w, [Observation]> {
    let has_both = |window: &Observation| {
        let setting = window.setting();
        non_default_cap(gpu, setting).is_some() && non_default_clock(gpu, setting).is_some()
    };
    if !windows.iter().any(has_both) {
        return windows;
    }
    let mut limited = Vec::with_capacity(windows.len());
    for window in windows.iter() {
        if !has_both(window) {
            limited.push(window.clone());
            continue;
        }
        let share = |value: Option<f64>, of: Option<f64>| Some(value? / of?);
        let reached = share(window.clock_mhz_mean, window.clock_mhz_max);
        let drawn = share(window.gpu_power_w, window.cap_w);
        let is_far = drawn.is_some_and(|drawn| drawn < BITE.get());
        let is_near = drawn.is_some_and(|drawn| drawn >= NEAR_CAP);
        if is_far || reached.is_some_and(|reached| reached >= REACHED) {
            limited.push(Observation { cap_w: None, ..window.clone() });
        } else if is_near && reached.is_some() {
            limited.push(Observation { clock_mhz_max: None, ..window.clone() });
            let clock_mhz_max = window.clock_mhz_mean;
            limited.push(Observation { cap_w: None, clock_mhz_max, ..window.clone() });
        } else {
            limited.push(window.clone());
        }
    }
    Cow::Owned(limited)
}
