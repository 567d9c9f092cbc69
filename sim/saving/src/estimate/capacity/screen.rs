//! The capacity on one screen of at most 80 columns, and as JSON.

use wattle_common::duration::{DurationUnit, span};
use wattle_simulator::text::hang;

use super::super::Totals;
use super::super::screen::{energy, grouped, percent, signed_percent};
use super::{Answer, CapacityEstimate};

impl CapacityEstimate {
    /// The answer in lines of at most 80 columns: verdict, table, parts, assumptions.
    #[must_use]
    pub fn to_screen(&self) -> String {
        let mut lines = vec![self.verdict()];
        lines.extend(self.interval());
        lines.push(String::new());
        lines.push(format!(
            "{} on {}: {} jobs",
            self.trace,
            self.cluster,
            grouped(self.jobs as f64)
        ));
        lines.extend(self.table());
        lines.extend(self.part_rows());
        lines.push(String::new());
        lines.push("assumptions:".to_owned());
        let mut text: String = lines.iter().map(|line| hang(line, 0) + "\n").collect();
        for assumption in &self.assumptions {
            text.push_str(&hang(&format!("* {assumption}"), 2));
            text.push('\n');
        }
        text
    }

    /// How many nodes fit, and the least limit of the given ones.
    #[must_use]
    pub fn verdict(&self) -> String {
        let (nodes, limit) = (self.nodes, kw(self.limit_kw));
        let baseline = self.baseline_name();
        let fit = nodes as i64 + self.more_nodes;
        let share = self.more_nodes as f64 / nodes as f64;
        match self.answer {
            Answer::NotReached => format!(
                "No more nodes fit below {limit}: at no limit does Wattle complete jobs as soon on average as {baseline}"
            ),
            _ if self.more_nodes < 0 => format!(
                "{limit} suffices for {fit} of {nodes} nodes: all need {} to complete jobs as soon on average as {baseline}",
                kw(self.least_limit_kw)
            ),
            _ => {
                let least = if self.answer == Answer::AtLeast { "at least " } else { "" };
                let more = match self.more_nodes {
                    0 => "no more".to_owned(),
                    more => format!("{more} more (+{:.0} %)", 100.0 * share),
                };
                format!(
                    "Below {limit} Wattle runs {least}{fit} nodes, {more}, and jobs complete as soon on average as {baseline}"
                )
            }
        }
    }

    /// The interval and the least limit; without an answer what may give one.
    fn interval(&self) -> Option<String> {
        if self.answer == Answer::NotReached {
            let remedy =
                "No job may be stopped here; more may fit where jobs may be (--restartable)";
            return (!self.can_stop).then(|| remedy.to_owned());
        }
        // Whole nodes.
        let fits = |more: f64| self.nodes as i64 + more.floor() as i64;
        let (low, high) = (fits(self.more_nodes_low), fits(self.more_nodes_high));
        let present = match self.nodes {
            1 => "the present one needs".to_owned(),
            nodes => format!("the present {nodes} need"),
        };
        let at_most = if self.answer == Answer::AtLeast { "at most " } else { "" };
        Some(format!(
            "90 % interval: {low} to {high} nodes; {present} {at_most}{}, {} of the limit",
            kw(self.least_limit_kw),
            percent(self.least_limit_kw / self.limit_kw)
        ))
    }

