//! Slowdown of one tenant co-located with one other, from all pairs seen on a GPU type: a Gaussian process over
//! ordered pairs of workload classes.
//!
//! z is the deviation of an observed ln slowdown from the expectation of [`super::interference`], in
//! units of that expectation's standard deviation. Two pairs are similar as far as the slowed jobs are
//! similar and their partners are:
//!
//! ```text
//! k(x, y)           = [ family (f + (1-f) batch) + h rate physical ] / (1 + h)      of two jobs
//! k((a,b), (a',b')) = [ k(a,a') k(b,b') + w1 (k(a,a') + k(b,b'))
//!                       + w2 ([a = a'] k(b,b') + k(a,a') [b = b']) ] / (1 + 2 w1 + 2 w2)
//! z(a,b)            = process + a common level of all pairs with unknown busy shares
//! ```
//!
//! family: 1 for equal network names; batch, rate: Gaussian in the distance of log2 batch size and of
//! ln exclusive steps/s; physical: Gaussian in busy share, memory traffic and memory, where known,
//! which relate families that were not seen. The partner's slowdown is the same function with its
//! arguments exchanged.
//!
//! **Hyperparameters** are the most probable ones given the rows of each fit: marginal likelihood with
//! the width integrated out (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006,
//! section 5.4) times a prior wide enough for some tens of pairs to override: every distance is one
//! unit (a doubling, a factor of e), every weight one, each with a standard deviation of a factor of
//! four. Pairs that are left out therefore do not influence them.
//!
//! The product form suits ordered pairs; on the Gavel throughput tables (stanford-futuredata/gavel,
//! MIT) it was better than sums and trees.

use wattle_common::id::WorkloadId;
use wattle_common::numerics::{Cholesky, cholesky};

use crate::workload_name::WorkloadName;

/// Largest number of pairs of a fit: its time grows with their cube, its memory with their square.
pub const ROWS_MAX: usize = 700;

/// Factor on the similarity where only one of two jobs has a known figure.
const HALF_KNOWN: f64 = 0.5;
/// Similarity of two variants of one network and batch.
const VARIANT: f64 = 0.9;
/// Length scales of busy share, memory traffic share and ln memory.
const BUSY_SCALE: f64 = 0.2;
const MEMORY_BUSY_SCALE: f64 = 0.2;
const LN_MEMORY_SCALE: f64 = 1.0;
/// Variance of the common level of pairs with unknown busy shares, in units of the prior's.
const LEVEL_VARIANCE: f64 = 2.0;
/// Weight of the prior's width, in rows.
const WIDTH_PRIOR: f64 = 8.0;
/// A window's own noise is part of the fitted noise; rows with a larger standard deviation of the
/// logarithm than this have less weight.
const ROW_SD: f64 = 0.04;
/// Standard deviation of the prior of each hyperparameter's logarithm: a factor of four.
const CONSTANT_SD: f64 = 1.386;
/// Step lengths of the search, in the hyperparameter's logarithm: factors of 4, 2 and the root of 2.
const STEPS: [f64; 3] = [1.386, 0.693, 0.347];
/// Passes over all hyperparameters with one step length.
const ROUNDS: usize = 2;
/// Smallest accepted gain in the logarithm of the likelihood.
const GAIN_MIN: f64 = 0.05;
/// Largest number of pairs that the search uses, evenly spread: seven hyperparameters need no more,
/// and it evaluates the likelihood about sixty times.
const SEARCHED_MAX: usize = 256;

/// Figures by which jobs are compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairTraits {
    class: Option<WorkloadId>,
    family: Option<String>,
    variant: String,
    log2_batch: Option<f64>,
    /// Natural logarithm of exclusive steps/s, on the fewest GPUs.
    pub ln_rate: Option<f64>,
    /// Exclusive busy share, 0 to 1.
    pub busy: Option<f64>,
    /// Exclusive memory traffic share, 0 to 1.
    pub memory_busy: Option<f64>,
    /// Natural logarithm of peak device memory, MiB.
    pub ln_memory: Option<f64>,
}

