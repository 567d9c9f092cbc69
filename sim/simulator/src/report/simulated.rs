//! The page of `wattle simulate`: what came of each policy, what it saves against the first, and a
//! closer look at the runs.

use std::fmt::Write;

use wattle_common::topology::ClusterShape;

use super::claims::{self, Evidence, Plain};
use super::close;
use super::frontier_plot::{self, Curve, Run};
use super::markup::{Unit, change, escaped, time};
use super::page::{Section, page};
use super::shown::Recorded;
use super::table::{Table, named};
use crate::outcome::{Outcome, PolicyOutcome};

/// The page of a simulation; `recorded` are its runs, in its policies' order, without oracles, and
/// `under` is what they were held to, in words.
#[must_use]
pub fn simulation_page(outcome: &Outcome, recorded: &[Recorded], under: &[String]) -> String {
    let load = outcome.load.map_or_else(String::new, |load| format!(", load {load:.2}"));
    let under: String = under.iter().map(|what| format!("; {}", escaped(what))).collect();
    let lead = format!(
        "<p class=\"lead\">{} on {}, seed {}{load}{under}.</p>\n",
        escaped(&outcome.trace),
        escaped(&outcome.cluster),
        outcome.seed
    );
    let mut sections = vec![Section::new("policies", "Policies", policies(outcome))];
    let own = outcome.policies.iter().filter(|run| !run.oracle);
    let plain = own.map(|run| Plain {
        policy: &run.policy,
        energy_kwh: vec![run.energy_kwh],
        outcomes: vec![run],
    });
    let plain = plain.collect();
    let claims = claims::draw(&Evidence { large: is_large(outcome), plain, ..Evidence::default() });
    sections.push(Section::new("claims", "Claimed, and measured here", claims));
    let runs = "Each policy's run, as above; true surfaces are not looked at closely.";
    let runs = if outcome.policies.iter().any(|run| run.oracle) { runs } else { "" };
    sections.extend(close::sections(recorded, runs));
    sections.push(Section::new("notes", "What to know of the input", notes(outcome)));
    page(&format!("Wattle: {}", outcome.trace), &lead, &sections)
}

/// Whether the cluster is nearer to 64 nodes than to 28.
fn is_large(outcome: &Outcome) -> bool {
    outcome.cluster.parse::<ClusterShape>().is_ok_and(|cluster| cluster.node_count() > 46)
}

/// Where each run stands, and how it compares with the first.
fn policies(outcome: &Outcome) -> String {
    let mut text = plot(outcome, |run| Some(run.energy_kwh), "Energy of whole nodes", Unit::energy);
    if outcome.policies.iter().any(|run| run.carbon_kg.is_some()) {
        text.push_str(&plot(outcome, |run| run.carbon_kg, "Emissions", Unit::carbon));
    }
    let spent = outcome.policies.iter().flat_map(|run| {
        run.spent().into_iter().map(|spent| format!("<li>{}: {spent}</li>", escaped(name(run))))
    });
    let spent: String = spent.collect();
    if !spent.is_empty() {
        let _ = write!(text, "<h3>What was spent</h3>\n<ul>{spent}</ul>\n");
    }
    let [first, others @ ..] = &outcome.policies[..] else { return text };
    if others.is_empty() {
        return text;
    }
    let with = escaped(&first.policy);
    let mut table =
        Table::of_cards(&["against the first", "energy", "mean completion", "mean time on GPUs"]);
    for run in others {
        let dash = || "-".to_owned();
        let of = |new: Option<f64>, old: Option<f64>| {
            new.zip(old).and_then(|(new, old)| change(new, old)).unwrap_or_else(dash)
        };
        table.row(&[
            named(slot(outcome, run), &name(run)),
            of(Some(run.energy_kwh), Some(first.energy_kwh)),
            of(run.jct_s_mean, first.jct_s_mean),
            of(run.runtime_s_mean, first.runtime_s_mean),
        ]);
    }
    let _ = write!(text, "<h3>Against {with}</h3>\n{}", table.done());
    for run in others {
        if let Some(jobs) = run.other_jobs_than(first) {
            let _ =
                writeln!(text, "<p class=\"note\">{}: {}.</p>", escaped(name(run)), escaped(jobs));
        }
    }
    if !outcome.savings.is_empty() {
        let mut table =
            Table::of_cards(&["over all seeds", "seeds", "energy", "mean completion", "carbon"]);
        for saving in &outcome.savings {
            let said = |spread: Option<crate::saving::Spread>| {
                spread.map_or_else(|| "-".to_owned(), escaped)
            };
            table.row(&[
                escaped(&saving.policy),
                saving.seeds.to_string(),
                said(saving.energy),
                said(saving.jct_mean),
                said(saving.carbon),
            ]);
        }
        text.push_str(&table.done());
    }
    text
}

/// A policy's colour is that of its first run; the oracle shares it.
fn slot(outcome: &Outcome, run: &PolicyOutcome) -> usize {
    let own: Vec<&PolicyOutcome> = outcome.policies.iter().filter(|run| !run.oracle).collect();
    own.iter().position(|known| known.policy == run.policy).unwrap_or(0)
}

fn name(run: &PolicyOutcome) -> String {
    run.whole_name()
}

fn plot(
    outcome: &Outcome,
    total: fn(&PolicyOutcome) -> Option<f64>,
    spent: &str,
    unit: fn(f64) -> Unit,
) -> String {
    let most = outcome.policies.iter().filter_map(total).fold(0.0, f64::max);
    let unit = unit(most);
    let names: Vec<String> = outcome.policies.iter().map(name).collect();
    let mut curves = Vec::new();
    for (run, name) in outcome.policies.iter().zip(&names) {
        let (Some(total), Some(jct_s)) = (total(run), run.jct_s_mean) else { continue };
        let title = format!("{name}: {}, mean completion {}", unit.said(total), time(jct_s));
        let run_drawn = Run { total, jct_s, title, best: true, chosen: false };
        let slot = slot(outcome, run);
        curves.push(Curve { name, slot, runs: vec![run_drawn], others: Vec::new() });
    }
    format!(
        "<figure class=\"frontier\"><figcaption>Completion time over {}: lower and further left is \
         better.</figcaption>\n{}</figure>\n",
        spent.to_lowercase(),
        frontier_plot::draw(&curves, None, spent, unit)
    )
}

fn notes(outcome: &Outcome) -> String {
    let mut text = String::new();
    for note in outcome.said() {
        let _ = write!(text, "<li>{}</li>", escaped(note));
    }
    if !text.is_empty() {
        text = format!("<ul>{text}</ul>\n");
    }
    let mut table = Table::of_cards(&["workload", "jobs", "why"]);
    for share in &outcome.workloads {
        let why = match (&share.model, share.drawn) {
            (Some(model), true) => format!("drawn for {model}"),
            (None, true) => "drawn".to_owned(),
            (_, false) => "named by the trace".to_owned(),
        };
        table.row(&[escaped(&share.workload), share.jobs.to_string(), escaped(why)]);
    }
    if !outcome.workloads.is_empty() {
        let _ = write!(
            text,
            "<details><summary>{} workloads</summary>\n{}</details>\n",
            outcome.workloads.len(),
            table.done()
        );
    }
    text
}
