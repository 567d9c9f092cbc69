//! What happened in a run, kept for whoever wants to look at it: the cluster's levels over time,
//! who was on which GPUs and why, and when nodes slept.
//!
//! Off, it costs one test of a pointer for each event. On, levels are means over spans that double
//! whenever there would be too many, so a run of any length takes a bounded place. It only listens:
//! nothing that is decided or counted may hang on it.

use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_common::{JobId, NodeId, WorkloadId};
use wattle_placer::{Decision, GpuSet, NodeDecision, Plan, Reason};

use crate::cards::Cards;
use crate::engine::{Engine, node_id};
use crate::outcome::us;
use crate::scenario::Scenario;

/// Most spans of [`Recording::levels`].
const LEVELS_MAX: usize = 2_048;
/// Most placements kept; later ones are only counted.
const PLACEMENTS_MAX: usize = 500_000;

/// What happened in one run. Times are microseconds of the run's own clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// The first submission.
    pub from_us: u64,
    /// The last completion.
    pub until_us: u64,
    /// The cluster.
    pub nodes: Vec<RecordedNode>,
    /// Means over spans of [`Recording::level_us`], the first beginning at `from_us`.
    pub levels: Vec<Level>,
    /// How long each span of the levels is.
    pub level_us: u64,
    /// Every job, in the scenario's order.
    pub jobs: Vec<RecordedJob>,
    /// When nodes slept.
    pub sleep_intervals: Vec<SleepInterval>,
    /// Placements and sleep_intervals that were too many to keep.
    pub left_out: usize,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedNode {
    /// Its name.
    pub id: NodeId,
    /// Its cards' kind.
    pub kind: String,
    /// How many cards it has.
    pub gpus: u32,
}

/// The cluster's mean state over a span.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Level {
    /// Power of all nodes, watts.
    pub power_w: f64,
    /// Cards' busy shares, summed over cards.
    pub busy_gpus: f64,
    /// Nodes that were not asleep.
    pub awake_nodes: f64,
    /// Jobs that waited.
    pub waiting: f64,
}

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedJob {
    /// Its id.
    pub id: JobId,
    /// What it computes.
    pub workload: WorkloadId,
    /// GPUs it asks for.
    pub asked: GpuRequest,
    /// When it came.
    pub submit_us: u64,
    /// When it was done, where it was.
    pub finished_us: Option<u64>,
    /// When it must be done, where it must.
    pub deadline_us: Option<u64>,
    /// What the placer last said when this job's turn had come and it waited.
    pub waited: Option<Reason>,
    /// Why it was turned away, where it was.
    pub rejected: Option<Reason>,
    /// Where it ran, in order.
    pub placements: Vec<RecordedPlacement>,
    /// How often its cards were set anew while it ran.
    pub resets: u32,
}

/// A job on some GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedPlacement {
    /// Its beginning.
    pub from_us: u64,
    /// Its end.
    pub until_us: u64,
    /// The GPUs; nodes are numbered as in [`Recording::nodes`].
    pub on: GpuSet,
    /// What they were set to at first.
    pub setting: GpuSetting,
    /// Why.
    pub reason: Reason,
    /// Why it was taken off, where it had not finished.
    pub stopped: Option<Reason>,
}

/// A node asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepInterval {
    /// Which node, as in [`Recording::nodes`].
    pub node: usize,
    /// From when on.
    pub from_us: u64,
    /// Until it was told to wake.
    pub until_us: u64,
}

/// What has been heard so far.
pub(super) struct Recorder {
    kept: Recording,
    placements: usize,
    /// Since when each node sleeps.
    asleep_since: Vec<Option<u64>>,
    /// Integrals over each span: units of [`Level`] times microseconds.
    sums: Vec<Level>,
    /// Until when they reach, from the first submission on.
    reach_us: u64,
}

impl Recorder {
    pub(super) fn new(scenario: &Scenario, from_us: u64) -> Self {
        let nodes: Vec<RecordedNode> = scenario
            .cluster
            .nodes()
            .enumerate()
            .map(|(i, (gpus, kind))| RecordedNode { id: node_id(i), kind: kind.to_owned(), gpus })
            .collect();
        let job = |spec: &crate::scenario::SimJob| RecordedJob {
            id: spec.id.clone(),
            workload: spec.workload.clone(),
            asked: spec.gpus,
            submit_us: us(spec.submit),
            finished_us: None,
            deadline_us: spec.deadline.map(us),
            waited: None,
            rejected: None,
            placements: Vec::new(),
            resets: 0,
        };
        Self {
            asleep_since: vec![None; nodes.len()],
            placements: 0,
            sums: Vec::new(),
            reach_us: 0,
            kept: Recording {
                from_us,
                until_us: from_us,
                nodes,
                levels: Vec::new(),
                level_us: 1_000_000,
                jobs: scenario.jobs.iter().map(job).collect(),
                sleep_intervals: Vec::new(),
                left_out: 0,
            },
        }
    }

    /// The cluster was as `cards` says, with so many waiting, from one instant to another.
    fn was(&mut self, from_us: u64, until_us: u64, cards: &Cards<'_>, waiting: usize) {
        let level = Level {
            power_w: cards.power_mw as f64 / 1e3,
            busy_gpus: cards.utilization_ppm as f64 / 1e6,
            awake_nodes: cards.nodes_awake as f64,
            waiting: waiting as f64,
        };
        let (mut at, until) = (from_us - self.kept.from_us, until_us - self.kept.from_us);
        while until.div_ceil(self.kept.level_us) > LEVELS_MAX as u64 {
            self.coarsen();
        }
        while at < until {
            let span = (at / self.kept.level_us) as usize;
            let end = until.min((span as u64 + 1) * self.kept.level_us);
            if self.sums.len() <= span {
                self.sums.resize(span + 1, Level::default());
            }
            self.sums[span].add(&level, (end - at) as f64);
            at = end;
        }
        self.reach_us = until;
    }

