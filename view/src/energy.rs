//! Sums of the energy ledger by job, user, project, node, day or cause.
//!
//! Each ledger entry has the energy of the node's GPUs, of its host, and the parts of the GPU energy
//! that are attributed to jobs or whose owner is unknown. The rest of the GPU energy is idle energy. The
//! sums are in whole millijoules, so jobs, idle GPUs, unknown and hosts sum exactly to the energy of the
//! nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::emissions::{Emissions, Rates};
use crate::unmeasured::Intervals;
use wattle_common::comparison::ComparedEnergy;
use wattle_common::messages::{LedgerEntry, UnknownCause, UnknownEnergy};
use wattle_common::total::Total;
use wattle_common::{AdmissionId, Energy, GpuIndex, JobId, NodeId, Timestamp};

/// Microseconds of a day.
const DAY_US: u64 = 86_400_000_000;

/// Energy of a node, a day or a cluster by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// GPU energy attributed to jobs.
    pub jobs: Energy,
    /// Energy of GPUs without a job and without a process.
    pub idle: Energy,
    /// GPU energy without a known owner.
    pub unknown: Energy,
    /// Energy of the rest of the nodes.
    pub hosts: Energy,
}

impl Uses {
    /// The sum.
    pub fn total(&self) -> Energy {
        self.jobs + self.idle + self.unknown + self.hosts
    }

    /// Adds other energy.
    pub fn add(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.idle += other.idle;
        self.unknown += other.unknown;
        self.hosts += other.hosts;
    }
}

/// The energy of a user's or a project's jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerEnergy {
    /// The measured energy; absent: none was measured.
    pub energy: Option<Energy>,
    /// Number of jobs.
    pub jobs: usize,
    /// Time of their GPUs without a meter, milliseconds.
    pub unmetered_ms: u64,
}

/// A job's id and its submission: an id may be submitted again once its record is gone. `None`: not known, as in
/// entries of an earlier version.
pub type Submission = (JobId, Option<AdmissionId>);

/// The sums over the ledger.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// Energy attributed to each submission of a job.
    pub jobs: BTreeMap<Submission, Energy>,
    /// Time of the GPUs of each submission without a meter, milliseconds: their energy is in no sum.
    pub unmetered_ms: BTreeMap<Submission, u64>,
    /// The GPUs of the entries, and whether each had no meter at some time.
    pub gpus: BTreeMap<(NodeId, GpuIndex), bool>,
    /// The user of each submission whose entries name one.
    pub users: BTreeMap<Submission, String>,
    /// The project of each submission whose entries name one.
    pub projects: BTreeMap<Submission, String>,
    /// The jobs' energy that is compared with the default setting.
    pub compared: ComparedEnergy,
    /// Energy without a known owner by cause.
    pub causes: BTreeMap<UnknownCause, Energy>,
    /// Intervals of a GPU in which energy may be missing, and those that became known later.
    intervals: Intervals,
    /// Energy of each node.
    pub nodes: BTreeMap<NodeId, Uses>,
    /// Energy of each day in UTC, by days since the Unix epoch.
    pub days: BTreeMap<u64, Uses>,
    /// Energy of all nodes.
    pub all: Uses,
    /// Emissions and cost of all nodes.
    pub emissions: Emissions,
    /// Start of the first counted interval.
    pub from: Option<Timestamp>,
    /// End of the last counted interval.
    pub until: Option<Timestamp>,
    /// Entries with a GPU without a reading: the energy is incomplete.
    pub incomplete: usize,
    /// Entries whose jobs have more energy than their GPUs.
    pub excessive: usize,
    /// Entries that could not be decoded, of another node than their subject's, or with a number outside its
    /// limits.
    pub unreadable: usize,
    /// Node and start of each entry, to detect a repeated one.
    known: BTreeSet<(NodeId, Timestamp)>,
}

impl Accounts {
    /// Counts the part of an entry after `since`, and its emissions and cost at the rates. A repeated entry does
    /// not count.
    pub fn count_at(&mut self, entry: &LedgerEntry, since: Timestamp, rates: &Rates) {
        if self.count(entry, since) {
            self.emissions.add(entry, since, rates);
        }
    }

