//! Jobs on GPUs over time: a row per GPU, a band per node; sleeping nodes are hatched.
//!
//! A job has its workload's colour. A job that shares its GPUs covers the lower part of its
//! co-tenants. The largest rectangles have tooltips, and names where rows are high enough
//! ([`super::job_names`]); smaller ones are merged into paths, the shortest are drawn as grey stripes, and
//! rectangles beyond the page's size limit are counted.

use std::collections::BTreeMap;
use std::fmt::Write;

use maud::{Markup, Render, html};
use wattle_placer::state::gpu_set::bits;

use super::axes::{ACROSS, picture, ticks_below};
use super::format::duration;
use super::frame::Frame;
use super::job_names;
use super::recorded::Recorded;
use super::scale::Scale;
use wattle_simulator::text::pluralize;
use wattle_simulator::{RecordedJob, RecordedPlacement, Recording};

/// Workloads with a colour of their own; the others share one.
const COLOURS: usize = 7;
/// Most nodes drawn.
const NODES: usize = 32;
/// Width below which a rectangle becomes a stripe, in thousandths of the run.
const STRIPE: f64 = 1.0;
/// Gap between two nodes, pixels.
const GAP: f64 = 4.0;

/// The most rectangles of one map.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Rectangles with tooltips.
    pub(super) titled: usize,
    /// Further rectangles.
    pub(super) plain: usize,
}

/// Colours of workloads, the same in all maps of a page.
pub(super) struct Colours {
    /// Workloads by descending GPU time.
    workloads: Vec<String>,
}

impl Colours {
    /// The colours of all workloads in `runs`.
    pub(super) fn of_runs(runs: &[Recorded]) -> Self {
        let mut time: BTreeMap<&str, u128> = BTreeMap::new();
        for job in runs.iter().flat_map(|run| &run.recording.jobs) {
            let gpu_us = |p: &RecordedPlacement| {
                u128::from(p.until_us - p.from_us) * u128::from(p.on.gpu_count())
            };
            *time.entry(job.workload.as_str()).or_default() +=
                job.placements.iter().map(gpu_us).sum::<u128>();
        }
        let mut ranked: Vec<(&str, u128)> = time.into_iter().collect();
        ranked.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        Self { workloads: ranked.into_iter().map(|(name, _)| name.to_owned()).collect() }
    }

    fn index(&self, workload: &str) -> usize {
        let own = self.workloads.iter().take(COLOURS).position(|known| known == workload);
        own.unwrap_or(COLOURS)
    }

    /// The legend of these maps: only what they show.
    pub(super) fn legend(&self, maps: &[Markup]) -> Markup {
        let shown = |class: &str| {
            let attribute = format!("class=\"{class}\"");
            maps.iter().any(|map| map.0.contains(&attribute))
        };
        let entry = |class: &str, name: &str| {
            html! { li { span class={ "key " (class) } {} (name) } }
        };
        let others = self.workloads.len().saturating_sub(COLOURS);
        html! {
            ul.legend {
                @for (i, name) in self.workloads.iter().take(COLOURS).enumerate() {
                    (entry(&format!("w{i}"), name))
                }
                @if others > 0 {
                    (entry(&format!("w{COLOURS}"), &format!("{others} other workloads")))
                }
                @for (class, name) in [
                    ("stripe", "too short to draw"),
                    ("free", "awake, no job"),
                    ("asleep", "asleep"),
                ] {
                    @if shown(class) { (entry(class, name)) }
                }
            }
        }
    }
}

/// Adjacent GPUs of one node during one placement of a job.
pub(super) struct Piece<'a> {
    pub(super) job: &'a RecordedJob,
    pub(super) placement: &'a RecordedPlacement,
    pub(super) rect: Rect,
    colour: usize,
}

/// A rectangle in units of the stretched picture.
#[derive(Clone, Copy)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    fn area(self) -> f64 {
        self.width * self.height
    }

    /// Adds its outline to an SVG path.
    fn add_to(self, path: &mut String) {
        let Self { x, y, width, height } = self;
        let _ = write!(path, "M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z");
    }
}

/// The rows of a map, and its horizontal scale.
struct Layout<'a> {
    recording: &'a Recording,
    /// Top of each drawn node.
    tops: Vec<f64>,
    /// Height of one GPU.
    row: f64,
    height: u32,
    scale: &'a Scale,
    /// The scale's unit, seconds.
    unit: f64,
}

