//! Decides which conditions a GPU has, from one reading per heartbeat.
//!
//! A condition begins with the first reading that shows it, a slowdown with the second. It ends after
//! several readings in succession that do not show it, so it does not change with every reading. A quantity
//! that cannot be read neither begins nor ends a condition.

use std::collections::BTreeMap;

use wattle_common::Timestamp;
use wattle_common::messages::{self, GpuCondition, GpuConditionKind, MemoryRepair};
use wattle_gpu::GpuHealth;

/// Readings that show a slowdown before it begins: one may be a peak of less than a second.
const SLOWDOWN_READINGS: u32 = 2;
/// Readings without a condition before it ends: half a minute at the default heartbeat.
pub(crate) const HOLD: u32 = 3;
/// Readings without a new memory error before the condition ends: ten minutes at the default heartbeat.
/// A reset of the GPU ends it at once.
pub(crate) const ECC_HOLD: u32 = 60;

/// What one reading states about one condition.
enum Seen {
    Yes(Option<String>),
    No,
    /// The cause was removed: no hold time.
    Removed,
    Unknown,
}

impl Seen {
    fn of(seen: Option<bool>) -> Self {
        match seen {
            Some(true) => Self::Yes(None),
            Some(false) => Self::No,
            None => Self::Unknown,
        }
    }
}

/// A condition that was seen and has not ended.
#[derive(Clone, Debug)]
struct Entry {
    since: Timestamp,
    /// Readings that showed it.
    seen: u32,
    /// Readings in succession that did not.
    unseen: u32,
    active: bool,
    detail: Option<String>,
}

/// A condition that began or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) condition: GpuConditionKind,
    pub(crate) began: bool,
    pub(crate) detail: Option<String>,
}

/// The conditions of one GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    entries: BTreeMap<GpuConditionKind, Entry>,
    /// The last reading; unknown while the GPU cannot be read.
    health: GpuHealth,
    /// The last known number of uncorrected memory errors.
    ecc_errors: Option<u64>,
}

impl Conditions {
    /// The GPU was read.
    pub(crate) fn read(&mut self, now: Timestamp, health: GpuHealth) -> Vec<Change> {
        use GpuConditionKind as Kind;
        self.health = health;
        let repair = |state| health.memory_repair.map(|repair| repair == state);
        let slowdown = health.slowdown;
        let seen = [
            (Kind::DriverFailed, Seen::No),
            (Kind::Lost, Seen::No),
            (Kind::MemoryRepairFailed, Seen::of(repair(MemoryRepair::Failed))),
            (Kind::EccErrors, self.ecc(health.ecc_errors_uncorrected)),
            (Kind::MemoryRepairPending, Seen::of(repair(MemoryRepair::Pending))),
            (Kind::MigEnabled, Seen::of(health.mig_enabled)),
            (Kind::ThermalSlowdown, Seen::of(slowdown.map(|cause| cause.thermal))),
            (Kind::PowerBrake, Seen::of(slowdown.map(|cause| cause.power_brake))),
            (Kind::HardwareSlowdown, Seen::of(slowdown.map(|cause| cause.hardware))),
            (Kind::PersistenceOff, Seen::of(health.persistence_enabled.map(|enabled| !enabled))),
        ];
        seen.into_iter().filter_map(|(kind, seen)| self.saw(now, kind, seen)).collect()
    }

    /// The GPU did not answer.
    pub(crate) fn lost(&mut self, now: Timestamp, error: String) {
        self.health = GpuHealth::default();
        self.saw(now, GpuConditionKind::DriverFailed, Seen::No);
        self.saw(now, GpuConditionKind::Lost, Seen::Yes(Some(error)));
    }

    /// No GPU could be read.
    pub(crate) fn driver_failed(&mut self, now: Timestamp, error: String) {
        self.health = GpuHealth::default();
        self.saw(now, GpuConditionKind::DriverFailed, Seen::Yes(Some(error)));
    }

