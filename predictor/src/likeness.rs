//! Which known class a job is like that declared none, told from its windows alone.
//!
//! Compared are traits of the job alone: busy share, memory traffic, device memory, power at the
//! default, GPUs, and, weakly, the step rate on the same GPUs (two jobs of a kind rarely count
//! steps alike). With the job's trait y (variance s^2), a class's mean m over its n jobs, and b the
//! deviation between two jobs of one class:
//!
//! ```text
//! p(y | class) = normal(y - m; s^2 + b^2 (1 + 1/n))
//! p(class | traits) = (0.7 / classes) prod p(y | class) / (sum of all such + 0.3 prod p(y | none))
//! ```
//!
//! `none` is a job like no class: its traits are anything a training job may have. Each b is what
//! the history shows of jobs of one class, among [`PRIOR_JOBS`] believed ones. Classes that look
//! the same share the probability, and neither is named; so is a job refused that is only the
//! nearest to something. A trait that one side lacks says nothing.
//!
//! Nothing is remembered here, so a job may change its mind with each window.

use std::collections::BTreeMap;

use wattle_common::id::WorkloadId;
use wattle_common::numerics::median_high;

use crate::history::{Class, Summary};
use crate::job::Job;
use crate::model::cap::{self, Card};

/// The probability from which on a job is taken for one of a class.
pub const SURE: f64 = 0.85;
/// Traits that must be known of both sides, the step rate and the GPUs not counted.
const TRAITS_MIN: usize = 3;
/// How probable it is beforehand that a job is like no class known.
const NONE: f64 = 0.3;
/// How many jobs the believed deviations count for, beside those of the history.
const PRIOR_JOBS: f64 = 6.0;

/// The four traits that are told well, in this order.
const TRAITS: usize = 4;
const BUSY: usize = 0;
const MEMORY_BUSY: usize = 1;
const MEMORY: usize = 2;
const POWER: usize = 3;

/// Deviations between two jobs of one class believed at first: shares by a sampling period's
/// worth, device memory (as a logarithm) by what an allocator keeps, power by 4 % as in
/// [`crate::history`].
const BETWEEN_SD: [f64; TRAITS] = [0.03, 0.03, 0.06, 0.04];
/// Deviations of one window.
const WINDOW_SD: [f64; TRAITS] = [0.03, 0.03, 0.03, 0.02];
/// The step rate's deviation between two jobs of a class: another batch size is another rate.
const RATE_SD: f64 = 0.4;
/// What a job like none is: mean and deviation. Shares anywhere, memory from 1 to 60 GB, power at
/// the default from a tenth of the cap to all of it.
const ANY: [(f64, f64); TRAITS] = [(0.6, 0.35), (0.3, 0.25), (9.0, 1.2), (-0.7, 0.6)];
/// The same of a rate on given GPUs, around any class's.
const ANY_RATE_SD: f64 = 2.0;

/// A class that a job is like.
#[derive(Clone, Debug, PartialEq)]
pub struct Like {
    /// The class.
    pub class: WorkloadId,
    /// How probable it is, 0 to 1.
    pub probability: f64,
    /// Whether that is [`SURE`].
    pub sure: bool,
}

/// What was seen of a job alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traits {
    /// Mean and variance of each trait.
    seen: [Option<(f64, f64)>; TRAITS],
    /// ln of steps a second by GPUs and nodes.
    rates: BTreeMap<(u32, u32), f64>,
    gpus: Option<u32>,
}

impl Traits {
    /// The traits that `job`'s windows alone show on `card`.
    #[must_use]
    pub fn of(job: &Job, card: &Card) -> Self {
        let alone = || job.windows().iter().filter(|w| w.alone());
        let free = alone()
            .filter(|w| w.gpu_power_w.is_some_and(|watts| cap::is_free(card, watts, w.setting())));
        let values: [Vec<f64>; TRAITS] = [
            alone().filter_map(|w| w.busy).collect(),
            alone().filter_map(|w| w.memory_busy).collect(),
            // The peak is what a job is known by: it grows in the first steps and stays.
            alone()
                .filter_map(|w| w.memory_mib)
                .max()
                .map(|mib| (mib as f64).ln())
                .into_iter()
                .collect(),
            free.filter_map(|w| w.gpu_power_w).map(f64::ln).collect(),
        ];
        let mut seen = [None; TRAITS];
        for (i, values) in values.into_iter().enumerate() {
            seen[i] = {
                let n = values.len() as f64;
                median_high(values.into_iter()).map(|mean| (mean, WINDOW_SD[i] * WINDOW_SD[i] / n))
            };
        }
        let default = |w: &&wattle_common::observation::Observation| {
            !w.rate_inferred && cap::is_default(card, w.setting())
        };
        let rates = alone()
            .filter(default)
            .filter_map(|w| Some(((w.gpus, w.nodes), w.rate?.ln())))
            .collect();
        Self { seen, rates, gpus: job.windows().last().map(|w| w.gpus) }
    }

