//! The jobs and nodes of a run.

use wattle_placer::NodeKey;

use crate::detail::{Detail, JobOutcome, NodeOutcome};
use crate::engine::{Engine, node_id};
use crate::outcome::{seconds, us};

/// Total time asleep of each node.
#[derive(Debug, Default)]
pub(super) struct SleepTimes {
    since_us: Vec<Option<u64>>,
    asleep_us: Vec<u64>,
}

impl SleepTimes {
    /// For a cluster of awake nodes.
    pub(super) fn of(nodes: usize) -> Self {
        Self { since_us: vec![None; nodes], asleep_us: vec![0; nodes] }
    }

    /// A node falls asleep.
    pub(super) fn asleep(&mut self, node: NodeKey, now_us: u64) {
        self.since_us[node.index()].get_or_insert(now_us);
    }

    /// A node is being woken.
    pub(super) fn awake(&mut self, node: NodeKey, now_us: u64) {
        if let Some(since_us) = self.since_us[node.index()].take() {
            self.asleep_us[node.index()] += now_us - since_us;
        }
    }

    /// Time asleep of a node up to `until_us`.
    fn until(&self, node: usize, until_us: u64) -> u64 {
        let current = self.since_us[node].map_or(0, |since| until_us.saturating_sub(since));
        self.asleep_us[node] + current
    }
}

impl Engine<'_> {
    /// The jobs and nodes up to the last completion.
    pub(super) fn detail(&self) -> Detail {
        let until_us = self.totals.last_completion_us;
        let s = |us: u64| seconds(us as f64);
        let jobs = (0..self.jobs.len() as u32).map(|job| {
            let job = &self.jobs[job];
            JobOutcome {
                id: job.spec.id.clone(),
                gpus: job.gpus,
                submit_s: s(us(job.spec.submit)),
                start_s: job.first_start_us.map(s),
                end_s: job.ended_us.map(s),
                on_gpus_s: s(job.ran_us),
                energy_kwh: job.above_idle_mw_us / 3.6e15,
            }
        });
        let span_us = until_us - self.start_us;
        let nodes = self.controller.state().keyed_nodes().enumerate().map(|(i, (key, node))| {
            let asleep_us = self.sleep_times.until(i, until_us).min(span_us);
            let asleep_w = node.facts.watts.map_or(0.0, |watts| watts.asleep.as_w());
            NodeOutcome {
                id: node_id(i),
                gpu_type: node.facts.gpu_type.clone(),
                gpus: node.facts.gpus,
                awake_s: s(span_us - asleep_us),
                asleep_s: s(asleep_us),
                awake_w: self.hardware.gpus.idle_w(key),
                asleep_w,
            }
        });
        Detail { jobs: jobs.collect(), nodes: nodes.collect() }
    }
}
