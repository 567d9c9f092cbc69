//! What is believed of any job before a method has learned: a crude formula, and how wrong it may be.
//!
//! Both learned methods predict what is left over by this formula, so that where they know nothing
//! they answer with it, and say how little it is worth. Logarithms throughout. With g GPUs on n
//! nodes, a global batch B, the tenants' common power P under a cap L, a clock locked at f below
//! the top f0, N neighbours, and the busy shares' sum S over all tenants:
//!
//! ```text
//! bite = max(0, ln(P / 0.9 L)),  down = ln(f0 / f),  over = max(0, S - 0.9)
//! ln rate  = 0.7 (ln g - ln B) - 0.15 [n > 1] - 0.05 ln n
//!            - 0.4 bite - 0.5 bite^2 - 0.6 down - 0.02 N - 0.5 over      (+ the job's level)
//! ln power = ln P - 0.03 ln g - 0.9 bite - 1.5 down                     (+ the job's level)
//! P = idle + sum of the tenants' own power above idle * e^(-0.05 N - 0.6 over)
//! ```
//!
//! The constants are the round values of what [`crate::model`] believes, whose files name the
//! sources. Nothing is fitted here.

use wattle_common::hash::fnv1a;
use wattle_common::id::WorkloadId;
use wattle_common::observation::{Observation, Setting};

use crate::job::Profiles;
use crate::model::cap::GpuSpec;
use crate::prior;
use crate::surface::Configuration;

/// Batch size taken for a job that names none: only differences within one job count then.
const BATCH_UNKNOWN: f64 = 64.0;
/// The share of a cap at which a job's mean power begins to feel it.
const BITE: f64 = 0.9;
/// Summed busy shares from which tenants take from each other.
const ROOM: f64 = 0.9;
/// How well a configuration repeats: windows of one scatter by 1-3 %.
pub const REPEAT_SD: f64 = 0.02;

/// What is known of a job itself, as numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traits {
    /// Busy share alone, 0 to 1.
    pub busy: f64,
    /// Memory traffic share alone, 0 to 1.
    pub memory_busy: f64,
    /// One card's power alone at the default, watts.
    pub power_w: f64,
    /// Its global batch as last seen.
    pub global_batch: Option<u32>,
}

/// A configuration of a job, as numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// ln of GPUs in all.
    pub ln_gpus: f64,
    /// ln of nodes.
    pub ln_nodes: f64,
    /// ln of the global batch.
    pub ln_batch: f64,
    /// ln of the cap as a share of the default, 0 or less.
    pub ln_cap: f64,
    /// How far the cap bites, 0 or more.
    pub bite: f64,
    /// How far the clock is down, 0 or more.
    pub down: f64,
    /// Neighbours.
    pub neighbours: f64,
    /// Their busy shares, summed.
    pub beside_busy: f64,
    /// By how much all busy shares exceed the card.
    pub over: f64,
    /// ln of the watts all tenants would draw at the default.
    pub ln_power: f64,
    /// Tells sets of neighbours apart.
    pub set: u64,
}

/// A quantity that is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Steps a second.
    Rate,
    /// One card's power.
    Power,
}

impl Place {
    /// The place of a job with `traits` on `card`.
    fn new(
        card: &GpuSpec,
        traits: &Traits,
        profiles: &Profiles,
        (gpus, nodes, batch): (u32, u32, Option<u32>),
        setting: Setting,
        neighbours: &[WorkloadId],
    ) -> Self {
        let ln = |count: u32| f64::from(count.max(1)).ln();
        let above = |watts: f64| (watts - card.idle_w).max(1.0);
        let (mut beside_busy, mut sum_w) = (0.0, above(traits.power_w));
        for class in neighbours {
            let known = profiles.get(class);
            beside_busy += known.and_then(|p| p.busy).unwrap_or(prior::UTILIZATION).mean;
            let ln_power = known.and_then(|p| p.ln_power).map(|p| p.mean);
            sum_w += above(ln_power.map_or(0.5 * card.cap_default_w, f64::exp));
        }
        let count = neighbours.len() as f64;
        let over = if count > 0.0 { (traits.busy + beside_busy - ROOM).max(0.0) } else { 0.0 };
        let shared_w = card.idle_w + sum_w * (-0.05 * count - 0.6 * over).exp();
        let most = if card.cap_known { card.cap_default_w } else { f64::INFINITY };
        let power_w = shared_w.clamp(1.0, most.max(1.0));
        let cap = setting.cap_w.filter(|cap| *cap < 0.99 * card.cap_default_w);
        let top = card.clock_mhz_top.unwrap_or(0.0);
        Self {
            ln_gpus: ln(gpus),
            ln_nodes: ln(nodes),
            ln_batch: batch.or(traits.global_batch).map_or(BATCH_UNKNOWN.ln(), ln),
            ln_cap: cap.map_or(0.0, |cap| (cap / card.cap_default_w).ln()),
            bite: cap.map_or(0.0, |cap| (power_w / (BITE * cap)).ln().max(0.0)),
            down: setting.clock_mhz_max.filter(|f| *f < top).map_or(0.0, |f| (top / f).ln()),
            neighbours: count,
            beside_busy,
            over,
            ln_power: power_w.ln(),
            set: fingerprint(neighbours),
        }
    }

