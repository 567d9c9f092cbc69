//! Notes on a trace's file and rows: one for each anomaly, with its number of rows and the first lines.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use super::RowError;

/// Most lines listed in a note; further rows are counted.
const NAMED_MAX: usize = 5;

/// Most different notes on rows; further ones share one.
const NOTES_MAX: usize = 50;

/// A note on some rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowNote {
    /// The anomaly and how it is handled.
    pub what: String,
    /// Number of rows.
    pub count: usize,
    /// Lines of the first few, from 1.
    pub lines: Vec<u64>,
}

impl fmt::Display for RowNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines.is_empty() {
            return f.write_str(&self.what);
        }
        let lines: Vec<String> = self.lines.iter().map(ToString::to_string).collect();
        let more = if self.count > self.lines.len() { ", ..." } else { "" };
        let (rows, at) = if self.count == 1 { ("row", "line") } else { ("rows", "lines") };
        write!(f, "{} {rows} {} ({at} {}{more})", self.count, self.what, lines.join(", "))
    }
}

/// Notes on a file, and on its rows with their lines.
#[derive(Default)]
pub(super) struct Notes {
    on_file: Vec<RowNote>,
    /// The number of rows, and the first lines ascending.
    on_rows: BTreeMap<Cow<'static, str>, (usize, Vec<u64>)>,
}

impl Notes {
    /// Adds a note on the file.
    pub(super) fn add_for_file(&mut self, what: String) {
        self.on_file.push(RowNote { what, count: 0, lines: Vec::new() });
    }

    pub(super) fn leave_out(&mut self, error: &RowError, line: u64) {
        self.add(format!("left out: {error}"), line);
    }

    pub(super) fn add(&mut self, what: impl Into<Cow<'static, str>>, line: u64) {
        let what = what.into();
        let is_new = !self.on_rows.contains_key(&what);
        let what = if is_new && self.on_rows.len() >= NOTES_MAX {
            Cow::Borrowed("left out for other reasons")
        } else {
            what
        };
        let (count, lines) = self.on_rows.entry(what).or_default();
        *count += 1;
        lines.insert(lines.partition_point(|known| *known <= line), line);
        lines.truncate(NAMED_MAX);
    }

    /// All notes: on the file, then on rows by their first line.
    pub(super) fn into_list(self) -> Vec<RowNote> {
        let note = |(what, (count, lines)): (Cow<'static, str>, (usize, Vec<u64>))| RowNote {
            what: what.into_owned(),
            count,
            lines,
        };
        let mut on_rows: Vec<RowNote> = self.on_rows.into_iter().map(note).collect();
        on_rows.sort_by_key(|note| note.lines.first().copied());
        self.on_file.into_iter().chain(on_rows).collect()
    }
}