    /// Counts the part of an entry after `since`. A repeated entry does not count: the result is whether this
    /// one does.
    pub fn count(&mut self, entry: &LedgerEntry, since: Timestamp) -> bool {
        let from = entry.from_us.max(since);
        if entry.until_us <= from || !self.known.insert((entry.node.clone(), entry.from_us)) {
            return false;
        }
        let stated = |gpu: usize| entry.unknown.iter().any(|unknown| unknown.gpu as usize == gpu);
        let missing = |(gpu, energy): (usize, &Option<Energy>)| energy.is_none() && !stated(gpu);
        self.incomplete += usize::from(entry.energy_mj_gpus.iter().enumerate().any(missing));
        self.excessive += usize::from(entry.attributed() + entry.unknown() > entry.gpus());
        self.from = Some(self.from.map_or(from, |first| first.min(from)));
        self.until = Some(self.until.map_or(entry.until_us, |last| last.max(entry.until_us)));
        for job in &entry.jobs {
            let submission = (job.job.clone(), job.admission.clone());
            let sum = self.jobs.entry(submission.clone()).or_default();
            *sum += part(entry, job.energy_mj, from, entry.until_us);
            if let Some(compared) = &job.compared {
                self.compared.add(compared_part(entry, compared, from, entry.until_us));
            }
            if let Some(user) = &job.user {
                self.users.entry(submission.clone()).or_insert_with(|| user.clone());
            }
            if let Some(project) = &job.project {
                self.projects.entry(submission).or_insert_with(|| project.to_string());
            }
        }
        for gpu in (0..).take(entry.energy_mj_gpus.len()) {
            let has_no_meter = |unknown: &UnknownEnergy| {
                unknown.gpu == gpu && unknown.cause == UnknownCause::NoMeter
            };
            *self.gpus.entry((entry.node.clone(), gpu)).or_default() |=
                entry.unknown.iter().any(has_no_meter);
        }
        for ((job, admission), ms) in entry.unmetered_ms() {
            *self.unmetered_ms.entry((job.clone(), admission.cloned())).or_default() += ms;
        }
        for unknown in &entry.unknown {
            *self.causes.entry(unknown.cause).or_default() +=
                part(entry, unknown.energy_mj, from, entry.until_us);
        }
        self.intervals.add(entry);
        let idle = entry.idle();
        let mut begin = from;
        while begin < entry.until_us {
            let day = begin.as_us() / DAY_US;
            let end = entry.until_us.min(Timestamp::from_us((day + 1) * DAY_US));
            let jobs = entry.jobs.iter().map(|job| part(entry, job.energy_mj, begin, end)).sum();
            let unknown =
                entry.unknown.iter().map(|one| part(entry, one.energy_mj, begin, end)).sum();
            let uses = Uses {
                jobs,
                unknown,
                idle: part(entry, idle, begin, end),
                hosts: part(entry, entry.energy_mj_host, begin, end),
            };
            self.days.entry(day).or_default().add(uses);
            self.nodes.entry(entry.node.clone()).or_default().add(uses);
            self.all.add(uses);
            begin = end;
        }
        true
    }

    /// The GPUs without a meter in words, such as `1 of 8 GPUs has no reading`; `None`: each has one.
    #[must_use]
    pub fn missing_gpus(&self) -> Option<String> {
        let parts = self.gpus.values().map(|has_no_meter| (!has_no_meter).then_some(Energy::ZERO));
        parts.collect::<Total<Energy>>().missing("GPU")
    }

    /// The submissions with energy, or with GPUs without a meter.
    #[must_use]
    pub fn submissions(&self) -> BTreeSet<&Submission> {
        self.jobs.keys().chain(self.unmetered_ms.keys()).collect()
    }

