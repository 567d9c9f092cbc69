//! The page of `wattle-lab compare`: frontiers and bounds, ratios at equal energy, published claims,
//! and one run of each policy in detail.

use maud::{Markup, html};
use wattle_simulator::text::pluralize;

use super::captions::{heading, inputs};
use super::selected_runs::{caption, counted_kwh, families, frontier, selected};
use super::{equal_budget, ratios, waterfall};
use crate::compare::{Accounting, Comparison, Swept};
use crate::frontier::Frontier;
use wattle_saving::report::Recorded;
use wattle_saving::report::claims::{self, Evidence, UntunedRuns};
use wattle_saving::report::format::{Unit, duration, number};
use wattle_saving::report::frontier_plot::{self, Curve, Limit, Run};
use wattle_saving::report::markers::named;
use wattle_saving::report::page::{Section, page};
use wattle_saving::report::run_detail;
use wattle_saving::report::table::{Table, cell};
use wattle_saving::spread::RatioSpread;

/// The page of these comparisons; `recorded` are the selected runs of the first one
/// ([`super::record`]).
#[must_use]
pub fn comparison_page(comparisons: &[Comparison], recorded: &[Recorded]) -> String {
    let Some(first) = comparisons.first() else { return page("Wattle", &html! {}, &[]) };
    let shown = if recorded.is_empty() { Vec::new() } else { selected(first) };
    let mut selection = "For each policy, the run on its frontier nearest to the middle of the energies \
                         that all policies reach (ringed in the plot above). Its energy is counted until \
                         its own end here, and until the end of the last run in the plot."
        .to_owned();
    if comparisons.len() > 1 {
        selection += &format!(
            " The runs are of the first case, {}; compare another case alone to see its runs.",
            heading(first)
        );
    }
    let lead = html! {
        (headline(first, &families(first)))
        p.lead { (cluster(recorded).as_deref().unwrap_or("Policies compared at equal energy.")) }
        p {
            "Each policy is run over its tuning parameter, which gives it a frontier of completion time "
            "over energy. Policies are compared at equal energy, and with a lower bound that no schedule "
            "can beat."
        }
    };
    let mut sections = vec![
        // The verdict on the first case is at the top of the page.
        Section::new("first", &heading(first), case(first, &shown)),
        Section::new("claims", "Claimed, and measured here", claims(first)),
    ];
    sections.extend(run_detail::sections(recorded, &selection));
    sections.push(Section::new("others", "Other cases", others(&comparisons[1..])));
    page(&format!("Wattle: {}", first.scenario), &lead, &sections)
}

/// The runs, frontiers and bounds of a comparison over energy, as an SVG file.
#[must_use]
pub fn comparison_figure(comparison: &Comparison) -> String {
    let families = families(comparison);
    let bounds = &comparison.bounds;
    let limit = Limit { tight: &bounds.frontier, alone: &bounds.alone };
    let (curves, unit) = curves(comparison, &families, &[], counted_kwh, "Energy");
    frontier_plot::figure(&heading(comparison), &curves, Some(limit), "Energy", unit)
}

/// The other cases, collapsed.
fn others(comparisons: &[Comparison]) -> Markup {
    html! {
        @for comparison in comparisons {
            @let claims = claims(comparison);
            details {
                summary { (heading(comparison)) }
                (headline(comparison, &families(comparison)))
                (case(comparison, &[]))
                @if !claims.0.is_empty() {
                    h3 { "Claimed, and measured here" }
                    (claims)
                }
            }
        }
    }
}

/// `876 jobs on 16 nodes of 8 a100.`
fn cluster(recorded: &[Recorded]) -> Option<String> {
    let recording = &recorded.first()?.recording;
    let node = recording.nodes.first()?;
    Some(format!(
        "{} on {} of {} {}.",
        pluralize(recording.jobs.len(), "job"),
        pluralize(recording.nodes.len(), "node"),
        node.gpus,
        node.gpu_type
    ))
}

