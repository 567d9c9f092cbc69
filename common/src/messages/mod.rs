//! The messages, version 1: one file each.
//!
//! Every module says, in this order: what the message says, who publishes it, who listens, how
//! often, how it is delivered, and what happens if it is lost or doubled. Payloads are JSON (but
//! [`telemetry`], which is bincode), every field's unit is in its name. An optional field may be
//! added within version 1; a changed meaning or unit is a new module and a new subject token.

pub mod actual;
pub mod budget;
pub mod desired;
pub mod job_record;
pub mod ledger;
pub mod predictor;
pub mod progressed;
pub mod promote;
pub mod reply;
pub mod request;
pub mod summary;
pub mod surface;
pub mod telemetry;
pub mod window;

pub use actual::{AppliedGpu, LaunchReport, LaunchState, LaunchedJob, PowerReport, SleepAnswer};
pub use budget::{BudgetRecord, BudgetReply, BudgetStatus, Intensities, SetBudget};
pub use desired::{DesiredGpu, DesiredJob, NodeDesired, NodeSleep, SleepState};
pub use job_record::{JobRecord, ProbeMade, RecordedReason};
pub use ledger::{JobEnergy, LedgerEntry};
pub use predictor::{Champion, Latency, PredictorState, PredictorStatus, Score, Scores};
pub use progressed::JobProgressed;
pub use promote::{PromotePredictor, PromoteReply};
pub use reply::Reply;
pub use request::{CancelJob, SubmitJob};
pub use summary::{GpuSummary, NodeSummary};
pub use surface::{Estimate, Probe, Surface, SurfacePoint};
pub use telemetry::{GpuSample, TelemetryBatch, TenantSample};
pub use window::{JobWindow, Neighbour};
