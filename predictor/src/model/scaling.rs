//! A job's step time over GPUs and the nodes they are spread over.
//!
//! With g GPUs in all on n nodes, in seconds for one step, relative to the configuration known best
//! (g0 GPUs, where T = 1):
//!
//! ```text
//! T = a + c g0/g + s 2 (g-1)/g [n = 1] + r (1 + 0.4 log2(n/2)) [n > 1]
//! ```
//!
//! a: what no GPU shortens; c: computation, shared among the GPUs at one global batch; s:
//! all-reduce inside a node, whose traffic for each GPU grows as 2 (g-1)/g; r: synchronisation
//! across nodes, growing as a power of two nodes (measured growth exponents 0.3 to 0.5: placements
//! of petuum/adaptdl, Apache-2.0). In the line of Pollux's throughput model (OSDI'21), without its
//! overlap exponent, which a handful of configurations cannot tell. All parameters are at least 0;
//! what comes out below is taken out and the rest is fitted again.
//!
//! A configuration that was measured is told by its own level; this model fills in the others.

use crate::fit::{Belief, Posterior, Row, fit};
use crate::interval::LogNormal;

const WIDTH: usize = 4;

/// Beliefs of (a, c, s, r) as shares of the known step time: mostly computation, as Pollux's and
/// ElasticFlow's public profiles show at full batch; wide, because a job that keeps its batch for
/// each GPU has c = 0 and a = 1.
const BELIEFS: [Belief; WIDTH] = [
    Belief { mean: 0.15, sd: 0.35 },
    Belief { mean: 0.75, sd: 0.35 },
    Belief { mean: 0.05, sd: 0.06 },
    Belief { mean: 0.20, sd: 0.20 },
];

/// The form's own error, as a deviation of the logarithm, where nothing was measured: it reached 7
/// to 8 % on configurations left out of open profiles with six known ones.
const FORM_SD: f64 = 0.08;

/// A configuration whose step rate is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// GPUs in all.
    pub gpus: u32,
    /// Nodes.
    pub nodes: u32,
    /// The logarithm of steps a second.
    pub ln_rate: LogNormal,
}

/// Step rates over all configurations.
#[derive(Clone, Debug)]
pub struct Scaling {
    known: Vec<Known>,
    reference: Option<Known>,
    posterior: Posterior,
}

fn features(gpus: u32, nodes: u32, reference: u32) -> [f64; WIDTH] {
    let g = f64::from(gpus);
    let inside = if nodes == 1 { 2.0 * (g - 1.0) / g } else { 0.0 };
    let across = if nodes > 1 { 1.0 + 0.4 * (f64::from(nodes) / 2.0).log2() } else { 0.0 };
    [1.0, f64::from(reference) / g, inside, across]
}

impl Scaling {
    /// Fits the configurations known; none: it can say nothing.
    #[must_use]
    pub fn fit(known: Vec<Known>) -> Self {
        let reference =
            known.iter().copied().min_by(|a, b| a.ln_rate.variance.total_cmp(&b.ln_rate.variance));
        let Some(base) = reference else {
            return Self { known, reference, posterior: Posterior::of_beliefs(&BELIEFS) };
        };
        let rows: Vec<Row> = known
            .iter()
            .map(|k| {
                let time = (base.ln_rate.mean - k.ln_rate.mean).clamp(-12.0, 12.0).exp();
                let sd = (k.ln_rate.variance + 0.01 * 0.01).sqrt() * time;
                Row { x: features(k.gpus, k.nodes, base.gpus).to_vec(), y: time, sd }
            })
            .collect();
        let mut beliefs = BELIEFS;
        let mut posterior = fit(&rows, &beliefs);
        for _ in 0..WIDTH {
            let Some(below) = (0..WIDTH).find(|i| posterior.mean(*i) < -1e-9) else { break };
            beliefs[below] = Belief { mean: 0.0, sd: 1e-6 };
            posterior = fit(&rows, &beliefs);
        }
        Self { known, reference, posterior }
    }

    /// Steps a second, as a logarithm, on `gpus` over `nodes`; `None` where no rate is known at all.
    #[must_use]
    pub fn ln_rate(&self, gpus: u32, nodes: u32) -> Option<LogNormal> {
        if let Some(known) = self.known.iter().find(|k| (k.gpus, k.nodes) == (gpus, nodes)) {
            return Some(known.ln_rate);
        }
        let base = self.reference?;
        let (time, variance) = self.posterior.at(&features(gpus, nodes, base.gpus));
        let time = time.max(1e-3);
        Some(LogNormal {
            mean: base.ln_rate.mean - time.ln(),
            variance: variance / (time * time) + FORM_SD * FORM_SD,
            dof: self.posterior.dof(),
        })
    }

    /// Whether the rate of this configuration was measured.
    #[must_use]
    pub fn knows(&self, gpus: u32, nodes: u32) -> bool {
        self.known.iter().any(|k| (k.gpus, k.nodes) == (gpus, nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(gpus: u32, nodes: u32, rate: f64) -> Known {
        Known { gpus, nodes, ln_rate: LogNormal { mean: rate.ln(), variance: 1e-4, dof: 10.0 } }
    }

    fn rate(scaling: &Scaling, gpus: u32, nodes: u32) -> f64 {
        scaling.ln_rate(gpus, nodes).unwrap().mean.exp()
    }

    /// Truth of the form itself: T = 0.02 + 0.4/g + 0.03 * 2(g-1)/g inside a node.
    fn truth(g: f64) -> f64 {
        1.0 / (0.02 + 0.4 / g + 0.03 * 2.0 * (g - 1.0) / g)
    }

    #[test]
    fn a_truth_of_its_form_is_found_between_and_beyond() {
        let scaling = Scaling::fit([1, 2, 8].map(|g| known(g, 1, truth(f64::from(g)))).to_vec());
        for g in [4u32, 16] {
            let error = rate(&scaling, g, 1) / truth(f64::from(g)) - 1.0;
            assert!(error.abs() < 0.12, "{g} GPUs: {error:+.3}");
        }
        assert!((rate(&scaling, 8, 1) / truth(8.0) - 1.0).abs() < 1e-9, "measured is measured");
    }

    #[test]
    fn one_configuration_says_little_of_the_others_and_says_so() {
        let scaling = Scaling::fit(vec![known(1, 1, 10.0)]);
        let eight = scaling.ln_rate(8, 1).unwrap().estimate(1e-9, 1e9);
        assert!(eight.mean > 10.0 && eight.mean < 80.0, "{eight:?}");
        assert!(eight.high / eight.low > 2.0, "{eight:?}");
        let one = scaling.ln_rate(1, 1).unwrap().estimate(1e-9, 1e9);
        assert!(one.high / one.low < 1.1, "{one:?}");
    }

    #[test]
    fn a_job_that_keeps_its_batch_for_each_gpu_does_not_gain() {
        let scaling = Scaling::fit(vec![known(1, 1, 10.0), known(4, 1, 9.4)]);
        assert!((rate(&scaling, 8, 1) / 9.3 - 1.0).abs() < 0.15, "{}", rate(&scaling, 8, 1));
    }

    #[test]
    fn nothing_known_is_said() {
        assert!(Scaling::fit(Vec::new()).ln_rate(1, 1).is_none());
    }
}