fn case(comparison: &Comparison, shown: &[usize]) -> Markup {
    let families = families(comparison);
    let policies: Vec<(&str, usize)> = families.iter().copied().zip(0..).collect();
    let orders = match comparison.seeds.len() {
        1 => "one order of jobs".to_owned(),
        n => format!("{n} orders of jobs: the first with marks, the others as thin lines"),
    };
    let bounds = &comparison.bounds;
    let limit = Limit { tight: &bounds.frontier, alone: &bounds.alone };
    let has_carbon = comparison.policies.iter().any(|run| carbon(run).is_some());
    let carbon_limit = Limit { tight: &bounds.carbon_frontier, alone: &[] };
    let carbon_limit = (!bounds.carbon_frontier.is_empty()).then_some(carbon_limit);
    html! {
        p { (inputs(comparison)) " " (comparison.policies.len()) " runs, " (orders) "." }
        (plot(comparison, &families, shown, counted_kwh, Some(limit), "Energy"))
        @if has_carbon { (plot(comparison, &families, shown, carbon, carbon_limit, "Emissions")) }
        (distances(comparison, &families))
        (equal_budget::draw(comparison, &policies))
        (waterfall::draw(comparison, &policies))
        @if !comparison.notes.is_empty() {
            ul.note { @for note in &comparison.notes { li { (note) } } }
        }
    }
}

fn carbon(run: &Swept) -> Option<f64> {
    run.counted_kg
}

/// The best policy at equal energy, its lead, and its distance to the bound.
fn headline(comparison: &Comparison, families: &[&str]) -> Markup {
    let against = |family: &str| {
        let all = comparison.summary.iter().filter(move |summary| summary.policy == family);
        all.filter_map(|s| Some((&s.baseline, s.spread.as_ref()?))).collect::<Vec<_>>()
    };
    // The mean logarithm of the ratios to the other policies.
    let lead = |family: &str| {
        let all = against(family);
        let sum: f64 = all.iter().map(|(_, spread)| spread.geometric_mean.ln()).sum();
        (!all.is_empty()).then(|| sum / all.len() as f64)
    };
    // A policy that does not reach all energies of another is not ahead of it everywhere.
    let reaches_all = |family: &str| {
        let mut own = comparison.summary.iter().filter(|summary| summary.policy == family);
        own.all(|summary| summary.not_reachable == 0)
    };
    let ahead = families.iter().filter(|family| reaches_all(family));
    let ahead = ahead.filter_map(|family| Some((*family, lead(family)?)));
    let best = ahead.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, lead)| *lead > 0.0);
    let Some((best, _)) = best else {
        return html! {
            @if families.len() > 1 {
                p.headline { "No policy is ahead at all energies." }
            }
        };
    };
    html! {
        p.headline {
            "Most ahead at equal energy, from 1.1 times the others' least on, is "
            strong { (best) } ": jobs take "
            @for (i, (baseline, spread)) in against(best).into_iter().enumerate() {
                @if i > 0 { ", " }
                (ratios::spread(spread))
                @if i == 0 { " times as long" }
                " under " (baseline)
            }
            "."
            @if let Some(above) = above_bound(comparison, best) {
                " Its own jobs take " (ratios::spread(&above)) " times as long as the lower bound."
            }
        }
    }
}

fn above_bound(comparison: &Comparison, family: &str) -> Option<RatioSpread> {
    let above = comparison.above_bound.iter().filter(|above| above.policy == family);
    RatioSpread::of(above.filter_map(|above| above.ratio))
}

fn plot(
    comparison: &Comparison,
    families: &[&str],
    shown: &[usize],
    total: fn(&Swept) -> Option<f64>,
    limit: Option<Limit<'_>>,
    quantity: &str,
) -> Markup {
    let (curves, unit) = curves(comparison, families, shown, total, quantity);
    let unfinished =
        comparison.policies.iter().filter(|run| run.outcome.finished < run.outcome.jobs).count();
    html! {
        figure.frontier {
            figcaption {
                "Completion time over " (quantity.to_lowercase())
                ": lower and further left is better. Marks are runs, lines are frontiers, and faint "
                "marks are runs dominated by another run of the same policy. Dotted lines continue a "
                "frontier beyond its fastest run."
                @if let Some(limit) = limit {
                    " The grey area is infeasible: the lower bound (of the first order) knows the "
                    "future and resizes jobs at no cost"
                    @if limit.alone.is_empty() {
                        ", and delays jobs to the cleanest hours."
                    } @else {
                        ". The dashed line is the bound without contention."
                    }
                }
            }
            (frontier_plot::draw(&curves, limit, quantity, unit))
            @if unfinished > 0 {
                p.note { (unfinished) " runs did not finish all jobs and are not shown." }
            }
        }
    }
}

/// A curve for each policy, and the unit of its totals.
fn curves<'a>(
    comparison: &Comparison,
    families: &[&'a str],
    shown: &[usize],
    total: fn(&Swept) -> Option<f64>,
    quantity: &str,
) -> (Vec<Curve<'a>>, Unit) {
    let most = comparison.policies.iter().filter_map(total).fold(0.0, f64::max);
    let unit = if quantity == "Energy" { Unit::energy(most) } else { Unit::carbon(most) };
    let curves = families.iter().enumerate();
    let curves =
        curves.map(|(slot, family)| curve(comparison, family, slot, shown, total, unit)).collect();
    (curves, unit)
}

