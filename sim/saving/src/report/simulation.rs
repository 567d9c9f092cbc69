//! The page of `wattle simulate`: the outcome of each policy, its changes against the first, and
//! the runs in detail.

use maud::{Markup, Render, html};
use wattle_common::topology::ClusterShape;
use wattle_simulator::text::pluralize;
use wattle_simulator::{Baseline, Outcome, PolicyOutcome};

use super::claims::{self, Evidence, UntunedRuns};
use super::format::{Unit, change, duration};
use super::frontier_plot::{self, Curve, Run};
use super::markers::named;
use super::page::{Section, page};
use super::recorded::Recorded;
use super::run_detail;
use super::table::{Table, cell};
use crate::seeds::{PolicyChange, SeedStudy};

/// The page of a simulation. `recorded` are its runs in the policies' order, without oracles;
/// `limits` describes the budgets and options that the runs were under.
#[must_use]
pub fn simulation_page(study: &SeedStudy, recorded: &[Recorded], limits: &[String]) -> String {
    let outcome = &study.outcome;
    let lead = html! {
        (verdict(outcome))
        p.lead {
            (outcome.trace) " on " (outcome.cluster) ", seed " (outcome.seed)
            @if let Some(load) = outcome.load { (format!(", load {load:.2}")) }
            @for limit in limits { "; " (limit) }
            "."
        }
    };
    let untuned = outcome.policies.iter().filter(|run| !run.oracle).map(|run| UntunedRuns {
        policy: &run.policy,
        energy_kwh: vec![run.energy_kwh],
        outcomes: vec![run],
    });
    let untuned = untuned.collect();
    let evidence = Evidence { large: is_large(outcome), untuned, ..Evidence::default() };
    let selection = if outcome.policies.iter().any(|run| run.oracle) {
        "The runs of the policies above, without the oracle's."
    } else {
        ""
    };
    let mut sections = vec![
        Section::new("policies", "Policies", policies(study)),
        Section::new("claims", "Claimed, and measured here", claims::draw(&evidence)),
    ];
    sections.extend(run_detail::sections(recorded, selection));
    sections.push(Section::new("notes", "Notes on the input", notes(outcome)));
    page(&format!("Wattle: {}", outcome.trace), &lead, &sections)
}

/// The recorded runs of a simulation as an SVG file: their maps of nodes, below their power where it was
/// limited.
#[must_use]
pub fn simulation_figure(study: &SeedStudy, recorded: &[Recorded]) -> String {
    let jobs = recorded.first().map_or(0, |run| run.recording.jobs.len());
    let names = recorded.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ");
    let cluster = &study.outcome.cluster;
    let title = format!("{} on {cluster} under {names}", pluralize(jobs, "job"));
    run_detail::figure(&title, recorded)
}

/// What each policy changes against the first one, in a sentence each.
fn verdict(outcome: &Outcome) -> Markup {
    let [first, others @ ..] = &outcome.policies[..] else { return html! {} };
    let others: Vec<&PolicyOutcome> = others.iter().filter(|run| !run.oracle).collect();
    let clause = |ratio: f64, less: &str, more: &str, same: &str| match 100.0 * (ratio - 1.0) {
        percent if percent <= -0.05 => format!("{:.1} % {less}", -percent),
        percent if percent >= 0.05 => format!("{percent:.1} % {more}"),
        _ => same.to_owned(),
    };
    html! {
        @if !others.is_empty() {
            p.headline {
                @for run in others {
                    @let energy = run.energy_kwh / first.energy_kwh;
                    strong { (run.policy) } " uses "
                    (clause(energy, "less energy", "more energy", "as much energy"))
                    " than " (first.policy)
                    @if let Some((jct, before)) = run.jct_s_mean.zip(first.jct_s_mean) {
                        "; a job completes "
                        (clause(jct / before, "sooner", "later", "as soon"))
                        " on average"
                    }
                    @if run.different_jobs(first).is_some() { ", over different jobs" }
                    ". "
                }
            }
        }
    }
}

/// Whether the number of nodes is closer to 64 than to 28.
fn is_large(outcome: &Outcome) -> bool {
    outcome.cluster.parse::<ClusterShape>().is_ok_and(|cluster| cluster.node_count() > 46)
}

/// Completion time over energy and emissions, and changes against the first policy.
fn policies(study: &SeedStudy) -> Markup {
    let outcome = &study.outcome;
    let has_carbon = outcome.policies.iter().any(|run| run.carbon_kg.is_some());
    let unit = outcome.spending_unit();
    let has_budget = outcome.policies.iter().any(|run| !run.budget_lines(unit).is_empty());
    html! {
        (plot(outcome, |run| Some(run.energy_kwh), "Energy of whole nodes", Unit::energy))
        @if has_carbon { (plot(outcome, |run| run.carbon_kg, "Emissions", Unit::carbon)) }
        @if has_budget {
            h3 { "Budget" }
            ul {
                @for run in &outcome.policies {
                    @for line in run.budget_lines(unit) { li { (run.full_name()) ": " (line) } }
                }
            }
        }
        @if let Some(baseline) = &outcome.baseline {
            (against_baseline(outcome, baseline))
        }
        @if let [first, others @ ..] = &outcome.policies[..] {
            @if !others.is_empty() { (against_first(outcome, first, others)) }
        }
        @if !study.changes.is_empty() { (over_seeds(&study.changes)) }
    }
}

