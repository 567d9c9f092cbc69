//! The table of policies, and the parser of `NAME[:NUMBER][@MHZ][+zeus]`.

use wattle_common::Frequency;

use crate::pipeline::StagedPolicy;
use crate::policies::setting_rule::SettingRule;
use crate::policies::zeus::ETA;
use crate::policies::{Capabilities, NAMES, POLICIES, Policy};

/// A policy that can be selected by name. Help texts and tables are derived from it.
#[derive(Clone, Copy, Debug)]
pub struct PolicyEntry {
    /// Its name.
    pub name: &'static str,
    /// Its rule in one line, without a full stop.
    pub rule: &'static str,
    /// The publication or software that the rule comes from.
    pub source: &'static str,
    /// How it is built, and the meaning of its tuning number if it has one.
    pub build: Build,
}

/// How a policy is built.
#[derive(Clone, Copy, Debug)]
pub enum Build {
    /// It has no tuning number.
    Plain(fn() -> Box<dyn Policy>),
    /// It has a tuning number, which is optional.
    Tuned {
        /// The meaning of the number, with its unit.
        number: &'static str,
        /// Builds the policy; without a number with its default.
        build: fn(Option<f64>) -> Box<dyn Policy>,
    },
}

impl PolicyEntry {
    /// The policy with its default tuning number.
    #[must_use]
    pub fn policy(&self) -> Box<dyn Policy> {
        match self.build {
            Build::Plain(build) => build(),
            Build::Tuned { build, .. } => build(None),
        }
    }

    /// The inputs and decisions of the policy.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.policy().capabilities()
    }

    /// The meaning of the tuning number; `None` for a policy without one.
    #[must_use]
    pub const fn number(&self) -> Option<&'static str> {
        match self.build {
            Build::Plain(_) => None,
            Build::Tuned { number, .. } => Some(number),
        }
    }
}

/// The names of `entries`.
pub(super) const fn names<const N: usize>(entries: &[PolicyEntry]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut index = 0;
    while index < N {
        names[index] = entries[index].name;
        index += 1;
    }
    names
}

/// The table entry of a policy's own name, without number, clock and addition.
#[must_use]
pub fn policy_entry(name: &str) -> Option<&'static PolicyEntry> {
    POLICIES.iter().find(|entry| entry.name == name)
}

/// An invalid policy specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPolicy {
    /// No policy has this name.
    #[error(
        "unknown policy `{name}`: expected NAME[:NUMBER][@MHZ][+zeus] with NAME one of {}",
        NAMES.join(", ")
    )]
    Name {
        /// The specification.
        name: String,
    },
    /// A number for a policy without one, or an invalid number.
    #[error(
        "invalid number `{number}` for policy `{name}`: {}",
        if *.tuned { "expected a number that is not negative" } else { "this policy has no number; remove it" }
    )]
    Number {
        /// The policy.
        name: String,
        /// The number as written.
        number: String,
        /// Whether the policy has a tuning number.
        tuned: bool,
    },
    /// An invalid clock.
    #[error(
        "invalid clock `{0}`: expected an integer of megahertz greater than 0, as in fifo@1080"
    )]
    Clock(String),
    /// An unknown addition.
    #[error("unknown addition `+{0}`: the only addition is +zeus")]
    Addition(String),
    /// Both one clock for all jobs and a setting for each job.
    #[error("`{0}` combines one clock for all jobs with Zeus's setting for each job: remove one")]
    Both(String),
}

/// The policy that `specification` selects: `NAME[:NUMBER][@MHZ][+zeus]`, where `NAME` is one of
/// [`NAMES`].
///
/// [`PolicyEntry::number`] describes the number. `@MHZ` locks the GPUs of every job to that clock;
/// `+zeus` sets each job's cap by Zeus's rule. The stages of a policy are those of [`StagedPolicy`].
///
/// # Errors
/// If the specification selects no policy.
pub fn policy(specification: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
    let (rest, addition) = split(specification, '+');
    let (rest, clock) = split(rest, '@');
    let (name, number) = split(rest, ':');
    let entry =
        policy_entry(name).ok_or_else(|| UnknownPolicy::Name { name: specification.to_owned() })?;
    let invalid_number = |tuned| {
        let number = number.unwrap_or_default().to_owned();
        UnknownPolicy::Number { name: name.to_owned(), number, tuned }
    };
    let (name, policy) = match (entry.build, number) {
        (_, None) => (name.to_owned(), entry.policy()),
        (Build::Plain(_), Some(_)) => return Err(invalid_number(false)),
        (Build::Tuned { build, .. }, Some(text)) => {
            let number = text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
            let number = number.ok_or_else(|| invalid_number(true))?;
            (format!("{name}:{text}"), build(Some(number)))
        }
    };
    let settings = match (clock, addition) {
        (None, None) => SettingRule::Policy,
        (Some(mhz), None) => {
            let clock = mhz.parse().ok().filter(|mhz: &u32| *mhz > 0);
            let clock = clock.ok_or_else(|| UnknownPolicy::Clock(mhz.to_owned()))?;
            SettingRule::Clock(Frequency::from_mhz(clock))
        }
        (None, Some("zeus")) => SettingRule::Zeus { eta: ETA },
        (Some(_), Some("zeus")) => return Err(UnknownPolicy::Both(specification.to_owned())),
        (_, Some(other)) => return Err(UnknownPolicy::Addition(other.to_owned())),
    };
    Ok(Box::new(StagedPolicy::new(&name, policy, settings)))
}

/// The text before and after the first `mark`.
fn split(text: &str, mark: char) -> (&str, Option<&str>) {
    text.split_once(mark).map_or((text, None), |(before, after)| (before, Some(after)))
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
        expect_test::expect!["unknown policy `magic`: expected NAME[:NUMBER][@MHZ][+zeus] with NAME one of fifo, fifo-packed, srtf, tiresias, gandiva, afs, eaco, powerflow, greenflow, wattle"]
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
        for entry in POLICIES {
            assert!(!entry.rule.is_empty() && !entry.rule.ends_with('.'), "{}", entry.name);
            assert!(!entry.source.is_empty(), "{}", entry.name);
            assert_eq!(entry.policy().name(), entry.name);
        }
    }
}
