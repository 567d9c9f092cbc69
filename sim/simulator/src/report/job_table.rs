//! A row for each job: what it asked for, when and where it started, and why, in the placer's words.
//!
//! Of many jobs those that waited longest are shown, since theirs are the reasons that are looked
//! for; then those that took longest. A second table counts the reasons of all starts.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::markup::{escaped, grouped, time};
use super::table::Table;
use crate::engine::recording::{RecordedJob, RecordedPlacement, Recording};

/// Later starts of a job that are told.
const MOVES: usize = 6;
/// Nodes of a start that are named.
const NODES: usize = 4;
/// Kinds of reasons that are told.
const REASONS: usize = 12;

/// Reasons for the starts of a run, most frequent first: those that differ in their figures alone
/// are one kind.
pub(super) fn reasons(recording: &Recording) -> String {
    let mut kinds: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let placements = recording.jobs.iter().flat_map(|job| &job.placements);
    let mut starts = 0;
    for placement in placements {
        starts += 1;
        let said = placement.reason.to_string();
        kinds.entry(kind(&said)).or_insert((0, said)).0 += 1;
    }
    let mut ranked: Vec<(usize, String)> = kinds.into_values().collect();
    ranked.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut table = Table::of_cards(&["starts", "reason (one of them)"]);
    for (count, said) in ranked.iter().take(REASONS) {
        table.row(&[grouped(&count.to_string()), escaped(said)]);
    }
    let rest: usize = ranked.iter().skip(REASONS).map(|(count, _)| count).sum();
    if rest > 0 {
        table.row(&[grouped(&rest.to_string()), "other reasons".to_owned()]);
    }
    let starts = grouped(&starts.to_string());
    format!("<p>Why jobs started or went on, {starts} times in all:</p>\n{}", table.done())
}

/// A sentence without its figures and without the names in which they stand.
fn kind(said: &str) -> String {
    let plain = |word: &str| !word.contains(|c: char| c.is_ascii_digit());
    let words: Vec<&str> = said.split(' ').map(|w| if plain(w) { w } else { "#" }).collect();
    words.join(" ").replace("GPUs", "GPU")
}

/// The jobs of a run, `rows` of them at most.
pub(super) fn draw(recording: &Recording, rows: usize) -> String {
    let mut jobs: Vec<&RecordedJob> = recording.jobs.iter().collect();
    let end_us = recording.until_us;
    let waited = |job: &RecordedJob| wait_us(job, end_us);
    let took =
        |job: &RecordedJob| job.finished_us.unwrap_or(u64::MAX).saturating_sub(job.submit_us);
    jobs.sort_by_key(|job| std::cmp::Reverse((waited(job), took(job))));
    jobs.truncate(rows);
    jobs.sort_by_key(|job| job.submit_us);
    let mut table = Table::of_cards(&[
        "job",
        "workload",
        "asked",
        "came",
        "waited",
        "ran on",
        "done after",
        "restarts",
        "why",
    ]);
    let from_us = recording.from_us;
    let sortable =
        |us: u64, text: &str| format!("<span data-by=\"{}\">{text}</span>", us / 1_000_000);
    for job in &jobs {
        let came = job.submit_us.saturating_sub(from_us);
        let asked = match (job.asked.min, job.asked.max) {
            (min, max) if min == max => min.to_string(),
            (min, max) => format!("{min} to {max}"),
        };
        let done = job.finished_us.map(|at| at - job.submit_us);
        let first = job.placements.first();
        table.row(&[
            escaped(&job.id),
            escaped(&job.workload),
            asked,
            sortable(came, &said(came)),
            sortable(waited(job), &said(waited(job))),
            first.map_or_else(|| "-".to_owned(), |first| place(recording, first)),
            done.map_or_else(|| "not done".to_owned(), |us| sortable(us, &said(us))) + &late(job),
            job.placements.len().saturating_sub(1).to_string(),
            why(recording, job),
        ]);
    }
    let all = recording.jobs.len();
    let mut text = String::new();
    if jobs.len() < all {
        let (shown, all) = (jobs.len(), grouped(&all.to_string()));
        let _ = writeln!(
            text,
            "<p class=\"note\">{shown} of {all} jobs: those that waited longest, then those that \
             took longest.</p>"
        );
    }
    text.push_str(&table.done());
    text
}

/// How far it missed its deadline, where it did.
fn late(job: &RecordedJob) -> String {
    let by = job.finished_us.zip(job.deadline_us).map_or(0, |(at, by)| at.saturating_sub(by));
    if by == 0 { String::new() } else { format!("<br/><small>{} too late</small>", said(by)) }
}

/// How long it waited for its first start; to the end of the run where it never did.
fn wait_us(job: &RecordedJob, end_us: u64) -> u64 {
    let start = job.placements.first().map_or(end_us, |placement| placement.from_us);
    start.saturating_sub(job.submit_us)
}

fn said(us: u64) -> String {
    time(us as f64 / 1e6)
}

/// `4 on n3, 1080 MHz`
fn place(recording: &Recording, placement: &RecordedPlacement) -> String {
    let nodes = placement.on.by_node.iter().take(NODES).map(|spot| {
        recording.nodes.get(spot.node.index()).map_or_else(String::new, |node| node.id.to_string())
    });
    let mut text =
        format!("{} on {}", placement.on.gpu_count(), nodes.collect::<Vec<_>>().join(", "));
    let more = placement.on.by_node.len().saturating_sub(NODES);
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    if !placement.setting.is_default() {
        let _ = write!(text, ", {}", placement.setting);
    }
    escaped(text)
}

/// Why it started when and where it did, and went on elsewhere.
fn why(recording: &Recording, job: &RecordedJob) -> String {
    let mut text = String::new();
    if let Some(rejected) = &job.rejected {
        return escaped(format!("turned away: {rejected}"));
    }
    match job.placements.first() {
        Some(first) => text.push_str(&escaped(&first.reason)),
        None => text.push_str("never started"),
    }
    if wait_us(job, recording.until_us) > 0 {
        // Who was never the first of those that wait started as soon as it was.
        let turn = || "its turn had not come".to_owned();
        let waited = job.waited.as_ref().map_or_else(turn, escaped);
        let _ = write!(text, "<br/><small>it waited: {waited}</small>");
    }
    let moves = &job.placements[job.placements.len().min(1)..];
    if moves.is_empty() {
        return text;
    }
    let _ = write!(text, "<details><summary>then</summary><ul>");
    for placement in moves.iter().take(MOVES) {
        let after = said(placement.from_us.saturating_sub(job.submit_us));
        let where_to = place(recording, placement);
        let reason = escaped(&placement.reason);
        let _ = write!(text, "<li>after {after}, {where_to}: {reason}</li>");
    }
    if moves.len() > MOVES {
        let _ = write!(text, "<li>and {} more</li>", moves.len() - MOVES);
    }
    text.push_str("</ul></details>");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_differ_in_words_not_in_figures() {
        let a = kind("4 GPUs: the last step won 1.32 of completion time per energy, price 0.65");
        let b = kind("1 GPU: the last step won 0.70 of completion time per energy, price 0.65");
        assert_eq!(a, b);
        assert_ne!(a, kind("first in the queue; first room in node order"));
    }
}
