//! A job's step time over GPUs, nodes and batch size.
//!
//! With n GPUs on k nodes and b samples on each GPU (global batch / n), the seconds of one global step:
//!
//! ```text
//! near = a + c b + s G(h)          G(h) = 2 (m-1)/m + kappa log2(max(h/4, 1)),   m = min(h, 4)
//! T    = near,  h = n                                    flat network
//! T    = (near^y + S^y)^(1/y),  h = n/k                  steep network and k > 1
//! S    = a S2 (min(n,4)/2)^x2 (max(n,4)/4)^e2  on two nodes,   a S2 R (n/3)^e3  on three and more
//! ```
//!
//! a: the part that does not depend on GPUs; c: computation for one sample; s: all-reduce of two GPUs,
//! whose traffic grows as 2 (n-1)/n and whose latency grows by kappa s with each doubling beyond four;
//! S: synchronisation across nodes, which overlaps with the rest by exponent y. Compute plus
//! synchronisation with an overlap exponent follows Pollux (Qiao et al., OSDI'21). That two nodes are a
//! case of their own, slower than three, and that growth is a power or a logarithm but not linear,
//! follows measured placements (petuum/adaptdl, Apache-2.0) and scaling tables (pkusys/ElasticFlow,
//! Apache-2.0).
//!
//! **Network.** The flat form is simpler and is used unless it fails: for a job seen across nodes, if it
//! fits those readings within [`FLAT_MAX`]; for other jobs, if most jobs on this GPU type have it.
//! Without any readings across nodes, the steep form.
//!
//! **Batch.** A reported batch is used. For a job that reports none, either the global batch is constant
//! or the batch on each GPU is; both are fitted, and the second is used where it is better.
//!
//! All parameters but the exponents are fitted as logarithms, hence positive, by Gauss-Newton on the
//! logarithm of time under priors pooled over similar jobs ([`Pooled`]). A measured configuration is
//! predicted by its own level.
//!
//! **Few readings.** Readings inside one node do not separate jobs that keep gaining from jobs that stop: on
//! public tables one reading on 16 GPUs at the smallest batch reduces the worst job's error by a third.
//! The interval widths on 16 and more GPUs show the value of such a reading.

pub mod form;
mod pooled;

use wattle_common::observation::JobShape;

use crate::statistics::interval::LogNormal;
use crate::statistics::regression::{Gaussian, Posterior, Row, fit, map_estimate};
use form::{Layout, Network, WIDTH, ln_time};
pub use pooled::{Constants, FLAT_MAX, FormError, POOLED, Pooled};

/// Largest number of fitted configurations; of more, an even selection over all sizes.
const FITTED_MAX: usize = 48;
/// Smallest standard deviation of a level: single readings repeat no better.
const LEVEL_SD_MIN: f64 = 0.01;
/// Difference in minus log likelihood from which on the batch on each GPU counts as constant: even odds
/// except for ties. A job that gains from more GPUs never qualifies, because with a constant batch on
/// each GPU the form never gets faster.
const SAME_LOCAL_ODDS: f64 = 0.1;
const ITERATIONS: usize = 25;

/// A shape with a known step rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// Shape.
    pub shape: JobShape,
    /// Natural logarithm of steps/s.
    pub ln_rate: LogNormal,
}

/// Step rates over all shapes.
#[derive(Clone, Debug)]
pub struct Throughput {
    known: Vec<Known>,
    /// The job's own batch, for shapes that name none.
    batch: Option<u32>,
    fitted: Option<Fitted>,
}

#[derive(Clone, Debug)]
struct Fitted {
    scale: Scale,
    network: Network,
    theta: [f64; WIDTH],
    posterior: Posterior,
    cost: f64,
    priors: [Gaussian; WIDTH],
    form: [f64; 2],
    off: [FormError; 2],
    flat_off: Option<f64>,
}

/// Reference of time and local batch: the geometric mean over the fewest GPUs.
#[derive(Clone, Copy, Debug)]
struct Scale {
    ln_time: f64,
    ln_local: f64,
    /// Whether the batch on each GPU is constant.
    same_local: bool,
    batch: Option<u32>,
}