    /// An increase counts, because the errors before the first reading may be old.
    fn ecc(&mut self, errors: Option<u64>) -> Seen {
        let Some(errors) = errors else { return Seen::Unknown };
        let detail = || Some(format!("{errors} since the driver was loaded"));
        match self.ecc_errors.replace(errors) {
            None => Seen::Unknown,
            Some(last) if errors == last => Seen::No,
            // The driver was loaded again, or the GPU was reset.
            Some(last) if errors < last && errors == 0 => Seen::Removed,
            Some(_) => Seen::Yes(detail()),
        }
    }

    fn saw(&mut self, now: Timestamp, condition: GpuConditionKind, seen: Seen) -> Option<Change> {
        match seen {
            Seen::Unknown => None,
            Seen::Yes(detail) => {
                let new = Entry { since: now, seen: 0, unseen: 0, active: false, detail: None };
                let entry = self.entries.entry(condition).or_insert(new);
                entry.seen = entry.seen.saturating_add(1);
                entry.unseen = 0;
                entry.detail = detail;
                if entry.active || entry.seen < readings_to_begin(condition) {
                    return None;
                }
                entry.active = true;
                Some(Change { condition, began: true, detail: entry.detail.clone() })
            }
            Seen::No | Seen::Removed => {
                let entry = self.entries.get_mut(&condition)?;
                entry.unseen = entry.unseen.saturating_add(1);
                let held = matches!(seen, Seen::No) && entry.unseen < readings_to_end(condition);
                if entry.active && held {
                    return None;
                }
                let ended = self.entries.remove(&condition).filter(|entry| entry.active)?;
                Some(Change { condition, began: false, detail: ended.detail })
            }
        }
    }

    /// Whether the GPU has this condition.
    pub(crate) fn has(&self, condition: GpuConditionKind) -> bool {
        self.entries.get(&condition).is_some_and(|entry| entry.active)
    }

    /// For the report.
    pub(crate) fn report(&self) -> messages::GpuHealth {
        let active = || self.entries.iter().filter(|(_, entry)| entry.active);
        let condition = |(kind, entry): (&GpuConditionKind, &Entry)| GpuCondition {
            condition: *kind,
            since_us: entry.since,
            detail: entry.detail.clone(),
        };
        messages::GpuHealth {
            mig_enabled: self.health.mig_enabled,
            persistence_enabled: self.health.persistence_enabled,
            ecc_errors_uncorrected: self.health.ecc_errors_uncorrected,
            memory_repair: self.health.memory_repair,
            no_new_jobs: active().any(|(kind, _)| kind.keeps_jobs_away()),
            conditions: active().map(condition).collect(),
        }
    }
}

const fn readings_to_begin(condition: GpuConditionKind) -> u32 {
    match condition {
        GpuConditionKind::ThermalSlowdown
        | GpuConditionKind::PowerBrake
        | GpuConditionKind::HardwareSlowdown => SLOWDOWN_READINGS,
        _ => 1,
    }
}

const fn readings_to_end(condition: GpuConditionKind) -> u32 {
    if matches!(condition, GpuConditionKind::EccErrors) { ECC_HOLD } else { HOLD }
}

#[cfg(test)]
mod tests {
    use super::*;
    use GpuConditionKind as Kind;
    use proptest::prelude::*;
    use wattle_gpu::Slowdown;

    fn healthy() -> GpuHealth {
        GpuHealth {
            mig_enabled: Some(false),
            persistence_enabled: Some(true),
            ecc_errors_uncorrected: Some(7),
            memory_repair: Some(MemoryRepair::None),
            slowdown: Some(Slowdown::default()),
        }
    }

    /// A GPU that is read once in ten seconds.
    #[derive(Default)]
    struct Gpu {
        conditions: Conditions,
        readings: u64,
    }

    impl Gpu {
        fn now(&mut self) -> Timestamp {
            self.readings += 1;
            Timestamp::from_s(10 * self.readings)
        }

