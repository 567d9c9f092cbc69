//! The effect of neighbours on a job: expected, and observed in its shared windows.

use std::collections::BTreeMap;

use wattle_common::id::WorkloadId;
use wattle_common::observation::{JobShape, Observation, POWER_SD, UNKNOWN};

use super::{Context, JobModel, Profiles, SETS_FITTED_MAX};
use crate::history::{self, Profile, SharedSet};
use crate::model::cap;
use crate::model::interference::TenantLoad;
use crate::model::pairs::PairTraits;
use crate::pooled::{self, Pooled};
use crate::prior;
use crate::statistics::regression::{Gaussian, Row, fit};

impl JobModel {
    /// Natural logarithm of the slowdown co-located with one job of `class`, and its variance, from all pairs
    /// seen; `me` are this job's traits. The job's own readings of that pair are not used.
    #[must_use]
    pub fn pair_slow(
        &self,
        me: &PairTraits,
        class: &WorkloadId,
        profiles: &Profiles,
        pooled: &Pooled,
    ) -> (f64, f64) {
        let mix = self.mix(std::slice::from_ref(class), profiles);
        let nothing = Profile::default();
        let profile = profiles.get(class).map_or(&nothing, |known| &**known);
        let declared = Some(class).filter(|c| c.as_str() != UNKNOWN);
        let partner = pooled::traits(declared, profile);
        pooled.pair(me, &partner, &mix, self.busy_seen && profile.busy.is_some())
    }

    /// Load of a GPU shared by this job and `neighbours`.
    #[must_use]
    pub fn mix(&self, neighbours: &[WorkloadId], profiles: &Profiles) -> TenantLoad {
        let mut mix = TenantLoad {
            neighbours: neighbours.len(),
            sum: self.busy.mean,
            sum_variance: self.busy.sd * self.busy.sd,
        };
        for class in neighbours {
            let busy = profiles.get(class).and_then(|p| p.busy).unwrap_or(prior::UTILIZATION);
            mix.sum += busy.mean;
            mix.sum_variance += busy.sd * busy.sd;
        }
        mix
    }

    /// Expected natural logarithm of the slowdown by a window's neighbours, and its variance.
    pub(super) fn neighbours_slow(&self, window: &Observation, context: Context<'_>) -> (f64, f64) {
        if window.is_exclusive() {
            return (0.0, 0.0);
        }
        let mix = self.mix(&window.neighbours, context.profiles);
        let me = self.traits();
        let pair = |class: &WorkloadId| {
            let exclusive = self.mix(std::slice::from_ref(class), context.profiles);
            (exclusive, self.pair_slow(&me, class, context.profiles, context.pooled))
        };
        let pairs: Vec<_> = window.neighbours.iter().map(pair).collect();
        match pairs.as_slice() {
            [(_, slow)] => *slow,
            pairs => context.pooled.interference.slowdown_of_pairs(&mix, pairs),
        }
    }

    /// Fits the effect of each neighbour set, where exclusive speed and power are known.
    pub(super) fn fit_shared(&mut self, windows: &[Observation], context: Context<'_>) {
        let known_alone = |shape: JobShape| {
            context.class.levels.contains_key(&shape)
                || windows
                    .iter()
                    .any(|w| w.is_exclusive() && w.rate.is_some() && w.shape() == shape)
        };
        let mut sets: BTreeMap<&[WorkloadId], (Vec<Row>, Vec<Row>)> = BTreeMap::new();
        let mut newest: Vec<&[WorkloadId]> = Vec::new();
        for window in windows.iter().rev().filter(|w| !w.is_exclusive()) {
            if !sets.contains_key(window.neighbours.as_slice()) && sets.len() == SETS_FITTED_MAX {
                continue;
            }
            if !newest.contains(&window.neighbours.as_slice()) {
                newest.push(&window.neighbours);
            }
            let (slow, power) = sets.entry(&window.neighbours).or_default();
            let row = |y: f64, variance: f64| Row { x: vec![1.0], y, sd: variance.sqrt() };
            let at = self.response.prepare(window.setting());
            let under = self.response.answer(&at, self.ln_power_exclusive(window.shape()).0, 0.0).0;
            if let Some(rate) = window.rate
                && known_alone(window.shape())
                && let Some(exclusive) = self.ln_rate_set(window.shape(), &at, under)
            {
                let variance = exclusive.variance + window.rate_sd * window.rate_sd;
                slow.push(row(exclusive.mean - rate.ln(), variance));
            }
            if let Some((ln_ratio, variance)) = self.power_ratio(window, context) {
                power.push(row(ln_ratio, variance));
            }
        }
        let one = |rows: &[Row]| -> Option<Gaussian> {
            (!rows.is_empty()).then(|| fit(rows, &[Gaussian { mean: 0.0, sd: 2.0 }]).marginal(0))
        };
        newest.truncate(history::SETS_MAX);
        let (kept, singles) = (&mut self.shared, &mut self.singles);
        let shared = sets
            .into_iter()
            .map(|(set, (slow, power))| SharedSet {
                neighbours: set.to_vec(),
                slow: one(&slow),
                power: one(&power),
            })
            .filter(|set| set.slow.is_some() || set.power.is_some());
        for set in shared {
            if let ([one], Some(slow)) = (set.neighbours.as_slice(), set.slow) {
                singles.push((one.clone(), slow));
            }
            if newest.contains(&set.neighbours.as_slice()) {
                kept.push(set);
            }
        }
    }

    /// Natural logarithm of a shared GPU's power above idle relative to the sum of its tenants', and
    /// its variance.
    pub(super) fn power_ratio(
        &self,
        window: &Observation,
        context: Context<'_>,
    ) -> Option<(f64, f64)> {
        let gpu_w = window.gpu_power_w?;
        if !self.power.is_seen || !cap::is_free(context.gpu, gpu_w, window.setting()) {
            return None;
        }
        let idle = context.gpu.idle_w;
        let mut sum = (self.ln_power_exclusive(window.shape()).0.exp() - idle).max(1.0);
        for class in &window.neighbours {
            let exclusive = context.profiles.get(class)?.ln_power?;
            sum += (exclusive.mean.exp() - idle).max(1.0);
        }
        let above = gpu_w - idle;
        (above > 1.0).then(|| {
            let share = POWER_SD * gpu_w / above;
            ((above / sum).ln(), share * share + 0.03 * 0.03)
        })
    }
}