impl Scale {
    fn of(known: &[Known], batch: Option<u32>, same_local: bool) -> Self {
        let mut scale = Self { ln_time: 0.0, ln_local: 0.0, same_local, batch };
        let fewest = known.iter().map(|k| k.shape.gpus).min().unwrap_or(1);
        let (mut time, mut local, mut n) = (0.0, 0.0, 0.0);
        for k in known.iter().filter(|k| k.shape.gpus == fewest) {
            time -= k.ln_rate.mean;
            local += scale.layout(k.shape).local.ln();
            n += 1.0;
        }
        if n > 0.0 {
            (scale.ln_time, scale.ln_local) = (time / n, local / n);
        }
        scale
    }

    fn layout(&self, shape: JobShape) -> Layout {
        let gpus = f64::from(shape.gpus.max(1));
        let global = shape.batch.or(self.batch).filter(|_| self.batch.is_some());
        let local = match global {
            Some(batch) => f64::from(batch) / gpus,
            None if self.same_local => 1.0,
            None => 1.0 / gpus,
        };
        let nodes = f64::from(shape.nodes.max(1));
        Layout { gpus, nodes, local: local * (-self.ln_local).exp() }
    }
}

/// 0 near, on one node with up to four GPUs, where the form is most accurate; else 1.
fn beyond(shape: JobShape) -> usize {
    usize::from(shape.nodes > 1 || shape.gpus > 4)
}

impl Throughput {
    /// Fits the known shapes; `batch` is the job's own as last seen. Without known shapes it predicts
    /// nothing.
    #[must_use]
    pub fn fit(known: Vec<Known>, batch: Option<u32>, pooled: &Pooled) -> Self {
        let batch = batch.or_else(|| known.iter().rev().find_map(|k| k.shape.batch));
        let fitted = (!known.is_empty()).then(|| {
            let rows = thinned(&known);
            let global = Fitted::of(&rows, batch, false, pooled);
            if batch.is_some() || rows.iter().all(|k| k.shape.gpus == rows[0].shape.gpus) {
                return global;
            }
            let local = Fitted::of(&rows, batch, true, pooled);
            if local.cost + SAME_LOCAL_ODDS < global.cost { local } else { global }
        });
        Self { known, batch, fitted }
    }

    /// Natural logarithm of steps/s; `batch` is the global one, `None` the job's own. `None` where no
    /// rate is known.
    #[must_use]
    pub fn ln_rate(&self, shape: JobShape) -> Option<LogNormal> {
        let shape = self.named(shape);
        if let Some(known) = self.known.iter().find(|k| self.named(k.shape) == shape) {
            return Some(known.ln_rate);
        }
        let fitted = self.fitted.as_ref()?;
        let (time, gradient) = ln_time(&fitted.theta, fitted.scale.layout(shape), fitted.network);
        let form = fitted.form[beyond(shape)];
        Some(LogNormal {
            mean: -(time + fitted.scale.ln_time),
            variance: fitted.variance(&gradient) + form * form,
            dof: fitted.posterior.dof(),
        })
    }

    /// Natural logarithm of what one GPU computes in a second, relative to the reference's, and its
    /// variance. `None` where no rate is known.
    #[must_use]
    pub fn ln_work_of_gpu(&self, shape: JobShape) -> Option<(f64, f64)> {
        let fitted = self.fitted.as_ref()?;
        let rate = self.ln_rate(shape)?;
        Some((rate.mean + fitted.scale.layout(self.named(shape)).local.ln(), rate.variance))
    }

    /// The same shape with the job's own batch where none is named.
    #[must_use]
    pub fn named(&self, shape: JobShape) -> JobShape {
        JobShape { batch: shape.batch.or(self.batch).filter(|_| self.batch.is_some()), ..shape }
    }

    /// What these shapes imply for the parameters that similar jobs share.
    #[must_use]
    pub fn constants(&self) -> Option<Constants> {
        self.fitted.as_ref().filter(|_| self.known.len() > 1).map(Fitted::constants)
    }
}

