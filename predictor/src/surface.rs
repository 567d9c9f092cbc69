//! Which configurations a surface holds, and how the models make a point of each.
//!
//! What matters most comes first, because a surface is bounded: the job alone over GPUs, nodes and
//! caps; beside each class alone at the default; beside two and three; beside each class under caps.
//! A configuration that is not there is answered by the nearest that is: the same neighbours on the
//! same GPUs over other nodes have the same relative speed.

use wattle_common::id::WorkloadId;
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Estimate, SurfacePoint};
use wattle_common::{Frequency, Power};

use crate::history::{Class, Stored};
use crate::interval::LogNormal;
use crate::job::{JobModel, Profiles, setting};
use crate::model::cap::{self, Card};
use crate::model::interference::{Habit, Pooled, Seen};
use crate::prior;

/// Caps on the axis beside the default, in shares of it: from 40 %, below which the traces' cards
/// do not go, in steps of a tenth.
const CAP_SHARES: [f64; 6] = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4];
/// GPU counts on the axis at most.
const COUNTS_MAX: usize = 16;
/// GPUs of the node assumed where none is known: the densest spread starts there.
const GPUS_PER_NODE: u32 = 8;
/// Repeating a configuration, a window's rate and power scatter by this; an interval is of what
/// will be seen.
const WINDOW_SD: f64 = 0.02;
/// The fastest a job is believed to run relative to itself alone: noise, not physics.
const SPEED_MAX: f64 = 1.05;
/// The slowest: beyond it, a job stands still for every purpose.
const SPEED_MIN: f64 = 1e-3;

/// One configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// GPUs on all nodes.
    pub gpus: u32,
    /// Nodes spread over.
    pub nodes: u32,
    /// The cap; `None`: the default.
    pub cap: Option<Power>,
    /// The locked highest clock; `None`: not locked.
    pub clock_max: Option<Frequency>,
    /// Classes of the neighbours, sorted; an unknown one is `unknown`.
    pub neighbours: Vec<WorkloadId>,
}

/// All that a point is made of.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The job's models.
    pub model: &'a JobModel,
    /// The card.
    pub card: &'a Card,
    /// What was seen of its class, where it has one.
    pub class: Option<&'a Class>,
    /// What its neighbours are expected to be.
    pub profiles: &'a Profiles,
    /// What sets of tenants do on this kind of card.
    pub pooled: &'a Pooled,
}

