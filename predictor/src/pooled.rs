//! Pooled models: those that are fitted to all jobs seen on one GPU type.
//!
//! A job's own fit is cheap and made with each window. These fits read the history of all jobs and are
//! made less often. The formulas are in [`crate::model`].

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_common::Timestamp;
use wattle_common::id::{JobId, WorkloadId};

use crate::history::{History, Profile};
use crate::model::cap_forms::FormChoice;
use crate::model::interference::TenantLoad;
use crate::model::pairs::{Constants, PairTraits, Pairs, ROWS_MAX, Row};
use crate::model::transfer::{BurstBounds, CapObservation, Transfer};
use crate::model::{interference, throughput};
use crate::prior;
use crate::statistics::regression::Gaussian;

/// Share of news among the rows from which on pairs are fitted again: the cost grows with their cube.
const PAIRS_NEWS: f64 = 0.2;
/// Growth of the rows from which on the hyperparameters of pairs are searched again.
const PAIRS_TUNE: f64 = 1.5;
/// Up to this many jobs, a job's own readings are taken out of the pooled model that it is fitted with;
/// among more, one job has little influence.
const FEW: usize = 64;

/// Pooled models of one GPU type.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    /// Effect of neighbours by their number and busy shares.
    pub interference: interference::Pooled,
    /// Response to caps; shared with the jobs' own models.
    pub transfer: Arc<Transfer>,
    /// Effect of each class on each other, beyond that.
    pairs: Option<Arc<FittedPairs>>,
    /// Scaling over GPUs, nodes and batch.
    pub throughput: throughput::Pooled,
    /// Scaling parameters of each job, while there are few.
    scaling: Arc<Vec<(JobId, throughput::Constants)>>,
}

#[derive(Clone, Debug, PartialEq)]
struct FittedPairs {
    pairs: Pairs,
    /// News counter of the history at the time of the fit.
    news: u64,
    /// Number of rows that the hyperparameters were searched with.
    tuned_at: usize,
}

/// Busy share of a class, and whether it was observed.
fn busy(profile: &Profile) -> (Gaussian, bool) {
    profile.busy.map_or((prior::UTILIZATION, false), |busy| (busy, true))
}

/// Traits of `class` from its name and `profile`.
#[must_use]
pub fn traits(class: Option<&WorkloadId>, profile: &Profile) -> PairTraits {
    let mut traits = PairTraits::named(class);
    traits.ln_rate = profile.levels.first_key_value().map(|(_, level)| level.mean);
    traits.busy = profile.busy.map(|b| b.mean);
    traits.memory_busy = profile.memory_busy;
    traits.ln_memory = profile.memory_mib.map(|mib| (mib.max(1) as f64).ln());
    traits
}

impl Pooled {
    /// The priors.
    #[must_use]
    pub fn prior() -> Self {
        Self {
            interference: interference::Pooled::prior(),
            transfer: Arc::new(Transfer::prior()),
            pairs: None,
            throughput: throughput::Pooled::prior(),
            scaling: Arc::default(),
        }
    }

