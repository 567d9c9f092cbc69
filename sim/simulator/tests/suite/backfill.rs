//! Backfilling in simulations: time limits and priorities of a trace, drawn limits, and the note that states them.

use wattle_baselines::policy;
use wattle_simulator::{PolicyOutcome, RunOptions, Scenario, run_with, trace};
use wattle_world::World;

fn run(text: &str, name: &str, seed: u64) -> PolicyOutcome {
    let world = World::builtin();
    let trace = trace::parse("t.csv", text.as_bytes()).unwrap();
    let scenario = Scenario::from_trace(&world, &trace, &"1x4:v100".parse().unwrap(), seed);
    run_with(&world, &scenario.unwrap(), &*policy(name).unwrap(), &RunOptions::default()).unwrap()
}

/// The head waits from 10 s to 1,000 s for all four GPUs. Two jobs of one GPU arrive behind it; both run for 100 s, but
/// only the limit of the first ends before the head's start.
const LIMITED: &str = "job_id,submit_s,duration_s,num_gpus,time_limit_s\n\
    running,0,1000,2,1000\nhead,10,100,4,200\nshort,20,100,1,200\nlong,30,100,1,2000\n";

#[test]
fn limits_of_the_trace_decide_which_job_is_backfilled() {
    let backfill = run(LIMITED, "backfill", 7);
    // 1,000; head 1,100 - 10; short 120 - 20; long 1,200 - 30.
    assert_eq!(backfill.jct_s_mean, Some((1_000.0 + 1_090.0 + 100.0 + 1_170.0) / 4.0));
    assert_eq!(backfill.notes, ["time limits as in the trace; order: first come, first served"]);
    let fifo = run(LIMITED, "fifo", 7);
    assert_eq!(fifo.jct_s_mean, Some((1_000.0 + 1_090.0 + 1_180.0 + 1_170.0) / 4.0));
    assert!(fifo.notes.is_empty(), "FIFO reads no limits: {:?}", fifo.notes);
}

#[test]
fn priorities_of_the_trace_order_the_queue_of_backfill_alone() {
    let text = "job_id,submit_s,duration_s,num_gpus,time_limit_s,priority\n\
        running,0,100,4,100,\nlate,10,300,4,300,5\nurgent,20,50,4,60,900\n";
    let backfill = run(text, "backfill", 7);
    // 100; urgent 150 - 20; late 450 - 10.
    assert_eq!(backfill.jct_s_mean.map(|mean| (3.0 * mean).round()), Some(100.0 + 130.0 + 440.0));
    assert_eq!(backfill.notes, ["time limits as in the trace; order: priorities of the trace"]);
    let fifo = run(text, "fifo", 7);
    assert_eq!(fifo.jct_s_mean.map(|mean| (3.0 * mean).round()), Some(100.0 + 390.0 + 430.0));
}

#[test]
fn missing_limits_are_drawn_with_the_seed_and_the_note_states_it() {
    let rows: String = (0..60)
        .map(|i| format!("j{i},{},{},{}\n", 40 * i, 300 + 137 * (i % 7), 1 + i % 4))
        .collect();
    let text = format!("job_id,submit_s,duration_s,num_gpus\n{rows}");
    let drawn = run(&text, "backfill", 7);
    assert_eq!(
        drawn.notes,
        [
            "time limits drawn, among 20 round values up to 24 h as users choose them (Tsafrir, Etsion, Feitelson, \
          JSSPP 2005); order: first come, first served"
        ]
    );
    assert_eq!(run(&text, "backfill", 7), drawn);
    assert_ne!(run(&text, "backfill", 8).jct_s_mean, drawn.jct_s_mean, "other limits");
    assert!(drawn.jct_s_mean < run(&text, "fifo", 7).jct_s_mean);
    let one = "job_id,submit_s,duration_s,num_gpus,time_limit_s\nx,0,60,1,600\ny,0,60,1,\n";
    assert!(run(one, "backfill", 7).notes[0].starts_with("time limits drawn for 1 of 2 jobs, "));
}