/// At most [`FITTED_MAX`], evenly over all sizes.
fn thinned(known: &[Known]) -> Vec<Known> {
    let mut rows = known.to_vec();
    rows.sort_by_key(|k| (k.shape.nodes, k.shape.gpus, k.shape.batch));
    if rows.len() <= FITTED_MAX {
        return rows;
    }
    (0..FITTED_MAX).map(|i| rows[i * (rows.len() - 1) / (FITTED_MAX - 1)]).collect()
}

impl Fitted {
    /// The fit with the network form that the readings, or similar jobs, support.
    fn of(rows: &[Known], batch: Option<u32>, same_local: bool, pooled: &Pooled) -> Self {
        let scale = Scale::of(rows, batch, same_local);
        if rows.iter().all(|k| k.shape.nodes <= 1) {
            return Self::under(rows, scale, pooled.network, pooled);
        }
        let flat = Self::under(rows, scale, Network::Flat, pooled);
        let (mut squares, mut n) = (0.0, 0.0);
        for k in rows.iter().filter(|k| k.shape.nodes > 1) {
            let (time, _) = ln_time(&flat.theta, scale.layout(k.shape), Network::Flat);
            squares += (time + scale.ln_time + k.ln_rate.mean).powi(2);
            n += 1.0;
        }
        let off = squares / n;
        let fitted = if off <= FLAT_MAX * FLAT_MAX {
            flat
        } else {
            Self::under(rows, scale, Network::Steep, pooled)
        };
        Self { flat_off: Some(off), ..fitted }
    }

    fn under(rows: &[Known], scale: Scale, network: Network, pooled: &Pooled) -> Self {
        let priors = pooled.priors;
        let layouts: Vec<(Layout, f64, f64)> = rows
            .iter()
            .map(|k| {
                let form = pooled.form[beyond(k.shape)];
                let level = k.ln_rate.variance.max(LEVEL_SD_MIN * LEVEL_SD_MIN);
                let y = (-k.ln_rate.mean - scale.ln_time).clamp(-12.0, 12.0);
                (scale.layout(k.shape), y, (level + form * form).sqrt())
            })
            .collect();
        let start = priors.map(|b| b.mean);
        let mut best: Option<([f64; WIDTH], f64)> = None;
        // Two starting points, little and much synchronisation: the objective may have two minima.
        for inside in [-2.5, -0.7] {
            let mut theta = start;
            theta[form::INSIDE] = inside;
            let found = descend(theta, &layouts, &priors, network);
            if best.is_none_or(|b| found.1 < b.1) {
                best = Some(found);
            }
        }
        let (theta, cost) = best.unwrap_or((start, f64::MAX));
        let form = pooled.form;
        let linear = linear(&theta, &layouts, network);
        let posterior = fit(&linear, &priors);
        let mut off = [FormError::default(); 2];
        for (known, row) in rows.iter().zip(&linear) {
            let (at, variance) = posterior.at(&row.x);
            let own = row.sd * row.sd;
            // The residual of a fitted reading is smaller than its noise.
            let left = (1.0 - variance / posterior.noise_ratio().powi(2) / own).max(0.05);
            let far = beyond(known.shape);
            let of = &mut off[far];
            let square = (row.y - at).powi(2) / left - (own - form[far] * form[far]);
            of.readings += 1;
            of.square += (square - of.square) / f64::from(of.readings);
        }
        let flat_off = None;
        Self { scale, network, theta, posterior, cost, priors, form, off, flat_off }
    }

    /// Residual variance relative to the stated one. Readings that agree better than stated do not make
    /// parameters known only from priors more precise.
    fn noise(&self) -> f64 {
        self.posterior.noise_ratio().powi(2)
    }

    fn variance(&self, gradient: &[f64; WIDTH]) -> f64 {
        self.posterior.at(gradient).1 / self.noise().min(1.0)
    }

