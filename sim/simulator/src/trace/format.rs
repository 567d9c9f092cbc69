//! What a format of traces is, and which one a file is of.
//!
//! Another format is one more file beside this one and one more line in [`FORMATS`].

use super::row::{Odd, Row};
use super::{TraceError, TraceJob, chronus, elasticflow, gavel, philly, slurm, tiresias};
use crate::text::sanitize;

/// One format: its columns, and how a row becomes a job. Names of columns are compared without
/// case.
pub(super) struct Format {
    /// What people call it.
    pub(super) name: &'static str,
    /// What the command line calls it.
    pub(super) key: &'static str,
    pub(super) delimiter: u8,
    /// Whether the first row names the columns; otherwise they are `required`, in that order.
    pub(super) has_header: bool,
    /// Whether times are dates; the first submission is then the trace's beginning.
    pub(super) calendar: bool,
    pub(super) required: &'static [&'static str],
    /// Of each of these groups one must be there.
    pub(super) one_of: &'static [&'static [&'static str]],
    pub(super) optional: &'static [&'static str],
    pub(super) row: fn(&Row<'_>, &mut Odd) -> Result<TraceJob, String>,
}

/// A file of comma-separated values with a header, and nothing more said.
pub(super) const CSV: Format = Format {
    name: "",
    key: "",
    delimiter: b',',
    has_header: true,
    calendar: false,
    required: &[],
    one_of: &[],
    optional: &[],
    row: |_, _| Err("nobody reads it".to_owned()),
};

pub(super) static FORMATS: [&Format; 6] = [
    &philly::FORMAT,
    &tiresias::FORMAT,
    &gavel::FORMAT,
    &elasticflow::FORMAT,
    &chronus::FORMAT,
    &slurm::FORMAT,
];

impl Format {
    /// Whether it has a use for the column, or knows that it has none.
    pub(super) fn reads(&self, column: &str) -> bool {
        let groups = self.one_of.iter().flat_map(|group| group.iter());
        let mut all = self.required.iter().chain(groups).chain(self.optional);
        all.any(|own| own.eq_ignore_ascii_case(column))
    }

    /// The columns it needs, for people.
    fn needs(&self) -> String {
        let mut text = self.required.join(",");
        for group in self.one_of {
            text += &format!(" and one of {}", group.join(","));
        }
        text
    }

    /// The first column that a file with this header lacks.
    fn lacks(&self, header: &[String]) -> Option<String> {
        if !self.has_header {
            return (header.len() < self.required.len())
                .then(|| self.required[header.len()].to_owned());
        }
        let has = |column: &&&str| header.iter().any(|own| own.eq_ignore_ascii_case(column));
        let required = self.required.iter().find(|column| !has(column));
        let group = || self.one_of.iter().find(|group| !group.iter().any(|column| has(&column)));
        required
            .map(|&column| column.to_owned())
            .or_else(|| group().map(|group| group.join(" or ")))
    }

    /// How many of the columns it needs are there, in per mille.
    fn likeness(&self, header: &[String]) -> usize {
        let has = |column: &&&str| header.iter().any(|own| own.eq_ignore_ascii_case(column));
        1_000 * self.required.iter().filter(has).count() / self.required.len().max(1)
    }

    /// The first row as a format like this one splits it.
    fn header(&self, bytes: &[u8]) -> Vec<String> {
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .flexible(true)
            .delimiter(self.delimiter)
            .quoting(self.delimiter == b',')
            .from_reader(bytes);
        let header = reader.byte_headers().cloned().unwrap_or_default();
        let text = |cell: &[u8]| {
            String::from_utf8_lossy(cell).trim_start_matches('\u{feff}').trim().to_owned()
        };
        header.iter().map(text).collect()
    }
}

/// What there is, for people.
pub(super) fn known() -> String {
    let show = |format: &&Format| format!("{} ({})", format.name, format.needs());
    FORMATS.iter().map(show).collect::<Vec<_>>().join("; ")
}

/// The columns a file has, for people: of a file that is no trace there may be any number.
fn listed(header: &[String]) -> String {
    /// No format has as many.
    const LISTED_MAX: usize = 20;
    let mut all: Vec<String> =
        header.iter().take(LISTED_MAX).map(|column| sanitize(column)).collect();
    if header.len() > LISTED_MAX {
        all.push(format!("and {} more", header.len() - LISTED_MAX));
    }
    all.join(",")
}

/// The format of a file's bytes, and its columns.
///
/// Of the formats whose every needed column is there it is the one that needs most; the columns of
/// one format may be a part of another's.
pub(super) fn recognise(
    name: &str,
    bytes: &[u8],
    asked: Option<&str>,
) -> Result<(&'static Format, Vec<String>), TraceError> {
    let candidates: Vec<&'static Format> = match asked {
        None => FORMATS.to_vec(),
        Some(asked) => {
            let unknown = || TraceError::UnknownFormat { format: asked.to_owned() };
            vec![*FORMATS.iter().find(|format| format.key == asked).ok_or_else(unknown)?]
        }
    };
    let with_header = |format: &'static Format| (format, format.header(bytes));
    let candidates: Vec<(&'static Format, Vec<String>)> =
        candidates.into_iter().map(with_header).collect();
    if candidates.iter().all(|(_, header)| header.iter().all(String::is_empty)) {
        return Err(TraceError::Empty { name: name.to_owned(), first: None });
    }
    let columns = |format: &'static Format, header: Vec<String>| {
        let own = || format.required.iter().map(|&column| column.to_owned()).collect();
        (format, if format.has_header { header } else { own() })
    };
    let whole = candidates.iter().filter(|(format, header)| format.lacks(header).is_none());
    if let Some((format, header)) =
        whole.max_by_key(|(format, _)| format.required.len() + format.one_of.len())
    {
        return Ok(columns(format, header.clone()));
    }
    let (format, header) = candidates
        .iter()
        .max_by_key(|(format, header)| format.likeness(header))
        .expect("there are formats");
    let name = name.to_owned();
    let headless = |(format, cells): &(&Format, Vec<String>)| {
        format.key == slurm::FORMAT.key && slurm::is_row(cells)
    };
    if candidates.iter().any(headless) {
        return Err(TraceError::NoHeader { name });
    }
    if asked.is_none() && format.likeness(header) == 0 {
        let column = sanitize(candidates[0].1.first().map_or("", String::as_str));
        return Err(TraceError::UnknownColumn { name, column });
    }
    Err(TraceError::MissingColumn {
        name,
        column: format.lacks(header).unwrap_or_default(),
        format: format.name,
        columns: format.needs(),
        has: listed(header),
    })
}
