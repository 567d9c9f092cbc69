//! The twin: what the site's former scheduler would have done with the same jobs, in sums.
//!
//! * **Publisher:** the active placer.
//! * **Listeners:** `wattle saved`, the web page; the placer itself when it restarts.
//! * **How often:** every five minutes, and once the energy of the last job of an empty cluster is known.
//! * **Delivery:** key-value bucket `budget`, keys `twin` and `twin-open`; the last value is current.
//! * **Lost or doubled:** the value is complete; the next one replaces it.
//!
//! Completion and waiting times, and the energy of the cluster, are measured. All that is of the twin is computed from
//! the jobs' measured work and predicted speed and power at the default setting.

use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::aim::Baseline;
use crate::id::{JobId, NodeId};
use crate::time::Timestamp;

/// Most rows of a status; the oldest days are merged.
pub const TWIN_ROWS_MAX: usize = 1_500;
/// Most rows of the jobs that are still to complete in the twin; the names of further ones are not kept.
pub const TWIN_AHEAD_ROWS_MAX: usize = 200;
/// Time after its end from which a job counts: its last entry of the energy ledger arrives within a minute.
pub const TWIN_COUNTS_AFTER: Duration = Duration::from_mins(2);
/// Time between two stored values.
pub const TWIN_STATUS_EVERY: Duration = Duration::from_mins(5);
/// Most jobs in [`TwinOpen`].
pub const TWIN_OPEN_MAX: usize = 2_500;
/// Most absences that are kept.
pub const TWIN_ABSENCES_MAX: usize = 16;

/// Correlation of the errors of two jobs' energies, in units of their intervals: jobs of one class have errors of the same
/// sign. Estimated from the pairs of jobs of the simulations in docs/measurements/twin.md.
pub const ERROR_CORRELATION: f64 = 0.06;
/// The error that 90 % of the jobs of these simulations do not exceed, as a share of half the width of their predicted
/// intervals. It is below 1, because a predicted interval is that of one window, and the energy of a job a mean over many.
pub const ERROR_SHARE: f64 = 0.55;

/// Fewest jobs of a test of their mean.
const JOBS_LEAST: u64 = 5;

/// The 95th percentile of Student's distribution with `freedom` degrees, within 1 % from 4 on (Cornish and Fisher).
fn student_95(freedom: f64) -> f64 {
    const NORMAL: f64 = 1.644_853_6;
    let cube = NORMAL.powi(3);
    let first = (cube + NORMAL) / 4.0;
    let second = (5.0 * NORMAL.powi(5) + 16.0 * cube + 3.0 * NORMAL) / 96.0;
    NORMAL + first / freedom + second / (freedom * freedom)
}

/// The sums of a twin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TwinStatus {
    /// When this was written.
    pub at_us: Timestamp,
    /// When the twin began.
    pub since_us: Timestamp,
    /// Its scheduler.
    pub baseline: Baseline,
    /// Number of jobs that wait in the twin.
    pub waiting: u64,
    /// Number of jobs that run in the twin.
    pub running: u64,
    /// The sums by day, user and project.
    pub rows: Vec<TwinRow>,
    /// The same of the jobs that have completed in the cluster and still wait or run in the twin, while the cluster has
    /// no job: their work is known then. A job that is submitted before they end there may change their figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ahead: Vec<TwinRow>,
    /// Number of jobs whose run time became known too late to correct the queue of the twin.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub corrected_late: u64,
    /// When no placer ran. The nodes that changed meanwhile are not known, and sleep is not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absences: Vec<TwinAbsence>,
    /// When the sums were computed from the records of jobs; absent: they were counted as jobs completed. The nodes
    /// before are those of then, and their sleep is not counted unless it had been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed_at_us: Option<Timestamp>,
}

impl TwinStatus {
    /// All rows: of the jobs that completed in both schedules and of the nodes, and of the jobs ahead.
    pub fn all_rows(&self) -> impl Iterator<Item = &TwinRow> {
        self.rows.iter().chain(&self.ahead)
    }

    /// Number of jobs that have completed in the cluster and still wait or run in the twin.
    #[must_use]
    pub fn jobs_ahead(&self) -> u64 {
        self.ahead.iter().map(|row| row.sums.jobs).sum()
    }
}

