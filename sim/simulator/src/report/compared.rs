//! The page of `wattle compare`: frontiers and bounds, who is ahead at equal energy, published claims
//! beside it, and a closer look at one run of each policy.

use std::fmt::Write;

use super::claims::{self, Evidence, Plain};
use super::described::{heading, known};
use super::frontier_plot::{self, Curve, Limit, Run};
use super::markup::{Unit, escaped, figure, time};
use super::page::{Section, page};
use super::shown::{Recorded, chosen, counted, families, frontier, said};
use super::table::{self, Table, named};
use super::{close, equal, lost};
use crate::compare::{Accounting, Comparison, Swept};
use crate::frontier::{Frontier, Spread};
use crate::said;

/// The page of some comparisons; `recorded` are the runs of the first one to be looked at closely
/// ([`super::record`]).
#[must_use]
pub fn comparison_page(comparisons: &[Comparison], recorded: &[Recorded]) -> String {
    let Some(first) = comparisons.first() else { return page("Wattle", "", &[]) };
    let looked_at = if recorded.is_empty() { Vec::new() } else { chosen(first) };
    let mut sections = vec![
        Section::new("first", &heading(first), case(first, &looked_at)),
        Section::new("claims", "Claimed, and measured here", claims(first)),
    ];
    let mut why_these =
        "Of each policy the run of its frontier is shown that comes nearest to the \
                         middle of the energies which all of them reach (ringed in the plot above). Here it is \
                         charged until its own end, in the plot until the last of all runs ends."
            .to_owned();
    if comparisons.len() > 1 {
        let _ = write!(
            why_these,
            " They are of the first case, {}; ask for another one alone to see its runs.",
            escaped(heading(first))
        );
    }
    sections.extend(close::sections(recorded, &why_these));
    sections.push(Section::new("others", "Other cases", others(&comparisons[1..])));
    let lead = format!(
        "<p class=\"lead\">{}</p>\n<p>Each policy is run over its own knob and stands on its own \
         frontier. Who is ahead is asked at equal energy only, and how far each is from what no \
         schedule can beat.</p>\n",
        cluster(recorded).unwrap_or_else(|| "Policies compared at equal energy.".to_owned())
    );
    page(&format!("Wattle: {}", first.scenario), &lead, &sections)
}

/// Every case but the first, folded away.
fn others(comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    for comparison in comparisons {
        let mut inner = case(comparison, &[]);
        let claims = claims(comparison);
        if !claims.is_empty() {
            let _ = write!(inner, "<h3>Claimed, and measured here</h3>\n{claims}");
        }
        let heading = escaped(heading(comparison));
        let _ = write!(text, "<details><summary>{heading}</summary>\n{inner}</details>\n");
    }
    text
}

/// `876 jobs on 16 nodes of 8 a100`
fn cluster(recorded: &[Recorded]) -> Option<String> {
    let recording = &recorded.first()?.recording;
    let node = recording.nodes.first()?;
    Some(format!(
        "{} on {} of {} {}.",
        said::counted(recording.jobs.len(), "job"),
        said::counted(recording.nodes.len(), "node"),
        node.gpus,
        escaped(&node.kind)
    ))
}

fn case(comparison: &Comparison, looked_at: &[usize]) -> String {
    let families = families(comparison);
    let orders = comparison.seeds.len();
    let orders = match orders {
        1 => "one order of jobs".to_owned(),
        n => format!("{n} orders of jobs, of which the first has marks and the others thin lines"),
    };
    let mut text =
        format!("<p>{} {} runs, {orders}.</p>\n", known(comparison), comparison.policies.len());
    text.push_str(&headline(comparison, &families));
    let limit = Limit { tight: &comparison.bounds.frontier, alone: &comparison.bounds.alone };
    text.push_str(&plot(comparison, &families, looked_at, counted, Some(limit), "Energy"));
    if comparison.policies.iter().any(|run| carbon(run).is_some()) {
        let tight = &comparison.bounds.carbon_frontier;
        let limit = (!tight.is_empty()).then_some(Limit { tight, alone: &[] });
        text.push_str(&plot(comparison, &families, looked_at, carbon, limit, "Emissions"));
    }
    text.push_str(&distances(comparison, &families));
    let policies: Vec<(&str, usize)> = families.iter().copied().zip(0..).collect();
    text.push_str(&equal::draw(comparison, &policies));
    text.push_str(&lost::draw(comparison, &policies));
    if !comparison.notes.is_empty() {
        let notes: String =
            comparison.notes.iter().map(|note| format!("<li>{}</li>", escaped(note))).collect();
        let _ = writeln!(text, "<ul class=\"note\">{notes}</ul>");
    }
    text
}