    /// Energy and number of jobs of each owner; `owner_of` names the owner of a submission.
    pub fn by_owner(
        &self,
        owner_of: impl Fn(&Submission) -> Option<String>,
    ) -> BTreeMap<Option<String>, OwnerEnergy> {
        let mut owners: BTreeMap<Option<String>, OwnerEnergy> = BTreeMap::new();
        for job in self.submissions() {
            let sum = owners.entry(owner_of(job)).or_default();
            sum.jobs += 1;
            if let Some(energy) = self.jobs.get(job) {
                *sum.energy.get_or_insert_default() += *energy;
            }
            sum.unmetered_ms += self.unmetered_ms.get(job).copied().unwrap_or(0);
        }
        owners
    }

    /// The GPU time in which energy may be missing, and its estimate as far as there is one, by cause.
    pub fn unmeasured(&self) -> BTreeMap<UnknownCause, (Duration, Energy)> {
        self.intervals.unmeasured(Timestamp::EPOCH)
    }
}

/// The energy of an entry between two instants of its interval, over which it is spread evenly. The
/// parts of adjacent intervals sum to the energy.
#[must_use]
pub fn part(entry: &LedgerEntry, energy: Energy, from: Timestamp, until: Timestamp) -> Energy {
    Energy::from_mj(share(entry, energy.as_mj(), from, until))
}

/// The part of a job's compared energy between two instants of the entry's interval, as [`part`].
#[must_use]
pub fn compared_part(
    entry: &LedgerEntry,
    whole: &ComparedEnergy,
    from: Timestamp,
    until: Timestamp,
) -> ComparedEnergy {
    ComparedEnergy {
        energy_mj: part(entry, whole.energy_mj, from, until),
        energy_mj_default: part(entry, whole.energy_mj_default, from, until),
        gpu_time_us: share(entry, whole.gpu_time_us, from, until),
        gpu_time_us_default: share(entry, whole.gpu_time_us_default, from, until),
    }
}

