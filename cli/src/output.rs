//! Output of the commands: tables, JSON, notes and errors.
//!
//! Data goes to stdout, notes and errors to stderr. Colour is used only on a terminal without
//! `NO_COLOR`, and never carries information by itself.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;
pub use wattle_common::text::shown;
use wattle_common::text::{shown_but, shown_json};
use wattle_runtime::shell::chain;

use crate::quantity::{WIDTH, shorten};

/// Wrong usage: exit code 2.
#[derive(Debug)]
pub struct UsageError(pub String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for UsageError {}

/// An error that ends with exit code 2.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    UsageError(message.into()).into()
}

/// An error of the user's input, with what led to it.
pub fn usage_chain(error: impl std::error::Error) -> anyhow::Error {
    usage(chain(&error))
}

/// An exit code of its own, after the command has reported its result: that of the job it waited for, or of a
/// wait without result.
#[derive(Debug)]
pub(crate) struct Exit(pub(crate) u8);

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}
impl std::error::Error for Exit {}

/// Prints text to stdout; what a terminal would obey is shown ([`wattle_common::text`]). A closed pipe is an error
/// for the caller to pass on.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_styled(&shown(text))
}

/// Prints text with colours of this program to stdout. The caller has applied [`wattle_common::text`] to the text of
/// others in it, as [`Table`] does to its cells.
pub fn print_styled(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// Prints one JSON document.
pub fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    print_styled(&shown_json(&serde_json::to_string_pretty(value)?))
}

/// Prints a note to stderr.
pub fn note(text: &str) {
    note_after("", text);
}

/// Prints a note to stderr after a styled word of this program.
fn note_after(styled: &str, text: &str) {
    // A closed stderr is no reason to stop.
    let _ = writeln!(io::stderr().lock(), "{styled}{}", shown(text));
}

/// Replaces the current line of the terminal on stderr. Text beyond the terminal's width is cut, not
/// wrapped.
pub fn replace_line(text: &str) {
    let mut err = io::stderr().lock();
    let _ = write!(err, "\r\x1b[K\x1b[?7l{}\x1b[?7h", shown(text));
    let _ = err.flush();
}

/// Prints an error with its chain of causes.
pub fn print_error(error: &anyhow::Error) {
    let red = if colour(&io::stderr()) { ("\x1b[31m", "\x1b[0m") } else { ("", "") };
    let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
    note_after(&format!("{}error:{} ", red.0, red.1), &chain.join(": "));
}

/// Whether the error is a closed pipe on stdout (`wattle jobs | head -1`).
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether output to this stream is coloured.
pub fn colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// A text table with two spaces between columns.
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these headings.
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with one cell per column. Text of others in a cell is shown and not obeyed.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        let safe = |cell: String| shown_but(&cell, |_| false).into_owned();
        self.rows.push(cells.into_iter().map(safe).collect());
    }

    /// The width of a line.
    fn width(&self) -> usize {
        let widths = self.widths();
        widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)
    }

    /// Without the columns after the first `kept` that have no content, and without the last ones while a line is
    /// wider than `width`.
    pub fn narrowed(mut self, kept: usize, width: usize) -> Self {
        let is_empty =
            |rows: &[Vec<String>], column: usize| rows.iter().all(|row| row[column].is_empty());
        for column in (kept..self.columns.len()).rev() {
            if is_empty(&self.rows, column) {
                self.remove(column);
            }
        }
        while self.columns.len() > kept && self.width() > width {
            self.remove(self.columns.len() - 1);
        }
        self
    }

    fn remove(&mut self, column: usize) {
        self.columns.remove(column);
        self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
    }

    /// The width of each column.
    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|(h, _)| h.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }

    /// Shortens the cells of one column so that lines fit `width` columns; the column keeps at least
    /// eight.
    pub fn fit(self, column: usize, width: usize) -> Self {
        self.fit_above(column, width, 8)
    }

    /// As [`Self::fit`], and the column keeps at least `least`.
    pub fn fit_above(mut self, column: usize, width: usize, least: usize) -> Self {
        let widths = self.widths();
        let limit = widths[column].saturating_sub(self.width().saturating_sub(width)).max(least);
        for row in &mut self.rows {
            row[column] = shorten(&row[column], limit);
        }
        self
    }

    /// Renders the table; headings are bold if `colour` is set.
    pub fn render(&self, colour: bool) -> String {
        let widths = self.widths();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for ((cell, width), (_, align)) in cells.zip(&widths).zip(&self.columns) {
                let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
                match align {
                    Align::Left => text.extend([cell, &gap]),
                    Align::Right => text.extend([gap.as_str(), cell]),
                }
                text.push_str("  ");
            }
            text.trim_end().to_owned()
        };
        let mut text = line(&mut self.columns.iter().map(|(heading, _)| *heading));
        if colour {
            text = format!("\x1b[1m{text}\x1b[0m");
        }
        text.push('\n');
        for row in &self.rows {
            text.push_str(&line(&mut row.iter().map(String::as_str)));
            text.push('\n');
        }
        text
    }

    /// Prints the table to stdout.
    pub fn print(&self) -> anyhow::Result<()> {
        print_styled(&self.render(colour(&io::stdout())))
    }
}

/// Columns of the terminal on stdout; [`WIDTH`] for a narrower one and for a file.
pub fn terminal_width() -> usize {
    if !io::stdout().is_terminal() {
        return WIDTH;
    }
    crossterm::terminal::size().map_or(WIDTH, |(columns, _)| usize::from(columns).max(WIDTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_show_what_a_terminal_would_obey() {
        let mut table = Table::new(&[("job", Align::Left), ("program", Align::Left)]);
        table.row(vec!["a".into(), "sh \x1b[31mred\x1b[0m\nnext\u{9b}2J\u{202e}gpj".into()]);
        let plain = table.render(false);
        assert!(!plain.contains(|c: char| c.is_control() && c != '\n'), "{plain:?}");
        assert_eq!(plain.lines().count(), 2, "{plain}");
        let styled = table.render(true);
        assert_eq!(styled.matches('\x1b').count(), 2, "only the heading is styled: {styled:?}");
    }

    #[test]
    fn columns_that_do_not_fit_are_left_out() {
        let columns = ["job", "a", "b", "c"].map(|name| (name, Align::Left));
        let mut table = Table::new(&columns);
        table.row(["name", "1234567890", "", "12345"].map(str::to_owned).to_vec());
        let first = |table: Table| table.render(false).lines().next().unwrap().to_owned();
        let at = |width| {
            let mut same = Table::new(&columns);
            same.rows.clone_from(&table.rows);
            first(same.narrowed(1, width))
        };
        assert_eq!(at(23), "job   a           c", "b has no content");
        assert_eq!((at(22).as_str(), at(16).as_str()), ("job   a", "job   a"));
        assert_eq!((at(15).as_str(), at(2).as_str()), ("job", "job"));
    }

    #[test]
    fn numbers_align_right_and_text_left() {
        let mut table = Table::new(&[("job", Align::Left), ("gpus", Align::Right)]);
        table.row(vec!["a".into(), "16".into()]);
        table.row(vec!["longer".into(), "2".into()]);
        assert_eq!(table.render(false), "job     gpus\na         16\nlonger     2\n");
    }

    #[test]
    fn one_column_is_shortened_to_the_width() {
        let mut table = Table::new(&[("job", Align::Left), ("gpus", Align::Right)]);
        table.row(vec!["a-long-name-of-a-job".into(), "16".into()]);
        let table = table.fit(0, 16);
        assert_eq!(table.render(false), "job         gpus\na-long-na…    16\n");
    }
}
