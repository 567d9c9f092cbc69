//! Builders for the messages and job descriptions that tests write, and a reader of the commands in
//! the documentation.
//!
//! Each builder returns a complete value with ordinary defaults; a test states only the fields it
//! is about, with struct update syntax. Only dev-dependencies and
//! `wattle-tests` may name this crate.
//!
//! ```
//! use wattle_common::Power;
//! use wattle_common::messages::{Surface, SurfacePoint};
//! use wattle_testkit::{job_spec, point, surface};
//!
//! let spec = job_spec("job-1", 2);
//! assert_eq!(spec.gpus.min, 2);
//!
//! let capped = SurfacePoint { cap_mw: Some(Power::from_w(150)), ..point(1, 0.8, 150.0) };
//! let known = Surface { windows: 12, ..surface("job-1", "v100", [point(1, 1.0, 210.0), capped]) };
//! assert_eq!(known.points.len(), 2);
//! ```

mod budget;
mod cases;
pub mod documentation;
mod feeders;
mod id;
mod job;
mod node;
mod surface;
mod window;

pub use budget::{budget_status, power_margin, twin_status};
pub use cases::{CASES_ENV, cases};
pub use feeders::{connection, feeder, feeders_status, node_summary};
pub use id::{job, node, predictor, workload};
pub use job::{job_record, job_spec, placement};
pub use node::{
    applied_gpu, launch_report, launched_job, ledger_entry, node_desired, power_report, site_minute,
};
pub use surface::{estimate, exactly, point, surface};
pub use window::{job_window, neighbour};
