//! What was saved against the site's former scheduler, from the sums of the twin: the figures of every screen.
//!
//! Times are means over the jobs that completed in both schedules, each counted equally. Energy is that of the jobs whose
//! energy is measured throughout and predicted for the default setting, above the idle power of their GPUs, and that of
//! sleeping nodes. Figures are absent where nothing is known. Of a cluster without jobs, those that still wait or run
//! under the former scheduler count too.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use wattle_common::Timestamp;
use wattle_common::aim::Baseline;
use wattle_common::duration::span;
use wattle_common::messages::{
    IntensitySeries, PriceSeries, TwinAbsence, TwinRow, TwinStatus, TwinSums,
};

use crate::intensity::mean_intensity;

/// Length of a day, s.
const DAY_S: u64 = 86_400;
/// A change of completion times below this share is none.
const SAME: f64 = 0.0005;

/// Where cost and emissions come from; absent: not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct SavedRates<'a> {
    /// Carbon intensity.
    pub intensity: Option<&'a IntensitySeries>,
    /// Electricity price.
    pub prices: Option<&'a PriceSeries>,
}

/// What a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedBy {
    /// A day in UTC.
    Day,
    /// A user.
    User,
    /// A project.
    Project,
}

/// What was saved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Saved {
    /// The former scheduler.
    pub baseline: Baseline,
    /// When the comparison began.
    pub since_us: Timestamp,
    /// Until when it counts.
    pub until_us: Timestamp,
    /// All jobs and nodes.
    pub total: SavedRow,
    /// The rows; by user and project the nodes without jobs have one of their own.
    pub rows: Vec<SavedRow>,
    /// Number of these jobs that still wait or run under the former scheduler: their figures hold if no job is submitted
    /// before they end there.
    pub jobs_ahead: u64,
    /// Times without a placer, over which sleep is not counted.
    pub absences: Vec<TwinAbsence>,
    /// When the figures were computed again from the records of jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed_at_us: Option<Timestamp>,
}

/// The figures of a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SavedRow {
    /// The user or project; absent: none is stated.
    pub name: Option<String>,
    /// Whether the row is of the nodes without jobs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_nodes: bool,
    /// The day: days since 1970-01-01; 0: the days before the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<u64>,
    /// Number of jobs that completed in both schedules.
    pub jobs: u64,
    /// Number of these whose energy is compared.
    pub jobs_compared: u64,
    /// Their mean completion time, s.
    pub completion_s_mean: Option<f64>,
    /// The same under the former scheduler, s.
    pub completion_s_mean_before: Option<f64>,
    /// The first relative to the second, minus 1. Negative: jobs completed earlier.
    pub later: Option<f64>,
    /// Mean time without GPUs, s.
    pub wait_s_mean: Option<f64>,
    /// The same under the former scheduler, s.
    pub wait_s_mean_before: Option<f64>,
    /// Energy under the former scheduler, kWh: compared jobs above idle power, and nodes without jobs.
    pub energy_kwh_before: f64,
    /// Saved energy, kWh. Negative: more was used.
    pub saved_kwh: f64,
    /// Lower end of its 90 % interval, kWh.
    pub saved_kwh_low: f64,
    /// Upper end of its 90 % interval, kWh.
    pub saved_kwh_high: f64,
    /// The part of caps and clocks, by prediction, kWh.
    pub saved_kwh_settings: f64,
    /// The part of sleeping nodes, kWh.
    pub saved_kwh_sleep: f64,
    /// The part of shared GPUs, kWh: what caps and clocks do not explain, by the time of the jobs on shared GPUs.
    pub saved_kwh_sharing: f64,
    /// The part of other numbers of GPUs than requested, kWh, by the time of the jobs on them.
    pub saved_kwh_sizes: f64,
    /// The rest, kWh: restarts, and errors of prediction.
    pub saved_kwh_other: f64,
    /// Time in which nodes were awake, node-hours; absent: not known, or a row of jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_h_awake: Option<f64>,
    /// Time of all nodes, which the former scheduler keeps awake, node-hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_h: Option<f64>,
    /// Cost of the saved energy in the currency of the prices; absent: the price of some of it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Emissions of the saved energy, kg; absent: the intensity of some of it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carbon_kg: Option<f64>,
}

