//! Formula of the step time, with its gradient.

/// Number of parameters, logarithms except for the three exponents.
pub const WIDTH: usize = 10;

/// Constant part of a step, relative to the job's reference time.
pub const FIXED: usize = 0;
/// Computation at the reference's local batch, relative to the reference time.
pub const COMPUTE: usize = 1;
/// Synchronisation inside a node, relative to the constant part.
pub const INSIDE: usize = 2;
/// A doubling beyond four GPUs, relative to what two GPUs cost.
pub const DOUBLING: usize = 3;
/// Synchronisation of two GPUs on two nodes, relative to the constant part.
pub const ACROSS: usize = 4;
/// Three GPUs on three nodes, relative to two on two.
pub const MANY: usize = 5;
/// Exponent of growth with GPUs, of two nodes' synchronisation up to four GPUs.
pub const GROWTH_FEW: usize = 6;
/// The same beyond four GPUs.
pub const GROWTH_PAIR: usize = 7;
/// Exponent of growth with GPUs, of the synchronisation of three and more nodes.
pub const GROWTH_MANY: usize = 8;
/// Exponent of overlap between computation and synchronisation across nodes: 1 for none, large for full.
pub const OVERLAP: usize = 9;

/// Form of the step time across nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// No effect of nodes: latency grows with GPUs as inside one node.
    Flat,
    /// Synchronisation across nodes has a cost of its own, partly overlapped.
    Steep,
}

/// Layout of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// GPUs in all.
    pub gpus: f64,
    /// Nodes.
    pub nodes: f64,
    /// Samples on each GPU, relative to the reference's.
    pub local: f64,
}

/// Natural logarithm of the step time relative to the reference's, and its gradient.
#[must_use]
pub fn ln_time(theta: &[f64; WIDTH], at: Layout, network: Network) -> (f64, [f64; WIDTH]) {
    let mut gradient = [0.0; WIDTH];
    let fixed = theta[FIXED].exp();
    let compute = theta[COMPUTE].exp() * at.local;
    let inside = fixed * theta[INSIDE].exp();
    let doubling = theta[DOUBLING].exp();
    let together = match network {
        Network::Flat => at.gpus,
        Network::Steep => (at.gpus / at.nodes).max(1.0),
    };
    let few = together.min(4.0);
    let beyond = (together / 4.0).max(1.0).log2();
    let steps = 2.0 * (few - 1.0) / few + doubling * beyond;
    let near = fixed + compute + inside * steps;
    gradient[FIXED] = (fixed + inside * steps) / near;
    gradient[COMPUTE] = compute / near;
    gradient[INSIDE] = inside * steps / near;
    gradient[DOUBLING] = inside * doubling * beyond / near;
    if network == Network::Flat || at.nodes < 1.5 {
        return (near.ln(), gradient);
    }
    let mut far = theta[FIXED] + theta[ACROSS];
    let mut by_far = [0.0; WIDTH];
    (by_far[FIXED], by_far[ACROSS]) = (1.0, 1.0);
    if at.nodes < 2.5 {
        by_far[GROWTH_FEW] = (at.gpus.clamp(2.0, 4.0) / 2.0).ln();
        by_far[GROWTH_PAIR] = (at.gpus / 4.0).max(1.0).ln();
    } else {
        by_far[MANY] = 1.0;
        by_far[GROWTH_MANY] = (at.gpus / 3.0).max(1.0).ln();
    }
    for i in [MANY, GROWTH_FEW, GROWTH_PAIR, GROWTH_MANY] {
        far += theta[i] * by_far[i];
    }
    let near = near.ln();
    let overlap = theta[OVERLAP].exp();
    let (high, low) = if near > far { (near, far) } else { (far, near) };
    let time = high + (overlap * (low - high)).exp().ln_1p() / overlap;
    let share = (overlap * (far - time)).exp().min(1.0);
    for (g, f) in gradient.iter_mut().zip(by_far) {
        *g = *g * (1.0 - share) + f * share;
    }
    gradient[OVERLAP] = (1.0 - share) * near + share * far - time;
    (time, gradient)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THETA: [f64; WIDTH] = [-1.6, -0.3, -1.2, -0.3, 0.7, -0.15, 0.5, 0.4, 0.35, 0.7];

    #[test]
    fn gradient_matches_finite_differences() {
        for network in [Network::Flat, Network::Steep] {
            for (gpus, nodes) in
                [(1.0, 1.0), (4.0, 1.0), (8.0, 1.0), (3.0, 2.0), (16.0, 2.0), (12.0, 4.0)]
            {
                let at = Layout { gpus, nodes, local: 0.7 };
                let (_, gradient) = ln_time(&THETA, at, network);
                for i in 0..WIDTH {
                    let moved = |by: f64| {
                        let mut theta = THETA;
                        theta[i] += by;
                        ln_time(&theta, at, network).0
                    };
                    let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                    assert!((slope - gradient[i]).abs() < 1e-6, "{i} at {at:?} {network:?}");
                }
            }
        }
    }

    #[test]
    fn larger_local_batch_never_shortens_a_step() {
        for network in [Network::Flat, Network::Steep] {
            let time = |local| ln_time(&THETA, Layout { gpus: 8.0, nodes: 2.0, local }, network).0;
            assert!(time(1.0) > time(0.5) && time(0.5) > time(0.25));
        }
    }

    #[test]
    fn two_nodes_may_be_slower_than_three_and_one_is_fastest() {
        let time = |nodes| {
            let at = Layout { gpus: 6.0, nodes, local: 1.0 };
            ln_time(&THETA, at, Network::Steep).0
        };
        assert!(time(2.0) > time(3.0) && time(3.0) > time(1.0));
    }
}
