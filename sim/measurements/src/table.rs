//! Comma-separated values as rows of named cells, with everything unusable reported by file and line.
//! Columns are addressed by name in any order.

use std::collections::BTreeMap;

use super::Problem;

/// Largest number of rows of one file, ten times that of any of these formats.
pub(crate) const ROWS_MAX: usize = 20_000;

/// Why a row is unusable.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum RowError {
    #[error("`{0}` is empty")]
    Empty(String),
    #[error("`{column}` is `{text}`, not {expected}")]
    Invalid { column: String, text: String, expected: &'static str },
    #[error("`{0}` is over ten times `{1}`")]
    Implausible(String, String),
    #[error("`{job}` alone is {here} here and {before} before")]
    Contradiction { job: String, here: f64, before: f64 },
}

/// Rows of a file.
pub(crate) struct Table<'a> {
    file: &'a str,
    columns: BTreeMap<String, usize>,
    rows: Vec<(u64, Vec<String>)>,
    problems: Vec<Problem>,
}

/// One row, with its cells by name.
pub(crate) struct Cells<'t> {
    table: &'t BTreeMap<String, usize>,
    record: &'t [String],
}

/// Column names in the first line, trimmed and in lower case.
pub(crate) fn columns(text: &str) -> Vec<String> {
    let first = Records::new(text).next().map(|(_, cells)| cells).unwrap_or_default();
    first.iter().map(|cell| cell.to_ascii_lowercase()).collect()
}

/// Records of comma-separated text (RFC 4180): cells are trimmed; a quoted cell may contain commas, line
/// breaks and doubled quotes; lines end with CR, LF or both.
struct Records<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    line: u64,
}

impl<'a> Records<'a> {
    fn new(text: &'a str) -> Self {
        let text = text.trim_start_matches('\u{feff}');
        Self { rest: text.chars().peekable(), line: 1 }
    }

    /// Next character, with CR and CR LF as LF.
    fn take(&mut self) -> Option<char> {
        let next = self.rest.next()?;
        if next == '\r' {
            self.rest.next_if_eq(&'\n');
        }
        let next = if next == '\r' { '\n' } else { next };
        self.line += u64::from(next == '\n');
        Some(next)
    }
}

impl Iterator for Records<'_> {
    /// First line of the record, and its cells.
    type Item = (u64, Vec<String>);

    fn next(&mut self) -> Option<Self::Item> {
        self.rest.peek()?;
        let line = self.line;
        let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
        while let Some(c) = self.take() {
            match c {
                '"' if quoted && self.rest.next_if_eq(&'"').is_some() => cell.push('"'),
                '"' if quoted => quoted = false,
                '"' if cell.trim().is_empty() => quoted = true,
                ',' if !quoted => cells.push(std::mem::take(&mut cell)),
                '\n' if !quoted => break,
                c => cell.push(c),
            }
        }
        cells.push(cell);
        Some((line, cells.iter().map(|c| c.trim().to_owned()).collect()))
    }
}

impl<'a> Table<'a> {
    /// Rows of `text`, whose first row names the columns.
    pub(crate) fn read(file: &'a str, text: &str) -> Self {
        let mut table =
            Self { file, columns: BTreeMap::new(), rows: Vec::new(), problems: Vec::new() };
        let mut records = Records::new(text);
        let header = records.next().map(|(_, cells)| cells).unwrap_or_default();
        for (i, name) in header.iter().enumerate() {
            table.columns.entry(name.to_ascii_lowercase()).or_insert(i);
        }
        for (line, cells) in records {
            if cells.iter().all(String::is_empty) {
                continue;
            }
            if cells.len() != header.len() {
                let what = format!("has {} cells, the header has {}", cells.len(), header.len());
                table.complain(Some(line), what);
                continue;
            }
            if table.rows.len() >= ROWS_MAX {
                let what = format!("and all after it are not read: {ROWS_MAX} rows are the most");
                table.complain(Some(line), what);
                break;
            }
            table.rows.push((line, cells));
        }
        table
    }

    /// Reports a problem.
    pub(crate) fn complain(&mut self, line: Option<u64>, what: String) {
        self.problems.push(Problem { file: self.file.to_owned(), line, what });
    }

