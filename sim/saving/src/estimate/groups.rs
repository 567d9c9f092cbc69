//! The saving of each job, or of the jobs of each day.
//!
//! It is the energy of the jobs' GPUs above idle power, since the idle power of nodes belongs to no job. A job
//! belongs to the day of its submission. Energies and times are means over the seeds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use jiff::civil::DateTime;
use serde::Serialize;
use wattle_common::duration::DurationUnit;

use super::SavingEstimate;
use super::screen::{energy, signed_percent};
use crate::schedule::Schedule;

/// How jobs are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Each job on its own.
    Job,
    /// The jobs that were submitted on one day.
    Day,
}

/// The jobs of a group in both schedules.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The id of the job, or the day.
    pub name: String,
    /// Number of jobs.
    pub jobs: usize,
    /// Energy of their GPUs above idle power in the baseline, kWh.
    pub baseline_kwh: f64,
    /// The same in Wattle's schedule.
    pub wattle_kwh: f64,
    /// Mean time from submission to completion in the baseline, s; null if none completes in both schedules.
    pub baseline_jct_s: Option<f64>,
    /// The same in Wattle's schedule.
    pub wattle_jct_s: Option<f64>,
}

/// Sums over the jobs and seeds of a group.
#[derive(Default)]
struct Sums {
    first: usize,
    ids: Vec<String>,
    energy: [f64; 2],
    completion: [f64; 2],
    completed: usize,
}

impl SavingEstimate {
    /// The groups in order of the submission of their first jobs; of a sampled trace, the sampled jobs.
    #[must_use]
    pub fn groups(&self, by: Grouping) -> Vec<Group> {
        let of = |wanted: &str| -> Vec<&Schedule> {
            let all = self.schedules.iter().filter(|(name, _, _)| *name == wanted);
            all.map(|(_, _, schedule)| schedule).collect()
        };
        let (before, after) = (of("baseline"), of("wattle"));
        let seeds = before.len().max(1) as f64;
        let mut groups: BTreeMap<String, Sums> = BTreeMap::new();
        for (before, after) in before.into_iter().zip(after) {
            for (at, (old, new)) in before.detail.jobs.iter().zip(&after.detail.jobs).enumerate() {
                let name = match by {
                    Grouping::Job => old.id.to_string(),
                    Grouping::Day => self.day(old.submit_s),
                };
                let sums =
                    groups.entry(name).or_insert_with(|| Sums { first: at, ..Sums::default() });
                if !sums.ids.iter().any(|id| *id == old.id.as_str()) {
                    sums.ids.push(old.id.to_string());
                }
                sums.energy[0] += old.energy_kwh;
                sums.energy[1] += new.energy_kwh;
                if let Some((old, new)) = old.completion_s().zip(new.completion_s()) {
                    sums.completion[0] += old;
                    sums.completion[1] += new;
                    sums.completed += 1;
                }
            }
        }
        let mut groups: Vec<(String, Sums)> = groups.into_iter().collect();
        groups.sort_by_key(|(_, sums)| sums.first);
        let rounded = |value: f64| (value * 1e6).round() / 1e6;
        let group = |(name, sums): (String, Sums)| {
            let completion = |at: usize| {
                let mean = sums.completion[at] / sums.completed.max(1) as f64;
                (sums.completed > 0).then(|| rounded(mean))
            };
            Group {
                name,
                jobs: sums.ids.len(),
                baseline_kwh: rounded(sums.energy[0] / seeds),
                wattle_kwh: rounded(sums.energy[1] / seeds),
                baseline_jct_s: completion(0),
                wattle_jct_s: completion(1),
            }
        };
        groups.into_iter().map(group).collect()
    }

    /// The date of a time of the trace, in the trace's own zone; without calendar times its day from 1.
    fn day(&self, at_s: f64) -> String {
        let Some(origin) = self.origin else {
            return format!("day {}", 1 + (at_s / 86_400.0).floor() as u64);
        };
        let at = origin + Duration::try_from_secs_f64(at_s).unwrap_or_default();
        let days = i32::try_from(at.as_secs() / 86_400).unwrap_or(i32::MAX);
        let epoch = DateTime::constant(1970, 1, 1, 0, 0, 0, 0).date();
        let date = epoch.checked_add(jiff::Span::new().days(days));
        date.map_or_else(|_| format!("day {days}"), |date| date.to_string())
    }

    /// The groups as a table of at most 80 columns.
    #[must_use]
    pub fn to_groups(&self, by: Grouping) -> String {
        let groups = self.groups(by);
        let (head, each) = match by {
            Grouping::Job => ("job", "each job"),
            Grouping::Day => ("day", "jobs by day of submission"),
        };
        let simulated: usize = groups.iter().map(|group| group.jobs).sum();
        let sampled = if simulated < self.jobs {
            format!(" ({simulated} sampled of {} jobs)", self.jobs)
        } else {
            String::new()
        };
        let old = self.baseline_name();
        let mut text = format!("{each}{sampled}: energy above idle power, mean completion time\n");
        let _ = writeln!(
            text,
            "{head:<18}{:>6}{old:>12}{:>12}{:>9}{old:>12}{:>11}",
            "jobs", "Wattle", "change", "Wattle"
        );
        let times = groups.iter().flat_map(|group| [group.baseline_jct_s, group.wattle_jct_s]);
        let unit = DurationUnit::of_all(times.flatten());
        for group in groups {
            let change = if group.baseline_kwh > 0.0 {
                signed_percent(group.wattle_kwh / group.baseline_kwh - 1.0)
            } else {
                "-".to_owned()
            };
            let time = |seconds: Option<f64>| seconds.map_or("-".to_owned(), |s| unit.format(s));
            let _ = writeln!(
                text,
                "{:<18}{:>6}{:>12}{:>12}{change:>9}{:>12}{:>11}",
                group.name,
                group.jobs,
                energy(group.baseline_kwh),
                energy(group.wattle_kwh),
                time(group.baseline_jct_s),
                time(group.wattle_jct_s),
            );
        }
        text
    }
}