fn curve<'a>(
    comparison: &Comparison,
    family: &'a str,
    slot: usize,
    shown: &[usize],
    total: fn(&Swept) -> Option<f64>,
    unit: Unit,
) -> Curve<'a> {
    let first = comparison.seeds.first().copied().unwrap_or(0);
    let best = frontier(comparison, family, first, total);
    let is_best =
        |index: usize| best.iter().flat_map(Frontier::points).any(|point| point.setting == index);
    let runs = comparison.policies.iter().enumerate().filter(|(_, run)| {
        run.family == family && run.order == first && run.outcome.finished == run.outcome.jobs
    });
    let mut runs: Vec<Run> = runs
        .filter_map(|(index, run)| {
            let (total, jct_s) = (total(run)?, run.outcome.jct_s_mean?);
            let best = is_best(index);
            let dominated = if best { "" } else { " (dominated by another run of the policy)" };
            let title = caption(run, total, unit) + dominated;
            Some(Run { total, jct_s, title, best, selected: shown.contains(&index) })
        })
        .collect();
    runs.sort_by(|a, b| a.total.total_cmp(&b.total));
    let others = comparison.seeds.iter().skip(1).filter_map(|order| {
        let frontier = frontier(comparison, family, *order, total)?;
        Some(frontier.points().iter().map(|point| (point.total, point.jct_s)).collect())
    });
    Curve { name: family, slot, runs, others: others.collect() }
}

/// The range of each policy, and its distance to the bound.
fn distances(comparison: &Comparison, families: &[&str]) -> Markup {
    let mut table =
        Table::new(&["policy", "runs", "energy", "mean JCT", "ratio to the lower bound"]);
    let range = |range: Option<(f64, f64)>, unit: fn(f64) -> Unit| {
        cell(range.map(|(low, high)| {
            let unit = unit(low);
            format!("{} to {}", number(low / unit.size), unit.format(high))
        }))
    };
    for (slot, family) in families.iter().enumerate() {
        let runs = || comparison.policies.iter().filter(|run| run.family == *family);
        table.row(vec![
            named(slot, family),
            cell(runs().count().to_string()),
            range(extremes(runs().map(|run| run.counted_kwh)), Unit::energy),
            range(extremes(runs().filter_map(|run| run.outcome.jct_s_mean)), Unit::hours),
            above_bound(comparison, family)
                .map_or_else(|| cell(None::<String>), |above| ratios::spread(&above)),
        ]);
    }
    let bounds = &comparison.bounds;
    html! {
        h3 { "Ranges" }
        p {
            "The lower bounds on these jobs are "
            (Unit::energy(bounds.energy_kwh).format(bounds.energy_kwh)) " of energy and a mean "
            "completion time of " (duration(bounds.jct_s_mean)) "."
        }
        (table)
    }
}

fn extremes(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range: Option<(f64, f64)>, value| {
        Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
    })
}

/// Published claims next to this comparison.
fn claims(comparison: &Comparison) -> Markup {
    let mut evidence = Evidence { large: comparison.scenario == "eaco-64", ..Evidence::default() };
    for summary in &comparison.summary {
        let (policy, baseline) = (summary.policy.as_str(), summary.baseline.as_str());
        evidence.equal_energy.extend(summary.spread.map(|spread| (policy, baseline, spread)));
        let carbon = summary.spread_carbon;
        evidence.equal_carbon.extend(carbon.map(|spread| (policy, baseline, spread)));
    }
    for family in families(comparison) {
        // The first run of a policy that is swept over clocks is at the top clock.
        let top = |order: &u64| {
            let mut runs = comparison.policies.iter();
            let first = runs.find(|run| run.family == family && run.order == *order);
            first.filter(|run| run.outcome.policy.contains('@'))
        };
        let runs: Vec<&Swept> = comparison.seeds.iter().filter_map(top).collect();
        evidence.untuned.push(UntunedRuns {
            policy: family,
            // The claims are about the energy of whole nodes.
            energy_kwh: match comparison.accounting {
                Accounting::AboveIdle => Vec::new(),
                _ => runs.iter().map(|run| run.counted_kwh).collect(),
            },
            outcomes: runs.iter().map(|run| &run.outcome).collect(),
        });
    }
    claims::draw(&evidence)
}
