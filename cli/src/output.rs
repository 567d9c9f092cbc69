//! Output of the commands: tables, JSON, notes and errors.
//!
//! Data goes to stdout, notes and errors to stderr. Colour is used only on a terminal without
//! `NO_COLOR`, and never carries information by itself.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;
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

/// The colours of this command's own output.
const COLOURS: [&str; 4] = ["\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[36m"];

/// The text with control characters escaped: names, commands and messages of jobs and nodes may contain
/// them, and a terminal would obey them. Line breaks, tabs and [`COLOURS`] stay.
fn visible(text: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = COLOURS.into_iter().find(|colour| rest.starts_with(colour));
        let length = match colour {
            Some(colour) => {
                shown.push_str(colour);
                colour.len()
            }
            None if is_hidden(c) => {
                shown.extend(c.escape_debug());
                c.len_utf8()
            }
            None => {
                shown.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    Cow::Owned(shown)
}

/// Prints text to stdout. A closed pipe is an error for the caller to pass on.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(visible(text).as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// Prints one JSON document.
pub fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// Prints a note to stderr.
pub fn note(text: &str) {
    // A closed stderr is no reason to stop.
    let _ = writeln!(io::stderr().lock(), "{}", visible(text));
}

/// Replaces the current line of the terminal on stderr. Text beyond the terminal's width is cut, not
/// wrapped.
pub fn replace_line(text: &str) {
    let mut err = io::stderr().lock();
    let _ = write!(err, "\r\x1b[K\x1b[?7l{text}\x1b[?7h");
    let _ = err.flush();
}

/// Prints an error with its chain of causes.
pub fn print_error(error: &anyhow::Error) {
    let red = if colour(&io::stderr()) { ("\x1b[31m", "\x1b[0m") } else { ("", "") };
    let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
    note(&format!("{}error:{} {}", red.0, red.1, chain.join(": ")));
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

    /// Adds a row with one cell per column.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
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
    pub fn fit(mut self, column: usize, width: usize) -> Self {
        let widths = self.widths();
        let line = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
        let limit = widths[column].saturating_sub(line.saturating_sub(width)).max(8);
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
        print(&self.render(colour(&io::stdout())))
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
    fn control_characters_are_shown_and_not_obeyed() {
        let plain = "a\tb\nc: 250 W \u{e9}";
        assert_eq!(visible(plain), plain);
        let table = "\x1b[1mJOB\x1b[0m\nx";
        assert_eq!(visible(table), table);
        let hostile = "n\x1b]0;title\x07\x1b[2J\r\u{9b}31m";
        assert_eq!(visible(hostile), "n\\u{1b}]0;title\\u{7}\\u{1b}[2J\\r\\u{9b}31m");
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
