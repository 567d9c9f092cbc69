//! One row of a trace, accessed by column name. Errors name the column.

use std::collections::BTreeMap;
use std::time::Duration;

use csv::StringRecord;
use wattle_common::JobId;

use super::RowError;

/// Notes on a row that is read as a job.
#[derive(Default)]
pub(super) struct RowNotes {
    notes: Vec<&'static str>,
    /// Whether its times are local ones, without an offset.
    pub(super) is_local: bool,
    /// Whether its duration is stated besides its start and end.
    pub(super) has_duration: bool,
    /// Whether its end is stated; otherwise it is the start plus the duration.
    pub(super) has_end: bool,
}

impl RowNotes {
    /// Adds a note: the anomaly and how it is handled.
    pub(super) fn add(&mut self, what: &'static str) {
        self.notes.push(what);
    }
    pub(super) fn clear(&mut self) {
        self.notes.clear();
        (self.is_local, self.has_duration, self.has_end) = (false, false, false);
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = &'static str> {
        self.notes.iter().copied()
    }
}

/// One row.
pub(super) struct Row<'a> {
    /// Column indices by lower-case name.
    pub(super) columns: &'a BTreeMap<String, usize>,
    pub(super) record: &'a StringRecord,
    /// Number of columns in the header.
    pub(super) width: usize,
    /// Its first line in the file, from 1.
    pub(super) line: u64,
}

impl<'a> Row<'a> {
    /// A cell; `None` where it is empty or the column is missing.
    pub(super) fn text(&self, column: &str) -> Option<&'a str> {
        let place = match self.columns.get(column) {
            Some(place) => *place,
            None => *self.columns.get(&column.to_ascii_lowercase())?,
        };
        let cell = self.record.get(place)?.trim();
        (!cell.is_empty()).then_some(cell)
    }

    /// A required cell.
    pub(super) fn required(&self, column: &'static str) -> Result<&'a str, RowError> {
        self.text(column).ok_or(RowError::Missing(column))
    }

    /// A cell as an id.
    pub(super) fn id(&self, column: &'static str) -> Result<JobId, RowError> {
        fit_id(self.required(column)?).ok_or(RowError::IdTooLong(column))
    }

    /// A cell as seconds.
    pub(super) fn seconds(&self, column: &'static str) -> Result<Duration, RowError> {
        let text = self.required(column)?;
        let seconds: f64 = text.parse().map_err(|_| RowError::NotANumber(column))?;
        if seconds < 0.0 {
            return Err(RowError::Negative(column));
        }
        span(seconds).ok_or(RowError::NotATime(column))
    }

    /// A cell as seconds; `None` where it is empty or the column is missing.
    pub(super) fn optional_seconds(
        &self,
        column: &'static str,
    ) -> Result<Option<Duration>, RowError> {
        self.text(column).map(|_| self.seconds(column)).transpose()
    }

    /// A cell as `true` or `false`; `None` where it is empty or the column is missing.
    pub(super) fn flag(&self, column: &'static str) -> Result<Option<bool>, RowError> {
        let read = |text| flag(text).ok_or(RowError::NotAFlag(column));
        self.text(column).map(read).transpose()
    }

    /// A cell as a number of GPUs.
    pub(super) fn gpus(&self, column: &'static str) -> Result<u32, RowError> {
        match self.required(column)?.parse::<u32>() {
            Ok(0) => Err(RowError::Zero(column)),
            Ok(gpus) => Ok(gpus),
            Err(_) => Err(RowError::NotAPositiveInteger(column)),
        }
    }

    /// A cell as a priority; 0 where it is empty or the column is missing.
    pub(super) fn priority(&self, column: &'static str) -> Result<u32, RowError> {
        let read = |text: &str| text.parse().map_err(|_| RowError::NotAPriority(column));
        self.text(column).map_or(Ok(0), read)
    }

    /// A cell as a positive integer; `None` where it is not one.
    pub(super) fn count(&self, column: &str) -> Option<u64> {
        self.text(column)?.parse().ok().filter(|&count| count > 0)
    }
}

/// `true` or `false` as text, in any case; `None` for any other text.
pub(super) fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "1" => Some(true),
        "false" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// An id in which each invalid character is replaced by `-`.
pub(super) fn fit_id(text: &str) -> Option<JobId> {
    let fit: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect();
    JobId::new(&fit).ok()
}

/// Seconds as a duration; `None` where negative, too large or not a number.
pub(super) fn span(seconds: f64) -> Option<Duration> {
    /// A thousand years, so that no sum of times overflows.
    const SECONDS_MAX: f64 = 3.2e10;
    (0.0..=SECONDS_MAX)
        .contains(&seconds)
        .then(|| Duration::from_micros((seconds * 1e6).round() as u64))
}
