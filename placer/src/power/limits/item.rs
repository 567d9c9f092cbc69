//! A job that draws power under a plan, with the settings that the limits choose from.

use wattle_common::job::GpuSetting;

use crate::power::promises::Promise;
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::Job;

/// The effect of the plan on a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It runs and continues.
    Continues,
    /// It draws power until it has stopped.
    Stops,
    /// It starts. A job that changes its size is not new.
    Starts { is_new: bool },
}

/// A job that draws power under the plan.
pub(super) struct Item<'a> {
    pub(super) key: JobKey,
    pub(super) job: &'a Job,
    pub(super) on: &'a GpuSet,
    pub(super) role: Role,
    /// Its promise during a grid event.
    pub(super) promise: Option<Promise>,
    /// Settings with the expected power of each GPU in watts: the desired one first, then descending.
    pub(super) ladder: Vec<(GpuSetting, f64)>,
    /// Index of the setting with the most work per charged joule, and for a job with a bound on its slowdown
    /// the last setting within that bound. The limits choose a lower one only where nothing else can give. The
    /// last index where speeds are not known.
    pub(super) floor: usize,
    /// Index of the chosen setting.
    pub(super) chosen: usize,
    /// Index of the bound that lowered it.
    pub(super) lowered_by: Option<usize>,
    /// The setting in the plan, or the present one.
    pub(super) planned: GpuSetting,
    /// Its minimum power above idle, watts, by the upper end of its prediction and by the mean.
    pub(super) minimum_w: f64,
    pub(super) minimum_expected_w: f64,
}

impl Item<'_> {
    /// The setting of least power.
    pub(super) fn lowest_setting(&self) -> GpuSetting {
        self.ladder[self.ladder.len() - 1].0
    }
    /// The chosen setting.
    pub(super) fn chosen_setting(&self) -> GpuSetting {
        self.ladder[self.chosen].0
    }
    /// Expected power of each GPU at the chosen setting, watts.
    pub(super) fn chosen_w(&self) -> f64 {
        self.ladder[self.chosen].1
    }
    /// Expected power of each GPU at the lowest setting, watts.
    pub(super) fn lowest_w(&self) -> f64 {
        self.ladder.last().map_or(0.0, |rung| rung.1)
    }
    /// Expected power of each GPU at its floor, watts.
    pub(super) fn floor_w(&self) -> f64 {
        self.ladder.get(self.floor).map_or(0.0, |rung| rung.1)
    }
    /// The index of the first setting of at most this power, or of the last one up to `last`.
    pub(super) fn rung_at(&self, gpu_w: f64, last: usize) -> usize {
        self.ladder[..=last].iter().position(|rung| rung.1 <= gpu_w).unwrap_or(last)
    }
    pub(super) fn is_new(&self) -> bool {
        self.role == Role::Starts { is_new: true }
    }
    pub(super) fn starts(&self) -> bool {
        matches!(self.role, Role::Starts { .. })
    }
}