    /// The traits of what the history keeps of a job.
    fn of_summary(kept: &Summary) -> [Option<f64>; TRAITS] {
        [
            kept.busy.map(|busy| busy.mean),
            kept.memory_busy,
            kept.memory_mib.filter(|mib| *mib > 0).map(|mib| (mib as f64).ln()),
            kept.ln_power.map(|power| power.mean),
        ]
    }
}

/// A class as likeness sees it.
struct Kind<'a> {
    class: &'a WorkloadId,
    /// Mean and number of jobs.
    means: [Option<(f64, f64)>; TRAITS],
    kept: &'a Class,
}

/// ln of the normal density of `miss`, but for a constant that all hypotheses share.
fn ln_normal(miss: f64, variance: f64) -> f64 {
    -0.5 * (miss * miss / variance + variance.ln())
}

/// The class that `job` is most like, and how surely; `None` where too little is known of it or
/// there is no class to be like.
#[must_use]
pub fn like<'a>(
    job: &Traits,
    card: &Card,
    classes: impl Iterator<Item = (&'a WorkloadId, &'a Class)>,
) -> Option<Like> {
    if job.seen.iter().flatten().count() < TRAITS_MIN {
        return None;
    }
    // How jobs of one class differ, over all classes.
    let mut squares = BETWEEN_SD.map(|sd| PRIOR_JOBS * sd * sd);
    let mut freedom = [PRIOR_JOBS; TRAITS];
    let mut kinds = Vec::new();
    for (class, kept) in classes {
        let jobs: Vec<[Option<f64>; TRAITS]> =
            kept.jobs.iter().map(|(_, s)| Traits::of_summary(s)).collect();
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
            kinds.push(Kind { class, means, kept });
        }
    }
    let between: [f64; TRAITS] = std::array::from_fn(|i| squares[i] / freedom[i]);
    // Against "like none", so that a trait which a class lacks counts for neither.
    let scores: Vec<f64> = kinds.iter().map(|kind| score(job, card, kind, &between)).collect();
    let (best, most) = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
    // Relative to the larger of the two, so that nothing overflows.
    let top = most.max(0.0);
    let share = (1.0 - NONE) / kinds.len() as f64;
    let all: f64 = scores.iter().map(|s| share * (s - top).exp()).sum();
    let probability = share * (most - top).exp() / (all + NONE * (-top).exp());
    let class = kinds[best].class.clone();
    Some(Like { class, probability, sure: probability >= SURE })
}