        /// The changes of one reading: `+` begins, `-` ends.
        fn read(&mut self, health: GpuHealth) -> Vec<(char, Kind)> {
            let now = self.now();
            let sign = |change: Change| (if change.began { '+' } else { '-' }, change.condition);
            self.conditions.read(now, health).into_iter().map(sign).collect()
        }

        fn active(&self) -> Vec<Kind> {
            let report = self.conditions.report();
            report.conditions.into_iter().map(|condition| condition.condition).collect()
        }
    }

    #[test]
    fn a_condition_begins_once_and_ends_after_the_hold_time() {
        let off = GpuHealth { persistence_enabled: Some(false), ..healthy() };
        let mut gpu = Gpu::default();
        assert_eq!(gpu.read(healthy()), []);
        assert_eq!(gpu.read(off), [('+', Kind::PersistenceOff)]);
        assert_eq!(gpu.read(off), []);
        // It does not change with every reading.
        for _ in 0..5 {
            assert_eq!(gpu.read(healthy()), []);
            assert_eq!(gpu.read(off), []);
        }
        let report = gpu.conditions.report();
        assert_eq!(report.conditions[0].since_us, Timestamp::from_s(20));
        assert!(!report.no_new_jobs, "a warning");
        for _ in 1..HOLD {
            assert_eq!(gpu.read(healthy()), []);
            // What cannot be read ends nothing and extends the hold time.
            assert_eq!(gpu.read(GpuHealth::default()), []);
        }
        assert_eq!(gpu.read(healthy()), [('-', Kind::PersistenceOff)]);
        assert_eq!(gpu.active(), []);
    }

    #[test]
    fn a_slowdown_begins_with_the_second_reading_in_succession() {
        let slow = |thermal, power_brake, hardware| GpuHealth {
            slowdown: Some(Slowdown { thermal, power_brake, hardware }),
            ..healthy()
        };
        let hot = slow(true, false, false);
        let mut gpu = Gpu::default();
        for _ in 0..3 {
            assert_eq!(gpu.read(hot), []);
            assert_eq!(gpu.read(healthy()), []);
        }
        assert_eq!(gpu.read(hot), []);
        assert_eq!(gpu.read(hot), [('+', Kind::ThermalSlowdown)]);
        assert_eq!(gpu.conditions.report().conditions[0].since_us, Timestamp::from_s(70));
        assert_eq!(gpu.read(slow(true, true, false)), []);
        assert_eq!(gpu.read(slow(true, true, true)), [('+', Kind::PowerBrake)]);
        assert_eq!(gpu.read(slow(true, true, true)), [('+', Kind::HardwareSlowdown)]);
        assert!(!gpu.conditions.report().no_new_jobs, "a slow GPU still gets jobs");
    }

    #[test]
    fn memory_errors_count_from_the_first_reading_on() {
        let with = |errors| GpuHealth { ecc_errors_uncorrected: Some(errors), ..healthy() };
        let mut gpu = Gpu::default();
        assert_eq!(gpu.read(with(7)), [], "errors of an earlier time");
        assert_eq!(gpu.read(with(7)), []);
        assert_eq!(gpu.read(with(9)), [('+', Kind::EccErrors)]);
        let report = gpu.conditions.report();
        assert!(report.no_new_jobs);
        assert_eq!(report.conditions[0].detail.as_deref(), Some("9 since the driver was loaded"));
        for _ in 1..ECC_HOLD {
            assert_eq!(gpu.read(with(9)), []);
        }
        // A new error restarts the hold time.
        assert_eq!(gpu.read(with(10)), []);
        for _ in 1..ECC_HOLD {
            assert_eq!(gpu.read(with(10)), []);
        }
        assert_eq!(gpu.read(with(10)), [('-', Kind::EccErrors)]);
        // A reset of the GPU ends it at once.
        assert_eq!(gpu.read(with(11)), [('+', Kind::EccErrors)]);
        assert_eq!(gpu.read(with(0)), [('-', Kind::EccErrors)]);
        // Errors after a reset are new.
        gpu.read(with(5));
        assert_eq!(gpu.active(), [Kind::EccErrors]);
        gpu.read(with(2));
        assert_eq!(gpu.active(), [Kind::EccErrors]);
    }

