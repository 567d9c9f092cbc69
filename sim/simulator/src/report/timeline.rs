//! The cluster over time: one strip for each run, above each other on the same scales.

use std::fmt::Write;

use super::frame::{ACROSS, Frame, Label};
use super::marks;
use super::markup::escaped;
use super::scale::Scale;

/// Pixels from top to bottom of one strip.
const HEIGHT: u32 = 58;
/// Columns of one strip at most.
const COLUMNS: usize = 360;

/// One run's strip.
pub(super) struct Strip<'a> {
    /// The policy.
    pub(super) name: &'a str,
    /// Its colour and mark.
    pub(super) slot: usize,
    /// Means over equal spans, filled.
    pub(super) filled: Vec<f64>,
    /// Another quantity over the same spans, as a line; empty: none.
    pub(super) line: Vec<f64>,
    /// How long a span is, in the time scale's unit.
    pub(super) span: f64,
    /// When the run ends.
    pub(super) end: f64,
    /// Its mean, with its unit.
    pub(super) mean: String,
    /// What a pointer is told.
    pub(super) told: String,
}

/// All strips of one quantity, with the time below the last.
pub(super) fn draw(strips: &[Strip<'_>], ys: &Scale, time: &Scale) -> String {
    let mut text = String::new();
    for (i, strip) in strips.iter().enumerate() {
        let frame = Frame {
            height: HEIGHT,
            xs: time,
            ys,
            numbered: i + 1 == strips.len(),
            told: strip.told.clone(),
        };
        let class = marks::class(strip.slot);
        let mut inner = format!("<g><title>{}</title>", escaped(&strip.told));
        let top = steps(&frame, &strip.filled, strip);
        let end = frame.x(strip.end).min(ACROSS);
        let _ = write!(
            inner,
            "<path class=\"{class} under\" d=\"M0 {HEIGHT}{top}H{end:.1}V{HEIGHT}z\"/>\
             <path class=\"{class} over\" d=\"{}\"/>",
            from_first(&top)
        );
        if !strip.line.is_empty() {
            let line = from_first(&steps(&frame, &strip.line, strip));
            let _ = write!(inner, "<path class=\"second\" d=\"{line}\"/>");
        }
        inner.push_str("</g>");
        let label = Label {
            y: f64::from(HEIGHT) / 2.0 - 6.0,
            text: strip.name.to_owned(),
            below: vec![format!("mean {}", strip.mean)],
            class,
            mark: marks::mark(strip.slot),
        };
        text.push_str(&frame.draw(&inner, "", vec![label]));
    }
    text
}

/// The path of steps that begins at the height of the first.
fn from_first(steps: &str) -> String {
    match steps.strip_prefix('V').and_then(|rest| rest.split_once('H')) {
        Some((y, rest)) => format!("M0 {y}H{rest}"),
        None => "M0 0".to_owned(),
    }
}

/// Steps from the left: up or down to each value, then across.
fn steps(frame: &Frame<'_>, values: &[f64], strip: &Strip<'_>) -> String {
    let every = values.len().div_ceil(COLUMNS).max(1);
    let mut d = String::new();
    for (i, group) in values.chunks(every).enumerate() {
        let mean = group.iter().sum::<f64>() / group.len() as f64;
        let until = (strip.span * ((i * every + group.len()) as f64)).min(strip.end);
        let _ = write!(d, "V{:.1}H{:.1}", frame.y(mean), frame.x(until));
    }
    d
}