/// Changes against the schedule to which the energy aim relates.
fn against_baseline(outcome: &Outcome, baseline: &Baseline) -> Markup {
    let mut table =
        Table::new(&["against the baseline", "energy", "mean JCT", "worst project's mean JCT"]);
    let changed = |new: Option<f64>| cell(new.and_then(|new| change(1.0 + new, 1.0)));
    for run in &outcome.policies {
        let Some(against) = &run.against else { continue };
        let worst = against.project_worst.as_ref().map(|worst| worst.completion_mean);
        table.row(vec![
            named(slot(outcome, run), &run.full_name()),
            changed(against.energy),
            changed(against.completion_mean),
            changed(worst),
        ]);
    }
    html! {
        h3 { "Against " (baseline.schedule) ", the baseline" }
        (table)
    }
}

fn against_first(outcome: &Outcome, first: &PolicyOutcome, others: &[PolicyOutcome]) -> Markup {
    let mut table = Table::new(&["against the first", "energy", "mean JCT", "mean time on GPUs"]);
    let changed = |new: Option<f64>, old: Option<f64>| {
        cell(new.zip(old).and_then(|(new, old)| change(new, old)))
    };
    for run in others {
        table.row(vec![
            named(slot(outcome, run), &run.full_name()),
            changed(Some(run.energy_kwh), Some(first.energy_kwh)),
            changed(run.jct_s_mean, first.jct_s_mean),
            changed(run.runtime_s_mean, first.runtime_s_mean),
        ]);
    }
    html! {
        h3 { "Against " (first.policy) }
        (table)
        @for run in others {
            @if let Some(jobs) = run.different_jobs(first) {
                p.note { (run.full_name()) ": " (jobs) "." }
            }
        }
    }
}

fn over_seeds(changes: &[PolicyChange]) -> Table {
    let mut table = Table::new(&["over all seeds", "seeds", "energy", "mean JCT", "carbon"]);
    for against in changes {
        let shown = [against.energy, against.jct_mean, against.carbon];
        let shown = shown.map(|change| cell(change.map(|change| change.to_string())));
        let mut cells = vec![against.policy.render(), against.seeds.render()];
        cells.extend(shown);
        table.row(cells);
    }
    table
}

/// The index of a policy's own run, which the oracle's run shares.
fn slot(outcome: &Outcome, run: &PolicyOutcome) -> usize {
    let mut own = outcome.policies.iter().filter(|run| !run.oracle);
    own.position(|known| known.policy == run.policy).unwrap_or(0)
}

fn plot(
    outcome: &Outcome,
    total: fn(&PolicyOutcome) -> Option<f64>,
    quantity: &str,
    unit: fn(f64) -> Unit,
) -> Markup {
    let unit = unit(outcome.policies.iter().filter_map(total).fold(0.0, f64::max));
    let names: Vec<String> = outcome.policies.iter().map(PolicyOutcome::full_name).collect();
    let mut curves = Vec::new();
    for (run, name) in outcome.policies.iter().zip(&names) {
        let (Some(total), Some(jct_s)) = (total(run), run.jct_s_mean) else { continue };
        let title = format!("{name}: {}, mean JCT {}", unit.format(total), duration(jct_s));
        let runs = vec![Run { total, jct_s, title, best: true, selected: false }];
        curves.push(Curve { name, slot: slot(outcome, run), runs, others: Vec::new() });
    }
    html! {
        figure.frontier {
            figcaption {
                "Completion time over " (quantity.to_lowercase())
                ": lower and further left is better."
            }
            (frontier_plot::draw(&curves, None, quantity, unit))
        }
    }
}

fn notes(outcome: &Outcome) -> Markup {
    let notes = outcome.all_notes();
    let mut table = Table::new(&["workload", "jobs", "origin"]);
    for share in &outcome.workloads {
        let origin = match (&share.model, share.drawn) {
            (Some(model), true) => format!("drawn for {model}"),
            (None, true) => "drawn".to_owned(),
            (_, false) => "named by the trace".to_owned(),
        };
        table.row(vec![share.workload.as_str().render(), share.jobs.render(), cell(origin)]);
    }
    html! {
        @if !notes.is_empty() { ul { @for note in &notes { li { (note) } } } }
        @if !table.is_empty() {
            details {
                summary { (outcome.workloads.len()) " workloads" }
                (table)
            }
        }
    }
}
