//! Typed names: of clusters, nodes, switches, jobs, workloads, predictors.
//!
//! A name may stand in a NATS subject, a KV key, a file name and an environment variable, so it is
//! made of `A-Z a-z 0-9 - _` only (NATS ADR-6's restricted term), and is 1 to 64 bytes long.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Position of a GPU on its node, from 0, as NVML counts them.
pub type GpuIndex = u32;

/// Longest id accepted, in bytes.
pub const ID_LEN_MAX: usize = 64;

/// Why a string is no id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Empty or longer than [`ID_LEN_MAX`] bytes.
    #[error("an id has 1 to {ID_LEN_MAX} characters, this one has {0}")]
    Length(usize),
    /// A character that cannot stand in a subject or a file name.
    #[error("`{id}` has {bad:?} in it; use letters, digits, - and _")]
    Character {
        /// What was given.
        id: String,
        /// The first character that is not allowed.
        bad: char,
    },
}

/// Checks that `text` may be an id.
///
/// # Errors
/// [`IdError`] says what is wrong with it.
pub fn check(text: &str) -> Result<(), IdError> {
    if text.is_empty() || text.len() > ID_LEN_MAX {
        return Err(IdError::Length(text.chars().count()));
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))) {
        Some(bad) => Err(IdError::Character { id: text.to_owned(), bad }),
        None => Ok(()),
    }
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
            /// Where `text` has a character that an id cannot have, or is too long or empty.
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
    /// One cluster; several may share a NATS server and never see each other.
    ClusterId
);
id!(
    /// One machine with GPUs.
    NodeId
);
id!(
    /// One leaf switch, as its operator calls it.
    SwitchId
);
id!(
    /// One training job.
    JobId
);
id!(
    /// A kind of job (model, data set, batch size), as in the catalog or as its owner calls it.
    WorkloadId
);
id!(
    /// One predictor: its name as a NATS service.
    PredictorId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_fit_a_subject() {
        assert_eq!(JobId::new("train-7_a").unwrap().as_str(), "train-7_a");
        assert_eq!(
            JobId::new("a.b").unwrap_err().to_string(),
            "`a.b` has '.' in it; use letters, digits, - and _"
        );
        assert_eq!(NodeId::new(""), Err(IdError::Length(0)));
        assert!(serde_json::from_str::<NodeId>("\"a>b\"").is_err());
    }
}
