//! What the records of each user occupy, and which ended one is forgotten next.
//!
//! Each user has a share of the ended records that are kept: the oldest of the user with most of them is
//! forgotten, so that many short jobs of one user do not displace the records of another.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wattle_common::{JobId, Timestamp};

/// The records of one user.
#[derive(Default)]
struct Share {
    /// Size of the specifications of jobs that have not ended, bytes.
    unfinished_bytes: u64,
    /// Size of those of ended jobs, bytes.
    ended_bytes: u64,
    /// The ended jobs, the oldest first, with the size of their specifications, bytes.
    ended: BTreeMap<(Timestamp, JobId), u64>,
}

/// By what the shares of users are compared.
#[derive(Clone, Copy)]
pub(super) enum Measure {
    /// Number of ended jobs.
    Count,
    /// Size of their specifications.
    Bytes,
}

impl Share {
    fn ended_by(&self, measure: Measure) -> u64 {
        match measure {
            Measure::Count => self.ended.len() as u64,
            Measure::Bytes => self.ended_bytes,
        }
    }
}

/// The records of all users. Jobs without a user count as those of one user without a name.
#[derive(Default)]
pub(super) struct Occupancy {
    shares: BTreeMap<String, Share>,
    ended: usize,
}

impl Occupancy {
    /// Number of ended jobs.
    pub(super) const fn ended(&self) -> usize {
        self.ended
    }

    /// Size of the specifications of a user's jobs that have not ended, bytes.
    pub(super) fn unfinished_bytes(&self, user: &str) -> u64 {
        self.shares.get(user).map_or(0, |share| share.unfinished_bytes)
    }

    /// Adds a job that has not ended.
    pub(super) fn add(&mut self, user: &str, bytes: u64) {
        self.shares.entry(user.to_owned()).or_default().unfinished_bytes += bytes;
    }

    /// Removes a job that has not ended.
    pub(super) fn remove(&mut self, user: &str, bytes: u64) {
        if let Some(share) = self.shares.get_mut(user) {
            share.unfinished_bytes = share.unfinished_bytes.saturating_sub(bytes);
        }
        self.drop_empty(user);
    }

    /// Adds a job that has ended.
    pub(super) fn add_ended(&mut self, user: &str, at: Timestamp, job: JobId, bytes: u64) {
        let share = self.shares.entry(user.to_owned()).or_default();
        if share.ended.insert((at, job), bytes).is_none() {
            share.ended_bytes += bytes;
            self.ended += 1;
        }
    }

    /// Removes a job that has ended.
    pub(super) fn remove_ended(&mut self, user: &str, job: &JobId) {
        let Some(share) = self.shares.get_mut(user) else { return };
        for (_, bytes) in share.ended.extract_if(.., |(_, ended), _| ended == job) {
            share.ended_bytes = share.ended_bytes.saturating_sub(bytes);
            self.ended -= 1;
        }
        self.drop_empty(user);
    }

    /// Removes the oldest ended job of the user with most of them by `measure`; of several users, of the one
    /// with the oldest job.
    pub(super) fn pop_ended(&mut self, measure: Measure) -> Option<JobId> {
        let largest = |(_, share): &(&String, &Share)| {
            let oldest = share.ended.first_key_value().map(|(key, _)| key.clone());
            (share.ended_by(measure), Reverse(oldest))
        };
        let having = self.shares.iter().filter(|(_, share)| !share.ended.is_empty());
        let user = having.max_by_key(largest).map(|(user, _)| user.clone())?;
        let share = self.shares.get_mut(&user)?;
        let ((_, job), bytes) = share.ended.pop_first()?;
        share.ended_bytes = share.ended_bytes.saturating_sub(bytes);
        self.ended -= 1;
        self.drop_empty(&user);
        Some(job)
    }

    fn drop_empty(&mut self, user: &str) {
        let is_empty = |share: &Share| share.ended.is_empty() && share.unfinished_bytes == 0;
        if self.shares.get(user).is_some_and(is_empty) {
            self.shares.remove(user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn popped(occupancy: &mut Occupancy, measure: Measure, count: usize) -> Vec<String> {
        let pop = |_| occupancy.pop_ended(measure).map(|job| job.to_string());
        (0..count).filter_map(pop).collect()
    }

    #[test]
    fn the_oldest_of_the_largest_share_goes_first() {
        let mut occupancy = Occupancy::default();
        let mut add = |name: &str, s, job: &str, bytes| {
            let job = JobId::new(job).unwrap();
            occupancy.add_ended(name, Timestamp::from_s(s), job, bytes);
        };
        // Ada's are the oldest, and few; one of them is long.
        add("ada", 1, "ada-1", 9_000);
        add("ada", 2, "ada-2", 10);
        for s in 3..7 {
            add("bob", s, &format!("bob-{s}"), 10);
        }
        assert_eq!(popped(&mut occupancy, Measure::Count, 2), ["bob-3", "bob-4"]);
        assert_eq!(popped(&mut occupancy, Measure::Count, 1), ["ada-1"], "equal: the oldest");
        assert_eq!(popped(&mut occupancy, Measure::Count, 9), ["bob-5", "ada-2", "bob-6"]);
        assert_eq!((occupancy.ended(), occupancy.shares.len()), (0, 0));
        let mut add = |name: &str, s, job: &str, bytes| {
            let job = JobId::new(job).unwrap();
            occupancy.add_ended(name, Timestamp::from_s(s), job, bytes);
        };
        add("bob", 1, "short-1", 10);
        add("bob", 2, "short-2", 10);
        add("ada", 3, "long", 9_000);
        assert_eq!(popped(&mut occupancy, Measure::Bytes, 2), ["long", "short-1"]);
    }

    #[test]
    fn sizes_return_to_zero() {
        let mut occupancy = Occupancy::default();
        occupancy.add("ada", 100);
        occupancy.add("ada", 50);
        occupancy.remove("ada", 100);
        assert_eq!(occupancy.unfinished_bytes("ada"), 50);
        assert_eq!(occupancy.unfinished_bytes("bob"), 0);
        occupancy.remove("ada", 50);
        let job = JobId::new("a").unwrap();
        occupancy.add_ended("ada", Timestamp::from_s(1), job.clone(), 50);
        occupancy.remove_ended("ada", &job);
        assert_eq!((occupancy.ended(), occupancy.shares.len()), (0, 0));
    }
}