/// ln of how much more probable a job's traits are in a class than in a job like none.
fn score(job: &Traits, card: &Card, kind: &Kind<'_>, between: &[f64; TRAITS]) -> f64 {
    let mut score = 0.0;
    for i in [BUSY, MEMORY_BUSY, MEMORY, POWER] {
        let (Some((seen, variance)), Some((mean, n))) = (job.seen[i], kind.means[i]) else {
            continue;
        };
        let (any, any_sd) = ANY[i];
        let any = if i == POWER { any + card.cap_default_w.ln() } else { any };
        score += ln_normal(seen - mean, variance + between[i] * (1.0 + 1.0 / n))
            - ln_normal(seen - any, variance + any_sd * any_sd);
    }
    let levels = || kind.kept.jobs.iter().flat_map(|(_, s)| &s.levels);
    let rate = job.rates.iter().find_map(|(at, rate)| {
        let level = levels().find(|l| (l.gpus, l.nodes) == *at)?;
        Some(rate - level.ln_rate.mean)
    });
    if let Some(miss) = rate {
        score += ln_normal(miss, RATE_SD * RATE_SD) - ln_normal(miss, ANY_RATE_SD * ANY_RATE_SD);
    }
    // A class never seen on about so many GPUs is a little less likely; never more than that.
    let apart =
        |gpus: u32, level: u32| (f64::from(gpus.max(1)) / f64::from(level.max(1))).ln().abs();
    let nearest =
        job.gpus.and_then(|gpus| levels().map(|l| apart(gpus, l.gpus)).min_by(f64::total_cmp));
    score - 0.5 * nearest.unwrap_or(0.0).min(2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Level, Stored};
    use wattle_common::Timestamp;
    use wattle_common::id::{JobId, NodeId};
    use wattle_common::job::GpuRequest;
    use wattle_common::rng::Stream;

    const CARD: Card = Card {
        cap_default_w: 250.0,
        cap_known: true,
        idle_w: 35.0,
        clock_mhz_top: None,
        power_carried: true,
    };

    /// Busy share, memory traffic, MiB, watts, steps a second.
    type Shape = [f64; 5];

    const VISION: Shape = [0.95, 0.55, 12_000.0, 230.0, 4.0];
    const SPEECH: Shape = [0.80, 0.35, 9_000.0, 190.0, 2.0];
    const RANKING: Shape = [0.25, 0.10, 3_000.0, 70.0, 90.0];

    fn id(name: &str) -> WorkloadId {
        WorkloadId::new(name).unwrap()
    }

    fn class(shape: Shape, jobs: usize, draw: &mut Stream) -> Class {
        let sd = 0.01;
        let stored = |mean: f64| Stored { mean, sd };
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

    fn ask(job: &Job, known: &[(WorkloadId, Class)]) -> Option<Like> {
        like(&Traits::of(job, &CARD), &CARD, known.iter().map(|(c, k)| (c, k)))
    }

    #[test]
    fn a_job_of_a_known_kind_is_named_through_noise() {
        let known = known(&[("vision", VISION), ("speech", SPEECH), ("ranking", RANKING)], 3);
        let mut draw = Stream::new(2, "jobs");
        let (mut right, mut wrong) = (0, 0);
        for (name, shape) in [("vision", VISION), ("speech", SPEECH), ("ranking", RANKING)] {
            for _ in 0..50 {
                let found = ask(&job(shape, 3, 0.03, &mut draw), &known).unwrap();
                right += u32::from(found.sure && found.class == id(name));
                wrong += u32::from(found.sure && found.class != id(name));
            }
        }
        assert!(right >= 140 && wrong == 0, "{right} right and {wrong} wrong of 150");
    }

    #[test]
    fn classes_that_look_the_same_are_not_told_apart() {
        let twin = [0.94, 0.55, 12_000.0, 229.0, 4.1];
        let known = known(&[("vision", VISION), ("twin", twin), ("ranking", RANKING)], 3);
        let mut draw = Stream::new(3, "jobs");
        for _ in 0..50 {
            let found = ask(&job(VISION, 5, 0.02, &mut draw), &known).unwrap();
            assert!(!found.sure && found.probability < 0.8, "{found:?}");
        }
    }

    #[test]
    fn a_job_like_none_is_refused() {
        let known = known(&[("vision", VISION), ("speech", SPEECH), ("ranking", RANKING)], 3);
        let mut draw = Stream::new(4, "jobs");
        // Between two classes; beyond all; like one but for its memory; like one but for its power.
        for shape in [
            [0.55, 0.22, 5_000.0, 120.0, 10.0],
            [1.0, 0.9, 30_000.0, 248.0, 1.0],
            [0.95, 0.55, 24_000.0, 230.0, 4.0],
            [0.95, 0.55, 12_000.0, 150.0, 4.0],
        ] {
            for windows in [1, 4] {
                let found = ask(&job(shape, windows, 0.02, &mut draw), &known).unwrap();
                assert!(!found.sure, "{shape:?}: {found:?}");
            }
        }
    }

    /// Jobs drawn at random are taken for a class about as rarely as they look like one.
    #[test]
    fn wrong_likeness_is_rare_among_any_jobs() {
        let known = known(&[("vision", VISION), ("speech", SPEECH), ("ranking", RANKING)], 3);
        let mut draw = Stream::new(5, "jobs");
        let mut named = 0;
        for _ in 0..500 {
            let power = 60.0 + 185.0 * draw.unit();
            let shape = [draw.unit(), draw.unit(), 2_000.0 + 28_000.0 * draw.unit(), power, 5.0];
            named += u32::from(ask(&job(shape, 3, 0.02, &mut draw), &known).unwrap().sure);
        }
        assert!(named <= 5, "{named} of 500");
    }

    #[test]
    fn too_little_seen_is_no_likeness() {
        let known = known(&[("vision", VISION)], 3);
        let mut draw = Stream::new(6, "jobs");
        assert_eq!(ask(&job(VISION, 0, 0.02, &mut draw), &known), None);
        assert_eq!(ask(&job(VISION, 3, 0.02, &mut draw), &[]), None);
        // A job under a cap shows no power at the default; three traits are left.
        let found = ask(&job(VISION, 3, 0.0, &mut draw), &known).unwrap();
        assert!(found.sure && found.probability < 1.0, "{found:?}");
    }

    #[test]
    fn jobs_that_differ_widen_the_metric() {
        let mut draw = Stream::new(7, "jobs");
        let off = [0.80, 0.40, 12_000.0, 200.0, 4.0];
        let mut known = known(&[("vision", VISION)], 8);
        let strict = ask(&job(off, 4, 0.01, &mut draw), &known).unwrap();
        // The same class, whose jobs were all over that range.
        for (i, (_, kept)) in known[0].1.jobs.iter_mut().enumerate() {
            let share = 0.75 + 0.05 * (i % 5) as f64;
            kept.busy = Some(Stored { mean: share, sd: 0.01 });
            kept.memory_busy = Some(share - 0.38);
            kept.ln_power = Some(Stored { mean: (240.0 * share).ln(), sd: 0.01 });
        }
        let wide = ask(&job(off, 4, 0.01, &mut draw), &known).unwrap();
        assert!(!strict.sure && wide.probability > strict.probability + 0.5, "{strict:?} {wide:?}");
    }
}
