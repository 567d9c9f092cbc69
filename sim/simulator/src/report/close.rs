//! A closer look at one run of each policy: power, busy cards and queue over time, the map of nodes,
//! the jobs with the reasons for their starts.

use std::fmt::Write;

use super::markup::{Unit, figure, percent};
use super::node_map::{self, Colours, Room};
use super::page::Section;
use super::scale::Scale;
use super::shown::Recorded;
use super::timeline::{self, Strip};
use super::{job_table, table};
use crate::engine::recording::{Level, Recording};
use crate::said::counted;

/// What all maps and tables of a page may hold together, so that it stays below about 3 MB.
const TITLED: usize = 3_600;
const PLAIN: usize = 16_000;
const ROWS: usize = 900;

/// The sections; none without runs. `why_these` says which runs they are.
pub(super) fn sections(runs: &[Recorded], why_these: &str) -> Vec<Section> {
    if runs.is_empty() {
        return Vec::new();
    }
    let horizon_s = runs.iter().map(|run| span_s(&run.recording)).fold(1.0, f64::max);
    let unit = Unit::time(horizon_s);
    let time = Scale::exact(0.0, horizon_s / unit.size, 8);
    let close = format!("<p>{why_these}</p>\n{}", table::outcomes(runs));
    vec![
        Section::new("runs", "One run of each policy", close),
        Section::new("time", "Power and use over time", over_time(runs, &time, unit)),
        Section::new("nodes", "What each node ran", maps(runs, &time, unit)),
        Section::new("jobs", "Jobs, and why they started", jobs(runs)),
    ]
}

fn span_s(recording: &Recording) -> f64 {
    (recording.until_us - recording.from_us) as f64 / 1e6
}

fn over_time(runs: &[Recorded], time: &Scale, unit: Unit) -> String {
    let most = |of: fn(&Level) -> f64| {
        let levels = runs.iter().flat_map(|run| &run.recording.levels);
        levels.map(of).fold(0.0, f64::max)
    };
    let across =
        format!("<p class=\"axis across\">Time since the first job came, {}</p>\n", unit.axis());
    let mut text = String::new();
    let watts = Unit::power(most(|level| level.power_w));
    let power = Scale::from_zero(most(|level| level.power_w) / watts.size, 3);
    let strips = strips(runs, unit, |run| {
        let mean_w = mean(run, |level| level.power_w);
        (
            per_level(run, |level, _| level.power_w / watts.size),
            Vec::new(),
            watts.said(mean_w),
            format!("{}: power of all nodes, mean {}", run.name, watts.said(mean_w)),
        )
    });
    let _ = write!(
        text,
        "<figure><figcaption>Power of all nodes, {}</figcaption>\n{}{across}</figure>\n",
        watts.name,
        timeline::draw(&strips, &power, time)
    );
    let share = Scale::from_zero(100.0, 2);
    let strips = self::strips(runs, unit, |run| {
        let told = format!(
            "{}: GPUs busy, mean {}; nodes awake, mean {} of {}",
            run.name,
            percent(run.outcome.gpu_utilization_mean),
            figure(run.outcome.awake_nodes_mean),
            run.recording.nodes.len()
        );
        let busy = per_level(run, |level, gpus| 100.0 * level.busy_gpus / gpus);
        let nodes = run.recording.nodes.len().max(1) as f64;
        let awake = per_level(run, |level, _| 100.0 * level.awake_nodes / nodes);
        (busy, awake, percent(run.outcome.gpu_utilization_mean), told)
    });
    let _ = write!(
        text,
        "<figure><figcaption>GPUs busy, % (filled), and nodes awake, % (dashed)</figcaption>\n\
         {}{across}</figure>\n",
        timeline::draw(&strips, &share, time)
    );
    let longest = most(|level| level.waiting);
    if longest > 0.0 {
        let waiting = Scale::from_zero(longest, 3);
        let strips = self::strips(runs, unit, |run| {
            let mean = figure(mean(run, |level| level.waiting));
            let told = format!("{}: jobs that wait, mean {mean}", run.name);
            (per_level(run, |level, _| level.waiting), Vec::new(), mean, told)
        });
        let _ = write!(
            text,
            "<figure><figcaption>Jobs that wait</figcaption>\n{}{across}</figure>\n",
            timeline::draw(&strips, &waiting, time)
        );
    }
    text
}

/// Filled values, line, the mean with its unit, and what a pointer is told.
type Drawn = (Vec<f64>, Vec<f64>, String, String);

fn strips(runs: &[Recorded], unit: Unit, of: impl Fn(&Recorded) -> Drawn) -> Vec<Strip<'_>> {
    let strip = |run| {
        let (filled, line, mean, told) = of(run);
        Strip {
            name: &run.family,
            slot: run.slot,
            filled,
            line,
            span: run.recording.level_us as f64 / 1e6 / unit.size,
            end: span_s(&run.recording) / unit.size,
            mean,
            told,
        }
    };
    runs.iter().map(strip).collect()
}

fn per_level(run: &Recorded, of: impl Fn(&Level, f64) -> f64) -> Vec<f64> {
    let gpus: u32 = run.recording.nodes.iter().map(|node| node.gpus).sum();
    run.recording.levels.iter().map(|level| of(level, f64::from(gpus.max(1)))).collect()
}

/// Over the run.
fn mean(run: &Recorded, of: fn(&Level) -> f64) -> f64 {
    let recording = &run.recording;
    let (level_us, span_us) = (recording.level_us, recording.until_us - recording.from_us);
    let sum = (0..).zip(&recording.levels).map(|(i, level)| {
        // The last span ends before it is full.
        let long_us = level_us.min(span_us.saturating_sub(i * level_us));
        of(level) * long_us as f64
    });
    sum.sum::<f64>() / (span_us as f64).max(1.0)
}

fn maps(runs: &[Recorded], time: &Scale, unit: Unit) -> String {
    let colours = Colours::of(runs.iter().map(|run| &run.recording));
    let room = Room { titled: TITLED / runs.len(), plain: PLAIN / runs.len() };
    let across =
        format!("<p class=\"axis across\">Time since the first job came, {}</p>\n", unit.axis());
    let mut text = format!(
        "<p>A row is a GPU, a band a node; time runs to the right. Colours are workloads. A job that \
         shares its GPUs covers the lower part of who was there before.</p>\n{}",
        colours.legend()
    );
    for (i, run) in runs.iter().enumerate() {
        let open = if i == 0 { " open=\"open\"" } else { "" };
        let map = node_map::draw(&run.recording, &colours, time, unit.size, room, i);
        let name = table::named(run.slot, &run.name);
        let _ = write!(text, "<details{open}><summary>{name}</summary>\n{map}{across}</details>\n");
    }
    text
}

fn jobs(runs: &[Recorded]) -> String {
    let rows = (ROWS / runs.len()).clamp(30, 250);
    let mut text =
        "<p>The reasons are the placer's own, as <code>wattle explain</code> gives them \
                    for live jobs.</p>\n"
            .to_owned();
    for run in runs {
        let name = table::named(run.slot, &run.name);
        let _ = write!(
            text,
            "<details><summary>{name}, {}</summary>\n{}{}</details>\n",
            counted(run.recording.jobs.len(), "job"),
            job_table::reasons(&run.recording),
            job_table::draw(&run.recording, rows)
        );
    }
    text
}
