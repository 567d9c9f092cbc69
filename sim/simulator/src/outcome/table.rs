//! An outcome as text tables of at most 80 columns.
//!
//! Each column has one unit, in its heading, which fits the largest value of the column.

mod expected;
mod twins;

use std::fmt::Write;

use wattle_common::duration::DurationUnit;

use super::{Against, Outcome, PolicyOutcome};
use crate::scenario::WorkloadShare;
use crate::text::{COLUMNS, note, sanitize};

/// A busy share below this part of the load is explained by the time after the last arrival.
const TAIL: f64 = 0.8;

/// Units with their size in the smallest one, and the value from which a unit is used.
type Units = &'static [(&'static str, f64, f64)];
const ENERGY: Units = &[("kWh", 1.0, 0.0), ("MWh", 1e3, 1e4), ("GWh", 1e6, 1e7)];
const MASS: Units = &[("kg", 1.0, 0.0), ("t", 1e3, 1e4), ("kt", 1e6, 1e7)];

/// A column: heading, unit and cells.
struct Column {
    heading: &'static str,
    unit: &'static str,
    cells: Vec<String>,
}

impl Column {
    fn text(heading: &'static str, cells: impl Iterator<Item = String>) -> Self {
        Self { heading, unit: "", cells: cells.collect() }
    }

    /// Values in the unit that fits the largest one.
    fn scaled(
        heading: &'static str,
        units: Units,
        values: impl Iterator<Item = Option<f64>>,
    ) -> Self {
        let values: Vec<Option<f64>> = values.collect();
        let largest = values.iter().flatten().copied().fold(0.0, f64::max);
        let unit = units.iter().rev().find(|(.., from)| largest >= *from).unwrap_or(&units[0]);
        let cell = |value: &Option<f64>| value.map_or_else(dash, |value| figure(value / unit.1));
        Self { heading, unit: unit.0, cells: values.iter().map(cell).collect() }
    }

