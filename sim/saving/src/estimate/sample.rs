//! A part of a large trace that is fast to simulate.
//!
//! A sample has every k-th job on a k-th of the nodes, so that load, job sizes and the period stay
//! those of the trace. The jobs are sorted by GPU time and one is drawn from each group of k
//! neighbours, since few long jobs hold most of the GPU time. Where k is limited by the number of
//! nodes, the sample also has only the jobs of a part of the period, around its middle.

use wattle_common::rng::Stream;
use wattle_common::topology::ClusterShape;
use wattle_simulator::trace::Trace;

/// A sample of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its jobs.
    pub trace: Trace,
    /// Its cluster.
    pub cluster: ClusterShape,
    /// One of how many nodes it has.
    pub thinned: u32,
    /// Number of jobs left out as the sample's cluster cannot hold them.
    pub too_large: usize,
    /// Whether it has only a part of the period.
    pub is_window: bool,
}

impl Sample {
    /// A sample of at most about `jobs_max` jobs on at least `nodes_min` nodes of each group; `None`
    /// where the trace is not larger. A node count that is not a multiple of k is rounded up.
    #[must_use]
    pub fn of(
        trace: &Trace,
        cluster: &ClusterShape,
        jobs_max: usize,
        nodes_min: u32,
        seed: u64,
    ) -> Option<Self> {
        let jobs = trace.jobs.len();
        if jobs <= jobs_max {
            return None;
        }
        let wanted = u32::try_from(jobs.div_ceil(jobs_max)).unwrap_or(u32::MAX);
        let smallest = cluster.groups().iter().map(|group| group.nodes).min().unwrap_or(1);
        let factor = wanted.clamp(1, (smallest / nodes_min.max(1)).max(1));
        let (thin, too_large) = thinned(trace, cluster, factor, seed);
        let mut sampled = thin.1;
        let is_window = sampled.jobs.len() > jobs_max;
        if is_window {
            // Jobs are in the order of their submission.
            let from = (sampled.jobs.len() - jobs_max) / 2;
            sampled.jobs.drain(..from);
            sampled.jobs.truncate(jobs_max);
        }
        Some(Self { trace: sampled, cluster: thin.0, thinned: factor, too_large, is_window })
    }
}

/// One of `factor` jobs on one of `factor` nodes, and the number of jobs that cannot fit.
fn thinned(
    trace: &Trace,
    cluster: &ClusterShape,
    factor: u32,
    seed: u64,
) -> ((ClusterShape, Trace), usize) {
    if factor <= 1 {
        return ((cluster.clone(), trace.clone()), 0);
    }
    let groups = cluster.groups().iter().map(|group| {
        let mut group = group.clone();
        group.nodes = group.nodes.div_ceil(factor);
        group
    });
    let small = ClusterShape::of(groups.collect()).unwrap_or_else(|_| cluster.clone());
    let fits = |gpus: u32| gpus as usize <= small.gpu_count();
    let mut order: Vec<usize> =
        (0..trace.jobs.len()).filter(|&i| fits(trace.jobs[i].gpus)).collect();
    let too_large = trace.jobs.len() - order.len();
    let gpu_s = |i: usize| trace.jobs[i].duration.as_secs_f64() * f64::from(trace.jobs[i].gpus);
    order.sort_by(|&a, &b| gpu_s(b).total_cmp(&gpu_s(a)).then(a.cmp(&b)));
    let mut stream = Stream::new(seed, "saving/sample");
    let mut kept: Vec<usize> = order
        .chunks(factor as usize)
        .filter_map(|group| group.get(stream.below(u64::from(factor)) as usize).copied())
        .collect();
    kept.sort_unstable();
    let jobs = kept.into_iter().map(|i| trace.jobs[i].clone()).collect();
    ((small, Trace { jobs, notes: Vec::new(), ..trace.clone() }), too_large)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wattle_common::JobId;
    use wattle_simulator::trace::TraceJob;

    use super::*;

    fn trace(jobs: u64) -> Trace {
        let job = |i: u64| {
            let id = JobId::new(&format!("j{i}")).unwrap();
            let (submit, lasts) = (Duration::from_secs(60 * i), 100 + (i * i) % 7_919);
            TraceJob::new(id, submit, Duration::from_secs(lasts), 1 << (i % 4))
        };
        let jobs = (0..jobs).map(job).collect();
        Trace { name: "t".into(), format: "Philly", jobs, notes: Vec::new(), origin: None }
    }

    fn gpu_s(trace: &Trace) -> f64 {
        trace.jobs.iter().map(|job| job.duration.as_secs_f64() * f64::from(job.gpus)).sum()
    }

    #[test]
    fn small_traces_are_not_sampled() {
        let cluster = "4x8:a100".parse().unwrap();
        assert_eq!(Sample::of(&trace(500), &cluster, 500, 8, 7), None);
    }

    #[test]
    fn sample_keeps_the_load_and_the_period() {
        let (all, cluster) = (trace(20_000), "320x8:a100".parse().unwrap());
        let sample = Sample::of(&all, &cluster, 1_000, 8, 7).unwrap();
        assert_eq!((sample.thinned, sample.cluster.node_count()), (20, 16));
        assert!(!sample.is_window && sample.too_large == 0);
        assert_eq!(sample.trace.jobs.len(), 1_000);
        let share = gpu_s(&sample.trace) * 20.0 / gpu_s(&all);
        assert!((share - 1.0).abs() < 0.01, "{share}");
        assert!(sample.trace.jobs.windows(2).all(|pair| pair[0].submit <= pair[1].submit));
        assert_eq!(Sample::of(&all, &cluster, 1_000, 8, 7).unwrap(), sample);
        assert_ne!(Sample::of(&all, &cluster, 1_000, 8, 8).unwrap(), sample);
    }

    #[test]
    fn small_cluster_is_sampled_by_a_window() {
        let (all, cluster) = (trace(20_000), "2x8:a100".parse().unwrap());
        let sample = Sample::of(&all, &cluster, 1_000, 8, 7).unwrap();
        assert!(sample.is_window);
        assert_eq!((sample.thinned, sample.trace.jobs.len()), (1, 1_000));
        assert_eq!(sample.trace.jobs[0], all.jobs[9_500]);
    }
}