impl Question<'_> {
    /// What is expected in `at`.
    #[must_use]
    pub fn point(&self, at: &Configuration) -> SurfacePoint {
        let (mut ln_power, mut power_variance) = self.model.ln_power_alone(at.gpus);
        let mut slow = (0.0, 0.0);
        if !at.neighbours.is_empty() {
            slow = self.slowdown(&at.neighbours);
            (ln_power, power_variance) =
                self.shared_power(&at.neighbours, ln_power, power_variance);
        }
        // No card draws more than its default cap, whatever the curves say.
        if self.card.cap_known {
            ln_power = ln_power.min(self.card.cap_default_w.ln());
        }
        let set = setting(at.cap, at.clock_max);
        let x = cap::features(self.card, ln_power.exp(), set);
        let (held, held_variance) = self.model.curves.slowdown(x, power_variance);
        let (drop, drop_variance) = self.model.curves.power(x, power_variance);
        let beside = LogNormal { mean: -slow.0, variance: slow.1, dof: 8.0 };
        let under = LogNormal { mean: -held, variance: held_variance, dof: 8.0 };
        let noise = LogNormal { mean: 0.0, variance: WINDOW_SD * WINDOW_SD, dof: 1e6 };
        let reference =
            at.neighbours.is_empty() && held <= 0.0 && at.cap.is_none() && at.clock_max.is_none();
        let relative_speed = if reference {
            // By definition.
            Estimate { mean: 1.0, low: 1.0, high: 1.0 }
        } else {
            beside.times(under).times(noise).estimate(SPEED_MIN, SPEED_MAX)
        };
        let steps_per_s = self
            .model
            .ln_rate_set(at.gpus, at.nodes, x, power_variance)
            .map(|alone| alone.times(beside).times(noise).estimate(1e-9, 1e9));
        let power = LogNormal { mean: ln_power + drop, variance: drop_variance, dof: 8.0 };
        let most = if self.card.cap_known { 1.1 * self.card.cap_default_w } else { 5_000.0 };
        SurfacePoint {
            gpus: at.gpus,
            nodes: at.nodes,
            cap_mw: at.cap,
            clock_mhz_max: at.clock_max,
            neighbours: at.neighbours.clone(),
            steps_per_s,
            relative_speed,
            card_power_w: power.times(noise).estimate(0.3 * self.card.idle_w, most),
        }
    }

    fn slowdown(&self, neighbours: &[WorkloadId]) -> (f64, f64) {
        let mix = self.model.mix(neighbours, self.profiles);
        let (set, singles) = self.habits(neighbours, |shared| shared.slow);
        self.pooled.slowdown(&mix, Habit { set: &set, singles: &singles })
    }

    /// The card's power with all tenants, as a logarithm.
    fn shared_power(&self, neighbours: &[WorkloadId], own: f64, variance: f64) -> (f64, f64) {
        let idle = self.card.idle_w;
        let mut sum = (own.exp() - idle).max(1.0);
        let mut sum_variance = variance * own.exp().powi(2);
        for class in neighbours {
            let alone = self.profiles.get(class).and_then(|p| p.ln_power);
            let alone = alone.unwrap_or_else(|| {
                let (share, _) = prior::power_share(Some(class.as_str()));
                crate::fit::Belief { mean: share.mean + self.card.cap_default_w.ln(), sd: share.sd }
            });
            let watts = alone.mean.exp();
            sum += (watts - idle).max(1.0);
            sum_variance += (alone.sd * watts).powi(2);
        }
        let mix = self.model.mix(neighbours, self.profiles);
        let (set, singles) = self.habits(neighbours, |shared| shared.power);
        let (ratio, ratio_variance) =
            self.pooled.power(&mix, Habit { set: &set, singles: &singles });
        let above = sum * ratio.exp();
        let whole = idle + above;
        let relative = sum_variance / (sum * sum) + ratio_variance;
        (whole.ln(), relative * (above / whole).powi(2))
    }

    /// What was seen of just this set, and of each of its neighbours alone.
    fn habits(
        &self,
        neighbours: &[WorkloadId],
        of: impl Fn(&crate::history::SharedSet) -> Option<Stored>,
    ) -> (Vec<Seen>, Vec<Seen>) {
        let own = &self.model.shared;
        let sets = || {
            let class =
                self.class.into_iter().flat_map(|c| c.jobs.iter()).flat_map(|(_, s)| &s.shared);
            // A job's own summary is among its class's.
            own.iter().filter(|_| self.class.is_none()).chain(class)
        };
        let seen = |wanted: &[WorkloadId]| -> Vec<Seen> {
            let mix = self.model.mix(wanted, self.profiles);
            sets()
                .filter(|shared| shared.neighbours == wanted)
                .filter_map(|shared| {
                    let stored = of(shared)?;
                    Some(Seen {
                        neighbours: wanted.len(),
                        sum: mix.sum,
                        mean: stored.mean,
                        variance: stored.sd * stored.sd,
                    })
                })
                .collect()
        };
        let singles = if neighbours.len() < 2 {
            Vec::new()
        } else {
            neighbours.iter().filter_map(|n| seen(std::slice::from_ref(n)).pop()).collect()
        };
        (seen(neighbours), singles)
    }
}

