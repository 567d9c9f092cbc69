//! The objects of an array in a JSON text, one at a time, so that a trace in JSON needs no more memory than
//! its text and its jobs.

/// The elements of the array that is the text, or that the text's object has under `key`: the place and the
/// text of each object. `None` where the text has no such array.
pub(super) fn objects<'t>(text: &'t [u8], key: &str) -> Option<Objects<'t>> {
    let mut scan = Scan { text, at: 0 };
    match scan.next()? {
        Token::Open(b'[') => Some(Objects { scan }),
        Token::Open(_) => {
            let mut depth = 1_usize;
            let mut last = None;
            loop {
                match scan.next()? {
                    Token::Text(string) if depth == 1 => last = Some(string),
                    Token::Open(b'[') if depth == 1 && last == Some(key.as_bytes()) => {
                        return Some(Objects { scan });
                    }
                    Token::Open(_) => depth += 1,
                    Token::Close => depth = depth.checked_sub(1)?,
                    Token::Text(_) => {}
                }
            }
        }
        _ => None,
    }
}

/// See [`objects`].
pub(super) struct Objects<'t> {
    scan: Scan<'t>,
}

impl<'t> Iterator for Objects<'t> {
    type Item = (usize, &'t [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let from = loop {
            match self.scan.next()? {
                Token::Open(_) => break self.scan.at - 1,
                Token::Close => return None,
                Token::Text(_) => {}
            }
        };
        let mut depth = 1_usize;
        while depth > 0 {
            match self.scan.next() {
                Some(Token::Open(_)) => depth += 1,
                Some(Token::Close) => depth -= 1,
                Some(Token::Text(_)) => {}
                // A text that is cut off ends in an object that is none.
                None => break,
            }
        }
        // An escape at the end of a text that is cut off leads beyond it.
        let until = self.scan.at.min(self.scan.text.len());
        Some((from, &self.scan.text[from..until]))
    }
}

enum Token<'t> {
    Open(u8),
    Close,
    Text(&'t [u8]),
}

/// Brackets and strings; everything else is passed over.
struct Scan<'t> {
    text: &'t [u8],
    at: usize,
}

impl<'t> Scan<'t> {
    fn next(&mut self) -> Option<Token<'t>> {
        loop {
            let byte = *self.text.get(self.at)?;
            self.at += 1;
            match byte {
                b'{' | b'[' => return Some(Token::Open(byte)),
                b'}' | b']' => return Some(Token::Close),
                b'"' => {
                    let from = self.at;
                    loop {
                        let byte = *self.text.get(self.at)?;
                        self.at += 1;
                        match byte {
                            b'\\' => self.at += 1,
                            b'"' => return Some(Token::Text(&self.text[from..self.at - 1])),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, key: &str) -> Option<Vec<String>> {
        let all = objects(text.as_bytes(), key)?;
        Some(all.map(|(_, object)| String::from_utf8_lossy(object).into_owned()).collect())
    }

    #[test]
    fn objects_are_those_of_the_array() {
        let text = r#"{"meta": {"jobs": [{"no": 1}]}, "jobs": [{"a": "}]\"{"}, {"b": [{"c": 1}]}], "x": [{}]}"#;
        let expected = [r#"{"a": "}]\"{"}"#, r#"{"b": [{"c": 1}]}"#];
        assert_eq!(found(text, "jobs").unwrap(), expected);
        assert_eq!(found("[{\"a\": 1},\n{}]", "").unwrap(), ["{\"a\": 1}", "{}"]);
        assert_eq!(found("{\"a\": 1}", "jobs"), None);
        assert_eq!(found("[{\"a\": [1", "").unwrap(), ["{\"a\": [1"]);
        assert_eq!(found("", ""), None);
        for odd in ["]", "{]", "[\"", "[{\"a\\"] {
            let _ = found(odd, "jobs");
        }
    }
}
