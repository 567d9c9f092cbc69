//! The frame of a plot: the numbers of its vertical axis, its area, and labels at the ends of its lines.
//!
//! A page gives the area the rest of its width; a figure has a fixed width. The text keeps its size in both.

use maud::{Markup, PreEscaped, Render, html};

use super::page::PLOT_STYLES;

/// Width of a figure and of its parts, pixels.
const WIDTH: u32 = 760;
const NUMBERS: u32 = 56;
const ENDS: u32 = 124;
const NO_ENDS: u32 = 16;
/// Height of the title of a figure and of a line of text, pixels.
const TITLE: u32 = 38;
const LINE: u32 = 20;

/// One plot.
pub(super) struct Frame {
    /// Height with the numbers below, pixels.
    pub(super) height: u32,
    /// The numbers of the vertical axis.
    pub(super) numbers: Markup,
    /// The area: horizontal positions are percentages, vertical ones pixels.
    pub(super) area: Markup,
    /// Labels at the ends of lines; may be empty.
    pub(super) ends: Markup,
    /// The text alternative for screen readers.
    pub(super) description: String,
}

impl Render for Frame {
    /// The plot in a page.
    fn render(&self) -> Markup {
        let Self { height, numbers, area, ends, description } = self;
        let has_ends = !ends.0.is_empty();
        html! {
            div.frame.map[!has_ends] {
                svg.numbers height=(height) aria-hidden="true" { (numbers) }
                svg.plot height=(height) role="img" aria-label=(description) { (area) }
                @if has_ends { svg.ends height=(height) aria-hidden="true" { (ends) } }
            }
        }
    }
}

/// A part of a figure.
pub(super) enum Part {
    /// A line of text above a plot, from the left edge of its area.
    Text(String),
    /// A plot.
    Plot(Frame),
    /// The name of the horizontal axis, below a plot.
    Axis(String),
}

/// A figure as an SVG file: the parts below each other.
pub(super) fn figure(title: &str, parts: &[Part]) -> String {
    let has_ends = |part: &Part| matches!(part, Part::Plot(frame) if !frame.ends.0.is_empty());
    let ends = if parts.iter().any(has_ends) { ENDS } else { NO_ENDS };
    let width = WIDTH - NUMBERS - ends;
    let mut bottom = TITLE;
    let mut body = Vec::new();
    for part in parts {
        let top = bottom;
        bottom += match part {
            Part::Text(_) | Part::Axis(_) => LINE,
            Part::Plot(frame) => frame.height,
        };
        let middle = top + LINE / 2;
        body.push(match part {
            Part::Text(text) => html! { text x=(NUMBERS) y=(middle) { (text) } },
            Part::Axis(text) => {
                html! { text.axis x=(NUMBERS + width / 2) y=(middle) { (text) } }
            }
            Part::Plot(Frame { height, numbers, area, ends: labels, .. }) => html! {
                svg.numbers y=(top) width=(NUMBERS) height=(height) { (numbers) }
                svg.plot x=(NUMBERS) y=(top) width=(width) height=(height) { (area) }
                svg.ends x=(NUMBERS + width) y=(top) width=(ends) height=(height) { (labels) }
            },
        });
    }
    let height = bottom + 8;
    let figure = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {height}")) role="img"
            aria-label=(title) {
            style { @for style in PLOT_STYLES { (PreEscaped(style)) } }
            rect.paper width=(WIDTH) height=(height) rx="6" {}
            text.title x=(NUMBERS) y="20" { (title) }
            @for part in body { (part) }
        }
    };
    // One element a line, so that two versions of a figure can be compared.
    figure.into_string().replace("><", ">\n<") + "\n"
}
