//! A job's readings, put into the order that caps impose on what they measure.
//!
//! As a cap falls a job is never faster and never draws more. Readings that say so are noise, all of
//! them and not only the last: what is right is their least squares under that order, which pools
//! neighbours until none rises (Barlow, Bartholomew, Bremner and Brunk, "Statistical Inference under
//! Order Restrictions", 1972). Cutting the lower ones off at what the default showed instead would
//! take the default's reading for the truth.
//!
//! Windows scatter as before about their cap's median; only the medians move. Nothing here knows a
//! curve.

use std::collections::BTreeMap;

use wattle_common::numerics::{median, non_increasing};

use crate::model::cap::Card;
use wattle_common::observation::{JobShape, Observation};

/// Caps this close are one.
const SAME: f64 = 0.995;

/// One window's reading.
#[derive(Clone, Copy)]
struct Reading {
    cap_w: f64,
    /// Which window it is.
    window: usize,
    value: f64,
    /// One over its variance.
    weight: f64,
}

/// What to add to each window's logarithm of a quantity that must not rise as the cap falls; `of`
/// gives that logarithm and its deviation. Nothing for windows beside others, or without it.
pub(super) fn shifts(
    windows: &[Observation],
    card: &Card,
    of: impl Fn(&Observation) -> Option<(f64, f64)>,
) -> Vec<f64> {
    let mut groups: BTreeMap<(JobShape, Option<u64>), Vec<Reading>> = BTreeMap::new();
    for (i, window) in windows.iter().enumerate().filter(|(_, w)| w.alone()) {
        let Some((value, sd)) = of(window).filter(|(v, sd)| v.is_finite() && *sd > 0.0) else {
            continue;
        };
        let cap_w = window.cap_w.unwrap_or(card.cap_default_w).min(card.cap_default_w);
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
