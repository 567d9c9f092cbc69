//! Sums of the energy ledger by job, user, node or day.
//!
//! Each ledger entry has the energy of the node's GPUs, of its host, and the parts of the GPU energy
//! that are attributed to jobs. The rest of the GPU energy is idle energy. The sums are in whole
//! millijoules, so jobs, idle GPUs and hosts sum exactly to the energy of the nodes.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::messages::LedgerEntry;
use wattle_common::{Energy, JobId, NodeId, Timestamp};

/// Microseconds of a day.
const DAY_US: u64 = 86_400_000_000;

/// Energy of a node, a day or a cluster by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// GPU energy attributed to jobs.
    pub(crate) jobs: Energy,
    /// GPU energy attributed to no job: idle GPUs, and processes that are no jobs.
    pub(crate) idle: Energy,
    /// Energy of the rest of the nodes.
    pub(crate) hosts: Energy,
}

impl Uses {
    /// The sum.
    pub(crate) fn total(&self) -> Energy {
        self.jobs + self.idle + self.hosts
    }

    fn add(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.idle += other.idle;
        self.hosts += other.hosts;
    }
}

/// The sums over the ledger.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accounts {
    /// Energy attributed to each job.
    pub(crate) jobs: BTreeMap<JobId, Energy>,
    /// The user of each job whose entries name one.
    pub(crate) users: BTreeMap<JobId, String>,
    /// Energy of each node.
    pub(crate) nodes: BTreeMap<NodeId, Uses>,
    /// Energy of each day in UTC, by days since the Unix epoch.
    pub(crate) days: BTreeMap<u64, Uses>,
    /// Energy of all nodes.
    pub(crate) all: Uses,
    /// Start of the first counted interval.
    pub(crate) from: Option<Timestamp>,
    /// End of the last counted interval.
    pub(crate) until: Option<Timestamp>,
    /// Entries with a GPU without a reading: the energy is incomplete.
    pub(crate) incomplete: usize,
    /// Entries whose jobs have more energy than their GPUs.
    pub(crate) excessive: usize,
    /// Entries that could not be decoded.
    pub(crate) unreadable: usize,
    /// Node and start of each entry, to detect a repeated one.
    known: BTreeSet<(NodeId, Timestamp)>,
}

impl Accounts {
    /// Counts the part of an entry after `since`. A repeated entry does not count.
    pub(crate) fn count(&mut self, entry: &LedgerEntry, since: Timestamp) {
        let from = entry.from_us.max(since);
        if entry.until_us <= from || !self.known.insert((entry.node.clone(), entry.from_us)) {
            return;
        }
        let gpus: Energy = entry.energy_mj_gpus.iter().flatten().copied().sum();
        let attributed: Energy = entry.jobs.iter().map(|job| job.energy_mj).sum();
        self.incomplete += usize::from(entry.energy_mj_gpus.iter().any(Option::is_none));
        self.excessive += usize::from(attributed > gpus);
        self.from = Some(self.from.map_or(from, |first| first.min(from)));
        self.until = Some(self.until.map_or(entry.until_us, |last| last.max(entry.until_us)));
        for job in &entry.jobs {
            let sum = self.jobs.entry(job.job.clone()).or_default();
            *sum += part(entry, job.energy_mj, from, entry.until_us);
            if let Some(user) = &job.user {
                self.users.entry(job.job.clone()).or_insert_with(|| user.clone());
            }
        }
        let idle = gpus.saturating_sub(attributed);
        let mut begin = from;
        while begin < entry.until_us {
            let day = begin.as_us() / DAY_US;
            let end = entry.until_us.min(Timestamp::from_us((day + 1) * DAY_US));
            let jobs = entry.jobs.iter().map(|job| part(entry, job.energy_mj, begin, end)).sum();
            let uses = Uses {
                jobs,
                idle: part(entry, idle, begin, end),
                hosts: part(entry, entry.energy_mj_host, begin, end),
            };
            self.days.entry(day).or_default().add(uses);
            self.nodes.entry(entry.node.clone()).or_default().add(uses);
            self.all.add(uses);
            begin = end;
        }
    }

    /// Energy and number of jobs of each user; `user_of` completes the users of the ledger.
    pub(crate) fn by_user(
        &self,
        user_of: impl Fn(&JobId) -> Option<String>,
    ) -> BTreeMap<Option<String>, (Energy, usize)> {
        let mut users: BTreeMap<Option<String>, (Energy, usize)> = BTreeMap::new();
        for (job, energy) in &self.jobs {
            let user = self.users.get(job).cloned().or_else(|| user_of(job));
            let sum = users.entry(user).or_default();
            sum.0 += *energy;
            sum.1 += 1;
        }
        users
    }
}

