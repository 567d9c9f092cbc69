//! What the site or a feeder can deliver during a grid event: the request, and the plan that answers it.
//!
//! * **Publisher:** `wattle event plan` ([`PlanEvent`]).
//! * **Listeners:** placer, through the NATS service API.
//! * **How often:** when a person requests it.
//! * **Delivery:** request and reply ([`EventPlanReply`]).
//! * **Lost or doubled:** repeat the request: it changes nothing.

use serde::{Deserialize, Serialize};

use crate::event::{EventRecord, GridEvent};
use crate::id::{EventId, FeederId, JobId};
use crate::job::Flexibility;
use crate::time::Timestamp;
use crate::units::Power;

/// Most jobs of a plan; those that lose least are left out.
pub const PLANNED_JOBS_MAX: usize = 1_000;

/// Request: what can be delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "of")]
pub enum PlanEvent {
    /// During an event that is not announced.
    Event {
        /// The event.
        event: GridEvent,
    },
    /// During an announced event.
    Announced {
        /// Its id.
        event: EventId,
    },
    /// In each of the next 24 hours.
    Day {
        /// The feeder; absent: the whole site.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feeder: Option<FeederId>,
    },
}

/// The placer's reply to [`PlanEvent`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum EventPlanReply {
    /// The plan.
    Planned {
        /// It.
        plan: Box<EventPlan>,
    },
    /// There is none.
    Refused {
        /// The cause and the remedy.
        error: String,
    },
}

/// What the site can deliver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventPlan {
    /// When it was computed.
    pub at_us: Timestamp,
    /// The event with its target; absent: each hour stands for an event of an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<EventRecord>,
    /// The time at the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_target: Option<PlannedSpan>,
    /// The event by hour; of an event of more than a day by a 24th of it.
    pub hours: Vec<PlannedSpan>,
    /// The lowest target with which every promise is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_kept_mw: Option<Power>,
    /// The lowest target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_mw: Option<Power>,
    /// What the jobs lose, those that lose most first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<PlannedJob>,
    /// Number of jobs that are left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub jobs_left_out: u32,
    /// Number of present jobs without an expected start, which count as waiting.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub jobs_waiting: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Mean power over a span of time. What is requested is `less + breaks + short`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedSpan {
    /// Its start.
    pub from_us: Timestamp,
    /// Its end.
    pub until_us: Timestamp,
    /// What would be drawn without the event.
    pub drawn_mw: Power,
    /// The target with its ramps; absent: no depth is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_mw: Option<Power>,
    /// What is deliverable with every promise kept.
    pub less_mw: Power,
    /// Lower end of its 90 % interval.
    pub less_mw_low: Power,
    /// Upper end of it.
    pub less_mw_high: Power,
    /// The part of it by caps and clocks.
    pub caps_mw: Power,
    /// The part of it by fewer GPUs.
    pub gpus_mw: Power,
    /// The part of it by pauses.
    pub pauses_mw: Power,
    /// What breaking promises adds.
    pub breaks_mw: Power,
    /// What cannot be delivered.
    pub short_mw: Power,
}

/// What a job loses during an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedJob {
    /// The job.
    pub job: JobId,
    /// Number of its GPUs.
    pub gpus: u32,
    /// Its promise; absent: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<Flexibility>,
    /// The share of its throughput that it loses over its time in the event.
    pub loss: f64,
    /// Lower end of its 90 % interval.
    pub loss_low: f64,
    /// Upper end of it.
    pub loss_high: f64,
    /// By how much later it ends, s.
    pub later_s: f64,
    /// How long it is paused, s.
    #[serde(default)]
    pub paused_s: f64,
    /// How long it has fewer GPUs, s.
    #[serde(default)]
    pub fewer_gpus_s: f64,
    /// Its place in the order in which promises break, from 1; absent: its promise is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaks: Option<u32>,
    /// What breaking its promise adds at the target, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaks_mw: Option<Power>,
}