impl<'a> Layout<'a> {
    fn new(recording: &'a Recording, scale: &'a Scale, unit: f64) -> Self {
        let nodes = &recording.nodes[..recording.nodes.len().min(NODES)];
        let gpus: u32 = nodes.iter().map(|node| node.gpus).sum();
        let gpus = f64::from(gpus.max(1));
        let row = (460.0 / gpus).clamp(1.5, (68.0 / gpus).max(14.0));
        let mut tops = Vec::with_capacity(nodes.len());
        let mut height = 0.0;
        for node in nodes {
            tops.push(height);
            height += row * f64::from(node.gpus) + GAP;
        }
        Self { recording, tops, row, height: height.ceil() as u32, scale, unit }
    }

    /// Horizontal position of an instant.
    fn x(&self, at_us: u64) -> f64 {
        let s = at_us.saturating_sub(self.recording.from_us) as f64 / 1e6;
        ACROSS * self.scale.at(s / self.unit)
    }

    /// The rectangle of `count` GPUs of a node from `first` on.
    fn rect(&self, node: usize, first: u32, count: u32, x: f64, end: f64) -> Rect {
        let y = self.tops[node] + self.row * f64::from(first);
        Rect { x, y, width: end - x, height: self.row * f64::from(count) }
    }

    /// The rectangle of a node.
    fn node(&self, node: usize, x: f64, end: f64) -> Rect {
        self.rect(node, 0, self.recording.nodes[node].gpus, x, end)
    }
}

/// A map, and what it leaves out.
pub(super) struct Map {
    pub(super) frame: Frame,
    hidden_nodes: usize,
    left_out: usize,
}

impl Render for Map {
    fn render(&self) -> Markup {
        html! {
            (self.frame)
            @if self.hidden_nodes > 0 {
                p.note { (self.hidden_nodes) " more nodes are not drawn." }
            }
            @if self.left_out > 0 {
                p.note {
                    "The " (self.left_out) " smallest rectangles are left out to limit the page's size."
                }
            }
        }
    }
}

/// The map of one run. `number` is its index on the page, `scale` is in units of `unit` seconds.
pub(super) fn draw(
    recording: &Recording,
    colours: &Colours,
    scale: &Scale,
    unit: f64,
    room: Room,
    number: usize,
) -> Map {
    let layout = Layout::new(recording, scale, unit);
    let (mut pieces, stripes) = pieces(&layout, colours);
    pieces.sort_by(|a, b| b.rect.area().total_cmp(&a.rect.area()));
    let left_out = pieces.len().saturating_sub(room.titled + room.plain) + recording.left_out;
    pieces.truncate(room.titled + room.plain);
    let split = room.titled.min(pieces.len());
    let (titled, plain) = pieces.split_at_mut(split);
    // A later co-tenant covers an earlier one, whatever their sizes.
    titled.sort_by_key(|piece| piece.placement.from_us);
    let mut merged = vec![String::new(); COLOURS + 1];
    for piece in plain {
        piece.rect.add_to(&mut merged[piece.colour]);
    }
    let inner = html! {
        (background(&layout, number))
        @if !stripes.is_empty() { path.stripe d=(stripes) {} }
        @for (colour, path) in merged.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
            path class={ "w" (colour) } d=(path) {}
        }
        @for piece in &*titled {
            rect class={ "w" (piece.colour) } x=(format!("{:.1}", piece.rect.x))
                y=(format!("{:.1}", piece.rect.y)) width=(format!("{:.1}", piece.rect.width))
                height=(format!("{:.1}", piece.rect.height)) {
                title { (title(piece, recording.from_us)) }
            }
        }
    };
    let names = if layout.row >= job_names::ROW {
        job_names::draw(titled)
    } else {
        html! {}
    };
    let hidden_nodes = recording.nodes.len() - layout.tops.len();
    Map { frame: frame(&layout, &inner, &names), hidden_nodes, left_out }
}

/// Awake and sleeping nodes.
fn background(layout: &Layout<'_>, number: usize) -> Markup {
    let recording = layout.recording;
    let end = layout.x(recording.until_us);
    let drawn = layout.tops.len();
    let mut asleep = String::new();
    for sleep in recording.sleep_intervals.iter().filter(|sleep| sleep.node < drawn) {
        let rect = layout.node(sleep.node, layout.x(sleep.from_us), layout.x(sleep.until_us));
        if rect.width >= 0.2 {
            rect.add_to(&mut asleep);
        }
    }
    html! {
        defs {
            pattern id={ "z" (number) } width="5" height="5" patternUnits="userSpaceOnUse" {
                path.hatch d="M0 5L5 0" {}
            }
        }
        @for rect in (0..drawn).map(|node| layout.node(node, 0.0, end)) {
            rect.free x="0" y=(format!("{:.1}", rect.y)) width=(format!("{end:.1}"))
                height=(format!("{:.1}", rect.height)) {}
        }
        @if !asleep.is_empty() {
            path.asleep d=(asleep) {}
            path style={ "fill:url(#z" (number) ")" } d=(asleep) {}
        }
    }
}

