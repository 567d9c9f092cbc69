//! A schedule of a scenario's jobs: recorded, or made by a policy in a simulation. It is what a search
//! for an energy price compares ([`crate::aim`]).

use std::time::Duration;

use wattle_common::Energy;
use wattle_common::time;
use wattle_simulator::replay::Replay;
use wattle_simulator::{CarbonSeries, Detail, PolicyOutcome, Prediction, Scenario};

use crate::aim::AimRun;

/// A schedule with its energy.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Energy from the first submission to the last completion, kWh.
    pub energy_kwh: f64,
    /// Emissions over the same period, kg; `None` without a carbon series.
    pub carbon_kg: Option<f64>,
    /// Cost of the energy over the same period, in the currency of the prices; `None` without prices.
    pub cost: Option<f64>,
    /// From the first submission to the last completion, s.
    pub makespan_s: f64,
    /// Power after the last completion, W.
    pub rest_w: f64,
    /// Completion time of each job in the order of the scenario, s.
    pub completion_s: Vec<Option<f64>>,
    /// Jobs and nodes.
    pub detail: Detail,
    /// Prediction errors of the run; `None` for a recorded schedule and for FIFO.
    pub prediction: Option<Prediction>,
    /// Time above the power limit of the run, s; 0 without a limit.
    pub exceeded_s: f64,
    /// Number of starts on a GPU with another job.
    pub shared_starts: usize,
    /// Number of jobs that completed.
    pub finished: usize,
    /// Notes on the schedule.
    pub notes: Vec<String>,
}

impl Schedule {
    /// The schedule of a simulated run. `sleeps` states whether unused nodes sleep.
    #[must_use]
    pub fn simulated(outcome: PolicyOutcome, detail: Detail, sleeps: bool) -> Self {
        let rest_w = rest_w(&detail, sleeps);
        Self {
            energy_kwh: outcome.energy_kwh,
            carbon_kg: outcome.carbon_kg,
            cost: outcome.cost,
            makespan_s: outcome.makespan_s,
            rest_w,
            completion_s: completions(&detail),
            prediction: outcome.prediction,
            exceeded_s: outcome
                .spending
                .and_then(|spending| spending.power_exceeded_s)
                .unwrap_or_default(),
            shared_starts: outcome.shared_starts,
            finished: outcome.finished,
            notes: outcome.notes,
            detail,
        }
    }

    /// A replayed schedule.
    #[must_use]
    pub fn recorded(replay: Replay) -> Self {
        Self {
            energy_kwh: replay.energy_kwh,
            carbon_kg: replay.carbon_kg,
            cost: replay.cost,
            makespan_s: replay.makespan_s,
            rest_w: replay.detail.nodes.iter().map(|node| node.awake_w).sum(),
            completion_s: completions(&replay.detail),
            prediction: None,
            exceeded_s: 0.0,
            shared_starts: 0,
            finished: replay.detail.jobs.iter().filter(|job| job.end_s.is_some()).count(),
            notes: replay.notes,
            detail: replay.detail,
        }
    }

    /// The same schedule with its energy, emissions, cost and nodes counted over a period that is at least
    /// as long as its makespan. Nodes sleep in the added time if `sleeps`, and are idle otherwise.
    #[must_use]
    pub fn over(mut self, period_s: f64, sleeps: bool, scenario: &Scenario) -> Self {
        let rest_s = (period_s - self.makespan_s).max(0.0);
        let rest_kwh = self.rest_w * rest_s / 3.6e6;
        let first = scenario.jobs.iter().map(|job| job.submit).min().unwrap_or_default();
        let from = first + time::span_s(self.makespan_s);
        if let Some((kg, series)) = self.carbon_kg.zip(scenario.carbon.as_ref()) {
            self.carbon_kg = Some(kg + emitted_kg(series, rest_kwh, from, rest_s));
        }
        if let Some((cost, series)) = self.cost.zip(scenario.prices.as_ref()) {
            let until = from + time::span_s(rest_s);
            self.cost = Some(cost + series.cost(rest_kwh, from, until));
        }
        self.energy_kwh += rest_kwh;
        self.makespan_s += rest_s;
        for node in &mut self.detail.nodes {
            *(if sleeps { &mut node.asleep_s } else { &mut node.awake_s }) += rest_s;
        }
        self
    }

    /// Energy of its jobs above idle, kWh.
    #[must_use]
    pub fn above_idle_kwh(&self) -> f64 {
        self.detail.jobs.iter().map(|job| job.energy_kwh).sum()
    }
}

impl AimRun for Schedule {
    fn energy_kwh(&self) -> f64 {
        self.energy_kwh
    }
    fn makespan_s(&self) -> f64 {
        self.makespan_s
    }
    fn rest_w(&self) -> f64 {
        self.rest_w
    }
    fn completion_s(&self) -> &[Option<f64>] {
        &self.completion_s
    }
}

/// Power of a cluster without jobs, W. `sleeps` states whether unused nodes sleep.
pub(crate) fn rest_w(detail: &Detail, sleeps: bool) -> f64 {
    detail.nodes.iter().map(|node| if sleeps { node.asleep_w } else { node.awake_w }).sum()
}

/// Completion time of each job of a run, s.
pub(crate) fn completions(detail: &Detail) -> Vec<Option<f64>> {
    detail.jobs.iter().map(wattle_simulator::JobOutcome::completion_s).collect()
}

fn emitted_kg(series: &CarbonSeries, kwh: f64, from: Duration, span_s: f64) -> f64 {
    let energy = Energy::from_j((kwh * 3.6e6).round() as u64);
    series.emitted(energy, from, from + time::span_s(span_s)).as_g() / 1e3
}

/// Completion and waiting times over the jobs that complete in two schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Mean time from submission to completion, s.
    pub completion_s_mean: f64,
    /// Its 95th percentile, s.
    pub completion_s_p95: f64,
    /// Mean completion time without the time on GPUs, s.
    pub wait_s_mean: f64,
    /// Its 95th percentile, s.
    pub wait_s_p95: f64,
}

impl Times {
    /// The times of `schedule` over the jobs that also complete in `other`; zeros without any.
    #[must_use]
    pub fn of(schedule: &Schedule, other: &Schedule) -> Self {
        let jobs = schedule.detail.jobs.iter().zip(&other.completion_s);
        let both = jobs.filter(|(_, other)| other.is_some());
        let (mut completions, mut waits): (Vec<f64>, Vec<f64>) = both
            .filter_map(|(job, _)| {
                let completion = job.completion_s()?;
                Some((completion, (completion - job.on_gpus_s).max(0.0)))
            })
            .unzip();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        Self {
            completion_s_mean: mean(&completions),
            completion_s_p95: percentile_95(&mut completions),
            wait_s_mean: mean(&waits),
            wait_s_p95: percentile_95(&mut waits),
        }
    }
}

/// Nearest rank: the smallest value that is at least as large as 95 % of all.
fn percentile_95(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * 95).div_ceil(100).max(1);
    values.get(rank - 1).copied().unwrap_or(0.0)
}
