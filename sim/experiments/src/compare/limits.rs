//! Lower bounds for a case's jobs, under the accounting of its runs.
//!
//! Where jobs may share, a co-located job takes half of each of its GPUs, and a part of the GPU's
//! power above idle in proportion to the power of each job without co-tenants; the parts of a pair
//! add up to the pair's power. Every schedule of pairs is therefore, in GPUs and in energy, a
//! schedule of halves, for which the bound without sharing holds. The bound is looser, since a half
//! needs no partner. GPUs are then counted in halves.
//!
//! Below a power limit the jobs have the limit less the power that no schedule avoids: that of nodes asleep,
//! or awake and idle. Where nodes sleep, a job is charged its GPUs' shares of the awake host, as for energy,
//! and awake nodes draw at least the sum of these shares.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::GpuRequest;
use wattle_world::{GpuModel, Setting, Tenant, Workload, World};

use super::{Bounds, Neighbours};
use crate::bound::{
    BoundError, BoundFrontier, BoundJob, BoundOption, PricedSearch, Supply, contention_free,
    over_limits, priced, priced_over,
};
use wattle_simulator::carbon::CarbonSeries;
use wattle_simulator::{Scenario, Work};
use wattle_simulator::{gpu_counts, selectable_clocks};

/// Number of jobs from which the search for a bound is coarser, to limit its time.
const MANY_JOBS: usize = 5_000;

/// The bounds over energy and over emissions.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) alone: BoundFrontier,
    pub(super) tight: BoundFrontier,
    /// Over emissions in kg, where there is a carbon series; with perfect knowledge of it.
    pub(super) carbon: Option<BoundFrontier>,
}

impl Limits {
    /// Adds the energy and emissions of every schedule.
    pub(super) fn shifted(&self, kwh: f64, kg: f64) -> Self {
        Self {
            alone: self.alone.shifted(kwh),
            tight: self.tight.shifted(kwh),
            carbon: self.carbon.as_ref().map(|carbon| carbon.shifted(kg)),
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            energy_kwh: self.tight.least_energy().0,
            jct_s_mean: self.tight.fastest().1,
            frontier: self.tight.points().to_vec(),
            alone: self.alone.points().to_vec(),
            carbon_kg: self.carbon.as_ref().map(|carbon| carbon.least_energy().0),
            carbon_frontier: self.carbon.as_ref().map_or_else(Vec::new, |c| c.points().to_vec()),
        }
    }
}

/// The energy that a schedule is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Charged {
    /// Energy of GPUs above idle.
    AboveIdle,
    /// Also the idle energy of each used GPU and of its share of the host.
    Awake,
}

/// Bounds for the jobs of `scenario` over all GPU counts of their requests and all clocks, and over
/// all caps where a policy chooses caps, for schedules that draw at most `watts` for jobs where there is a power
/// limit. The default precision depends on the number of jobs.
pub(super) fn limits(
    world: &World,
    scenario: &Scenario,
    charged: Charged,
    neighbours: Neighbours,
    caps: bool,
    watts: Option<f64>,
    search: Option<&PricedSearch>,
) -> Limits {
    let shared = neighbours != Neighbours::Alone;
    let jobs = bound_jobs(world, scenario, charged, shared, caps || watts.is_some());
    let gpus = scenario.cluster.gpu_count() as u32 * if shared { HALVES } else { 1 };
    let search = precision(search, &jobs);
    let alone = contention_free(&jobs, gpus).expect("jobs that ran can be bounded");
    let mut supply = Supply::from(gpus);
    let limited = watts.map(|watts| Supply { gpus, watts });
    let tight = match limited.map(|limited| priced(&jobs, limited, &search)) {
        // No schedule holds such a limit: the runs exceed it, and only the bound without it holds for them.
        None | Some(Err(_)) => priced(&jobs, gpus, &search).expect("as above"),
        Some(Ok(tight)) => {
            supply = limited.unwrap_or(supply);
            tight
        }
    };
    let carbon =
        scenario.carbon.as_ref().and_then(|series| of_carbon(&jobs, supply, &search, series).ok());
    Limits { alone, tight: tight.frontier, carbon }
}

fn precision(search: Option<&PricedSearch>, jobs: &[BoundJob]) -> PricedSearch {
    search.cloned().unwrap_or_else(|| match jobs.len() {
        ..MANY_JOBS => PricedSearch::default(),
        _ => PricedSearch::coarse(),
    })
}

