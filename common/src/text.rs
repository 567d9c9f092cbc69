//! Text of others on a terminal: names of programs, messages of jobs, nodes and providers may contain control
//! characters, which a terminal would obey, and marks that reorder what it shows. They are shown instead.

use std::borrow::Cow;

/// Whether a terminal obeys this character, or reorders text by it: control characters, and the marks of
/// bidirectional text and of lines in Unicode.
#[must_use]
pub const fn is_obeyed(c: char) -> bool {
    matches!(c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with each character that a terminal obeys as its escape, `\u{1b}`; line breaks and tabs remain.
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    shown_but(text, |c| matches!(c, '\n' | '\t'))
}

/// As [`shown`]; the characters that `keeps` accepts remain.
#[must_use]
pub fn shown_but(text: &str, keeps: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_hidden = |c: char| is_obeyed(c) && !keeps(c);
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// As [`shown`] for a JSON document: the escapes are those of JSON strings.
#[must_use]
pub fn shown_json(text: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| is_obeyed(c) && c != '\n';
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    // All of them are below U+10000, and within strings: elsewhere JSON has none of them.
    let escaped = text.chars().fold(String::with_capacity(text.len()), |mut escaped, c| {
        if is_hidden(c) {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
        escaped
    });
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_a_terminal_obeys_are_shown() {
        let plain = "a\tb\nc: 250 W \u{e9} 模型";
        assert!(matches!(shown(plain), Cow::Borrowed(text) if text == plain));
        for (hostile, expected) in [
            ("sh -c \x1b[31mred\x1b[0m", "sh -c \\u{1b}[31mred\\u{1b}[0m"),
            ("n\x1b]0;title\x07\x1b[2J", "n\\u{1b}]0;title\\u{7}\\u{1b}[2J"),
            ("over\rwritten \u{9b}31m\x7f", "over\\rwritten \\u{9b}31m\\u{7f}"),
            ("exe\u{202e}gpj", "exe\\u{202e}gpj"),
        ] {
            assert_eq!(shown(hostile), expected);
        }
    }

    #[test]
    fn a_json_document_keeps_its_content() {
        let value = serde_json::json!({ "name": "a\u{1b}[31m\u{9b}\u{7f}\u{202e}b" });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let safe = shown_json(&text);
        assert!(!safe.chars().any(|c| is_obeyed(c) && c != '\n'), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
    }
}