    /// Where a window was seen.
    #[must_use]
    pub fn of_window(
        w: &Observation,
        card: &GpuSpec,
        traits: &Traits,
        profiles: &Profiles,
    ) -> Self {
        let shape = (w.gpus, w.nodes, w.global_batch);
        Self::new(card, traits, profiles, shape, w.setting(), &w.neighbours)
    }

    /// What is asked for.
    #[must_use]
    pub fn of(at: &Configuration, card: &GpuSpec, traits: &Traits, profiles: &Profiles) -> Self {
        let set = Setting::new(at.cap, at.clock_max);
        let shape = (at.gpus, at.nodes, at.global_batch);
        Self::new(card, traits, profiles, shape, set, &at.neighbours)
    }

    /// The same GPUs, alone at the default.
    #[must_use]
    pub fn reference(&self, traits: &Traits) -> Self {
        Self {
            ln_cap: 0.0,
            bite: 0.0,
            down: 0.0,
            neighbours: 0.0,
            beside_busy: 0.0,
            over: 0.0,
            ln_power: traits.power_w.max(1.0).ln(),
            set: fingerprint(&[]),
            ..*self
        }
    }

    /// Whether it is alone at the default.
    #[must_use]
    pub fn is_reference(&self) -> bool {
        self.neighbours < 0.5 && self.ln_cap >= 0.0 && self.down <= 0.0
    }

    /// The formula's answer, less the job's level.
    #[must_use]
    pub fn crude(&self, what: Quantity) -> f64 {
        match what {
            Quantity::Rate => {
                let spread = if self.ln_nodes > 0.0 { 0.15 + 0.05 * self.ln_nodes } else { 0.0 };
                0.7 * (self.ln_gpus - self.ln_batch)
                    - spread
                    - 0.4 * self.bite
                    - 0.5 * self.bite * self.bite
                    - 0.6 * self.down
                    - 0.02 * self.neighbours
                    - 0.5 * self.over
            }
            Quantity::Power => {
                self.ln_power - 0.03 * self.ln_gpus - 0.9 * self.bite - 1.5 * self.down
            }
        }
    }

    /// How far the formula's difference between two places may be wrong: a variance of the
    /// logarithm, and which of GPUs, cap or clock, and neighbours differ, as bits.
    ///
    /// Deviations for each unit of each feature: rates over GPUs by 0.15 for a factor of e
    /// (scaling from nearly none to perfect), other spreads by 0.15, batches by 0.2, caps by a
    /// third of the bite, clocks by 0.3, sets of neighbours by 0.05 and 0.3 of what they exceed
    /// the card by, as [`crate::model`] believes.
    #[must_use]
    pub fn reach(&self, to: &Self, what: Quantity) -> (f64, usize) {
        let rate = what == Quantity::Rate;
        let square = |v: f64| v * v;
        let mut variance = REPEAT_SD * REPEAT_SD;
        let mut mask = 0;
        let (gpus, nodes) = (self.ln_gpus - to.ln_gpus, self.ln_nodes - to.ln_nodes);
        let batch = self.ln_batch - to.ln_batch;
        if gpus.abs() + nodes.abs() + batch.abs() > 1e-9 {
            mask |= 1;
            let (by_gpus, by_nodes, by_batch) =
                if rate { (0.15, 0.15, 0.2) } else { (0.06, 0.04, 0.06) };
            variance += square(by_gpus * gpus) + square(by_batch * batch);
            let crossing = if (self.ln_nodes > 0.0) == (to.ln_nodes > 0.0) { 0.0 } else { 0.1 };
            variance += square(by_nodes * nodes) + if rate { square(crossing) } else { 0.0 };
        }
        let (bite, cap) = (self.bite - to.bite, self.ln_cap - to.ln_cap);
        let down = self.down - to.down;
        if cap.abs() + down.abs() > 1e-9 {
            mask |= 2;
            let (by_bite, by_down) = if rate { (0.33, 0.3) } else { (0.2, 0.5) };
            variance += square(by_bite * bite) + square(by_down * down) + square(0.04 * cap);
        }
        if self.set != to.set {
            mask |= 4;
            let (each, by_over) = if rate { (0.05, 0.3) } else { (0.1, 0.2) };
            let count = (self.neighbours - to.neighbours).abs();
            variance += square(each) * (1.0 + count) + square(by_over * (self.over - to.over));
        }
        (variance, mask)
    }
}

/// Tells sets apart without keeping their names: FNV-1a over them.
fn fingerprint(neighbours: &[WorkloadId]) -> u64 {
    fnv1a(neighbours.iter().flat_map(|class| class.as_str().as_bytes().iter().chain(b"\0")))
}
