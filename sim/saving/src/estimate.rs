//! The saving that Wattle would have made on the jobs of a trace.
//!
//! The baseline is the schedule that the trace records, replayed at default caps and clocks with all
//! nodes awake ([`wattle_simulator::replay`]). A trace without recorded starts and ends has EASY backfilling as
//! baseline. Wattle's schedule is a simulation of the policy `wattle` on predictions, at the energy
//! price of least energy while jobs complete on average no later than under the baseline, or later by a given
//! share ([`crate::aim`], [`SavingBound`]); the curve has several shares. Both are counted
//! over one period: from the first submission to the last completion of either.
//!
//! A run on predictions takes 12 to 22 times as long as one on exact surfaces. The price search, the parts
//! and the seeds use exact surfaces. A short search on predictions, which begins at that price, gives
//! the schedule.
//!
//! The table also has EASY backfilling of the same jobs ([`SavingEstimate::backfill`]): how far it is from a recorded
//! schedule shows how well a simulated schedule stands for the site's.
//!
//! * A small trace is simulated with several seeds, each of which draws unnamed workloads and
//!   measurement noise again, and totals are means over them. The completion times of a few hundred
//!   jobs that cannot be stopped vary by 10 % between seeds.
//! * Leave-one-out parts: the same run without caps and clocks, without sharing, without other
//!   sizes, without node sleep, each at the same price. A part is the energy that the run without it
//!   uses more. Parts interact, so their sum differs from the saving.
//! * The interval combines the spread over seeds ([`interval`]) and the prediction errors of the run.
//! * A large trace is simulated on a sample of its jobs and nodes ([`sample`]). The sample's relative
//!   saving is applied to the baseline of all jobs.

mod assumptions;
mod bound;
mod capacity;
mod draw;
mod groups;
mod interval;
mod parts;
mod points;
mod runs;
mod sample;
mod screen;
mod sizes;
mod study;
mod tasks;
mod totals;
mod verdict;

pub use bound::{LATER_SHARES, SavingBound};
pub use capacity::{Answer, CapacityEstimate, CapacityParts, capacity};
pub use groups::{Group, Grouping};
pub use points::SavingPoint;
pub use sample::Sample;
pub use sizes::{Sizes, UnknownSizes};
pub use study::estimate;

use std::time::Duration;

use serde::Serialize;
use wattle_common::job::Sharing;
use wattle_common::topology::ClusterShape;
use wattle_simulator::replay::ReplayError;
use wattle_simulator::trace::Trace;
use wattle_simulator::{
    CarbonSeries, LoadError, PriceSeries, Restartable, ScenarioError, SimulationError,
};
use wattle_world::World;

use crate::baseline::BaselineKind;
use crate::schedule::Schedule;

/// Largest number of jobs that is simulated where none is restartable, and two thirds of it where all
/// are; a larger trace is sampled.
pub const JOBS_MAX: usize = 1_500;
/// Least number of nodes of each group in a sample.
pub const NODES_MIN: u32 = 5;
/// Number of seeds of the interval, and at most of the totals.
pub const SEEDS: u64 = 6;

/// The input of an estimate.
#[derive(Clone, Copy, Debug)]
pub struct SavingInput<'a> {
    /// The catalog.
    pub world: &'a World,
    /// The jobs.
    pub trace: &'a Trace,
    /// The cluster that ran them.
    pub cluster: &'a ClusterShape,
    /// The grid's carbon intensity over time.
    pub carbon: Option<&'a CarbonSeries>,
    /// The electricity price over time.
    pub prices: Option<&'a PriceSeries>,
    /// The jobs that may be stopped, moved and resized.
    pub restartable: &'a Restartable,
}

/// The options of an estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SavingOptions {
    /// Bound on the mean completion time.
    pub bound: SavingBound,
    /// The load to which the arrival times are scaled; `None`: as in the trace.
    pub load: Option<f64>,
    /// The sizes of jobs that can be resized.
    pub sizes: Sizes,
    /// Which jobs may share a GPU.
    pub share: Sharing,
    /// Whether unused nodes may sleep.
    pub sleep: bool,
    /// Random seed.
    pub seed: u64,
    /// Number of seeds of the interval, and at most of the totals.
    pub seeds: u64,
    /// Largest number of simulated jobs where none is restartable, see [`JOBS_MAX`].
    pub jobs_max: usize,
    /// Least number of simulated nodes of each group, where the trace is sampled.
    pub nodes_min: u32,
    /// Number of threads.
    pub threads: usize,
}

