//! A quantity over time: one strip per run, stacked on the same scales.

use std::fmt::Write;

use maud::html;

use super::axes::{ACROSS, Axes, Label};
use super::frame::Frame;
use super::markers;
use super::scale::Scale;

/// Height of one strip, and of a strip alone, pixels.
const HEIGHT: u32 = 58;
const HEIGHT_ALONE: u32 = 110;
/// Most steps of one strip.
const STEPS: usize = 360;

/// One run's strip.
pub(super) struct Strip<'a> {
    /// The policy.
    pub(super) name: &'a str,
    /// The policy's colour and mark.
    pub(super) slot: usize,
    /// Means over equal intervals, drawn as a filled area.
    pub(super) filled: Vec<f64>,
    /// A second quantity over the same intervals, drawn as a line; may be empty.
    pub(super) line: Vec<f64>,
    /// A limit of the first quantity, with its text.
    pub(super) limit: Option<(f64, String)>,
    /// Length of an interval, in the time scale's unit.
    pub(super) interval: f64,
    /// When the run ends, in the time scale's unit.
    pub(super) end: f64,
    /// Its mean, with its unit.
    pub(super) mean: String,
    /// The tooltip and text alternative.
    pub(super) description: String,
}

/// All strips of one quantity; if `numbered`, the last one has the labels of the time scale.
pub(super) fn draw(strips: &[Strip<'_>], ys: &Scale, time: &Scale, numbered: bool) -> Vec<Frame> {
    let height = if strips.len() == 1 { HEIGHT_ALONE } else { HEIGHT };
    let numbered = |i| numbered && i + 1 == strips.len();
    strips.iter().enumerate().map(|(i, strip)| one(strip, height, ys, time, numbered(i))).collect()
}

fn one(strip: &Strip<'_>, height: u32, ys: &Scale, time: &Scale, numbered: bool) -> Frame {
    let description = strip.description.clone();
    let axes = Axes { height, xs: time, ys, numbered, description };
    let class = markers::class(strip.slot);
    let top = steps(&axes, &strip.filled, strip);
    let end = axes.x(strip.end).min(ACROSS);
    let inner = html! {
        g {
            title { (strip.description) }
            path class={ "area " (class) } d=(format!("M0 {height}{top}H{end:.1}V{height}z")) {}
            path class={ "line thin " (class) } d=(from_first(&top)) {}
            @if !strip.line.is_empty() {
                path class="line second" d=(from_first(&steps(&axes, &strip.line, strip))) {}
            }
            @if let Some((limit, _)) = strip.limit {
                path.level d=(format!("M0 {:.1}H{ACROSS}", axes.y(limit))) {}
            }
        }
    };
    let limit = strip.limit.as_ref().map(|(limit, text)| Label {
        y: axes.y(*limit),
        text: text.clone(),
        below: Vec::new(),
        class: "limit".to_owned(),
        mark: html! {},
    });
    let label = Label {
        y: f64::from(height) / 2.0 - 6.0,
        text: strip.name.to_owned(),
        below: vec![format!("mean {}", strip.mean)],
        class,
        mark: markers::mark(strip.slot),
    };
    axes.draw(&inner, &html! {}, limit.into_iter().chain([label]).collect())
}

/// The path of these steps, starting at the height of the first.
fn from_first(steps: &str) -> String {
    match steps.strip_prefix('V').and_then(|rest| rest.split_once('H')) {
        Some((y, rest)) => format!("M0 {y}H{rest}"),
        None => "M0 0".to_owned(),
    }
}

/// Steps from the left: vertical to each value, then horizontal.
fn steps(axes: &Axes<'_>, values: &[f64], strip: &Strip<'_>) -> String {
    let every = values.len().div_ceil(STEPS).max(1);
    let mut path = String::new();
    for (i, group) in values.chunks(every).enumerate() {
        let mean = group.iter().sum::<f64>() / group.len() as f64;
        let until = (strip.interval * ((i * every + group.len()) as f64)).min(strip.end);
        let _ = write!(path, "V{:.1}H{:.1}", axes.y(mean), axes.x(until));
    }
    path
}
