//! Which configurations a surface holds, and how the models make a point of each.
//!
//! What matters most comes first, because a surface is bounded: the job alone over GPUs, nodes and
//! caps, and under the locked clocks it ran with; beside each class alone at the default; beside two
//! and three; beside each class under caps; at last alone under the other clocks a card could have.
//! A configuration that is not there is answered by the nearest that is: the same neighbours on the
//! same GPUs over other nodes have the same relative speed.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::id::WorkloadId;
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Estimate, SurfacePoint};
use wattle_common::observation::{JobShape, Setting};
use wattle_common::{Frequency, Power};

use crate::history::{Class, SharedSet};
use crate::job::cap_clock_response::PreparedSetting;
use crate::job::{JobModel, Profiles};
use crate::model::cap::{self, GpuSpec};
use crate::model::interference::{SetObservation, SetReadings};
use crate::model::pairs::PairTraits;
use crate::pooled::Pooled;
use crate::prior;
use crate::statistics::interval::LogNormal;
use crate::statistics::regression::Gaussian;

/// Caps on the axis beside the default, in shares of it: from 40 %, below which the traces' cards
/// do not go, in steps of a tenth.
pub(crate) const CAP_SHARES: [f64; 6] = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4];
/// Clocks on the axis, in shares of the top.
const CLOCK_SHARES: [f64; 4] = [0.9, 0.8, 0.7, 0.6];
/// Clocks are set in steps of this, MHz (NVML's on data-centre cards).
const CLOCK_STEP_MHZ: f64 = 15.0;
/// Locked clocks of one job on its axis.
const CLOCKS_SEEN_MAX: usize = 4;
/// Settings kept at hand while points are made.
const SETTINGS_MAX: usize = 32;
/// Other global batch sizes on the axis at most.
const BATCHES_MAX: usize = 4;
/// GPU counts on the axis at most.
const COUNTS_MAX: usize = 16;
/// GPUs of the node assumed where none is known: the densest spread starts there.
pub(crate) const GPUS_PER_NODE: u32 = 8;
/// Repeating a configuration, a window's rate and power scatter by this; an interval is of what
/// will be seen.
const WINDOW_SD: f64 = 0.02;
/// The fastest a job is believed to run relative to itself alone: noise, not physics.
pub(crate) const SPEED_MAX: f64 = 1.05;
/// The slowest: beyond it, a job stands still for every purpose.
pub(crate) const SPEED_MIN: f64 = 1e-3;

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
    /// Global batch size; `None`: the job's own, as last seen.
    pub global_batch: Option<u32>,
    /// Classes of the neighbours, sorted; an unknown one is `unknown`.
    pub neighbours: Vec<WorkloadId>,
}

impl Configuration {
    /// Where its steps are taken.
    #[must_use]
    pub fn shape(&self) -> JobShape {
        JobShape { gpus: self.gpus, nodes: self.nodes, batch: self.global_batch }
    }
}

/// All that points are made of.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    model: &'a JobModel,
    card: &'a GpuSpec,
    profiles: &'a Profiles,
    pooled: &'a Pooled,
    me: PairTraits,
    class: Option<&'a Class>,
    /// What was seen of the job, or of its class, by its neighbours' classes.
    seen: BTreeMap<&'a [WorkloadId], Vec<&'a SharedSet>>,
}

/// What a set of neighbours does, whatever the GPUs and caps.
#[derive(Clone, Copy, Debug)]
struct Together {
    /// The logarithm of the job's slow-down, and its variance.
    slow: (f64, f64),
    /// The neighbours' own power above idle, watts, and its variance.
    others_w: (f64, f64),
    /// The logarithm of the card's power above idle over all tenants' added up, and its variance.
    ratio: (f64, f64),
}

impl<'a> Question<'a> {
    /// Questions about the job of `model`, whose class was seen as `class`.
    #[must_use]
    pub fn new(
        model: &'a JobModel,
        card: &'a GpuSpec,
        class: Option<&'a Class>,
        profiles: &'a Profiles,
        pooled: &'a Pooled,
    ) -> Self {
        let mut seen: BTreeMap<&[WorkloadId], Vec<&SharedSet>> = BTreeMap::new();
        // A job's own summary is among its class's.
        let own = model.shared.iter().filter(|_| class.is_none());
        let like = class.into_iter().flat_map(|c| &c.jobs).flat_map(|(_, s)| &s.shared);
        for set in own.chain(like) {
            seen.entry(&set.neighbours).or_default().push(set);
        }
        Self { model, card, profiles, pooled, me: model.traits(), class, seen }
    }

