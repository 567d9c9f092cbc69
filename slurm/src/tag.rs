//! The tag that the intake plugin gives a job that Wattle places.
//!
//! ```
//! use wattle_slurm::tag::Tag;
//! let tag = Tag::parse("wattle: tag=6a1f nodes=2 gpus_per_node=4").unwrap();
//! assert_eq!((tag.id.as_str(), tag.nodes, tag.gpus_per_node), ("6a1f", 2, 4));
//! ```

use wattle_site::terms::PREFIX;

/// Longest tag, characters: with Slurm's job id it is a part of the job's id.
const TAG_LEN_MAX: usize = 40;

/// The intake plugin's mark of a job that Wattle places, in the administrator's comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Unique among all submissions. Slurm gives a job id again after a crash of slurmctld.
    pub id: String,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of GPUs on each node, as submitted.
    pub gpus_per_node: u32,
    /// Whether its owner submitted it held.
    pub held_by_owner: bool,
}

impl Tag {
    /// The tag in an administrator's comment; `None` without one.
    #[must_use]
    pub fn parse(comment: &str) -> Option<Self> {
        let words = comment.trim_start().strip_prefix(PREFIX)?;
        let value = |key: &str| {
            words.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        let count = |key| value(key).and_then(|text| text.parse().ok()).filter(|count| *count > 0);
        let id = value("tag")?;
        let is_hex = id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_tag = is_hex && (1..=TAG_LEN_MAX).contains(&id.len());
        is_tag.then(|| Self {
            id: id.to_owned(),
            nodes: count("nodes").unwrap_or(1),
            gpus_per_node: count("gpus_per_node").unwrap_or(1),
            held_by_owner: words.split_whitespace().any(|word| word == "held_by_owner"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_and_nothing_else() {
        let tag =
            Tag::parse("wattle: tag=6a0f00001 nodes=2 gpus_per_node=4 held_by_owner").unwrap();
        let expected =
            Tag { id: "6a0f00001".to_owned(), nodes: 2, gpus_per_node: 4, held_by_owner: true };
        assert_eq!(tag, expected);
        // With the energy, after the end.
        assert_eq!(Tag::parse("wattle: tag=6a energy_j=12").map(|tag| tag.id), Some("6a".into()));
        let tag = Tag::parse("wattle: tag=6a nodes=0 gpus_per_node=0").unwrap();
        assert_eq!((tag.nodes, tag.gpus_per_node), (1, 1));
        let long = format!("wattle: tag={}", "a".repeat(41));
        for none in ["", "tag=6a", "wattle: nodes=2", "wattle: tag=x.y", "wattle: tag=", &long] {
            assert_eq!(Tag::parse(none), None, "{none}");
        }
    }
}