    /// Makes spans twice as long.
    fn coarsen(&mut self) {
        let pairs = self.sums.chunks(2).map(|pair| {
            let mut sum = pair[0];
            if let Some(second) = pair.get(1) {
                sum.add(second, 1.0);
            }
            sum
        });
        self.sums = pairs.collect();
        self.kept.level_us *= 2;
    }

    fn started(&mut self, job: u32, placement: RecordedPlacement) {
        self.placements += 1;
        if self.placements > PLACEMENTS_MAX {
            self.kept.left_out += 1;
            return;
        }
        self.kept.jobs[job as usize].placements.push(placement);
    }

    /// The job is off its GPUs.
    fn ended(&mut self, job: u32, now_us: u64, reason: Option<Reason>) {
        let last = self.kept.jobs[job as usize].placements.last_mut();
        // One that was not kept must not end another.
        if let Some(last) = last.filter(|last| last.until_us == u64::MAX) {
            (last.until_us, last.stopped) = (now_us, reason);
        }
    }

    fn woke(&mut self, node: usize, now_us: u64) {
        let Some(from_us) = self.asleep_since[node].take() else { return };
        if self.kept.sleep_intervals.len() < PLACEMENTS_MAX {
            self.kept.sleep_intervals.push(SleepInterval { node, from_us, until_us: now_us });
        } else {
            self.kept.left_out += 1;
        }
    }

    /// What was heard until `until_us`, the last completion.
    pub(super) fn told(mut self, until_us: u64) -> Recording {
        for node in 0..self.asleep_since.len() {
            self.woke(node, until_us);
        }
        let mut kept = self.kept;
        kept.until_us = until_us;
        for placement in kept.jobs.iter_mut().flat_map(|job| &mut job.placements) {
            placement.until_us = placement.until_us.min(until_us);
        }
        kept.sleep_intervals.retain(|interval| interval.from_us < until_us);
        for interval in &mut kept.sleep_intervals {
            interval.until_us = interval.until_us.min(until_us);
        }
        kept.sleep_intervals.sort_by_key(|interval| (interval.node, interval.from_us));
        let spans = (until_us - kept.from_us).div_ceil(kept.level_us) as usize;
        let mean = |(span, sum): (u64, &Level)| {
            // The last span ends before it is full.
            let end = self.reach_us.min((span + 1) * kept.level_us);
            sum.over(end.saturating_sub(span * kept.level_us).max(1) as f64)
        };
        kept.levels = (0..).zip(&self.sums).take(spans).map(mean).collect();
        kept
    }
}

impl Level {
    fn add(&mut self, other: &Self, times: f64) {
        self.power_w += other.power_w * times;
        self.busy_gpus += other.busy_gpus * times;
        self.awake_nodes += other.awake_nodes * times;
        self.waiting += other.waiting * times;
    }

    fn over(&self, span: f64) -> Self {
        let mut mean = Self::default();
        mean.add(self, 1.0 / span);
        mean
    }
}

impl Engine<'_> {
    /// Time goes on to `now_us`; until there everything was as it is.
    pub(super) fn record_levels(&mut self, now_us: u64) {
        if let Some(recorder) = &mut self.recorder {
            recorder.was(self.now_us, now_us, &self.cards, self.controller.state().queue_len());
        }
    }

    /// A plan is about to be carried out; its keys still hold.
    pub(super) fn record_plan(&mut self, plan: &Plan) {
        let Some(recorder) = &mut self.recorder else { return };
        let now_us = self.now_us;
        for decision in &plan.decisions {
            let job = self.by_key[decision.job().index()];
            match decision {
                Decision::Start { on, setting, reason, .. } => {
                    let (on, setting, reason) = (on.clone(), *setting, reason.clone());
                    let (from_us, until_us, stopped) = (now_us, u64::MAX, None);
                    recorder.started(
                        job,
                        RecordedPlacement { from_us, until_us, on, setting, reason, stopped },
                    );
                }
                Decision::Stop { reason, .. } | Decision::Undo { reason, .. } => {
                    recorder.ended(job, now_us, Some(reason.clone()));
                }
                Decision::Set { .. } => recorder.kept.jobs[job as usize].resets += 1,
                Decision::Reject { reason, .. } => {
                    recorder.kept.jobs[job as usize].rejected = Some(reason.clone());
                }
                Decision::Settle { .. } => {}
            }
        }
        for decision in &plan.nodes {
            let node = decision.node().index();
            match decision {
                NodeDecision::Sleep { .. } => recorder.asleep_since[node] = Some(now_us),
                NodeDecision::Wake { .. } => recorder.woke(node, now_us),
            }
        }
    }

    /// Who waits after a plan, and why.
    pub(super) fn record_blocked(&mut self, plan: &Plan) {
        let Some(recorder) = &mut self.recorder else { return };
        if let Some(blocked) = &plan.blocked {
            let job = self.by_key[blocked.job.index()];
            recorder.kept.jobs[job as usize].waited = Some(blocked.reason.clone());
        }
    }

    /// A job is done.
    pub(super) fn record_completion(&mut self, job: u32) {
        if let Some(recorder) = &mut self.recorder {
            recorder.ended(job, self.now_us, None);
            recorder.kept.jobs[job as usize].finished_us = Some(self.now_us);
        }
    }
}
