//! Lateness: mean completion time relative to a reference schedule of the same jobs, minus 1, over all jobs and
//! over those of each project.
//!
//! Means are over the jobs that complete in both schedules, each with the same weight. A schedule that completes
//! fewer jobs than the reference has no lateness. A negative lateness is a sooner completion.

use std::collections::BTreeMap;

use wattle_simulator::trace::Trace;

/// The projects of a trace's jobs: the account of a job, or its user where the trace names no account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projects {
    /// Their names, sorted.
    names: Vec<String>,
    /// The project of each job, in the order of the trace.
    of_job: Vec<Option<usize>>,
}

impl Projects {
    /// The projects of `trace`; none where it names neither accounts nor users.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        let mut indices: BTreeMap<&str, usize> =
            trace.jobs.iter().filter_map(|job| job.project()).map(|name| (name, 0)).collect();
        for (index, (_, slot)) in indices.iter_mut().enumerate() {
            *slot = index;
        }
        let of_job = trace.jobs.iter().map(|job| indices.get(job.project()?).copied()).collect();
        Self { names: indices.keys().map(|&name| name.to_owned()).collect(), of_job }
    }

    /// Whether no job has a project, so that the lateness of projects is unknown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The name of a project.
    #[must_use]
    pub fn name(&self, project: usize) -> &str {
        self.names.get(project).map_or("", String::as_str)
    }
}

/// Projects of these names, one for each job.
#[cfg(test)]
pub(crate) fn projects_of_jobs(names: &[&str]) -> Projects {
    let of_job = (0..names.len()).map(Some).collect();
    Projects { names: names.iter().map(|&name| name.to_owned()).collect(), of_job }
}

/// A schedule to which lateness relates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reference {
    /// Completion time of each job in the order of the scenario, s; `None` where it did not complete.
    pub completion_s: Vec<Option<f64>>,
    /// The projects of the jobs; without any, the lateness of projects is unknown.
    pub projects: Projects,
}

/// Mean completion time relative to the reference's, minus 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lateness {
    /// Over all jobs.
    pub mean: f64,
    /// The project with the greatest lateness, and that lateness; `None` without projects.
    pub project: Option<(usize, f64)>,
}

/// Sums of completion times, s.
#[derive(Clone, Copy, Default)]
struct Sums {
    own_s: f64,
    reference_s: f64,
}

impl Sums {
    fn add(&mut self, own_s: f64, reference_s: f64) {
        self.own_s += own_s;
        self.reference_s += reference_s;
    }

    fn lateness(self) -> Option<f64> {
        (self.reference_s > 0.0).then(|| self.own_s / self.reference_s - 1.0)
    }
}

impl Reference {
    /// The lateness of a schedule with these completion times, s. `None` where it completes fewer jobs than the
    /// reference, or none in common.
    #[must_use]
    pub fn lateness(&self, completion_s: &[Option<f64>]) -> Option<Lateness> {
        let completed = |jobs: &[Option<f64>]| jobs.iter().flatten().count();
        if completed(completion_s) < completed(&self.completion_s) {
            return None;
        }
        let mut all = Sums::default();
        let mut of_project = vec![Sums::default(); self.projects.names.len()];
        let both = completion_s.iter().zip(&self.completion_s).enumerate();
        for (job, (own_s, reference_s)) in both {
            let Some((own_s, reference_s)) = own_s.zip(*reference_s) else { continue };
            all.add(own_s, reference_s);
            if let Some(&Some(project)) = self.projects.of_job.get(job) {
                of_project[project].add(own_s, reference_s);
            }
        }
        let projects = of_project.into_iter().enumerate();
        let projects = projects.filter_map(|(project, sums)| Some((project, sums.lateness()?)));
        let project = projects.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        Some(Lateness { mean: all.lateness()?, project })
    }
}

/// The greatest permitted lateness.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allowed {
    /// Of the mean over all jobs.
    pub mean: f64,
    /// Of the mean of each project; `None`: projects are not bounded.
    pub project: Option<f64>,
}