    /// Estimates of the shared parameters from the readings only: the posterior without its prior.
    fn constants(&self) -> Constants {
        let one = |i: usize| {
            let prior = self.priors[i];
            let before = 1.0 / (prior.sd * prior.sd);
            let after = self.noise() / self.posterior.marginal(i).sd.powi(2);
            let precision = after - before;
            if precision <= 1e-2 * before {
                return Gaussian { mean: prior.mean, sd: 1e3 };
            }
            let mean = (self.theta[i] * after - prior.mean * before) / precision;
            Gaussian { mean, sd: (self.noise().max(1.0) / precision).sqrt() }
        };
        let mut values = [Gaussian { mean: 0.0, sd: 1e3 }; POOLED];
        for (i, value) in values.iter_mut().enumerate() {
            *value = one(i + WIDTH - POOLED);
        }
        Constants { values, flat_off: self.flat_off, off: self.off }
    }
}

/// Rows of the fit linearised at `theta`.
fn linear(theta: &[f64; WIDTH], layouts: &[(Layout, f64, f64)], network: Network) -> Vec<Row> {
    layouts
        .iter()
        .map(|(place, y, sd)| {
            let (time, x) = ln_time(theta, *place, network);
            let at: f64 = x.iter().zip(theta).map(|(x, t)| x * t).sum();
            Row { x: x.to_vec(), y: y - time + at, sd: *sd }
        })
        .collect()
}

/// Minus log posterior: half the sum of squared standardised residuals, priors included.
fn cost(
    theta: &[f64; WIDTH],
    layouts: &[(Layout, f64, f64)],
    priors: &[Gaussian; WIDTH],
    network: Network,
) -> f64 {
    let readings: f64 =
        layouts.iter().map(|(p, y, sd)| ((y - ln_time(theta, *p, network).0) / sd).powi(2)).sum();
    let penalty: f64 = theta.iter().zip(priors).map(|(t, b)| ((t - b.mean) / b.sd).powi(2)).sum();
    (readings + penalty) / 2.0
}

