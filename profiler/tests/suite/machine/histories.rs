//! Random histories of a node.

use proptest::prelude::*;
use wattle_common::bounds::check_ledger_entry;
use wattle_common::messages::{JobWindow, LedgerEntry};
use wattle_common::units::Energy;
use wattle_common::{GpuIndex, Power, Timestamp};
use wattle_gpu::fake::FaultMode;
use wattle_profiler::Event;

use super::node::{Node, id};

#[derive(Clone, Debug)]
enum Step {
    Run(u64),
    Draw(usize, u64),
    Cap(usize, u64),
    Place(usize, Vec<GpuIndex>),
    Remove(usize),
    Lose(usize, bool),
    Bus(bool),
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let gpus = prop::collection::btree_set(0u32..3, 1..3);
    prop_oneof![
        6 => (1u64..40).prop_map(Step::Run),
        2 => (0usize..3, 30u64..300).prop_map(|(g, w)| Step::Draw(g, w)),
        2 => (0usize..3, 100u64..300).prop_map(|(g, w)| Step::Cap(g, w)),
        3 => (0usize..4, gpus).prop_map(|(j, g)| Step::Place(j, g.into_iter().collect())),
        1 => (0usize..4).prop_map(Step::Remove),
        1 => (0usize..3, any::<bool>()).prop_map(|(g, on)| Step::Lose(g, on)),
        1 => any::<bool>().prop_map(Step::Bus),
        1 => Just(Step::Crash),
    ]
}

const JOBS: [&str; 4] = ["a", "b", "c", "d"];

impl Node {
    fn apply(&mut self, step: Step, changes: &mut Vec<(Timestamp, GpuIndex)>) {
        let now = self.now;
        match step {
            Step::Run(seconds) => self.run(seconds, &[("a", 20), ("b", 3)]),
            Step::Draw(gpu, w) => self.draws[gpu] = Power::from_w(w),
            Step::Cap(gpu, w) => {
                if self.driver.gpus[gpu].reading.cap != Some(Power::from_w(w)) {
                    self.driver.gpus[gpu].reading.cap = Some(Power::from_w(w));
                    changes.push((now, gpu as u32));
                }
            }
            Step::Place(job, gpus) => {
                self.apply(Step::Remove(job), changes);
                changes.extend(gpus.iter().map(|gpu| (self.now, *gpu)));
                self.place(JOBS[job], 100 + job as u32, &gpus);
                self.tick();
            }
            Step::Remove(job) => {
                if let Some((_, gpus)) = self.jobs.get(&id(JOBS[job])) {
                    changes.extend(gpus.iter().map(|gpu| (now, *gpu)));
                }
                self.remove(JOBS[job]);
                // No job leaves and returns between two samples.
                self.tick();
            }
            Step::Lose(gpu, lost) => {
                self.driver.gpus[gpu].fault = if lost { FaultMode::Lost } else { FaultMode::None };
            }
            Step::Bus(up) => self.bus = up,
            Step::Crash => self.crash(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// No window spans a change on its GPUs; windows of one job do not overlap; their figures are
    /// consistent.
    #[test]
    fn no_window_spans_a_change(steps in prop::collection::vec(step(), 1..25)) {
        let mut node = Node::new(3);
        let mut changes = Vec::new();
        for step in steps {
            node.apply(step, &mut changes);
        }
        for window in &node.windows {
            for (at, gpu) in &changes {
                let inside = *at > window.from_us && *at < window.until_us;
                prop_assert!(!(inside && window.gpus.contains(gpu)), "gpu {gpu} at {at}: {window:?}");
            }
            prop_assert!(window.samples >= 5);
            prop_assert!(window.power_mw_job <= window.power_mw_gpus);
        }
        for job in JOBS {
            let windows: Vec<&JobWindow> = node.of(job).collect();
            for pair in windows.windows(2) {
                prop_assert!(pair[0].until_us <= pair[1].from_us);
            }
        }
    }

    /// Through crashes, an absent bus and lost GPUs: the entries join without gap or overlap, and
    /// the energy of each GPU equals its counter, to the millijoule.
    #[test]
    fn the_ledger_equals_the_counters(steps in prop::collection::vec(step(), 1..25)) {
        let mut node = Node::new(3);
        let mut changes = Vec::new();
        node.tick();
        let before: Vec<Energy> =
            node.driver.gpus.iter().map(|c| c.reading.energy_total.unwrap()).collect();
        for step in steps {
            // Without a saved state yet, a crash leaves nothing to continue from.
            if matches!(step, Step::Crash) && node.file.is_none() {
                continue;
            }
            node.apply(step, &mut changes);
        }
        node.bus = true;
        for tracker in &mut node.driver.gpus {
            tracker.fault = FaultMode::None;
        }
        node.run(150, &[]);
        node.event(Event::StopRequested);
        let entries: Vec<&LedgerEntry> = node.ledger.values().collect();
        for pair in entries.windows(2) {
            prop_assert_eq!(pair[0].until_us, pair[1].from_us);
        }
        prop_assert_eq!(entries.last().unwrap().until_us, node.now);
        for (gpu, before) in before.iter().enumerate() {
            let spent: Energy = entries.iter().filter_map(|entry| entry.energy_mj_gpus[gpu]).sum();
            let counted = node.driver.gpus[gpu].reading.energy_total.unwrap() - *before;
            prop_assert_eq!(spent, counted, "gpu {}", gpu);
        }
        for entry in entries {
            prop_assert!(entry.attributed() + entry.unknown() <= entry.gpus(), "{entry:?}");
            prop_assert_eq!(check_ledger_entry(entry, node.now), Ok(()));
        }
    }
}
