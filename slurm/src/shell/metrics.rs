//! Metrics of the connection with Slurm: polls, commands, jobs, alarms.

use std::time::Duration;

use wattle_runtime::metrics::{Counter, Counters, Gauge, Gauges, Histogram, Metrics};
use wattle_site::Level;

use crate::command::Command;
use crate::view::{SlurmState, SlurmView};

/// Bounds of the duration of a poll, seconds.
const POLL_BOUNDS: [f64; 8] = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];
/// The kinds of commands.
const COMMANDS: [&str; 7] =
    ["hold", "split-array", "place", "checkpoint", "requeue-hold", "cancel", "set-admin-comment"];

/// The metrics of one service. Clones share them.
#[derive(Clone)]
pub struct SlurmMetrics {
    active: Gauge,
    reachable: Gauge,
    polls: Counters<1>,
    poll_time: Histogram,
    commands: Counters<2>,
    jobs: Gauges<1>,
    nodes: Gauge,
    alarms: Counter,
}

const fn kind(command: &Command) -> &'static str {
    match command {
        Command::Hold(_) => "hold",
        Command::SplitArray { .. } => "split-array",
        Command::Place(_) => "place",
        Command::Checkpoint { .. } => "checkpoint",
        Command::RequeueHold(_) => "requeue-hold",
        Command::Cancel(_) => "cancel",
        Command::SetAdminComment { .. } => "set-admin-comment",
    }
}

const fn result(succeeded: bool) -> &'static str {
    if succeeded { "succeeded" } else { "failed" }
}

impl SlurmMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn new(metrics: &Metrics, level: Level) -> Self {
        let truth = |name, help| {
            let gauge = metrics.gauge(name, help);
            gauge.set([], Some(0.0));
            gauge
        };
        let active = truth("wattle_slurm_active", "Whether this service works: 1, or 0 on standby");
        let reachable =
            truth("wattle_slurm_reachable", "Whether Slurm was read at the last poll: 1 or 0");
        let levels = metrics.gauges(
            "wattle_slurm_level",
            "1 for the configured level: what Wattle decides",
            ["level"],
        );
        levels.set([level.as_str()], Some(1.0));
        let polls = metrics.counters(
            "wattle_slurm_polls_total",
            "Polls of Slurm's queue and nodes: succeeded or failed",
            ["result"],
        );
        polls.begin([["succeeded"], ["failed"]]);
        let commands = metrics.counters(
            "wattle_slurm_commands_total",
            "Commands to Slurm by kind: succeeded or failed",
            ["command", "result"],
        );
        for command in COMMANDS {
            commands.begin([[command, "succeeded"], [command, "failed"]]);
        }
        Self {
            active,
            reachable,
            polls,
            poll_time: metrics.histogram(
                "wattle_slurm_poll_seconds",
                "Duration of a poll of Slurm, seconds of wall time",
                &POLL_BOUNDS,
            ),
            commands,
            jobs: metrics.gauges(
                "wattle_slurm_jobs",
                "Jobs that Slurm lists: held, pending, running or ended",
                ["state"],
            ),
            nodes: metrics.gauge("wattle_slurm_nodes", "Nodes with GPUs that Slurm lists"),
            alarms: metrics.counter("wattle_slurm_alarms_total", "Alarms about jobs and Slurm"),
        }
    }

    /// This service becomes active, or returns to standby.
    pub(super) fn is_active(&self, active: bool) {
        self.active.set([], Some(f64::from(u8::from(active))));
    }

    /// Slurm was read, or not.
    pub(super) fn polled(&self, view: Option<&SlurmView>, took: Duration) {
        self.reachable.set([], Some(f64::from(u8::from(view.is_some()))));
        self.polls.increment([result(view.is_some())]);
        self.poll_time.observe(took.as_secs_f64());
        let Some(view) = view else { return };
        self.nodes.set([], Some(view.nodes.len() as f64));
        let (mut held, mut pending, mut running, mut ended) = (0_u32, 0_u32, 0_u32, 0_u32);
        for job in view.jobs.values() {
            *match job.state {
                SlurmState::Pending if job.held => &mut held,
                SlurmState::Pending => &mut pending,
                SlurmState::Configuring | SlurmState::Running | SlurmState::Completing => {
                    &mut running
                }
                _ => &mut ended,
            } += 1;
        }
        for (state, count) in
            [("held", held), ("pending", pending), ("running", running), ("ended", ended)]
        {
            self.jobs.set([state], Some(f64::from(count)));
        }
    }

    /// A command ended.
    pub(super) fn commanded(&self, command: &Command, succeeded: bool) {
        self.commands.increment([kind(command), result(succeeded)]);
    }

    /// An alarm was raised.
    pub(super) fn alarmed(&self) {
        self.alarms.increment([]);
    }
}