impl Default for SavingOptions {
    fn default() -> Self {
        Self {
            bound: SavingBound::Later(0.0),
            load: None,
            sizes: Sizes::default(),
            share: Sharing::Never,
            sleep: true,
            seed: 7,
            seeds: SEEDS,
            jobs_max: JOBS_MAX,
            nodes_min: NODES_MIN,
            threads: 1,
        }
    }
}

/// Why no estimate can be made.
#[derive(Debug, thiserror::Error)]
pub enum SavingError {
    /// An unknown workload or GPU type.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The arrival times cannot be scaled to the load.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A load is given, and the trace records starts and ends.
    #[error(
        "the recorded schedule is of the trace's own arrivals; leave --load out, or leave the columns of starts and \
         ends out of the trace"
    )]
    RecordedLoad,
    /// A simulation failed.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// The recorded schedule cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A power limit that the nodes exceed without jobs.
    #[error(
        "a limit of {limit} is not above the {least} that the nodes draw without jobs; {remedy}"
    )]
    LimitTooLow {
        /// The limit, with its unit.
        limit: String,
        /// The power of nodes without jobs, with its unit.
        least: String,
        /// What to do.
        remedy: &'static str,
    },
    /// No job completed in both schedules.
    #[error("no job completes in both schedules; is the cluster large enough for the jobs?")]
    NoJobs,
}

/// Totals of one schedule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Totals {
    /// Energy of all nodes, kWh.
    pub energy_kwh: f64,
    /// Mean time from submission to completion, s.
    pub jct_s_mean: f64,
    /// Its 95th percentile, s.
    pub jct_s_p95: f64,
    /// Mean completion time without the time on GPUs, s.
    pub wait_s_mean: f64,
    /// Its 95th percentile, s.
    #[serde(skip)]
    pub wait_s_p95: f64,
    /// Emissions, kg; `None` without a carbon series.
    #[serde(skip)]
    pub carbon_kg: Option<f64>,
    /// Cost of the energy in the currency of the prices; `None` without prices over time.
    #[serde(skip)]
    pub cost: Option<f64>,
}

/// Energy with its interval, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Saved {
    /// Energy of the baseline minus Wattle's, kWh.
    pub energy_kwh: f64,
    /// Lower end of the 90 % interval, kWh.
    pub energy_kwh_low: f64,
    /// Its upper end, kWh.
    pub energy_kwh_high: f64,
    /// Cost of that energy; null without a price.
    pub cost: Option<f64>,
    /// Emissions of that energy, kg; null without an intensity.
    pub carbon_kg: Option<f64>,
}

/// Energy that a run without one part uses more than the run with all, kWh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Parts {
    /// Without caps and clocks.
    pub settings: f64,
    /// Without sharing of GPUs.
    pub packing: f64,
    /// Without other numbers of GPUs than requested.
    pub sizes: f64,
    /// Without node sleep.
    pub sleep: f64,
}

/// The saving under another declaration of restartable jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// Saved energy, kWh.
    pub energy_kwh: f64,
    /// Saved energy relative to that of the baseline over the same period.
    pub energy_share: f64,
    /// Mean completion time, s.
    pub jct_s_mean: f64,
}

