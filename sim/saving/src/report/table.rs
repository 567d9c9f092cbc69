//! Tables, and the outcomes of the selected runs.
//!
//! On a narrow screen a row of a wide table becomes a card that repeats the headings.

use maud::{Markup, Render, html};

use super::format::{Unit, number, percent};
use super::markers::named;
use super::recorded::Recorded;
use wattle_simulator::PolicyOutcome;

/// A table whose rows become cards on a narrow screen.
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<Markup>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; its first cell is its name.
    pub fn row(&mut self, cells: Vec<Markup>) {
        self.rows.push(cells);
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
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
pub fn cell(text: impl Into<Option<String>>) -> Markup {
    text.into().unwrap_or_else(|| "-".to_owned()).render()
}

/// A column of the outcome table.
type Column<'a> = (&'static str, Box<dyn Fn(&PolicyOutcome) -> String + 'a>);

/// The outcome of each run.
pub fn outcomes(runs: &[Recorded]) -> Table {
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
