//! A colour and a mark for each policy, the same in every plot of a page.
//!
//! Colours have enough contrast to be read as text, on light and dark backgrounds, and stay apart
//! for colour-blind readers. Marks differ too, so no information depends on colour alone. After
//! eight policies the colours repeat with other marks.

use maud::{Markup, html};

/// Number of different colours and marks.
const COUNT: usize = 8;

/// SVG paths around the origin, each about nine pixels wide.
const MARKS: [&str; COUNT] = [
    "M-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0-8.4 0z",
    "M-3.8-3.8h7.6v7.6h-7.6z",
    "M0-5L4.8 3.6h-9.6z",
    "M0-5.2L5.2 0L0 5.2L-5.2 0z",
    "M0 5L4.8-3.6h-9.6z",
    "M-1.6-5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
    "M0-5.4L1.5-1.7L5.1-1.7L2.4.8L3.3 4.6L0 2.4L-3.3 4.6L-2.4.8L-5.1-1.7L-1.5-1.7z",
    "M-4.6-2.4h9.2v4.8h-9.2z",
];

/// The CSS class of a policy's colour; `slot` is the policy's index on the page.
pub fn class(slot: usize) -> String {
    format!("c{}", slot % COUNT)
}

/// A policy's mark, as an SVG path in its colour.
pub fn mark(slot: usize) -> Markup {
    html! { path class=(class(slot)) d=(MARKS[(slot + slot / COUNT) % COUNT]) {} }
}

/// A policy's name after its mark.
pub fn named(slot: usize, name: &str) -> Markup {
    html! {
        span class={ "name " (class(slot)) } {
            svg.mark width="12" height="12" viewBox="-6 -6 12 12" aria-hidden="true" { (mark(slot)) }
            (name)
        }
    }
}
