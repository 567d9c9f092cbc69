//! The options of commands that estimate on the jobs of a recorded trace: trace, cluster, restartable jobs.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use wattle_common::duration::parse_span;
use wattle_common::topology::ClusterShape;
use wattle_saving::estimate::SavingInput;
use wattle_simulator::trace::Trace;
use wattle_simulator::{Restartable, input_file, text, trace};
use wattle_world::World;

use crate::inputs::{inferred_cluster, restartable, world_of};
use crate::output::{note, usage_chain};
use crate::sacct;

/// The options.
#[derive(Args)]
pub(crate) struct TraceOptions {
    /// Trace of `sacct -P` or `sacct --json`, Philly, Helios, Acme, PAI, Tiresias, Gavel, ElasticFlow or Chronus,
    /// also as .gz
    #[arg(long, value_name = "FILE", required_unless_present = "sacct")]
    trace: Option<PathBuf>,
    /// The jobs of Slurm's accounting over the last SPAN, read with `sacct`: 7d, 12h
    #[arg(long, value_name = "SPAN", value_parser = parse_span, conflicts_with_all = ["trace", "trace_format"])]
    sacct: Option<Duration>,
    /// Format of the trace: philly, tiresias, gavel, elasticflow, chronus, sacct, helios, acme, pai2020, pai2023
    /// [default: detected]
    #[arg(long, value_name = "NAME")]
    trace_format: Option<String>,
    /// Only the first jobs of the trace [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    jobs: Option<u64>,
    /// Rescale the arrival times to this load: exclusive GPU time of the jobs divided by that of the cluster from the
    /// first to the last arrival; not of a trace that records starts and ends [default: that of the trace]
    #[arg(long, value_name = "SHARE")]
    load: Option<f64>,
    /// The cluster that ran the jobs, or a TOML file [default: inferred from the nodes of a trace that
    /// names them (`sacct`)]
    #[arg(long, value_name = "NODESxGPUS:TYPE|FILE.toml", value_parser = crate::cluster_file::cluster)]
    cluster: Option<ClusterShape>,
    /// Folder with measured files, searched recursively; needed for the A100 jobs of ElasticFlow's trace
    #[arg(long, value_name = "DIR", env = "WATTLE_DATA")]
    data: Option<PathBuf>,
    /// Which jobs may be stopped, moved and resized, where the trace does not state it: none, all, a
    /// file of job ids, or a share of the jobs such as 0.3, chosen by a hash of the id
    #[arg(long, value_name = "none|all|FILE|SHARE", default_value = "none")]
    restartable: String,
}

/// The jobs of a trace and their cluster.
pub(crate) struct TraceInput {
    world: World,
    trace: Trace,
    cluster: ClusterShape,
    restartable: Restartable,
    /// Notes on the input.
    notes: Vec<String>,
}

impl TraceOptions {
    /// The load to which the arrival times are scaled.
    pub(crate) const fn load(&self) -> Option<f64> {
        self.load
    }

    /// Reads the trace, and infers the cluster where none is given; errors are usage errors.
    pub(crate) fn read(&self) -> anyhow::Result<TraceInput> {
        let restartable = restartable(&self.restartable)?;
        let format = self.trace_format.as_deref();
        let mut trace = match (&self.trace, self.sacct) {
            (Some(path), _) => trace::read_as(path, format).map_err(usage_chain)?,
            (None, span) => {
                let span = span.unwrap_or_default();
                let exported =
                    sacct::export(OsStr::new("sacct"), span, input_file::TRACE_BYTES_MAX)?;
                trace::parse_as("sacct", &exported, Some("sacct")).map_err(usage_chain)?
            }
        };
        trace.keep_first(self.jobs.map_or(usize::MAX, |jobs| jobs as usize));
        let (world, of_world) = world_of(&trace, self.data.as_deref())?;
        let (cluster, mut notes) = match &self.cluster {
            Some(cluster) => (cluster.clone(), Vec::new()),
            None => inferred_cluster(&world, &mut trace)?,
        };
        notes.extend(trace.notes.iter().map(ToString::to_string));
        notes.extend(of_world);
        Ok(TraceInput { world, trace, cluster, restartable, notes })
    }
}

impl TraceInput {
    /// The input of an estimate, without carbon intensities and prices.
    pub(crate) fn input(&self) -> SavingInput<'_> {
        SavingInput {
            world: &self.world,
            trace: &self.trace,
            cluster: &self.cluster,
            carbon: None,
            prices: None,
            restartable: &self.restartable,
        }
    }

    /// Prints the notes to stderr.
    pub(crate) fn print_notes(&self) {
        for text in &self.notes {
            note(&text::note(text));
        }
    }
}
