//! Energy of the last days by hour, user and project, from the ledger.
//!
//! Carbon and cost are computed when they are read, from the mean intensity and price of each hour, so that a
//! series that is set later counts for the hours since its start.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use wattle_common::messages::{
    IntensitySeries, JobEnergy, LedgerEntry, PriceSeries, UnknownCause, UnknownEnergy,
};
use wattle_common::total::Total;
use wattle_common::{
    AdmissionId, Carbon, CarbonIntensity, Energy, GpuIndex, JobId, NodeId, Timestamp,
};
use wattle_view::energy::{Uses, part};
use wattle_view::intensity::mean_intensity;
use wattle_view::unmeasured::Intervals;

/// Microseconds of an hour.
pub const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;
/// Length of an interval of the burn-down.
const FINE_US: u64 = 300_000_000;
/// Days that are kept, the current one included.
const DAYS: u64 = 31;
/// Most users and projects of one hour; the energy of further ones counts as that of an unknown user.
const OWNERS_MAX: usize = 512;
/// Entries of each node that are remembered to detect repeated ones: those of two hours.
const KNOWN_MAX: usize = 128;
/// Most intervals of the burn-down: those of eight days.
const FINE_MAX: usize = 2_304;

/// User and project of a job.
pub type Owner = (Option<String>, Option<String>);

/// Whose energy is a lower bound, because GPUs have no meter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmetered {
    /// GPUs with jobs.
    pub jobs: bool,
    /// GPUs without jobs.
    pub idle: bool,
}

impl Unmetered {
    /// Adds other GPUs.
    pub const fn add(&mut self, other: Self) {
        self.jobs |= other.jobs;
        self.idle |= other.idle;
    }
}

/// When a GPU was last in an entry.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    last: Timestamp,
    /// When it last lacked a reading; absent: never.
    unread: Option<Timestamp>,
}

/// One hour.
#[derive(Clone, Debug, Default)]
struct Hour {
    uses: Uses,
    /// The energy of the GPUs and hosts; a GPU without a meter is missing.
    total: Total<Energy>,
    unmetered: Unmetered,
    owners: BTreeMap<Owner, Total<Energy>>,
    causes: BTreeMap<UnknownCause, Energy>,
}

/// The sums of the ledger.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By hours since the Unix epoch.
    hours: BTreeMap<u64, Hour>,
    /// Energy of complete nodes, by intervals of [`FINE_US`] since the epoch.
    fine: BTreeMap<u64, Energy>,
    /// Starts of the last entries of each node.
    known: BTreeMap<NodeId, BTreeSet<Timestamp>>,
    /// The GPUs of the entries.
    gpus: BTreeMap<(NodeId, GpuIndex), Seen>,
    /// The intervals in which energy may be missing.
    intervals: Intervals,
    /// End of the last counted entry.
    until: Option<Timestamp>,
}

/// The series by which energy becomes emissions and cost, borrowed from the model; absent: not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct RatesRef<'a> {
    /// Carbon intensity.
    pub intensity: Option<&'a IntensitySeries>,
    /// Electricity price.
    pub prices: Option<&'a PriceSeries>,
}

/// Energy with its emissions and cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    /// The energy; that of GPUs without a meter is missing.
    pub energy: Total<Energy>,
    /// Emissions of the part whose intensity is known; `None`: of no part.
    pub carbon: Option<Carbon>,
    /// Cost in the currency of the part whose price is known; `None`: of no part.
    pub cost: Option<f64>,
}

impl Amount {
    /// Adds energy of one hour with its mean rates.
    pub fn add(
        &mut self,
        energy: Total<Energy>,
        intensity: Option<CarbonIntensity>,
        price: Option<f64>,
    ) {
        let known = energy.known();
        let carbon = known.zip(intensity).map(|(energy, mean)| energy.carbon(mean));
        let cost = known.zip(price).map(|(energy, mean)| energy.as_kwh() * mean);
        self.merge(Self { energy, carbon, cost });
    }

    /// Adds another amount.
    pub fn merge(&mut self, other: Self) {
        self.energy.merge(other.energy);
        if let Some(carbon) = other.carbon {
            self.carbon = Some(self.carbon.unwrap_or_default() + carbon);
        }
        if let Some(cost) = other.cost {
            self.cost = Some(self.cost.unwrap_or_default() + cost);
        }
    }
}

