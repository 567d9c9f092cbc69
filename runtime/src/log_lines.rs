//! The writer of log lines: characters of others that a terminal would obey are shown instead
//! ([`wattle_common::text`]). A line contains names and messages of jobs, nodes and providers.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;
use wattle_common::text::{shown, shown_json};

/// Writes each line to `W`.
pub(crate) struct LogLines<W> {
    /// Makes the writer.
    to: fn() -> W,
    /// Whether lines are JSON objects; otherwise text without colours.
    json: bool,
}

impl<W> LogLines<W> {
    pub(crate) const fn new(to: fn() -> W, json: bool) -> Self {
        Self { to, json }
    }
}

impl<W: Write> MakeWriter<'_> for LogLines<W> {
    type Writer = Line<W>;

    fn make_writer(&self) -> Line<W> {
        Line { to: (self.to)(), json: self.json }
    }
}

/// The writer of one line, which the formatter writes at once.
pub(crate) struct Line<W> {
    to: W,
    json: bool,
}

impl<W: Write> Write for Line<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let safe = if self.json { shown_json(&text) } else { shown(&text) };
        self.to.write_all(safe.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tracing_subscriber::layer::SubscriberExt as _;
    use wattle_common::text::is_obeyed;

    use super::*;

    thread_local! {
        static WRITTEN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    struct Kept;

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            WRITTEN.with_borrow_mut(|written| written.extend_from_slice(bytes));
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(json: bool) -> String {
        let lines = tracing_subscriber::fmt::layer().with_writer(LogLines::new(|| Kept, json));
        let hostile = "sh\u{1b}[31m\u{9b}2J\u{7f}\rover\u{202e}gpj";
        let log = || tracing::warn!(program = %hostile, quoted = hostile, "ended: {hostile}");
        if json {
            tracing::subscriber::with_default(
                tracing_subscriber::registry().with(lines.json().flatten_event(true)),
                log,
            );
        } else {
            tracing::subscriber::with_default(
                tracing_subscriber::registry().with(lines.with_ansi(false)),
                log,
            );
        }
        String::from_utf8(WRITTEN.take()).unwrap()
    }

    #[test]
    fn a_log_line_obeys_no_text_of_others() {
        let line = logged(true);
        assert!(!line.trim_end().contains(is_obeyed), "{line:?}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(read["program"].as_str().unwrap().contains("\u{1b}[31m"), "content is kept");
        let line = logged(false);
        assert!(!line.trim_end().contains(is_obeyed), "{line:?}");
        assert!(line.contains("[31m"), "content is kept: {line:?}");
    }
}
