//! Tables: outcomes of the selected runs, and ratios between policies.
//!
//! On a narrow screen a row of a wide table becomes a card that repeats the headings; a matrix,
//! whose columns are compared with each other, scrolls instead.

use maud::{Markup, Render, html};

use super::format::{Unit, number, percent};
use super::markers::named;
use super::selected_runs::Recorded;
use crate::frontier::RatioSpread;
use wattle_simulator::PolicyOutcome;

/// A table whose rows become cards on a narrow screen.
pub(super) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<Markup>>,
}

impl Table {
    /// A table with these headings.
    pub(super) fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; its first cell is its name.
    pub(super) fn row(&mut self, cells: Vec<Markup>) {
        self.rows.push(cells);
    }

    /// Whether it has no rows.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl Render for Table {
    fn render(&self) -> Markup {
        html! {
            div.scroll {
                table.cards {
                    thead { tr { @for heading in &self.headings { th scope="col" { (heading) } } } }
                    tbody {
                        @for cells in &self.rows {
                            tr {
                                @for (i, cell) in cells.iter().enumerate() {
                                    @if i == 0 {
                                        th scope="row" { (cell) }
                                    } @else {
                                        // The style sheet shows the heading where the row is a
                                        // card.
                                        td data-is=(self.headings.get(i).unwrap_or(&"")) { (cell) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A cell of text; `-` where it is missing.
pub(super) fn cell(text: impl Into<Option<String>>) -> Markup {
    text.into().unwrap_or_else(|| "-".to_owned()).render()
}

/// A geometric mean with its range: `1.06 (1.04 to 1.09)`.
pub(super) fn spread(spread: &RatioSpread) -> Markup {
    html! {
        (format!("{:.2} ", spread.geometric_mean))
        small { (format!("({:.2} to {:.2})", spread.smallest, spread.largest)) }
    }
}

/// A column of the outcome table.
type Column<'a> = (&'static str, Box<dyn Fn(&PolicyOutcome) -> String + 'a>);

/// The outcome of each run.
pub(super) fn outcomes(runs: &[Recorded]) -> Table {
    let any = |has: fn(&PolicyOutcome) -> bool| runs.iter().any(|run| has(&run.outcome));
    let unfinished = any(|run| run.finished < run.jobs);
    // A column has one unit, which fits its largest value.
    let measured = |unit: fn(f64) -> Unit, value: fn(&PolicyOutcome) -> Option<f64>| {
        let largest = runs.iter().filter_map(|run| value(&run.outcome)).fold(0.0, f64::max);
        let unit = unit(largest);
        Box::new(move |run: &PolicyOutcome| {
            value(run).map_or_else(|| "-".to_owned(), |value| unit.format(value))
        })
    };
    let time = |value| measured(Unit::time, value);
    let mut columns: Vec<Column<'_>> = vec![
        ("energy, whole nodes", measured(Unit::energy, |run| Some(run.energy_kwh))),
        ("energy above idle", measured(Unit::energy, |run| Some(run.energy_kwh_above_idle))),
        ("mean JCT", time(|run| run.jct_s_mean)),
        ("p95 JCT", time(|run| run.jct_s_p95)),
        ("p99 JCT", time(|run| run.jct_s_p99)),
        ("mean wait", time(|run| run.wait_s_mean)),
        (if unfinished { "last completion" } else { "makespan" }, time(|run| Some(run.makespan_s))),
        ("GPU utilization", Box::new(|run| percent(run.gpu_utilization_mean))),
        ("nodes awake", Box::new(|run| number(run.awake_nodes_mean))),
        ("rescales", Box::new(|run| run.rescales.to_string())),
        ("restarts", Box::new(|run| run.migrations.to_string())),
    ];
    if unfinished {
        let finished = |run: &PolicyOutcome| format!("{} of {}", run.finished, run.jobs);
        columns.push(("jobs finished", Box::new(finished)));
    }
    if any(|run| run.carbon_kg.is_some()) {
        columns.push(("carbon", measured(Unit::carbon, |run| run.carbon_kg)));
    }
    if any(|run| run.shared_starts > 0) {
        columns.push(("shared starts", Box::new(|run| run.shared_starts.to_string())));
    }
    if any(|run| run.deadlines_missed > 0) {
        columns.push(("deadlines missed", Box::new(|run| run.deadlines_missed.to_string())));
    }
    let headings: Vec<&str> = std::iter::once("run").chain(columns.iter().map(|c| c.0)).collect();
    let mut table = Table::new(&headings);
    for run in runs {
        let cells = columns.iter().map(|(_, value)| cell(value(&run.outcome)));
        table.row(std::iter::once(named(run.slot, &run.name)).chain(cells).collect());
    }
    table
}

/// Two policies at equal totals.
pub(super) struct Pair<'a> {
    /// The policy.
    pub(super) policy: &'a str,
    /// The policy it is compared with.
    pub(super) baseline: &'a str,
    /// The baseline's completion time over the policy's.
    pub(super) spread: Option<RatioSpread>,
    /// Number of totals that the policy does not reach, and number of totals.
    pub(super) not_reached: (usize, usize),
}

/// Completion time of each row's policy over that of each column's.
pub(super) fn matrix(policies: &[(&str, usize)], pairs: &[Pair<'_>]) -> Markup {
    let pair = |policy: &str, baseline: &str| {
        pairs.iter().find(|pair| pair.policy == policy && pair.baseline == baseline)
    };
    html! {
        div.scroll {
            table.matrix {
                thead {
                    tr {
                        th scope="col" {}
                        @for (name, slot) in policies { th scope="col" { (named(*slot, name)) } }
                    }
                }
                tbody {
                    @for (baseline, slot) in policies {
                        tr {
                            th scope="row" { (named(*slot, baseline)) }
                            @for (policy, _) in policies { td { (ratio(pair(policy, baseline))) } }
                        }
                    }
                }
            }
        }
    }
}

/// A ratio on a background that deepens with it, in one colour above 1 and another below.
fn ratio(pair: Option<&Pair<'_>>) -> Markup {
    /// The ratio with the deepest background.
    const DEEPEST: f64 = 2.0;
    let (not, of) = pair.map_or((0, 0), |pair| pair.not_reached);
    let star = html! {
        @if not > 0 { sup title={ "not at " (not) " of " (of) " totals" } { "*" } }
    };
    let Some(ratios) = pair.and_then(|pair| pair.spread.as_ref()) else {
        return html! { span.none { "-" (star) } };
    };
    let size = (ratios.geometric_mean.ln().abs() / DEEPEST.ln()).min(1.0);
    let class = if ratios.geometric_mean >= 1.0 { "cell ahead" } else { "cell behind" };
    html! {
        span class=(class) style={ "--d:" ((size * 45.0).round()) "%" } { (spread(ratios)) (star) }
    }
}
