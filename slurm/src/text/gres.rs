//! Generic resources: requests as `gpu:g1:1,gpu:g3:1`, and what a job holds as `gpu:g1:1(IDX:1)`.

use std::collections::BTreeMap;
use std::fmt;

use wattle_common::id::GpuIndex;

use super::TextError;

/// Generic resources of each node, by name and type: `gpu:g1:1,gpu:g3:1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GresList {
    /// Number by name and type, without zeros.
    counts: BTreeMap<(String, Kind), u64>,
}

/// A type, ordered by its number and then its text: `g2` before `g10`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Kind(Option<u32>, String);

impl Kind {
    fn new(text: &str) -> Self {
        Self(index_of_type(text), text.to_owned())
    }
}

/// The GPU index of the type `g<index>`.
#[must_use]
pub fn index_of_type(kind: &str) -> Option<GpuIndex> {
    let digits = kind.strip_prefix('g')?;
    let is_plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| is_plain && (digits == "0" || !digits.starts_with('0')))
}

/// Whether Slurm writes it for an absent value.
#[must_use]
pub fn is_absent(text: &str) -> bool {
    matches!(text, "" | "(null)" | "N/A" | "NONE" | "None")
}

impl GresList {
    /// The resources of a request or a node: `gres:gpu:g1:1` as Slurm 22.05 writes it, `gres/gpu:g1:1` as
    /// later releases do, and without a prefix. Sockets in parentheses are left out.
    ///
    /// # Errors
    /// If a number is none.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        let mut list = Self::default();
        if is_absent(text) {
            return Ok(list);
        }
        for item in split_outside_parentheses(text) {
            let item = item.split('(').next().unwrap_or(item).trim();
            let request =
                item.strip_prefix("gres:").or_else(|| item.strip_prefix("gres/")).unwrap_or(item);
            // A number always follows `=`; after `:` it may be a type instead.
            let (names, total) = match request.split_once('=') {
                Some((names, count)) => (names, Some(count)),
                None => (request, None),
            };
            let parts: Vec<&str> = names.split(':').collect();
            let (name, kind, count) = match (parts.as_slice(), total) {
                ([name], _) => (*name, "", total.unwrap_or("1")),
                ([name, kind], Some(count)) => (*name, *kind, count),
                ([name, one], None) if one.starts_with(|c: char| c.is_ascii_digit()) => {
                    (*name, "", *one)
                }
                ([name, kind], None) => (*name, *kind, "1"),
                ([name, kind, count], None) => (*name, *kind, *count),
                _ => {
                    return Err(TextError::new(
                        "generic resource with more than a type and a number",
                        item,
                    ));
                }
            };
            let invalid = || TextError::new("number of a generic resource", item);
            list.add(name, kind, number(count).ok_or_else(invalid)?);
        }
        Ok(list)
    }

    /// The generic resources of a list of trackable resources: `cpu=1,gres/gpu=2,gres/gpu:g0=1,gres/gpu:g1=1`.
    /// The total of a name counts only where its types do not.
    ///
    /// # Errors
    /// If a number is none.
    pub fn of_tres(text: &str) -> Result<Self, TextError> {
        let parts = text.split(',').filter(|part| part.starts_with("gres/"));
        let mut list = Self::parse(&parts.collect::<Vec<_>>().join(","))?;
        let totals: Vec<_> =
            list.counts.keys().filter(|(_, kind)| kind.1.is_empty()).cloned().collect();
        for key in totals {
            let typed: u64 = list
                .counts
                .iter()
                .filter(|((n, k), _)| *n == key.0 && *k != key.1)
                .map(|(_, c)| c)
                .sum();
            if typed > 0 {
                let total = list.counts.remove(&key).unwrap_or(0);
                list.add(&key.0, "", total.saturating_sub(typed));
            }
        }
        Ok(list)
    }

    fn add(&mut self, name: &str, kind: &str, count: u64) {
        if count > 0 {
            let sum = self.counts.entry((name.to_owned(), Kind::new(kind))).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Number of a resource, of all types.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.counts
            .iter()
            .filter(|((n, _), _)| n == name)
            .fold(0, |sum, (_, c)| sum.saturating_add(*c))
    }

    /// The types of a resource with their numbers; the empty type for a resource without.
    pub fn types<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        self.counts
            .iter()
            .filter(move |((n, _), _)| n == name)
            .map(|((_, k), c)| (k.1.as_str(), *c))
    }

    /// The names of the resources.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let mut last = None;
        self.counts
            .keys()
            .map(|(name, _)| name.as_str())
            .filter(move |name| last.replace(*name) != Some(*name))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// GPUs of each node that it stands for: GPUs, guests on GPUs of others, and one for shards.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        let guests = self.names().filter(|n| is_guest(n)).map(|n| self.count(n)).sum::<u64>();
        let shards = u64::from(self.count("shard") > 0);
        u32::try_from(self.count("gpu").saturating_add(guests).saturating_add(shards))
            .unwrap_or(u32::MAX)
    }
}

