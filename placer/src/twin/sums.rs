//! Sums over the jobs that completed in the cluster and in its twin, by day, user and project.

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_common::Timestamp;
use wattle_common::messages::{TWIN_AHEAD_ROWS_MAX, TWIN_ROWS_MAX, TwinRow, TwinSums};

use crate::state::job::JobFacts;

/// Whose jobs completed on which day.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The day in the cluster: days since 1970-01-01, UTC. 0: the days before the others.
    pub day: u64,
    /// The user, if stated.
    pub user: Option<Arc<str>>,
    /// The project, if the jobs name one.
    pub project: Option<Arc<str>>,
}

impl Owner {
    pub(super) fn of(facts: &JobFacts, completed_at: Timestamp) -> Self {
        let (user, project) = (facts.user.clone(), facts.project.clone());
        Self { user, project, ..Self::nodes(completed_at) }
    }

    /// The row of the nodes on the day of an instant.
    pub(super) fn nodes(at: Timestamp) -> Self {
        Self { day: at.as_us() / 86_400_000_000, ..Self::default() }
    }
}

/// Sums by owner, of bounded number.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    by_owner: BTreeMap<Owner, TwinSums>,
    rows_max: usize,
}

impl Default for Sums {
    fn default() -> Self {
        Self { by_owner: BTreeMap::new(), rows_max: TWIN_ROWS_MAX }
    }
}

impl Sums {
    /// No sums yet, of the jobs that still wait or run in the twin.
    pub(super) const fn ahead() -> Self {
        Self { by_owner: BTreeMap::new(), rows_max: TWIN_AHEAD_ROWS_MAX }
    }

    /// The sums of stored rows.
    pub(super) fn restored(rows: &[TwinRow]) -> Self {
        let mut sums = Self::default();
        for row in rows {
            let name = |name: &Option<String>| name.as_deref().map(Arc::from);
            let (user, project) = (name(&row.user), name(&row.project));
            sums.add(Owner { day: row.day, user, project }, row.sums);
        }
        sums
    }

    /// Adds sums of an owner.
    pub(super) fn add(&mut self, owner: Owner, sums: TwinSums) {
        *self.by_owner.entry(owner).or_default() += sums;
        while self.by_owner.len() > self.rows_max {
            self.merge_oldest();
        }
    }

    /// Merges the rows of the oldest day into those of all days before; without such a day, one row loses its names.
    fn merge_oldest(&mut self) {
        let dated = self.by_owner.keys().map(|owner| owner.day).filter(|day| *day > 0);
        let (first, last) =
            dated.fold((u64::MAX, 0), |(first, last), day| (first.min(day), last.max(day)));
        if first < last {
            let moved: Vec<Owner> =
                self.by_owner.keys().filter(|owner| owner.day == first).cloned().collect();
            for owner in moved {
                let Some(sums) = self.by_owner.remove(&owner) else { continue };
                *self.by_owner.entry(Owner { day: 0, ..owner }).or_default() += sums;
            }
            // A day of many owners may have had no rows before it.
            if self.by_owner.len() <= self.rows_max {
                return;
            }
        }
        let named = self.by_owner.keys().find(|o| o.user.is_some() || o.project.is_some()).cloned();
        let Some(owner) = named else { return };
        if let Some(sums) = self.by_owner.remove(&owner) {
            let unnamed = Owner { day: owner.day, ..Owner::default() };
            *self.by_owner.entry(unnamed).or_default() += sums;
        }
    }

    /// The sums over all owners.
    #[must_use]
    pub fn total(&self) -> TwinSums {
        let mut total = TwinSums::default();
        self.by_owner.values().for_each(|sums| total += *sums);
        total
    }

    /// The rows of a status, with figures rounded to a tenth.
    pub(super) fn rows(&self) -> Vec<TwinRow> {
        let name = |name: &Option<Arc<str>>| name.as_deref().map(str::to_owned);
        let row = |(owner, sums): (&Owner, &TwinSums)| TwinRow {
            day: owner.day,
            user: name(&owner.user),
            project: name(&owner.project),
            sums: sums.rounded(),
        };
        self.by_owner.iter().map(row).collect()
    }
}
