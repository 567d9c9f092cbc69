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

#[cfg(test)]
mod tests {
    use super::*;

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