/// The least mean completion time without sharing, in seconds, over the power that a limit leaves to jobs, W.
pub(super) fn over_power(
    world: &World,
    scenario: &Scenario,
    charged: Charged,
    search: Option<&PricedSearch>,
    limits_w: &[f64],
) -> Result<BoundFrontier, BoundError> {
    let jobs = bound_jobs(world, scenario, charged, false, true);
    let gpus = scenario.cluster.gpu_count() as u32;
    over_limits(&jobs, gpus, &precision(search, &jobs), limits_w)
}

/// The least mean completion time over emissions in kg. Empty where an hour has zero intensity,
/// since waiting for it reduces emissions to zero.
fn of_carbon(
    jobs: &[BoundJob],
    supply: Supply,
    search: &PricedSearch,
    series: &CarbonSeries,
) -> Result<BoundFrontier, BoundError> {
    let mean = series.mean_g_per_kwh();
    let at = |s: f64| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX);
    let weight = |from_s, until_s| series.least_g_per_kwh(at(from_s), at(until_s)) / mean;
    Ok(priced_over(jobs, supply, search, &weight)?.frontier.scaled(mean / 1e3))
}

/// Parts of a GPU where two jobs may share it.
const HALVES: u32 = 2;

/// The jobs with the world's speed and power at every GPU count and setting.
fn bound_jobs(
    world: &World,
    scenario: &Scenario,
    charged: Charged,
    shared: bool,
    caps: bool,
) -> Vec<BoundJob> {
    let Some(group) = scenario.cluster.groups().first() else { return Vec::new() };
    let Some(gpu) = world.gpu(&group.gpu_type) else { return Vec::new() };
    let per_node = group.gpus_per_node.max(1);
    let host_w = world.host_power_of(gpu, per_node).saturating_sub(gpu.sleep.power).as_w();
    let share_w = match charged {
        Charged::AboveIdle => 0.0,
        Charged::Awake => gpu.idle.as_w() + host_w / f64::from(per_node),
    };
    // Every workload at every GPU count of its jobs.
    let mut shapes: BTreeMap<(&str, u32), Tenant<'_>> = BTreeMap::new();
    for job in &scenario.jobs {
        let Some(workload) = world.workload(job.workload.as_str()) else { continue };
        for gpus in gpu_counts(job.gpus) {
            let nodes = gpus.div_ceil(per_node);
            shapes.entry((workload.id.as_str(), gpus)).or_insert(Tenant { workload, gpus, nodes });
        }
    }
    let ways =
        Ways { world, gpu, per_node, share_w, settings: settings(gpu, caps), shapes, shared };
    let mut known: BTreeMap<(&str, u32, u32), Arc<[BoundOption]>> = BTreeMap::new();
    let mut jobs = Vec::with_capacity(scenario.jobs.len());
    for job in &scenario.jobs {
        let Some(workload) = world.workload(job.workload.as_str()) else { continue };
        let key = (job.workload.as_str(), job.gpus.min, job.gpus.max);
        let options = known.entry(key).or_insert_with(|| ways.of(workload, job.gpus).into());
        let nodes = job.gpus.min.div_ceil(per_node);
        let work = match job.work {
            Work::Steps(steps) => steps as f64,
            // A run time refers to the first placement; it is a number of steps only where the GPU
            // count is fixed.
            Work::Lasts(span) => {
                span.as_secs_f64() * workload.steps_per_s(gpu, job.gpus.min, nodes)
            }
        };
        let arrival_s = job.submit.as_secs_f64();
        jobs.push(BoundJob { arrival_s, work, options: options.clone() });
    }
    jobs
}

/// Every selectable clock, and caps: those of predicted surfaces and of the enforcement of power limits, which
/// are on this grid, and others between them.
fn settings(gpu: &GpuModel, caps: bool) -> Vec<Setting> {
    let mut settings = vec![Setting::default()];
    settings.extend(
        selectable_clocks(gpu)
            .into_iter()
            .map(|clock| Setting { clock_max: Some(clock), ..Setting::default() }),
    );
    if caps {
        let shares = (4..20).map(|share| gpu.cap_default.scale(f64::from(share) / 20.0));
        let caps = shares.chain([gpu.cap_min]);
        settings.extend(caps.map(|cap| Setting { cap: Some(cap), ..Setting::default() }));
    }
    settings
}

struct Ways<'w> {
    world: &'w World,
    gpu: &'w GpuModel,
    per_node: u32,
    share_w: f64,
    settings: Vec<Setting>,
    shapes: BTreeMap<(&'w str, u32), Tenant<'w>>,
    shared: bool,
}

