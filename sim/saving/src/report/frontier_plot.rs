//! Mean completion time over energy or emissions: every run of every policy, frontiers, and bounds.
//!
//! Frontier points are joined by straight lines, as frontiers are interpolated. Beyond the
//! fastest point a frontier continues as a level dotted line. Runs dominated by another run of the
//! same policy are drawn faintly.

use maud::{Markup, html};

use super::axes::{Axes, Label};
use super::format::Unit;
use super::frame::{self, Frame, Part};
use super::markers;
use super::scale::Scale;

/// Height, pixels.
const HEIGHT: u32 = 380;
/// Most points drawn of a bound.
const BOUND_POINTS: usize = 160;

/// One run.
pub struct Run {
    /// Energy or emissions, in the plot's base unit.
    pub total: f64,
    /// Mean completion time, seconds.
    pub jct_s: f64,
    /// The tooltip.
    pub title: String,
    /// Whether no other run of the policy dominates it.
    pub best: bool,
    /// Whether the page shows it in detail.
    pub selected: bool,
}

/// One policy: its runs on the first order of jobs, and its frontiers on the other orders.
pub struct Curve<'a> {
    /// The policy.
    pub name: &'a str,
    /// The policy's colour and mark.
    pub slot: usize,
    /// Its runs, by ascending total.
    pub runs: Vec<Run>,
    /// Frontiers on other orders, as (total, seconds).
    pub others: Vec<Vec<(f64, f64)>>,
}

/// Lower bounds on the completion time, as (total, seconds).
#[derive(Clone, Copy)]
pub struct Limit<'a> {
    /// With contention for GPUs.
    pub tight: &'a [(f64, f64)],
    /// Without contention; may be empty.
    pub alone: &'a [(f64, f64)],
}

/// The axes, and the units of their scales.
struct Plot<'a> {
    axes: Axes<'a>,
    total: Unit,
    time: Unit,
}