    /// What is expected in each of `wanted`.
    #[must_use]
    pub fn points(&self, wanted: &[Configuration]) -> Vec<SurfacePoint> {
        let classes: BTreeSet<&WorkloadId> = wanted.iter().flat_map(|at| &at.neighbours).collect();
        let singles: Singles<'_> = classes.into_iter().map(|c| (c, self.single(c))).collect();
        // Configurations with the same neighbours follow each other.
        let mut last: Option<(&[WorkloadId], Together)> = None;
        // Few settings are asked for many times.
        let mut settings: Vec<(Setting, PreparedSetting)> = Vec::new();
        let mut out = Vec::with_capacity(wanted.len());
        for at in wanted {
            let neighbours = at.neighbours.as_slice();
            let together = match last {
                _ if neighbours.is_empty() => None,
                Some((set, together)) if set == neighbours => Some(together),
                _ => Some(self.together(neighbours, &singles)),
            };
            last = together.map(|together| (neighbours, together));
            let set = Setting::new(at.cap, at.clock_max);
            let known = settings.iter().position(|(s, _)| *s == set).unwrap_or_else(|| {
                settings.truncate(SETTINGS_MAX - 1);
                settings.push((set, self.model.held.prepare(set)));
                settings.len() - 1
            });
            out.push(self.point(at, together, &settings[known].1));
        }
        out
    }

    fn point(
        &self,
        at: &Configuration,
        together: Option<Together>,
        prepared: &PreparedSetting,
    ) -> SurfacePoint {
        let (mut ln_power, mut power_variance) = self.model.ln_power_alone(at.gpus);
        let mut slow = (0.0, 0.0);
        if let Some(together) = together {
            slow = together.slow;
            (ln_power, power_variance) = self.shared_power(together, ln_power, power_variance);
        }
        // No card draws more than its default cap, whatever the curves say.
        if self.card.cap_known {
            ln_power = ln_power.min(self.card.cap_default_w.ln());
        }
        let set = Setting::new(at.cap, at.clock_max);
        let (held, drop) = self.model.held.answer(prepared, ln_power, power_variance);
        let beside = LogNormal { mean: -slow.0, variance: slow.1, dof: 8.0 };
        let under = LogNormal { mean: -held.mean, variance: held.fitted + held.form, dof: 8.0 };
        // A job that scattered more, or less, than windows do goes on doing so.
        let (rate_noise, power_noise) = self.model.noise();
        let noise =
            |ratio: f64| LogNormal { mean: 0.0, variance: (WINDOW_SD * ratio).powi(2), dof: 1e6 };
        let reference = together.is_none() && cap::is_default(self.card, set);
        let relative_speed = if reference {
            // By definition.
            Estimate { mean: 1.0, low: 1.0, high: 1.0 }
        } else {
            beside.times(under).times(noise(rate_noise)).estimate(SPEED_MIN, SPEED_MAX)
        };
        let steps_per_s = self
            .model
            .ln_rate_set(at.shape(), prepared, held)
            // An iteration seen in power may be several steps, or a part of one.
            .filter(|_| !self.model.inferred)
            .map(|alone| alone.times(beside).times(noise(rate_noise)).estimate(1e-9, 1e9));
        let power =
            LogNormal { mean: ln_power + drop.mean, variance: drop.fitted + drop.form, dof: 8.0 };
        let most = if self.card.cap_known { 1.1 * self.card.cap_default_w } else { 5_000.0 };
        SurfacePoint {
            gpus: at.gpus,
            nodes: at.nodes,
            cap_mw: at.cap,
            clock_mhz_max: at.clock_max,
            global_batch: at.global_batch,
            neighbours: at.neighbours.clone(),
            steps_per_s,
            relative_speed,
            gpu_power_w: power.times(noise(power_noise)).estimate(0.3 * self.card.idle_w, most),
        }
    }

    /// The logarithm of the slow-down beside `class` alone: as it was seen, or as pairs like it were.
    fn single(&self, class: &WorkloadId) -> (f64, f64) {
        let neighbour = std::slice::from_ref(class);
        let mut seen = self.seen_of(neighbour, |shared| shared.slow);
        let mix = self.model.mix(neighbour, self.profiles);
        if seen.is_empty() {
            // Longer ago than any job's sets that are kept.
            let kept = self.class.and_then(|c| c.beside.of(class));
            seen.extend(kept.map(|stored| SetObservation::new(&mix, stored)));
        }
        if seen.is_empty() {
            self.model.pair_slow(&self.me, class, self.profiles, self.pooled)
        } else {
            self.pooled.interference.slowdown(&mix, &seen)
        }
    }

