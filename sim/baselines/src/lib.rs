//! Published scheduling policies that Wattle's are compared with. No site runs them, so the placer does not
//! have them: each implements [`Policy`] in a file of its own, and [`POLICIES`] has them beside the placer's.
//!
//! A policy is selected as `NAME[:NUMBER][@MHZ][+zeus]` ([`policy`]).

mod afs;
mod gandiva;
mod preemptive;
mod srtf;
mod tiresias;
mod zeus;

pub use afs::Afs;
pub use gandiva::{DISSOLVE_BELOW, Gandiva};
pub use srtf::Srtf;
pub use tiresias::{THRESHOLDS_S, Tiresias};
pub use zeus::Zeus;

use wattle_placer::Policy;
use wattle_placer::policies::{
    Backfill, Eaco, Fifo, FifoPacked, GreenFlow, PolicySet, PowerFlow, UnknownPolicy, Wattle, names,
};

/// The placer's policies and those of this crate, in the order of help texts.
pub const POLICIES: PolicySet = PolicySet {
    entries: &[
        Fifo::ENTRY,
        Backfill::ENTRY,
        FifoPacked::ENTRY,
        Srtf::ENTRY,
        Tiresias::ENTRY,
        Gandiva::ENTRY,
        Afs::ENTRY,
        Eaco::ENTRY,
        PowerFlow::ENTRY,
        GreenFlow::ENTRY,
        Wattle::ENTRY,
    ],
    additions: &[zeus::ADDITION],
};

/// Their names, as [`policy`] accepts them.
pub const NAMES: [&str; POLICIES.entries.len()] = names(POLICIES.entries);

/// The policy of [`POLICIES`] that `specification` selects.
///
/// # Errors
/// If the specification selects no policy.
pub fn policy(specification: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
    POLICIES.policy(specification)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_the_name_it_was_selected_by() {
        for name in NAMES {
            for text in [name.to_owned(), format!("{name}@1080"), format!("{name}+zeus")] {
                assert_eq!(policy(&text).unwrap().name(), text);
            }
        }
        for text in ["afs:0.25", "afs:0.25@1080", "tiresias:3600+zeus"] {
            assert_eq!(policy(text).unwrap().name(), text);
        }
    }

    #[test]
    fn an_invalid_specification_is_refused_with_its_remedy() {
        let error = |text: &str| policy(text).err().unwrap().to_string();
        expect_test::expect!["unknown policy `magic`: expected NAME[:NUMBER][@MHZ][+zeus] with NAME one of fifo, backfill, fifo-packed, srtf, tiresias, gandiva, afs, eaco, powerflow, greenflow, wattle"]
        .assert_eq(&error("magic"));
        let cases = [
            ("fifo:2", "has no number"),
            ("afs:", "not negative"),
            ("afs:-1", "not negative"),
            ("afs:NaN", "not negative"),
            ("fifo@", "invalid clock"),
            ("fifo@0", "invalid clock"),
            ("fifo+hera", "+zeus"),
            ("fifo@1080+zeus", "remove one"),
        ];
        for (text, remedy) in cases {
            assert!(error(text).contains(remedy), "{text}: {}", error(text));
        }
    }

    #[test]
    fn the_table_describes_every_policy() {
        for entry in POLICIES.entries {
            assert!(!entry.rule.is_empty() && !entry.rule.ends_with('.'), "{}", entry.name);
            assert!(!entry.source.is_empty(), "{}", entry.name);
            assert_eq!(entry.policy().name(), entry.name);
        }
        let placers = wattle_placer::policies::NAMES;
        assert!(placers.iter().all(|name| NAMES.contains(name)), "the placer's are among them");
    }
}