/// Gauss-Newton with step halving.
fn descend(
    mut theta: [f64; WIDTH],
    layouts: &[(Layout, f64, f64)],
    priors: &[Gaussian; WIDTH],
    network: Network,
) -> ([f64; WIDTH], f64) {
    let mut now = cost(&theta, layouts, priors, network);
    for _ in 0..ITERATIONS {
        let wanted = map_estimate(&linear(&theta, layouts, network), priors);
        let longest = theta.iter().zip(&wanted).map(|(t, w)| (w - t).abs()).fold(0.0, f64::max);
        let mut length = (1.5 / longest.max(1e-12)).min(1.0);
        let mut helped = false;
        for _ in 0..8 {
            let mut next = theta;
            for (n, w) in next.iter_mut().zip(&wanted) {
                *n += length * (w - *n);
            }
            let then = cost(&next, layouts, priors, network);
            if then < now {
                helped = now - then > 1e-5 * (1.0 + now);
                (theta, now) = (next, then);
                break;
            }
            length /= 2.0;
        }
        if !helped {
            break;
        }
    }
    (theta, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(gpus: u32, nodes: u32, batch: Option<u32>, rate: f64) -> Known {
        let ln_rate = LogNormal { mean: rate.ln(), variance: 1e-4, dof: 10.0 };
        Known { shape: JobShape { gpus, nodes, batch }, ln_rate }
    }

    fn fitted(known: Vec<Known>) -> Throughput {
        Throughput::fit(known, None, &Pooled::prior())
    }

    fn rate(of: &Throughput, gpus: u32, nodes: u32, batch: Option<u32>) -> f64 {
        of.ln_rate(JobShape { gpus, nodes, batch }).unwrap().mean.exp()
    }

    /// Truth of the same form: fixed part, computation for a sample, all-reduce inside a node.
    fn truth(gpus: u32, batch: u32) -> f64 {
        let g = f64::from(gpus);
        let few = g.min(4.0);
        let steps = 2.0 * (few - 1.0) / few + 0.75 * (g / 4.0).max(1.0).log2();
        1.0 / (0.03 + 0.002 * f64::from(batch) / g + 0.008 * steps)
    }

    #[test]
    fn truth_of_the_same_form_is_recovered_at_other_batches_and_counts() {
        let seen = [1u32, 2, 4].into_iter().flat_map(|g| [64u32, 256].map(|b| (g, b)));
        let t = fitted(seen.map(|(g, b)| known(g, 1, Some(b), truth(g, b))).collect());
        for (g, b) in [(1u32, 128u32), (4, 128), (8, 64), (8, 256), (16, 64)] {
            let error = rate(&t, g, 1, Some(b)) / truth(g, b) - 1.0;
            assert!(error.abs() < 0.03, "{g} GPUs at {b}: {error:+.3}");
        }
        let measured = rate(&t, 4, 1, Some(64)) / truth(4, 64) - 1.0;
        assert!(measured.abs() < 1e-9, "a measured shape is predicted by its level");
        assert!(
            t.ln_rate(JobShape { gpus: 16, nodes: 1, batch: Some(64) }).unwrap().variance.sqrt()
                > 0.09
        );
    }

    #[test]
    fn without_reported_batches_the_global_batch_is_constant() {
        let t = fitted([1, 2, 8].map(|g| known(g, 1, None, truth(g, 256))).to_vec());
        for g in [4u32, 16] {
            let error = rate(&t, g, 1, None) / truth(g, 256) - 1.0;
            assert!(error.abs() < 0.10, "{g} GPUs: {error:+.3}");
        }
    }

    #[test]
    fn one_shape_gives_wide_intervals_elsewhere() {
        let t = fitted(vec![known(1, 1, None, 10.0)]);
        let at =
            |gpus| t.ln_rate(JobShape { gpus, nodes: 1, batch: None }).unwrap().estimate(1e-9, 1e9);
        let eight = at(8);
        assert!(eight.mean > 10.0 && eight.mean < 80.0, "{eight:?}");
        assert!(eight.high / eight.low > 2.0, "{eight:?}");
        assert!(at(1).high / at(1).low < 1.1, "{:?}", at(1));
        assert!(t.constants().is_none());
    }

    #[test]
    fn job_with_a_constant_local_batch_does_not_gain() {
        let t = fitted(vec![known(1, 1, None, 10.0), known(4, 1, None, 9.4)]);
        assert!((rate(&t, 8, 1, None) / 9.3 - 1.0).abs() < 0.1, "{}", rate(&t, 8, 1, None));
        let reported = fitted(vec![known(1, 1, Some(32), 10.0), known(4, 1, Some(128), 9.4)]);
        let eight = rate(&reported, 8, 1, Some(256));
        assert!((eight / 9.2 - 1.0).abs() < 0.1, "{eight}");
        assert!(rate(&reported, 8, 1, Some(64)) > eight, "a smaller batch has a shorter step");
    }

    #[test]
    fn network_form_follows_readings_across_nodes() {
        let inside = || [1u32, 2, 4].map(|g| known(g, 1, Some(256), truth(g, 256))).to_vec();
        let with = |rate: f64| {
            let mut all = inside();
            all.extend([known(8, 2, Some(256), rate), known(16, 4, Some(256), rate)]);
            fitted(all)
        };
        let (flat, steep) = (with(truth(8, 256)), with(0.25 * truth(4, 256)));
        let off = |t: &Throughput| t.constants().unwrap().flat_off.unwrap();
        assert!(off(&flat) < FLAT_MAX * FLAT_MAX && off(&steep) > FLAT_MAX * FLAT_MAX);
        assert!(rate(&steep, 8, 4, Some(256)) < 0.6 * rate(&flat, 8, 4, Some(256)));
        assert!(rate(&steep, 8, 1, Some(256)) > 2.0 * rate(&steep, 8, 4, Some(256)));
    }

    #[test]
    fn reading_on_many_gpus_narrows_the_interval_there() {
        let seen = [1u32, 2, 4].map(|g| known(g, 1, Some(64), truth(g, 64))).to_vec();
        let width = |t: &Throughput| {
            t.ln_rate(JobShape { gpus: 32, nodes: 4, batch: Some(64) }).unwrap().variance
        };
        let before = width(&fitted(seen.clone()));
        let mut more = seen;
        more.push(known(16, 2, Some(64), truth(16, 64)));
        assert!(width(&fitted(more)) < 0.5 * before);
    }

    #[test]
    fn without_readings_there_is_no_prediction() {
        assert!(fitted(Vec::new()).ln_rate(JobShape { gpus: 1, nodes: 1, batch: None }).is_none());
    }
}
