//! A set of policies that are selected by name, and the parser of `NAME[:NUMBER][@MHZ][+ADDITION]`.
//!
//! The placer runs the policies of [`POLICIES`]. Another crate makes a larger set of them and its own.

use wattle_common::Frequency;

use crate::policies::selected::SelectedPolicy;
use crate::policies::{Capabilities, POLICIES, Policy};

/// Policies that are selected by name.
#[derive(Clone, Copy, Debug)]
pub struct PolicySet {
    /// The policies, in the order of help texts.
    pub entries: &'static [PolicyEntry],
    /// What a specification may add to any of them.
    pub additions: &'static [Addition],
}

/// A rule around a policy that a specification adds as `NAME+ADDITION`.
#[derive(Clone, Copy, Debug)]
pub struct Addition {
    /// Its name.
    pub name: &'static str,
    /// The policy with this rule, called by its name and the addition's.
    pub around: fn(Box<dyn Policy>) -> Box<dyn Policy>,
}

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
#[must_use]
pub const fn names<const N: usize>(entries: &[PolicyEntry]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut index = 0;
    while index < N {
        names[index] = entries[index].name;
        index += 1;
    }
    names
}

/// An invalid policy specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPolicy {
    /// No policy has this name.
    #[error("unknown policy `{name}`: expected {form} with NAME one of {}", names.join(", "))]
    Name {
        /// The specification.
        name: String,
        /// The form of a specification.
        form: String,
        /// The names of the set.
        names: Vec<&'static str>,
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
    #[error("unknown addition `+{name}`: expected {}", known.join(", "))]
    Addition {
        /// The addition.
        name: String,
        /// Those of the set.
        known: Vec<String>,
    },
    /// Both one clock for all jobs and a setting for each job.
    #[error("`{0}` combines one clock for all jobs with a setting for each job: remove one")]
    Both(String),
}

impl PolicySet {
    /// The names of the policies, in the order of help texts.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|entry| entry.name)
    }

    /// The entry of a policy's own name, without number, clock and addition.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&'static PolicyEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The form of a specification: `NAME[:NUMBER][@MHZ][+ADDITION]`, without what this set does not have.
    #[must_use]
    pub fn form(&self) -> String {
        let has_numbers = self.entries.iter().any(|entry| entry.number().is_some());
        let number = if has_numbers { "[:NUMBER]" } else { "" };
        let additions = self.additions.iter().map(|addition| format!("[+{}]", addition.name));
        format!("NAME{number}[@MHZ]{}", additions.collect::<String>())
    }

    /// The policy that `specification` selects, under its name.
    ///
    /// [`PolicyEntry::number`] describes the number. `@MHZ` locks the GPUs of every job to that clock.
    ///
    /// # Errors
    /// If the specification selects no policy of this set.
    pub fn policy(&self, specification: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
        let (rest, addition) = split(specification, '+');
        let (rest, clock) = split(rest, '@');
        let (name, number) = split(rest, ':');
        let unknown = || UnknownPolicy::Name {
            name: specification.to_owned(),
            form: self.form(),
            names: self.names().collect(),
        };
        let entry = self.entry(name).ok_or_else(unknown)?;
        if addition.is_some() && self.additions.is_empty() {
            return Err(unknown());
        }
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
        let megahertz = |text: &str| {
            let mhz = text.parse().ok().filter(|mhz: &u32| *mhz > 0);
            mhz.map(Frequency::from_mhz).ok_or_else(|| UnknownPolicy::Clock(text.to_owned()))
        };
        let Some(addition) = addition else {
            let clock = clock.map(megahertz).transpose()?;
            return Ok(Box::new(SelectedPolicy::new(&name, policy, clock)));
        };
        let Some(known) = self.additions.iter().find(|known| known.name == addition) else {
            let known = self.additions.iter().map(|known| format!("+{}", known.name)).collect();
            return Err(UnknownPolicy::Addition { name: addition.to_owned(), known });
        };
        if clock.is_some() {
            return Err(UnknownPolicy::Both(specification.to_owned()));
        }
        Ok((known.around)(Box::new(SelectedPolicy::new(&name, policy, None))))
    }
}

/// The policy of the placer that `specification` selects: `NAME[:NUMBER][@MHZ]`.
///
/// # Errors
/// If the specification selects no policy of [`POLICIES`].
pub fn policy(specification: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
    POLICIES.policy(specification)
}

/// The text before and after the first `mark`.
fn split(text: &str, mark: char) -> (&str, Option<&str>) {
    text.split_once(mark).map_or((text, None), |(before, after)| (before, Some(after)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::NAMES;

    #[test]
    fn a_policy_has_the_name_it_was_selected_by() {
        for name in NAMES {
            for text in [name.to_owned(), format!("{name}@1080")] {
                assert_eq!(policy(&text).unwrap().name(), text);
            }
        }
    }

    #[test]
    fn an_invalid_specification_is_refused_with_its_remedy() {
        let error = |text: &str| policy(text).err().unwrap().to_string();
        expect_test::expect!["unknown policy `magic`: expected NAME[:NUMBER][@MHZ] with NAME one of fifo, backfill, fifo-packed, eaco, powerflow, greenflow, wattle"]
        .assert_eq(&error("magic"));
        assert_eq!(policy("backfill:12@1080").unwrap().name(), "backfill:12@1080");
        let cases = [
            ("fifo:2", "has no number"),
            ("backfill:-1", "not negative"),
            ("fifo@", "invalid clock"),
            ("fifo@0", "invalid clock"),
            ("fifo+zeus", "unknown policy `fifo+zeus`"),
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
    }
}
