//! Which node runs what over time: a row for each GPU, in bands of a node, and sleep hatched.
//!
//! A job keeps its workload's colour. Where it shares its GPUs it is drawn over the lower part of
//! who was there before. The largest pieces answer a pointer; smaller ones are drawn together, ones
//! too short to be seen as a grey stripe, and what does not fit into a page is counted.

use std::collections::BTreeMap;
use std::fmt::Write;

use wattle_placer::state::gpu_set::bits;

use super::frame::{ACROSS, picture};
use super::markup::{escaped, time};
use super::scale::Scale;
use crate::engine::recording::{RecordedJob, RecordedPlacement, Recording};
use crate::said::counted;

/// Workloads with a colour of their own; the others share one.
const COLOURS: usize = 7;
/// Nodes that are drawn.
const NODES: usize = 32;
/// A piece of a thousandth of the run or less is no more than a stripe.
const STRIPE: f64 = 1.0;
/// Pixels between two nodes.
const GAP: f64 = 4.0;

/// How much may be drawn.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Pieces that answer a pointer.
    pub(super) titled: usize,
    /// Further pieces.
    pub(super) plain: usize,
}

/// Workloads and the colours they have, the same in all maps of a page: by GPU time.
pub(super) struct Colours {
    known: Vec<String>,
}

impl Colours {
    /// Of everything in `recordings`.
    pub(super) fn of<'a>(recordings: impl Iterator<Item = &'a Recording>) -> Self {
        let mut time: BTreeMap<&str, u128> = BTreeMap::new();
        for job in recordings.flat_map(|recording| &recording.jobs) {
            let gpu_us = |p: &RecordedPlacement| {
                u128::from(p.until_us - p.from_us) * u128::from(p.on.gpu_count())
            };
            *time.entry(job.workload.as_str()).or_default() +=
                job.placements.iter().map(gpu_us).sum::<u128>();
        }
        let mut ranked: Vec<(&str, u128)> = time.into_iter().collect();
        ranked.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        Self { known: ranked.into_iter().map(|(name, _)| name.to_owned()).collect() }
    }

    fn class(&self, workload: &str) -> usize {
        let own = self.known.iter().take(COLOURS).position(|known| known == workload);
        own.unwrap_or(COLOURS)
    }

    /// What the colours mean, for above the maps.
    pub(super) fn legend(&self) -> String {
        let mut text = "<ul class=\"legend\">".to_owned();
        let mut entry = |class: &str, name: &str| {
            let _ = write!(text, "<li><span class=\"swatch {class}\"></span>{name}</li>");
        };
        for (i, name) in self.known.iter().take(COLOURS).enumerate() {
            entry(&format!("w{i}"), &escaped(name));
        }
        if self.known.len() > COLOURS {
            let others = self.known.len() - COLOURS;
            entry(&format!("w{COLOURS}"), &format!("{others} other workloads"));
        }
        entry("stripe", "too short to draw");
        entry("free", "awake, no job");
        entry("asleep", "asleep");
        text.push_str("</ul>\n");
        text
    }
}

/// Some neighbouring GPUs of one node under one job.
struct Piece<'a> {
    job: &'a RecordedJob,
    placement: &'a RecordedPlacement,
    x: f64,
    width: f64,
    y: f64,
    height: f64,
    class: usize,
}