/// An estimate of the saving.
#[derive(Clone, Debug, PartialEq)]
pub struct SavingEstimate {
    /// The trace's name.
    pub trace: String,
    /// The cluster.
    pub cluster: String,
    /// Number of jobs of the trace.
    pub jobs: usize,
    /// Calendar time of the start of the trace, where it has one.
    pub origin: Option<Duration>,
    /// Length of the period, s.
    pub period_s: f64,
    /// The baseline: the recorded schedule, or EASY backfilling where the trace records none.
    pub baseline_kind: BaselineKind,
    /// The saving where jobs may complete later than under the baseline by several shares, ascending; empty where the
    /// bound does not relate to the baseline.
    pub curve: Vec<SavingPoint>,
    /// Whether Wattle's schedule is within the bound. Otherwise it is the one with free energy, and no saving is
    /// possible within the bound.
    pub is_within: bool,
    /// The baseline.
    pub baseline: Totals,
    /// EASY backfilling of the same jobs at default caps and clocks with all nodes awake, the schedule that a site
    /// would have made; over the period of the others, or until its own last completion.
    pub backfill: Totals,
    /// Wattle's schedule.
    pub wattle: Totals,
    /// The saving; cost and emissions are filled in by [`SavingEstimate::priced`].
    pub saved: Saved,
    /// The parts of the saving.
    pub parts: Parts,
    /// The saving if no job, and if every job, may be stopped, moved and resized.
    pub ends: [End; 2],
    /// Energy price of the selected run, s/J.
    pub price: f64,
    /// Its mean completion time relative to the schedule to which the bound relates, minus 1.
    pub slowdown: f64,
    /// The options of the estimate.
    pub options: SavingOptions,
    /// What the estimate assumes, and how it was made.
    pub assumptions: Vec<String>,
    /// The schedules from which the totals can be computed: `baseline`, `wattle`, and for a sampled
    /// trace `baseline-all`, the baseline of all jobs; with the seed of each.
    pub schedules: Vec<(&'static str, u64, Schedule)>,
}

impl SavingEstimate {
    /// Adds the cost at a constant price per kWh where the estimate has no prices over time, and emissions at
    /// a constant intensity in g/kWh where it has no carbon series.
    #[must_use]
    pub fn priced(mut self, per_kwh: Option<f64>, g_per_kwh: Option<f64>) -> Self {
        let by_series = |of: fn(&Totals) -> Option<f64>| {
            of(&self.baseline).zip(of(&self.wattle)).map(|(before, after)| before - after)
        };
        let cost = per_kwh.map(|price| self.saved.energy_kwh * price);
        let cost = by_series(|totals| totals.cost).or(cost);
        let carbon_kg = g_per_kwh.map(|intensity| self.saved.energy_kwh * intensity / 1e3);
        let carbon_kg = by_series(|totals| totals.carbon_kg).or(carbon_kg);
        self.saved.cost = cost;
        self.saved.carbon_kg = carbon_kg;
        for point in &mut self.curve {
            point.priced(per_kwh, g_per_kwh);
        }
        self
    }

    /// Saved energy relative to the baseline's.
    #[must_use]
    pub fn share(&self, energy_kwh: f64) -> f64 {
        if self.baseline.energy_kwh > 0.0 { energy_kwh / self.baseline.energy_kwh } else { 0.0 }
    }

    /// One JSON object with a line break at its end, with the groups if they are wanted.
    ///
    /// # Panics
    /// Never: all fields are plain values.
    #[must_use]
    pub fn to_json(&self, by: Option<Grouping>) -> String {
        #[derive(Serialize)]
        struct Shape<'a> {
            trace: &'a str,
            cluster: &'a str,
            baseline: Totals,
            backfill: Totals,
            wattle: Totals,
            saved: Saved,
            is_within: bool,
            curve: &'a [SavingPoint],
            parts: Parts,
            assumptions: &'a [String],
            #[serde(skip_serializing_if = "Option::is_none")]
            groups: Option<Vec<Group>>,
        }
        let shape = Shape {
            trace: &self.trace,
            cluster: &self.cluster,
            baseline: self.baseline,
            backfill: self.backfill,
            wattle: self.wattle,
            saved: self.saved,
            is_within: self.is_within,
            curve: &self.curve,
            parts: self.parts,
            assumptions: &self.assumptions,
            groups: by.map(|by| self.groups(by)),
        };
        let mut text = serde_json::to_string(&shape).expect("plain values become JSON");
        text.push('\n');
        text
    }

    /// The jobs and nodes of the schedules as CSV. Energy of a schedule is the sum of the column
    /// `energy_kwh` over its rows; a total of the estimate is the mean over the seeds.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut text = String::from(
            "schedule,seed,kind,id,gpus,submit_s,start_s,end_s,on_gpus_s,awake_s,asleep_s,awake_w,asleep_w,energy_kwh\n",
        );
        let cell = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        for (name, seed, schedule) in &self.schedules {
            for job in &schedule.detail.jobs {
                text.push_str(&format!(
                    "{name},{seed},job,{},{},{},{},{},{},,,,,{:.9}\n",
                    job.id,
                    job.gpus,
                    job.submit_s,
                    cell(job.start_s),
                    cell(job.end_s),
                    job.on_gpus_s,
                    job.energy_kwh
                ));
            }
            for node in &schedule.detail.nodes {
                text.push_str(&format!(
                    "{name},{seed},node,{},{},,,,,{},{},{},{},{:.9}\n",
                    node.id,
                    node.gpus,
                    node.awake_s,
                    node.asleep_s,
                    node.awake_w,
                    node.asleep_w,
                    node.energy_kwh()
                ));
            }
        }
        text
    }
}
