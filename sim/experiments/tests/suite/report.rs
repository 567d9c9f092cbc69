//! Report pages are well-formed, escaped, reproducible and self-contained.

use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::GpuRequest;
use wattle_common::{Budget, Power};
use wattle_experiments::compare::{
    Accounting, Case, CompareOptions, Comparer, Knobs, Neighbours, Orders, Surfaces, Worlds,
};
use wattle_experiments::report::{Recorded, comparison_page, record, simulation_page};
use wattle_simulator::{
    CarbonSeries, Forecast, Lengths, RunOptions, Scenario, SimJob, Work, gather, generator, trace,
};
use wattle_world::World;

/// The text of each element of these names, in order; panics on unbalanced tags, invalid entities
/// and unquoted attributes.
fn texts_of(page: &str, names: &[&str]) -> Vec<String> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    let mut open: Vec<(&str, String)> = Vec::new();
    let mut found = Vec::new();
    while let Some(at) = rest.find('<') {
        let text = &rest[..at];
        for (_, entity) in text.match_indices('&').map(|(i, _)| text.split_at(i)) {
            let end = entity.find(';').unwrap_or_else(|| panic!("a bare & in {text:.80}"));
            assert!(end <= 6, "no entity: {entity:.20}");
        }
        open.iter_mut().for_each(|(_, inner)| inner.push_str(text));
        let end = at + rest[at..].find('>').unwrap();
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        assert!(tag.matches('"').count().is_multiple_of(2), "quotes in <{tag}>");
        if let Some(name) = tag.strip_prefix('/') {
            let (opened, inner) = open.pop().unwrap();
            assert_eq!(opened, name, "</{name}> after {inner:.80}");
            if names.contains(&name) {
                found.push(inner.trim().to_owned());
            }
        } else if !["meta", "br"].contains(&tag.split(' ').next().unwrap()) {
            let name = tag.split(' ').next().unwrap();
            if name == "style" || name == "script" {
                let end = rest.find("</").unwrap();
                rest = &rest[end..];
            }
            open.push((name, String::new()));
        }
    }
    assert!(open.is_empty(), "not closed: {:?}", open.iter().map(|(n, _)| n).collect::<Vec<_>>());
    found
}

/// Asserts that a page has no external references and no invalid numbers.
fn assert_self_contained(page: &str) {
    for reference in ["http:", "https:", "src=", "@import", "<link", "<img", "<iframe"] {
        assert!(!page.contains(reference), "{reference}");
    }
    for (at, _) in page.match_indices("url(") {
        assert!(page[at..].starts_with("url(#"), "{:.40}", &page[at..]);
    }
    for broken in ["NaN", "inf%", "\"inf", "-inf"] {
        assert!(!page.contains(broken), "{broken}");
    }
}

