//! Mean completion time over what was spent: every run of every policy, its frontier, the bounds.
//!
//! A frontier's points are joined as [`crate::frontier`] reads them, straight; beyond its fastest
//! point it goes on level and dotted, since spending less than allowed is allowed. Runs that another
//! run of the same policy beats are shown faintly: nothing is hidden.

use std::fmt::Write;

use super::frame::{Frame, Label};
use super::marks;
use super::markup::{Unit, escaped};
use super::scale::Scale;

/// Pixels from top to bottom.
const HEIGHT: u32 = 380;
/// Points of a bound that are drawn at most.
const BOUND_POINTS: usize = 160;

/// One run.
pub(super) struct Run {
    /// What was spent, in the base unit of the plot.
    pub(super) total: f64,
    /// Mean completion time, seconds.
    pub(super) jct_s: f64,
    /// What it was, for a pointer that rests on it.
    pub(super) title: String,
    /// Whether no other run of the policy beats it.
    pub(super) best: bool,
    /// Whether it is the one looked at closely below.
    pub(super) chosen: bool,
}

/// A policy's runs on the first order of jobs, by rising total; its frontiers on the others.
pub(super) struct Curve<'a> {
    /// The policy.
    pub(super) name: &'a str,
    /// Its colour and mark.
    pub(super) slot: usize,
    /// Its runs.
    pub(super) runs: Vec<Run>,
    /// The same on other orders, as (total, seconds).
    pub(super) others: Vec<Vec<(f64, f64)>>,
}

/// What no policy gets below.
#[derive(Clone, Copy)]
pub(super) struct Limit<'a> {
    /// With GPU prices: (total, seconds).
    pub(super) tight: &'a [(f64, f64)],
    /// As if there were no other jobs; empty where that says nothing.
    pub(super) alone: &'a [(f64, f64)],
}