/// Whether a resource stands for a place on a GPU beside another job: `guest`, `guest2`.
#[must_use]
pub fn is_guest(name: &str) -> bool {
    name.strip_prefix("guest").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
}

/// In canonical order and without a prefix: `gpu:g1:1,gpu:g3:1`.
impl fmt::Display for GresList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, ((name, kind), count)) in self.counts.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            if kind.1.is_empty() {
                write!(f, "{comma}{name}:{count}")?;
            } else {
                write!(f, "{comma}{name}:{}:{count}", kind.1)?;
            }
        }
        Ok(())
    }
}

/// The indices of the GPUs that a job holds on a node, ascending: of
/// `gpu:g1:1(IDX:1),gpu:g2:0(IDX:)`, `gpu:2(IDX:0,2-3)`, `shard:g1:1(0/4,1/4,0/4)`.
///
/// The type `g<index>` is decisive. Otherwise the position is: Slurm numbers the GPUs of a node in the order
/// of its gres.conf.
///
/// # Errors
/// If an index is no number.
pub fn held_indices(text: &str) -> Result<Vec<GpuIndex>, TextError> {
    let mut indices = Vec::new();
    if is_absent(text) {
        return Ok(indices);
    }
    for item in split_outside_parentheses(text) {
        let (request, positions) = item.split_once('(').unwrap_or((item, ""));
        let request = GresList::parse(request)?;
        let Some(name) = request.names().next() else { continue };
        if name != "gpu" && name != "shard" && !is_guest(name) {
            continue;
        }
        if let Some(index) = request.types(name).next().and_then(|(kind, _)| index_of_type(kind)) {
            indices.push(index);
        } else {
            indices.extend(positions_in(positions.trim_end_matches(')'))?);
        }
    }
    indices.sort_unstable();
    indices.dedup();
    Ok(indices)
}

/// The positions of `IDX:0,2-3`, or those of `0/4,2/4` that are not 0.
fn positions_in(text: &str) -> Result<Vec<GpuIndex>, TextError> {
    let invalid = || TextError::new("position of a generic resource", text);
    let mut found = Vec::new();
    if let Some(list) = text.strip_prefix("IDX:") {
        for part in list.split(',').filter(|part| !part.is_empty() && *part != "N/A") {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let low: GpuIndex = low.parse().map_err(|_| invalid())?;
            let high: GpuIndex = high.parse().map_err(|_| invalid())?;
            if high < low || high - low > 1024 {
                return Err(invalid());
            }
            found.extend(low..=high);
        }
    } else {
        for (at, part) in (0..).zip(text.split(',')) {
            if part.split_once('/').is_some_and(|(used, _)| used != "0") {
                found.push(at);
            }
        }
    }
    Ok(found)
}

fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match &text[digits.len()..] {
        "" => 1,
        "K" | "k" => 1 << 10,
        "M" | "m" => 1 << 20,
        "G" | "g" => 1 << 30,
        _ => return None,
    };
    let number: u64 = digits.parse().ok()?;
    Some(number.saturating_mul(factor))
}

pub(super) fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let (mut start, mut depth) = (0, 0_u32);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&text[start..]);
    items.retain(|item| !item.is_empty());
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canonical(text: &str) -> String {
        GresList::parse(text).unwrap().to_string()
    }

    #[test]
    fn the_releases_of_slurm_write_the_same_request_differently() {
        assert_eq!(canonical("gres:gpu:g3:1,gres:gpu:g1:1"), "gpu:g1:1,gpu:g3:1");
        assert_eq!(canonical("gres/gpu:g1:1,gres/gpu:g3:1"), "gpu:g1:1,gpu:g3:1");
        assert_eq!(canonical("gpu:g10:1,gpu:g2:1"), "gpu:g2:1,gpu:g10:1");
        assert_eq!(canonical("gpu"), "gpu:1");
        assert_eq!(canonical("gpu:v100"), "gpu:v100:1");
        assert_eq!(canonical("gpu:v100:2(S:0-1),shard:4"), "gpu:v100:2,shard:4");
        assert_eq!(canonical("gpu:g1:1,gpu:g1:1,gpu:g2:0"), "gpu:g1:2");
        for absent in ["", "(null)", "N/A"] {
            assert_eq!(canonical(absent), "");
        }
        assert!(GresList::parse("gpu:a:b:1").is_err());
        assert!(GresList::parse("gpu:a:b").is_err());
        for wrong in ["gres/gpu=x", "gres/gpu=-1", "gpu:4x", "gres/gpu:a100:2=2"] {
            let error = GresList::parse(wrong).unwrap_err();
            assert!(error.text == wrong, "{error}");
        }
    }

    #[test]
    fn a_total_and_its_types_are_counted_once() {
        let text =
            "cpu=1,mem=500M,node=1,billing=1,gres/gpu=2,gres/gpu:g0=1,gres/gpu:g1=1,gres/guest=1";
        assert_eq!(GresList::of_tres(text).unwrap().to_string(), "gpu:g0:1,gpu:g1:1,guest:1");
    }

    #[test]
    fn indices_come_from_types_or_positions() {
        let indices = |text| held_indices(text).unwrap();
        assert_eq!(
            indices("gpu:g0:1(IDX:0),gpu:g1:1(IDX:1),gpu:g2:0(IDX:),gpu:g3:0(IDX:)"),
            [0, 1]
        );
        assert_eq!(indices("gpu:2(IDX:0,2-3)"), [0, 2, 3]);
        assert_eq!(indices("gpu:v100:2(IDX:4-5)"), [4, 5]);
        assert_eq!(indices("shard:2(0/4,2/4,0/4)"), [1]);
        assert_eq!(indices("shard:g1:1(0/4,1/4,0/4,0/4)"), [1]);
        assert_eq!(indices("guest:g1:1(IDX:1),license:3(IDX:0)"), [1]);
        assert_eq!(indices(""), Vec::<u32>::new());
        assert!(held_indices("gpu:1(IDX:0-99999)").is_err());
    }

    #[test]
    fn only_the_types_of_indices_have_an_index() {
        assert_eq!(index_of_type("g0"), Some(0));
        assert_eq!(index_of_type("g12"), Some(12));
        for kind in ["g", "g01", "gtx1080", "v100", "g+1"] {
            assert_eq!(index_of_type(kind), None, "{kind}");
        }
    }

    proptest! {
        #[test]
        fn canonical_text_is_stable(text in "(gres[:/])?(gpu|guest|shard)(:g[0-9]{1,2})?:[0-9]{1,3}(,gpu:g[0-9]:[0-9])*") {
            let once = canonical(&text);
            prop_assert_eq!(canonical(&once), once);
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = GresList::parse(&text);
            let _ = held_indices(&text);
        }
    }
}
