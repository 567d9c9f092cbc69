//! What the page of one job needs beyond the lists: its record in full, its surface and its windows.

use std::time::Duration;

use wattle_common::messages::{JobRecord, JobWindow, Surface};
use wattle_view::measured::{Measured, measured};

use super::life::Life;

/// The details of a job that viewers follow.
#[derive(Debug, Default)]
pub struct Detail {
    /// Its record; absent: not read yet, or there is no such job.
    pub record: Option<JobRecord>,
    /// Its current surface.
    pub surface: Option<Surface>,
    /// Its measurements by configuration.
    pub measured: Vec<Measured>,
    /// Its power and speed over time, its starts and its co-tenants.
    pub life: Life,
    /// When the details were read, on the steady clock; absent: not yet.
    pub read: Option<Duration>,
}

impl Detail {
    /// Takes the stored surface and windows. The name may have been submitted before: those of another submission
    /// do not count.
    pub fn take(
        &mut self,
        surface: Option<Surface>,
        mut windows: Vec<JobWindow>,
        steady: Duration,
    ) {
        let record = self.record.as_ref();
        windows.retain(|window| record.is_none_or(|record| record.has_window(window)));
        let placed = record.and_then(|record| record.prediction_placed.as_deref());
        self.measured = measured(&windows, placed);
        self.life = Life::of(&windows);
        self.surface =
            surface.filter(|surface| record.is_none_or(|record| record.has_surface(surface)));
        self.read = Some(steady);
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::job::JobPhase;
    use wattle_common::{AdmissionId, Timestamp};
    use wattle_testkit as testkit;

    use super::*;

    #[test]
    fn another_submission_of_the_name_has_its_own_measurements() {
        let at = Timestamp::from_s;
        let [first, second] = [1_000, 2_000].map(|s| Some(AdmissionId::accepted(at(s), 1)));
        let window = |from_s, admission: &Option<AdmissionId>| JobWindow {
            admission: admission.clone(),
            ..testkit::job_window("a", at(from_s), at(from_s + 60))
        };
        let windows = vec![
            window(1_100, &first),
            window(1_200, &None),
            window(2_100, &second),
            window(2_200, &None),
        ];
        let surface = |admission: &Option<AdmissionId>| Surface {
            admission: admission.clone(),
            ..testkit::surface("a", "v100", [testkit::point(1, 10.0, 180.0)])
        };
        let mut detail = Detail {
            record: Some(JobRecord {
                admission: second.clone(),
                ..testkit::job_record(testkit::job_spec("a", 1), JobPhase::Running)
            }),
            ..Detail::default()
        };
        detail.take(Some(surface(&first)), windows.clone(), Duration::ZERO);
        let measured_s: f64 = detail.measured.iter().map(|one| one.span_s).sum();
        assert!((measured_s - 120.0).abs() < 1e-9, "{measured_s} s of two of the four windows");
        assert_eq!(detail.surface, None);
        detail.take(Some(surface(&second)), windows, Duration::ZERO);
        assert!(detail.surface.is_some());
    }
}
