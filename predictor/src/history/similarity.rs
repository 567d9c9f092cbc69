//! Matches a job that declared no class to a known class, by its windows only.
//!
//! Compared traits, with exclusive GPUs: busy share, memory traffic, device memory, power at the
//! default, GPUs, and with less weight the step rate on the same GPUs (two jobs of one class rarely
//! count steps in the same unit). With the job's trait y (variance s^2), a class's mean m over its n
//! jobs, and the standard deviation b between two jobs of one class:
//!
//! ```text
//! p(y | class) = normal(y - m; s^2 + b^2 (1 + 1/n))
//! p(class | traits) = (0.7 / classes) prod p(y | class) / (sum over classes + 0.3 prod p(y | none))
//! ```
//!
//! `none` is a job of no known class, whose traits are those of any training job. Each b is estimated
//! from jobs of one class in the history, with a prior that counts as [`PRIOR_JOBS`] jobs. Classes with
//! equal traits share the probability, so neither is matched with confidence; nor is a job that is far
//! from every class. A trait that one side lacks is not compared.
//!
//! The match is stateless and may change with each window.

use std::collections::BTreeMap;

use wattle_common::id::WorkloadId;
use wattle_common::numerics::median_high;

use crate::history::{Class, Summary};
use crate::job::Job;
use crate::model::cap::{self, GpuSpec};

/// Probability from which on a match is confident.
pub const CONFIDENT: f64 = 0.85;
/// Number of traits that must be known on both sides, besides the step rate and the GPUs.
const TRAITS_MIN: usize = 3;
/// Prior probability of a job of no known class.
const NONE: f64 = 0.3;
/// Weight of the prior standard deviations, in jobs.
const PRIOR_JOBS: f64 = 6.0;

/// The four main traits, in this order.
const TRAITS: usize = 4;
const BUSY: usize = 0;
const MEMORY_BUSY: usize = 1;
const MEMORY: usize = 2;
const POWER: usize = 3;

/// Prior standard deviations between two jobs of one class: shares by one sampling period, device
/// memory (its logarithm) by what an allocator retains, power by 4 % as in [`crate::history`].
const BETWEEN_SD: [f64; TRAITS] = [0.03, 0.03, 0.06, 0.04];
/// Standard deviations of one window.
const WINDOW_SD: [f64; TRAITS] = [0.03, 0.03, 0.03, 0.02];
/// Standard deviation of ln step rate between two jobs of one class: batch sizes differ.
const RATE_SD: f64 = 0.4;
/// Mean and standard deviation of the traits of a job of no known class: any share, memory from 1 to
/// 60 GB, power at the default from a tenth of the cap to the cap.
const ANY: [(f64, f64); TRAITS] = [(0.6, 0.35), (0.3, 0.25), (9.0, 1.2), (-0.7, 0.6)];
/// The same of ln step rate on given GPUs, around any class's.
const ANY_RATE_SD: f64 = 2.0;

/// Best matching class of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassMatch {
    /// Class.
    pub class: WorkloadId,
    /// Probability, 0 to 1.
    pub probability: f64,
    /// Whether the probability is at least [`CONFIDENT`].
    pub confident: bool,
}

/// Traits of a job from its exclusive windows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedTraits {
    /// Mean and variance of each trait.
    seen: [Option<(f64, f64)>; TRAITS],
    /// Natural logarithm of steps/s, by GPUs and nodes.
    rates: BTreeMap<(u32, u32), f64>,
    gpus: Option<u32>,
}

impl ObservedTraits {
    /// Traits of `job` on `gpu`.
    #[must_use]
    pub fn of(job: &Job, gpu: &GpuSpec) -> Self {
        let exclusive = || job.windows().iter().filter(|w| w.is_exclusive());
        let uncapped = exclusive()
            .filter(|w| w.gpu_power_w.is_some_and(|watts| cap::is_free(gpu, watts, w.setting())));
        let values: [Vec<f64>; TRAITS] = [
            exclusive().filter_map(|w| w.busy).collect(),
            exclusive().filter_map(|w| w.memory_busy).collect(),
            // The peak grows in the first steps and then stays.
            exclusive()
                .filter_map(|w| w.memory_mib)
                .max()
                .map(|mib| (mib as f64).ln())
                .into_iter()
                .collect(),
            uncapped.filter_map(|w| w.gpu_power_w).map(f64::ln).collect(),
        ];
        let mut seen = [None; TRAITS];
        for (i, values) in values.into_iter().enumerate() {
            seen[i] = {
                let n = values.len() as f64;
                median_high(values.into_iter()).map(|mean| (mean, WINDOW_SD[i] * WINDOW_SD[i] / n))
            };
        }
        let default = |w: &&wattle_common::observation::Observation| {
            !w.rate_inferred && cap::is_default(gpu, w.setting())
        };
        let rates = exclusive()
            .filter(default)
            .filter_map(|w| Some(((w.gpus, w.nodes), w.rate?.ln())))
            .collect();
        Self { seen, rates, gpus: job.windows().last().map(|w| w.gpus) }
    }