/// The plot. `spent` names what is on the axis across, `unit` is its unit.
pub(super) fn draw(
    curves: &[Curve<'_>],
    limit: Option<Limit<'_>>,
    spent: &str,
    unit: Unit,
) -> String {
    let runs = || curves.iter().flat_map(|curve| &curve.runs);
    if runs().next().is_none() {
        return "<p class=\"note\">No run finished all its jobs, so there is nothing to plot.</p>\n"
            .to_owned();
    }
    let others = || curves.iter().flat_map(|curve| curve.others.iter().flatten());
    let totals = || runs().map(|run| run.total).chain(others().map(|point| point.0));
    let times = || runs().map(|run| run.jct_s).chain(others().map(|point| point.1));
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let (low, high) = (least(&mut totals()), most(&mut totals()));
    let margin = ((high - low) * 0.06).max(high * 0.02);
    let hours = Unit::hours(least(&mut times()));
    let fastest = limit.and_then(|limit| limit.tight.last()).map(|point| point.1);
    let bottom = fastest.into_iter().fold(least(&mut times()), f64::min) / 1.12;
    let xs = Scale::exact((low - margin) / unit.size, (high + margin) / unit.size, 7);
    let ys = Scale::ratios(bottom / hours.size, most(&mut times()) * 1.1 / hours.size, 5);
    let frame = Frame {
        height: HEIGHT,
        xs: &xs,
        ys: &ys,
        numbered: true,
        told: format!(
            "Mean completion time over {spent} of {}; the figures stand in the tables below",
            curves.iter().map(|curve| curve.name).collect::<Vec<_>>().join(", ")
        ),
    };
    let scaled = |(total, jct_s): (f64, f64)| (total / unit.size, jct_s / hours.size);
    let (mut lines, mut upright, mut labels) = (String::new(), String::new(), Vec::new());
    if let Some(limit) = limit {
        let tight: Vec<_> = thinned(limit.tight).map(scaled).collect();
        let alone: Vec<_> = thinned(limit.alone).map(scaled).collect();
        below(&frame, &tight, &mut lines);
        line(&frame, &alone, "bound alone", &mut lines);
        line(&frame, &tight, "bound", &mut lines);
        for (points, name) in [(&tight, "lower bound"), (&alone, "no queue")] {
            let y = points.last().map(|point| frame.y(point.1));
            labels.extend(y.filter(|y| (0.0..=f64::from(HEIGHT)).contains(y)).map(|y| Label {
                y,
                text: name.to_owned(),
                below: Vec::new(),
                class: "limit".to_owned(),
                mark: String::new(),
            }));
        }
    }
    for curve in curves {
        let class = marks::class(curve.slot);
        for other in &curve.others {
            let points: Vec<_> = other.iter().copied().map(scaled).collect();
            line(&frame, &points, &format!("{class} other"), &mut lines);
        }
        let best = curve.runs.iter().filter(|run| run.best);
        let points: Vec<_> = best.map(|run| scaled((run.total, run.jct_s))).collect();
        line(&frame, &points, &class, &mut lines);
        if let Some(&(total, jct)) = points.last() {
            let y = frame.y(jct);
            let _ = write!(
                lines,
                "<path class=\"{class} beyond\" d=\"M{:.1} {y:.1}H1000\"/>",
                frame.x(total)
            );
            let (text, mark) = (curve.name.to_owned(), marks::mark(curve.slot));
            let (class, below) = (class.clone(), Vec::new());
            labels.push(Label { y, text, below, class, mark });
        }
        // Faint ones first, so that none lies on a best one.
        for wanted in [false, true] {
            for run in curve.runs.iter().filter(|run| run.best == wanted) {
                spot(&frame, curve.slot, run, scaled((run.total, run.jct_s)), &mut upright);
            }
        }
    }
    let scale = if ys.is_log() { ", logarithmic" } else { "" };
    format!(
        "<p class=\"axis\">Mean completion time, {}{scale}</p>\n{}<p class=\"axis across\">{}, {}</p>\n",
        hours.axis(),
        frame.draw(&lines, &upright, labels),
        escaped(spent),
        unit.axis()
    )
}

/// A run's mark, with a ring where it was chosen.
fn spot(frame: &Frame<'_>, slot: usize, run: &Run, at: (f64, f64), out: &mut String) {
    let (x, y) = (frame.x_percent(at.0), frame.y(at.1));
    let class = if run.best { "spot" } else { "spot faint" };
    let ring = if run.chosen { "<circle class=\"ring\" r=\"9\"/>" } else { "" };
    let _ = write!(
        out,
        "<svg class=\"{class}\" x=\"{x:.2}%\" y=\"{y:.1}\" overflow=\"visible\">\
         <title>{}</title>{ring}{}</svg>",
        escaped(&run.title),
        marks::mark(slot)
    );
}

fn line(frame: &Frame<'_>, points: &[(f64, f64)], class: &str, out: &mut String) {
    if points.len() < 2 {
        return;
    }
    let _ = write!(out, "<path class=\"{class}\" d=\"{}\"/>", path(frame, points));
}

fn path(frame: &Frame<'_>, points: &[(f64, f64)]) -> String {
    let mut d = String::new();
    for (i, &(x, y)) in points.iter().enumerate() {
        let step = if i == 0 { 'M' } else { 'L' };
        let _ = write!(d, "{step}{:.1} {:.1}", frame.x(x), frame.y(y));
    }
    d
}

/// Where nobody gets: left of and below the bound.
fn below(frame: &Frame<'_>, points: &[(f64, f64)], out: &mut String) {
    if let (Some(first), Some(last)) = (points.first(), points.last()) {
        let (start, floor) = (frame.x(first.0), HEIGHT);
        let _ = write!(
            out,
            "<path class=\"nobody\" d=\"{}H1000V{floor}H-1000V-1000H{start:.1}z\"/>",
            path(frame, points)
        );
        let _ = write!(
            out,
            "<path class=\"bound\" d=\"M{:.1} {:.1}H1000\"/>",
            frame.x(last.0),
            frame.y(last.1)
        );
    }
}

/// Not more points than anybody sees, and always the last.
fn thinned(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> {
    let every = points.len().div_ceil(BOUND_POINTS).max(1);
    let last = points.len().saturating_sub(1);
    let kept =
        move |(i, point): (usize, &(f64, f64))| (i % every == 0 || i == last).then_some(*point);
    points.iter().enumerate().filter_map(kept)
}
