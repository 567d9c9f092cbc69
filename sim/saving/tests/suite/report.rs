//! Report pages are well-formed, escaped, reproducible and self-contained.

use std::time::Duration;

use wattle_common::{Budget, Power};
use wattle_placer::policy;
use wattle_saving::report::{Recorded, simulation_figure, simulation_page};
use wattle_simulator::{RunOptions, Scenario, gather, generator, trace};
use wattle_world::World;

use crate::html::{assert_self_contained, texts_of};

/// A recorded run of the policy called `name`.
fn recorded(
    world: &World,
    scenario: &Scenario,
    name: &str,
    slot: usize,
    options: &RunOptions,
) -> Recorded {
    let policy = policy(name).unwrap();
    Recorded::run(world, scenario, policy.as_ref(), slot, options, &mut |_, _| ()).unwrap()
}

#[test]
fn a_simulation_page_is_complete_and_escaped() {
    let world = World::builtin();
    let text = "job_id,submit_s,duration_s,num_gpus,vc\na,0,3600,8,x\nb,60,1800,4,x\nc,70,9,4,x\n";
    let trace = trace::parse("<script>alert('x')</script>&\".csv", text.as_bytes()).unwrap();
    let mut scenario =
        Scenario::from_trace(&world, &trace, &"1x8:v100".parse().unwrap(), 7).unwrap();
    scenario.jobs[1].deadline = Some(Duration::from_secs(5_000));
    let options = RunOptions::default();
    let run = |name: &str, slot| recorded(&world, &scenario, name, slot, &options);
    let runs = [run("fifo", 0), run("eaco", 1)];
    let outcomes = runs.iter().map(|run| run.outcome.clone()).collect();
    let under = ["20 kWh in 24 h <here>".to_owned()];
    let page = simulation_page(&gather(&scenario, outcomes).into(), &runs, &under);
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
    let runs = [recorded(&world, &scenario, "fifo", 0, &options)];
    let outcomes = runs.iter().map(|run| run.outcome.clone()).collect();
    let page = simulation_page(&gather(&scenario, outcomes).into(), &runs, &[]);
    assert!(page.contains("1 of 2") && page.contains("last completion"), "b never fits");
    assert!(page.contains("<li>fifo: peak 0."), "peak power");
    assert!(page.contains("above the limit for 0"), "time above the limit");
}

/// Two jobs in turn on one GPU under a power limit: a figure has the power below its limit, and each job's name
/// in its rectangle.
#[test]
fn a_figure_is_one_picture_with_power_limit_and_jobs() {
    let world = World::builtin();
    let text = "job_id,submit_s,duration_s,num_gpus,vc\nada,0,3600,1,x\nbob,60,1800,1,x\n";
    let trace = trace::parse("two.csv", text.as_bytes()).unwrap();
    let scenario = Scenario::from_trace(&world, &trace, &"1x1:v100".parse().unwrap(), 7).unwrap();
    let limit = Budget { power_mw: Some(Power::from_w(600)), ..Budget::default() };
    let options = RunOptions { budget: Some(limit), ..RunOptions::default() };
    let runs = [recorded(&world, &scenario, "fifo", 0, &options)];
    let study = gather(&scenario, vec![runs[0].outcome.clone()]).into();
    let figure = simulation_figure(&study, &runs);
    assert_eq!(figure, simulation_figure(&study, &runs));
    assert!(figure.starts_with("<svg xmlns=") && !figure.contains("<div"), "{figure}");
    assert_self_contained(&figure.replace("http://www.w3.org/2000/svg", ""));
    let texts = texts_of(&format!("<!DOCTYPE html>{figure}"), &["text"]);
    assert_eq!(texts[0], "2 jobs on 1x1:v100 under fifo");
    for expected in ["Power of all nodes, W", "limit 600\u{a0}W", "ada", "bob", "n0"] {
        assert!(texts.iter().any(|text| text == expected), "{expected}: {texts:?}");
    }
    // The time is numbered once, below the map.
    assert_eq!(texts.iter().filter(|text| *text == "0").count(), 2, "{texts:?}");
}

#[test]
fn a_large_simulation_page_has_a_limited_size() {
    let world = World::builtin();
    let drawn = generator::generate(4_000, 7);
    let cluster = "40x8:v100".parse().unwrap();
    let mut scenario = Scenario::from_trace(&world, &drawn, &cluster, 7).unwrap();
    scenario.set_load(&world, 1.0).unwrap();
    let runs = [recorded(&world, &scenario, "fifo", 0, &RunOptions::default())];
    let outcomes = runs.iter().map(|run| run.outcome.clone()).collect();
    let page = simulation_page(&gather(&scenario, outcomes).into(), &runs, &[]);
    texts_of(&page, &[]);
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
    assert!(page.contains("8 more nodes are not drawn"));
    assert!(page.contains("250 of 4,000 jobs"));
}
