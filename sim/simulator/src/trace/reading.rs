//! The jobs of a recognized file: its rows, their notes, and the order of submission.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use csv::{ByteRecord, StringRecord};
use wattle_common::JobId;

use super::format::Recognised;
use super::lines::Lines;
use super::notes::Notes;
use super::row::{Row, RowNotes};
use super::slurm_runs::{self, ReadJob};
use super::{ROUNDING, RowError, Trace, TraceError, TraceJob, local_times};
use crate::text::{pluralize, sanitize};

/// Most jobs of a trace: about a gigabyte of memory.
pub const JOBS_MAX: usize = 2_000_000;

/// Limits of what a trace has.
struct Limits {
    jobs: usize,
    /// Node names, summed over the jobs: a list of hosts may be short, and have any number of them.
    node_names: usize,
}

const LIMITS: Limits = Limits { jobs: JOBS_MAX, node_names: 2 * JOBS_MAX };

/// A row as cells, and whether it had bytes that are not UTF-8.
type Cells = Result<(StringRecord, bool), RowError>;

/// Reads all rows of a file in this format.
pub(super) fn rows(name: &str, text: &[u8], recognised: &Recognised) -> Result<Trace, TraceError> {
    rows_within(&LIMITS, name, text, recognised)
}

fn rows_within(
    limits: &Limits,
    name: &str,
    text: &[u8],
    recognised: &Recognised,
) -> Result<Trace, TraceError> {
    let Recognised { format, header, .. } = recognised;
    let mut notes = Notes::default();
    note_columns(recognised, &mut notes);
    let columns: BTreeMap<String, usize> = header
        .iter()
        .enumerate()
        .rev()
        .map(|(i, column)| (column.to_ascii_lowercase(), i))
        .collect();
    let mut read: Vec<ReadJob> = Vec::new();
    let mut seen: BTreeSet<JobId> = BTreeSet::new();
    let mut node_names = 0;
    let mut row_notes = RowNotes::default();
    each_row(text, recognised, &mut |line, cells| {
        let (record, is_lossy) = match cells {
            Ok(cells) => cells,
            Err(error) => {
                notes.leave_out(&error, line);
                return Ok(());
            }
        };
        if is_lossy {
            notes.add("with bytes that are not UTF-8, each read as \u{fffd}", line);
        }
        row_notes.clear();
        let row = Row { columns: &columns, record: &record, width: header.len(), line };
        match (format.row)(&row, &mut row_notes) {
            Err(error) => notes.leave_out(&error, line),
            Ok(job) if !format.repeats && !seen.insert(job.id.clone()) => {
                notes.leave_out(&RowError::DuplicateId, line);
            }
            Ok(job) => {
                node_names += job.node_names.len();
                let RowNotes { is_local, has_duration, has_end, .. } = row_notes;
                let notes = row_notes.iter().collect();
                read.push(ReadJob { job, line, notes, is_local, has_duration, has_end });
            }
        }
        let limit = if read.len() > limits.jobs {
            pluralize(limits.jobs, "job")
        } else if node_names > limits.node_names {
            format!("{} in its jobs", pluralize(limits.node_names, "node name"))
        } else {
            return Ok(());
        };
        Err(TraceError::TooLarge { name: name.to_owned(), limit })
    })?;
    one_cluster(name, &read)?;
    if format.calendar {
        local_times::resolve(&mut read).into_iter().for_each(|note| notes.add_for_file(note));
    }
    read.iter_mut().for_each(end_after_duration);
    if format.repeats {
        read = slurm_runs::separate(read, |error, line| notes.leave_out(error, line));
    }
    let mut latest = Duration::ZERO;
    for ReadJob { job, line, notes: own, .. } in &read {
        own.iter().for_each(|what| notes.add(*what, *line));
        if job.submit < latest {
            notes.add("out of order, sorted by submission", *line);
        }
        latest = job.submit;
    }
    let mut jobs: Vec<TraceJob> = read.into_iter().map(|read| read.job).collect();
    jobs.sort_by_key(|job| job.submit);
    let Some(first) = jobs.first().map(|job| job.submit) else {
        let first = notes.into_list().into_iter().find(|note| note.count > 0);
        return Err(TraceError::Empty { name: name.to_owned(), first });
    };
    if format.calendar {
        for job in &mut jobs {
            job.submit -= first;
            for at in [&mut job.deadline, &mut job.started, &mut job.ended] {
                *at = at.map(|at| at.saturating_sub(first));
            }
        }
    }
    let origin = format.calendar.then_some(first);
    Ok(Trace { name: name.to_owned(), format: format.name, jobs, notes: notes.into_list(), origin })
}