/// The plot in a page. `quantity` names the horizontal axis, `unit` is its unit.
pub fn draw(curves: &[Curve<'_>], limit: Option<Limit<'_>>, quantity: &str, unit: Unit) -> Markup {
    match parts(curves, limit, quantity, unit) {
        Some((time, frame, total)) => html! {
            p.axis { (time) }
            (frame)
            p class="axis across" { (total) }
        },
        None => html! { p.note { "No run finished all its jobs, so there is nothing to plot." } },
    }
}

/// The plot as an SVG file; without a plot if no run finished all its jobs.
pub fn figure(
    title: &str,
    curves: &[Curve<'_>],
    limit: Option<Limit<'_>>,
    quantity: &str,
    unit: Unit,
) -> String {
    let parts = parts(curves, limit, quantity, unit).into_iter();
    let parts = parts
        .flat_map(|(time, frame, total)| [Part::Text(time), Part::Plot(frame), Part::Axis(total)]);
    frame::figure(title, &parts.collect::<Vec<_>>())
}

/// The names of the vertical and the horizontal axis around the plot.
fn parts(
    curves: &[Curve<'_>],
    limit: Option<Limit<'_>>,
    quantity: &str,
    unit: Unit,
) -> Option<(String, Frame, String)> {
    let runs = || curves.iter().flat_map(|curve| &curve.runs);
    runs().next()?;
    let others = || curves.iter().flat_map(|curve| curve.others.iter().flatten());
    let totals = || runs().map(|run| run.total).chain(others().map(|point| point.0));
    let times = || runs().map(|run| run.jct_s).chain(others().map(|point| point.1));
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let (low, high) = (least(&mut totals()), most(&mut totals()));
    let margin = ((high - low) * 0.06).max(high * 0.02);
    let time = Unit::hours(least(&mut times()));
    let fastest = limit.and_then(|limit| limit.tight.last()).map(|point| point.1);
    let bottom = fastest.into_iter().fold(least(&mut times()), f64::min) / 1.12;
    let xs = Scale::exact((low - margin) / unit.size, (high + margin) / unit.size, 7);
    let ys = Scale::ratios(bottom / time.size, most(&mut times()) * 1.1 / time.size, 5);
    let names = curves.iter().map(|curve| curve.name).collect::<Vec<_>>().join(", ");
    let description =
        format!("Mean completion time over {quantity} of {names}; see the tables below");
    let axes = Axes { height: HEIGHT, xs: &xs, ys: &ys, numbered: true, description };
    let plot = Plot { axes, total: unit, time };
    let lines = html! {
        @if let Some(limit) = limit { (plot.bounds(limit)) }
        @for curve in curves { (plot.curve_lines(curve)) }
    };
    let marks = html! {
        @for curve in curves {
            // Dominated runs first, so that they cover no frontier point.
            @for best in [false, true] {
                @for run in curve.runs.iter().filter(|run| run.best == best) {
                    (plot.mark(curve.slot, run))
                }
            }
        }
    };
    let labels = limit.iter().flat_map(|limit| plot.bound_labels(*limit));
    let labels = labels.chain(curves.iter().filter_map(|curve| plot.curve_label(curve))).collect();
    let log = if ys.is_log() { ", logarithmic" } else { "" };
    let time = format!("Mean completion time, {}{log}", time.axis());
    Some((time, plot.axes.draw(&lines, &marks, labels), format!("{quantity}, {}", unit.axis())))
}

impl Plot<'_> {
    fn scaled(&self, points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
        points.map(|(total, jct_s)| (total / self.total.size, jct_s / self.time.size)).collect()
    }

    /// The frontier of a policy's runs on the first order.
    fn best(&self, curve: &Curve<'_>) -> Vec<(f64, f64)> {
        self.scaled(curve.runs.iter().filter(|run| run.best).map(|run| (run.total, run.jct_s)))
    }

    /// The bounds, and the infeasible area left of and below the tighter one.
    fn bounds(&self, limit: Limit<'_>) -> Markup {
        let tight = self.scaled(thinned(limit.tight));
        let alone = self.scaled(thinned(limit.alone));
        html! {
            @if let (Some(first), Some(last)) = (tight.first(), tight.last()) {
                path.unreachable d=(format!(
                    "{}H1000V{HEIGHT}H-1000V-1000H{:.1}z",
                    self.path(&tight),
                    self.axes.x(first.0)
                )) {}
                path class="line bound" d=(self.level(*last)) {}
            }
            (self.line(&alone, "bound alone"))
            (self.line(&tight, "bound"))
        }
    }

    fn bound_labels(&self, limit: Limit<'_>) -> impl Iterator<Item = Label> + use<> {
        let label = |points: &[(f64, f64)], name: &str| {
            let y = self.axes.y(self.scaled(thinned(points)).last()?.1);
            let class = "bound".to_owned();
            let label =
                Label { y, text: name.to_owned(), below: Vec::new(), class, mark: html! {} };
            (0.0..=f64::from(HEIGHT)).contains(&y).then_some(label)
        };
        let labels = [label(limit.tight, "lower bound"), label(limit.alone, "no contention")];
        labels.into_iter().flatten()
    }

    fn curve_lines(&self, curve: &Curve<'_>) -> Markup {
        let class = markers::class(curve.slot);
        let best = self.best(curve);
        html! {
            @for other in &curve.others {
                (self.line(&self.scaled(other.iter().copied()), &format!("{class} other")))
            }
            (self.line(&best, &class))
            @if let Some(last) = best.last() {
                path class={ "line " (class) " beyond" } d=(self.level(*last)) {}
            }
        }
    }

    fn curve_label(&self, curve: &Curve<'_>) -> Option<Label> {
        Some(Label {
            y: self.axes.y(self.best(curve).last()?.1),
            text: curve.name.to_owned(),
            below: Vec::new(),
            class: markers::class(curve.slot),
            mark: markers::mark(curve.slot),
        })
    }

    /// A run's mark, with a ring around a selected run.
    fn mark(&self, slot: usize, run: &Run) -> Markup {
        let x = format!("{:.2}%", self.axes.x_percent(run.total / self.total.size));
        let y = format!("{:.1}", self.axes.y(run.jct_s / self.time.size));
        html! {
            svg.spot.faint[!run.best] x=(x) y=(y) overflow="visible" {
                title { (run.title) }
                @if run.selected { circle.ring r="9" {} }
                (markers::mark(slot))
            }
        }
    }

    fn line(&self, points: &[(f64, f64)], class: &str) -> Markup {
        html! {
            @if points.len() > 1 { path class={ "line " (class) } d=(self.path(points)) {} }
        }
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let points = points.iter().enumerate().map(|(i, &(x, y))| {
            let step = if i == 0 { 'M' } else { 'L' };
            format!("{step}{:.1} {:.1}", self.axes.x(x), self.axes.y(y))
        });
        points.collect()
    }

    /// A level line from a point to the right edge.
    fn level(&self, (x, y): (f64, f64)) -> String {
        format!("M{:.1} {:.1}H1000", self.axes.x(x), self.axes.y(y))
    }
}

/// At most about [`BOUND_POINTS`] points, the last included.
fn thinned(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> {
    let every = points.len().div_ceil(BOUND_POINTS).max(1);
    let last = points.len().saturating_sub(1);
    let kept =
        move |(i, point): (usize, &(f64, f64))| (i % every == 0 || i == last).then_some(*point);
    points.iter().enumerate().filter_map(kept)
}