    /// Columns of durations in seconds, which are of one quantity and have one unit.
    fn times<const N: usize>(columns: [(&'static str, Vec<Option<f64>>); N]) -> [Self; N] {
        let values = columns.iter().flat_map(|(_, values)| values.iter().flatten().copied());
        let unit = DurationUnit::of_all(values);
        let cell = |s: &Option<f64>| s.map_or_else(dash, |s| figure(unit.value(s)));
        columns.map(|(heading, values)| {
            let cells = values.iter().map(cell).collect();
            Self { heading, unit: unit.name(), cells }
        })
    }

    /// Shares of 1 in per cent.
    fn percent(
        heading: &'static str,
        digits: usize,
        values: impl Iterator<Item = Option<f64>>,
    ) -> Self {
        let cell = |value: Option<f64>| {
            value.map_or_else(dash, |value| format!("{:.digits$}", 100.0 * value))
        };
        Self { heading, unit: "%", cells: values.map(cell).collect() }
    }

    /// Changes relative to 1 in signed per cent.
    fn change(heading: &'static str, ratios: impl Iterator<Item = Option<f64>>) -> Self {
        let cells = ratios
            .map(|ratio| // The sum turns -0 into 0.
            ratio.map_or_else(dash, |r| format!("{:+.1}", (1e3 * (r - 1.0)).round() / 10.0 + 0.0)));
        Self { heading, unit: "%", cells: cells.collect() }
    }
}

/// Three digits or more.
fn figure(value: f64) -> String {
    let digits = if value.abs() < 10.0 { 2 } else { usize::from(value.abs() < 1_000.0) };
    format!("{value:.digits$}")
}

fn dash() -> String {
    "-".to_owned()
}

/// The first column to the left, all others to the right, with their units below the headings.
fn render(columns: &[Column]) -> String {
    let width = |column: &Column| {
        let cells = column.cells.iter().map(|cell| cell.chars().count());
        cells.chain([column.heading.len(), column.unit.len()]).max().unwrap_or(0)
    };
    let line = |cell: &dyn Fn(&Column) -> String| {
        let cells = columns.iter().enumerate().map(|(i, column)| {
            let (text, width) = (cell(column), width(column));
            if i == 0 { format!("{text:width$}") } else { format!("{text:>width$}") }
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    let mut text = line(&|column| column.heading.to_owned());
    if columns.iter().any(|column| !column.unit.is_empty()) {
        text.push_str(&line(&|column| column.unit.to_owned()));
    }
    for row in 0..columns.first().map_or(0, |column| column.cells.len()) {
        text.push_str(&line(&|column| column.cells[row].clone()));
    }
    text
}

impl Outcome {
    /// Tables of at most 80 columns.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut text = format!("{} on {}, seed {}", self.trace, self.cluster, self.seed);
        if let Some(load) = self.load {
            let _ = write!(text, ", load {load:.2}");
        }
        text.push_str("\n\n");
        text.push_str(&self.policy_table());
        text.push_str(&self.tail());
        text.push_str(&self.change_table());
        text.push_str(&self.twin_table());
        text.push_str(&self.expected_table());
        text.push_str(&self.spending_table());
        text.push_str(&self.prediction_table());
        text.push_str("\nworkloads: ");
        let shares: Vec<String> = self.workloads.iter().map(share).collect();
        text.push_str(&wrap(&shares, COLUMNS, 11));
        text.push('\n');
        for line in self.all_notes() {
            let _ = writeln!(text, "{}", note(&line));
        }
        text
    }

    fn policy_table(&self) -> String {
        let runs = || self.policies.iter();
        let jobs = |p: &PolicyOutcome| {
            let (finished, jobs) = (p.finished, p.jobs);
            if finished == jobs { jobs.to_string() } else { format!("{finished}/{jobs}") }
        };
        let times = |of: fn(&PolicyOutcome) -> Option<f64>| runs().map(of).collect();
        let mut columns = vec![
            Column::text("policy", runs().map(PolicyOutcome::row_name)),
            Column::text("jobs", runs().map(jobs)),
        ];
        let completion =
            [("mean JCT", times(|p| p.jct_s_mean)), ("p95 JCT", times(|p| p.jct_s_p95))];
        columns.extend(Column::times(completion));
        columns.extend(Column::times([("wait", times(|p| p.wait_s_mean))]));
        columns.extend(Column::times([("makespan", times(|p| Some(p.makespan_s)))]));
        columns.push(Column::scaled("energy", ENERGY, runs().map(|p| Some(p.energy_kwh))));
        if runs().any(|p| p.carbon_kg.is_some()) {
            columns.push(Column::scaled("carbon", MASS, runs().map(|p| p.carbon_kg)));
        }
        columns.push(Column::text("nodes", runs().map(|p| format!("{:.1}", p.active_nodes_mean))));
        columns.push(Column::percent("busy", 0, runs().map(|p| Some(p.gpu_utilization_mean))));
        render(&columns)
    }

    /// Why the GPUs are less busy than the load: the time after the last arrival.
    fn tail(&self) -> String {
        let (Some(load), Some(arrivals_s)) = (self.load, self.arrivals_s) else {
            return String::new();
        };
        let least = self.policies.iter().map(|p| p.gpu_utilization_mean).reduce(f64::min);
        if least.is_none_or(|busy| busy >= TAIL * load.min(1.0)) {
            return String::new();
        }
        let longest = self.policies.iter().map(|p| p.makespan_s).fold(0.0, f64::max);
        // The unit of the column `makespan`.
        let unit = DurationUnit::of(longest);
        let tail = unit.format((longest - arrivals_s).max(0.0));
        format!(
            "The load is over the {} of arrivals; nodes and busy are means over the\n\
             makespan, which includes up to {tail} after the last arrival.\n",
            unit.format(arrivals_s)
        )
    }

    /// Changes of each policy against the baseline, which is the first policy where there is no other.
    fn change_table(&self) -> String {
        let [first, others @ ..] = &self.policies[..] else { return String::new() };
        let compared = if self.baseline.is_some() { &self.policies[..] } else { others };
        let others = || compared.iter().filter(|p| !p.oracle);
        if others().next().is_none() {
            return String::new();
        }
        let of_first = |of: fn(&PolicyOutcome) -> Option<f64>| {
            others().map(move |p| of(p).zip(of(first)).and_then(|(new, old)| ratio(new, old)))
        };
        let against = |of: fn(&Against) -> Option<f64>| {
            others().map(move |p| of(p.against.as_ref()?).map(|change| 1.0 + change))
        };
        let worst = |of: &Against| of.project_worst.as_ref().map(|worst| worst.completion_mean);
        let mut columns = vec![Column::text("policy", others().map(|p| p.policy.clone()))];
        if self.baseline.is_some() {
            columns.push(Column::change("energy", against(|of| of.energy)));
            columns.push(Column::change("mean JCT", against(|of| of.completion_mean)));
        } else {
            columns.push(Column::change("energy", of_first(|p| Some(p.energy_kwh))));
            columns.push(Column::change("mean JCT", of_first(|p| p.jct_s_mean)));
        }
        if against(worst).any(|change| change.is_some()) {
            columns.push(Column::change("worst project", against(worst)));
        }
        if self.baseline.is_none() {
            columns.push(Column::change("runtime", of_first(|p| p.runtime_s_mean)));
        }
        columns.extend([
            Column::text("shared starts", others().map(|p| p.shared_starts.to_string())),
            Column::text("undone", others().map(|p| p.undone.to_string())),
        ]);
        let name = self.baseline.as_ref().map_or(&first.policy, |baseline| &baseline.schedule);
        let mut text = format!("\nagainst {name}\n{}", render(&columns));
        if self.baseline.is_some() {
            return text;
        }
        for different in others().filter_map(|p| p.different_jobs(first)) {
            let _ = writeln!(text, "{different}");
        }
        text
    }

    /// Each policy's use of its budget and carbon deferral.
    fn spending_table(&self) -> String {
        let unit = self.spending_unit();
        let lines = self.policies.iter().flat_map(|p| {
            let name = p.row_name();
            p.budget_lines(unit).into_iter().map(move |spent| {
                let words: Vec<String> = format!("{}: {spent}", name.trim_start())
                    .split(", ")
                    .map(str::to_owned)
                    .collect();
                format!("{}\n", wrap(&words, COLUMNS, 0).replace('\n', "\n    "))
            })
        });
        let text: String = lines.collect();
        if text.is_empty() { text } else { format!("\n{text}") }
    }

    /// Prediction errors and prediction regret; empty where no policy reads surfaces.
    fn prediction_table(&self) -> String {
        let mut text = String::new();
        if self.policies.iter().all(|p| p.prediction.is_none()) {
            return text;
        }
        let of = || self.policies.iter().map(|p| p.prediction.as_ref());
        let starts = of().map(|of| of.map_or_else(dash, |of| of.placements.to_string()));
        let mut columns = vec![
            Column::text("policy", self.policies.iter().map(PolicyOutcome::row_name)),
            Column::text("starts", starts),
            Column::percent("on prior", 0, of().map(|of| of?.prior_share)),
        ];
        type Of = fn(&crate::Prediction) -> crate::PredictionError;
        let errors: [(&str, Of); 3] = [
            ("speed", |of| of.speed),
            ("sharing", |of| of.relative_speed),
            ("power", |of| of.power),
        ];
        for (heading, error) in errors {
            let error = |of: Option<&crate::Prediction>| of.map(error);
            let off = of().map(move |of| Some(error(of)?.mape? / 100.0));
            columns.push(Column::percent(heading, 1, off));
            columns.push(Column::percent("within", 0, of().map(move |of| error(of)?.coverage90)));
        }
        let _ = write!(
            text,
            "\nprediction error\n{}mean absolute errors of predictions at the start of intervals; \
             `within` is the\nshare within the 90 % interval\n",
            render(&columns)
        );
        if !self.prediction_regret.is_empty() {
            text.push('\n');
        }
        for regret in &self.prediction_regret {
            let percent = |ratio: Option<f64>| {
                ratio.map_or_else(dash, |ratio| format!("{:+.1} %", 100.0 * (ratio - 1.0)))
            };
            let _ = writeln!(
                text,
                "{}: prediction regret {} mean JCT, {} energy against the oracle",
                regret.policy,
                percent(regret.jct_s_mean_ratio),
                percent(regret.energy_ratio),
            );
        }
        text
    }
}

fn ratio(new: f64, old: f64) -> Option<f64> {
    (old > 0.0).then(|| new / old)
}

fn share(share: &WorkloadShare) -> String {
    let why = match (&share.model, share.drawn) {
        (Some(model), true) => format!(" (drawn for {})", sanitize(model)),
        (None, true) => " (drawn)".to_owned(),
        (_, false) => String::new(),
    };
    format!("{} x {}{why}", share.jobs, share.workload)
}

/// Joins `words` by commas into lines of at most `width`, the first of which begins at `indent`.
fn wrap(words: &[String], width: usize, indent: usize) -> String {
    let mut text = String::new();
    let mut column = indent;
    for (i, word) in words.iter().enumerate() {
        if i > 0 {
            text.push(',');
            if column + word.len() + 3 > width {
                text.push('\n');
                text.push_str(&" ".repeat(indent));
                column = indent;
            } else {
                text.push(' ');
                column += 2;
            }
        }
        text.push_str(word);
        column += word.len();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_has_one_unit_which_fits_its_longest_duration() {
        let columns = |mean: f64, p95: f64| {
            let columns = Column::times([("mean", vec![Some(mean)]), ("p95", vec![Some(p95)])]);
            columns.map(|column| format!("{} {}", column.cells[0], column.unit))
        };
        assert_eq!(columns(5.0, 99.0), ["5.00 s", "99.0 s"]);
        assert_eq!(columns(30.0, 5_700.0), ["0.50 min", "95.0 min"]);
        assert_eq!(columns(318.0, 348_048.0), ["0.09 h", "96.7 h"]);
        assert_eq!(columns(90_000.0, 864_000.0), ["1.04 d", "10.0 d"]);
    }
}
