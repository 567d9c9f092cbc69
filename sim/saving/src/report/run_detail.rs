//! One run of each policy in detail: power, busy GPUs and queue over time, the map of nodes, and
//! the jobs with the reasons of their starts.

use maud::{Markup, Render, html};

use super::format::{Unit, number, percent};
use super::frame::{self, Frame, Part};
use super::markers::named;
use super::node_map::{self, Colours, Map, Room};
use super::page::Section;
use super::recorded::Recorded;
use super::scale::Scale;
use super::timeline::{self, Strip};
use super::{job_table, table};
use wattle_simulator::text::pluralize;
use wattle_simulator::{Level, Recording};

/// Most rectangles with tooltips, other rectangles, and job rows of a page. They limit a page to
/// about 3 MB.
const TITLED: usize = 3_600;
const PLAIN: usize = 16_000;
const ROWS: usize = 900;

/// The sections; none without runs. `selection` explains which runs are shown.
pub fn sections(runs: &[Recorded], selection: &str) -> Vec<Section> {
    if runs.is_empty() {
        return Vec::new();
    }
    let time = Time::of(runs);
    let outcomes = html! { p { (selection) } (table::outcomes(runs)) };
    vec![
        Section::new("runs", "One run of each policy", outcomes),
        Section::new("time", "Power and use over time", over_time(runs, &time)),
        Section::new("nodes", "What each node ran", maps(runs, &time)),
        Section::new("jobs", "Jobs, and why they started", jobs(runs)),
    ]
}

/// The runs as an SVG file: their power where it was limited, and their maps of nodes.
pub fn figure(title: &str, runs: &[Recorded]) -> String {
    let time = Time::of(runs);
    let mut parts = Vec::new();
    if runs.iter().any(|run| run.power_limit_w.is_some()) {
        let (caption, strips) = power(runs, &time, false);
        parts.push(Part::Text(caption));
        parts.extend(strips.into_iter().map(Part::Plot));
    }
    for (run, map) in runs.iter().zip(drawn_maps(runs, &Colours::of_runs(runs), &time)) {
        if runs.len() > 1 {
            parts.push(Part::Text(run.name.clone()));
        }
        parts.push(Part::Plot(map.frame));
    }
    parts.push(Part::Axis(time.name()));
    frame::figure(title, &parts)
}

/// The time scale and its unit.
struct Time {
    scale: Scale,
    unit: Unit,
}

impl Time {
    fn of(runs: &[Recorded]) -> Self {
        let horizon_s = runs.iter().map(|run| span_s(&run.recording)).fold(1.0, f64::max);
        let unit = Unit::time(horizon_s);
        Self { scale: Scale::exact(0.0, horizon_s / unit.size, 8), unit }
    }

    fn name(&self) -> String {
        format!("Time since the first submission, {}", self.unit.axis())
    }

    fn axis(&self) -> Markup {
        html! { p class="axis across" { (self.name()) } }
    }
}

fn span_s(recording: &Recording) -> f64 {
    (recording.until_us - recording.from_us) as f64 / 1e6
}

fn most(runs: &[Recorded], of: fn(&Level) -> f64) -> f64 {
    let levels = runs.iter().flat_map(|run| &run.recording.levels);
    levels.map(of).fold(0.0, f64::max)
}

/// The power of all nodes with its limit: caption, and a strip for each run.
fn power(runs: &[Recorded], time: &Time, numbered: bool) -> (String, Vec<Frame>) {
    let most_w = most(runs, |level| level.power_w);
    let watts = Unit::power(most_w);
    // A limit far above the power would flatten the curves.
    let limits = runs.iter().filter_map(|run| run.power_limit_w).filter(|w| *w < 2.5 * most_w);
    let top_w = limits.fold(most_w, f64::max);
    let series = |run: &Recorded| {
        let mean = watts.format(mean(run, |level| level.power_w));
        let limit = run.power_limit_w.filter(|limit| *limit <= top_w);
        Series {
            filled: per_level(run, |level| level.power_w / watts.size),
            line: Vec::new(),
            limit: limit.map(|w| (w / watts.size, format!("limit {}", watts.format(w)))),
            description: format!("{}: power of all nodes, mean {mean}", run.name),
            mean,
        }
    };
    let scale = Scale::from_zero(top_w / watts.size, 3);
    (format!("Power of all nodes, {}", watts.name), strips(runs, series, &scale, time, numbered))
}

/// A strip for each run.
fn strips(
    runs: &[Recorded],
    series: impl Fn(&Recorded) -> Series,
    ys: &Scale,
    time: &Time,
    numbered: bool,
) -> Vec<Frame> {
    let strips: Vec<Strip<'_>> =
        runs.iter().map(|run| strip(run, series(run), time.unit)).collect();
    timeline::draw(&strips, ys, &time.scale, numbered)
}

