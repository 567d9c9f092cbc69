//! `wattle capacity` on small traces: its answer, figures and verdict.

use std::fmt::Write as _;
use std::sync::OnceLock;

use wattle_common::Power;
use wattle_saving::estimate::{
    Answer, CapacityEstimate, SavingError, SavingInput, SavingOptions, Sizes, capacity,
};
use wattle_saving::report::capacity_figure;
use wattle_simulator::trace::{self, Trace};
use wattle_simulator::{Restartable, Scenario};
use wattle_world::World;

use crate::estimate::recorded;
use crate::html::texts_of;

/// Power of two nodes of eight A100s at their default caps.
const MOST_KW: f64 = 8.4;

fn study(
    trace: &Trace,
    limit_kw: f64,
    restartable: &Restartable,
    sleep: bool,
) -> Result<CapacityEstimate, SavingError> {
    let options = SavingOptions { seeds: 1, threads: 2, sleep, ..SavingOptions::default() };
    study_with(trace, limit_kw, restartable, options)
}

fn study_with(
    trace: &Trace,
    limit_kw: f64,
    restartable: &Restartable,
    options: SavingOptions,
) -> Result<CapacityEstimate, SavingError> {
    let (world, cluster) = (World::builtin(), "2x8:a100".parse().unwrap());
    let (world, cluster) = (&world, &cluster);
    let input = SavingInput { world, trace, cluster, carbon: None, prices: None, restartable };
    let mut last = (0, 0);
    let limit = Power::from_w_f64(1e3 * limit_kw);
    let made = capacity(&input, limit, options, &mut |done, of| last = (done, of));
    assert!(made.is_err() || (last.0 == last.1 && last.0 > 0), "{last:?}");
    made
}

/// A dozen jobs with recorded starts and ends.
fn dozen() -> Trace {
    let mut trace = recorded();
    trace.keep_first(12);
    trace
}

/// The study that several tests read.
fn plain() -> &'static CapacityEstimate {
    static MADE: OnceLock<CapacityEstimate> = OnceLock::new();
    MADE.get_or_init(|| study(&dozen(), MOST_KW, &Restartable::None, true).unwrap())
}

#[test]
fn nodes_and_least_limit_are_two_forms_of_one_answer() {
    let made = plain();
    assert!(made.recorded);
    assert_eq!((made.nodes, made.answer), (2, Answer::Found));
    let fits = 2.0 * made.limit_kw / made.least_limit_kw;
    assert_eq!(made.more_nodes, (fits + 1e-6).floor() as i64 - 2, "{fits}");
    assert!(made.least_limit_kw < MOST_KW && made.more_nodes > 0, "{made:?}");
    let (low, high) = (made.more_nodes_low, made.more_nodes_high);
    assert!(low <= fits - 2.0 && fits - 2.0 <= high, "{low} {fits} {high}");
}

#[test]
fn wattle_completes_jobs_in_time_below_the_least_limit() {
    let made = plain();
    assert!(made.exceeded_s <= 300.0, "nodes are awake at the start: {} s", made.exceeded_s);
    assert!(made.wattle.jct_s_mean < 1.1 * made.baseline.jct_s_mean, "{made:?}");
    assert!(made.wattle.energy_kwh < made.baseline.energy_kwh, "{made:?}");
    // The curve falls; the least limit lies where it crosses the target.
    let (lowest, highest) = (made.curve[0], *made.curve.last().unwrap());
    assert!(lowest.0 < highest.0 && lowest.1 > highest.1, "{:?}", made.curve);
    assert!(highest.1 <= made.baseline.jct_s_mean);
    assert!(
        made.curve.iter().all(|point| point.1.is_finite()) && !made.fifo.is_empty(),
        "{made:?}"
    );
    // No job may be resized here. Without caps a limit counts each used GPU at its default cap.
    let parts = made.parts.unwrap();
    assert!(parts.settings > 0.0, "{parts:?}");
    assert!(parts.sizes.is_none() && parts.sleep.is_some(), "{parts:?}");
}

