//! One row of a trace, accessed by column name. Errors name the column.

use std::collections::BTreeMap;
use std::time::Duration;

use csv::StringRecord;
use wattle_common::JobId;

/// Notes on a row that is read as a job.
#[derive(Default)]
pub(super) struct RowNotes(Vec<&'static str>);

impl RowNotes {
    /// Adds a note: the anomaly and how it is handled.
    pub(super) fn add(&mut self, what: &'static str) {
        self.0.push(what);
    }
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().copied()
    }
}

/// One row.
pub(super) struct Row<'a> {
    /// Column indices by lower-case name.
    pub(super) columns: &'a BTreeMap<String, usize>,
    pub(super) record: &'a StringRecord,
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
    pub(super) fn required(&self, column: &str) -> Result<&'a str, String> {
        self.text(column).ok_or_else(|| format!("{column} is empty"))
    }

    /// A cell as an id.
    pub(super) fn id(&self, column: &str) -> Result<JobId, String> {
        fit_id(self.required(column)?)
            .ok_or_else(|| format!("{column} is longer than an id allows"))
    }

    /// A cell as seconds.
    pub(super) fn seconds(&self, column: &str) -> Result<Duration, String> {
        let text = self.required(column)?;
        let seconds: f64 = text.parse().map_err(|_| format!("{column} is not a number"))?;
        if seconds < 0.0 {
            return Err(format!("{column} is negative"));
        }
        span(seconds).ok_or_else(|| format!("{column} is not a time"))
    }

    /// A cell as seconds; `None` where it is empty or the column is missing.
    pub(super) fn optional_seconds(&self, column: &str) -> Result<Option<Duration>, String> {
        self.text(column).map(|_| self.seconds(column)).transpose()
    }

    /// A cell as `true` or `false`; `None` where it is empty or the column is missing.
    pub(super) fn flag(&self, column: &str) -> Result<Option<bool>, String> {
        match self.text(column).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(None),
            Some("true" | "yes" | "1") => Ok(Some(true)),
            Some("false" | "no" | "0") => Ok(Some(false)),
            Some(_) => Err(format!("{column} is neither true nor false")),
        }
    }

    /// A cell as a number of GPUs.
    pub(super) fn gpus(&self, column: &str) -> Result<u32, String> {
        match self.required(column)?.parse::<u32>() {
            Ok(0) => Err(format!("{column} is 0")),
            Ok(gpus) => Ok(gpus),
            Err(_) => Err(format!("{column} is not a positive integer")),
        }
    }

    /// A cell as a positive integer; `None` where it is not one.
    pub(super) fn count(&self, column: &str) -> Option<u64> {
        self.text(column)?.parse().ok().filter(|&count| count > 0)
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