fn over_time(runs: &[Recorded], time: &Time) -> Markup {
    let use_of_gpus = |run: &Recorded| {
        let gpus: u32 = run.recording.nodes.iter().map(|node| node.gpus).sum();
        let gpus = f64::from(gpus.max(1));
        let nodes = run.recording.nodes.len().max(1) as f64;
        let mean = percent(run.outcome.gpu_utilization_mean);
        Series {
            filled: per_level(run, |level| 100.0 * level.busy_gpus / gpus),
            line: per_level(run, |level| 100.0 * level.awake_nodes / nodes),
            limit: None,
            description: format!(
                "{}: GPUs busy, mean {mean}; nodes awake, mean {} of {}",
                run.name,
                number(run.outcome.awake_nodes_mean),
                run.recording.nodes.len()
            ),
            mean,
        }
    };
    let queue = |run: &Recorded| {
        let mean = number(mean(run, |level| level.queued));
        Series {
            filled: per_level(run, |level| level.queued),
            line: Vec::new(),
            limit: None,
            description: format!("{}: queued jobs, mean {mean}", run.name),
            mean,
        }
    };
    let figure = |caption: &str, strips: Vec<Frame>| {
        html! {
            figure {
                figcaption { (caption) }
                @for strip in strips { (strip) }
                (time.axis())
            }
        }
    };
    let (caption, strips_of_power) = power(runs, time, true);
    let most_queued = most(runs, |level| level.queued);
    html! {
        (figure(&caption, strips_of_power))
        (figure(
            "GPUs busy, % (filled), and nodes awake, % (dashed)",
            strips(runs, use_of_gpus, &Scale::from_zero(100.0, 2), time, true)
        ))
        @if most_queued > 0.0 {
            (figure("Queued jobs", strips(runs, queue, &Scale::from_zero(most_queued, 3), time, true)))
        }
    }
}

/// One run's values over time.
struct Series {
    filled: Vec<f64>,
    line: Vec<f64>,
    limit: Option<(f64, String)>,
    mean: String,
    description: String,
}

fn strip(run: &Recorded, series: Series, unit: Unit) -> Strip<'_> {
    let Series { filled, line, limit, mean, description } = series;
    Strip {
        name: &run.family,
        slot: run.slot,
        filled,
        line,
        limit,
        interval: run.recording.level_us as f64 / 1e6 / unit.size,
        end: span_s(&run.recording) / unit.size,
        mean,
        description,
    }
}

fn per_level(run: &Recorded, of: impl Fn(&Level) -> f64) -> Vec<f64> {
    run.recording.levels.iter().map(of).collect()
}

/// The mean over the run's duration.
fn mean(run: &Recorded, of: fn(&Level) -> f64) -> f64 {
    let recording = &run.recording;
    let (level_us, span_us) = (recording.level_us, recording.until_us - recording.from_us);
    let sum = (0..).zip(&recording.levels).map(|(i, level)| {
        // The last interval is shorter.
        let long_us = level_us.min(span_us.saturating_sub(i * level_us));
        of(level) * long_us as f64
    });
    sum.sum::<f64>() / (span_us as f64).max(1.0)
}

fn drawn_maps(runs: &[Recorded], colours: &Colours, time: &Time) -> Vec<Map> {
    let room = Room { titled: TITLED / runs.len(), plain: PLAIN / runs.len() };
    let draw = |(i, run): (usize, &Recorded)| {
        node_map::draw(&run.recording, colours, &time.scale, time.unit.size, room, i)
    };
    runs.iter().enumerate().map(draw).collect()
}

fn maps(runs: &[Recorded], time: &Time) -> Markup {
    let colours = Colours::of_runs(runs);
    let drawn: Vec<Markup> = drawn_maps(runs, &colours, time).iter().map(Map::render).collect();
    html! {
        p {
            "A row is a GPU, a band a node; time runs to the right. Colours are workloads. A job that "
            "shares its GPUs covers the lower part of the job that was there before."
        }
        (colours.legend(&drawn))
        @for (i, run) in runs.iter().enumerate() {
            details open[i == 0] {
                summary { (named(run.slot, &run.name)) }
                (drawn[i])
                (time.axis())
            }
        }
    }
}

fn jobs(runs: &[Recorded]) -> Markup {
    let rows = (ROWS / runs.len()).clamp(30, 250);
    html! {
        p { "Reasons are the placer's, as in " code { "wattle explain" } " for live jobs." }
        @for run in runs {
            details {
                summary {
                    (named(run.slot, &run.name)) ", " (pluralize(run.recording.jobs.len(), "job"))
                }
                (job_table::reasons(&run.recording))
                (job_table::draw(&run.recording, rows))
            }
        }
    }
}