fn share(entry: &LedgerEntry, whole: u64, from: Timestamp, until: Timestamp) -> u64 {
    let span = u128::from(entry.until_us.as_us() - entry.from_us.as_us());
    let before = |at: Timestamp| {
        let passed = u128::from(at.as_us() - entry.from_us.as_us());
        // At most the whole, so it fits.
        (u128::from(whole) * passed / span) as u64
    };
    before(until).saturating_sub(before(from))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wattle_common::messages::{JobEnergy, UnknownEnergy};
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
            admission: None,
            energy_mj: Energy::from_mj(job.1),
            user: None,
            project: None,
            compared: None,
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
        assert_eq!(
            accounts.all,
            Uses { jobs: mj(135), idle: mj(55), unknown: mj(0), hosts: mj(140) }
        );
        assert_eq!(accounts.nodes[&testkit::node("n0")].total(), mj(210), "counted once");
        assert_eq!(accounts.jobs[&(testkit::job("a"), None)], mj(130));
        assert_eq!((accounts.incomplete, accounts.excessive), (1, 0));
    }

    #[test]
    fn users_come_from_the_ledger_or_the_record() {
        let mut accounts = Accounts::default();
        let mut named = entry("n0", 0, 60, &[Some(100)], &[("a", 60), ("b", 30), ("c", 10)]);
        named.jobs[0].user = Some("ada".to_owned());
        accounts.count(&named, Timestamp::EPOCH);
        let recorded = |job: &Submission| (job.0.as_str() == "b").then(|| "ada".to_owned());
        let owner = |job: &Submission| accounts.users.get(job).cloned().or_else(|| recorded(job));
        let users = accounts.by_owner(owner);
        let of = |user: Option<&str>| {
            let of = users[&user.map(str::to_owned)];
            (of.energy.unwrap(), of.jobs)
        };
        assert_eq!(of(Some("ada")), (Energy::from_mj(90), 2));
        assert_eq!(of(None), (Energy::from_mj(10), 1));
    }

    #[test]
    fn submissions_of_one_name_are_separate() {
        let [first, second] = [1, 2].map(|s| Some(AdmissionId::accepted(Timestamp::from_s(s), 1)));
        let mut accounts = Accounts::default();
        let users = [(&first, "ada"), (&second, "eve")];
        for (from, (admission, user)) in [0, 60].into_iter().zip(users) {
            let mut of = entry("n0", from, from + 60, &[Some(100)], &[("a", 60 + from)]);
            of.jobs[0].admission.clone_from(admission);
            of.jobs[0].user = Some(user.to_owned());
            accounts.count(&of, Timestamp::EPOCH);
        }
        let energy = |admission: &Option<AdmissionId>| {
            accounts.jobs[&(testkit::job("a"), admission.clone())].as_mj()
        };
        assert_eq!((energy(&first), energy(&second)), (60, 120));
        let owners = accounts.by_owner(|job| accounts.users.get(job).cloned());
        let of = |user: &str| owners[&Some(user.to_owned())];
        assert_eq!((of("ada").energy, of("ada").jobs), (Some(Energy::from_mj(60)), 1));
        assert_eq!((of("eve").energy, of("eve").jobs), (Some(Energy::from_mj(120)), 1));
    }

    #[test]
    fn unknown_energy_has_a_cause_and_is_no_idle_energy() {
        let unknown = |cause, from, until, mj, unmeasured| UnknownEnergy {
            gpu: 0,
            cause,
            from_us: Timestamp::from_us(from),
            until_us: Timestamp::from_us(until),
            energy_mj: Energy::from_mj(mj),
            unmeasured,
            estimate_mj: unmeasured.then_some(Energy::from_mj(9)),
            jobs: Vec::new(),
            admissions: [].into(),
        };
        let mut accounts = Accounts::default();
        let mut lost = entry("n0", 0, 60, &[None], &[]);
        lost.unknown = vec![unknown(UnknownCause::GpuLost, 20, 60, 0, true)];
        accounts.count(&lost, Timestamp::EPOCH);
        let lost_us = |accounts: &Accounts| accounts.unmeasured()[&UnknownCause::GpuLost].0;
        assert_eq!((lost_us(&accounts).as_micros(), accounts.incomplete), (40, 0));
        // The GPU returns with its counter; then the counter is reset.
        let mut found = entry("n0", 60, 120, &[Some(100)], &[("a", 40)]);
        found.unknown = vec![
            unknown(UnknownCause::GpuLost, 20, 70, 50, false),
            unknown(UnknownCause::CounterReset, 100, 110, 3, true),
        ];
        accounts.count(&found, Timestamp::EPOCH);
        let mj = Energy::from_mj;
        assert_eq!(
            (accounts.all.jobs, accounts.all.idle, accounts.all.unknown),
            (mj(40), mj(7), mj(53))
        );
        assert_eq!(accounts.causes[&UnknownCause::GpuLost], mj(50));
        let unmeasured = accounts.unmeasured();
        let reset = (Duration::from_micros(10), mj(9));
        assert_eq!(
            unmeasured.into_iter().collect::<Vec<_>>(),
            [(UnknownCause::CounterReset, reset)]
        );
    }

    #[test]
    fn interval_over_midnight_is_divided() {
        let mut accounts = Accounts::default();
        let over = entry("n0", DAY_US - 100, DAY_US + 300, &[Some(101)], &[("a", 41)]);
        accounts.count(&over, Timestamp::EPOCH);
        let mj = Energy::from_mj;
        assert_eq!(
            accounts.days[&0],
            Uses { jobs: mj(10), idle: mj(15), unknown: mj(0), hosts: mj(17) }
        );
        assert_eq!(
            accounts.days[&1],
            Uses { jobs: mj(31), idle: mj(45), unknown: mj(0), hosts: mj(53) }
        );
        assert_eq!(accounts.all.total(), mj(171), "rounding loses nothing");
        // Only the part after an instant.
        let mut late = Accounts::default();
        late.count(&over, Timestamp::from_us(DAY_US));
        assert_eq!((late.all, late.jobs[&(testkit::job("a"), None)]), (accounts.days[&1], mj(31)));
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
            let users: Energy = accounts.by_owner(|_| None).values().filter_map(|owner| owner.energy).sum();
            prop_assert_eq!(jobs, accounts.all.jobs);
            prop_assert_eq!(users, jobs);
            prop_assert_eq!(jobs + accounts.all.idle + accounts.all.unknown + accounts.all.hosts, nodes);
            prop_assert_eq!(days, nodes);
        }
    }
}