/// The jobs that are not in the sums yet and have started in the twin or left the cluster: where a restarted placer
/// continues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TwinOpen {
    /// When this was written.
    pub at_us: Timestamp,
    /// The jobs, at most [`TWIN_OPEN_MAX`].
    pub jobs: Vec<TwinJob>,
    /// Number of further jobs, which a restart would lose.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_stored: u64,
}

/// A time without the twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinAbsence {
    /// Its beginning.
    pub from_us: Timestamp,
    /// Its end.
    pub until_us: Timestamp,
}

/// The sums of an owner on a day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TwinRow {
    /// The day on which the jobs completed in the cluster: days since 1970-01-01, UTC. 0: the days before the others.
    pub day: u64,
    /// The user of the jobs; absent: none is stated, or the row is of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Their project; absent: they name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The sums.
    #[serde(flatten)]
    pub sums: TwinSums,
}

/// Sums over the jobs that completed in the cluster and in the twin, each counted equally, and over nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TwinSums {
    /// Number of jobs.
    pub jobs: u64,
    /// Time from submission to completion in the cluster, s.
    pub completion_s: f64,
    /// The same in the twin, s.
    pub completion_s_twin: f64,
    /// Time without GPUs in the cluster, s.
    pub wait_s: f64,
    /// The same in the twin, s.
    pub wait_s_twin: f64,
    /// Sum of the squared differences of the two, s^2. 0 beside other times: sums of an earlier release.
    pub delay_square_s2: f64,
    /// Number of jobs whose energy is compared: it is measured throughout, and predicted for the default setting.
    pub compared: u64,
    /// Measured energy of the GPUs of the compared jobs, J.
    pub gpu_j: f64,
    /// Energy of these GPUs over the same time without jobs, J.
    pub gpu_j_idle: f64,
    /// Predicted energy of the GPUs of the compared jobs in the twin, J.
    pub gpu_j_twin: f64,
    /// Energy of these GPUs over the same time without jobs, J.
    pub gpu_j_twin_idle: f64,
    /// Sum of half the widths of the 90 % intervals of the jobs' energies, J.
    pub error_j: f64,
    /// Sum of their squares, J^2.
    pub error_square_j2: f64,
    /// The part of the saving that caps and clocks made, by prediction, J.
    pub settings_j: f64,
    /// Energy of all nodes without jobs, all awake, J.
    pub rest_j: f64,
    /// The part of it that sleep saved, J.
    pub slept_j: f64,
    /// The part of the saving of the jobs on shared GPUs beside that by caps and clocks, J.
    #[serde(skip_serializing_if = "is_nothing")]
    pub sharing_j: f64,
    /// The same of the jobs on another number of GPUs than requested, J.
    #[serde(skip_serializing_if = "is_nothing")]
    pub sizes_j: f64,
    /// Time of all nodes whose energy counts, s.
    #[serde(skip_serializing_if = "is_nothing")]
    pub node_s: f64,
    /// The part of it in which nodes were asleep, s.
    #[serde(skip_serializing_if = "is_nothing")]
    pub node_s_asleep: f64,
}

impl TwinSums {
    /// The sums rounded to a tenth of a second and of a joule.
    #[must_use]
    pub fn rounded(self) -> Self {
        let tenths = |value: f64| (value * 10.0).round() / 10.0;
        Self {
            jobs: self.jobs,
            completion_s: tenths(self.completion_s),
            completion_s_twin: tenths(self.completion_s_twin),
            wait_s: tenths(self.wait_s),
            wait_s_twin: tenths(self.wait_s_twin),
            delay_square_s2: self.delay_square_s2.round(),
            compared: self.compared,
            gpu_j: tenths(self.gpu_j),
            gpu_j_idle: tenths(self.gpu_j_idle),
            gpu_j_twin: tenths(self.gpu_j_twin),
            gpu_j_twin_idle: tenths(self.gpu_j_twin_idle),
            error_j: tenths(self.error_j),
            error_square_j2: self.error_square_j2.round(),
            settings_j: tenths(self.settings_j),
            rest_j: tenths(self.rest_j),
            slept_j: tenths(self.slept_j),
            sharing_j: tenths(self.sharing_j),
            sizes_j: tenths(self.sizes_j),
            node_s: tenths(self.node_s),
            node_s_asleep: tenths(self.node_s_asleep),
        }
    }