/// The energy of an entry between two instants of its interval, over which it is spread evenly. The
/// parts of adjacent intervals sum to the energy.
fn part(entry: &LedgerEntry, energy: Energy, from: Timestamp, until: Timestamp) -> Energy {
    let span = u128::from(entry.until_us.as_us() - entry.from_us.as_us());
    let before = |at: Timestamp| {
        let passed = u128::from(at.as_us() - entry.from_us.as_us());
        // At most the energy, so it fits.
        Energy::from_mj((u128::from(energy.as_mj()) * passed / span) as u64)
    };
    before(until).saturating_sub(before(from))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wattle_common::messages::JobEnergy;
    use wattle_testkit as testkit;

    use super::*;

    fn entry(
        node: &str,
        from: u64,
        until: u64,
        gpus: &[Option<u64>],
        jobs: &[(&str, u64)],
    ) -> LedgerEntry {
        let energy = |job: &(&str, u64)| JobEnergy {
            job: testkit::job(job.0),
            energy_mj: Energy::from_mj(job.1),
            user: None,
        };
        LedgerEntry {
            energy_mj_gpus: gpus.iter().map(|mj| mj.map(Energy::from_mj)).collect(),
            jobs: jobs.iter().map(energy).collect(),
            ..testkit::ledger_entry(
                node,
                Timestamp::from_us(from),
                Timestamp::from_us(until),
                Energy::from_mj(70),
            )
        }
    }

    #[test]
    fn jobs_idle_and_hosts_sum_to_the_nodes() {
        let mut accounts = Accounts::default();
        let first = entry("n0", 0, 60, &[Some(100), Some(40)], &[("a", 100)]);
        accounts.count(&first, Timestamp::EPOCH);
        accounts.count(&first, Timestamp::EPOCH);
        accounts.count(
            &entry("n1", 0, 60, &[Some(50), None], &[("a", 30), ("b", 5)]),
            Timestamp::EPOCH,
        );
        let mj = Energy::from_mj;
        assert_eq!(accounts.all, Uses { jobs: mj(135), idle: mj(55), hosts: mj(140) });
        assert_eq!(accounts.nodes[&testkit::node("n0")].total(), mj(210), "counted once");
        assert_eq!(accounts.jobs[&testkit::job("a")], mj(130));
        assert_eq!((accounts.incomplete, accounts.excessive), (1, 0));
    }

    #[test]
    fn users_come_from_the_ledger_or_the_record() {
        let mut accounts = Accounts::default();
        let mut named = entry("n0", 0, 60, &[Some(100)], &[("a", 60), ("b", 30), ("c", 10)]);
        named.jobs[0].user = Some("ada".to_owned());
        accounts.count(&named, Timestamp::EPOCH);
        let users = accounts.by_user(|job| (job.as_str() == "b").then(|| "ada".to_owned()));
        let of = |user: Option<&str>| users[&user.map(str::to_owned)];
        assert_eq!(of(Some("ada")), (Energy::from_mj(90), 2));
        assert_eq!(of(None), (Energy::from_mj(10), 1));
    }

    #[test]
    fn interval_over_midnight_is_divided() {
        let mut accounts = Accounts::default();
        let over = entry("n0", DAY_US - 100, DAY_US + 300, &[Some(101)], &[("a", 41)]);
        accounts.count(&over, Timestamp::EPOCH);
        let mj = Energy::from_mj;
        assert_eq!(accounts.days[&0], Uses { jobs: mj(10), idle: mj(15), hosts: mj(17) });
        assert_eq!(accounts.days[&1], Uses { jobs: mj(31), idle: mj(45), hosts: mj(53) });
        assert_eq!(accounts.all.total(), mj(171), "rounding loses nothing");
        // Only the part after an instant.
        let mut late = Accounts::default();
        late.count(&over, Timestamp::from_us(DAY_US));
        assert_eq!((late.all, late.jobs[&testkit::job("a")]), (accounts.days[&1], mj(31)));
    }

    proptest! {
        #[test]
        fn every_sum_is_the_same_energy(
            entries in prop::collection::vec(
                (0u8..3, 0u64..3 * DAY_US, 1u64..2 * DAY_US, 0u64..1 << 40, 0u64..1 << 30, 0u64..=100, 0u64..=100),
                1..20,
            ),
            since in 0u64..2 * DAY_US,
        ) {
            let mut accounts = Accounts::default();
            for (node, from, span, gpus, host, a, b) in entries {
                let (a, b) = (gpus / 200 * a, gpus / 200 * b);
                let mut entry = entry(&format!("n{node}"), from, from + span, &[Some(gpus)], &[("a", a), ("b", b)]);
                entry.energy_mj_host = Energy::from_mj(host);
                accounts.count(&entry, Timestamp::from_us(since));
            }
            let jobs: Energy = accounts.jobs.values().copied().sum();
            let nodes: Energy = accounts.nodes.values().map(Uses::total).sum();
            let days: Energy = accounts.days.values().map(Uses::total).sum();
            let users: Energy = accounts.by_user(|_| None).values().map(|(energy, _)| *energy).sum();
            prop_assert_eq!(jobs, accounts.all.jobs);
            prop_assert_eq!(users, jobs);
            prop_assert_eq!(jobs + accounts.all.idle + accounts.all.hosts, nodes);
            prop_assert_eq!(days, nodes);
        }
    }
}