impl<'w> Ways<'w> {
    /// The options of a job that are optimal at some prices.
    fn of(&self, workload: &'w Workload, request: GpuRequest) -> Vec<BoundOption> {
        let mut options = Vec::new();
        for gpus in gpu_counts(request) {
            let nodes = gpus.div_ceil(self.per_node);
            let own = Tenant { workload, gpus, nodes };
            let rate = workload.steps_per_s(self.gpu, gpus, nodes);
            // By GPU count: full GPUs or halves.
            let mut whole = Vec::new();
            let mut halves = Vec::new();
            for &setting in &self.settings {
                let alone = self.world.gpu_state(self.gpu, setting, &[own]);
                let above_w = (alone.power.as_w() - self.gpu.idle.as_w()).max(0.0);
                whole.push((alone.tenants[0].speed * rate, above_w + self.share_w));
                if !self.shared {
                    continue;
                }
                for other in self.shapes.values() {
                    let both = [own, *other];
                    if !self.world.fits(self.gpu, &both) {
                        continue;
                    }
                    let state = self.world.gpu_state(self.gpu, setting, &both);
                    let its = self.world.gpu_state(self.gpu, setting, &[*other]);
                    let its_w = (its.power.as_w() - self.gpu.idle.as_w()).max(0.0);
                    // The same values for both jobs of a pair.
                    let part =
                        if above_w + its_w > 0.0 { above_w / (above_w + its_w) } else { 0.5 };
                    let drawn_w = (state.power.as_w() - self.gpu.idle.as_w()).max(0.0);
                    let watts = drawn_w * part + self.share_w / 2.0;
                    halves.push((state.tenants[0].speed * rate, watts));
                }
            }
            let unit = if self.shared { HALVES } else { 1 };
            let of = |gpus_taken: u32, ways: Vec<(f64, f64)>| {
                best(ways).into_iter().map(move |(steps_per_s, gpu_w)| BoundOption {
                    gpus: gpus_taken,
                    steps_per_s,
                    power_w: gpu_w * f64::from(gpus),
                })
            };
            options.extend(of(gpus * unit, whole));
            options.extend(of(gpus, halves));
        }
        options
    }
}

/// The upper hull of (speed, watts): options that no mixture of others dominates.
fn best(mut ways: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    ways.retain(|(speed, _)| *speed > 0.0);
    ways.sort_by(|a, b| a.1.total_cmp(&b.1).then(b.0.total_cmp(&a.0)));
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for way in ways {
        if hull.last().is_some_and(|last| way.0 <= last.0) {
            continue;
        }
        while let [.., a, b] = hull[..] {
            if (b.0 - a.0) * (way.1 - a.1) > (way.0 - a.0) * (b.1 - a.1) {
                break;
            }
            hull.pop();
        }
        hull.push(way);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dominated_mixtures_are_dropped() {
        let ways = vec![(2.0, 4.0), (1.0, 1.0), (1.2, 3.0), (0.0, 0.0), (2.0, 5.0), (1.6, 2.0)];
        assert_eq!(best(ways), [(1.0, 1.0), (1.6, 2.0), (2.0, 4.0)]);
        assert_eq!(best(Vec::new()), []);
    }

    #[test]
    fn the_parts_of_a_pair_are_the_pair() {
        let world = World::builtin();
        let gpu = world.gpu("v100").unwrap();
        let tenant = |id| Tenant { workload: world.workload(id).unwrap(), gpus: 8, nodes: 1 };
        let two = [tenant("eaco-resnet18"), tenant("eaco-vgg16")];
        let half = |own: usize| {
            let other = two[1 - own];
            let shapes = BTreeMap::from([((other.workload.id.as_str(), 8), other)]);
            let settings = vec![Setting::default()];
            let (world, shared) = (&world, true);
            let ways = Ways { world, gpu, per_node: 8, share_w: 48.0, settings, shapes, shared };
            let options = ways.of(two[own].workload, GpuRequest::exactly(8));
            *options.iter().find(|option| option.gpus == 8).unwrap()
        };
        let (a, b) = (half(0), half(1));
        let state = world.gpu_state(gpu, Setting::default(), &two);
        let drawn_w = 8.0 * (state.power.as_w() - gpu.idle.as_w() + 48.0);
        assert!((a.power_w + b.power_w - drawn_w).abs() < 1e-6, "{a:?} {b:?} {drawn_w}");
    }
}