    /// Traits of a job in the history.
    fn of_summary(kept: &Summary) -> [Option<f64>; TRAITS] {
        [
            kept.busy.map(|busy| busy.mean),
            kept.memory_busy,
            kept.memory_mib.filter(|mib| *mib > 0).map(|mib| (mib as f64).ln()),
            kept.ln_power.map(|power| power.mean),
        ]
    }
}

/// A class to compare with.
struct Candidate<'a> {
    class: &'a WorkloadId,
    /// Mean and number of jobs.
    means: [Option<(f64, f64)>; TRAITS],
    kept: &'a Class,
}

/// Natural logarithm of the normal density at `miss`, up to a constant common to all hypotheses.
fn ln_normal(miss: f64, variance: f64) -> f64 {
    -0.5 * (miss * miss / variance + variance.ln())
}

/// Best matching class of `job`; `None` if too few traits are known or no class can be compared.
#[must_use]
pub fn best_match<'a>(
    job: &ObservedTraits,
    gpu: &GpuSpec,
    classes: impl Iterator<Item = (&'a WorkloadId, &'a Class)>,
) -> Option<ClassMatch> {
    if job.seen.iter().flatten().count() < TRAITS_MIN {
        return None;
    }
    // Variance between jobs of one class, pooled over all classes.
    let mut squares = BETWEEN_SD.map(|sd| PRIOR_JOBS * sd * sd);
    let mut freedom = [PRIOR_JOBS; TRAITS];
    let mut candidates = Vec::new();
    for (class, kept) in classes {
        let jobs: Vec<[Option<f64>; TRAITS]> =
            kept.jobs.iter().map(|(_, s)| ObservedTraits::of_summary(s)).collect();
        let means: [Option<(f64, f64)>; TRAITS] = std::array::from_fn(|i| {
            let seen = || jobs.iter().filter_map(|traits| traits[i]);
            let n = seen().count() as f64;
            let mean = seen().sum::<f64>() / n;
            if n > 1.0 {
                squares[i] += seen().map(|v| (v - mean).powi(2)).sum::<f64>();
                freedom[i] += n - 1.0;
            }
            (n > 0.0 && mean.is_finite()).then_some((mean, n))
        });
        if means.iter().zip(&job.seen).filter(|(a, b)| a.is_some() && b.is_some()).count()
            >= TRAITS_MIN
        {
            candidates.push(Candidate { class, means, kept });
        }
    }
    let between: [f64; TRAITS] = std::array::from_fn(|i| squares[i] / freedom[i]);
    // Relative to the hypothesis `none`, so that a trait which a class lacks has no effect.
    let scores: Vec<f64> =
        candidates.iter().map(|candidate| score(job, gpu, candidate, &between)).collect();
    let (best, most) = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
    // Relative to the largest term, against overflow.
    let top = most.max(0.0);
    let share = (1.0 - NONE) / candidates.len() as f64;
    let all: f64 = scores.iter().map(|s| share * (s - top).exp()).sum();
    let probability = share * (most - top).exp() / (all + NONE * (-top).exp());
    let class = candidates[best].class.clone();
    Some(ClassMatch { class, probability, confident: probability >= CONFIDENT })
}