/// Sums with the cost and the emissions of their saved energy.
#[derive(Clone, Copy, Default)]
struct Rated {
    sums: TwinSums,
    /// Unknown once a part is unknown.
    cost: Option<f64>,
    carbon_kg: Option<f64>,
}

impl Rated {
    /// The sums of a day at the mean price and intensity of that day.
    fn of(row: &TwinRow, until: Timestamp, rates: SavedRates<'_>) -> Self {
        let day = |day: u64| Timestamp::from_s(day * DAY_S);
        let (from, to) = (day(row.day), day(row.day + 1).min(until));
        let kwh = row.sums.saved_j() / 3.6e6;
        let is_dated = row.day > 0;
        let price = rates.prices.and_then(|prices| prices.mean(from, to));
        let intensity = rates.intensity.and_then(|series| mean_intensity(series, from, to));
        Self {
            sums: row.sums,
            cost: price.filter(|_| is_dated).map(|price| price * kwh),
            carbon_kg: intensity
                .filter(|_| is_dated)
                .map(|intensity| intensity.as_g_per_kwh() * kwh / 1e3),
        }
    }

    fn plus(self, other: Self) -> Self {
        let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        let mut sums = self.sums;
        sums += other.sums;
        Self {
            sums,
            cost: sum(self.cost, other.cost),
            carbon_kg: sum(self.carbon_kg, other.carbon_kg),
        }
    }

    fn row(self, name: Option<String>, day: Option<u64>) -> SavedRow {
        let sums = self.sums;
        let mean = |sum: f64| (sums.jobs > 0).then(|| sum / sums.jobs as f64);
        let kwh = |joules: f64| joules / 3.6e6;
        let node_h = |seconds: f64| (sums.node_s > 0.0).then_some(seconds / 3_600.0);
        let saved_j = sums.saved_j();
        SavedRow {
            name,
            is_nodes: false,
            day,
            jobs: sums.jobs,
            jobs_compared: sums.compared,
            completion_s_mean: mean(sums.completion_s),
            completion_s_mean_before: mean(sums.completion_s_twin),
            later: sums.later(),
            wait_s_mean: mean(sums.wait_s),
            wait_s_mean_before: mean(sums.wait_s_twin),
            energy_kwh_before: kwh(sums.energy_j_twin()),
            saved_kwh: kwh(saved_j),
            saved_kwh_low: kwh(saved_j - sums.saved_error_j()),
            saved_kwh_high: kwh(saved_j + sums.saved_error_j()),
            saved_kwh_settings: kwh(sums.settings_j),
            saved_kwh_sleep: kwh(sums.slept_j),
            saved_kwh_sharing: kwh(sums.sharing_j),
            saved_kwh_sizes: kwh(sums.sizes_j),
            saved_kwh_other: kwh(sums.rest_of_jobs_saved_j()),
            node_h_awake: node_h(sums.node_s - sums.node_s_asleep),
            node_h: node_h(sums.node_s),
            cost: self.cost,
            carbon_kg: self.carbon_kg,
        }
    }
}

impl Saved {
    /// The status with the last days in UTC only: as many as `span` has or begins, today among them.
    #[must_use]
    pub fn of_last(mut status: TwinStatus, span: Duration, now: Timestamp) -> TwinStatus {
        let days = span.as_secs().div_ceil(DAY_S).max(1);
        let today = now.as_us() / (DAY_S * 1_000_000);
        let first = (today + 1).saturating_sub(days);
        status.rows.retain(|row| row.day >= first);
        status.ahead.retain(|row| row.day >= first);
        status.since_us = status.since_us.max(Timestamp::from_s(first * DAY_S));
        status
    }

