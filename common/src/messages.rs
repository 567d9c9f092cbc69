//! The messages, version 1: one file each.
//!
//! Each module documents its content, publisher, listeners, frequency, delivery, and the effect of a
//! lost or doubled message, in this order. Payloads are JSON (bincode for [`telemetry`]); the name of
//! a field contains its unit. Version 1 may gain optional fields; a changed meaning or unit needs a
//! new module and a new subject token.

pub mod actual;
pub mod budget;
pub mod consequence;
pub mod desired;
pub mod event;
pub mod event_plan;
pub mod expected;
pub mod feeders;
pub mod gpu_health;
pub mod grid;
pub mod job_record;
pub mod jobs;
pub mod ledger;
pub mod node_fault;
pub mod order;
pub mod output;
pub mod predictor;
pub mod progressed;
pub mod promote;
pub mod reply;
pub mod request;
pub mod service_lease;
pub mod site_minute;
pub mod store_restored;
pub mod summary;
pub mod surface;
pub mod telemetry;
pub mod twin;
pub mod what_if;
pub mod window;

pub use crate::event::{EventBook, EventPerformances};
pub use actual::{
    AppliedGpu, JobProcesses, LaunchReport, LaunchState, LaunchedJob, PowerReport, ReachedLimit,
    SiteNode, SleepResult,
};
pub use budget::{
    AIM_PROJECTS_MAX, AimProject, AimStatus, BudgetRecord, BudgetReply, BudgetStatus,
    IntensitySeries, LimitCost, PowerMargin, SetBudget,
};
pub use consequence::{Consequence, MovedJobs};
pub use desired::{CapBound, DesiredGpu, DesiredJob, NodeDesired, NodeSleep, SleepState};
pub use event::{EventReply, EventRequest};
pub use event_plan::{
    EventPlan, EventPlanReply, PLANNED_JOBS_MAX, PlanEvent, PlannedJob, PlannedSpan,
};
pub use expected::{
    ExpectedErrors, ExpectedInstant, ExpectedKind, ExpectedRatios, ExpectedStatus, ExpectedTimes,
    NotExpected,
};
pub use feeders::{FeederStatus, FeedersStatus};
pub use gpu_health::{GpuCondition, GpuConditionKind, GpuHealth, MemoryRepair};
pub use grid::{Accounting, GridStatus, InUse, Origin, PriceSeries, SignalStatus};
pub use job_record::{JobRecord, Late, LeftSizeRecord, Prediction, RecordedReason, RestartRecord};
pub use jobs::{JobCounts, JobList, JobsReply, ReadJobs};
pub use ledger::{JobEnergy, LedgerEntry, UnknownCause, UnknownEnergy};
pub use node_fault::{NodeFault, NodeFaultKind};
pub use order::{Order, OrderRecord};
pub use output::{OutputReply, ReadOutput};
pub use predictor::{Champion, Latency, PredictorState, PredictorStatus, Score, Scores};
pub use progressed::JobProgressed;
pub use promote::{PromotePredictor, PromoteReply};
pub use reply::Reply;
pub use request::{CancelJob, SubmitJob};
pub use service_lease::{LeaseHolder, ServiceLease};
pub use site_minute::{Price, SiteMinute, TwinPower};
pub use store_restored::StoreRestored;
pub use summary::{GpuSummary, JobSummary, Meter, NodeSummary, ReadSummary};
pub use surface::{Estimate, Surface, SurfacePoint};
pub use telemetry::{GpuSample, TelemetryBatch, TenantSample};
pub use twin::{
    TWIN_ABSENCES_MAX, TWIN_AHEAD_ROWS_MAX, TWIN_COUNTS_AFTER, TWIN_OPEN_MAX, TWIN_ROWS_MAX,
    TWIN_STATUS_EVERY, TwinAbsence, TwinJob, TwinOpen, TwinRow, TwinStatus, TwinSums, TwinWork,
};
pub use what_if::{TradeOff, WhatIf};
pub use window::{JobWindow, Neighbour};
