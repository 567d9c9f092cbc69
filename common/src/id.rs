//! Typed ids of clusters, nodes, switches, jobs, workloads and predictors.
//!
//! An id is used in NATS subjects, KV keys, file names and environment variables, so it consists of
//! 1 to 64 characters of `A-Z a-z 0-9 - _` (NATS ADR-6's restricted term).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Index of a GPU on its node, from 0, as in NVML.
pub type GpuIndex = u32;

/// Longest id accepted, in bytes.
pub const ID_LEN_MAX: usize = 64;

/// Why a text is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Empty or longer than [`ID_LEN_MAX`] bytes.
    #[error("an id has 1 to {ID_LEN_MAX} characters, this one has {0}")]
    Length(usize),
    /// A dash at the beginning of a new id.
    #[error("invalid id `{0}`: it begins with a dash; begin it with a letter, a digit or _")]
    LeadingDash(String),
    /// A character that is not allowed.
    #[error("invalid id `{id}`: {bad:?} is not allowed; use letters, digits, - and _")]
    Character {
        /// The given text.
        id: String,
        /// The first character that is not allowed.
        bad: char,
    },
}

/// Checks that `text` is a valid id.
///
/// # Errors
/// [`IdError`] states the problem.
pub fn check(text: &str) -> Result<(), IdError> {
    if text.is_empty() || text.len() > ID_LEN_MAX {
        return Err(IdError::Length(text.chars().count()));
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))) {
        Some(bad) => Err(IdError::Character { id: text.to_owned(), bad }),
        None => Ok(()),
    }
}

/// Checks an id that a person chooses for something new: it also begins with a letter, a digit or `_`, because
/// programs read `-rf` as options.
///
/// # Errors
/// [`IdError`] states the problem.
pub fn check_chosen(text: &str) -> Result<(), IdError> {
    check(text)?;
    if text.starts_with('-') {
        return Err(IdError::LeadingDash(text.to_owned()));
    }
    Ok(())
}

/// The id that a person chooses for something new, for options of the command line ([`check_chosen`]).
///
/// # Errors
/// [`IdError`] states the problem.
pub fn parse_chosen<T: FromStr<Err = IdError>>(text: &str) -> Result<T, IdError> {
    check_chosen(text).and_then(|()| text.parse())
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id `text`.
            ///
            /// # Errors
            /// If `text` is empty, too long, or has a character that is not allowed.
            pub fn new(text: &str) -> Result<Self, IdError> {
                check(text)?;
                Ok(Self(text.into()))
            }
            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::new(&text)
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.as_ref().to_owned()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

id!(
    /// One cluster; several can share a NATS server without interfering.
    ClusterId
);
id!(
    /// One machine with GPUs.
    NodeId
);
id!(
    /// One leaf switch, named by the operator.
    SwitchId
);
id!(
    /// One training job.
    JobId
);
id!(
    /// One submission of a job: the same in every repetition of a request, and in no other request.
    SubmissionId
);
id!(
    /// One accepted submission of a job ([`crate::admission`]).
    AdmissionId
);
id!(
    /// A workload (model, data set, batch size), named by the catalog or the job's owner.
    WorkloadId
);
id!(
    /// One predictor: its name as a NATS service.
    PredictorId
);
id!(
    /// A project: an account for the jobs of several users.
    ProjectId
);
id!(
    /// A power feeder: a board, a circuit, a PDU.
    FeederId
);
id!(
    /// A grid event ([`crate::event`]).
    EventId
);
id!(
    /// A person who submits jobs, operates the cluster or observes it.
    UserId
);

impl UserId {
    /// The id of a user of the operating system; characters that an id cannot have become `-`.
    #[must_use]
    pub fn of_local(name: &str) -> Self {
        let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let name: String = name.chars().take(ID_LEN_MAX).map(allowed).collect();
        Self(if name.is_empty() { "unknown".into() } else { name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_subject_safe_characters_are_accepted() {
        assert_eq!(JobId::new("train-7_a").unwrap().as_str(), "train-7_a");
        assert_eq!(
            JobId::new("a.b").unwrap_err().to_string(),
            "invalid id `a.b`: '.' is not allowed; use letters, digits, - and _"
        );
        assert_eq!(NodeId::new(""), Err(IdError::Length(0)));
        assert!(serde_json::from_str::<NodeId>("\"a>b\"").is_err());
    }

    #[test]
    fn new_ids_do_not_look_like_options() {
        for refused in ["-rf", "--help", "-", "-7"] {
            let error = check_chosen(refused).unwrap_err().to_string();
            assert!(error.contains(refused) && error.contains("begin it with a letter"), "{error}");
            assert!(parse_chosen::<JobId>(refused).is_err());
            assert!(serde_json::from_value::<JobId>(refused.into()).is_ok(), "known ones are read");
        }
        assert_eq!(parse_chosen::<JobId>("_a-1").unwrap().as_str(), "_a-1");
        assert!(check_chosen("a.b").is_err());
    }
}