    /// The figures of a twin's status.
    #[must_use]
    pub fn new(status: &TwinStatus, by: SavedBy, rates: SavedRates<'_>) -> Self {
        let mut total: Option<Rated> = None;
        // By day, whether of the nodes, and name.
        let mut rows: BTreeMap<(Option<u64>, bool, Option<String>), Rated> = BTreeMap::new();
        for row in status.all_rows() {
            let rated = Rated::of(row, status.at_us, rates);
            total = Some(total.map_or(rated, |total| total.plus(rated)));
            let mut add = |key, rated: Rated| {
                rows.entry(key).and_modify(|known| *known = known.plus(rated)).or_insert(rated);
            };
            let name = match by {
                SavedBy::Day => {
                    add((Some(row.day), false, None), rated);
                    continue;
                }
                SavedBy::User => row.user.clone(),
                SavedBy::Project => row.project.clone(),
            };
            let (jobs, nodes) = row.sums.by_jobs_and_nodes();
            if jobs.jobs > 0 {
                let row = TwinRow { sums: jobs, ..row.clone() };
                add((None, false, name), Rated::of(&row, status.at_us, rates));
            }
            if nodes.rest_j > 0.0 {
                let row = TwinRow { sums: nodes, ..row.clone() };
                add((None, true, None), Rated::of(&row, status.at_us, rates));
            }
        }
        Self {
            baseline: status.baseline,
            since_us: status.since_us,
            until_us: status.at_us,
            total: total.unwrap_or_default().row(None, None),
            rows: rows
                .into_iter()
                .map(|((day, is_nodes, name), rated)| SavedRow { is_nodes, ..rated.row(name, day) })
                .collect(),
            jobs_ahead: status.jobs_ahead(),
            absences: status.absences.clone(),
            replayed_at_us: status.replayed_at_us,
        }
    }

    /// The saving and its cost in completion time, in one sentence.
    #[must_use]
    pub fn verdict(&self) -> String {
        let row = &self.total;
        let jobs = match row.jobs {
            0 => return format!("no job has completed here and under {} yet", self.baseline),
            1 => "1 job".to_owned(),
            jobs => format!("{jobs} jobs"),
        };
        let energy = match row.energy() {
            Some(energy) => format!("{energy} against {}", self.baseline),
            None => "no energy is compared yet".to_owned(),
        };
        let ahead = match self.jobs_ahead {
            0 => String::new(),
            1 => format!("; under {} one of them still waits or runs", self.baseline),
            ahead => format!("; under {} {ahead} of them still wait or run", self.baseline),
        };
        format!("{energy}; {jobs} completed {} on average{ahead}", row.later_text())
    }
}

impl SavedRow {
    /// The saved energy with its base and interval; `None` where none is compared.
    #[must_use]
    pub fn energy(&self) -> Option<String> {
        if self.energy_kwh_before <= 0.0 {
            return None;
        }
        let percent = |kwh: f64| 100.0 * kwh / self.energy_kwh_before;
        let (what, sign) = if self.saved_kwh < 0.0 { ("used more", -1.0) } else { ("saved", 1.0) };
        let (low, high) = if self.saved_kwh < 0.0 {
            (-self.saved_kwh_high, -self.saved_kwh_low)
        } else {
            (self.saved_kwh_low, self.saved_kwh_high)
        };
        Some(format!(
            "{what}: {} of {} ({:.1} %, 90 % interval {:.1} to {:.1} %)",
            kwh_text(sign * self.saved_kwh),
            kwh_text(self.energy_kwh_before),
            percent(sign * self.saved_kwh),
            percent(low),
            percent(high)
        ))
    }

    /// The change of completion times: `3.1 % (2.0 min) earlier`.
    #[must_use]
    pub fn later_text(&self) -> String {
        let known = self.later.zip(self.completion_s_mean.zip(self.completion_s_mean_before));
        match known {
            Some((later, _)) if later.abs() < SAME => "at the same time".to_owned(),
            Some((later, (own, before))) => format!(
                "{:.1} % ({}) {}",
                100.0 * later.abs(),
                span((own - before).abs()),
                if later > 0.0 { "later" } else { "earlier" }
            ),
            None => "at unknown times".to_owned(),
        }
    }

    /// The time in which nodes were awake: `412 of 480 node-hours`; `None` where it is not known.
    #[must_use]
    pub fn awake_text(&self) -> Option<String> {
        let (awake, all) = self.node_h_awake.zip(self.node_h)?;
        Some(format!("{awake:.1} of {all:.1} node-hours"))
    }

