//! The words of a command line: split at spaces and tabs and unquoted as by a shell, without any expansion.
//!
//! The form names what a shell would interpret (`>`, `$HOME`, a second line), and that depends on the
//! quotation marks. The usual crates give only the words: they accept several lines, and leave out a comment.

/// The words of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// The words.
    pub(super) words: Vec<String>,
    /// The first character that a shell would interpret and that stays in its word.
    pub(super) uninterpreted: Option<char>,
}

/// Whether a shell interprets this character outside of quotes.
const fn is_special(c: char, begins_word: bool) -> bool {
    matches!(c, '|' | '&' | ';' | '<' | '>' | '(' | ')' | '$' | '`' | '*' | '?' | '[')
        || (begins_word && matches!(c, '~' | '#'))
}

/// Splits a line.
///
/// # Errors
/// If a quotation mark is not closed, a backslash is the last character, or the text has several lines.
pub(super) fn split(line: &str) -> Result<Words, String> {
    let mut found = Words::default();
    let mut word: Option<String> = None;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                // A line that continues.
                Some('\n') => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
                None => return Err("the command ends with a backslash: remove it".to_owned()),
            },
            '\'' | '"' => {
                let text = word.get_or_insert_default();
                quoted(c, &mut characters, text, &mut found.uninterpreted)?;
            }
            '\n' => {
                return Err(
                    "the command has several lines: end a line with \\ to continue it, or run \
                            the command with a shell"
                        .to_owned(),
                );
            }
            ' ' | '\t' | '\r' => found.words.extend(word.take()),
            c => {
                if is_special(c, word.is_none()) {
                    found.uninterpreted.get_or_insert(c);
                }
                word.get_or_insert_default().push(c);
            }
        }
    }
    found.words.extend(word);
    Ok(found)
}

/// Reads up to the closing quotation mark. Within `"` a backslash escapes `"`, `\`, `$` and a backquote.
fn quoted(
    mark: char,
    characters: &mut std::str::Chars<'_>,
    word: &mut String,
    uninterpreted: &mut Option<char>,
) -> Result<(), String> {
    while let Some(c) = characters.next() {
        if c == mark {
            return Ok(());
        }
        if mark == '"' && c == '\\' {
            match characters.next() {
                Some('\n') => {}
                Some(escaped @ ('"' | '\\' | '$' | '`')) => word.push(escaped),
                Some(other) => word.extend(['\\', other]),
                None => break,
            }
            continue;
        }
        if mark == '"' && matches!(c, '$' | '`') {
            uninterpreted.get_or_insert(c);
        }
        word.push(c);
    }
    Err(format!(
        "the quotation mark {mark} is not closed: close it, or write \\{mark} for the character"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_as_by_a_shell() {
        let cases: [(&str, &[&str]); 9] = [
            ("", &[]),
            ("  python3   t.py\t--epochs 90 ", &["python3", "t.py", "--epochs", "90"]),
            ("a 'b c' \"d e\" f\\ g", &["a", "b c", "d e", "f g"]),
            ("a ''", &["a", ""]),
            ("a\"b\"'c'd", &["abcd"]),
            (r#""a\"b\\c\n\$d" 'e\f'"#, &[r#"a"b\c\n$d"#, r"e\f"]),
            ("a \\\n b", &["a", "b"]),
            ("\"a\\\nb\"", &["ab"]),
            ("模型 --x='ü'", &["模型", "--x=ü"]),
        ];
        for (line, words) in cases {
            let found = split(line).unwrap();
            assert_eq!(found.words, words, "{line}");
            assert_eq!(found.uninterpreted, None, "{line}");
        }
    }

    /// The words agree with those of a real shell.
    #[test]
    fn a_shell_gives_the_same_words() {
        for line in
            ["a 'b c' \"d e\" f\\ g", "a '' \"\"", r#"p "x\"y\\z\n" 'e\f' \'q\'"#, "a \\\n b"]
        {
            let script = format!("printf '%s\\0' {line}");
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let words: Vec<&str> = text.strip_suffix('\0').unwrap().split('\0').collect();
            assert_eq!(split(line).unwrap().words, words, "{line}");
        }
    }

    #[test]
    fn what_a_shell_would_interpret_is_named() {
        for (line, special) in [
            ("a > b", Some('>')),
            ("a | b", Some('|')),
            ("a $HOME", Some('$')),
            ("a \"$HOME\"", Some('$')),
            ("a '$HOME' \\$HOME \"\\$HOME\"", None),
            ("a *.py", Some('*')),
            ("~/a", Some('~')),
            ("a~ b#c", None),
            ("a && b", Some('&')),
        ] {
            assert_eq!(split(line).unwrap().uninterpreted, special, "{line}");
        }
    }

    #[test]
    fn open_quotation_marks_are_refused() {
        assert!(split("a 'b").unwrap_err().contains("mark ' is not closed"));
        assert!(split("a \"b\\").unwrap_err().contains("mark \" is not closed"));
        assert!(split("a \\").unwrap_err().contains("backslash"));
    }

    #[test]
    fn several_lines_are_refused() {
        assert!(split("pip install x\npython3 t.py").unwrap_err().contains("several lines"));
        assert_eq!(split("a 'b\nc' \\\n d").unwrap().words, ["a", "b\nc", "d"]);
        // A shell splits at no other white space.
        assert_eq!(split("a\u{a0}b").unwrap().words, ["a\u{a0}b"]);
    }
}
