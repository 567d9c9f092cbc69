//! How policies are told apart: a colour and a mark each, the same in every plot of a page.
//!
//! Colours are dark (on paper) and light (in the dark) enough to be read as text, and far enough
//! apart for people who see fewer of them; marks differ too, so colour never stands alone. After
//! eight policies the colours begin anew, with other marks.

/// How many look different.
const KINDS: usize = 8;

/// Outlines around the origin, each about nine pixels wide.
const MARKS: [&str; KINDS] = [
    "M-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0-8.4 0z",
    "M-3.8-3.8h7.6v7.6h-7.6z",
    "M0-5L4.8 3.6h-9.6z",
    "M0-5.2L5.2 0L0 5.2L-5.2 0z",
    "M0 5L4.8-3.6h-9.6z",
    "M-1.6-5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
    "M0-5.4L1.5-1.7L5.1-1.7L2.4.8L3.3 4.6L0 2.4L-3.3 4.6L-2.4.8L-5.1-1.7L-1.5-1.7z",
    "M-4.6-2.4h9.2v4.8h-9.2z",
];

/// The class that gives the policy its colour: see the page's style.
pub(super) fn class(slot: usize) -> String {
    format!("c{}", slot % KINDS)
}

/// A policy's mark as a path of its colour.
pub(super) fn mark(slot: usize) -> String {
    format!("<path class=\"{}\" d=\"{}\"/>", class(slot), MARKS[(slot + slot / KINDS) % KINDS])
}

/// A policy's mark among text.
pub(super) fn inline(slot: usize) -> String {
    format!(
        "<svg class=\"mark\" width=\"12\" height=\"12\" viewBox=\"-6 -6 12 12\" \
         aria-hidden=\"true\">{}</svg>",
        mark(slot)
    )
}
