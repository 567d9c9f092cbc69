//! The configurations of a surface, the most important first, because their number is limited.
//!
//! In order: exclusive GPUs over counts, nodes and caps, then under the locked clocks of past
//! windows, then other batch sizes; one co-tenant of each class, past sets of co-tenants, pairs and
//! triples; one co-tenant under caps; other clocks. A reader uses the nearest configuration for one
//! that is absent: relative speed hardly depends on the number of nodes.

use wattle_common::id::WorkloadId;
use wattle_common::job::GpuRequest;
use wattle_common::observation::JobShape;
use wattle_common::{Frequency, Power};

use crate::model::cap::GpuSpec;

/// Caps of the axis as shares of the default cap. The traces contain no cap below 40 %, but an A100 at the lowest
/// measured clock, 870 of 1,410 MHz, draws 35 %. The placer leaves out caps that a GPU cannot have.
const CAP_SHARES: [f64; 7] = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.35];
/// Clocks of the axis as shares of the top clock.
const CLOCK_SHARES: [f64; 4] = [0.9, 0.8, 0.7, 0.6];
/// Step of clocks, MHz (NVML on data-centre GPUs).
const CLOCK_STEP_MHZ: f64 = 15.0;
/// Largest number of locked clocks of past windows on the axis.
const CLOCKS_SEEN_MAX: usize = 4;
/// Largest number of other global batch sizes on the axis.
const BATCHES_MAX: usize = 4;
/// Largest number of GPU counts on the axis.
const COUNTS_MAX: usize = 16;
/// Assumed number of GPUs of a node.
const GPUS_PER_NODE: u32 = 8;

/// One configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// GPUs on all nodes.
    pub gpus: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// The cap; `None`: the default.
    pub cap: Option<Power>,
    /// Highest locked clock; `None`: not locked.
    pub clock_max: Option<Frequency>,
    /// Global batch size; `None`: the job's own, as last reported.
    pub global_batch: Option<u32>,
    /// Classes of the co-tenants, sorted; `unknown` for an unknown one.
    pub neighbours: Vec<WorkloadId>,
}

impl Configuration {
    /// GPUs, nodes and batch.
    #[must_use]
    pub fn shape(&self) -> JobShape {
        JobShape { gpus: self.gpus, nodes: self.nodes, batch: self.global_batch }
    }
}

/// The inputs of the axes other than GPU count and co-tenants.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// The GPU type.
    pub gpu: &'a GpuSpec,
    /// Locked clocks of past windows, MHz.
    pub clocks_seen: &'a [f64],
    /// Past global batch sizes of the job or its class, without its current one.
    pub batches_seen: &'a [u32],
}

/// Limits of a surface.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most configurations.
    pub points: usize,
    /// Most co-tenants. Configurations with more count within `points` and are left out.
    pub neighbours: usize,
}

