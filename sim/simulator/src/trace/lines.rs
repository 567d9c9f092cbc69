//! Line numbers of places in a text, whatever ends its lines: a line feed, a carriage return, or both.

/// Counts the lines before ascending places of a text.
pub(super) struct Lines<'t> {
    text: &'t [u8],
    has_returns: bool,
    at: usize,
    line: u64,
}

impl<'t> Lines<'t> {
    pub(super) fn of(text: &'t [u8]) -> Self {
        Self { text, has_returns: text.contains(&b'\r'), at: 0, line: 1 }
    }

    /// The line, from 1, of the first character at or after `place` that ends no line.
    pub(super) fn line_at(&mut self, place: usize) -> u64 {
        let end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let rest = self.text.get(place..).unwrap_or_default();
        let place = place + rest.iter().take_while(|byte| end(byte)).count();
        let passed = self.text.get(self.at..place).unwrap_or_default();
        let feeds = passed.iter().filter(|byte| **byte == b'\n').count();
        // A carriage return before a line feed is a part of the same end.
        let is_end = |pair: &&[u8]| pair[0] == b'\r' && pair[1] != b'\n';
        let with_next = self.text.get(self.at..(place + 1).min(self.text.len()));
        let returns = if self.has_returns {
            with_next.unwrap_or_default().windows(2).filter(is_end).count()
        } else {
            0
        };
        self.line += (feeds + returns) as u64;
        self.at = self.at.max(place);
        self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_end_counts_once() {
        for text in ["a\nbb\n\nc", "a\r\nbb\r\n\r\nc", "a\rbb\r\rc"] {
            let mut lines = Lines::of(text.as_bytes());
            let at = |c: char| text.find(c).unwrap();
            assert_eq!(['a', 'b', 'c'].map(|c| lines.line_at(at(c))), [1, 2, 4], "{text:?}");
            let mut lines = Lines::of(text.as_bytes());
            assert_eq!(
                (lines.line_at(at('b') - 1), lines.line_at(at('b') + 2)),
                (2, 4),
                "{text:?}"
            );
        }
    }
}