/// The rectangles of all placements, and one path with the stripes of those too short to draw.
fn pieces<'a>(layout: &Layout<'a>, colours: &Colours) -> (Vec<Piece<'a>>, String) {
    let jobs = &layout.recording.jobs;
    let mut placements: Vec<(&RecordedJob, &RecordedPlacement)> = jobs
        .iter()
        .flat_map(|job| job.placements.iter().map(move |placement| (job, placement)))
        .filter(|(_, placement)| placement.until_us > placement.from_us)
        .collect();
    placements.sort_by_key(|(_, placement)| (placement.from_us, placement.until_us));
    let mut pieces = Vec::new();
    // Ends of the tenancies of each GPU.
    let mut tenancies: BTreeMap<(usize, u32), Vec<u64>> = BTreeMap::new();
    // Stripes of adjacent GPUs: (node, first GPU, count).
    let mut stripes: BTreeMap<(usize, u32, u32), Vec<(f64, f64)>> = BTreeMap::new();
    for (job, placement) in placements {
        let (x, end) = (layout.x(placement.from_us), layout.x(placement.until_us));
        for here in placement.on.by_node.iter().filter(|n| n.node.index() < layout.tops.len()) {
            let node = here.node.index();
            for (first, count) in adjacent(here.gpus) {
                let mut slot = 0;
                for gpu in first..first + count {
                    let tenants = tenancies.entry((node, gpu)).or_default();
                    tenants.retain(|until| *until > placement.from_us);
                    slot = slot.max(tenants.len());
                    tenants.push(placement.until_us);
                }
                if end - x < STRIPE {
                    let stripe = stripes.entry((node, first, count)).or_default();
                    match stripe.last_mut().filter(|last| x - last.1 < 0.3) {
                        Some(last) => last.1 = last.1.max(end),
                        None => stripe.push((x, end)),
                    }
                    continue;
                }
                let full = layout.rect(node, first, count, x, end);
                // A second tenant covers the lower half, a third the lower third.
                let height = full.height / (slot + 1) as f64;
                let rect = Rect { y: full.y + full.height - height, height, ..full };
                let colour = colours.index(job.workload.as_str());
                pieces.push(Piece { job, placement, rect, colour });
            }
        }
    }
    let mut path = String::new();
    for ((node, first, count), stripe) in stripes {
        for (x, end) in stripe {
            layout.rect(node, first, count, x, end.max(x + 0.2)).add_to(&mut path);
        }
    }
    (pieces, path)
}

/// Ranges of adjacent GPUs of a set: (first, count).
fn adjacent(gpus: u64) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for gpu in bits(gpus) {
        match ranges.last_mut() {
            Some((first, count)) if *first + *count == gpu => *count += 1,
            _ => ranges.push((gpu, 1)),
        }
    }
    ranges
}

/// The tooltip.
fn title(piece: &Piece<'_>, from_us: u64) -> String {
    let Piece { job, placement, .. } = piece;
    let at = |us: u64| duration(us.saturating_sub(from_us) as f64 / 1e6);
    let setting = if placement.setting.is_default() {
        String::new()
    } else {
        format!(" at {}", placement.setting)
    };
    format!(
        "{} ({}): {}{setting}, {} to {}. {}",
        job.id,
        job.workload,
        pluralize(placement.on.gpu_count(), "GPU"),
        at(placement.from_us),
        at(placement.until_us),
        placement.reason
    )
}

/// The node names, the drawing with the names of jobs, and the time scale.
fn frame(layout: &Layout<'_>, inner: &Markup, jobs: &Markup) -> Frame {
    let mut names = Vec::new();
    // Names that would overlap are skipped.
    let mut free = 0.0;
    for (node, top) in layout.recording.nodes.iter().zip(&layout.tops) {
        let middle = top + layout.row * f64::from(node.gpus) / 2.0;
        if middle >= free {
            names.push((node.id.as_str(), middle));
            free = middle + 13.0;
        }
    }
    Frame {
        height: layout.height + 20,
        numbers: html! {
            @for (name, middle) in names {
                text x="100%" dx="-7" y=(format!("{middle:.1}")) { (name) }
            }
        },
        area: html! {
            (picture(layout.height, inner))
            (jobs)
            (ticks_below(layout.scale, layout.height + 14))
        },
        ends: html! {},
        description: "Jobs on each node over time".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_gpus_are_one_range() {
        assert_eq!(adjacent(0b1101_1110), [(1, 4), (6, 2)]);
        assert_eq!(adjacent(0), []);
    }
}