#[test]
fn the_screen_begins_with_the_verdict_and_has_the_assumptions() {
    let made = plain();
    let screen = made.to_screen();
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    assert!(screen.starts_with("Below 8.40 kW Wattle runs "), "{screen}");
    let flowing = screen.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        "90 % interval: ",
        "as recorded",
        "order of jobs",
        "sleeping nodes",
        "at the same load",
        "does not state it: no job",
    ] {
        assert!(flowing.contains(text), "{text} in\n{screen}");
    }
    let json: serde_json::Value = serde_json::from_str(&made.to_json()).unwrap();
    for key in [
        "trace",
        "cluster",
        "nodes",
        "limit_kw",
        "answer",
        "more_nodes",
        "more_nodes_low",
        "more_nodes_high",
        "least_limit_kw",
        "baseline",
        "wattle",
        "parts",
        "curve",
        "fifo",
        "assumptions",
    ] {
        assert!(json.get(key).is_some(), "{key} in {json}");
    }
    let figure = capacity_figure(made);
    let texts = texts_of(&format!("<!DOCTYPE html>{figure}"), &["text"]);
    for expected in ["wattle", "fifo", "as recorded", "Power limit, kW"] {
        assert!(texts.iter().any(|text| text == expected), "{expected}: {texts:?}");
    }
}

#[test]
fn each_answer_has_its_verdict() {
    let verdict = |estimate: CapacityEstimate| estimate.verdict();
    let made = plain().clone();
    let none = CapacityEstimate { answer: Answer::NotReached, parts: None, ..made.clone() };
    assert!(none.to_screen().contains("(--restartable)"), "{}", none.to_screen());
    let may_stop = CapacityEstimate { can_stop: true, ..none.clone() };
    assert!(!may_stop.to_screen().contains("(--restartable)"), "{}", may_stop.to_screen());
    assert!(verdict(none).starts_with("No more nodes fit below 8.40 kW: at no limit "));
    let fewer = CapacityEstimate { more_nodes: -1, least_limit_kw: 12.0, ..made.clone() };
    assert!(verdict(fewer).starts_with("8.40 kW suffices for 1 of 2 nodes: all need 12.0 kW "));
    let same = CapacityEstimate { more_nodes: 0, ..made.clone() };
    assert!(verdict(same).starts_with("Below 8.40 kW Wattle runs 2 nodes, no more, and jobs "));
    let least = CapacityEstimate { answer: Answer::AtLeast, more_nodes: 3, ..made };
    assert!(
        verdict(least).starts_with("Below 8.40 kW Wattle runs at least 5 nodes, 3 more (+150 %)")
    );
}

#[test]
fn jobs_that_never_wait_complete_as_soon_under_both() {
    let text = "job_id,submit_s,duration_s,num_gpus,vc\na,0,7200,4,x\nb,60,32,99,x\n";
    let trace = trace::parse("two.csv", text.as_bytes()).unwrap();
    let made = study(&trace, MOST_KW, &Restartable::None, true).unwrap();
    assert_ne!(made.answer, Answer::NotReached, "{made:?}");
    // The cluster has 16 GPUs.
    assert!(made.to_screen().contains("1 job left out"), "{}", made.to_screen());
}

#[test]
fn a_trace_without_a_schedule_is_compared_with_fifo() {
    let text =
        "job_id,submit_s,duration_s,num_gpus,vc\na,0,3600,8,x\nb,60,1800,4,x\nc,60,900,8,x\n";
    let trace = trace::parse("three.csv", text.as_bytes()).unwrap();
    let made = study(&trace, MOST_KW, &Restartable::None, true).unwrap();
    assert!(!made.recorded);
    assert!(made.parts.is_none_or(|parts| parts.sizes.is_none()), "{made:?}");
    let screen = made.to_screen().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        screen.contains("FIFO with exclusive GPUs")
            && screen.contains("under FIFO without a limit"),
        "{screen}"
    );
    // Twice the limit has place for twice the nodes; the nodes' own least limit stays.
    let twice = study(&trace, 2.0 * MOST_KW, &Restartable::None, true).unwrap();
    assert!((twice.least_limit_kw - made.least_limit_kw).abs() < 1e-6);
    let fits = 2.0 * twice.limit_kw / twice.least_limit_kw;
    assert!(
        twice.answer == Answer::NotReached || twice.more_nodes == (fits + 1e-6).floor() as i64 - 2
    );
}

