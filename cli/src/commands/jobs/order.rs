//! The orders in which `wattle jobs` and `wattle top` list jobs.

use std::cmp::Ordering;
use std::time::Duration;

use clap::ValueEnum;
use wattle_common::job::Placement;
use wattle_common::{Energy, Power, Timestamp};
use wattle_view::expected;
use wattle_view::job::JobView;

/// An order of jobs. Jobs without the quantity are last; equal ones keep the order by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortKey {
    /// Jobs with GPUs, then queued, then ended ones
    #[default]
    Phase,
    /// Ids in alphabetical order
    Job,
    /// Users in alphabetical order
    User,
    /// The most GPUs first
    Gpus,
    /// The highest power first
    Power,
    /// The most energy first
    Energy,
    /// The shortest rest first
    Rest,
    /// The next expected start or end first
    Expected,
    /// The next deadline first
    Deadline,
    /// The longest run time first
    Ran,
    /// The longest waiting time first
    Waited,
}

impl SortKey {
    /// The name of the option's value.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Phase => "phase",
            Self::Job => "job",
            Self::User => "user",
            Self::Gpus => "gpus",
            Self::Power => "power",
            Self::Energy => "energy",
            Self::Rest => "rest",
            Self::Expected => "expected",
            Self::Deadline => "deadline",
            Self::Ran => "ran",
            Self::Waited => "waited",
        }
    }

    /// The order after this one; after the last the first.
    pub(crate) fn next(self) -> Self {
        let all = Self::value_variants();
        let after = all.iter().position(|order| *order == self).map_or(0, |index| index + 1);
        all.get(after).copied().unwrap_or_default()
    }

    /// Sorts jobs that are in the order by phase.
    pub(crate) fn sort(self, views: &mut [JobView]) {
        let soonest = |of: &dyn Fn(&JobView) -> Option<f64>, a: &JobView, b: &JobView| {
            first_known(of(a), of(b), f64::total_cmp)
        };
        let most = |of: &dyn Fn(&JobView) -> Option<f64>, a: &JobView, b: &JobView| {
            first_known(of(a), of(b), |a, b| b.total_cmp(a))
        };
        let seconds = |span: Option<Duration>| span.map(|span| span.as_secs_f64());
        views.sort_by(|a, b| match self {
            Self::Phase => Ordering::Equal,
            Self::Job => a.record.spec.job.cmp(&b.record.spec.job),
            Self::User => {
                let user = |view: &JobView| view.record.spec.user.clone();
                first_known(user(a), user(b), Ord::cmp)
            }
            Self::Gpus => most(&|view| Some(f64::from(gpus(view))), a, b),
            Self::Power => most(&|view| view.power_mw.map(Power::as_w), a, b),
            Self::Energy => most(&|view| view.energy_mj_total.map(Energy::as_kwh), a, b),
            Self::Rest => soonest(&|view| seconds(view.rest()), a, b),
            Self::Expected => soonest(&|view| next_expected(view).map(Timestamp::as_s), a, b),
            Self::Deadline => {
                soonest(&|view| view.record.spec.deadline_at_us.map(Timestamp::as_s), a, b)
            }
            Self::Ran => most(&|view| seconds(view.ran()), a, b),
            Self::Waited => most(&|view| seconds(view.waited()), a, b),
        });
    }
}

