//! What a viewer follows: one page with its parameters.

use std::collections::BTreeMap;

use wattle_common::{EventId, JobId};

/// Most characters of a search.
const SEARCH_LEN_MAX: usize = 64;
/// Largest page number of a list.
const PAGE_MAX: usize = 10_000;

/// The content that one stream of events carries. Viewers with equal topics share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// The cluster at a glance.
    Overview,
    /// A part of the list of jobs.
    Jobs(List),
    /// One job.
    Job(JobId),
    /// The form that submits a job.
    Submit,
    /// A part of the list of nodes.
    Nodes(List),
    /// The GPUs over time, and the queue.
    Schedule(List),
    /// Energy and carbon by user and project.
    Energy(Period),
    /// Energy saved so far.
    Saving,
    /// The budget and its burn-down.
    Budget,
    /// The grid events, and the form that announces one.
    Events,
    /// One grid event with its report.
    Event(EventId),
    /// The predictors with their errors.
    Predictors,
    /// The services and their state.
    Services,
}

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct List {
    /// Which entries: `active` and so on; the page defines the values.
    pub show: String,
    /// The column by which the entries are ordered; the page defines the values.
    pub sort: String,
    /// Text that an entry contains.
    pub search: String,
    /// Number of the part, from 0.
    pub page: usize,
}

/// The time over which energy is summed, until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Period {
    /// Since midnight, UTC.
    #[default]
    Day,
    /// Today and the six days before.
    Week,
    /// Today and the 29 days before.
    Month,
}

impl Period {
    /// All periods, the shortest first.
    pub const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];

    /// Its name in addresses and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// Number of days, today included.
    #[must_use]
    pub const fn days(self) -> u64 {
        match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 30,
        }
    }
}

impl Topic {
    /// The topic of a page with the parameters of its address; `None`: there is no such page.
    #[must_use]
    pub fn parse(parameters: &BTreeMap<String, String>) -> Option<Self> {
        let get = |key: &str| parameters.get(key).map(String::as_str).unwrap_or_default();
        let word = |key| get(key).chars().filter(char::is_ascii_lowercase).take(16).collect();
        let list = || List {
            show: word("show"),
            sort: word("sort"),
            search: get("q").trim().chars().take(SEARCH_LEN_MAX).collect::<String>().to_lowercase(),
            page: get("page").parse().unwrap_or(0_usize).min(PAGE_MAX),
        };
        match get("topic") {
            "overview" => Some(Self::Overview),
            "jobs" => Some(Self::Jobs(list())),
            "job" => JobId::new(get("job")).ok().map(Self::Job),
            "submit" => Some(Self::Submit),
            "nodes" => Some(Self::Nodes(list())),
            "schedule" => Some(Self::Schedule(list())),
            "energy" => {
                let named = Period::ALL.into_iter().find(|period| period.name() == get("period"));
                Some(Self::Energy(named.unwrap_or_default()))
            }
            "saving" => Some(Self::Saving),
            "budget" => Some(Self::Budget),
            "events" => Some(Self::Events),
            "event" => EventId::new(get("event")).ok().map(Self::Event),
            "predictors" => Some(Self::Predictors),
            "services" => Some(Self::Services),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(parameters: &[(&str, &str)]) -> Option<Topic> {
        let of = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Topic::parse(&parameters.iter().map(of).collect())
    }

    #[test]
    fn parameters_are_bounded_and_unknown_pages_refused() {
        assert_eq!(parse(&[("topic", "overview")]), Some(Topic::Overview));
        assert_eq!(parse(&[("topic", "jobs")]), Some(Topic::Jobs(List::default())));
        let long = "X".repeat(1_000);
        let found =
            parse(&[("topic", "jobs"), ("q", &long), ("page", "999999999"), ("show", "a b")]);
        let Some(Topic::Jobs(list)) = found else { panic!("{found:?}") };
        assert_eq!((list.search.len(), list.page, list.show.as_str()), (64, PAGE_MAX, "ab"));
        assert!(list.search.starts_with('x'), "searches ignore case");
        for wrong in [&[("topic", "passwords")][..], &[("topic", "job"), ("job", "a b")], &[]] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
        let week = parse(&[("topic", "energy"), ("period", "week")]);
        assert_eq!(week, Some(Topic::Energy(Period::Week)));
    }
}
