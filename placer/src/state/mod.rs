//! The state of the cluster as the placer knows it: nodes, jobs, GPU sets and what is known of each.

pub mod cluster;
pub mod gpu_set;
pub mod job;
pub mod job_forecast;
pub mod node;
pub mod operating_points;
pub mod work_history;