impl PairTraits {
    /// PairTraits that follow from the name of a declared class.
    #[must_use]
    pub fn named(class: Option<&WorkloadId>) -> Self {
        let Some(class) = class else { return Self::default() };
        let name = WorkloadName::of(class.as_str());
        Self {
            class: Some(class.clone()),
            family: Some(name.family.to_owned()),
            variant: name.variant.to_owned(),
            log2_batch: name.batch.map(|b| f64::from(b).log2()),
            ..Self::default()
        }
    }

    fn same_class(&self, other: &Self) -> bool {
        self.class.is_some() && self.class == other.class
    }
}

/// An observed pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The slowed job: an index into the fit's traits.
    pub me: usize,
    /// Its partner.
    pub partner: usize,
    /// Deviation of ln slowdown from the expectation, in the expectation's standard deviations.
    pub z: f64,
    /// Standard deviation of the observed logarithm.
    pub sd: f64,
    /// Whether the expectation was made with both busy shares known.
    pub shares_known: bool,
}

/// Hyperparameters of the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Length scale of log2 batch size.
    pub batch: f64,
    /// Length scale of ln rate.
    pub rate: f64,
    /// Similarity of jobs of one family with unlike batches.
    pub family: f64,
    /// Weight of similarity across families.
    pub beyond: f64,
    /// Weight of the additive effect of each of the two jobs.
    pub single: f64,
    /// Weight of effects of one class only.
    pub own: f64,
    /// Variance that no similarity explains.
    pub noise: f64,
}

/// Accessor of one hyperparameter.
type Coordinate = fn(&mut Constants) -> &mut f64;

impl Constants {
    /// Prior means.
    #[must_use]
    pub const fn prior_means() -> Self {
        Self { batch: 1.0, rate: 1.0, family: 0.5, beyond: 1.0, single: 1.0, own: 1.0, noise: 0.1 }
    }

    const ALL: [Coordinate; 7] = [
        |c| &mut c.beyond,
        |c| &mut c.rate,
        |c| &mut c.batch,
        |c| &mut c.own,
        |c| &mut c.single,
        |c| &mut c.noise,
        |c| &mut c.family,
    ];

    /// Logarithm of the prior density, up to a constant.
    fn ln_prior_density(mut self) -> f64 {
        let mut prior = Self::prior_means();
        let off = |of: &Coordinate| (*of(&mut self) / *of(&mut prior)).ln() / CONSTANT_SD;
        Self::ALL.iter().map(off).map(|off| -0.5 * off * off).sum()
    }

    /// With one hyperparameter multiplied by e^`step`; a similarity stays below 1.
    fn moved(mut self, which: Coordinate, step: f64) -> Self {
        *which(&mut self) *= step.exp();
        self.family = self.family.min(0.99);
        self
    }

    /// Value of the unnormalised kernel of a pair with itself.
    fn scale(&self) -> f64 {
        1.0 + 2.0 * self.single + 2.0 * self.own
    }

    /// Similarity of two jobs, 0 to 1.
    fn similarity(&self, x: &PairTraits, y: &PairTraits) -> f64 {
        let gauss = |d: f64, scale: f64| (-0.5 * (d / scale).powi(2)).exp();
        // Two unknown values count as equal, one unknown value as `mixed`; both keep a valid kernel.
        let by = |x: Option<f64>, y: Option<f64>, scale: f64, mixed: f64| match (x, y) {
            (Some(x), Some(y)) => mixed + (1.0 - mixed) * gauss(x - y, scale),
            (None, None) => 1.0,
            _ => mixed,
        };
        let mut alike = 0.0;
        if x.family.is_some() && x.family == y.family {
            let variant = if x.variant == y.variant { 1.0 } else { VARIANT };
            let batch = by(x.log2_batch, y.log2_batch, self.batch, 0.0);
            alike += self.family + (1.0 - self.family) * batch * variant;
        }
        let physical = by(x.busy, y.busy, BUSY_SCALE, HALF_KNOWN)
            * by(x.memory_busy, y.memory_busy, MEMORY_BUSY_SCALE, HALF_KNOWN)
            * by(x.ln_memory, y.ln_memory, LN_MEMORY_SCALE, HALF_KNOWN);
        alike += self.beyond * physical * by(x.ln_rate, y.ln_rate, self.rate, 0.0);
        alike / (1.0 + self.beyond)
    }

