//! The limits during a grid event: jobs with promises pause only where their promises permit it, and settings within the
//! site's limit, or the target of a feeder, have the greatest weighted speed.

use std::collections::BTreeMap;

use crate::plan::reason::Reason;
use crate::power::bounds::Bound;
use crate::power::limits::LimitedPlan;
use crate::power::limits::item::{Item, Role};
use crate::power::limits::settings::speeds;
use crate::power::means::{Candidate, raise};
use crate::power::model::{JobGpus, idle_w};
use crate::power::promises::Promise;
use crate::state::gpu_set::JobKey;

impl<'a> LimitedPlan<'a> {
    /// Stops the running jobs that pause for an event ([`crate::power::promises`]).
    pub(super) fn pause_for_events(&mut self) {
        let pauses = |item: &&Item<'_>| {
            item.role == Role::Continues
                && item.job.facts.can_stop
                && item.promise.is_some_and(|promise| promise.is_paused)
        };
        let paused: Vec<JobKey> = self.items.iter().filter(pauses).map(|item| item.key).collect();
        let reason = |job: JobKey| {
            let of = self.items.iter().find(|item| item.key == job);
            let target = of.and_then(|item| self.target_on(item));
            target.unwrap_or(Reason::PowerLimit { most: self.input.limits.power_max })
        };
        let paused: Vec<_> = paused.into_iter().map(|job| (job, reason(job))).collect();
        self.stopped.extend(paused);
    }

    /// The target of a feeder on which a job is, as a reason.
    fn target_on(&self, item: &Item<'a>) -> Option<Reason> {
        let bounds = Bound::all(self.input);
        let bound =
            bounds.iter().find(|bound| bound.target_of().is_some() && bound.covers_any(item.on))?;
        Some(bound.stop_reason())
    }

    /// The settings with the greatest weighted speed within a limit of events while jobs within it have promises, each at least the
    /// `last` one of its ladder. `None`: a common power of each GPU decides.
    pub(super) fn by_weight(
        &self,
        bound: &Bound,
        last: impl Fn(&Item<'a>) -> usize,
    ) -> Option<Vec<usize>> {
        let covered = |item: &Item<'a>| bound.covers_any(item.on);
        let is_promised = |item: &Item<'a>| covered(item) && item.promise.is_some();
        if !bound.is_of_events() || !self.items.iter().any(is_promised) {
            return None;
        }
        let gives =
            |item: &Item<'a>| covered(item) && self.remains(item) && item.role != Role::Stops;
        let at_last = |item: &Item<'a>| last(item).max(item.chosen);
        let others_w = self.with_stopping_w(bound, &[], |item| {
            if gives(item) { 0.0 } else { item.ladder[at_last(item)].1 }
        });
        let giving: Vec<usize> = (0..self.items.len()).filter(|&i| gives(&self.items[i])).collect();
        let candidate = |&index: &usize| {
            let item = &self.items[index];
            let node = self.input.state.node(item.on.by_node.first()?.node);
            let gpus = JobGpus::on(self.input, item.job, &node.facts.gpu_type, item.on);
            let ladder = &item.ladder[item.chosen..=at_last(item)];
            let reference = item.promise.map_or(gpus.gpus, |promise| promise.gpus);
            let idle_w = idle_w(self.input, node);
            let counted = bound.part_of(item.on) * f64::from(gpus.gpus);
            let above_w = |gpu_w: f64| counted * (gpu_w - idle_w).max(0.0);
            let setting =
                |((_, gpu_w), speed): (&(_, f64), Option<f64>)| Some((speed?, above_w(*gpu_w)));
            let settings = ladder.iter().zip(speeds(gpus, reference, ladder, idle_w)).map(setting);
            let candidate = Candidate {
                settings: settings.collect::<Option<_>>()?,
                weight: item.promise.as_ref().map_or(1.0, Promise::weight),
                ..Candidate::default()
            };
            Some((candidate, ladder.len() - 1))
        };
        let jobs: Vec<(Candidate, usize)> = giving.iter().map(candidate).collect::<Option<_>>()?;
        let raised = raise(&jobs, bound.limit_w - others_w);
        let others = |item: &Item<'a>| if covered(item) { at_last(item) } else { item.chosen };
        let mut chosen: Vec<usize> = self.items.iter().map(others).collect();
        for (&index, at) in giving.iter().zip(raised) {
            chosen[index] = self.items[index].chosen + at;
        }
        let of: BTreeMap<JobKey, usize> =
            self.items.iter().zip(&chosen).map(|(item, at)| (item.key, *at)).collect();
        let power_w = self.with_stopping_w(bound, &[], |item| {
            item.ladder[of.get(&item.key).copied().unwrap_or(item.chosen)].1
        });
        // Jobs that share GPUs count together.
        (power_w <= bound.limit_w + 1e-6).then_some(chosen)
    }
}
