//! The person behind a request: a rank and a name, which are the last two tokens of its subject.
//!
//! The server proves both: a person's key may publish only on subjects with its own rank and name.
//! Without keys the rank is [`Rank::Local`] and the name is only declared.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::UserId;

/// What a requester may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rank {
    /// Submits jobs; sees and cancels its own.
    User,
    /// Operates the cluster: sees and cancels every job, sets budgets, promotes predictors.
    Operator,
    /// Sees every job and changes nothing.
    Monitor,
    /// Connected without a key, as on a server on loopback. The rights of an operator; a placer with a
    /// key refuses it.
    Local,
}

impl Rank {
    /// Every rank.
    pub const ALL: [Self; 4] = [Self::User, Self::Operator, Self::Monitor, Self::Local];

    /// Its token in a subject.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Operator => "operator",
            Self::Monitor => "monitor",
            Self::Local => "local",
        }
    }

    /// The rank of a token.
    #[must_use]
    pub fn parse(token: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rank| rank.as_str() == token)
    }
}

/// The person behind a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Requester {
    /// Its rights.
    pub rank: Rank,
    /// Its name.
    pub user: UserId,
}

impl Requester {
    /// Whether it may see a job of `owner`. A job without an owner belongs to operators.
    #[must_use]
    pub fn may_see(&self, owner: Option<&str>) -> bool {
        match self.rank {
            Rank::Operator | Rank::Monitor | Rank::Local => true,
            Rank::User => owner == Some(self.user.as_str()),
        }
    }

    /// Whether it may change a job of `owner`.
    #[must_use]
    pub fn may_change(&self, owner: Option<&str>) -> bool {
        self.rank != Rank::Monitor && self.may_see(owner)
    }

    /// Whether it may change the cluster: budgets, the champion.
    #[must_use]
    pub const fn may_operate(&self) -> bool {
        matches!(self.rank, Rank::Operator | Rank::Local)
    }
}

impl fmt::Display for Requester {
    /// As in a subject: `user.ada`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.rank.as_str(), self.user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_follow_rank_and_ownership() {
        let requester = |rank| Requester { rank, user: UserId::new("ada").unwrap() };
        let rights = |rank, owner| {
            let requester = requester(rank);
            (requester.may_see(owner), requester.may_change(owner), requester.may_operate())
        };
        assert_eq!(rights(Rank::User, Some("ada")), (true, true, false));
        assert_eq!(rights(Rank::User, Some("bob")), (false, false, false));
        assert_eq!(rights(Rank::User, None), (false, false, false));
        assert_eq!(rights(Rank::Monitor, Some("ada")), (true, false, false));
        assert_eq!(rights(Rank::Operator, Some("bob")), (true, true, true));
        assert_eq!(rights(Rank::Local, None), (true, true, true));
    }
}