fn elastic_jobs() -> Scenario {
    let job = |i: u64| SimJob {
        id: format!("job-{i}").parse().unwrap(),
        submit: Duration::from_secs(i * 900),
        gpus: GpuRequest::exactly(1 << (i % 4)),
        workload: ["eaco-resnet50", "eaco-resnet18"][i as usize % 2].parse().unwrap(),
        work: Work::Steps(20_000 + 9_000 * (i % 5)),
        steps_per_epoch: None,
        deadline: None,
        slack: None,
        duration_estimate: None,
        exclusive: false,
        priority: 0,
        gpu_type: None,
        can_stop: true,
    };
    Scenario {
        trace: "test".to_owned(),
        cluster: "2x8:v100".parse().unwrap(),
        jobs: (0..14).map(job).collect(),
        carbon: Some(CarbonSeries::parse("c", "at_s,g_per_kwh\n0,400\n3600,100\n").unwrap()),
        day_ahead: None,
        prices: None,
        seed: 7,
        workloads: Vec::new(),
        notes: Vec::new(),
        load: None,
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
        jobs: Arc::new(Orders::open(orders)),
    };
    let options = CompareOptions {
        forecast: Forecast::default(),
        budget: None,
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
    assert!(page.contains("head of the queue; first fit in node order"));
    assert!(page.contains("least on, is <strong>powerflow</strong>"));
}

#[test]
fn a_simulation_page_is_complete_and_escaped() {
    let world = World::builtin();
    let text = "job_id,submit_s,duration_s,num_gpus,vc\na,0,3600,8,x\nb,60,1800,4,x\nc,70,9,4,x\n";
    let trace = trace::parse("<script>alert('x')</script>&\".csv", text.as_bytes()).unwrap();
    let mut scenario =
        Scenario::from_trace(&world, &trace, &"1x8:v100".parse().unwrap(), 7).unwrap();
    scenario.jobs[1].deadline = Some(Duration::from_secs(5_000));
    let run = |name: &str, slot| {
        Recorded::run(&world, &scenario, name, slot, &RunOptions::default(), &mut |_, _| ())
            .unwrap()
    };
    let recorded = [run("fifo", 0), run("eaco", 1)];
    let outcomes = recorded.iter().map(|run| run.outcome.clone()).collect();
    let under = ["20 kWh in 24 h <here>".to_owned()];
    let page = simulation_page(&gather(&scenario, outcomes).into(), &recorded, &under);
    assert_self_contained(&page);
    let headings = texts_of(&page, &["h1", "h2"]);
    assert_eq!(headings[0], "Wattle: &lt;script&gt;alert('x')&lt;/script&gt;&amp;&quot;.csv");
    assert_eq!(headings[1..3], ["Policies", "Claimed, and measured here"]);
    // The verdict precedes everything else.
    let verdict = page.find("<p class=\"headline\"><strong>eaco</strong> uses ").unwrap();
    assert!(verdict < page.find("<p class=\"lead\"").unwrap());
    assert!(page[verdict..].contains(" than fifo; a job completes "));
    assert!(!page.contains("</span>asleep"), "the legend of the maps contains only what they show");
    assert!(page.contains("</span>awake, no job"));
    assert!(page.contains("requests 4 GPUs; 0 free"), "the reason of b's wait");
    assert!(page.contains("; 20 kWh in 24 h &lt;here&gt;.</p>"), "the limits of the runs");
    assert!(page.contains("makespan") && !page.contains("jobs finished"));
    // After 3,600 s of a and 1,800 s of its own.
    assert!(page.contains("<small>6.67\u{a0}min too late</small>"), "the delay of b");
}

/// Under a power limit that one job does not fit, the page lists the unfinished job and the peak
/// power.
#[test]
fn unfinished_jobs_and_budget_use_are_listed() {
    let world = World::builtin();
    let text = "job_id,submit_s,duration_s,num_gpus,vc\na,0,3600,1,x\nb,60,1800,8,x\n";
    let trace = trace::parse("two.csv", text.as_bytes()).unwrap();
    let scenario = Scenario::from_trace(&world, &trace, &"1x8:v100".parse().unwrap(), 7).unwrap();
    let limit = Budget { power_mw: Some(Power::from_w(800)), ..Budget::default() };
    let options = RunOptions { budget: Some(limit), ..RunOptions::default() };
    let recorded = [Recorded::run(&world, &scenario, "fifo", 0, &options, &mut |_, _| ()).unwrap()];
    let outcomes = recorded.iter().map(|run| run.outcome.clone()).collect();
    let page = simulation_page(&gather(&scenario, outcomes).into(), &recorded, &[]);
    assert!(page.contains("1 of 2") && page.contains("last completion"), "b never fits");
    assert!(page.contains("<li>fifo: peak 0."), "peak power");
    assert!(page.contains("above the limit for 0"), "time above the limit");
}

#[test]
fn a_large_simulation_page_has_a_limited_size() {
    let world = World::builtin();
    let drawn = generator::generate(4_000, 7);
    let cluster = "40x8:v100".parse().unwrap();
    let mut scenario = Scenario::from_trace(&world, &drawn, &cluster, 7).unwrap();
    scenario.set_load(&world, 1.0).unwrap();
    let recorded =
        [Recorded::run(&world, &scenario, "fifo", 0, &RunOptions::default(), &mut |_, _| ())
            .unwrap()];
    let outcomes = recorded.iter().map(|run| run.outcome.clone()).collect();
    let page = simulation_page(&gather(&scenario, outcomes).into(), &recorded, &[]);
    texts_of(&page, &[]);
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
    assert!(page.contains("8 more nodes are not drawn"));
    assert!(page.contains("250 of 4,000 jobs"));
}
