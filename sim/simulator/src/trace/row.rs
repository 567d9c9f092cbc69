//! One row of a trace, by the names of its columns. What a cell cannot be is said in words that
//! name the column.

use std::collections::BTreeMap;
use std::time::Duration;

use csv::StringRecord;
use wattle_common::JobId;

/// What is odd about a row that is a job all the same.
#[derive(Default)]
pub(super) struct Odd(Vec<&'static str>);

impl Odd {
    /// Says what is odd, and what was done about it.
    pub(super) fn say(&mut self, what: &'static str) {
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
    /// Names in lower case, and where they stand.
    pub(super) columns: &'a BTreeMap<String, usize>,
    pub(super) record: &'a StringRecord,
    /// The line of the file it begins on, from 1.
    pub(super) line: u64,
}

impl<'a> Row<'a> {
    /// A cell; `None` where it is empty or the column is not there.
    pub(super) fn text(&self, column: &str) -> Option<&'a str> {
        let place = match self.columns.get(column) {
            Some(place) => *place,
            None => *self.columns.get(&column.to_ascii_lowercase())?,
        };
        let cell = self.record.get(place)?.trim();
        (!cell.is_empty()).then_some(cell)
    }

    /// A cell that must be there.
    pub(super) fn needed(&self, column: &str) -> Result<&'a str, String> {
        self.text(column).ok_or_else(|| format!("{column} is empty"))
    }

    /// A cell as an id.
    pub(super) fn id(&self, column: &str) -> Result<JobId, String> {
        fit_id(self.needed(column)?).ok_or_else(|| format!("{column} is longer than an id may be"))
    }

    /// A cell as seconds.
    pub(super) fn seconds(&self, column: &str) -> Result<Duration, String> {
        let text = self.needed(column)?;
        let seconds: f64 = text.parse().map_err(|_| format!("{column} is no number"))?;
        if seconds < 0.0 {
            return Err(format!("{column} is negative"));
        }
        span(seconds).ok_or_else(|| format!("{column} is no time"))
    }

    /// A cell as a number of GPUs.
    pub(super) fn gpus(&self, column: &str) -> Result<u32, String> {
        match self.needed(column)?.parse::<u32>() {
            Ok(0) => Err(format!("{column} is 0")),
            Ok(gpus) => Ok(gpus),
            Err(_) => Err(format!("{column} is no whole number of at least 1")),
        }
    }

    /// A cell as a whole number above 0, where it is one.
    pub(super) fn count(&self, column: &str) -> Option<u64> {
        self.text(column)?.parse().ok().filter(|&count| count > 0)
    }
}

/// An id: what an id cannot have becomes `-`.
pub(super) fn fit_id(text: &str) -> Option<JobId> {
    let fit: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect();
    JobId::new(&fit).ok()
}

/// Seconds as a span; `None` where they are none.
pub(super) fn span(seconds: f64) -> Option<Duration> {
    /// A thousand years, so that no sum of times overflows.
    const SECONDS_MAX: f64 = 3.2e10;
    (0.0..=SECONDS_MAX)
        .contains(&seconds)
        .then(|| Duration::from_micros((seconds * 1e6).round() as u64))
}
