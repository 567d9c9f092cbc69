//! Local times without an offset in a trace during which the clocks of a site may have changed.
//!
//! In spring an hour of local times does not exist, in autumn one occurs twice, and a span across a change is
//! an hour longer or shorter than the difference of its local times. A trace names no time zone. It contradicts
//! a wrong one: a job's end would be earlier than its start and its elapsed time give, or an hour later, or jobs
//! would use more of a node's GPUs at one time than they do otherwise. Of the rules below, the one with the
//! fewest contradictions is used where it has fewer than times without any change. A note calls it inferred, with
//! the contradictions of both, and names other rules with equally few. Where nothing contradicts plain times, a note
//! names the dates of possible changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::TraceJob;
use super::inferred::{Use, peak, shares};
use super::slurm_runs::ReadJob;
use crate::text::pluralize;

/// Where clocks change, and by which rule (POSIX, `TZ`); the hours are local ones, so that one rule is that of all
/// zones of a country. Source: the IANA time zone database.
const RULES: &[(&str, &str)] = &[
    ("central Europe", "CET-1CEST,M3.5.0,M10.5.0/3"),
    ("western Europe", "WET0WEST,M3.5.0/1,M10.5.0"),
    ("eastern Europe", "EET-2EEST,M3.5.0/3,M10.5.0/4"),
    ("North America", "EST5EDT,M3.2.0,M11.1.0"),
    ("Australia", "AEST-10AEDT,M10.1.0,M4.1.0/3"),
    ("New Zealand", "NZST-12NZDT,M9.5.0,M4.1.0/3"),
];

const HOUR_US: i64 = 3_600_000_000;
/// Slurm rounds times to seconds.
const ROUNDING_US: i64 = 1_000_000;

/// Local times between two changes, microseconds as if the zone were UTC.
struct Segment {
    from: i64,
    until: i64,
    /// What makes them times of one clock.
    shift: i64,
}

/// The clocks of a place during a trace.
struct Clocks {
    place: &'static str,
    segments: Vec<Segment>,
    /// The dates of changes.
    dates: Vec<String>,
}

