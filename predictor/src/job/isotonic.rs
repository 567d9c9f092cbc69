//! Isotonic correction of a job's readings over caps.
//!
//! As a cap falls, a job gets no faster and draws no more power, so readings that rise are noise. The
//! medians under each cap are replaced by their isotonic regression
//! ([`wattle_common::numerics::isotonic`]), which moves every violating median; limiting the lower ones
//! to the default's reading would treat that reading as exact. Windows keep their deviation from the
//! median of their cap.

use std::collections::BTreeMap;

use wattle_common::numerics::{median, non_increasing};
use wattle_common::observation::{JobShape, Observation};

use crate::model::cap::GpuSpec;

/// Caps within this ratio count as one.
const SAME: f64 = 0.995;

/// One window's reading.
#[derive(Clone, Copy)]
struct Reading {
    cap_w: f64,
    /// Index of the window.
    window: usize,
    value: f64,
    /// Inverse variance.
    weight: f64,
}

/// Corrections to add to each window's logarithm of a quantity that must not rise as the cap falls; `of`
/// returns that logarithm and its standard deviation. Zero for shared windows and where `of` is `None`.
pub(super) fn shifts(
    windows: &[Observation],
    gpu: &GpuSpec,
    of: impl Fn(&Observation) -> Option<(f64, f64)>,
) -> Vec<f64> {
    let mut groups: BTreeMap<(JobShape, Option<u64>), Vec<Reading>> = BTreeMap::new();
    for (i, window) in windows.iter().enumerate().filter(|(_, w)| w.is_exclusive()) {
        let Some((value, sd)) = of(window).filter(|(v, sd)| v.is_finite() && *sd > 0.0) else {
            continue;
        };
        let cap_w = window.cap_w.unwrap_or(gpu.cap_default_w).min(gpu.cap_default_w);
        let clock = window.clock_mhz_max.map(f64::to_bits);
        let group = groups.entry((window.shape(), clock)).or_default();
        group.push(Reading { cap_w, window: i, value, weight: 1.0 / (sd * sd) });
    }
    let mut shifts = vec![0.0; windows.len()];
    for group in groups.values_mut() {
        group.sort_by(|a, b| b.cap_w.total_cmp(&a.cap_w).then(a.value.total_cmp(&b.value)));
        let caps: Vec<&[Reading]> = group.chunk_by(|a, b| b.cap_w >= SAME * a.cap_w).collect();
        let middles: Vec<(f64, f64)> = caps
            .iter()
            .filter_map(|cap| {
                Some((median(cap.iter().map(|r| r.value))?, cap.iter().map(|r| r.weight).sum()))
            })
            .collect();
        for ((cap, (middle, _)), ordered) in
            caps.iter().zip(&middles).zip(non_increasing(middles.iter().copied()))
        {
            for reading in *cap {
                shifts[reading.window] = ordered - middle;
            }
        }
    }
    shifts
}