impl Allowed {
    /// A bound on the mean over all jobs alone.
    #[must_use]
    pub const fn mean(mean: f64) -> Self {
        Self { mean, project: None }
    }

    /// Whether a lateness is within the bounds.
    #[must_use]
    pub fn permits(&self, lateness: Lateness) -> bool {
        let worst = self.project.zip(lateness.project);
        lateness.mean <= self.mean && worst.is_none_or(|(allowed, (_, worst))| worst <= allowed)
    }

    /// The lateness of the tighter bound as one figure, which the bound [`Allowed::mean`] limits.
    #[must_use]
    pub fn tightest(&self, lateness: Lateness) -> f64 {
        let worst = self.project.zip(lateness.project);
        let worst = worst.map(|(allowed, (_, worst))| worst - allowed + self.mean);
        worst.map_or(lateness.mean, |worst| worst.max(lateness.mean))
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use std::time::Duration;

    use wattle_common::JobId;
    use wattle_simulator::trace::TraceJob;

    use super::*;

    fn projects(accounts: &[Option<&str>]) -> Projects {
        let job = |(index, account): (usize, &Option<&str>)| TraceJob {
            account: account.map(str::to_owned),
            user: Some("ann".to_owned()).filter(|_| account.is_none() && index == 0),
            ..TraceJob::new(
                JobId::new(&format!("j{index}")).unwrap(),
                Duration::ZERO,
                Duration::from_secs(60),
                1,
            )
        };
        let trace = Trace {
            name: "t".to_owned(),
            jobs: accounts.iter().enumerate().map(job).collect(),
            ..wattle_simulator::generator::generate(1, 1)
        };
        Projects::of(&trace)
    }

    #[test]
    fn lateness_is_over_jobs_that_complete_in_both_schedules() {
        let of = |completion_s: &[Option<f64>]| Reference {
            completion_s: completion_s.to_vec(),
            projects: Projects::default(),
        };
        let reference = of(&[Some(100.0), None, Some(300.0)]);
        let lateness = reference.lateness(&[Some(90.0), Some(9e9), Some(290.0)]).unwrap();
        assert!((lateness.mean + 0.05).abs() < 1e-12, "{lateness:?}");
        assert_eq!(lateness.project, None);
        // Fewer jobs than the reference, and none in common.
        assert_eq!(reference.lateness(&[Some(1.0), None, None]), None);
        assert_eq!(of(&[None]).lateness(&[Some(1.0)]), None);
    }

    #[test]
    fn worst_project_is_the_one_with_the_greatest_lateness() {
        let projects = projects(&[None, Some("b"), Some("b"), Some("c"), None]);
        let reference =
            Reference { completion_s: vec![Some(100.0); 5], projects: projects.clone() };
        let run = [100.0, 90.0, 130.0, 105.0, 900.0].map(Some);
        let lateness = reference.lateness(&run).unwrap();
        let (project, worst) = lateness.project.unwrap();
        assert_eq!(projects.name(project), "b");
        assert!((worst - 0.1).abs() < 1e-12, "{lateness:?}");
        assert!((lateness.mean - 1.65).abs() < 1e-12, "{lateness:?}");
        // The user counts where a job has no account.
        assert_eq!(projects.name(0), "ann");
    }

    #[test]
    fn bounds_permit_an_equal_lateness_and_no_greater_one() {
        let allowed = Allowed { mean: 0.0, project: Some(0.1) };
        let of = |mean: f64, worst: f64| Lateness { mean, project: Some((0, worst)) };
        assert!(allowed.permits(of(0.0, 0.1)));
        assert!(!allowed.permits(of(f64::EPSILON, 0.0)));
        assert!(!allowed.permits(of(-0.2, 0.11)));
        assert!(Allowed::mean(0.0).permits(of(-0.2, 0.11)));
        // The figure of the tighter bound.
        assert_eq!(allowed.tightest(of(-0.02, 0.0)), -0.02);
        assert!((allowed.tightest(of(-0.2, 0.13)) - 0.03).abs() < 1e-12);
    }
}