/// Compares two quantities; an absent one is after every known one.
fn first_known<T>(a: Option<T>, b: Option<T>, order: impl Fn(&T, &T) -> Ordering) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => order(&a, &b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

/// The GPUs that a job holds, or the least number that it requests.
fn gpus(view: &JobView) -> u32 {
    let placement = view.record.placement.as_ref();
    placement.map_or(view.record.spec.gpus.min, Placement::gpu_count)
}

/// The expected start of a job that waits, or the expected end of one with GPUs.
fn next_expected(view: &JobView) -> Option<Timestamp> {
    let end = || expected::end(&view.record).filter(|_| view.is_running());
    expected::start(&view.record).or_else(end).map(|expected| expected.at_us)
}

#[cfg(test)]
mod tests {
    use wattle_common::job::JobPhase;
    use wattle_common::messages::{ExpectedInstant, ExpectedTimes, JobRecord};
    use wattle_testkit as testkit;

    use super::*;
    use crate::commands::jobs::tests::{last_summaries, records};
    use crate::commands::jobs::views;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_s(s)
    }

    fn sorted(records: Vec<JobRecord>, order: SortKey) -> Vec<String> {
        let mut views = views(records, &last_summaries(), at(4_200));
        order.sort(&mut views);
        views.iter().map(|view| view.record.spec.job.to_string()[..3].to_owned()).collect()
    }

    #[test]
    fn jobs_are_sorted_and_absent_quantities_are_last() {
        // A running, an observed, a queued and a failed job.
        let of = |order| sorted(records(), order);
        assert_eq!(of(SortKey::Phase), ["pyt", "t-2", "a-j", "t-4"]);
        assert_eq!(of(SortKey::Job), ["a-j", "pyt", "t-2", "t-4"]);
        assert_eq!(of(SortKey::Power), ["pyt", "t-2", "a-j", "t-4"]);
        assert_eq!(of(SortKey::Energy), ["pyt", "t-4", "t-2", "a-j"]);
        assert_eq!(of(SortKey::Gpus), ["a-j", "pyt", "t-2", "t-4"]);
        assert_eq!(of(SortKey::Rest), ["pyt", "t-2", "a-j", "t-4"]);
        assert_eq!(
            of(SortKey::Ran),
            ["pyt", "t-2", "a-j", "t-4"],
            "the failed one has not stored it"
        );
        assert_eq!(of(SortKey::Waited), ["a-j", "t-2", "pyt", "t-4"]);
    }

    #[test]
    fn names_and_instants_are_sorted() {
        let mut all = records();
        let users = [Some("eve"), None, Some("ada"), Some("bob")];
        for (record, user) in all.iter_mut().zip(users) {
            record.spec.user = user.map(str::to_owned);
        }
        assert_eq!(sorted(all.clone(), SortKey::User), ["a-j", "t-4", "pyt", "t-2"]);
        all[1].spec.deadline_at_us = Some(at(9_000));
        all[2].spec.deadline_at_us = Some(at(5_000));
        assert_eq!(sorted(all.clone(), SortKey::Deadline), ["a-j", "t-2", "pyt", "t-4"]);
        let instant = |s: u64| {
            Some(ExpectedInstant { at_us: at(s), from_us: at(s), until_us: at(s), forecasts: 1 })
        };
        let expected = |start: Option<u64>, end| {
            let (start, end) = (start.and_then(instant), instant(end));
            Some(Box::new(ExpectedTimes { at_us: at(1), start, end, unknown: None }))
        };
        all[1].expected = expected(None, 6_000);
        all[2].expected = expected(Some(5_000), 7_000);
        assert_eq!(sorted(all, SortKey::Expected), ["a-j", "t-2", "pyt", "t-4"]);
    }

    #[test]
    fn equal_jobs_keep_their_order() {
        let same = |job: &str| JobRecord {
            energy_mj: Some(Energy::from_j(5)),
            ..testkit::job_record(testkit::job_spec(job, 1), JobPhase::Finished)
        };
        let records = vec![same("job-2"), same("abc-1"), same("xyz-3")];
        assert_eq!(sorted(records, SortKey::Energy), ["job", "abc", "xyz"]);
    }

    #[test]
    fn every_order_is_named_as_its_option_and_follows_another() {
        let mut order = SortKey::default();
        for expected in SortKey::value_variants() {
            assert_eq!(order, *expected);
            let value = order.to_possible_value().unwrap();
            assert_eq!(value.get_name(), order.name());
            order = order.next();
        }
        assert_eq!(order, SortKey::default());
        let error = SortKey::from_str("watts", false).unwrap_err();
        assert!(error.contains("invalid variant"), "{error}");
    }
}
