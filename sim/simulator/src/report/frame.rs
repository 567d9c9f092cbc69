//! The frame of a plot: grid, tick labels, and labels beside the ends of lines.
//!
//! A plot is as wide as the page lets it be and as high as is written here, and its text keeps its
//! size: places across are percentages, places down are pixels, and only lines and areas lie in a
//! picture that is stretched. So one drawing serves a desk and a phone.

use std::fmt::Write;

use super::markup::escaped;
use super::scale::Scale;

/// Room for the tick labels below a plot, pixels.
const BELOW: u32 = 22;
/// Room between two plots that share their tick labels, pixels.
const BETWEEN: u32 = 15;
/// Units across a stretched picture.
pub(super) const ACROSS: f64 = 1_000.0;
/// Height of a label's first line and of each further one, pixels.
const LINE: f64 = 16.0;
const SMALL_LINE: f64 = 12.5;
/// Letters of a line at most: what does not fit goes on below.
const LETTERS: usize = 11;

/// A label beside the end of a line.
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
    pub(super) mark: String,
}

impl Label {
    /// A name that is too long goes on below, from where its setting begins.
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

/// One plot: what is drawn, its scales, and labels at its right.
pub(super) struct Frame<'a> {
    /// Pixels from top to bottom of the area.
    pub(super) height: u32,
    /// Across.
    pub(super) xs: &'a Scale,
    /// Up.
    pub(super) ys: &'a Scale,
    /// Whether the ticks across have their labels here; plots above each other share them.
    pub(super) numbered: bool,
    /// What a reader who does not see it is told.
    pub(super) told: String,
}

impl Frame<'_> {
    /// Pixels from the top.
    pub(super) fn y(&self, value: f64) -> f64 {
        f64::from(self.height) * (1.0 - self.ys.at(value))
    }

    /// Per cent from the left.
    pub(super) fn x_percent(&self, value: f64) -> f64 {
        100.0 * self.xs.at(value)
    }

    /// Units of a stretched picture from the left.
    pub(super) fn x(&self, value: f64) -> f64 {
        ACROSS * self.xs.at(value)
    }

    /// The plot: `stretched` holds lines and areas, `upright` marks and text.
    pub(super) fn draw(&self, stretched: &str, upright: &str, labels: Vec<Label>) -> String {
        let height = self.height;
        let mut numbers = String::new();
        let mut grid = String::new();
        for (share, text) in self.ys.ticks() {
            let y = f64::from(height) * (1.0 - share);
            let _ = write!(numbers, "<text x=\"100%\" dx=\"-7\" y=\"{y:.1}\">{text}</text>");
            let _ = write!(grid, "<line x1=\"0\" x2=\"100%\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
        }
        let mut below = String::new();
        for (i, (share, text)) in self.xs.ticks().enumerate() {
            let x = 100.0 * share;
            let _ = write!(grid, "<line x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"0\" y2=\"{height}\"/>");
            if self.numbered {
                // On a phone every other one has room.
                let class = if i % 2 == 1 { " class=\"wide\"" } else { "" };
                let y = height + 16;
                let _ = write!(below, "<text x=\"{x:.2}%\" y=\"{y}\"{class}>{text}</text>");
            }
        }
        let whole = height + if self.numbered { BELOW } else { BETWEEN };
        let told = escaped(&self.told);
        format!(
            "<div class=\"frame\"><svg class=\"numbers\" height=\"{whole}\" aria-hidden=\"true\">\
             {numbers}</svg><svg class=\"area\" height=\"{whole}\" role=\"img\" \
             aria-label=\"{told}\"><g class=\"grid\">{grid}</g>{}<g class=\"below\">{below}</g>\
             {upright}</svg><svg class=\"ends\" height=\"{whole}\" aria-hidden=\"true\">{}</svg>\
             </div>\n",
            picture(height, stretched),
            ends(labels, f64::from(height)),
        )
    }
}

/// Lines and areas, stretched to the width there is.
pub(super) fn picture(height: u32, inner: &str) -> String {
    format!(
        "<svg class=\"lines\" width=\"100%\" height=\"{height}\" viewBox=\"0 0 {ACROSS} {height}\" \
         preserveAspectRatio=\"none\">{inner}</svg>"
    )
}

/// Labels beside the ends of lines, moved apart where they would touch.
fn ends(mut labels: Vec<Label>, height: f64) -> String {
    labels.sort_by(|a, b| a.y.total_cmp(&b.y));
    let mut places: Vec<f64> = labels.iter().map(|label| label.y).collect();
    for label in &mut labels {
        label.fold();
    }
    let heights: Vec<f64> = labels.iter().map(Label::height).collect();
    apart(&mut places, &heights, height);
    let mut text = String::new();
    for (label, place) in labels.iter().zip(places) {
        let (class, shown, mark) = (&label.class, escaped(&label.text), &label.mark);
        let _ = write!(
            text,
            "<g class=\"{class}\"><path class=\"lead\" d=\"M0 {:.1}L10 {place:.1}\"/>\
             <g transform=\"translate(17 {place:.1})\">{mark}</g>\
             <text x=\"25\" y=\"{place:.1}\">{shown}</text>",
            label.y
        );
        for (i, below) in (1..).zip(&label.below) {
            let (y, below) = (place + 1.0 + SMALL_LINE * f64::from(i), escaped(below));
            let _ = write!(text, "<text class=\"small\" x=\"25\" y=\"{y:.1}\">{below}</text>");
        }
        text.push_str("</g>");
    }
    text
}

/// Moves ascending places of labels of these heights so far apart, within a height, that none
/// touches another, and no further than needed. A place is the middle of a label's first line.
fn apart(places: &mut [f64], heights: &[f64], height: f64) {
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
    fn labels_move_apart_and_stay_inside() {
        let mut places = [50.0, 52.0, 54.0, 199.0, 200.0];
        apart(&mut places, &[16.0, 16.0, 28.5, 16.0, 16.0], 200.0);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 16.0 - 1e-9), "{places:?}");
        assert!(places[3] - places[2] >= 28.5 - 1e-9, "{places:?}");
        assert!((places[0] - 50.0).abs() < 1e-9 && places[4] <= 192.0, "{places:?}");
    }

    #[test]
    fn a_long_name_goes_on_below() {
        let fold = |text: &str| {
            let (text, class, mark) = (text.to_owned(), String::new(), String::new());
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
