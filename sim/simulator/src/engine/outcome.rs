//! The outcome of a run: times, energy, counts and notes, up to the last completion.

use std::time::Duration;

use wattle_common::Power;
use wattle_common::duration::span;
use wattle_placer::controller::budget::ActiveBudget;

use crate::engine::Engine;
use crate::engine::grid_events::GridEvents;
use crate::engine::metering::starvation;
use crate::outcome::{ExpectedOutcome, PolicyOutcome, TwinOutcome, seconds, times};
use crate::profiles::Profiles;
use crate::text::pluralize;
use crate::time_limits::TimeLimits;

impl Engine<'_> {
    /// The outcome, up to the last completion.
    pub(super) fn finish(mut self) -> PolicyOutcome {
        let last_completion_us = self.totals.last_completion_us;
        self.read_final_meter();
        let budget = self.controller.budget().filter(|_| self.options.budget.is_some());
        let budget = budget.map(ActiveBudget::controller);
        let spending = budget.map(|controller| self.budget.spending.outcome(controller));
        let budget_overrun =
            budget.filter(|controller| controller.budget().has_window()).and_then(|_| {
                let windows = spending.iter().flat_map(|spending| &spending.windows);
                windows.map(|window| window.overrun).reduce(f64::max)
            });
        let kw_saves_s = self.controller.limits().power_max.and_then(|_| {
            let saved_s = self.controller.limit_cost().saved_s_in_all(Power::from_w(1_000));
            saved_s.filter(|saved_s| *saved_s > 0.0)
        });
        let may_wait = self.scenario.jobs.iter().any(|job| job.slack.is_some());
        let deferred_s = seconds(self.budget.deferred_us as f64 / self.jobs.len().max(1) as f64);
        let times = times(&self.totals.finished);
        let mut notes = Vec::new();
        let jobs = self.jobs.len();
        let waiting = jobs - self.totals.finished.len() - self.totals.rejected.len();
        /// Most rejections with a note of their own.
        const LISTED_MAX: usize = 5;
        let rejected = &self.totals.rejected;
        notes.extend(rejected.iter().take(LISTED_MAX).cloned());
        if rejected.len() > LISTED_MAX {
            let more = rejected.len() - LISTED_MAX;
            notes.push(format!("also rejected: {}", pluralize(more, "job")));
        }
        if self.prediction.profiles.as_ref().is_some_and(Profiles::is_sampled) {
            notes.push("the predictor learned from a sample of the jobs".to_owned());
        }
        notes.extend(self.time_limits.as_ref().map(TimeLimits::note));
        if waiting > 0 {
            let why = starvation(&self.controller);
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            notes.push(format!("{} never started{why}", pluralize(waiting, "job")));
        }
        let events = self.grid_events.take().map(GridEvents::outcome);
        let (events, refused) = events.unzip();
        notes.extend(refused.into_iter().flatten());
        let unfinished = (0..self.jobs.len() as u32)
            .map(|job| &self.jobs[job])
            .filter(|job| job.ended_us.is_none())
            .map(|job| job.spec.id.clone())
            .collect();
        let totals = self.totals;
        let meter = totals.meter;
        if let Some(series) = &self.scenario.carbon
            && Duration::from_micros(last_completion_us) > series.period()
        {
            let period = span(series.period().as_secs_f64());
            notes.push(format!(
                "the carbon series {} of {period} is shorter than the run and was repeated",
                series.name
            ));
        }
        PolicyOutcome {
            policy: self.controller.policy().name().to_owned(),
            oracle: self.prediction.oracle.is_some(),
            jobs,
            finished: totals.finished.len(),
            unfinished,
            jct_s_mean: times.mean,
            jct_s_p50: times.p50,
            jct_s_p95: times.p95,
            jct_s_p99: times.p99,
            wait_s_mean: times.wait,
            runtime_s_mean: times.run,
            makespan_s: seconds((last_completion_us - self.start_us) as f64),
            energy_kwh: meter.energy_kwh(),
            energy_kwh_above_idle: meter.energy_kwh_above_idle(),
            carbon_kg: meter.carbon_kg(),
            cost: meter.cost(),
            active_nodes_mean: meter.active_nodes_mean(),
            fragmented_gpus_mean: meter.fragmented_gpus_mean(),
            awake_nodes_mean: meter.awake_nodes_mean(),
            gpu_utilization_mean: meter.utilization_mean(self.scenario.cluster.gpu_count()),
            rescales: totals.rescales,
            migrations: totals.migrations,
            restarts_max: totals.restarts_max,
            early_stops: totals.early_stops,
            kw_saves_s,
            restart_gpu_h: (totals.restart_gpu_us as f64 / 3.6e3).round() / 1e6,
            wall_s: 0.0,
            rejected: totals.rejected.len(),
            shared_starts: totals.shared_starts,
            undone: totals.undone,
            deadlines_missed: totals.deadlines_missed,
            budget_overrun,
            spending,
            events,
            feeders: self.budget.feeders.map(|feeders| feeders.outcome()).unwrap_or_default(),
            deferred_s_mean: may_wait.then_some(deferred_s),
            twin: self.controller.twin().map(TwinOutcome::of),
            expected: self.controller.expected().map(ExpectedOutcome::of),
            prediction: self
                .prediction
                .errors
                .map(|errors| errors.outcome(self.prediction.oracle.is_some())),
            against: None,
            aim: None,
            notes,
        }
    }
}