    /// The part of the jobs, and that of the nodes.
    #[must_use]
    pub fn by_jobs_and_nodes(self) -> (Self, Self) {
        let Self { rest_j, slept_j, node_s, node_s_asleep, .. } = self;
        let nodes = Self { rest_j, slept_j, node_s, node_s_asleep, ..Self::default() };
        let jobs = Self { rest_j: 0.0, slept_j: 0.0, node_s: 0.0, node_s_asleep: 0.0, ..self };
        (jobs, nodes)
    }

    /// Mean completion time relative to that of the twin, minus 1; `None` without jobs.
    #[must_use]
    pub fn later(&self) -> Option<f64> {
        (self.completion_s_twin > 0.0).then(|| self.completion_s / self.completion_s_twin - 1.0)
    }

    /// Whether jobs complete later than by this share with a confidence of 95 %, by Student's test of the differences of
    /// their completion times; `false` with fewer than [`JOBS_LEAST`] jobs.
    #[must_use]
    pub fn is_later_than(&self, share: f64) -> bool {
        if self.jobs < JOBS_LEAST {
            return false;
        }
        let jobs = self.jobs as f64;
        let delay_s = self.completion_s - self.completion_s_twin;
        // Negative where the squares lack jobs.
        let variance = (self.delay_square_s2 - delay_s * delay_s / jobs) / (jobs - 1.0);
        let excess_s = (delay_s - share * self.completion_s_twin) / jobs;
        variance >= 0.0 && excess_s > student_95(jobs - 1.0) * (variance / jobs).sqrt()
    }

    /// Energy of the twin: all nodes awake, and the compared jobs above idle power, J.
    #[must_use]
    pub fn energy_j_twin(&self) -> f64 {
        self.rest_j + self.gpu_j_twin - self.gpu_j_twin_idle
    }

    /// Saved energy, J: of the compared jobs above idle power, and of sleeping nodes. Negative: more was used.
    #[must_use]
    pub fn saved_j(&self) -> f64 {
        self.jobs_saved_j() + self.slept_j
    }

    /// The part of the saving on the GPUs of jobs, J.
    #[must_use]
    pub fn jobs_saved_j(&self) -> f64 {
        (self.gpu_j_twin - self.gpu_j_twin_idle) - (self.gpu_j - self.gpu_j_idle)
    }

    /// The rest of that part: beside caps and clocks, shared GPUs and other numbers of GPUs, J.
    #[must_use]
    pub fn rest_of_jobs_saved_j(&self) -> f64 {
        self.jobs_saved_j() - self.settings_j - self.sharing_j - self.sizes_j
    }

    /// Half the width of the 90 % interval of the saved energy, J, with [`ERROR_SHARE`] of the predicted intervals as the
    /// errors of jobs, and [`ERROR_CORRELATION`] between those of two jobs.
    #[must_use]
    pub fn saved_error_j(&self) -> f64 {
        let common = ERROR_CORRELATION * self.error_j * self.error_j;
        ERROR_SHARE * (common + (1.0 - ERROR_CORRELATION) * self.error_square_j2).sqrt()
    }

    /// Saved share of the twin's energy; `None` without energy.
    #[must_use]
    pub fn saved_share(&self) -> Option<f64> {
        let energy = self.energy_j_twin();
        (energy > 0.0).then(|| self.saved_j() / energy)
    }
}

impl AddAssign for TwinSums {
    fn add_assign(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.completion_s += other.completion_s;
        self.completion_s_twin += other.completion_s_twin;
        self.wait_s += other.wait_s;
        self.wait_s_twin += other.wait_s_twin;
        self.delay_square_s2 += other.delay_square_s2;
        self.compared += other.compared;
        self.gpu_j += other.gpu_j;
        self.gpu_j_idle += other.gpu_j_idle;
        self.gpu_j_twin += other.gpu_j_twin;
        self.gpu_j_twin_idle += other.gpu_j_twin_idle;
        self.error_j += other.error_j;
        self.error_square_j2 += other.error_square_j2;
        self.settings_j += other.settings_j;
        self.rest_j += other.rest_j;
        self.slept_j += other.slept_j;
        self.sharing_j += other.sharing_j;
        self.sizes_j += other.sizes_j;
        self.node_s += other.node_s;
        self.node_s_asleep += other.node_s_asleep;
    }
}