    /// The parts of the saving, largest first.
    #[must_use]
    pub fn parts(&self) -> Vec<(&'static str, f64)> {
        let mut parts = vec![
            ("caps and clocks", self.saved_kwh_settings),
            ("sleeping nodes", self.saved_kwh_sleep),
            ("shared GPUs", self.saved_kwh_sharing),
            ("other numbers of GPUs", self.saved_kwh_sizes),
            ("restarts, prediction errors", self.saved_kwh_other),
        ];
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        parts
    }
}

/// Energy: `412 Wh`, `3.21 kWh`, `1.20 MWh`.
#[must_use]
pub fn kwh_text(kwh: f64) -> String {
    match kwh.abs() {
        size if size < 1.0 => format!("{:.0} Wh", kwh * 1e3),
        size if size < 1_000.0 => format!("{kwh:.2} kWh"),
        _ => format!("{:.2} MWh", kwh / 1e3),
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use wattle_common::CarbonIntensity;
    use wattle_common::messages::Origin;

    use super::*;

    fn row(day: u64, user: Option<&str>, later: f64) -> TwinRow {
        let sums = TwinSums {
            jobs: 2,
            completion_s: 200.0 * (1.0 + later),
            completion_s_twin: 200.0,
            wait_s: 30.0,
            wait_s_twin: 60.0,
            compared: 2,
            gpu_j: 3.6e6,
            gpu_j_twin: 7.2e6,
            error_j: 0.36e6,
            error_square_j2: 0.36e6 * 0.36e6,
            settings_j: 3.0e6,
            ..TwinSums::default()
        };
        TwinRow { day, user: user.map(str::to_owned), project: None, sums }
    }

    fn status(rows: Vec<TwinRow>) -> TwinStatus {
        TwinStatus {
            at_us: Timestamp::from_s(20_002 * DAY_S),
            since_us: Timestamp::from_s(20_000 * DAY_S),
            baseline: Baseline::Backfill,
            waiting: 0,
            running: 0,
            rows,
            ahead: Vec::new(),
            corrected_late: 0,
            absences: Vec::new(),
            replayed_at_us: None,
        }
    }

    #[test]
    fn a_saving_is_stated_with_its_base_and_its_cost_in_time() {
        let nodes = TwinSums {
            rest_j: 36e6,
            slept_j: 7.2e6,
            node_s: 36_000.0,
            node_s_asleep: 9_000.0,
            ..TwinSums::default()
        };
        let nodes = TwinRow { day: 20_000, user: None, project: None, sums: nodes };
        let rows = vec![row(20_000, Some("ada"), 0.05), row(20_001, Some("bob"), -0.01), nodes];
        let saved = Saved::new(&status(rows), SavedBy::User, SavedRates::default());
        assert_eq!(
            saved.verdict(),
            "saved: 4.00 kWh of 14.00 kWh (28.6 %, 90 % interval 28.0 to 29.1 %) against backfill; 4 jobs completed \
             2.0 % (2 s) later on average"
        );
        let names: Vec<_> = saved.rows.iter().map(|row| row.name.as_deref()).collect();
        assert_eq!(names, [Some("ada"), Some("bob"), None]);
        assert!(saved.rows[2].is_nodes && saved.rows[2].saved_kwh == 2.0);
        assert_eq!(saved.total.parts()[0], ("sleeping nodes", 2.0));
        let parts: f64 = saved.total.parts().iter().map(|(_, kwh)| kwh).sum();
        assert!((parts - saved.total.saved_kwh).abs() < 1e-9, "{:?}", saved.total.parts());
        assert_eq!(saved.rows[2].awake_text().unwrap(), "7.5 of 10.0 node-hours");
        assert_eq!(saved.rows[0].awake_text(), None);
        assert_eq!((saved.total.cost, saved.total.carbon_kg), (None, None));
    }

    #[test]
    fn jobs_that_still_run_under_the_former_scheduler_count_and_are_named() {
        let rows = vec![row(20_000, Some("ada"), 0.05)];
        let ahead = vec![row(20_001, Some("ada"), 0.25)];
        let status = TwinStatus { ahead, ..status(rows) };
        let saved = Saved::new(&status, SavedBy::User, SavedRates::default());
        assert_eq!(
            saved.verdict(),
            "saved: 2.00 kWh of 4.00 kWh (50.0 %, 90 % interval 48.0 to 52.0 %) against backfill; 4 jobs completed \
             15.0 % (15 s) later on average; under backfill 2 of them still wait or run"
        );
        assert_eq!((saved.total.jobs, saved.rows[0].jobs, saved.jobs_ahead), (4, 4, 2));
        assert_eq!(jobs_of_last(&status, 1, 20_001 * DAY_S + 60), 2);
    }

    /// Number of jobs of the last days.
    fn jobs_of_last(status: &TwinStatus, days: u64, now_s: u64) -> u64 {
        let (span, now) = (Duration::from_secs(days * DAY_S), Timestamp::from_s(now_s));
        let last = Saved::of_last(status.clone(), span, now);
        Saved::new(&last, SavedBy::Day, SavedRates::default()).total.jobs
    }

    #[test]
    fn seven_days_are_today_and_the_six_before() {
        let rows: Vec<TwinRow> = (20_000..20_010).map(|day| row(day, None, 0.0)).collect();
        let status = status(rows);
        // Of two jobs a day, at both ends of a day.
        for now in [20_009 * DAY_S, 20_010 * DAY_S - 1] {
            assert_eq!([1, 7, 30].map(|days| jobs_of_last(&status, days, now)), [2, 14, 20]);
        }
        let half =
            Saved::of_last(status, Duration::from_secs(3_600), Timestamp::from_s(20_009 * DAY_S));
        assert_eq!(half.rows.len(), 1, "a part of a day is that day");
        assert_eq!(half.since_us, Timestamp::from_s(20_009 * DAY_S));
    }

    #[test]
    fn emissions_are_by_day_and_unknown_where_a_day_is() {
        let grams = |at: u64, value| (at * DAY_S, CarbonIntensity::from_g_per_kwh(value));
        let series = IntensitySeries {
            name: "x".to_owned(),
            starts_at_us: Timestamp::from_s(20_000 * DAY_S),
            steps: vec![grams(0, 100.0), grams(1, 300.0)],
            period_s: 2 * DAY_S,
            origins: vec![(0, Origin::Measured)],
        };
        let rates = SavedRates { intensity: Some(&series), prices: None };
        let rows = vec![row(20_000, None, 0.0), row(20_001, None, 0.0)];
        let saved = Saved::new(&status(rows), SavedBy::Day, rates);
        assert!((saved.total.carbon_kg.unwrap() - 0.4).abs() < 1e-9, "{saved:?}");
        assert_eq!(
            saved.rows.iter().map(|row| row.day).collect::<Vec<_>>(),
            [Some(20_000), Some(20_001)]
        );
        // The days before the others have no intensity.
        let saved = Saved::new(&status(vec![row(0, None, 0.0)]), SavedBy::Day, rates);
        assert_eq!(saved.total.carbon_kg, None);
    }

    #[test]
    fn nothing_is_claimed_without_jobs_or_energy() {
        let saved = Saved::new(&status(Vec::new()), SavedBy::Day, SavedRates::default());
        assert_eq!(saved.verdict(), "no job has completed here and under backfill yet");
        let mut unmetered = row(20_000, None, 0.0);
        (unmetered.sums.gpu_j_twin, unmetered.sums.gpu_j) = (0.0, 0.0);
        let saved = Saved::new(&status(vec![unmetered]), SavedBy::Day, SavedRates::default());
        assert_eq!(
            saved.verdict(),
            "no energy is compared yet; 2 jobs completed at the same time on average"
        );
        let mut more = row(20_000, None, 0.1);
        more.sums.gpu_j = 9.0e6;
        let saved = Saved::new(&status(vec![more]), SavedBy::Day, SavedRates::default());
        assert!(
            saved.verdict().starts_with("used more: 500 Wh of 2.00 kWh (25.0 %"),
            "{}",
            saved.verdict()
        );
    }
}