    /// Similarity of two pairs, from the similarity and identity of their jobs.
    fn pairs(&self, me: (f64, bool), partner: (f64, bool)) -> f64 {
        let own = if me.1 { partner.0 } else { 0.0 } + if partner.1 { me.0 } else { 0.0 };
        (me.0 * partner.0 + self.single * (me.0 + partner.0) + self.own * own) / self.scale()
    }
}

/// The process fitted to the pairs of one GPU type.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs {
    constants: Constants,
    traits: Vec<PairTraits>,
    rows: Vec<Row>,
    /// The rows' covariance, factored.
    factor: Cholesky,
    /// Inverse covariance times z.
    weights: Vec<f64>,
    /// Factor of the variances relative to the prior's.
    width: f64,
    likelihood: f64,
}

impl Pairs {
    /// Fits `rows` over `traits` with hyperparameters `start`; with `tune`, searches for better ones.
    /// `None` without usable rows. Rows beyond [`ROWS_MAX`] are ignored, so callers sort by relevance.
    ///
    /// # Panics
    /// If a row refers to an index beyond `traits`.
    #[must_use]
    pub fn fit(traits: &[PairTraits], rows: &[Row], start: Constants, tune: bool) -> Option<Self> {
        let usable = |r: &&Row| r.z.is_finite() && r.sd.is_finite() && r.sd >= 0.0;
        let rows: Vec<Row> = rows.iter().filter(usable).take(ROWS_MAX).copied().collect();
        if rows.is_empty() {
            return None;
        }
        let constants = if tune { Self::search(traits, &rows, start) } else { start };
        Self::solve(traits, &rows, constants)
    }

    /// Most probable hyperparameters near `start`, by coordinate search with decreasing steps.
    fn search(traits: &[PairTraits], rows: &[Row], start: Constants) -> Constants {
        let every = rows.len().div_ceil(SEARCHED_MAX);
        let some: Vec<Row> = rows.iter().step_by(every).copied().collect();
        let probable =
            |c: Constants| Some(Self::solve(traits, &some, c)?.likelihood + c.ln_prior_density());
        let Some(mut most) = probable(start) else { return start };
        let mut best = start;
        for step in STEPS {
            for _ in 0..ROUNDS {
                let before = most;
                for which in Constants::ALL {
                    for step in [step, -step] {
                        let tried = best.moved(which, step);
                        if let Some(found) = probable(tried).filter(|p| *p > most + GAIN_MIN) {
                            (best, most) = (tried, found);
                            break;
                        }
                    }
                }
                if most <= before {
                    break;
                }
            }
        }
        best
    }

    fn solve(traits: &[PairTraits], rows: &[Row], constants: Constants) -> Option<Self> {
        let count = traits.len();
        let mut alike = vec![(0.0, false); count * count];
        for i in 0..count {
            for j in 0..=i {
                let (x, y) = (&traits[i], &traits[j]);
                let of = (if i == j { 1.0 } else { constants.similarity(x, y) }, x.same_class(y));
                alike[i * count + j] = of;
                alike[j * count + i] = of;
            }
        }
        let mut covariance = Vec::with_capacity(cholesky::row_start(rows.len()));
        for (i, row) in rows.iter().enumerate() {
            for other in &rows[..=i] {
                let me = alike[row.me * count + other.me];
                let partner = alike[row.partner * count + other.partner];
                covariance.push(constants.pairs(me, partner) + level(row, other.shares_known));
            }
            let last = covariance.len() - 1;
            let unsure = (row.sd / ROW_SD).powi(2).max(1.0);
            covariance[last] += constants.noise / constants.scale() * unsure;
        }
        let factor = Cholesky::factor(covariance, rows.len())?;
        let mut weights: Vec<f64> = rows.iter().map(|r| r.z).collect();
        factor.solve_lower(&mut weights);
        let squares: f64 = weights.iter().map(|w| w * w).sum();
        factor.solve_upper(&mut weights);
        // The width has an inverse gamma prior around 1 and is integrated out.
        let n = WIDTH_PRIOR + rows.len() as f64;
        let width = (WIDTH_PRIOR + squares) / n;
        let likelihood = -0.5 * n * width.ln() - factor.half_ln_determinant();
        let finite = likelihood.is_finite();
        let (traits, rows) = (traits.to_vec(), rows.to_vec());
        finite.then_some(Self { constants, traits, rows, factor, weights, width, likelihood })
    }