/// A job that is not in the sums yet, as far as its record does not have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TwinJob {
    /// The job.
    pub job: JobId,
    /// When it was submitted. Ids of jobs may be submitted again.
    pub submitted_at_us: Timestamp,
    /// When it left the cluster; absent: it is present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_at_us: Option<Timestamp>,
    /// When it first started in the twin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_us: Option<Timestamp>,
    /// When it completed in the twin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_us: Option<Timestamp>,
    /// Its GPUs in the twin, while it runs there: nodes with bit masks of GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<(NodeId, u64)>,
    /// When it got them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_us: Option<Timestamp>,
    /// Its run time in the twin before that, s.
    #[serde(default)]
    pub done_s: f64,
    /// Its work.
    pub work: TwinWork,
}

/// The work of a job at the default setting on the requested GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TwinWork {
    /// Time for what it has done, by its predicted speeds, s.
    pub done_s: f64,
    /// Half the width of its 90 % interval, s.
    pub done_error_s: f64,
    /// Its run time, s; known once it has ended, before that an estimate. Absent: no estimate.
    pub run_time_s: Option<f64>,
    /// Its GPU time in the cluster, s; a shared GPU counts for each of its jobs in part.
    pub gpu_s: f64,
    /// The part of it on GPUs that it shared, s.
    #[serde(skip_serializing_if = "is_nothing")]
    pub gpu_s_shared: f64,
    /// The part of it on another number of GPUs than requested, without sharing, s.
    #[serde(skip_serializing_if = "is_nothing")]
    pub gpu_s_resized: f64,
    /// Predicted power of one GPU, W.
    pub gpu_w: Option<f64>,
    /// Power of one idle GPU of its type, W.
    pub gpu_idle_w: Option<f64>,
    /// Half the width of the 90 % interval of its energy, a share.
    pub error: Option<f64>,
    /// Measured energy of its GPUs in the cluster, J.
    pub energy_j: Option<f64>,
    /// Whether some of that energy was not measured.
    pub unmetered: bool,
    /// The part of the saving by caps and clocks, J.
    pub settings_j: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_nothing(value: &f64) -> bool {
    *value == 0.0
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;
    use crate::codec::{PAYLOAD_LEN_MAX, encode_json};

    #[test]
    fn the_saving_is_of_jobs_above_idle_and_of_sleep() {
        let sums = TwinSums {
            jobs: 2,
            completion_s: 210.0,
            completion_s_twin: 200.0,
            compared: 2,
            // 100 s at 150 W of 50 W idle, against 90 s at 250 W.
            gpu_j: 15_000.0,
            gpu_j_idle: 5_000.0,
            gpu_j_twin: 22_500.0,
            gpu_j_twin_idle: 4_500.0,
            rest_j: 30_000.0,
            slept_j: 2_000.0,
            ..TwinSums::default()
        };
        assert_eq!(sums.jobs_saved_j(), 8_000.0);
        assert_eq!(sums.energy_j_twin(), 48_000.0);
        assert_eq!(sums.saved_share(), Some(10_000.0 / 48_000.0));
        assert!((sums.later().unwrap() - 0.05).abs() < 1e-12);
        assert_eq!(TwinSums::default().later(), None);
        assert_eq!(TwinSums::default().saved_share(), None);
    }

    /// Sums of jobs with 100 s in the twin and these delays.
    fn delayed(delays: &[f64]) -> TwinSums {
        let mut sums = TwinSums::default();
        for delay in delays {
            sums += TwinSums {
                jobs: 1,
                completion_s: 100.0 + delay,
                completion_s_twin: 100.0,
                delay_square_s2: delay * delay,
                ..TwinSums::default()
            };
        }
        sums
    }

    #[test]
    fn the_interval_of_a_saving_is_narrower_than_the_sum_of_its_jobs_and_wider_than_that_of_independent_ones()
     {
        let job = TwinSums { error_j: 10.0, error_square_j2: 100.0, ..TwinSums::default() };
        assert!((job.saved_error_j() - ERROR_SHARE * 10.0).abs() < 1e-9);
        let mut sums = TwinSums::default();
        (0..100).for_each(|_| sums += job);
        let (independent, equal) = (ERROR_SHARE * 100.0, ERROR_SHARE * 1_000.0);
        let both = sums.saved_error_j();
        assert!(1.5 * independent < both && both < 0.5 * equal, "{both}");
    }

    #[test]
    fn jobs_are_later_once_chance_does_not_explain_it() {
        // The same mean, 16 % later: of jobs that are all delayed, and of which some are earlier.
        assert!(delayed(&[10.0, 15.0, 20.0, 15.0, 20.0]).is_later_than(0.0));
        assert!(!delayed(&[120.0, -60.0, 90.0, -40.0, -30.0]).is_later_than(0.0));
        assert!(!delayed(&[10.0, 15.0, 20.0, 15.0, 20.0]).is_later_than(0.15), "the bound");
        assert!(!delayed(&[15.0; 4]).is_later_than(0.0), "too few jobs");
        assert!(!delayed(&[-15.0; 9]).is_later_than(0.0), "earlier");
        // With more jobs the same scatter is significant.
        let scattered = [120.0, -60.0, 90.0, -40.0, -30.0].repeat(20);
        assert!(delayed(&scattered).is_later_than(0.0) && !delayed(&scattered).is_later_than(0.15));
        let old = TwinSums { delay_square_s2: 0.0, ..delayed(&[15.0; 9]) };
        assert!(!old.is_later_than(0.0), "the squares are not known");
    }

    #[test]
    fn percentiles_of_students_distribution() {
        for (freedom, expected) in [(4.0, 2.132), (9.0, 1.833), (30.0, 1.697), (1e6, 1.645)] {
            assert!((student_95(freedom) / expected - 1.0).abs() < 0.01, "{freedom}");
        }
    }

    #[test]
    fn a_status_of_the_largest_size_fits_a_value() {
        let name = "u".repeat(32);
        let sums = TwinSums {
            completion_s: 123_456_789.0,
            delay_square_s2: 1.234_567_89e18,
            error_square_j2: 1.234_567_89e18,
            sharing_j: -12_345_678.9,
            sizes_j: -12_345_678.9,
            ..TwinSums::default()
        };
        let row = TwinRow { day: 20_000, user: Some(name.clone()), project: Some(name), sums };
        let at = Timestamp::from_s(1_700_000_000);
        let work = TwinWork {
            done_s: 123_456.0,
            done_error_s: 1_234.5,
            gpu_s: 123_456.0,
            gpu_s_shared: 123_456.0,
            gpu_s_resized: 123_456.0,
            run_time_s: Some(123_456.0),
            gpu_w: Some(250.0),
            gpu_idle_w: Some(40.0),
            error: Some(0.1),
            energy_j: Some(1e9),
            unmetered: false,
            settings_j: 1e6,
        };
        let open = TwinJob {
            job: JobId::new("training-run-123456").unwrap(),
            submitted_at_us: at,
            left_at_us: None,
            start_us: Some(at),
            end_us: None,
            on: vec![(NodeId::new("node-1234").unwrap(), 255)],
            since_us: Some(at),
            done_s: 0.0,
            work,
        };
        let status = TwinStatus {
            at_us: at,
            since_us: at,
            baseline: Baseline::Backfill,
            waiting: 1,
            running: 1,
            rows: vec![row.clone(); TWIN_ROWS_MAX],
            ahead: vec![row; TWIN_AHEAD_ROWS_MAX],
            corrected_late: 0,
            absences: Vec::new(),
            replayed_at_us: None,
        };
        let open = TwinOpen { at_us: at, jobs: vec![open; TWIN_OPEN_MAX], not_stored: 0 };
        let len = [encode_json(&status).len(), encode_json(&open).len()];
        assert!(len.iter().all(|len| *len < PAYLOAD_LEN_MAX), "{len:?}");
    }
}
