//! Tables: what the looked-at runs came to, and who is ahead at equal totals.
//!
//! On a phone a table of many columns becomes one card a row, each figure beside its heading; one
//! whose columns are compared with each other scrolls in its own frame instead.

use std::fmt::Write;

use super::marks;
use super::markup::{Unit, escaped, figure, percent, time};
use super::shown::Recorded;
use crate::frontier::Spread;
use crate::outcome::PolicyOutcome;

/// A table under construction; cells are markup.
pub(super) struct Table {
    class: &'static str,
    headings: Vec<String>,
    rows: String,
}

impl Table {
    /// One that becomes cards on a phone.
    pub(super) fn of_cards(headings: &[&str]) -> Self {
        Self::new("cards", headings)
    }

    /// One that scrolls where there is no room.
    pub(super) fn that_scrolls(headings: &[&str]) -> Self {
        Self::new("matrix", headings)
    }

    fn new(class: &'static str, headings: &[&str]) -> Self {
        let headings = headings.iter().map(|heading| (*heading).to_owned()).collect();
        Self { class, headings, rows: String::new() }
    }

    /// Adds a row; its first cell is its name.
    pub(super) fn row(&mut self, cells: &[String]) {
        self.rows.push_str("<tr>");
        for (i, cell) in cells.iter().enumerate() {
            if i == 0 {
                let _ = write!(self.rows, "<th scope=\"row\">{cell}</th>");
            } else if self.class == "cards" {
                // The heading again, for where the row is a card.
                let heading = self.headings.get(i).map_or("", String::as_str);
                let _ = write!(self.rows, "<td data-is=\"{heading}\">{cell}</td>");
            } else {
                let _ = write!(self.rows, "<td>{cell}</td>");
            }
        }
        self.rows.push_str("</tr>\n");
    }

    /// The table.
    pub(super) fn done(self) -> String {
        let mut head = String::new();
        for heading in &self.headings {
            let _ = write!(head, "<th scope=\"col\">{heading}</th>");
        }
        format!(
            "<div class=\"scroll\"><table class=\"{}\"><thead><tr>{head}</tr></thead><tbody>\n{}\
             </tbody></table></div>\n",
            self.class, self.rows
        )
    }
}

/// A policy's name with its mark.
pub(super) fn named(slot: usize, name: &str) -> String {
    let class = marks::class(slot);
    format!("<span class=\"name {class}\">{}{}</span>", marks::inline(slot), escaped(name))
}

/// A geometric mean with what it is made of: `1.06 (1.04 to 1.09)`.
pub(super) fn spread(spread: &Spread) -> String {
    format!(
        "{:.2} <small>({:.2} to {:.2})</small>",
        spread.geometric_mean, spread.smallest, spread.largest
    )
}

/// What each run came to.
pub(super) fn outcomes(runs: &[Recorded]) -> String {
    let any = |has: fn(&PolicyOutcome) -> bool| runs.iter().any(|run| has(&run.outcome));
    let (carbon, deadlines) =
        (any(|run| run.carbon_kg.is_some()), any(|run| run.deadlines_missed > 0));
    let shared = any(|run| run.shared_starts > 0);
    let unfinished = any(|run| run.finished < run.jobs);
    let mut headings = vec![
        "run",
        "energy, whole nodes",
        "above idle",
        "mean completion",
        "95 % within",
        "99 % within",
        "mean wait",
        if unfinished { "last one done after" } else { "all done after" },
        "GPUs busy",
        "nodes awake",
        "resized",
        "restarts",
    ];
    headings.extend(unfinished.then_some("jobs finished"));
    headings.extend(carbon.then_some("carbon"));
    headings.extend(shared.then_some("started beside others"));
    headings.extend(deadlines.then_some("deadlines missed"));
    let mut table = Table::of_cards(&headings);
    let maybe = |s: Option<f64>| s.map_or_else(|| "-".to_owned(), time);
    for run in runs {
        let outcome = &run.outcome;
        let energy = |kwh: f64| Unit::energy(kwh).said(kwh);
        let mut cells = vec![
            named(run.slot, &run.name),
            energy(outcome.energy_kwh),
            energy(outcome.energy_kwh_above_idle),
            maybe(outcome.jct_s_mean),
            maybe(outcome.jct_s_p95),
            maybe(outcome.jct_s_p99),
            maybe(outcome.wait_s_mean),
            time(outcome.makespan_s),
            percent(outcome.gpu_utilization_mean),
            figure(outcome.awake_nodes_mean),
            outcome.rescales.to_string(),
            outcome.migrations.to_string(),
        ];
        cells.extend(unfinished.then(|| format!("{} of {}", outcome.finished, outcome.jobs)));
        let kg = outcome.carbon_kg.map_or_else(|| "-".to_owned(), |kg| Unit::carbon(kg).said(kg));
        cells.extend(carbon.then_some(kg));
        cells.extend(shared.then(|| outcome.shared_starts.to_string()));
        cells.extend(deadlines.then(|| outcome.deadlines_missed.to_string()));
        table.row(&cells);
    }
    table.done()
}

/// One policy against all others at equal totals.
pub(super) struct Against<'a> {
    /// The policy that is measured.
    pub(super) policy: &'a str,
    /// Whose totals they are.
    pub(super) baseline: &'a str,
    /// The baseline's completion time over the policy's.
    pub(super) spread: Option<Spread>,
    /// Totals that the policy does not reach, and how many there are.
    pub(super) not_reached: (usize, usize),
}

/// How many times longer the row's jobs take than the column's. Shades say how much.
pub(super) fn matrix(policies: &[(&str, usize)], all: &[Against<'_>]) -> String {
    let mut headings = vec![String::new()];
    headings.extend(policies.iter().map(|(name, slot)| named(*slot, name)));
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = Table::that_scrolls(&headings);
    for (baseline, slot) in policies {
        let mut cells = vec![named(*slot, baseline)];
        for (policy, _) in policies {
            let found = all.iter().find(|a| a.policy == *policy && a.baseline == *baseline);
            let star = match found.map_or((0, 0), |against| against.not_reached) {
                (0, _) => String::new(),
                (not, of) => format!("<sup title=\"not at {not} of {of} totals\">*</sup>"),
            };
            let cell = match found.and_then(|against| against.spread.as_ref()) {
                Some(ratios) => shade(ratios, &star),
                None => format!("<span class=\"none\">-{star}</span>"),
            };
            cells.push(cell);
        }
        table.row(&cells);
    }
    table.done()
}

/// A ratio on a ground that deepens with it: one colour where the column is ahead, another where it
/// is behind.
fn shade(ratios: &Spread, star: &str) -> String {
    /// A factor of two has the deepest ground.
    const DEEPEST: f64 = 2.0;
    let size = (ratios.geometric_mean.ln().abs() / DEEPEST.ln()).min(1.0);
    let class = if ratios.geometric_mean >= 1.0 { "ahead" } else { "behind" };
    let depth = (size * 45.0).round();
    format!("<span class=\"cell {class}\" style=\"--d:{depth}%\">{}{star}</span>", spread(ratios))
}