/// The sums of a period.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// Energy by use.
    pub uses: Uses,
    /// All energy.
    pub all: Amount,
    /// Which uses are lower bounds.
    pub unmetered: Unmetered,
    /// Whether the intensity of a part of the time is not known.
    pub carbon_is_partial: bool,
    /// Whether the price of a part of the time is not known.
    pub cost_is_partial: bool,
    /// Each owner's jobs.
    pub owners: BTreeMap<Owner, Amount>,
    /// Energy without a known owner by cause.
    pub causes: BTreeMap<UnknownCause, Energy>,
}

fn owner_of(one: &JobEnergy, recorded: &impl Fn(&JobId, Option<&AdmissionId>) -> Owner) -> Owner {
    let named = (one.user.clone(), one.project.as_ref().map(ToString::to_string));
    if named.0.is_some() && named.1.is_some() {
        return named;
    }
    let record = recorded(&one.job, one.admission.as_ref());
    (named.0.or(record.0), named.1.or(record.1))
}

impl Tally {
    /// Counts an entry once. `recorded` is the owner in the record of a job's submission.
    pub fn count(
        &mut self,
        entry: &LedgerEntry,
        recorded: impl Fn(&JobId, Option<&AdmissionId>) -> Owner,
    ) {
        if entry.until_us <= entry.from_us || !self.is_new(&entry.node, entry.from_us) {
            return;
        }
        self.until = self.until.max(Some(entry.until_us));
        let idle = entry.idle();
        let no_meter = || entry.unknown.iter().filter(|one| one.cause == UnknownCause::NoMeter);
        let unmetered = Unmetered {
            jobs: no_meter().any(|one| !one.jobs.is_empty()),
            idle: no_meter().any(|one| one.jobs.is_empty()),
        };
        let unmetered_owners: BTreeSet<Owner> = no_meter()
            .flat_map(UnknownEnergy::submissions)
            .map(|(job, admission)| recorded(job, admission))
            .collect();
        let gpus: Vec<(Option<Energy>, bool)> = (0..)
            .zip(&entry.energy_mj_gpus)
            .map(|(gpu, energy)| (*energy, is_unread(entry, gpu)))
            .collect();
        for (gpu, (_, is_unread)) in (0..).zip(&gpus) {
            let seen = self.gpus.entry((entry.node.clone(), gpu)).or_default();
            seen.last = seen.last.max(entry.until_us);
            seen.unread = seen.unread.max(is_unread.then_some(entry.until_us));
        }
        for (hour, from, until) in parts(entry, HOUR_US) {
            let slot = self.hours.entry(hour).or_default();
            slot.unmetered.add(unmetered);
            for (energy, is_unread) in &gpus {
                let energy = energy.map(|energy| part(entry, energy, from, until));
                match energy {
                    Some(energy) if *is_unread => slot.total.add_at_least(Some(energy)),
                    Some(energy) => slot.total.add(Some(energy)),
                    None if *is_unread => slot.total.add(None),
                    // An interval of its own states it, and whether it became known later.
                    None => {}
                }
            }
            if entry.energy_mj_host > Energy::ZERO {
                slot.total.add(Some(part(entry, entry.energy_mj_host, from, until)));
            }
            slot.uses.add(Uses {
                jobs: entry.jobs.iter().map(|job| part(entry, job.energy_mj, from, until)).sum(),
                idle: part(entry, idle, from, until),
                unknown: entry.unknown.iter().map(|u| part(entry, u.energy_mj, from, until)).sum(),
                hosts: part(entry, entry.energy_mj_host, from, until),
            });
            let add = |owners: &mut BTreeMap<Owner, Total<Energy>>, owner: Owner, energy| {
                let known = owners.contains_key(&owner) || owners.len() < OWNERS_MAX;
                owners.entry(if known { owner } else { (None, None) }).or_default().add(energy);
            };
            for owner in &unmetered_owners {
                add(&mut slot.owners, owner.clone(), None);
            }
            for job in &entry.jobs {
                let energy = part(entry, job.energy_mj, from, until);
                add(&mut slot.owners, owner_of(job, &recorded), Some(energy));
            }
            for unknown in &entry.unknown {
                *slot.causes.entry(unknown.cause).or_default() +=
                    part(entry, unknown.energy_mj, from, until);
            }
        }
        self.intervals.add(entry);
        let all = entry.gpus() + entry.energy_mj_host;
        for (interval, from, until) in parts(entry, FINE_US) {
            *self.fine.entry(interval).or_default() += part(entry, all, from, until);
        }
        while self.fine.len() > FINE_MAX {
            self.fine.pop_first();
        }
        while self.hours.len() as u64 > DAYS * 24 {
            self.hours.pop_first();
        }
        if let Some((first, _)) = self.hours.first_key_value() {
            let first = Timestamp::from_us(first * HOUR_US);
            self.intervals.forget_before(first);
            self.gpus.retain(|_, seen| seen.last > first);
        }
    }

