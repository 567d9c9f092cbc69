//! Words for lines that people read: counts, and text from files of other people.
//!
//! What it must not do: pass on a control character, or a line without end.

/// `1 job`, `2 jobs`: how many of something whose plural takes an `s`.
pub(crate) fn counted(n: impl TryInto<u64>, one: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

/// Text of a file in a line of ours: what is no character to read is escaped, and what is long is cut.
pub(crate) fn shown(text: &str) -> String {
    /// More is no name any more.
    const CHARS_MAX: usize = 60;
    let mut shown = String::new();
    for c in text.chars().take(CHARS_MAX) {
        match c {
            '\'' | '"' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one() {
        assert_eq!([0, 1, 2].map(|n: u64| counted(n, "job")), ["0 jobs", "1 job", "2 jobs"]);
    }

    #[test]
    fn nothing_reaches_the_terminal_but_characters() {
        assert_eq!(shown("caf\u{e9} 'x'"), "caf\u{e9} 'x'");
        assert_eq!(shown("\u{1b}[31mred\u{0}\n"), "\\u{1b}[31mred\\0\\n");
        assert_eq!(shown(&"a".repeat(70)), format!("{}...", "a".repeat(60)));
        assert_eq!(shown(&"a".repeat(60)), "a".repeat(60));
    }
}
