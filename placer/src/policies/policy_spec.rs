//! How policies are named: `NAME[:NUMBER][@MHZ][+zeus]`.

use wattle_common::Frequency;

use crate::policies::{Clocked, ETA, KNOWN, NAMES, Policy, Sleeping, Zeus};

/// Makes a policy.
#[derive(Clone, Copy)]
pub(super) enum Made {
    /// It has no number.
    Plain(fn() -> Box<dyn Policy>),
    /// It has a number by which it is tuned, and a default for it.
    Tuned(fn(Option<f64>) -> Box<dyn Policy>),
}

/// A policy's own name, and how it is made.
pub(super) type Known = (&'static str, Made);

/// The names of `known`.
pub(super) const fn names<const N: usize>(known: [Known; N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = known[at].0;
        at += 1;
    }
    names
}

/// There is no such policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPolicy {
    /// Nothing is called so.
    #[error(
        "no policy is called `{name}`; use one of {}, as NAME[:NUMBER][@MHZ][+zeus]",
        NAMES.join(", ")
    )]
    Name {
        /// What was asked for.
        name: String,
    },
    /// A number for a policy that has none, or no number where one should be.
    #[error(
        "`{name}`: `{number}` cannot be its number; {}",
        if *.tuned { "give one that is not negative" } else { "this policy takes none: leave it out" }
    )]
    Number {
        /// The policy.
        name: String,
        /// What was given.
        number: String,
        /// Whether it takes one.
        tuned: bool,
    },
    /// No clock.
    #[error("`{0}` is no clock; give whole megahertz greater than 0, as in fifo@1080")]
    Clock(String),
    /// What follows the `+`.
    #[error("nothing is called `+{0}`; the only addition is +zeus")]
    Addition(String),
    /// A clock for everybody, and each job its own.
    #[error("`{0}` sets one clock for all jobs and lets Zeus choose for each; leave one out")]
    Both(String),
}

/// The policy spelt `spelling`: `NAME[:NUMBER][@MHZ][+zeus]`, where `NAME` is one of [`NAMES`].
///
/// The number is what the policy is tuned by: for `tiresias`, the attained GPU seconds that part its
/// two queues (its own three if there is no number); for `afs`, the least relative gain of a
/// doubling. `@MHZ` locks every job's cards to that clock, `+zeus` sets each job's cap as Zeus
/// would. Whatever it is, its unused nodes sleep where they may ([`Sleeping`]).
///
/// # Errors
/// Where there is none.
pub fn policy(spelling: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
    let (rest, addition) = cut(spelling, '+');
    let (rest, clock) = cut(rest, '@');
    let (name, number) = cut(rest, ':');
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    let made = known.ok_or_else(|| UnknownPolicy::Name { name: spelling.to_owned() })?.1;
    let refused = |tuned| {
        let number = number.unwrap_or_default().to_owned();
        Err(UnknownPolicy::Number { name: name.to_owned(), number, tuned })
    };
    let parsed =
        number.map(|number| number.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0));
    let mut policy = match (made, parsed) {
        (Made::Plain(make), None) => make(),
        (Made::Tuned(make), None) => make(None),
        (Made::Tuned(make), Some(Some(number))) => make(Some(number)),
        (Made::Plain(_), Some(_)) => return refused(false),
        (Made::Tuned(_), Some(None)) => return refused(true),
    };
    if let Some(number) = number {
        policy = Box::new(Numbered { name: format!("{name}:{number}"), inner: policy });
    }
    match (clock, addition) {
        (None, None) => {}
        (Some(mhz), None) => {
            let clock = mhz.parse().ok().filter(|mhz: &u32| *mhz > 0);
            let clock = clock.ok_or_else(|| UnknownPolicy::Clock(mhz.to_owned()))?;
            policy = Box::new(Clocked::new(policy, Frequency::from_mhz(clock)));
        }
        (None, Some("zeus")) => policy = Box::new(Zeus::new(policy, ETA)),
        (Some(_), Some("zeus")) => return Err(UnknownPolicy::Both(spelling.to_owned())),
        (_, Some(other)) => return Err(UnknownPolicy::Addition(other.to_owned())),
    }
    Ok(Box::new(Sleeping::new(policy)))
}

/// What stands before and after the first `mark`.
fn cut(text: &str, mark: char) -> (&str, Option<&str>) {
    text.split_once(mark).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// A policy that is called by its number, too.
struct Numbered {
    name: String,
    inner: Box<dyn Policy>,
}

impl Policy for Numbered {
    fn name(&self) -> &str {
        &self.name
    }
    fn inner(&self) -> Option<&dyn Policy> {
        Some(self.inner.as_ref())
    }
    fn reads(&self) -> crate::Reads {
        self.inner.reads()
    }
    fn solve(&self, input: crate::PlanningInput<'_>) -> crate::Plan {
        self.inner.solve(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_policy_and_is_called_as_it_is_spelt() {
        for name in NAMES {
            for spelling in [name.to_owned(), format!("{name}@1080"), format!("{name}+zeus")] {
                assert_eq!(policy(&spelling).unwrap().name(), spelling);
            }
        }
        for spelling in ["afs:0.25", "afs:0.25@1080", "tiresias:3600+zeus"] {
            assert_eq!(policy(spelling).unwrap().name(), spelling);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_remedy() {
        let refused = |spelling: &str| policy(spelling).err().unwrap().to_string();
        expect_test::expect!["no policy is called `magic`; use one of fifo, fifo-packed, srtf, tiresias, gandiva, afs, eaco, powerflow, greenflow, wattle, as NAME[:NUMBER][@MHZ][+zeus]"]
        .assert_eq(&refused("magic"));
        let cases = [
            ("fifo:2", "takes none"),
            ("afs:", "not negative"),
            ("afs:-1", "not negative"),
            ("afs:NaN", "not negative"),
            ("fifo@", "no clock"),
            ("fifo@0", "no clock"),
            ("fifo+hera", "+zeus"),
            ("fifo@1080+zeus", "leave one out"),
        ];
        for (spelling, remedy) in cases {
            assert!(refused(spelling).contains(remedy), "{spelling}: {}", refused(spelling));
        }
    }
}