    /// Whether an entry has not been counted.
    fn is_new(&mut self, node: &NodeId, from: Timestamp) -> bool {
        let known = self.known.entry(node.clone()).or_default();
        let is_old = known.len() >= KNOWN_MAX && known.first().is_some_and(|first| from < *first);
        if is_old || !known.insert(from) {
            return false;
        }
        if known.len() > KNOWN_MAX {
            known.pop_first();
        }
        true
    }

    /// The GPU time since the start of a day in which energy may be missing, and its estimate, by cause.
    #[must_use]
    pub fn unmeasured(&self, first_day: u64) -> BTreeMap<UnknownCause, (Duration, Energy)> {
        self.intervals.unmeasured(Timestamp::from_us(first_day * DAY_US))
    }

    /// The GPUs that lacked a meter at some time since the start of a day, in words such as `1 of 8 GPUs has no
    /// reading`; `None`: each had one.
    #[must_use]
    pub fn missing_gpus(&self, first_day: u64) -> Option<String> {
        let first = Timestamp::from_us(first_day * DAY_US);
        let seen = self.gpus.values().filter(|seen| seen.last > first);
        let read = |seen: &Seen| seen.unread.is_none_or(|unread| unread <= first);
        seen.map(|seen| read(seen).then_some(Energy::ZERO))
            .collect::<Total<Energy>>()
            .missing("GPU")
    }

    /// End of the last counted entry.
    #[must_use]
    pub const fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// The sums of the days since `first_day` (days since the Unix epoch) until and including `last_day`.
    #[must_use]
    pub fn sums(&self, first_day: u64, last_day: u64, rates: RatesRef<'_>) -> Sums {
        self.between(first_day * 24..(last_day + 1) * 24, rates)
    }

    /// The sums of an hour (hours since the Unix epoch); `None`: no entry is of it.
    #[must_use]
    pub fn hour(&self, hour: u64, rates: RatesRef<'_>) -> Option<Sums> {
        self.hours.contains_key(&hour).then(|| self.between(hour..hour + 1, rates))
    }

    fn between(&self, hours: Range<u64>, rates: RatesRef<'_>) -> Sums {
        let mut sums = Sums::default();
        for (hour, slot) in self.hours.range(hours) {
            let from = Timestamp::from_us(hour * HOUR_US);
            let until = Timestamp::from_us((hour + 1) * HOUR_US);
            let mean = rates.intensity.and_then(|series| mean_intensity(series, from, until));
            let price = rates.prices.and_then(|prices| prices.mean(from, until));
            sums.uses.add(slot.uses);
            sums.unmetered.add(slot.unmetered);
            sums.all.add(slot.total, mean, price);
            sums.carbon_is_partial |= mean.is_none();
            sums.cost_is_partial |= price.is_none();
            for (owner, energy) in &slot.owners {
                sums.owners.entry(owner.clone()).or_default().add(*energy, mean, price);
            }
            for (cause, energy) in &slot.causes {
                *sums.causes.entry(*cause).or_default() += *energy;
            }
        }
        sums
    }

    /// Energy from `from` on, summed up, in intervals of five minutes: the end of each interval and the sum.
    #[must_use]
    pub fn burned(&self, from: Timestamp) -> Vec<(Timestamp, Energy)> {
        let mut sum = Energy::ZERO;
        let begin = from.as_us() / FINE_US;
        let each = self.fine.range(begin..).map(|(interval, energy)| {
            sum += *energy;
            let end = Timestamp::from_us((interval + 1) * FINE_US);
            (self.until.map_or(end, |until| end.min(until)), sum)
        });
        each.collect()
    }
}

/// The day of an instant, in days since the Unix epoch.
#[must_use]
pub const fn day_of(at: Timestamp) -> u64 {
    at.as_us() / DAY_US
}