/// The configurations of a surface, the most important first. `classes` are sorted.
#[must_use]
pub fn configurations(
    gpus: GpuRequest,
    seen: &[(u32, u32)],
    sets_seen: &[Vec<WorkloadId>],
    classes: &[WorkloadId],
    Axes { gpu, clocks_seen, batches_seen }: Axes<'_>,
    max: Limits,
) -> Vec<Configuration> {
    let shapes = shapes(gpus, seen);
    // On the fewest nodes or as it ran: the slow-down hardly depends on the number of nodes.
    let is_usual = |s: &&(u32, u32)| s.1 == s.0.div_ceil(GPUS_PER_NODE) || seen.contains(s);
    let caps: Vec<Option<Power>> = if gpu.cap_known {
        let share = |s: &f64| Some(Power::from_w((gpu.cap_default_w * s).round() as u64));
        CAP_SHARES.iter().map(share).collect()
    } else {
        Vec::new()
    };
    let mut out = Vec::new();
    let mut listed = 0;
    // Returns whether there is room for more.
    let mut push =
        |shape: &(u32, u32), set: Set, neighbours: &[&WorkloadId], batch: Option<u32>| {
            let has_room = listed < max.points;
            listed += usize::from(has_room);
            if has_room && neighbours.len() <= max.neighbours {
                out.push(Configuration {
                    gpus: shape.0,
                    nodes: shape.1,
                    cap: set.0,
                    clock_max: set.1,
                    global_batch: batch,
                    neighbours: neighbours.iter().map(|&class| class.clone()).collect(),
                });
            }
            listed < max.points
        };
    for shape in &shapes {
        push(shape, (None, None), &[], None);
        for cap in &caps {
            push(shape, (*cap, None), &[], None);
        }
    }
    let clocks = clocks(gpu, clocks_seen);
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
    let singles: Vec<Vec<&WorkloadId>> = classes.iter().map(|c| vec![c]).collect();
    let from = |i: usize| classes.iter().enumerate().skip(i);
    let pairs = from(0).flat_map(|(i, a)| from(i).map(move |(_, b)| vec![a, b]));
    let triples = from(0).flat_map(|(i, a)| {
        from(i).flat_map(move |(j, b)| from(j).map(move |(_, c)| vec![a, b, c]))
    });
    let mut seen_sets: Vec<Vec<&WorkloadId>> = Vec::new();
    for set in sets_seen.iter().filter(|set| set.len() > 1) {
        let mut set: Vec<&WorkloadId> = set.iter().collect();
        set.sort();
        if !seen_sets.contains(&set) {
            seen_sets.push(set);
        }
    }
    // Lazily: with many classes the triples exceed the limit.
    let new = pairs.chain(triples).filter(|set| !seen_sets.contains(set));
    'full: for set in singles.iter().chain(&seen_sets).cloned().chain(new) {
        for shape in shapes.iter().filter(|s| set.len() == 1 || is_usual(s)) {
            if !push(shape, (None, None), &set, None) {
                break 'full;
            }
        }
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

/// The clocks of the axis: past ones, then the others.
fn clocks(gpu: &GpuSpec, seen: &[f64]) -> Vec<Option<Frequency>> {
    let locked = |mhz: f64| Some(Frequency::from_mhz(mhz.round() as u32));
    let seen = seen.iter().take(CLOCKS_SEEN_MAX).filter(|mhz| **mhz >= CLOCK_STEP_MHZ);
    let mut clocks: Vec<Option<Frequency>> = Vec::new();
    for clock in seen.map(|mhz| locked(*mhz)).chain(clock_axis(gpu)) {
        if !clocks.contains(&clock) {
            clocks.push(clock);
        }
    }
    clocks
}

/// The clocks common to all jobs, descending; none where the top clock is unknown.
fn clock_axis(gpu: &GpuSpec) -> impl Iterator<Item = Option<Frequency>> {
    let top = gpu.clock_mhz_top.unwrap_or(0.0);
    let stepped = CLOCK_SHARES
        .iter()
        .map(move |share| (top * share / CLOCK_STEP_MHZ).floor() * CLOCK_STEP_MHZ)
        .filter(|mhz| *mhz >= CLOCK_STEP_MHZ);
    stepped.map(|mhz| Some(Frequency::from_mhz(mhz.round() as u32)))
}

/// Pairs of (gpus, nodes): powers of two within the request and its ends, each on the fewest nodes
/// and on two and four times as many, and past shapes.
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

    const GPU: GpuSpec = GpuSpec {
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
    fn shapes_contain_the_request_and_past_shapes() {
        assert_eq!(shapes(GpuRequest::exactly(1), &[]), [(1, 1)]);
        assert_eq!(
            shapes(GpuRequest { min: 2, max: 8 }, &[(3, 3)]),
            [(2, 1), (2, 2), (3, 3), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 4)]
        );
        assert!(shapes(GpuRequest { min: 1, max: u32::MAX }, &[]).len() <= 3 * COUNTS_MAX);
    }

    #[test]
    fn most_important_configurations_come_first() {
        let classes: Vec<WorkloadId> = (0..16).map(|i| id(&format!("c{i:02}"))).collect();
        let seen = [vec![id("c00"), id("c01"), id("c02")]];
        let all = configurations(
            GpuRequest::exactly(8),
            &[],
            &seen,
            &classes,
            axes(&GPU, &[]),
            most(100_000),
        );
        let mut unique: Vec<String> = all.iter().map(|c| format!("{c:?}")).collect();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), all.len(), "duplicate configurations");
        let of = |max| {
            configurations(GpuRequest::exactly(8), &[], &seen, &classes, axes(&GPU, &[]), max)
        };
        let few = of(most(76));
        assert_eq!(few, all[..76]);
        assert!(few.iter().any(|c| c.neighbours == seen[0]), "a past set comes early");
        assert!(classes.iter().all(|c| few.iter().any(|p| p.neighbours == [c.clone()])));
        // Those with more co-tenants than wanted are left out, and no other takes their place.
        for points in [76, 300, 100_000] {
            let alone_or_one = of(Limits { points, neighbours: 1 });
            let mut expected = of(most(points));
            expected.retain(|at| at.neighbours.len() <= 1);
            assert_eq!(alone_or_one, expected);
        }
    }

    fn most(points: usize) -> Limits {
        Limits { points, neighbours: usize::MAX }
    }

    fn axes<'a>(gpu: &'a GpuSpec, clocks_seen: &'a [f64]) -> Axes<'a> {
        Axes { gpu, clocks_seen, batches_seen: &[] }
    }

    #[test]
    fn past_batches_come_before_neighbours() {
        let axes = Axes { batches_seen: &[32, 64], ..axes(&GPU, &[]) };
        let all = configurations(GpuRequest::exactly(1), &[], &[], &[id("a")], axes, most(1_000));
        let batches = |c: &&Configuration| c.global_batch.is_some();
        let colocated = all.iter().position(|c| !c.neighbours.is_empty()).unwrap();
        assert_eq!(all[..colocated].iter().filter(batches).count(), 2);
        assert_eq!(all.iter().filter(batches).count(), 2);
    }

    #[test]
    fn past_clocks_come_early_and_others_last() {
        let gpu = GpuSpec { clock_mhz_top: Some(1_410.0), ..GPU };
        let classes = [id("a"), id("b")];
        let all = configurations(
            GpuRequest::exactly(1),
            &[],
            &[],
            &classes,
            axes(&gpu, &[1_275.0, 1_050.0]),
            most(1_000),
        );
        let at =
            |mhz| all.iter().position(|c| c.clock_max == Some(Frequency::from_mhz(mhz))).unwrap();
        let colocated = all.iter().position(|c| !c.neighbours.is_empty()).unwrap();
        assert!(at(1_275) < colocated && at(1_050) < colocated && at(1_125) > colocated);
        assert_eq!(all.iter().filter(|c| c.clock_max.is_some()).count(), 2 + CLOCK_SHARES.len());
        assert!(all.iter().all(|c| c.clock_max.is_none() || c.neighbours.is_empty()));
    }
}