#[test]
fn a_load_scales_the_arrivals_of_the_jobs() {
    let mut text = String::from("job_id,submit_s,duration_s,num_gpus,vc\n");
    for i in 0..8 {
        let _ = writeln!(text, "j{i},{},{},{},x", 1_200 * i, 1_800 + 300 * (i % 3), 4 << (i % 2));
    }
    let mut trace = trace::parse("eight.csv", text.as_bytes()).unwrap();
    let (world, cluster) = (World::builtin(), "2x8:a100".parse().unwrap());
    let natural = Scenario::from_trace(&world, &trace, &cluster, 7).unwrap().load.unwrap();
    let options = |load| SavingOptions { seeds: 1, threads: 2, load, ..SavingOptions::default() };
    let at = |trace: &Trace, load: Option<f64>| {
        study_with(trace, MOST_KW, &Restartable::All, options(load)).unwrap()
    };
    let traced = at(&trace, None);
    let busy = at(&trace, Some(4.0 * natural));
    assert!(busy.baseline.wait_s_mean > traced.baseline.wait_s_mean + 600.0, "{busy:?}");
    assert!(busy.baseline.jct_s_mean > traced.baseline.jct_s_mean + 600.0, "{busy:?}");
    let screen = busy.to_screen().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(screen.contains(&format!("scaled to a load of {}", 4.0 * natural)), "{screen}");
    // The same as of a trace whose jobs arrive in a quarter of the time.
    for job in &mut trace.jobs {
        job.submit /= 4;
    }
    let quick = at(&trace, None);
    assert_eq!((quick.baseline, quick.wattle), (busy.baseline, busy.wattle));
    assert_eq!((quick.curve, quick.fifo), (busy.curve, busy.fifo));
}

#[test]
fn jobs_that_may_stop_keep_their_sizes_where_sizes_are_those_of_the_trace() {
    let sized = |sizes| {
        let options = SavingOptions { seeds: 1, threads: 2, sizes, ..SavingOptions::default() };
        study_with(&dozen(), MOST_KW, &Restartable::All, options).unwrap()
    };
    let (kept, smaller) = (sized(Sizes::Trace), sized(Sizes::Smaller));
    assert!(kept.parts.unwrap().sizes.is_none() && smaller.parts.unwrap().sizes.is_some());
    let screen = kept.to_screen();
    for text in ["no job is resized (--sizes)", "Sizes are those of the trace"] {
        assert!(screen.contains(text) && !smaller.to_screen().contains(text), "{screen}");
    }
    assert!(kept.curve != smaller.curve, "{kept:?}");
    // Where sizes may be larger than requested, jobs end no later without a limit.
    let any = sized(Sizes::Any);
    let fastest = |made: &CapacityEstimate| made.curve.last().unwrap().1;
    assert!(fastest(&any) < fastest(&smaller), "{:?} {:?}", any.curve, smaller.curve);
}

#[test]
fn a_load_is_refused_where_the_trace_records_a_schedule() {
    let options = SavingOptions { load: Some(0.5), ..SavingOptions::default() };
    let refused = study_with(&dozen(), MOST_KW, &Restartable::None, options).unwrap_err();
    assert!(refused.to_string().contains("leave --load out"), "{refused}");
    let options = SavingOptions { load: Some(0.0), ..SavingOptions::default() };
    let text = "job_id,submit_s,duration_s,num_gpus,vc\na,0,3600,8,x\nb,60,1800,4,x\n";
    let trace = trace::parse("two.csv", text.as_bytes()).unwrap();
    let refused = study_with(&trace, MOST_KW, &Restartable::None, options).unwrap_err();
    assert!(refused.to_string().contains("invalid load 0"), "{refused}");
}

#[test]
fn a_limit_below_the_draw_of_awake_nodes_is_refused() {
    let refused = study(&recorded(), 2.5, &Restartable::None, false).unwrap_err().to_string();
    assert!(refused.contains("2.50 kW") && refused.contains("without --no-sleep"), "{refused}");
}