    fn baseline_name(&self) -> &'static str {
        if self.recorded { "recorded" } else { "under FIFO without a limit" }
    }

    fn table(&self) -> Vec<String> {
        let (before, after) = (&self.baseline, &self.wattle);
        let name = if self.recorded { "as recorded" } else { "FIFO" };
        let wattle = match self.answer {
            Answer::NotReached => "Wattle, no limit".to_owned(),
            _ => format!("below {}", kw(self.least_limit_kw)),
        };
        let mut rows = vec![format!("{:<24}{name:>16}{wattle:>18}{:>12}", "", "change")];
        let mut row = |name: &str, of: fn(&Totals) -> f64, show: &dyn Fn(f64) -> String| {
            let (old, new) = (of(before), of(after));
            let change = if old > 0.0 { signed_percent(new / old - 1.0) } else { "-".to_owned() };
            rows.push(format!("{name:<24}{:>16}{:>18}{change:>12}", show(old), show(new)));
        };
        let both = || [before, after].into_iter();
        let unit = DurationUnit::of_all(both().flat_map(|of| [of.jct_s_mean, of.jct_s_p95]));
        row("completion, mean", |totals| totals.jct_s_mean, &|s| unit.format(s));
        row("completion, 95 % within", |totals| totals.jct_s_p95, &|s| unit.format(s));
        let unit = DurationUnit::of_all(both().map(|of| of.wait_s_mean));
        row("wait, mean", |totals| totals.wait_s_mean, &|s| unit.format(s));
        row("energy", |totals| totals.energy_kwh, &energy);
        rows
    }

    fn part_rows(&self) -> Vec<String> {
        let Some(parts) = self.parts else { return Vec::new() };
        let mut rows = vec![
            String::new(),
            "nodes that fit because of each part, switched off in turn:".to_owned(),
        ];
        let mut row = |name: &str, nodes: Option<f64>, note: &str| {
            let nodes = nodes.unwrap_or_default();
            let note = if note.is_empty() { String::new() } else { format!("  {note}") };
            let nodes = format!("{nodes:.1}").replace("-0.0", "0.0");
            rows.push(format!("  {name:<16}{nodes:>14}{note}"));
        };
        row("order of jobs", Some(parts.order), "");
        row("caps and clocks", Some(parts.settings), "");
        let option = if self.can_stop { "--sizes" } else { "--restartable" };
        let none = &format!("no job is resized ({option})");
        row("sizes", parts.sizes, if parts.sizes.is_none() { none } else { "" });
        row("sleeping nodes", parts.sleep, if parts.sleep.is_none() { "--no-sleep" } else { "" });
        rows
    }

    /// One JSON object with a line break at its end.
    ///
    /// # Panics
    /// Never: all fields are plain values.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string(self).expect("plain values become JSON");
        text.push('\n');
        text
    }
}

/// A power in kilowatts, with three digits and its unit.
pub(super) fn kw(kw: f64) -> String {
    match kw {
        least if least < 0.9995 => format!("{:.0} W", 1e3 * least),
        small if small < 9.995 => format!("{small:.2} kW"),
        middle if middle < 99.95 => format!("{middle:.1} kW"),
        large => format!("{} kW", grouped(large)),
    }
}

/// What the interval consists of.
pub(super) fn interval_of(
    seeds: usize,
    by_seeds: f64,
    error: Option<f64>,
    by_model: f64,
) -> String {
    let by_seeds = match seeds {
        0 | 1 => String::new(),
        seeds => format!("{seeds} seeds (+-{by_seeds:.1} nodes); "),
    };
    let by_model = match error {
        Some(error) => format!(
            "power and speed as wrong as the predictions, {} (+-{by_model:.1} nodes)",
            percent(error)
        ),
        None => "without errors of power and speed, because no prediction was compared with a measurement"
            .to_owned(),
    };
    format!("Interval: {by_seeds}{by_model}.")
}

/// How predictions count: the factor on the least limit.
pub(super) fn predictions(higher: f64) -> String {
    let schedule = "The schedule in the table is made on predictions, the curves on exact surfaces";
    if higher <= 1.0 {
        format!("{schedule}; predictions need no higher limit.")
    } else {
        format!(
            "{schedule}; on predictions the least limit is {} higher, and all are raised by as much.",
            percent(higher - 1.0)
        )
    }
}

/// How long Wattle's schedule is above its limit.
pub(super) fn exceeded(exceeded_s: f64) -> String {
    format!(
        "Wattle's schedule is above its limit for {} in all; the simulated nodes are awake at the start.",
        span(exceeded_s)
    )
}
