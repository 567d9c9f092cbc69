//! Names of jobs in the rectangles of a node map.

use maud::{Markup, html};

use super::axes::ACROSS;
use super::node_map::{Piece, Rect};

/// Least height of a GPU's row with names, pixels.
pub(super) const ROW: f64 = 14.0;
/// Width of the map for which names are laid out, pixels: they fit wider maps, and narrow screens hide them.
const NARROWEST: f64 = 640.0;
/// Height of names, pixels: usual, and least.
const SIZE: f64 = 12.0;
const SIZE_LEAST: f64 = 7.0;
/// Mean width of a character, as a share of its height.
const CHARACTER: f64 = 0.62;
/// Places of a name in its rectangle, the best first: position across and down, and the share of the height
/// that the name may have.
const PLACES: [(f64, f64, f64); 6] = [
    (0.5, 0.5, 1.0),
    (0.5, 0.25, 0.5),
    (0.25, 0.5, 1.0),
    (0.75, 0.5, 1.0),
    (0.25, 0.25, 0.5),
    (0.75, 0.25, 0.5),
];

/// The names of these pieces, which are in the order in which they cover each other.
pub(super) fn draw(pieces: &[Piece<'_>]) -> Markup {
    html! {
        g.job {
            @for (i, piece) in pieces.iter().enumerate() {
                @if let Some(name) = Name::of(piece, &pieces[i + 1..]) {
                    text.wide x=(format!("{:.2}%", 100.0 * name.x / NARROWEST))
                        y=(format!("{:.1}", name.y)) style=(format!("font-size:{:.0}px", name.size)) {
                        (name.text)
                    }
                }
            }
        }
    }
}

/// A name, with its middle and its height in pixels.
struct Name {
    text: String,
    x: f64,
    y: f64,
    size: f64,
}

impl Name {
    /// The job's id, with its setting where there is room, in a part of the piece that none of `later` covers.
    fn of(piece: &Piece<'_>, later: &[Piece<'_>]) -> Option<Self> {
        let id = piece.job.id.to_string();
        let setting = &piece.placement.setting;
        let long = (!setting.is_default()).then(|| format!("{id} {setting}"));
        let Rect { x: left, y: top, width, height } = in_pixels(piece.rect);
        let texts = long.into_iter().chain([id]);
        let mut names = texts.flat_map(|text| {
            PLACES.map(|(across, down, share)| {
                let size = SIZE.min(height * share - 2.0);
                let (x, y) = (left + across * width, top + down * height);
                (Self { text: text.clone(), x, y, size }, 2.0 * across.min(1.0 - across) * width)
            })
        });
        let fits = |(name, room): &(Self, f64)| {
            let covered = || later.iter().any(|piece| name.touches(in_pixels(piece.rect)));
            name.size >= SIZE_LEAST && name.width() < *room && !covered()
        };
        names.find(fits).map(|(name, _)| name)
    }

    fn width(&self) -> f64 {
        CHARACTER * self.size * self.text.chars().count() as f64
    }

    fn touches(&self, rect: Rect) -> bool {
        let (half, high) = (self.width() / 2.0, self.size / 2.0);
        self.x - half < rect.x + rect.width
            && rect.x < self.x + half
            && self.y - high < rect.y + rect.height
            && rect.y < self.y + high
    }
}

/// A rectangle of the stretched picture on the narrowest map.
fn in_pixels(rect: Rect) -> Rect {
    let scale = NARROWEST / ACROSS;
    Rect { x: rect.x * scale, width: rect.width * scale, ..rect }
}
