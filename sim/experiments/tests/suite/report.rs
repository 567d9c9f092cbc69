//! The page of a comparison is well-formed, reproducible and self-contained.

use std::sync::Arc;
use std::time::Duration;

use wattle_experiments::compare::{
    Accounting, Case, CompareOptions, Comparer, JobSequences, Knobs, Neighbours, Surfaces, Worlds,
};
use wattle_experiments::report::{comparison_figure, comparison_page, record};
use wattle_simulator::{CarbonSeries, Forecast, Lengths, Scenario, SimJob, Work};
use wattle_world::World;

use crate::html::{assert_self_contained, texts_of};

fn elastic_jobs() -> Scenario {
    let job = |i: u64| {
        let id = format!("job-{i}").parse().unwrap();
        let workload = ["eaco-resnet50", "eaco-resnet18"][i as usize % 2].parse().unwrap();
        let work = Work::Steps(20_000 + 9_000 * (i % 5));
        SimJob::new(id, Duration::from_secs(i * 900), 1 << (i % 4), workload, work)
    };
    Scenario {
        carbon: Some(CarbonSeries::parse("c", "at_s,g_per_kwh\n0,400\n3600,100\n").unwrap()),
        ..Scenario::new("test", "2x8:v100".parse().unwrap(), (0..14).map(job).collect(), 7)
    }
}

#[test]
fn a_comparison_page_is_complete() {
    let worlds = Worlds::new(World::builtin());
    let mut orders = vec![elastic_jobs(); 2];
    orders[1].set_order(1);
    let case = Case {
        scenario: "small",
        load: 0.7,
        accounting: Accounting::SleepAll,
        world: Neighbours::Alone,
        workload: "",
        deadlines: false,
        jobs: Arc::new(JobSequences::open(orders)),
    };
    let options = CompareOptions {
        forecast: Forecast::default(),
        budget: None,
        events: Vec::new(),
        policies: ["powerflow", "fifo"].map(str::to_owned).to_vec(),
        surfaces: Surfaces::Oracle,
        lengths: Lengths::Known,
        knobs: Knobs::Few,
        bound: None,
        threads: 2,
    };
    let mut comparer = Comparer::new(&worlds, options);
    let mut comparison = comparer.compare(&case, &mut |_, _| ()).unwrap();
    comparison.waterfalls.push(comparer.waterfall(&case, "powerflow", &mut |_, _| ()).unwrap());
    let recorded = record(worlds.of(case.world), &case, &comparison).unwrap();
    assert_eq!(recorded.len(), 2);
    for run in &recorded {
        // The second run equals the first.
        let same = comparison.policies.iter().filter(|first| first.outcome == run.outcome);
        assert_eq!(same.count(), 1, "{}", run.name);
    }
    let comparisons = [comparison.clone(), comparison];
    let page = comparison_page(&comparisons, &recorded);
    assert_eq!(page, comparison_page(&comparisons, &recorded));
    assert_self_contained(&page);
    let headings = texts_of(&page, &["h1", "h2"]);
    assert_eq!(
        headings,
        [
            "Wattle: small",
            "small: load 0.70, energy of whole nodes, unused ones asleep",
            "Claimed, and measured here",
            "One run of each policy",
            "Power and use over time",
            "What each node ran",
            "Jobs, and why they started",
            "Other cases",
        ]
    );
    // Energy and carbon, twice; power, busy GPUs, the queue.
    assert_eq!(texts_of(&page, &["figcaption"]).len(), 4 + 3);
    let titles = texts_of(&page, &["title"]);
    assert!(titles.iter().any(|title| title.contains("powerflow at price")), "{titles:?}");
    assert!(
        titles.iter().any(|title| title.starts_with("job-3 (eaco-resnet18): 8 GPUs")),
        "{titles:?}"
    );
    // One ring for each chosen run, in the plots over energy and over carbon of the first alone.
    assert_eq!(page.matches("class=\"ring\"").count(), 4);
    // Two bounds and three conditions, in the first case and among the others.
    assert_eq!(page.matches("<svg class=\"bar ").count(), 2 * 5);
    assert!(page.contains("What keeps powerflow from the bound"));
    assert!(page.contains("first in the queue, on the first free GPUs in node order"));
    assert!(page.contains("least on, is <strong>powerflow</strong>"));
    let figure = comparison_figure(&comparisons[0]);
    assert!(figure.starts_with("<svg xmlns=") && !figure.contains("<div"), "{figure}");
    let texts = texts_of(&format!("<!DOCTYPE html>{figure}"), &["text"]);
    assert!(texts[0].starts_with("small: load 0.70"), "{texts:?}");
    for expected in ["lower bound", "powerflow", "fifo", "Energy, kWh"] {
        assert!(texts.iter().any(|text| text == expected), "{expected}: {texts:?}");
    }
}