/// Whether a GPU of an entry has no reading, and no interval states why: for lack of a meter, or of an entry of an
/// earlier version.
fn is_unread(entry: &LedgerEntry, gpu: GpuIndex) -> bool {
    let mut of_gpu = entry.unknown.iter().filter(|unknown| unknown.gpu == gpu).peekable();
    let is_stated = of_gpu.peek().is_some();
    let has_no_meter = of_gpu.any(|unknown| unknown.cause == UnknownCause::NoMeter);
    let energy = entry.energy_mj_gpus.get(gpu as usize).copied().flatten();
    has_no_meter || (energy.is_none() && !is_stated)
}

/// The parts of an entry's interval, each within one interval of this length: its number, start and end.
fn parts(entry: &LedgerEntry, length_us: u64) -> Vec<(u64, Timestamp, Timestamp)> {
    let mut parts = Vec::new();
    let mut begin = entry.from_us;
    // An entry of more than the kept time counts from its last days on.
    let most = Timestamp::from_us(entry.until_us.as_us().saturating_sub(DAYS * DAY_US));
    begin = begin.max(most);
    while begin < entry.until_us {
        let number = begin.as_us() / length_us;
        let end = entry.until_us.min(Timestamp::from_us((number + 1) * length_us));
        parts.push((number, begin, end));
        begin = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use wattle_testkit as testkit;

    use super::*;

    fn entry(node: &str, from_s: u64, until_s: u64, job: &str, joules: u64) -> LedgerEntry {
        LedgerEntry {
            energy_mj_gpus: vec![Some(Energy::from_j(joules * 2))],
            jobs: vec![JobEnergy {
                job: testkit::job(job),
                admission: None,
                energy_mj: Energy::from_j(joules),
                user: None,
                project: None,
                compared: None,
            }],
            ..testkit::ledger_entry(
                node,
                Timestamp::from_s(from_s),
                Timestamp::from_s(until_s),
                Energy::from_j(10),
            )
        }
    }

    fn count(tally: &mut Tally, entry: &LedgerEntry) {
        let owner = |job: &JobId, _: Option<&AdmissionId>| (Some(format!("user of {job}")), None);
        tally.count(entry, owner);
    }

    #[test]
    fn entries_count_once_and_over_hours_in_parts() {
        let mut tally = Tally::default();
        let over = entry("n0", 3_000, 4_200, "a", 100);
        count(&mut tally, &over);
        count(&mut tally, &over);
        count(&mut tally, &entry("n1", 3_000, 3_060, "b", 50));
        let sums = tally.sums(0, 0, RatesRef::default());
        assert_eq!(sums.uses.jobs, Energy::from_j(150));
        assert_eq!(sums.uses.total(), Energy::from_j(320));
        assert_eq!(
            sums.owners[&(Some("user of a".to_owned()), None)].energy.known(),
            Some(Energy::from_j(100))
        );
        assert_eq!(tally.hours[&0].uses.hosts, Energy::from_j(15));
        assert_eq!((sums.all.carbon, sums.carbon_is_partial), (None, true));
        let burned = tally.burned(Timestamp::EPOCH);
        assert_eq!(burned.last().map(|(_, sum)| *sum), Some(Energy::from_j(320)));
        assert_eq!(burned.last().map(|(at, _)| *at), Some(Timestamp::from_s(4_200)));
    }

    #[test]
    fn carbon_and_cost_follow_from_the_rates_of_each_hour() {
        let series = IntensitySeries {
            name: "grid".to_owned(),
            starts_at_us: Timestamp::from_s(3_600),
            steps: vec![(0, CarbonIntensity::from_g_per_kwh(500.0))],
            period_s: 3_600,
            origins: Vec::new(),
        };
        let mut tally = Tally::default();
        count(&mut tally, &entry("n0", 3_540, 3_600, "a", 1_800_000));
        count(&mut tally, &entry("n0", 3_600, 3_660, "a", 1_800_000));
        let hour = Timestamp::from_s(3_600);
        let prices = PriceSeries { currency: "EUR".to_owned(), steps: vec![(hour, 200_000)] };
        let sums = tally.sums(0, 0, RatesRef { intensity: Some(&series), prices: Some(&prices) });
        let grams = sums.all.carbon.unwrap().as_g();
        assert!((grams - 500.0).abs() < 0.1 && sums.carbon_is_partial, "{grams}");
        // 1 kWh of the second hour at 0.2 EUR/kWh, half of it of the job; the price of the first is not known.
        let cost = sums.all.cost.unwrap();
        assert!((cost - 0.2).abs() < 1e-3 && sums.cost_is_partial, "{cost}");
        let owned = sums.owners[&(Some("user of a".to_owned()), None)];
        assert!((owned.cost.unwrap() - 0.1).abs() < 1e-6, "{owned:?}");
    }

    /// An entry of two GPUs of which the second has no meter: `a` runs on both, `b` on the second.
    fn unmetered(from_s: u64) -> LedgerEntry {
        let (from_us, until_us) = (Timestamp::from_s(from_s), Timestamp::from_s(from_s + 60));
        LedgerEntry {
            energy_mj_gpus: vec![Some(Energy::from_j(200)), None],
            energy_mj_host: Energy::ZERO,
            unknown: vec![UnknownEnergy {
                gpu: 1,
                cause: UnknownCause::NoMeter,
                from_us,
                until_us,
                energy_mj: Energy::ZERO,
                unmeasured: true,
                estimate_mj: None,
                jobs: vec![testkit::job("a"), testkit::job("b")],
                admissions: [].into(),
            }],
            ..entry("n0", from_s, from_s + 60, "a", 100)
        }
    }

    #[test]
    fn the_energy_of_a_gpu_without_a_meter_is_missing_from_its_sums() {
        let mut tally = Tally::default();
        count(&mut tally, &unmetered(3_600));
        let stated = |total: &Total<Energy>| total.stated(|energy| format!("{} J", energy.as_j()));
        let of = |sums: &Sums, job: &str| {
            stated(&sums.owners[&(Some(format!("user of {job}")), None)].energy)
        };
        let text = |text: &str| Some(text.to_owned());
        let sums = tally.sums(0, 0, RatesRef::default());
        assert_eq!(stated(&sums.all.energy), text("at least 200 J"));
        assert_eq!((of(&sums, "a"), of(&sums, "b")), (text("at least 100 J"), None));
        assert_eq!(sums.unmetered, Unmetered { jobs: true, idle: false });
        assert_eq!(tally.missing_gpus(0), text("1 of 2 GPUs has no reading"));
        // It has a meter since; the next day is complete.
        let day = DAY_US / 1_000_000;
        let metered = LedgerEntry {
            energy_mj_gpus: vec![Some(Energy::from_j(200)); 2],
            unknown: Vec::new(),
            ..unmetered(day + 60)
        };
        count(&mut tally, &metered);
        assert_eq!((tally.missing_gpus(0).is_some(), tally.missing_gpus(1)), (true, None));
        assert_eq!(stated(&tally.sums(1, 1, RatesRef::default()).all.energy), text("400 J"));
    }

    #[test]
    fn what_nothing_measured_is_no_zero() {
        let mut tally = Tally::default();
        let none =
            LedgerEntry { energy_mj_gpus: vec![None, None], jobs: Vec::new(), ..unmetered(3_600) };
        count(&mut tally, &none);
        let sums = tally.sums(0, 0, RatesRef::default());
        assert_eq!((sums.all.energy.known(), sums.all.energy.is_complete()), (None, false));
        assert_eq!(tally.missing_gpus(0).as_deref(), Some("2 of 2 GPUs have no reading"));
    }

    #[test]
    fn an_hour_without_an_entry_has_no_sums() {
        let mut tally = Tally::default();
        count(&mut tally, &entry("n0", 7_200, 7_260, "a", 100));
        let hour = |hour| tally.hour(hour, RatesRef::default()).map(|sums| sums.uses.jobs);
        assert_eq!([hour(1), hour(2), hour(3)], [None, Some(Energy::from_j(100)), None]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut tally = Tally::default();
        for minute in 0..50_000 {
            count(&mut tally, &entry("n0", minute * 60, minute * 60 + 60, "a", 1));
        }
        assert_eq!(tally.hours.len() as u64, DAYS * 24);
        assert_eq!(
            (tally.fine.len(), tally.known[&testkit::node("n0")].len()),
            (FINE_MAX, KNOWN_MAX)
        );
        let before = tally.sums(0, 100, RatesRef::default()).uses;
        count(&mut tally, &entry("n0", 60, 120, "a", 1));
        assert_eq!(
            tally.sums(0, 100, RatesRef::default()).uses,
            before,
            "an old entry is a repeated one"
        );
    }
}
