//! What the page of one job needs beyond the lists: its record in full, its surface and its windows.

use std::time::Duration;

use wattle_common::messages::{JobRecord, JobWindow, Surface};
use wattle_view::measured::{Measured, measured};

/// The details of a job that viewers follow.
#[derive(Debug, Default)]
pub struct Detail {
    /// Its record; absent: not read yet, or there is no such job.
    pub record: Option<JobRecord>,
    /// Its current surface.
    pub surface: Option<Surface>,
    /// Its measurements by configuration.
    pub measured: Vec<Measured>,
    /// When the details were read, on the steady clock; absent: not yet.
    pub read: Option<Duration>,
}

impl Detail {
    /// Takes the stored surface and windows.
    pub fn take(&mut self, surface: Option<Surface>, windows: &[JobWindow], steady: Duration) {
        let placed = self.record.as_ref().and_then(|record| record.prediction_placed.as_deref());
        self.measured = measured(windows, placed);
        self.surface = surface;
        self.read = Some(steady);
    }
}