impl Clocks {
    /// The clocks by a rule between two local times; `None` without a change between them.
    fn of((place, rule): (&'static str, &str), first: i64, last: i64) -> Option<Self> {
        let zone = TimeZone::posix(rule).ok()?;
        let offset_us = |offset: jiff::tz::Offset| i64::from(offset.seconds()) * 1_000_000;
        // Two days before, so that the first local time is after it in every zone.
        let begin = Timestamp::from_microsecond(first - 48 * HOUR_US).ok()?;
        let mut offset = offset_us(zone.to_offset(begin));
        let mut from = i64::MIN;
        let (mut segments, mut dates) = (Vec::<Segment>::new(), Vec::new());
        for change in zone.following(begin) {
            let (at, next) = (change.timestamp().as_microsecond(), offset_us(change.offset()));
            // The last local time before the change is the first that is read twice, or skipped.
            if at + offset.min(next) > last {
                break;
            }
            segments.push(Segment { from, until: at + offset, shift: -offset });
            if at + offset.max(next) >= first {
                let local = Timestamp::from_microsecond(at + offset).ok()?;
                dates.push(local.strftime("%Y-%m-%d").to_string());
            }
            (from, offset) = (at + next, next);
        }
        segments.push(Segment { from, until: i64::MAX, shift: -offset });
        // The first local time keeps its value.
        let own = segments.iter().find(|own| own.from <= first && first < own.until);
        let shift = own.map_or(0, |own| own.shift);
        segments.iter_mut().for_each(|segment| segment.shift -= shift);
        (!dates.is_empty()).then_some(Self { place, segments, dates })
    }

    /// What a local time may be: one time, or two; none in an hour that is skipped.
    fn readings(&self, local: i64) -> Vec<i64> {
        let of = |segment: &&Segment| segment.from <= local && local < segment.until;
        self.segments.iter().filter(of).map(|segment| local + segment.shift).collect()
    }
}

/// Times of one job under a reading, and whether they contradict it.
struct Reading {
    submit: i64,
    start: i64,
    end: i64,
    contradicts: bool,
}

fn us(at: Duration) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

fn span(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

/// The reading of a job's times; without clocks, of its times as they are.
fn reading(clocks: Option<&Clocks>, read: &ReadJob) -> Option<Reading> {
    let job = &read.job;
    let (start, end) = (us(job.started?), us(job.ended?));
    let lasts = us(job.duration);
    let clocks = clocks.filter(|_| read.is_local);
    let all = |local: i64| match clocks.map(|clocks| clocks.readings(local)) {
        Some(readings) if !readings.is_empty() => (readings, false),
        Some(_) => (vec![local], true),
        None => (vec![local], false),
    };
    let ((starts, start_skipped), (ends, end_skipped)) = (all(start), all(end));
    let pairs = starts.iter().flat_map(|&start| {
        let ends = if read.has_end { ends.clone() } else { vec![start + lasts] };
        ends.into_iter().map(move |end| (start, end))
    });
    let stated = if read.has_duration { lasts } else { end - start };
    // The pair whose span is the elapsed time; else the shortest that is no shorter.
    let error = |&(start, end): &(i64, i64)| {
        let over = end - start - stated;
        (over < -ROUNDING_US, over.abs())
    };
    let (start, end) = pairs.min_by_key(error)?;
    let over = end - start - lasts;
    let is_off =
        read.has_duration && (over < -ROUNDING_US || (over - HOUR_US).abs() <= ROUNDING_US);
    let skipped = start_skipped || (read.has_end && end_skipped);
    let submits = all(us(job.submit)).0;
    let before = submits.iter().copied().filter(|submit| *submit <= start).max();
    let submit = before.or_else(|| submits.first().copied())?;
    Some(Reading { submit, start, end, contradicts: is_off || skipped })
}

/// The number of contradictions of a reading: jobs, then GPUs in use on all nodes at their busiest times.
fn contradictions(clocks: Option<&Clocks>, read: &[ReadJob]) -> (usize, u64) {
    let mut jobs = 0;
    let mut uses: BTreeMap<&str, Vec<Use>> = BTreeMap::new();
    for read in read {
        let Some(times) = reading(clocks, read) else { continue };
        jobs += usize::from(times.contradicts && read.is_local);
        // A suspended job may have left its GPUs to another.
        if (times.end - times.start - us(read.job.duration)).abs() > ROUNDING_US {
            continue;
        }
        for (node, gpus) in shares(&read.job) {
            let uses = uses.entry(node).or_default();
            uses.extend([(span(times.start), true, gpus), (span(times.end), false, gpus)]);
        }
    }
    (jobs, uses.values_mut().map(|uses| peak(uses)).sum())
}

/// Sets the times of jobs with local times by the reading that they contradict least. Returns a note where clocks
/// may have changed.
pub(super) fn resolve(read: &mut [ReadJob]) -> Option<String> {
    let of = |job: &TraceJob| [Some(job.submit), job.started, job.ended];
    let local = read.iter().filter(|read| read.is_local).flat_map(|read| of(&read.job)).flatten();
    let (first, last) =
        local.map(us).fold((i64::MAX, i64::MIN), |(first, last), at| (first.min(at), last.max(at)));
    if first > last {
        return None;
    }
    let known: Vec<Clocks> =
        RULES.iter().filter_map(|rule| Clocks::of(*rule, first, last)).collect();
    if known.is_empty() {
        return None;
    }
    let plain = contradictions(None, read);
    let judged: Vec<_> =
        known.iter().map(|clocks| (contradictions(Some(clocks), read), clocks)).collect();
    let best = judged.iter().min_by_key(|(found, _)| *found).filter(|(found, _)| *found < plain);
    let Some((found, clocks)) = best else {
        let dates: BTreeSet<&str> =
            known.iter().flat_map(|clocks| &clocks.dates).map(String::as_str).collect();
        let dates = dates.into_iter().take(4).collect::<Vec<_>>().join(", ");
        return Some(format!(
            "times without an offset are ambiguous by an hour where the site's clocks changed ({dates} in some \
             countries), and are read as if they did not; export times in seconds (SLURM_TIME_FORMAT=%s) or with \
             an offset"
        ));
    };
    for read in read.iter_mut() {
        let Some(times) = reading(Some(clocks), read).filter(|_| read.is_local) else { continue };
        read.job.submit = span(times.submit);
        (read.job.started, read.job.ended) = (Some(span(times.start)), Some(span(times.end)));
        if !read.has_duration {
            read.job.duration = span(times.end - times.start);
        }
    }
    let equal = judged.iter().filter(|(other, _)| other == found).map(|(_, other)| other.place);
    let others: Vec<&str> = equal.filter(|place| *place != clocks.place).collect();
    let fit = if others.is_empty() {
        String::new()
    } else {
        format!("; those of {} fit as well", others.join(" and "))
    };
    Some(format!(
        "times without an offset are read with the clocks of {}, which changed on {}: inferred, since with unchanged \
         clocks {}, with these {}{fit}; export times in seconds (SLURM_TIME_FORMAT=%s) or with an offset to be certain",
        clocks.place,
        clocks.dates.join(", "),
        evidence(plain),
        evidence(*found),
    ))
}

/// What contradicts a reading, for a note.
fn evidence((jobs, gpus): (usize, u64)) -> String {
    let verb = if jobs == 1 { "contradicts" } else { "contradict" };
    let jobs = format!("{} {verb} the elapsed time", pluralize(jobs, "job"));
    match gpus {
        0 => jobs,
        gpus => {
            format!("{jobs} and the nodes have {} in use at their peaks", pluralize(gpus, "GPU"))
        }
    }
}