    /// Fits the history of `gpu_type`. Costly models are taken from `before` where little is new; `others`
    /// are the pooled models of other GPU types.
    #[must_use]
    pub fn fit<'a>(
        history: &History,
        gpu_type: &str,
        before: Option<&Self>,
        others: impl Iterator<Item = &'a Self>,
    ) -> Self {
        let (slow, power) = history.seen(gpu_type);
        let (capped, families) = history.capped(gpu_type);
        // A cap in this list is at least 1 % below the default.
        let most = capped.iter().map(|s| s.cap_w / 0.99).reduce(f64::max);
        let cap_default_w = wattle_common::datasheet::default_cap(gpu_type, most).watts;
        let watts =
            |s: &CapObservation| (s.ln_power + s.power.map_or(0.0, |(ln_ratio, _)| ln_ratio)).exp();
        let lowest = capped.iter().map(watts).reduce(f64::min);
        let idle_w = wattle_common::datasheet::idle_w(cap_default_w, lowest);
        let forms = FormChoice::choose(
            &capped,
            cap_default_w,
            before.map(|b| b.transfer.forms()),
            others.map(|o| o.transfer.forms()),
        );
        let transfer = Transfer::fit(&capped, BurstBounds { cap_default_w, idle_w })
            .with_families(&families)
            .with_forms(forms);
        let interference = interference::Pooled::fit(&slow, &power);
        let kept = before.and_then(|b| b.pairs.clone());
        let news = history.pair_news(gpu_type);
        let fresh = kept.as_ref().map_or(news == 0, |kept| {
            let rows = kept.pairs.rows() as f64;
            (news.saturating_sub(kept.news) as f64) < (PAIRS_NEWS * rows).max(1.0)
        });
        let pairs =
            if fresh { kept } else { fit_pairs(history, gpu_type, &interference, kept.as_deref()) };
        let scaling: Vec<_> = history.scaling(gpu_type).collect();
        let few = scaling.iter().filter(|_| scaling.len() <= FEW);
        Self {
            interference,
            transfer: Arc::new(transfer),
            pairs,
            throughput: throughput::Pooled::fit(scaling.iter().map(|(_, c)| *c)),
            scaling: Arc::new(few.map(|(id, c)| ((*id).clone(), (*c).clone())).collect()),
        }
    }

    /// Whether `history` has pairs that were not fitted.
    #[must_use]
    pub fn is_behind(&self, history: &History, gpu_type: &str) -> bool {
        self.pairs.as_ref().map_or(0, |p| p.news) != history.pair_news(gpu_type)
    }

    /// Natural logarithm of the slowdown of `me` co-located with `partner` only, and its variance: the
    /// expectation from busy shares, corrected by the pairs seen. `shares_known`: both busy shares were
    /// observed.
    #[must_use]
    pub fn pair(
        &self,
        me: &PairTraits,
        partner: &PairTraits,
        mix: &TenantLoad,
        shares_known: bool,
    ) -> (f64, f64) {
        let (mean, variance) = self.interference.slowdown(mix, &[]);
        let Some(fitted) = &self.pairs else { return (mean, variance) };
        let (z, z_variance) = fitted.pairs.at(me, partner, shares_known);
        // Sharing a GPU never speeds up a job.
        ((mean + z * variance.sqrt()).max(0.0), variance * z_variance)
    }

    /// The pooled models without the readings of `job`, which would count twice in its own fit.
    #[must_use]
    pub fn without(mut all: Arc<Self>, job: &JobId) -> Arc<Self> {
        if all.scaling.iter().any(|(id, _)| id == job) {
            let others = all.scaling.iter().filter(|(id, _)| id != job);
            let throughput = throughput::Pooled::fit(others.map(|(_, c)| c));
            Arc::make_mut(&mut all).throughput = throughput;
        }
        all
    }
}

fn fit_pairs(
    history: &History,
    gpu_type: &str,
    interference: &interference::Pooled,
    before: Option<&FittedPairs>,
) -> Option<Arc<FittedPairs>> {
    let mut index: BTreeMap<&WorkloadId, usize> = BTreeMap::new();
    let mut profiles: Vec<Arc<Profile>> = Vec::new();
    let mut known: Vec<PairTraits> = Vec::new();
    let mut enter = |class| {
        *index.entry(class).or_insert_with(|| {
            let profile = history.profile(gpu_type, class, None).unwrap_or_default();
            known.push(traits(Some(class), &profile));
            profiles.push(profile);
            known.len() - 1
        })
    };
    let mut seen: Vec<(Timestamp, usize, usize, Gaussian)> = Vec::new();
    for (class, kept) in history.classes(gpu_type) {
        for (partner, at, stored) in kept.colocated.iter() {
            seen.push((at, enter(class), enter(partner), stored));
        }
    }
    // The newest ones, in an order that does not depend on the order of arrival.
    seen.sort_by_key(|(at, me, partner, _)| (std::cmp::Reverse(*at), *me, *partner));
    let rows: Vec<Row> = seen
        .into_iter()
        .take(ROWS_MAX)
        .map(|(_, me, partner, stored)| {
            let ((own, own_known), (other, other_known)) =
                (busy(&profiles[me]), busy(&profiles[partner]));
            let (mean, variance) = interference.slowdown(&TenantLoad::pair(own, other), &[]);
            Row {
                me,
                partner,
                z: (stored.mean - mean) / variance.sqrt(),
                sd: stored.sd,
                shares_known: own_known && other_known,
            }
        })
        .collect();
    let tune = before.is_none_or(|b| rows.len() as f64 >= PAIRS_TUNE * b.tuned_at as f64);
    let start = match before {
        Some(before) if !tune => before.pairs.constants(),
        _ => Constants::prior_means(),
    };
    let pairs = Pairs::fit(&known, &rows, start, tune)?;
    let tuned_at = before.filter(|_| !tune).map_or(rows.len(), |b| b.tuned_at);
    Some(Arc::new(FittedPairs { pairs, news: history.pair_news(gpu_type), tuned_at }))
}
