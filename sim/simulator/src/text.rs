//! Text for messages and tables: plurals, and sanitized text from input files.

/// `1 job`, `2 jobs`: a count with its noun; the plural is formed with an `s`.
pub fn pluralize(n: impl TryInto<u64>, noun: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Text from an input file for display: control characters are escaped, and the text is cut after
/// 60 characters.
pub fn sanitize(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut clean = String::new();
    for c in text.chars().take(CHARS_MAX) {
        match c {
            '\'' | '"' => clean.push(c),
            c => clean.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(CHARS_MAX).is_some() {
        clean.push_str("...");
    }
    clean
}

/// Columns of a terminal.
pub const COLUMNS: usize = 80;

/// Text broken at spaces into lines of at most [`COLUMNS`] columns; later lines begin at `indent`.
/// Text that fits keeps its spaces.
#[must_use]
pub fn hang(text: &str, indent: usize) -> String {
    if text.chars().count() <= COLUMNS {
        return text.to_owned();
    }
    let mut lines = vec![String::new()];
    let mut column = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        let last = lines.last_mut().expect("there is a first line");
        if column > indent && column + 1 + width > COLUMNS {
            lines.push(format!("{}{word}", " ".repeat(indent)));
            column = indent + width;
        } else {
            if !last.is_empty() {
                last.push(' ');
                column += 1;
            }
            last.push_str(word);
            column += width;
        }
    }
    lines.join("\n")
}

/// A note below a table.
#[must_use]
pub fn note(text: &str) -> String {
    hang(&format!("note: {text}"), 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_notes_are_broken_and_indented() {
        assert_eq!(note("short"), "note: short");
        let long = note(&"word ".repeat(40));
        assert!(long.lines().count() == 3 && long.lines().all(|line| line.len() <= COLUMNS));
        assert!(long.lines().skip(1).all(|line| line.starts_with("      word")));
        assert_eq!(long.split_whitespace().count(), 41);
        let unbreakable = "x".repeat(100);
        assert_eq!(hang(&unbreakable, 2), unbreakable);
    }

    #[test]
    fn one_has_no_plural() {
        assert_eq!([0, 1, 2].map(|n: u64| pluralize(n, "job")), ["0 jobs", "1 job", "2 jobs"]);
    }

    #[test]
    fn control_characters_are_escaped_and_long_text_is_cut() {
        assert_eq!(sanitize("caf\u{e9} 'x'"), "caf\u{e9} 'x'");
        assert_eq!(sanitize("\u{1b}[31mred\u{0}\n"), "\\u{1b}[31mred\\0\\n");
        assert_eq!(sanitize(&"a".repeat(70)), format!("{}...", "a".repeat(60)));
        assert_eq!(sanitize(&"a".repeat(60)), "a".repeat(60));
    }
}