/// The map of one run; `number` tells it from others of the page, `scale` is in seconds.
pub(super) fn draw(
    recording: &Recording,
    colours: &Colours,
    scale: &Scale,
    unit: f64,
    room: Room,
    number: usize,
) -> String {
    let nodes = &recording.nodes[..recording.nodes.len().min(NODES)];
    let gpus: u32 = nodes.iter().map(|node| node.gpus).sum();
    let row = (460.0 / f64::from(gpus.max(1))).clamp(1.5, 14.0);
    let mut tops = Vec::with_capacity(nodes.len());
    let mut height = 0.0;
    for node in nodes {
        tops.push(height);
        height += row * f64::from(node.gpus) + GAP;
    }
    let pixels = height.ceil() as u32;
    let across = |at_us: u64| {
        let s = at_us.saturating_sub(recording.from_us) as f64 / 1e6;
        ACROSS * scale.at(s / unit)
    };
    let mut inner = format!(
        "<defs><pattern id=\"z{number}\" width=\"5\" height=\"5\" \
         patternUnits=\"userSpaceOnUse\"><path class=\"hatch\" d=\"M0 5L5 0\"/></pattern></defs>"
    );
    let end = across(recording.until_us);
    for (node, top) in nodes.iter().zip(&tops) {
        let high = row * f64::from(node.gpus);
        let _ = write!(
            inner,
            "<rect class=\"free\" x=\"0\" y=\"{top:.1}\" width=\"{end:.1}\" height=\"{high:.1}\"/>"
        );
    }
    let mut naps = String::new();
    for nap in recording.naps.iter().filter(|nap| nap.node < nodes.len()) {
        let (x, width) = (across(nap.from_us), across(nap.until_us) - across(nap.from_us));
        if width >= 0.2 {
            let high = row * f64::from(nodes[nap.node].gpus);
            let _ = write!(naps, "M{x:.1} {:.1}h{width:.1}v{high:.1}h-{width:.1}z", tops[nap.node]);
        }
    }
    let _ = write!(
        inner,
        "<path class=\"asleep\" d=\"{naps}\"/>\
         <path style=\"fill:url(#z{number})\" d=\"{naps}\"/>"
    );
    let (mut pieces, stripes) = pieces(recording, nodes.len(), colours, &tops, row, &across);
    let _ = write!(inner, "<path class=\"stripe\" d=\"{stripes}\"/>");
    // The largest first, for they answer; then what is left is drawn below them.
    let area = |piece: &Piece<'_>| piece.width * piece.height;
    pieces.sort_by(|a, b| area(b).total_cmp(&area(a)));
    let left_out = pieces.len().saturating_sub(room.titled + room.plain);
    pieces.truncate(room.titled + room.plain);
    let titled = pieces.len().min(room.titled);
    let mut together = vec![String::new(); COLOURS + 1];
    for piece in &pieces[titled..] {
        let Piece { x, y, width, height, class, .. } = piece;
        let _ = write!(together[*class], "M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z");
    }
    for (class, d) in together.iter().enumerate().filter(|(_, d)| !d.is_empty()) {
        let _ = write!(inner, "<path class=\"w{class}\" d=\"{d}\"/>");
    }
    // Who shares lies over who was there before, whatever their sizes.
    let mut shown: Vec<&Piece<'_>> = pieces[..titled].iter().collect();
    shown.sort_by_key(|piece| piece.placement.from_us);
    for piece in shown {
        let Piece { x, y, width, height, class, .. } = piece;
        let _ = write!(
            inner,
            "<rect class=\"w{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\"><title>{}</title></rect>",
            escaped(title(piece, recording.from_us))
        );
    }
    let mut text = frame(recording, nodes.len(), &tops, row, pixels, scale, &inner);
    let hidden = recording.nodes.len() - nodes.len();
    if hidden > 0 {
        let _ = writeln!(text, "<p class=\"note\">{hidden} more nodes are not drawn.</p>");
    }
    let left_out = left_out + recording.left_out;
    if left_out > 0 {
        let _ = writeln!(
            text,
            "<p class=\"note\">The {left_out} smallest pieces are left out, to keep the page small.</p>"
        );
    }
    text
}