    /// Parses every row with `read`, which returns an error, or `None` to skip the row. Results keep the
    /// order of the file and have their line numbers.
    pub(crate) fn rows<T>(
        &mut self,
        read: impl Fn(&Cells<'_>) -> Result<Option<T>, RowError>,
    ) -> Vec<(u64, T)> {
        let mut out = Vec::new();
        let mut wrong = Vec::new();
        for (line, record) in &self.rows {
            match read(&Cells { table: &self.columns, record }) {
                Ok(Some(value)) => out.push((*line, value)),
                Ok(None) => {}
                Err(error) => wrong.push((*line, error.to_string())),
            }
        }
        for (line, what) in wrong {
            self.complain(Some(line), what);
        }
        out
    }

    /// All problems.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }
}

impl<'t> Cells<'t> {
    /// Text of a cell; empty where the file lacks the column.
    pub(crate) fn text(&self, column: &str) -> &'t str {
        self.table.get(column).and_then(|i| self.record.get(*i)).map_or("", String::as_str)
    }

    /// A finite number above zero.
    pub(crate) fn positive(&self, column: &str) -> Result<f64, RowError> {
        let text = self.text(column);
        match text.parse::<f64>() {
            // Beyond these limits a ratio could overflow.
            Ok(value) if (1e-12..=1e12).contains(&value) => Ok(value),
            _ if text.is_empty() => Err(RowError::Empty(column.to_owned())),
            _ => Err(invalid(column, text, "a number above zero")),
        }
    }

    /// An integer above zero.
    pub(crate) fn count(&self, column: &str) -> Result<u32, RowError> {
        let value = self.positive(column)?;
        if value.fract() == 0.0 && value <= f64::from(1u32 << 30) {
            Ok(value as u32)
        } else {
            Err(invalid(column, self.text(column), "a whole number"))
        }
    }

    /// A non-empty name.
    pub(crate) fn name(&self, column: &str) -> Result<&'t str, RowError> {
        match self.text(column) {
            "" => Err(RowError::Empty(column.to_owned())),
            text => Ok(text),
        }
    }
}

/// An error for a cell with another value than `expected`.
pub(crate) fn invalid(column: &str, text: &str, expected: &'static str) -> RowError {
    RowError::Invalid { column: column.to_owned(), text: short(text), expected }
}

/// Text shortened for a message.
fn short(text: &str) -> String {
    let mut out: String = text.chars().take(40).collect();
    if out.len() < text.len() {
        out.push('…');
    }
    out
}

/// Keeps the first of rows with equal keys and reports the others.
pub(crate) fn unique<K: Ord, T>(
    table: &mut Table<'_>,
    rows: Vec<(u64, T)>,
    key: impl Fn(&T) -> K,
) -> Vec<T> {
    let mut seen: BTreeMap<K, u64> = BTreeMap::new();
    let mut out = Vec::new();
    for (line, row) in rows {
        match seen.entry(key(&row)) {
            std::collections::btree_map::Entry::Occupied(first) => {
                let what =
                    format!("measures again what line {} did; the first counts", first.get());
                table.complain(Some(line), what);
            }
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(line);
                out.push(row);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(u64, Vec<String>)> {
        Records::new(text).collect()
    }

    #[test]
    fn cells_are_split_as_in_rfc_4180() {
        let cells = |c: &[&str]| c.iter().map(ToString::to_string).collect::<Vec<_>>();
        let text = "\u{feff}a, b \r\n\"x, \"\"y\"\"\nz\",2\r\n\n,\n5";
        let expected = [
            (1, cells(&["a", "b"])),
            (2, cells(&["x, \"y\"\nz", "2"])),
            (4, cells(&[""])),
            (5, cells(&["", ""])),
            (6, cells(&["5"])),
        ];
        assert_eq!(read(text), expected);
        assert_eq!(read("a,b\rc\"d,\"e").len(), 2);
        assert_eq!(read(""), []);
        assert_eq!(columns("A , b\n1,2"), ["a", "b"]);
    }

    #[test]
    fn faulty_rows_are_reported_and_the_others_kept() {
        let text = "x,y\n1,2\n3\n\n4,nan\n5,-1\n6,inf\n7,\n1,9\n";
        let mut table = Table::read("f.csv", text);
        let rows = table.rows(|row| Ok(Some((row.count("x")?, row.positive("y")?))));
        let kept = unique(&mut table, rows, |r| r.0);
        assert_eq!(kept, [(1, 2.0)]);
        let messages: Vec<String> = table.into_problems().iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "f.csv:3: has 1 cells, the header has 2",
                "f.csv:5: `y` is `nan`, not a number above zero",
                "f.csv:6: `y` is `-1`, not a number above zero",
                "f.csv:7: `y` is `inf`, not a number above zero",
                "f.csv:8: `y` is empty",
                "f.csv:9: measures again what line 2 did; the first counts",
            ]
        );
    }
}