/// The configurations of a surface, what matters most first, at most `max`.
#[must_use]
pub fn configurations(
    gpus: GpuRequest,
    seen: &[(u32, u32)],
    sets_seen: &[Vec<WorkloadId>],
    classes: &[WorkloadId],
    card: &Card,
    max: usize,
) -> Vec<Configuration> {
    let shapes = shapes(gpus, seen);
    // On as few nodes as may be, or as it ran: neighbours slow a job alike however it is spread.
    let is_usual = |s: &&(u32, u32)| s.1 == s.0.div_ceil(GPUS_PER_NODE) || seen.contains(s);
    let caps: Vec<Option<Power>> = if card.cap_known {
        let share = |s: &f64| Some(Power::from_w((card.cap_default_w * s).round() as u64));
        CAP_SHARES.iter().map(share).collect()
    } else {
        Vec::new()
    };
    let mut out = Vec::new();
    // True while there is room for more.
    let mut push = |shape: &(u32, u32), cap: Option<Power>, neighbours: &[WorkloadId]| {
        if out.len() < max {
            out.push(Configuration {
                gpus: shape.0,
                nodes: shape.1,
                cap,
                clock_max: None,
                neighbours: neighbours.to_vec(),
            });
        }
        out.len() < max
    };
    for shape in &shapes {
        push(shape, None, &[]);
        for cap in &caps {
            push(shape, *cap, &[]);
        }
    }
    let singles: Vec<Vec<WorkloadId>> = classes.iter().map(|c| vec![c.clone()]).collect();
    let from = |i: usize| classes.iter().enumerate().skip(i);
    let pairs = from(0).flat_map(|(i, a)| from(i).map(move |(_, b)| vec![a.clone(), b.clone()]));
    let triples = from(0).flat_map(|(i, a)| {
        from(i).flat_map(move |(j, b)| {
            from(j).map(move |(_, c)| vec![a.clone(), b.clone(), c.clone()])
        })
    });
    let seen_sets = sets_seen.iter().filter(|s| s.len() > 1).cloned();
    // Made one by one: with many classes the triples alone would outnumber any surface's points.
    let sets = singles.iter().cloned().chain(seen_sets).chain(pairs).chain(triples);
    let mut done = std::collections::BTreeSet::new();
    'full: for mut set in sets {
        set.sort();
        if done.contains(&set) {
            continue;
        }
        for shape in shapes.iter().filter(|s| set.len() == 1 || is_usual(s)) {
            if !push(shape, None, &set) {
                break 'full;
            }
        }
        done.insert(set);
    }
    for set in &singles {
        for shape in shapes.iter().filter(|s| is_usual(s)) {
            for cap in &caps {
                push(shape, *cap, set);
            }
        }
    }
    out
}

/// The (gpus, nodes) a job could have: powers of two within its request and its ends, each on as
/// few nodes as may be and on two and four times as many; and whatever it already had.
fn shapes(request: GpuRequest, seen: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut counts = vec![request.min, request.max];
    counts.extend((0..32).map(|i| 1u32 << i).filter(|g| (request.min..=request.max).contains(g)));
    counts.sort_unstable();
    counts.dedup();
    counts.truncate(COUNTS_MAX);
    let mut shapes: Vec<(u32, u32)> = seen.iter().copied().take(COUNTS_MAX).collect();
    for gpus in counts {
        let few = gpus.div_ceil(GPUS_PER_NODE);
        shapes
            .extend([few, 2 * few, 4 * few].into_iter().filter(|n| *n <= gpus).map(|n| (gpus, n)));
    }
    shapes.sort_unstable();
    shapes.dedup();
    shapes
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: Card =
        Card { cap_default_w: 250.0, cap_known: true, idle_w: 35.0, clock_mhz_top: None };

    fn id(text: &str) -> WorkloadId {
        WorkloadId::new(text).unwrap()
    }

    #[test]
    fn shapes_hold_the_request_and_what_was_seen() {
        assert_eq!(shapes(GpuRequest::exactly(1), &[]), [(1, 1)]);
        assert_eq!(
            shapes(GpuRequest { min: 2, max: 8 }, &[(3, 3)]),
            [(2, 1), (2, 2), (3, 3), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 4)]
        );
        assert!(shapes(GpuRequest { min: 1, max: u32::MAX }, &[]).len() <= 3 * COUNTS_MAX);
    }

    #[test]
    fn what_matters_most_survives_the_bound() {
        let classes: Vec<WorkloadId> = (0..16).map(|i| id(&format!("c{i:02}"))).collect();
        let seen = [vec![id("c00"), id("c01"), id("c02")]];
        let all = configurations(GpuRequest::exactly(8), &[], &seen, &classes, &CARD, 100_000);
        let mut unique: Vec<String> = all.iter().map(|c| format!("{c:?}")).collect();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), all.len(), "no configuration stands twice");
        let few = configurations(GpuRequest::exactly(8), &[], &seen, &classes, &CARD, 72);
        assert_eq!(few, all[..72]);
        assert!(few.iter().any(|c| c.neighbours == seen[0]), "a set that was seen comes early");
        assert!(classes.iter().all(|c| few.iter().any(|p| p.neighbours == [c.clone()])));
    }
}
