//! Jobs of a run: request, first start, waiting time, and the placer's reasons.
//!
//! Of many jobs those with the longest waits are shown, since their reasons are of interest; then
//! those with the longest completion times. A second table counts the reasons of all starts.

use std::collections::BTreeMap;

use maud::{Markup, Render, html};

use super::format::{duration, grouped};
use super::table::{Table, cell};
use wattle_simulator::{RecordedJob, RecordedPlacement, Recording};

/// Most later starts listed of a job.
const MOVES: usize = 6;
/// Most nodes named of a start.
const NODES: usize = 4;
/// Most kinds of reasons listed.
const REASONS: usize = 12;

/// Reasons for the starts of a run, most frequent first. Reasons that differ only in their numbers
/// count as one.
pub(super) fn reasons(recording: &Recording) -> Markup {
    let mut kinds: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let placements = recording.jobs.iter().flat_map(|job| &job.placements);
    let mut starts = 0;
    for placement in placements {
        starts += 1;
        let reason = placement.reason.to_string();
        kinds.entry(without_numbers(&reason)).or_insert((0, reason)).0 += 1;
    }
    let mut ranked: Vec<(usize, String)> = kinds.into_values().collect();
    ranked.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut table = Table::new(&["starts", "reason (example)"]);
    for (count, reason) in ranked.iter().take(REASONS) {
        table.row(vec![cell(grouped(&count.to_string())), reason.render()]);
    }
    let rest: usize = ranked.iter().skip(REASONS).map(|(count, _)| count).sum();
    if rest > 0 {
        table.row(vec![cell(grouped(&rest.to_string())), "other reasons".render()]);
    }
    html! {
        p { "Reasons of starts and resumptions, " (grouped(&starts.to_string())) " in all:" }
        (table)
    }
}

/// A sentence with every word that has a digit replaced by `#`.
fn without_numbers(sentence: &str) -> String {
    let plain = |word: &str| !word.contains(|c: char| c.is_ascii_digit());
    let words: Vec<&str> = sentence.split(' ').map(|w| if plain(w) { w } else { "#" }).collect();
    words.join(" ").replace("GPUs", "GPU")
}

/// The jobs of a run, at most `rows` of them.
pub(super) fn draw(recording: &Recording, rows: usize) -> Markup {
    let mut jobs: Vec<&RecordedJob> = recording.jobs.iter().collect();
    let waited = |job: &RecordedJob| wait_us(job, recording.until_us);
    let took =
        |job: &RecordedJob| job.finished_us.unwrap_or(u64::MAX).saturating_sub(job.submit_us);
    jobs.sort_by_key(|job| std::cmp::Reverse((waited(job), took(job))));
    jobs.truncate(rows);
    jobs.sort_by_key(|job| job.submit_us);
    let mut table = Table::new(&[
        "job",
        "workload",
        "requested GPUs",
        "submitted",
        "waited",
        "ran on",
        "completed after",
        "restarts",
        "reasons",
    ]);
    for job in &jobs {
        let requested = match (job.request.min, job.request.max) {
            (min, max) if min == max => min.to_string(),
            (min, max) => format!("{min} to {max}"),
        };
        let first = job.placements.first();
        table.row(vec![
            job.id.as_str().render(),
            job.workload.as_str().render(),
            cell(requested),
            sortable(job.submit_us.saturating_sub(recording.from_us)),
            sortable(waited(job)),
            cell(first.map(|first| place(recording, first))),
            completion(job),
            cell(job.placements.len().saturating_sub(1).to_string()),
            why(recording, job),
        ]);
    }
    let all = recording.jobs.len();
    html! {
        @if jobs.len() < all {
            p.note {
                (jobs.len()) " of " (grouped(&all.to_string())) " jobs: those with the longest waits, "
                "then those with the longest completion times."
            }
        }
        (table)
    }
}

/// A duration that the table sorts by its seconds.
fn sortable(us: u64) -> Markup {
    html! { span data-by=(us / 1_000_000) { (duration_us(us)) } }
}

/// The completion time, and the delay after a missed deadline.
fn completion(job: &RecordedJob) -> Markup {
    let late = job.finished_us.zip(job.deadline_us).map_or(0, |(at, by)| at.saturating_sub(by));
    html! {
        @match job.finished_us {
            Some(at) => (sortable(at - job.submit_us)),
            None => "not finished",
        }
        @if late > 0 { br; small { (duration_us(late)) " too late" } }
    }
}

/// The wait for the first start; until the end of the run for a job that never started.
fn wait_us(job: &RecordedJob, end_us: u64) -> u64 {
    let start = job.placements.first().map_or(end_us, |placement| placement.from_us);
    start.saturating_sub(job.submit_us)
}

fn duration_us(us: u64) -> String {
    duration(us as f64 / 1e6)
}

/// `4 on n3, 1080 MHz`
fn place(recording: &Recording, placement: &RecordedPlacement) -> String {
    let nodes = placement.on.by_node.iter().take(NODES).map(|here| {
        recording.nodes.get(here.node.index()).map_or_else(String::new, |node| node.id.to_string())
    });
    let mut text =
        format!("{} on {}", placement.on.gpu_count(), nodes.collect::<Vec<_>>().join(", "));
    let more = placement.on.by_node.len().saturating_sub(NODES);
    if more > 0 {
        text += &format!(" and {more} more");
    }
    if !placement.setting.is_default() {
        text += &format!(", {}", placement.setting);
    }
    text
}

/// The reasons of its first start, its wait and its later starts.
fn why(recording: &Recording, job: &RecordedJob) -> Markup {
    if let Some(rejected) = &job.rejected {
        return html! { "rejected: " (rejected) };
    }
    let waited = wait_us(job, recording.until_us) > 0;
    let moves = &job.placements[job.placements.len().min(1)..];
    html! {
        @match job.placements.first() {
            Some(first) => (first.reason.to_string()),
            None => "never started",
        }
        @if waited {
            br;
            // A job that was never the head of the queue has no reason of its own.
            small {
                "it waited: "
                @match &job.wait_reason {
                    Some(reason) => (reason.to_string()),
                    None => "it was not at the head of the queue",
                }
            }
        }
        @if !moves.is_empty() {
            details {
                summary { "then" }
                ul {
                    @for placement in moves.iter().take(MOVES) {
                        li {
                            "after " (duration_us(placement.from_us.saturating_sub(job.submit_us))) ", "
                            (place(recording, placement)) ": " (placement.reason.to_string())
                        }
                    }
                    @if moves.len() > MOVES { li { "and " (moves.len() - MOVES) " more" } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_differ_only_in_numbers_are_one_kind() {
        let a = "4 GPUs: last step saved 1.32 of completion time per energy, price 0.65";
        let b = "1 GPU: last step saved 0.70 of completion time per energy, price 0.65";
        assert_eq!(without_numbers(a), without_numbers(b));
        let other = "first in the queue, on the first free GPUs in node order";
        assert_ne!(without_numbers(a), without_numbers(other));
    }
}
