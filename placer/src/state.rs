//! The state of the cluster: nodes, jobs and GPU sets, with their reports and forecasts.

pub mod cluster;
pub mod gpu_set;
pub mod job;
pub mod job_forecast;
pub mod left_settings;
pub mod node;
pub mod operating_points;
pub mod restarts;
pub(crate) mod surface_index;
pub mod work_history;