/// Log likelihood ratio of a class against a job of no known class.
fn score(
    job: &ObservedTraits,
    gpu: &GpuSpec,
    candidate: &Candidate<'_>,
    between: &[f64; TRAITS],
) -> f64 {
    let mut score = 0.0;
    for i in [BUSY, MEMORY_BUSY, MEMORY, POWER] {
        let (Some((seen, variance)), Some((mean, n))) = (job.seen[i], candidate.means[i]) else {
            continue;
        };
        let (any, any_sd) = ANY[i];
        let any = if i == POWER { any + gpu.cap_default_w.ln() } else { any };
        score += ln_normal(seen - mean, variance + between[i] * (1.0 + 1.0 / n))
            - ln_normal(seen - any, variance + any_sd * any_sd);
    }
    let levels = || candidate.kept.jobs.iter().flat_map(|(_, s)| &s.levels);
    let rate = job.rates.iter().find_map(|(at, rate)| {
        let level = levels().find(|l| (l.gpus, l.nodes) == *at)?;
        Some(rate - level.ln_rate.mean)
    });
    if let Some(miss) = rate {
        score += ln_normal(miss, RATE_SD * RATE_SD) - ln_normal(miss, ANY_RATE_SD * ANY_RATE_SD);
    }
    // A class not seen on a similar number of GPUs is slightly less likely; the effect is bounded.
    let apart =
        |gpus: u32, level: u32| (f64::from(gpus.max(1)) / f64::from(level.max(1))).ln().abs();
    let nearest =
        job.gpus.and_then(|gpus| levels().map(|l| apart(gpus, l.gpus)).min_by(f64::total_cmp));
    score - 0.5 * nearest.unwrap_or(0.0).min(2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Gaussian, Level};
    use wattle_common::Timestamp;
    use wattle_common::id::{JobId, NodeId};
    use wattle_common::job::GpuRequest;
    use wattle_common::rng::Stream;

    const GPU: GpuSpec = GpuSpec::V100;

    /// Busy share, memory traffic, MiB, W, steps/s.
    type Shape = [f64; 5];

    const VISION: Shape = [0.95, 0.55, 12_000.0, 230.0, 4.0];
    const SPEECH: Shape = [0.80, 0.35, 9_000.0, 190.0, 2.0];
    const RANKING: Shape = [0.25, 0.10, 3_000.0, 70.0, 90.0];

    fn id(name: &str) -> WorkloadId {
        WorkloadId::new(name).unwrap()
    }

    fn class(shape: Shape, jobs: usize, draw: &mut Stream) -> Class {
        let sd = 0.01;
        let stored = |mean: f64| Gaussian { mean, sd };
        let jobs = (0..jobs).map(|i| {
            let mut near = |value: f64| value * (0.02 * draw.normal()).exp();
            let summary = Summary {
                levels: vec![Level {
                    gpus: 1,
                    nodes: 1,
                    global_batch: None,
                    ln_rate: stored(near(shape[4]).ln()),
                }],
                busy: Some(stored(near(shape[0]).min(1.0))),
                memory_busy: Some(near(shape[1])),
                memory_mib: Some(shape[2] as u64),
                ln_power: Some(stored(near(shape[3]).ln())),
                ..Summary::default()
            };
            (JobId::new(&format!("j{i}")).unwrap(), summary)
        });
        Class { jobs: jobs.collect(), ..Class::default() }
    }

    fn known(shapes: &[(&str, Shape)], jobs: usize) -> Vec<(WorkloadId, Class)> {
        let mut draw = Stream::new(1, "history");
        shapes.iter().map(|(name, shape)| (id(name), class(*shape, jobs, &mut draw))).collect()
    }

    fn job(shape: Shape, windows: u64, noise: f64, draw: &mut Stream) -> Job {
        let mut job = Job::new(Timestamp::EPOCH, None, GpuRequest::exactly(1), None);
        for minute in 0..windows {
            let mut near = |value: f64| value * (noise * draw.normal()).exp();
            let window = wattle_common::observation::Observation {
                from_us: Timestamp::from_s(60 * minute),
                node: NodeId::new("n0").unwrap(),
                gpus: 1,
                nodes: 1,
                global_batch: None,
                cap_w: Some(250.0),
                clock_mhz_max: None,
                clock_mhz_mean: None,
                neighbours: Vec::new(),
                rate: Some(near(shape[4])),
                rate_sd: 0.02,
                rate_inferred: false,
                gpu_power_w: Some(near(shape[3])),
                busy: Some(near(shape[0]).min(1.0)),
                busy_job: None,
                memory_busy: Some(near(shape[1])),
                memory_mib: Some(shape[2] as u64),
            };
            job.add(window, 40);
        }
        job
    }

    fn ask(job: &Job, known: &[(WorkloadId, Class)]) -> Option<ClassMatch> {
        best_match(&ObservedTraits::of(job, &GPU), &GPU, known.iter().map(|(c, k)| (c, k)))
    }

    #[test]
    fn noisy_job_of_a_known_class_is_recognised() {
        let known = known(&[("vision", VISION), ("speech", SPEECH), ("ranking", RANKING)], 3);
        let mut draw = Stream::new(2, "jobs");
        let (mut right, mut wrong) = (0, 0);
        for (name, shape) in [("vision", VISION), ("speech", SPEECH), ("ranking", RANKING)] {
            for _ in 0..50 {
                let found = ask(&job(shape, 3, 0.03, &mut draw), &known).unwrap();
                right += u32::from(found.confident && found.class == id(name));
                wrong += u32::from(found.confident && found.class != id(name));
            }
        }
        assert!(right >= 140 && wrong == 0, "{right} right and {wrong} wrong of 150");
    }

    #[test]
    fn classes_with_equal_traits_are_not_distinguished() {
        let twin = [0.94, 0.55, 12_000.0, 229.0, 4.1];
        let known = known(&[("vision", VISION), ("twin", twin), ("ranking", RANKING)], 3);
        let mut draw = Stream::new(3, "jobs");
        for _ in 0..50 {
            let found = ask(&job(VISION, 5, 0.02, &mut draw), &known).unwrap();
            assert!(!found.confident && found.probability < 0.8, "{found:?}");
        }
    }

    #[test]
    fn job_of_no_known_class_is_not_matched() {
        let known = known(&[("vision", VISION), ("speech", SPEECH), ("ranking", RANKING)], 3);
        let mut draw = Stream::new(4, "jobs");
        // Between two classes; beyond all; like one except in memory; like one except in power.
        for shape in [
            [0.55, 0.22, 5_000.0, 120.0, 10.0],
            [1.0, 0.9, 30_000.0, 248.0, 1.0],
            [0.95, 0.55, 24_000.0, 230.0, 4.0],
            [0.95, 0.55, 12_000.0, 150.0, 4.0],
        ] {
            for windows in [1, 4] {
                let found = ask(&job(shape, windows, 0.02, &mut draw), &known).unwrap();
                assert!(!found.confident, "{shape:?}: {found:?}");
            }
        }
    }

    /// Random jobs are matched about as rarely as they resemble a class.
    #[test]
    fn random_jobs_are_rarely_matched() {
        let known = known(&[("vision", VISION), ("speech", SPEECH), ("ranking", RANKING)], 3);
        let mut draw = Stream::new(5, "jobs");
        let mut named = 0;
        for _ in 0..500 {
            let power = 60.0 + 185.0 * draw.unit();
            let shape = [draw.unit(), draw.unit(), 2_000.0 + 28_000.0 * draw.unit(), power, 5.0];
            named += u32::from(ask(&job(shape, 3, 0.02, &mut draw), &known).unwrap().confident);
        }
        assert!(named <= 5, "{named} of 500");
    }

    #[test]
    fn too_few_traits_give_no_match() {
        let known = known(&[("vision", VISION)], 3);
        let mut draw = Stream::new(6, "jobs");
        assert_eq!(ask(&job(VISION, 0, 0.02, &mut draw), &known), None);
        assert_eq!(ask(&job(VISION, 3, 0.02, &mut draw), &[]), None);
        // A job under a cap has no power at the default; three traits remain.
        let found = ask(&job(VISION, 3, 0.0, &mut draw), &known).unwrap();
        assert!(found.confident && found.probability < 1.0, "{found:?}");
    }

    #[test]
    fn scatter_within_a_class_widens_the_match() {
        let mut draw = Stream::new(7, "jobs");
        let off = [0.80, 0.40, 12_000.0, 200.0, 4.0];
        let mut known = known(&[("vision", VISION)], 8);
        let strict = ask(&job(off, 4, 0.01, &mut draw), &known).unwrap();
        // The same class with jobs scattered over that range.
        for (i, (_, kept)) in known[0].1.jobs.iter_mut().enumerate() {
            let share = 0.75 + 0.05 * (i % 5) as f64;
            kept.busy = Some(Gaussian { mean: share, sd: 0.01 });
            kept.memory_busy = Some(share - 0.38);
            kept.ln_power = Some(Gaussian { mean: (240.0 * share).ln(), sd: 0.01 });
        }
        let wide = ask(&job(off, 4, 0.01, &mut draw), &known).unwrap();
        assert!(
            !strict.confident && wide.probability > strict.probability + 0.5,
            "{strict:?} {wide:?}"
        );
    }
}