    fn slow(&self, neighbours: &[WorkloadId], singles: &Singles<'_>) -> (f64, f64) {
        let mix = self.model.mix(neighbours, self.profiles);
        if let [one] = neighbours {
            return singles[one];
        }
        let seen = self.seen_of(neighbours, |shared| shared.slow);
        if !seen.is_empty() {
            return self.pooled.interference.slowdown(&mix, &seen);
        }
        let pair = |n| (self.model.mix(std::slice::from_ref(n), self.profiles), singles[n]);
        let pairs: Vec<_> = neighbours.iter().map(pair).collect();
        self.pooled.interference.slowdown_of_pairs(&mix, &pairs)
    }

    fn power_ratio(&self, neighbours: &[WorkloadId]) -> (f64, f64) {
        let mix = self.model.mix(neighbours, self.profiles);
        let of = |shared: &SharedSet| shared.power;
        let set = self.seen_of(neighbours, of);
        let alone = |n| self.seen_of(std::slice::from_ref(n), of).pop();
        let singles: Vec<SetObservation> = if set.is_empty() && neighbours.len() > 1 {
            neighbours.iter().filter_map(alone).collect()
        } else {
            Vec::new()
        };
        self.pooled.interference.power(&mix, SetReadings { set: &set, singles: &singles })
    }

    fn together(&self, neighbours: &[WorkloadId], singles: &Singles<'_>) -> Together {
        let (mut others, mut variance) = (0.0, 0.0);
        for class in neighbours {
            let alone = self.profiles.get(class).and_then(|p| p.ln_power);
            let alone = alone.unwrap_or_else(|| {
                let (share, _) = prior::power_share(Some(class.as_str()), self.card.power_carried);
                Gaussian { mean: share.mean + self.card.cap_default_w.ln(), sd: share.sd }
            });
            let watts = alone.mean.exp();
            others += (watts - self.card.idle_w).max(1.0);
            variance += (alone.sd * watts).powi(2);
        }
        Together {
            slow: self.slow(neighbours, singles),
            others_w: (others, variance),
            ratio: self.power_ratio(neighbours),
        }
    }

    /// The card's power with all tenants, as a logarithm.
    fn shared_power(&self, together: Together, own: f64, variance: f64) -> (f64, f64) {
        let idle = self.card.idle_w;
        let sum = together.others_w.0 + (own.exp() - idle).max(1.0);
        let sum_variance = together.others_w.1 + variance * own.exp().powi(2);
        let above = sum * together.ratio.0.exp();
        let whole = idle + above;
        let relative = sum_variance / (sum * sum) + together.ratio.1;
        (whole.ln(), relative * (above / whole).powi(2))
    }

    /// What was seen of just these neighbours.
    fn seen_of(
        &self,
        neighbours: &[WorkloadId],
        of: fn(&SharedSet) -> Option<Gaussian>,
    ) -> Vec<SetObservation> {
        let Some(sets) = self.seen.get(neighbours) else { return Vec::new() };
        let mix = self.model.mix(neighbours, self.profiles);
        sets.iter()
            .filter_map(|set| of(set))
            .map(|stored| SetObservation::new(&mix, stored))
            .collect()
    }
}

/// By class, the logarithm of the job's slow-down beside one of it alone, and its variance.
type Singles<'b> = BTreeMap<&'b WorkloadId, (f64, f64)>;

/// What a surface's axes depend on beside GPUs and neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// The card.
    pub card: &'a GpuSpec,
    /// Locked clocks the job ran with, MHz.
    pub clocks_seen: &'a [f64],
    /// Global batch sizes the job or its class ran with, other than the job's own now.
    pub batches_seen: &'a [u32],
}

