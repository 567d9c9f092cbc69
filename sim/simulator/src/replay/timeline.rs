//! What runs when in a replay.
//!
//! A job that was not suspended runs from its recorded start to its recorded end. Of a suspended one the trace states
//! how long it ran, not when. It runs whenever its GPUs are free, until it has run for its duration: it leaves them to
//! a job that was not suspended, and continues when they are free again. At its recorded end it ends in any case.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::site::Site;
use super::span_us;
use crate::gpus::{Gpus, Shape};
use crate::outcome::us;
use crate::scenario::Scenario;
use crate::trace::Trace;

/// How long a job ran.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    /// Time on GPUs, microseconds.
    pub(super) ran_us: u64,
    /// Energy of its GPUs above idle power, mW x microseconds.
    pub(super) above_idle_mw_us: f64,
    since_us: u64,
    above_idle_mw: f64,
    /// Number of its starts, which distinguishes a planned stop from one of an earlier start.
    starts: u32,
}

/// A replayed timeline.
pub(super) struct Timeline {
    pub(super) runs: Vec<Run>,
    /// The last recorded end, microseconds.
    pub(super) until_us: u64,
    /// Number of jobs on another GPU type than requested.
    pub(super) other_type: usize,
    /// Number of jobs on more nodes than they need.
    pub(super) divided: usize,
    /// Number of suspended jobs that ran for less than their duration.
    pub(super) short: usize,
}

/// What happens to a job. At the same instant ends come before starts, so that recorded seconds suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Its recorded end.
    End,
    /// A suspended job has run for its duration since this start.
    Done(u32),
    /// Its recorded start.
    Start,
}

struct Player<'a, 'w> {
    scenario: &'a Scenario,
    trace: &'a Trace,
    indices: &'a [u32],
    hardware: &'a mut Gpus<'w>,
    site: Site,
    runs: Vec<Run>,
    events: BinaryHeap<Reverse<(u64, Event, usize)>>,
    /// Suspended jobs that run, and those that wait for their GPUs, by their starts.
    running: Vec<usize>,
    waiting: Vec<usize>,
    changed: Vec<u32>,
}

/// Runs the jobs of `trace` on `hardware`. `advance` receives each instant before anything changes at it.
pub(super) fn run(
    scenario: &Scenario,
    trace: &Trace,
    indices: &[u32],
    hardware: &mut Gpus<'_>,
    mut advance: impl FnMut(u64, &Gpus<'_>),
) -> Timeline {
    let mut events = BinaryHeap::with_capacity(2 * trace.jobs.len());
    for (job, traced) in trace.jobs.iter().enumerate() {
        let Some((from_us, until_us)) = span_us(traced) else { continue };
        events.push(Reverse((from_us, Event::Start, job)));
        events.push(Reverse((until_us, Event::End, job)));
    }
    let mut player = Player {
        scenario,
        trace,
        indices,
        hardware,
        site: Site::of(scenario, trace),
        runs: vec![Run::default(); scenario.jobs.len()],
        events,
        running: Vec::new(),
        waiting: Vec::new(),
        changed: Vec::new(),
    };
    let (mut until_us, mut short) = (0, 0);
    while let Some(Reverse((at_us, event, job))) = player.events.pop() {
        advance(at_us, player.hardware);
        until_us = until_us.max(at_us);
        match event {
            Event::Start if player.is_suspended(job) => player.waiting.push(job),
            Event::Start => player.start_recorded(at_us, job),
            Event::Done(start) => {
                if player.runs[job].starts == start {
                    player.stop(at_us, job);
                }
            }
            Event::End => {
                player.stop(at_us, job);
                player.waiting.retain(|waiting| *waiting != job);
                let left_us = us(trace.jobs[job].duration).saturating_sub(player.runs[job].ran_us);
                short += usize::from(player.is_suspended(job) && left_us > 0);
            }
        }
        player.resume(at_us);
        player.changed.clear();
    }
    let Player { site, runs, .. } = player;
    Timeline { runs, until_us, other_type: site.other_type, divided: site.divided, short }
}

impl Player<'_, '_> {
    fn is_suspended(&self, job: usize) -> bool {
        !self.trace.jobs[job].suspended().is_zero()
    }

    /// Starts a job that was not suspended; suspended ones leave its GPUs.
    fn start_recorded(&mut self, at_us: u64, job: usize) {
        let gpus = self.scenario.jobs[job].gpus.min;
        let names = &self.trace.jobs[job].node_names;
        let mut on = self.site.place_on(names, gpus);
        while on.is_none() {
            let there = self.running.iter().rposition(|other| self.site.is_on(*other, names));
            let is_full = self.site.free() < gpus;
            let Some(at) = there.or(self.running.len().checked_sub(1).filter(|_| is_full)) else {
                break;
            };
            let other = self.running[at];
            self.stop(at_us, other);
            self.waiting.push(other);
            self.waiting.sort_unstable();
            on = self.site.place_on(names, gpus);
        }
        let gpu_type = self.scenario.jobs[job].gpu_type.as_deref();
        self.site.on[job] = Some(on.unwrap_or_else(|| self.site.place(gpus, gpu_type)));
        self.begin(at_us, job);
    }

    /// Runs the suspended jobs whose GPUs are free and which have not run for their duration.
    fn resume(&mut self, at_us: u64) {
        let waiting = std::mem::take(&mut self.waiting);
        for job in waiting {
            let gpus = self.scenario.jobs[job].gpus.min;
            let names = &self.trace.jobs[job].node_names;
            let gpu_type = self.scenario.jobs[job].gpu_type.as_deref();
            let on = match self.site.place_on(names, gpus) {
                None if !self.site.knows(names) && self.site.free() >= gpus => {
                    Some(self.site.place(gpus, gpu_type))
                }
                on => on,
            };
            let Some(on) = on else {
                self.waiting.push(job);
                continue;
            };
            self.site.on[job] = Some(on);
            self.begin(at_us, job);
            self.running.push(job);
            let left_us = us(self.trace.jobs[job].duration).saturating_sub(self.runs[job].ran_us);
            let done = Event::Done(self.runs[job].starts);
            self.events.push(Reverse((at_us + left_us, done, job)));
        }
    }

    /// Puts a placed job on its GPUs.
    fn begin(&mut self, at_us: u64, job: usize) {
        let Some(on) = self.site.on[job].clone() else { return };
        let shape: Shape = (self.indices[job], on.gpu_count(), on.node_count());
        self.hardware.add(job as u32, shape, &on, &mut self.changed);
        let run = &mut self.runs[job];
        (run.since_us, run.starts) = (at_us, run.starts + 1);
        // It does not change while the job runs.
        run.above_idle_mw = self.hardware.above_idle_mw_of(&on);
    }

    /// Takes a job off its GPUs, if it is on any.
    fn stop(&mut self, at_us: u64, job: usize) {
        let Some(on) = self.site.release(job) else { return };
        self.hardware.remove(job as u32, &on, &mut self.changed);
        self.running.retain(|running| *running != job);
        let run = &mut self.runs[job];
        let lasted_us = at_us - run.since_us;
        run.ran_us += lasted_us;
        run.above_idle_mw_us += run.above_idle_mw * lasted_us as f64;
    }
}