fn carbon(run: &Swept) -> Option<f64> {
    run.counted_kg
}

/// Who is ahead at equal energy, by how much, and how far from the bound.
fn headline(comparison: &Comparison, families: &[&str]) -> String {
    let against = |family: &str| {
        let all = comparison.summary.iter().filter(move |summary| summary.policy == family);
        all.filter_map(|s| Some((&s.baseline, s.spread.as_ref()?))).collect::<Vec<_>>()
    };
    // The mean over the others of how far ahead: a logarithm, as ratios are averaged.
    let lead = |family: &str| {
        let all = against(family);
        let sum: f64 = all.iter().map(|(_, spread)| spread.geometric_mean.ln()).sum();
        (!all.is_empty()).then(|| sum / all.len() as f64)
    };
    // Who cannot spend as little as another is not simply ahead of it.
    let gets_everywhere = |family: &str| {
        let mut own = comparison.summary.iter().filter(|summary| summary.policy == family);
        own.all(|summary| summary.not_reachable == 0)
    };
    let ahead = families.iter().filter(|family| gets_everywhere(family));
    let ahead = ahead.filter_map(|family| Some((*family, lead(family)?)));
    let best = ahead.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, lead)| *lead > 0.0);
    let Some((best, _)) = best else {
        let nobody = "Nobody is simply ahead: who is faster somewhere is slower, or cannot go, \
                      elsewhere.";
        return if families.len() > 1 {
            format!("<p class=\"said\">{nobody}</p>\n")
        } else {
            String::new()
        };
    };
    let others: Vec<String> = (0..)
        .zip(against(best))
        .map(|(i, (baseline, spread))| {
            let times = if i == 0 { " times as long" } else { "" };
            format!("{}{times} under {}", table::spread(spread), escaped(baseline))
        })
        .collect();
    let mut text = format!(
        "<p class=\"said\">Most ahead at equal energy, from 1.1 times the others' least on, is <strong>{}</strong>: jobs take {}.",
        escaped(best),
        others.join(", ")
    );
    if let Some(above) = above_bound(comparison, best) {
        let above = table::spread(&above);
        let _ = write!(text, " Itself it takes {above} times as long as the lower bound.");
    }
    text.push_str("</p>\n");
    text
}

fn above_bound(comparison: &Comparison, family: &str) -> Option<Spread> {
    let above = comparison.above_bound.iter().filter(|above| above.policy == family);
    Spread::of(above.filter_map(|above| above.ratio))
}

fn plot(
    comparison: &Comparison,
    families: &[&str],
    looked_at: &[usize],
    total: fn(&Swept) -> Option<f64>,
    limit: Option<Limit<'_>>,
    spent: &str,
) -> String {
    let first = comparison.seeds.first().copied().unwrap_or(0);
    let most = comparison.policies.iter().filter_map(total).fold(0.0, f64::max);
    let unit = if spent == "Energy" { Unit::energy(most) } else { Unit::carbon(most) };
    let mut curves = Vec::new();
    for (slot, family) in families.iter().enumerate() {
        let best = frontier(comparison, family, first, total);
        let is_best = |index: usize| {
            best.iter().flat_map(Frontier::points).any(|point| point.setting == index)
        };
        let runs = comparison.policies.iter().enumerate().filter(|(_, run)| {
            run.family == *family && run.order == first && run.outcome.finished == run.outcome.jobs
        });
        let mut runs: Vec<Run> = runs
            .filter_map(|(index, run)| {
                let (total, jct_s) = (total(run)?, run.outcome.jct_s_mean?);
                let best = is_best(index);
                let beaten = if best { "" } else { " (beaten by another run of its own)" };
                let title = said(run, total, unit) + beaten;
                Some(Run { total, jct_s, title, best, chosen: looked_at.contains(&index) })
            })
            .collect();
        runs.sort_by(|a, b| a.total.total_cmp(&b.total));
        let others = comparison.seeds.iter().skip(1).filter_map(|order| {
            let frontier = frontier(comparison, family, *order, total)?;
            Some(frontier.points().iter().map(|point| (point.total, point.jct_s)).collect())
        });
        curves.push(Curve { name: family, slot, runs, others: others.collect() });
    }
    let unfinished =
        comparison.policies.iter().filter(|run| run.outcome.finished < run.outcome.jobs).count();
    let mut note = String::new();
    if unfinished > 0 {
        note = format!(
            "<p class=\"note\">{unfinished} runs did not finish all jobs and are not shown.</p>\n"
        );
    }
    let grey = " Nobody gets into the grey: the lower bound (of the first order) knows the future and \
                resizes for free";
    let over = match limit {
        None => String::new(),
        Some(limit) if limit.alone.is_empty() => {
            format!("{grey}, and lets jobs wait for the cleanest hours for as long as that pays.")
        }
        Some(_) => format!("{grey}. Dashed, the bound as if there were no other jobs."),
    };
    format!(
        "<figure class=\"frontier\"><figcaption>Completion time over {}: lower and further left is \
         better. Marks are runs, lines the frontiers, faint marks runs that another run of the same \
         policy beats; dotted, what spending more would not improve.{over}</figcaption>\n{}{note}\
         </figure>\n",
        spent.to_lowercase(),
        frontier_plot::draw(&curves, limit, spent, unit)
    )
}