    /// Hyperparameters in use.
    #[must_use]
    pub fn constants(&self) -> Constants {
        self.constants
    }

    /// Number of pairs in the fit.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// z of `me` co-located with `partner` and its predictive variance, noise included. Costs one solve,
    /// quadratic in the number of rows.
    #[must_use]
    pub fn at(&self, me: &PairTraits, partner: &PairTraits, shares_known: bool) -> (f64, f64) {
        let of = |x: &PairTraits| -> Vec<(f64, bool)> {
            self.traits.iter().map(|t| (self.constants.similarity(x, t), x.same_class(t))).collect()
        };
        let (by_me, by_partner) = (of(me), of(partner));
        let mut k: Vec<f64> = self
            .rows
            .iter()
            .map(|r| {
                let process = self.constants.pairs(by_me[r.me], by_partner[r.partner]);
                process + level(r, shares_known)
            })
            .collect();
        let mean: f64 = k.iter().zip(&self.weights).map(|(k, w)| k * w).sum();
        self.factor.solve_lower(&mut k);
        let known: f64 = k.iter().map(|v| v * v).sum();
        let own = 1.0 + if shares_known { 0.0 } else { LEVEL_VARIANCE };
        let noise = self.constants.noise / self.constants.scale();
        (mean, self.width * ((own - known).max(0.0) + noise))
    }
}

