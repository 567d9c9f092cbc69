//! The axes of a plot: grid, tick labels, and labels at the ends of lines, as a [`Frame`].
//!
//! A plot is as wide as the page and has a fixed height, and its text keeps its size. Horizontal
//! positions are percentages, vertical positions are pixels; only lines and areas are in a
//! stretched picture. One drawing therefore fits wide and narrow screens.

use maud::{Markup, html};

use super::frame::Frame;
use super::scale::Scale;

/// Height of the tick labels below a plot, pixels.
const BELOW: u32 = 22;
/// Gap between two plots that share their tick labels, pixels.
const BETWEEN: u32 = 15;
/// Width of a stretched picture in its own units.
pub(super) const ACROSS: f64 = 1_000.0;
/// Height of a label's first line, pixels.
const LINE: f64 = 16.0;
/// Height of each further line of a label, pixels.
const SMALL_LINE: f64 = 12.5;
/// Most letters of a label's first line; longer labels are folded.
const LETTERS: usize = 11;

/// A label at the end of a line.
pub(super) struct Label {
    /// Where the line ends, pixels from the top.
    pub(super) y: f64,
    /// Its text.
    pub(super) text: String,
    /// Smaller lines below the text.
    pub(super) below: Vec<String>,
    /// The class of its colour.
    pub(super) class: String,
    /// A mark around the origin, or nothing.
    pub(super) mark: Markup,
}

impl Label {
    /// Moves the end of a long name, from its parameters on, to the next line.
    fn fold(&mut self) {
        if self.text.chars().count() <= LETTERS {
            return;
        }
        if let Some(at) = self.text.find([',', ':', '@', '+']).filter(|at| *at > 0) {
            let rest = self.text.split_off(at);
            self.below.insert(0, rest.trim_start_matches([',', ' ']).to_owned());
        }
    }

    fn height(&self) -> f64 {
        LINE + SMALL_LINE * self.below.len() as f64
    }
}

/// The axes of one plot.
pub(super) struct Axes<'a> {
    /// Height of the area, pixels.
    pub(super) height: u32,
    /// The horizontal scale.
    pub(super) xs: &'a Scale,
    /// The vertical scale.
    pub(super) ys: &'a Scale,
    /// Whether the horizontal ticks are labelled; stacked plots share the last one's labels.
    pub(super) numbered: bool,
    /// The text alternative for screen readers.
    pub(super) description: String,
}

impl Axes<'_> {
    /// Pixels from the top.
    pub(super) fn y(&self, value: f64) -> f64 {
        f64::from(self.height) * (1.0 - self.ys.at(value))
    }

    /// Per cent from the left.
    pub(super) fn x_percent(&self, value: f64) -> f64 {
        100.0 * self.xs.at(value)
    }

    /// Units of the stretched picture from the left.
    pub(super) fn x(&self, value: f64) -> f64 {
        ACROSS * self.xs.at(value)
    }

    /// The plot: `stretched` holds lines and areas, `upright` marks and text.
    pub(super) fn draw(self, stretched: &Markup, upright: &Markup, labels: Vec<Label>) -> Frame {
        let height = self.height;
        let y = |share: f64| format!("{:.1}", f64::from(height) * (1.0 - share));
        let x = |share: f64| format!("{:.2}%", 100.0 * share);
        Frame {
            height: height + if self.numbered { BELOW } else { BETWEEN },
            numbers: html! {
                @for (share, text) in self.ys.ticks() {
                    text x="100%" dx="-7" y=(y(share)) { (text) }
                }
            },
            area: html! {
                g.grid {
                    @for (share, _) in self.ys.ticks() {
                        line x1="0" x2="100%" y1=(y(share)) y2=(y(share)) {}
                    }
                    @for (share, _) in self.xs.ticks() {
                        line x1=(x(share)) x2=(x(share)) y1="0" y2=(height) {}
                    }
                }
                (picture(height, stretched))
                @if self.numbered { (ticks_below(self.xs, height + 16)) }
                (upright)
            },
            ends: ends(labels, f64::from(height)),
            description: self.description,
        }
    }
}

/// The labels of a horizontal scale at this height; narrow screens show every other one.
pub(super) fn ticks_below(xs: &Scale, y: u32) -> Markup {
    html! {
        g.below {
            @for (i, (share, text)) in xs.ticks().enumerate() {
                text.wide[i % 2 == 1] x=(format!("{:.2}%", 100.0 * share)) y=(y) { (text) }
            }
        }
    }
}

/// Lines and areas, stretched to the available width.
pub(super) fn picture(height: u32, inner: &Markup) -> Markup {
    html! {
        svg.lines width="100%" height=(height) viewBox=(format!("0 0 {ACROSS} {height}"))
            preserveAspectRatio="none" { (inner) }
    }
}

/// Labels at the ends of lines, moved apart where they would overlap.
fn ends(mut labels: Vec<Label>, height: f64) -> Markup {
    labels.sort_by(|a, b| a.y.total_cmp(&b.y));
    let mut places: Vec<f64> = labels.iter().map(|label| label.y).collect();
    labels.iter_mut().for_each(Label::fold);
    let heights: Vec<f64> = labels.iter().map(Label::height).collect();
    separate(&mut places, &heights, height);
    let small_y = |place: f64, line: usize| place + 1.0 + SMALL_LINE * (line + 1) as f64;
    html! {
        @for (label, place) in labels.iter().zip(places) {
            g class=(label.class) {
                path.lead d=(format!("M0 {:.1}L10 {place:.1}", label.y)) {}
                g transform=(format!("translate(17 {place:.1})")) { (label.mark) }
                text x="25" y=(format!("{place:.1}")) { (label.text) }
                @for (line, below) in label.below.iter().enumerate() {
                    text.small x="25" y=(format!("{:.1}", small_y(place, line))) { (below) }
                }
            }
        }
    }
}

/// Moves labels of these heights apart, within `height` and no further than needed. `places` are
/// ascending; a place is the middle of a label's first line.
fn separate(places: &mut [f64], heights: &[f64], height: f64) {
    let mut free = 0.0_f64;
    for (place, high) in places.iter_mut().zip(heights) {
        *place = place.max(free + LINE / 2.0);
        free = *place - LINE / 2.0 + high;
    }
    let mut free = height;
    for (place, high) in places.iter_mut().zip(heights).rev() {
        *place = place.min(free - high + LINE / 2.0);
        free = *place - LINE / 2.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_overlap_and_stay_inside() {
        let mut places = [50.0, 52.0, 54.0, 199.0, 200.0];
        separate(&mut places, &[16.0, 16.0, 28.5, 16.0, 16.0], 200.0);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 16.0 - 1e-9), "{places:?}");
        assert!(places[3] - places[2] >= 28.5 - 1e-9, "{places:?}");
        assert!((places[0] - 50.0).abs() < 1e-9 && places[4] <= 192.0, "{places:?}");
    }

    #[test]
    fn long_names_are_folded() {
        let fold = |text: &str| {
            let (text, class, mark) = (text.to_owned(), String::new(), html! {});
            let mut label = Label { y: 0.0, text, below: Vec::new(), class, mark };
            label.fold();
            (label.text, label.below)
        };
        assert_eq!(fold("fifo-packed"), ("fifo-packed".to_owned(), vec![]));
        assert_eq!(fold("eaco, oracle").1, ["oracle"]);
        let (text, below) = fold("tiresias:3600@1080+zeus");
        assert_eq!((text.as_str(), &below[..]), ("tiresias", &[":3600@1080+zeus".to_owned()][..]));
        assert_eq!(fold("fifo-packed, oracle").1, ["oracle"]);
    }
}