/// What each policy reaches, and its distance to the bound.
fn distances(comparison: &Comparison, families: &[&str]) -> String {
    let mut table =
        Table::of_cards(&["policy", "runs", "energy", "mean completion", "times the lower bound"]);
    for (slot, family) in families.iter().enumerate() {
        let runs = || comparison.policies.iter().filter(|run| run.family == *family);
        let kwh = range(runs().map(|run| run.counted_kwh));
        let jct = range(runs().filter_map(|run| run.outcome.jct_s_mean));
        let between = |range: Option<(f64, f64)>, unit: fn(f64) -> Unit| match range {
            Some((low, high)) => {
                let unit = unit(low);
                format!("{} to {}", figure(low / unit.size), unit.said(high))
            }
            None => "-".to_owned(),
        };
        table.row(&[
            named(slot, family),
            runs().count().to_string(),
            between(kwh, Unit::energy),
            between(jct, Unit::hours),
            above_bound(comparison, family)
                .map_or_else(|| "-".to_owned(), |above| table::spread(&above)),
        ]);
    }
    let least = &comparison.bounds;
    format!(
        "<h3>What each reaches</h3>\n<p>No schedule spends less than {} on these jobs, and none \
         brings the mean completion time below {}.</p>\n{}",
        Unit::energy(least.energy_kwh).said(least.energy_kwh),
        time(least.jct_s_mean),
        table.done()
    )
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range: Option<(f64, f64)>, value| {
        Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
    })
}

/// Published claims beside this comparison.
fn claims(comparison: &Comparison) -> String {
    let families = families(comparison);
    let mut evidence = Evidence { large: comparison.scenario == "eaco-64", ..Evidence::default() };
    for summary in &comparison.summary {
        let (policy, baseline) = (summary.policy.as_str(), summary.baseline.as_str());
        evidence.equal_energy.extend(summary.spread.map(|spread| (policy, baseline, spread)));
        let carbon = summary.spread_carbon;
        evidence.equal_carbon.extend(carbon.map(|spread| (policy, baseline, spread)));
    }
    // Policies that are swept over clocks begin with the top one: the cards as the site sets them.
    for family in &families {
        let own = |order: &u64| {
            let mut runs = comparison.policies.iter();
            let first = runs.find(|run| run.family == *family && run.order == *order);
            first.filter(|run| run.outcome.policy.contains('@'))
        };
        let runs: Vec<&Swept> = comparison.seeds.iter().filter_map(own).collect();
        evidence.plain.push(Plain {
            policy: family,
            // What cards draw above idle is not what was claimed.
            energy_kwh: match comparison.accounting {
                Accounting::AboveIdle => Vec::new(),
                _ => runs.iter().map(|run| run.counted_kwh).collect(),
            },
            outcomes: runs.iter().map(|run| &run.outcome).collect(),
        });
    }
    claims::draw(&evidence)
}
