//! Trace formats, and recognition of a file's format.
//!
//! A new format is a new file in this folder and an entry in [`FORMATS`].

use csv::StringRecord;

use super::row::{Row, RowNotes};
use super::{
    RowError, TraceError, TraceJob, acme, chronus, elasticflow, foreign, gavel, helios, json,
    pai2020, pai2023, philly, philly_json, slurm, slurm_json, tiresias,
};
use crate::text::sanitize;

/// The records of a job's object.
pub(super) type Records = fn(&[u8]) -> Result<Vec<StringRecord>, RowError>;

/// A format: its columns, and the conversion of a row to a job. Column names are case-insensitive.
pub(super) struct Format {
    /// Its display name.
    pub(super) name: &'static str,
    /// Its name on the command line.
    pub(super) key: &'static str,
    pub(super) delimiter: u8,
    /// Whether the first row names the columns; otherwise the columns are `required`, in that
    /// order.
    pub(super) has_header: bool,
    /// Whether times are dates; the trace then starts at the first submission.
    pub(super) calendar: bool,
    pub(super) required: &'static [&'static str],
    /// Groups of columns of which one is required.
    pub(super) one_of: &'static [&'static [&'static str]],
    pub(super) optional: &'static [&'static str],
    pub(super) row: fn(&Row<'_>, &mut RowNotes) -> Result<TraceJob, RowError>,
    /// Whether an id may occur in several rows, each a run of the job; otherwise further rows are
    /// left out.
    pub(super) repeats: bool,
    /// The columns of a file without a header, where its first row fits them, and of records from JSON.
    pub(super) headless: &'static [&'static str],
    /// Whether cells are a row of a file without a header.
    pub(super) is_headless: fn(&[String]) -> bool,
    /// The records of an object, where the file is JSON.
    pub(super) json: Option<Records>,
}

/// Comma-separated values with a header; the base of other formats.
pub(super) const CSV: Format = Format {
    name: "",
    key: "",
    delimiter: b',',
    has_header: true,
    calendar: false,
    required: &[],
    one_of: &[],
    optional: &[],
    row: |_, _| Err(RowError::NoCells),
    repeats: false,
    headless: &[],
    is_headless: |_| false,
    json: None,
};

pub(super) static FORMATS: [&Format; 10] = [
    &philly::FORMAT,
    &tiresias::FORMAT,
    &gavel::FORMAT,
    &elasticflow::FORMAT,
    &chronus::FORMAT,
    &slurm::FORMAT,
    &helios::FORMAT,
    &acme::FORMAT,
    &pai2020::FORMAT,
    &pai2023::FORMAT,
];

impl Format {
    /// Whether the format knows the column.
    pub(super) fn reads(&self, column: &str) -> bool {
        let groups = self.one_of.iter().flat_map(|group| group.iter());
        let mut all = self.required.iter().chain(groups).chain(self.optional);
        all.any(|own| own.eq_ignore_ascii_case(column))
    }

    /// The required columns, as text.
    fn needs(&self) -> String {
        let mut text = self.required.join(",");
        for group in self.one_of {
            text += &format!(" and one of {}", group.join(","));
        }
        text
    }