/// Notes on columns that are not read, are read without a header, or are repeated.
fn note_columns(recognised: &Recognised, notes: &mut Notes) {
    let Recognised { format, header, has_header } = recognised;
    if format.json.is_some() {
        return;
    }
    let unread: Vec<String> = header
        .iter()
        .filter(|column| !column.is_empty() && !format.reads(column))
        .map(|column| sanitize(column))
        .collect();
    if !unread.is_empty() {
        notes.add_for_file(format!("columns not read: {}", unread.join(", ")));
    }
    if format.has_header && !has_header {
        let columns = format.headless.join(",");
        notes.add_for_file(format!("no header line; the columns are read as {columns}"));
    }
    let named = |i: usize, column: &String| {
        !column.is_empty() && header[..i].iter().any(|before| before.eq_ignore_ascii_case(column))
    };
    let repeated: Vec<String> = header
        .iter()
        .enumerate()
        .filter(|(i, column)| named(*i, column))
        .map(|(_, column)| sanitize(column))
        .collect();
    if !repeated.is_empty() {
        let columns = repeated.join(", ");
        notes.add_for_file(format!(
            "columns that are repeated, of which the first is used: {columns}"
        ));
    }
}

/// Gives `take` each row of the file with its first line.
fn each_row(
    text: &[u8],
    recognised: &Recognised,
    take: &mut dyn FnMut(u64, Cells) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let Recognised { format, has_header, .. } = recognised;
    let mut lines = Lines::of(text);
    if let Some(records) = format.json {
        for (place, object) in super::json::objects(text, "jobs").into_iter().flatten() {
            let line = lines.line_at(place);
            match records(object) {
                Err(error) => take(line, Err(error))?,
                Ok(all) => {
                    all.into_iter().try_for_each(|record| take(line, Ok((record, false))))?;
                }
            }
        }
        return Ok(());
    }
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .flexible(true)
        .delimiter(format.delimiter)
        .quoting(format.delimiter == b',')
        .has_headers(*has_header)
        .from_reader(text);
    let mut bytes = ByteRecord::new();
    loop {
        let place =
            |position: &csv::Position| usize::try_from(position.byte()).unwrap_or(usize::MAX);
        let before = place(reader.position());
        match reader.read_byte_record(&mut bytes) {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(_) => {
                take(lines.line_at(before), Err(RowError::NoCells))?;
                continue;
            }
        }
        let line = lines.line_at(bytes.position().map_or(before, place));
        // A row with a name in another encoding is kept.
        let cells = StringRecord::from_byte_record(bytes.clone())
            .map(|record| (record, false))
            .unwrap_or_else(|error| {
                (StringRecord::from_byte_record_lossy(error.into_byte_record()), true)
            });
        take(line, Ok(cells))?;
    }
}

/// Refuses the jobs of several clusters.
fn one_cluster(name: &str, read: &[ReadJob]) -> Result<(), TraceError> {
    let mut clusters: BTreeMap<&str, usize> = BTreeMap::new();
    for cluster in read.iter().filter_map(|read| read.job.cluster.as_deref()) {
        *clusters.entry(cluster).or_default() += 1;
    }
    if clusters.len() < 2 {
        return Ok(());
    }
    let shown = |(cluster, jobs): (&&str, &usize)| {
        format!("{} ({})", sanitize(cluster), pluralize(*jobs, "job"))
    };
    let clusters = clusters.iter().map(shown).collect::<Vec<_>>().join(", ");
    Err(TraceError::Clusters { name: name.to_owned(), clusters })
}

/// A job ends no earlier than its duration after its start.
fn end_after_duration(read: &mut ReadJob) {
    let Some((start, end)) = read.job.started.zip(read.job.ended) else { return };
    let least = start + read.job.duration;
    if end + ROUNDING < least {
        read.notes.push(
            "whose End is earlier than Start and Elapsed give, so that its times are ambiguous, read as \
             ended after Elapsed; export with SLURM_TIME_FORMAT=%s",
        );
        read.job.ended = Some(least);
    }
}

#[cfg(test)]
mod tests {
    use super::super::format;
    use super::*;

    #[test]
    fn jobs_and_node_names_are_limited_while_they_are_read() {
        let row = |id| format!("{id}|1000000|01:00:00|gres/gpu:a100=8|n[1-3]\n");
        let text = "JobID|Submit|Elapsed|AllocTRES|NodeList\n".to_owned() + &row(1) + &row(2);
        let recognised = format::recognise("s.txt", text.as_bytes(), None).unwrap();
        let read = |jobs, node_names| {
            let limits = Limits { jobs, node_names };
            let read = rows_within(&limits, "s.txt", text.as_bytes(), &recognised);
            read.map(|trace| trace.jobs.len()).map_err(|error| error.to_string())
        };
        assert_eq!(read(2, 6), Ok(2));
        let error = read(1, 6).unwrap_err();
        assert!(error.contains("more than 1 job; export a shorter period"), "{error}");
        let error = read(2, 5).unwrap_err();
        assert!(error.contains("more than 5 node names in its jobs"), "{error}");
    }
}
