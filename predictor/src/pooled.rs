//! What is pooled over all jobs seen on one kind of card, for each model that pools.
//!
//! A job's own fit is cheap and made with each window; these fits read the whole history and are
//! made apart, at a pace of their own. A model that pools gets a field here, with what it believes
//! before anything was seen and how it is fitted from the history; the formulas are the models'.

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_common::Timestamp;
use wattle_common::id::{JobId, WorkloadId};

use crate::history::{History, Profile};
use crate::model::interference::Mix;
use crate::model::pairs::{Constants, Pairs, ROWS_MAX, Row, Traits};
use crate::model::transfer::{Bounds, Seen, Transfer};
use crate::model::{interference, throughput};
use crate::prior;
use wattle_common::datasheet;

/// Pairs are fitted anew once so large a part of the rows is news: the fit costs their cube.
const PAIRS_NEWS: f64 = 0.2;
/// Their constants are looked for anew once there are so many times the rows.
const PAIRS_TUNE: f64 = 1.5;
/// Among more jobs than these, one more or less moves what is pooled by nothing that matters.
const FEW: usize = 64;

/// Everything pooled, for one kind of card.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    /// What tenants do to each other, by their number and busy shares.
    pub interference: interference::Pooled,
    /// What caps do to a job that was not seen under them; shared with the jobs' own models.
    pub transfer: Arc<Transfer>,
    /// What each class does to each other, beyond that.
    pairs: Option<Arc<FittedPairs>>,
    /// How jobs scale.
    pub throughput: throughput::Pooled,
    /// What each job showed of that, while they are few enough for one to weigh.
    scaling: Arc<Vec<(JobId, throughput::Constants)>>,
}

#[derive(Clone, Debug, PartialEq)]
struct FittedPairs {
    pairs: Pairs,
    /// What the history had learned when they were fitted.
    news: u64,
    /// How many rows their constants rest on.
    tuned_at: usize,
}

/// The busy share of a job or class, and whether it is more than a belief.
fn busy(profile: &Profile) -> (crate::fit::Belief, bool) {
    profile.busy.map_or((prior::UTILIZATION, false), |busy| (busy, true))
}

/// What `profile` makes of `class`.
#[must_use]
pub fn traits(class: Option<&WorkloadId>, profile: &Profile) -> Traits {
    let mut traits = Traits::named(class);
    traits.ln_rate = profile.levels.first_key_value().map(|(_, level)| level.mean);
    traits.busy = profile.busy.map(|b| b.mean);
    traits.memory_busy = profile.memory_busy;
    traits.ln_memory = profile.memory_mib.map(|mib| (mib.max(1) as f64).ln());
    traits
}

impl Pooled {
    /// What is believed before anything was seen.
    #[must_use]
    pub fn believed() -> Self {
        Self {
            interference: interference::Pooled::believed(),
            transfer: Arc::new(Transfer::believed()),
            pairs: None,
            throughput: throughput::Pooled::believed(),
            scaling: Arc::default(),
        }
    }

    /// Fits all that `history` holds of `kind`. Where little is new since `before`, what is dear to
    /// fit is taken from there; with none, all is fitted.
    #[must_use]
    pub fn fit(history: &History, kind: &str, before: Option<&Self>) -> Self {
        let (slow, power) = history.seen(kind);
        let (capped, families) = history.capped(kind);
        // What counts as capped is at least one per cent below the default.
        let most = capped.iter().map(|s| s.cap_w / 0.99).reduce(f64::max);
        let cap_default_w = datasheet::default_cap(kind, most).watts;
        let watts = |s: &Seen| (s.ln_power + s.power.map_or(0.0, |(ln_ratio, _)| ln_ratio)).exp();
        let lowest = capped.iter().map(watts).reduce(f64::min);
        let idle_w = datasheet::idle_w(cap_default_w, lowest);
        let transfer =
            Transfer::fit(&capped, Bounds { cap_default_w, idle_w }).with_families(&families);
        let interference = interference::Pooled::fit(&slow, &power);
        let kept = before.and_then(|b| b.pairs.clone());
        let news = history.pair_news(kind);
        let fresh = kept.as_ref().map_or(news == 0, |kept| {
            let rows = kept.pairs.rows() as f64;
            (news.saturating_sub(kept.news) as f64) < (PAIRS_NEWS * rows).max(1.0)
        });
        let pairs =
            if fresh { kept } else { fit_pairs(history, kind, &interference, kept.as_deref()) };
        let scaling: Vec<_> = history.scaling(kind).collect();
        let few = scaling.iter().filter(|_| scaling.len() <= FEW);
        Self {
            interference,
            transfer: Arc::new(transfer),
            pairs,
            throughput: throughput::Pooled::fit(scaling.iter().map(|(_, c)| *c)),
            scaling: Arc::new(few.map(|(id, c)| ((*id).clone(), (*c).clone())).collect()),
        }
    }

    /// Whether `history` knows more of pairs than was fitted.
    #[must_use]
    pub fn is_behind(&self, history: &History, kind: &str) -> bool {
        self.pairs.as_ref().map_or(0, |p| p.news) != history.pair_news(kind)
    }

    /// The logarithm of the slow-down of `me` beside `partner` alone, and its variance: what busy
    /// shares let expect, corrected by the pairs seen. `shares_known`: both busy shares are more
    /// than a belief.
    #[must_use]
    pub fn pair(&self, me: &Traits, partner: &Traits, mix: &Mix, shares_known: bool) -> (f64, f64) {
        let (mean, variance) = self.interference.slowdown(mix, &[]);
        let Some(fitted) = &self.pairs else { return (mean, variance) };
        let (z, z_variance) = fitted.pairs.at(me, partner, shares_known);
        // Nobody gains by company.
        ((mean + z * variance.sqrt()).max(0.0), variance * z_variance)
    }

    /// What is pooled over all jobs but `job`: its own windows must not count twice.
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
    kind: &str,
    interference: &interference::Pooled,
    before: Option<&FittedPairs>,
) -> Option<Arc<FittedPairs>> {
    let mut index: BTreeMap<&WorkloadId, usize> = BTreeMap::new();
    let mut profiles: Vec<Arc<Profile>> = Vec::new();
    let mut known: Vec<Traits> = Vec::new();
    let mut enter = |class| {
        *index.entry(class).or_insert_with(|| {
            let profile = history.profile(kind, class, None).unwrap_or_default();
            known.push(traits(Some(class), &profile));
            profiles.push(profile);
            known.len() - 1
        })
    };
    let mut seen: Vec<(Timestamp, usize, usize, crate::history::Stored)> = Vec::new();
    for (class, kept) in history.classes(kind) {
        for (partner, at, stored) in kept.beside.iter() {
            seen.push((at, enter(class), enter(partner), stored));
        }
    }
    // The newest, and in one order whatever the path was.
    seen.sort_by_key(|(at, me, partner, _)| (std::cmp::Reverse(*at), *me, *partner));
    let rows: Vec<Row> = seen
        .into_iter()
        .take(ROWS_MAX)
        .map(|(_, me, partner, stored)| {
            let ((own, own_known), (other, other_known)) =
                (busy(&profiles[me]), busy(&profiles[partner]));
            let (mean, variance) = interference.slowdown(&Mix::pair(own, other), &[]);
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
        _ => Constants::believed(),
    };
    let pairs = Pairs::fit(&known, &rows, start, tune)?;
    let tuned_at = before.filter(|_| !tune).map_or(rows.len(), |b| b.tuned_at);
    Some(Arc::new(FittedPairs { pairs, news: history.pair_news(kind), tuned_at }))
}
