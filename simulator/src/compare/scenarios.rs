//! The scenarios, fixed: which jobs, which cluster, which loads.
//!
//! `powerflow-16`: the 876 jobs of ElasticFlow's Philly trace on 16 nodes of 8 A100, as far as is
//! known the set-up of PowerFlow's own simulation. The trace alone offers a load of 0.15, where a
//! queue hardly forms, so arrivals are compressed; job lengths stay. Loads above 1 are marked: there
//! ratios to a first-come policy grow with the length of the trace.

use std::path::{Path, PathBuf};

use wattle_common::job::GpuRequest;
use wattle_world::{CatalogError, World};

use crate::load::LoadError;
use crate::measured::{Measured, MeasuredError};
use crate::scenario::{Scenario, ScenarioError};
use crate::trace::{self, TraceError};

use super::Accounting;

/// The scenarios' names.
pub const NAMES: [&str; 1] = ["powerflow-16"];

/// Where ElasticFlow's trace lies below the data folder.
const ELASTICFLOW: &str = "elasticflow_philly_103959.csv";
/// Most GPUs of an elastic job, as in the measured table.
const GPUS_MAX: u32 = 64;

/// One comparison to be made: jobs that ask for fixed sizes, and the same jobs with open ones.
#[derive(Clone, Debug)]
pub struct Case {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The load asked for.
    pub load: f64,
    /// What counts as spent.
    pub accounting: Accounting,
    /// How neighbours slow each other; empty where no policy shares.
    pub world: &'static str,
    /// Jobs as they ask.
    pub rigid: Scenario,
}

impl Case {
    /// The jobs in another order over the same arrivals, as they ask.
    #[must_use]
    pub fn rigid(&self, order: u64) -> Scenario {
        let mut scenario = self.rigid.clone();
        scenario.set_order(order);
        scenario
    }

    /// The same jobs, each on any power of two of GPUs up to the measured most.
    #[must_use]
    pub fn elastic(&self, order: u64) -> Scenario {
        let mut scenario = self.rigid(order);
        for job in &mut scenario.jobs {
            job.gpus = GpuRequest { min: 1, max: GPUS_MAX };
        }
        scenario
    }
}

/// Why a scenario cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// No such scenario.
    #[error("no scenario is called `{name}`; use one of {}", NAMES.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// A file is not there.
    #[error("no {file} below {}; docs/comparing.md says where it is published", .dir.display())]
    NoFile {
        /// The file's name.
        file: &'static str,
        /// The folder looked through.
        dir: PathBuf,
    },
    /// The measured files.
    #[error(transparent)]
    Measured(#[from] MeasuredError),
    /// What was measured makes no catalog.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace on the cluster.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The load.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// The cases of a scenario, with the world they are judged by. `loads` and `accountings` choose among
/// the fixed ones; empty: all.
///
/// # Errors
/// Where there is no such scenario, or what it needs is not below `data`.
pub fn cases(
    name: &str,
    data: &Path,
    loads: &[f64],
    accountings: &[Accounting],
) -> Result<(World, Vec<Case>), CompareError> {
    if name != NAMES[0] {
        return Err(CompareError::Unknown { name: name.to_owned() });
    }
    /// As the study of the published claims had them; 0.76 is the headline, 1.07 over-subscribed.
    const LOADS: [f64; 5] = [0.15, 0.46, 0.76, 0.91, 1.07];
    let world = Measured::find(data)?.world()?;
    let file = find(data, ELASTICFLOW, 0);
    let file = file.ok_or_else(|| CompareError::NoFile { file: ELASTICFLOW, dir: data.into() })?;
    let cluster = "16x8:a100".parse().expect("a cluster is written so");
    let mut natural = Scenario::from_trace(&world, &trace::read(&file)?, &cluster, 7)?;
    // The trace's deadlines are those of another question: who heeds them would stand alone here.
    for job in &mut natural.jobs {
        (job.deadline, job.duration_estimate) = (None, None);
    }
    let loads = if loads.is_empty() { &LOADS } else { loads };
    let accountings = if accountings.is_empty() { &Accounting::ALL } else { accountings };
    let mut cases = Vec::new();
    for &load in loads {
        let mut rigid = natural.clone();
        rigid.set_load(&world, load)?;
        for &accounting in accountings {
            let (scenario, rigid) = (NAMES[0], rigid.clone());
            cases.push(Case { scenario, load, accounting, world: "", rigid });
        }
    }
    Ok((world, cases))
}

/// A file of that name anywhere below `dir`.
fn find(dir: &Path, name: &str, depth: usize) -> Option<PathBuf> {
    /// Deeper folders are a loop.
    const DEPTH_MAX: usize = 32;
    let direct = dir.join(name);
    if direct.is_file() {
        return Some(direct);
    }
    let mut folders: Vec<PathBuf> = std::fs::read_dir(dir)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders.into_iter().filter(|_| depth < DEPTH_MAX).find_map(|sub| find(&sub, name, depth + 1))
}