    /// The first required column that a file with this header lacks.
    fn missing(&self, header: &[String]) -> Option<String> {
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

    /// Share of the required columns that the header has, per mille.
    fn likeness(&self, header: &[String]) -> usize {
        let has = |column: &&&str| header.iter().any(|own| own.eq_ignore_ascii_case(column));
        1_000 * self.required.iter().filter(has).count() / self.required.len().max(1)
    }

    /// The first row, split as in this format.
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

/// All formats, as text.
pub(super) fn known() -> String {
    let show = |format: &&Format| format!("{} ({})", format.name, format.needs());
    FORMATS.iter().map(show).collect::<Vec<_>>().join("; ")
}

/// A file's columns, as text of limited length.
fn listed(header: &[String]) -> String {
    /// More than any format has.
    const LISTED_MAX: usize = 20;
    let mut all: Vec<String> =
        header.iter().take(LISTED_MAX).map(|column| sanitize(column)).collect();
    if header.len() > LISTED_MAX {
        all.push(format!("and {} more", header.len() - LISTED_MAX));
    }
    all.join(",")
}

/// A file's format.
pub(super) struct Recognised {
    pub(super) format: &'static Format,
    /// The columns.
    pub(super) header: Vec<String>,
    /// Whether the first row of the file is the header.
    pub(super) has_header: bool,
}

/// The format of a file in JSON; `None` for any other file.
fn recognise_json(
    name: &str,
    bytes: &[u8],
    requested: Option<&str>,
) -> Result<Option<Recognised>, TraceError> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if !matches!(first, Some(b'{' | b'[')) {
        return Ok(None);
    }
    let mut objects = json::objects(bytes, "jobs");
    let one = objects.as_mut().and_then(Iterator::next);
    if objects.is_some() && one.is_none() {
        return Err(TraceError::Empty { name: name.to_owned(), first: None });
    }
    let has = |key: &str| {
        let object = one.and_then(|(_, object)| serde_json::from_slice(object).ok());
        object.is_some_and(|object: serde_json::Value| object.get(key).is_some())
    };
    let format = if has("attempts") || has("submitted_time") {
        &philly_json::FORMAT
    } else if has("time") && has("job_id") {
        &slurm_json::FORMAT
    } else {
        let (what, remedy) = foreign::recognise_json(bytes, has);
        return Err(TraceError::Foreign { name: name.to_owned(), what, remedy });
    };
    if let Some(key) = requested.filter(|key| *key != format.key) {
        if !FORMATS.iter().any(|format| format.key == key) {
            return Err(TraceError::UnknownFormat { format: key.to_owned() });
        }
        let what = if format.key == "sacct" { "sacct --json" } else { "Philly's cluster_job_log" };
        let remedy = "leave out --trace-format, or name its format";
        return Err(TraceError::Foreign { name: name.to_owned(), what, remedy });
    }
    let header = format.headless.iter().map(|&column| column.to_owned()).collect();
    Ok(Some(Recognised { format, header, has_header: false }))
}

/// The format of a file, and its columns.
///
/// Of the formats whose required columns are all there, the one with the most required columns is
/// chosen, since one format's columns may be a subset of another's.
pub(super) fn recognise(
    name: &str,
    bytes: &[u8],
    requested: Option<&str>,
) -> Result<Recognised, TraceError> {
    if let Some(recognised) = recognise_json(name, bytes, requested)? {
        return Ok(recognised);
    }
    let candidates: Vec<&'static Format> = match requested {
        None => FORMATS.to_vec(),
        Some(key) => {
            let unknown = || TraceError::UnknownFormat { format: key.to_owned() };
            vec![*FORMATS.iter().find(|format| format.key == key).ok_or_else(unknown)?]
        }
    };
    let with_header = |format: &'static Format| (format, format.header(bytes));
    let candidates: Vec<(&'static Format, Vec<String>)> =
        candidates.into_iter().map(with_header).collect();
    if candidates.iter().all(|(_, header)| header.iter().all(String::is_empty)) {
        return Err(TraceError::Empty { name: name.to_owned(), first: None });
    }
    let own = |columns: &[&str]| columns.iter().map(|&column| column.to_owned()).collect();
    let complete = candidates.iter().filter(|(format, header)| format.missing(header).is_none());
    if let Some((format, header)) =
        complete.max_by_key(|(format, _)| format.required.len() + format.one_of.len())
    {
        let has_header = format.has_header;
        let header = if has_header { header.clone() } else { own(format.required) };
        return Ok(Recognised { format, header, has_header });
    }
    let fits = |(format, cells): &&(&'static Format, Vec<String>)| (format.is_headless)(cells);
    if let Some((format, cells)) = candidates.iter().find(fits) {
        let mut header: Vec<String> = own(format.headless);
        // The separator at the end of each row of `-p`.
        header.resize(cells.len(), String::new());
        return Ok(Recognised { format, header, has_header: false });
    }
    let (format, header) = candidates
        .iter()
        .max_by_key(|(format, header)| format.likeness(header))
        .expect("there are formats");
    if let Some((what, remedy)) = foreign::recognise(bytes) {
        return Err(TraceError::Foreign { name: name.to_owned(), what, remedy });
    }
    let name = name.to_owned();
    let headless = |(format, cells): &(&Format, Vec<String>)| {
        format.key == slurm::FORMAT.key && slurm::is_row(cells)
    };
    if candidates.iter().any(headless) {
        return Err(TraceError::NoHeader { name });
    }
    let aligned = |(format, cells): &(&Format, Vec<String>)| {
        let is_id = |word: &str| word.eq_ignore_ascii_case("JobID");
        format.key == slurm::FORMAT.key
            && matches!(&cells[..], [line] if line.split([' ', ',', '\t']).any(is_id))
    };
    if requested.is_none_or(|key| key == slurm::FORMAT.key) && candidates.iter().any(aligned) {
        return Err(TraceError::NoPipes { name });
    }
    if requested.is_none() && format.likeness(header) == 0 {
        let column = sanitize(candidates[0].1.first().map_or("", String::as_str));
        return Err(TraceError::UnknownColumn { name, column });
    }
    Err(TraceError::MissingColumn {
        name,
        column: format.missing(header).unwrap_or_default(),
        format: format.name,
        columns: format.needs(),
        has: listed(header),
    })
}