    #[test]
    fn memory_repair_and_mig_keep_jobs_away() {
        for (health, kind) in [
            (GpuHealth { mig_enabled: Some(true), ..healthy() }, Kind::MigEnabled),
            (
                GpuHealth { memory_repair: Some(MemoryRepair::Pending), ..healthy() },
                Kind::MemoryRepairPending,
            ),
            (
                GpuHealth { memory_repair: Some(MemoryRepair::Failed), ..healthy() },
                Kind::MemoryRepairFailed,
            ),
        ] {
            let mut gpu = Gpu::default();
            assert_eq!(gpu.read(health), [('+', kind)]);
            assert!(gpu.conditions.report().no_new_jobs, "{kind:?}");
        }
    }

    #[test]
    fn a_returned_gpu_gets_jobs_after_the_hold_time() {
        let mut gpu = Gpu::default();
        gpu.read(GpuHealth { mig_enabled: Some(true), ..healthy() });
        let now = gpu.now();
        gpu.conditions.lost(now, "GPU 0 is lost".to_owned());
        assert_eq!(gpu.active(), [Kind::Lost, Kind::MigEnabled], "MIG mode is not known to be off");
        let report = gpu.conditions.report();
        assert_eq!((report.mig_enabled, report.ecc_errors_uncorrected), (None, None));
        assert_eq!(report.conditions[0].detail.as_deref(), Some("GPU 0 is lost"));
        let now = gpu.now();
        gpu.conditions.driver_failed(now, "no driver".to_owned());
        assert_eq!(gpu.active(), [Kind::DriverFailed, Kind::Lost, Kind::MigEnabled]);
        for _ in 1..HOLD {
            assert_eq!(gpu.read(healthy()), []);
            assert!(gpu.conditions.report().no_new_jobs);
        }
        let ended = [Kind::DriverFailed, Kind::Lost, Kind::MigEnabled].map(|kind| ('-', kind));
        assert_eq!(gpu.read(healthy()), ended);
        assert!(!gpu.conditions.report().no_new_jobs);
    }

    fn any_health() -> impl Strategy<Value = GpuHealth> {
        let flag = || prop::option::of(any::<bool>());
        let repair = prop::sample::select(vec![
            None,
            Some(MemoryRepair::None),
            Some(MemoryRepair::Pending),
            Some(MemoryRepair::Failed),
        ]);
        let slowdown = prop::option::of(any::<[bool; 3]>());
        (flag(), flag(), prop::option::of(0u64..4), repair, slowdown).prop_map(
            |(
                mig_enabled,
                persistence_enabled,
                ecc_errors_uncorrected,
                memory_repair,
                slowdown,
            )| {
                GpuHealth {
                    mig_enabled,
                    persistence_enabled,
                    ecc_errors_uncorrected,
                    memory_repair,
                    slowdown: slowdown.map(|[thermal, power_brake, hardware]| Slowdown {
                        thermal,
                        power_brake,
                        hardware,
                    }),
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        /// Beginnings and ends alternate, agree with the report, and every condition ends.
        #[test]
        fn changes_alternate_and_every_condition_ends(readings in prop::collection::vec(any_health(), 0..60)) {
            let mut gpu = Gpu::default();
            let mut active = std::collections::BTreeSet::new();
            let settled = std::iter::repeat_n(healthy(), ECC_HOLD as usize + 1);
            for health in readings.into_iter().chain(settled) {
                for (sign, kind) in gpu.read(health) {
                    let changed =
                        if sign == '+' { active.insert(kind) } else { active.remove(&kind) };
                    prop_assert!(changed);
                }
                let expected: Vec<Kind> = active.iter().copied().collect();
                prop_assert_eq!(gpu.active(), expected);
            }
            prop_assert_eq!(gpu.active(), []);
        }
    }
}