/// The configurations of a surface, what matters most first, at most `max`.
#[must_use]
pub fn configurations(
    gpus: GpuRequest,
    seen: &[(u32, u32)],
    sets_seen: &[Vec<WorkloadId>],
    classes: &[WorkloadId],
    Axes { card, clocks_seen, batches_seen }: Axes<'_>,
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
    let mut push = |shape: &(u32, u32), set: Set, neighbours: &[WorkloadId], batch: Option<u32>| {
        if out.len() < max {
            out.push(Configuration {
                gpus: shape.0,
                nodes: shape.1,
                cap: set.0,
                clock_max: set.1,
                global_batch: batch,
                neighbours: neighbours.to_vec(),
            });
        }
        out.len() < max
    };
    for shape in &shapes {
        push(shape, (None, None), &[], None);
        for cap in &caps {
            push(shape, (*cap, None), &[], None);
        }
    }
    let clocks = clocks(card, clocks_seen);
    let (locked, others) =
        clocks.split_at(clocks_seen.len().min(CLOCKS_SEEN_MAX).min(clocks.len()));
    for shape in shapes.iter().filter(is_usual) {
        for clock in locked {
            push(shape, (None, *clock), &[], None);
        }
    }
    for shape in shapes.iter().filter(is_usual) {
        for batch in batches_seen.iter().take(BATCHES_MAX) {
            push(shape, (None, None), &[], Some(*batch));
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
    let mut done = BTreeSet::new();
    'full: for mut set in sets {
        set.sort();
        if done.contains(&set) {
            continue;
        }
        for shape in shapes.iter().filter(|s| set.len() == 1 || is_usual(s)) {
            if !push(shape, (None, None), &set, None) {
                break 'full;
            }
        }
        done.insert(set);
    }
    for set in &singles {
        for shape in shapes.iter().filter(|s| is_usual(s)) {
            for cap in &caps {
                push(shape, (*cap, None), set, None);
            }
        }
    }
    for shape in shapes.iter().filter(is_usual) {
        for clock in others {
            push(shape, (None, *clock), &[], None);
        }
    }
    out
}

/// A cap and a clock.
type Set = (Option<Power>, Option<Frequency>);

/// The clocks of the axis: those `seen`, then the others.
fn clocks(card: &GpuSpec, seen: &[f64]) -> Vec<Option<Frequency>> {
    let locked = |mhz: f64| Some(Frequency::from_mhz(mhz.round() as u32));
    let seen = seen.iter().take(CLOCKS_SEEN_MAX).filter(|mhz| **mhz >= CLOCK_STEP_MHZ);
    let mut clocks: Vec<Option<Frequency>> = Vec::new();
    for clock in seen.map(|mhz| locked(*mhz)).chain(clock_axis(card)) {
        if !clocks.contains(&clock) {
            clocks.push(clock);
        }
    }
    clocks
}

/// The clocks that are asked of every job, descending; none where the card's top was not seen.
pub(crate) fn clock_axis(card: &GpuSpec) -> impl Iterator<Item = Option<Frequency>> {
    let top = card.clock_mhz_top.unwrap_or(0.0);
    let stepped = CLOCK_SHARES
        .iter()
        .map(move |share| (top * share / CLOCK_STEP_MHZ).floor() * CLOCK_STEP_MHZ)
        .filter(|mhz| *mhz >= CLOCK_STEP_MHZ);
    stepped.map(|mhz| Some(Frequency::from_mhz(mhz.round() as u32)))
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

    const CARD: GpuSpec = GpuSpec {
        cap_default_w: 250.0,
        cap_known: true,
        idle_w: 35.0,
        clock_mhz_top: None,
        power_carried: true,
    };

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
        let all =
            configurations(GpuRequest::exactly(8), &[], &seen, &classes, axes(&CARD, &[]), 100_000);
        let mut unique: Vec<String> = all.iter().map(|c| format!("{c:?}")).collect();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), all.len(), "no configuration stands twice");
        let few =
            configurations(GpuRequest::exactly(8), &[], &seen, &classes, axes(&CARD, &[]), 72);
        assert_eq!(few, all[..72]);
        assert!(few.iter().any(|c| c.neighbours == seen[0]), "a set that was seen comes early");
        assert!(classes.iter().all(|c| few.iter().any(|p| p.neighbours == [c.clone()])));
    }

    fn axes<'a>(card: &'a GpuSpec, clocks_seen: &'a [f64]) -> Axes<'a> {
        Axes { card, clocks_seen, batches_seen: &[] }
    }

    #[test]
    fn batches_that_were_seen_come_before_neighbours() {
        let axes = Axes { batches_seen: &[32, 64], ..axes(&CARD, &[]) };
        let all = configurations(GpuRequest::exactly(1), &[], &[], &[id("a")], axes, 1_000);
        let batches = |c: &&Configuration| c.global_batch.is_some();
        let beside = all.iter().position(|c| !c.neighbours.is_empty()).unwrap();
        assert_eq!(all[..beside].iter().filter(batches).count(), 2);
        assert_eq!(all.iter().filter(batches).count(), 2);
    }

    #[test]
    fn clocks_that_were_seen_come_early_and_others_last() {
        let card = GpuSpec { clock_mhz_top: Some(1_410.0), ..CARD };
        let classes = [id("a"), id("b")];
        let all = configurations(
            GpuRequest::exactly(1),
            &[],
            &[],
            &classes,
            axes(&card, &[1_275.0, 1_050.0]),
            1_000,
        );
        let at =
            |mhz| all.iter().position(|c| c.clock_max == Some(Frequency::from_mhz(mhz))).unwrap();
        let beside = all.iter().position(|c| !c.neighbours.is_empty()).unwrap();
        assert!(at(1_275) < beside && at(1_050) < beside && at(1_125) > beside);
        assert_eq!(all.iter().filter(|c| c.clock_max.is_some()).count(), 2 + CLOCK_SHARES.len());
        assert!(all.iter().all(|c| c.clock_max.is_none() || c.neighbours.is_empty()));
    }
}