/// What can be seen of every placement, and the stripes of what cannot.
fn pieces<'a>(
    recording: &'a Recording,
    nodes: usize,
    colours: &Colours,
    tops: &[f64],
    row: f64,
    across: &dyn Fn(u64) -> f64,
) -> (Vec<Piece<'a>>, String) {
    let mut placements: Vec<(&RecordedJob, &RecordedPlacement)> = recording
        .jobs
        .iter()
        .flat_map(|job| job.placements.iter().map(move |placement| (job, placement)))
        .filter(|(_, placement)| placement.until_us > placement.from_us)
        .collect();
    placements.sort_by_key(|(_, placement)| (placement.from_us, placement.until_us));
    let mut pieces = Vec::new();
    // Until when each tenant of a GPU stays.
    let mut there: BTreeMap<(usize, u32), Vec<u64>> = BTreeMap::new();
    // Where the stripes of neighbouring GPUs are.
    let mut stripes: BTreeMap<(usize, u32, u32), Vec<(f64, f64)>> = BTreeMap::new();
    for (job, placement) in placements {
        let (x, end) = (across(placement.from_us), across(placement.until_us));
        for spot in &placement.on.by_node {
            let node = spot.node.index();
            if node >= nodes {
                continue;
            }
            for (first, count) in runs(spot.gpus) {
                let mut slot = 0;
                for gpu in first..first + count {
                    let tenants = there.entry((node, gpu)).or_default();
                    tenants.retain(|until| *until > placement.from_us);
                    slot = slot.max(tenants.len());
                    tenants.push(placement.until_us);
                }
                let top = tops[node] + row * f64::from(first);
                if end - x < STRIPE {
                    let stripe = stripes.entry((node, first, count)).or_default();
                    let last = stripe.last_mut().filter(|last| x - last.1 < 0.3);
                    match last {
                        Some(last) => last.1 = last.1.max(end),
                        None => stripe.push((x, end)),
                    }
                    continue;
                }
                let whole = row * f64::from(count);
                // A second tenant covers the lower half, a third the lower third, and so on.
                let height = whole / (slot + 1) as f64;
                pieces.push(Piece {
                    job,
                    placement,
                    x,
                    width: end - x,
                    y: top + whole - height,
                    height,
                    class: colours.class(job.workload.as_str()),
                });
            }
        }
    }
    let mut d = String::new();
    for ((node, gpu, count), stripe) in stripes {
        let (y, high) = (tops[node] + row * f64::from(gpu), row * f64::from(count));
        for (x, end) in stripe {
            let width = (end - x).max(0.2);
            let _ = write!(d, "M{x:.1} {y:.1}h{width:.1}v{high:.1}h-{width:.1}z");
        }
    }
    (pieces, d)
}

/// Neighbouring GPUs of a set: (first, how many).
fn runs(gpus: u64) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for gpu in bits(gpus) {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == gpu => *count += 1,
            _ => runs.push((gpu, 1)),
        }
    }
    runs
}

fn title(piece: &Piece<'_>, from_us: u64) -> String {
    let Piece { job, placement, .. } = piece;
    let at = |us: u64| time(us.saturating_sub(from_us) as f64 / 1e6);
    let set = if placement.setting.is_default() {
        String::new()
    } else {
        format!(" at {}", placement.setting)
    };
    format!(
        "{} ({}): {}{set}, {} to {}. {}",
        job.id,
        job.workload,
        counted(placement.on.gpu_count(), "GPU"),
        at(placement.from_us),
        at(placement.until_us),
        placement.reason
    )
}

/// Names of the nodes, the drawing, and the time below.
fn frame(
    recording: &Recording,
    nodes: usize,
    tops: &[f64],
    row: f64,
    pixels: u32,
    scale: &Scale,
    inner: &str,
) -> String {
    let mut names = String::new();
    // Names of small nodes would touch.
    let mut free = 0.0;
    for (node, top) in recording.nodes[..nodes].iter().zip(tops) {
        let middle = top + row * f64::from(node.gpus) / 2.0;
        if middle >= free {
            let name = escaped(&node.id);
            let _ = write!(names, "<text x=\"100%\" dx=\"-7\" y=\"{middle:.1}\">{name}</text>");
            free = middle + 13.0;
        }
    }
    let mut below = String::new();
    for (i, (share, text)) in scale.ticks().enumerate() {
        let class = if i % 2 == 1 { " class=\"wide\"" } else { "" };
        let (x, y) = (100.0 * share, pixels + 14);
        let _ = write!(below, "<text x=\"{x:.2}%\" y=\"{y}\"{class}>{text}</text>");
    }
    let whole = pixels + 20;
    format!(
        "<div class=\"frame map\"><svg class=\"numbers\" height=\"{whole}\" aria-hidden=\"true\">\
         {names}</svg><svg class=\"area\" height=\"{whole}\" role=\"img\" aria-label=\"Which node \
         runs what over time\">{}<g class=\"below\">{below}</g></svg></div>\n",
        picture(pixels, inner)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_gpus_are_one_piece() {
        assert_eq!(runs(0b1101_1110), [(1, 4), (6, 2)]);
        assert_eq!(runs(0), []);
    }
}
