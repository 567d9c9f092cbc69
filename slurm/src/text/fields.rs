//! Records of `squeue` whose fields no user can forge.
//!
//! Fields that Slurm itself forms come first, separated by a control character. Fields that may contain text
//! of a user are each preceded by a mark that is different in every call. The format goes to `squeue` in
//! its environment, which other users cannot read, so that the mark is in no text of a user.

use super::TextError;

/// Separates the fields that Slurm forms.
const SEPARATOR: char = '\u{1f}';

/// A text that occurs in no field of any job.
#[derive(Clone, Debug)]
pub struct Mark(String);

impl Mark {
    /// A mark of random text, which has at least 16 hexadecimal digits.
    ///
    /// # Errors
    /// If it has not.
    pub fn new(random: &str) -> Result<Self, TextError> {
        let is_long = random.len() >= 16 && random.bytes().all(|b| b.is_ascii_hexdigit());
        if is_long {
            Ok(Self(format!("<{random}>")))
        } else {
            Err(TextError::new("random text", random))
        }
    }
}

/// The names of the fields of a record, as `squeue --Format` has them.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Fields that Slurm forms.
    pub formed: &'static [&'static str],
    /// Fields that may contain text of a user.
    pub free: &'static [&'static str],
}

/// One record: the values in the order of the layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    formed: Vec<&'a str>,
    free: Vec<&'a str>,
    layout_formed: &'static [&'static str],
    layout_free: &'static [&'static str],
}

impl Layout {
    /// The value of `SQUEUE_FORMAT2`.
    #[must_use]
    pub fn format(&self, mark: &Mark) -> String {
        let (last, formed) =
            self.formed.split_last().map_or(("jobid", self.formed), |(l, f)| (*l, f));
        let mut format: String = formed.iter().map(|name| format!("{name}:{SEPARATOR},")).collect();
        format.push_str(&format!("{last}:{}", mark.0));
        for name in self.free {
            format.push_str(&format!(",{name}:{}", mark.0));
        }
        format
    }

    /// The records of the output.
    ///
    /// # Errors
    /// If the output is cut off. A single record of another form is the error of that record.
    pub fn records<'a>(
        &self,
        output: &'a str,
        mark: &Mark,
    ) -> Result<Vec<Result<Record<'a>, TextError>>, TextError> {
        let mut parts: Vec<&str> = output.split(mark.0.as_str()).collect();
        let after = parts.pop().unwrap_or_default();
        let per_record = 1 + self.free.len();
        if !after.trim().is_empty() || !parts.len().is_multiple_of(per_record) {
            return Err(TextError::new("output of squeue, cut off near", after));
        }
        Ok(parts.chunks(per_record).map(|parts| self.record(parts)).collect())
    }

    fn record<'a>(&self, parts: &[&'a str]) -> Result<Record<'a>, TextError> {
        let (first, free) = parts.split_first().unwrap_or((&"", &[]));
        let first = first.trim_start_matches('\n');
        let formed: Vec<&str> = first.split(SEPARATOR).collect();
        if formed.len() != self.formed.len() {
            return Err(TextError::new("record of squeue with another number of fields", first));
        }
        Ok(Record {
            formed,
            free: free.to_vec(),
            layout_formed: self.formed,
            layout_free: self.free,
        })
    }
}

impl<'a> Record<'a> {
    /// The value of a field; empty if the layout has none of this name, or Slurm has no value.
    #[must_use]
    pub fn get(&self, name: &str) -> &'a str {
        let formed = self.layout_formed.iter().zip(&self.formed);
        let mut all = formed.chain(self.layout_free.iter().zip(&self.free));
        let value = all.find(|(known, _)| **known == name).map_or("", |(_, value)| value);
        if super::gres::is_absent(value) { "" } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAYOUT: Layout = Layout { formed: &["jobid", "state"], free: &["name", "comment"] };

    fn mark() -> Mark {
        Mark::new("0123456789abcdef").unwrap()
    }

    #[test]
    fn the_format_has_the_mark_before_each_free_field() {
        assert_eq!(
            LAYOUT.format(&mark()),
            "jobid:\u{1f},state:<0123456789abcdef>,name:<0123456789abcdef>,comment:<0123456789abcdef>"
        );
        assert!(Mark::new("short").is_err());
        assert!(Mark::new("0123456789abcdef,x").is_err());
    }

    #[test]
    fn an_incomplete_output_is_an_error() {
        assert!(LAYOUT.records("1\u{1f}RUNNING<0123456789abcdef>name", &mark()).is_err());
        assert!(LAYOUT.records("slurm is away", &mark()).is_err());
        assert_eq!(LAYOUT.records("\n", &mark()), Ok(vec![]));
        let odd = "1<0123456789abcdef>n<0123456789abcdef>c<0123456789abcdef>\n";
        assert!(LAYOUT.records(odd, &mark()).unwrap()[0].is_err());
    }

    proptest! {
        /// Whatever a user writes into a name or comment, it is that field and changes no other.
        #[test]
        fn free_text_forges_nothing(
            texts in proptest::collection::vec(("[\\PC\n\t\u{1f}<>]{0,40}", "[\\PC\n\u{1f}=]{0,40}"), 1..5)
        ) {
            let m = "<0123456789abcdef>";
            let lines = (0..).zip(&texts).map(|(id, (name, comment))| {
                format!("{id}\u{1f}RUNNING{m}{name}{m}{comment}{m}\n")
            });
            let output: String = lines.collect();
            let records = LAYOUT.records(&output, &mark()).unwrap();
            prop_assert_eq!(records.len(), texts.len());
            for ((id, record), (name, comment)) in (0..).zip(records).zip(&texts) {
                let record = record.unwrap();
                prop_assert_eq!(record.get("jobid"), id.to_string());
                prop_assert_eq!(record.get("state"), "RUNNING");
                let absent = |text: &str| super::super::gres::is_absent(text);
                prop_assert!(record.get("name") == name || absent(name));
                prop_assert!(record.get("comment") == comment || absent(comment));
            }
        }
    }
}