/// Common variance of two pairs whose busy shares are unknown.
fn level(row: &Row, other_known: bool) -> f64 {
    if row.shares_known || other_known { 0.0 } else { LEVEL_VARIANCE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(name: &str, ln_rate: f64) -> PairTraits {
        let class = WorkloadId::new(name).unwrap();
        PairTraits { ln_rate: Some(ln_rate), ..PairTraits::named(Some(&class)) }
    }

    /// Truth of families and batches: heavy jobs slow others, sensitive ones are slowed.
    fn truth(me: usize, partner: usize) -> f64 {
        let heavy = [0.2, 1.0, 2.0][partner / 4] * (1.0 + 0.1 * (partner % 4) as f64);
        heavy * [0.5, 1.0, 1.5][me / 4]
    }

    fn jobs() -> Vec<PairTraits> {
        let name = |i: usize| format!("{}-b{}", ["lm", "resnet", "gan"][i / 4], 16 << (i % 4));
        (0..12).map(|i| job(&name(i), (i / 4) as f64)).collect()
    }

    fn rows(but: impl Fn(usize, usize) -> bool) -> Vec<Row> {
        let all = (0..12).flat_map(|a| (0..12).map(move |b| (a, b)));
        all.filter(|(a, b)| !but(*a, *b))
            .map(|(me, partner)| Row {
                me,
                partner,
                z: truth(me, partner),
                sd: 0.02,
                shares_known: false,
            })
            .collect()
    }

    #[test]
    fn left_out_pair_follows_its_relatives_and_an_unknown_family_is_wide() {
        let (jobs, out) = (jobs(), |a: usize, b: usize| (a + 5 * b).is_multiple_of(7));
        let pairs = Pairs::fit(&jobs, &rows(out), Constants::prior_means(), true).unwrap();
        let mut off = 0.0f64;
        for (a, b) in (0..144).map(|i| (i / 12, i % 12)).filter(|(a, b)| out(*a, *b)) {
            let (z, variance) = pairs.at(&jobs[a], &jobs[b], false);
            off = off.max((z - truth(a, b)).abs());
            assert!(variance > 0.0 && variance < 0.3, "{a} {b}: {variance}");
        }
        assert!(off < 0.25, "{off}");
        let (_, known) = pairs.at(&jobs[0], &jobs[11], false);
        let (_, stranger) = pairs.at(&job("vit-b16", 9.0), &jobs[11], false);
        let (_, two) = pairs.at(&job("vit-b16", 9.0), &job("moe-b8", -9.0), false);
        assert!(stranger > 3.0 * known && two > stranger, "{known} {stranger} {two}");
    }

    #[test]
    fn left_out_job_follows_its_family() {
        let jobs = jobs();
        let out = |a: usize, b: usize| a == 5 || b == 5;
        let pairs = Pairs::fit(&jobs, &rows(out), Constants::prior_means(), true).unwrap();
        for b in (0..12).filter(|b| *b != 5) {
            let ((slowed, _), (slows, _)) =
                (pairs.at(&jobs[5], &jobs[b], false), pairs.at(&jobs[b], &jobs[5], false));
            assert!((slowed - truth(5, b)).abs() < 0.4, "{slowed} {}", truth(5, b));
            assert!((slows - truth(b, 5)).abs() < 0.4, "{slows} {}", truth(b, 5));
        }
    }

    #[test]
    fn measured_figures_relate_unknown_families() {
        // No common family and equal rates: only busy share and memory separate heavy from light jobs.
        let known = |i: usize| PairTraits {
            busy: Some(if i.is_multiple_of(2) { 0.95 } else { 0.15 }),
            memory_busy: Some(if i.is_multiple_of(2) { 0.6 } else { 0.05 }),
            ln_memory: Some(9.0),
            ..job(&format!("net{i}"), 0.0)
        };
        let jobs: Vec<PairTraits> = (0..10).map(known).collect();
        let heavy = |i: usize| i.is_multiple_of(2);
        let rows: Vec<Row> = (0..100)
            .map(|i| (i / 10, i % 10))
            .map(|(me, partner)| Row {
                me,
                partner,
                z: if heavy(me) && heavy(partner) { 1.5 } else { -0.5 },
                sd: 0.02,
                shares_known: true,
            })
            .collect();
        let pairs = Pairs::fit(&jobs, &rows, Constants::prior_means(), true).unwrap();
        let (two_heavy, _) = pairs.at(&known(20), &known(22), true);
        let (two_light, _) = pairs.at(&known(21), &known(23), true);
        assert!(two_heavy > two_light + 0.5, "{two_heavy} {two_light}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// With any combination of known figures the covariance is valid and predictions are finite.
        #[test]
        fn any_traits_give_finite_predictions(
            figures in prop::collection::vec(
                prop::option::of(-3.0f64..3.0).prop_flat_map(|a| {
                    (Just(a), prop::option::of(0.0f64..1.0), 0usize..4)
                }), 1..8),
            z in prop::collection::vec(-1e3f64..1e3, 1..40)
        ) {
            let names = ["a-b16", "a", "a-b32-x", "b-b16"];
            let jobs: Vec<PairTraits> = figures.iter().map(|(rate, busy, name)| PairTraits {
                ln_rate: *rate,
                busy: *busy,
                ..PairTraits::named(Some(&WorkloadId::new(names[*name]).unwrap()))
            }).collect();
            let rows: Vec<Row> = z.iter().enumerate().map(|(i, z)| Row {
                me: i % jobs.len(),
                partner: (i / jobs.len()) % jobs.len(),
                z: *z,
                sd: 0.01 * i as f64,
                shares_known: i.is_multiple_of(3),
            }).collect();
            let pairs = Pairs::fit(&jobs, &rows, Constants::prior_means(), true);
            prop_assert!(pairs.is_some());
            let (z, variance) = pairs.unwrap().at(&PairTraits::default(), &jobs[0], false);
            prop_assert!(z.is_finite() && variance.is_finite() && variance > 0.0);
        }
    }
}
