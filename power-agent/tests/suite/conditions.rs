//! GPUs with conditions: lost, without a driver, in MIG mode, with memory errors.

use std::time::Duration;

use proptest::prelude::*;
use wattle_common::messages::{AppliedGpu, DesiredGpu, GpuConditionKind, NodeDesired};
use wattle_common::{Frequency, GpuIndex, Power};
use wattle_power_agent::{Event, Note};
use wattle_testkit as kit;

use crate::model::{GPUS, Node, SAFE_W, Step, step_with_modes};

/// Four heartbeats: one more than a condition is held.
const HELD: Duration = Duration::from_secs(20);
const HEARTBEAT: Duration = Duration::from_secs(5);

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Nothing is set on a GPU whose MIG mode was read (checked at each action). Once it is off and the
    /// driver is loaded, every GPU has its target.
    #[test]
    fn nothing_is_set_in_mig_mode_and_targets_are_reached_afterwards(
        steps in prop::collection::vec(step_with_modes(), 0..60),
    ) {
        let mut node = Node::new(0);
        for step in steps {
            node.apply(step);
        }
        node.apply(Step::Driver(true));
        for model in &mut node.gpus {
            (model.lost, model.refuses, model.mig) = (false, false, false);
        }
        node.advance(HELD + HEARTBEAT, true);
        node.check_reached();
        let report = node.reported.clone().unwrap();
        prop_assert_eq!(report.driver_error, None);
        for gpu in report.gpus {
            prop_assert!(gpu.accepts_jobs(), "{gpu:?}");
        }
    }
}

/// Orders 150 W and 1.2 GHz for every GPU, for a long time.
fn ordered(node: &mut Node) {
    let cap_mw = Some(Power::from_w(150));
    let clock_mhz_max = Some(Frequency::from_mhz(1_200));
    let gpus = (0..GPUS).map(|gpu| DesiredGpu { gpu, cap_mw, clock_mhz_max }).collect();
    let end = node.now + Duration::from_secs(3_600);
    let order = NodeDesired { gpus, ..kit::node_desired("n0", 3, node.now, end) };
    node.newest = Some(order.clone());
    node.event(Event::DesiredChanged(order));
    node.advance(HEARTBEAT, true);
    node.check_reached();
    node.notes.clear();
}

fn started() -> Node {
    let mut node = Node::new(0);
    node.advance(Duration::from_secs(1), true);
    node
}

fn conditions(node: &Node, gpu: GpuIndex) -> Vec<GpuConditionKind> {
    let report = node.reported.as_ref().unwrap();
    let health = report.gpus[gpu as usize].health.as_ref().unwrap();
    health.conditions.iter().map(|condition| condition.condition).collect()
}

fn accepts_jobs(node: &Node) -> Vec<bool> {
    node.reported.as_ref().unwrap().gpus.iter().map(AppliedGpu::accepts_jobs).collect()
}

#[test]
fn a_driver_that_is_loaded_again_gets_the_targets_again() {
    let mut node = started();
    ordered(&mut node);
    node.apply(Step::Driver(false));
    node.advance(2 * HEARTBEAT, true);
    let report = node.reported.clone().unwrap();
    assert_eq!(report.driver_error.as_deref(), Some("no driver"));
    assert!(report.gpus.iter().all(|gpu| !gpu.healthy && gpu.cap_mw.is_none()), "{report:?}");
    assert_eq!(conditions(&node, 2), [GpuConditionKind::DriverFailed]);
    node.event(Event::GpusUnreadable("driver not loaded".to_owned()));
    let error = node.reported.as_ref().unwrap().driver_error.as_deref();
    assert_eq!(error, Some("driver not loaded"), "the newest error");

    node.apply(Step::Driver(true));
    assert_ne!(node.gpus[0].cap, Power::from_w(150));
    node.advance(HEARTBEAT, true);
    node.check_reached();
    assert!(node.reported.as_ref().unwrap().gpus.iter().all(|gpu| gpu.healthy));
    assert_eq!(accepts_jobs(&node), [false; 3], "no jobs in the hold time");
    // One alarm, and no other program is blamed.
    let failed = Note::DriverFailed { error: "no driver".to_owned() };
    assert_eq!(node.notes, [failed, Note::DriverReturned]);
    node.advance(HELD, true);
    assert_eq!(accepts_jobs(&node), [true; 3]);
}

#[test]
fn a_driver_that_is_absent_at_the_start_is_reported() {
    let mut node = Node::new(0);
    node.apply(Step::Driver(false));
    node.advance(HEARTBEAT, true);
    let report = node.reported.clone().unwrap();
    assert_eq!((report.driver_error.as_deref(), report.gpus.len()), (Some("no driver"), 0));
    node.apply(Step::Driver(true));
    node.advance(2 * HEARTBEAT, true);
    assert!(node.gpus.iter().all(|gpu| gpu.cap == Power::from_w(SAFE_W)));
    assert_eq!(accepts_jobs(&node), [true; 3]);
}

#[test]
fn a_lost_gpu_returns_with_its_target_and_gets_jobs_after_the_hold_time() {
    let mut node = started();
    ordered(&mut node);
    node.apply(Step::Lose(1));
    node.advance(HEARTBEAT, true);
    assert_eq!(conditions(&node, 1), [GpuConditionKind::Lost]);
    assert_eq!(accepts_jobs(&node), [true, false, true]);
    node.gpus[1].cap = Power::from_w(300); // reset
    node.apply(Step::Return(1));
    node.advance(HEARTBEAT, true);
    node.check_reached();
    assert_eq!(accepts_jobs(&node), [true, false, true], "it may be lost again");
    node.advance(HELD, true);
    assert_eq!((accepts_jobs(&node), conditions(&node, 1)), (vec![true; 3], vec![]));
}

#[test]
fn mig_mode_is_left_alone_and_alarmed_once() {
    let mut node = started();
    ordered(&mut node);
    node.apply(Step::Mig(0, true));
    node.advance(HEARTBEAT, true);
    assert_eq!(conditions(&node, 0), [GpuConditionKind::MigEnabled]);
    assert_eq!(accepts_jobs(&node), [false, true, true]);
    // Its cap is changed by its owner, and is not changed back.
    node.apply(Step::ExternalCap(0, 280));
    (node.newest, node.stopped) = (None, true);
    node.event(Event::StopRequested);
    node.advance(5 * HEARTBEAT, true);
    assert_eq!(node.gpus[0].cap, Power::from_w(280));
    assert_eq!(node.reported.as_ref().unwrap().gpus[0].cap_mw, Some(Power::from_w(280)));
    assert!(node.machine.is_safe(), "the service may end");
    let alarms = node.notes.iter().filter(|note| matches!(note, Note::ConditionBegan { .. }));
    let alarms: Vec<String> = alarms.map(ToString::to_string).collect();
    assert_eq!(
        alarms,
        [
            "GPU 0 is in MIG mode: Wattle places no jobs on it and sets nothing; `nvidia-smi -mig 0` returns \
          it to Wattle"
        ]
    );
}

#[test]
fn new_memory_errors_keep_jobs_away_and_settings_continue() {
    let mut node = started();
    node.gpus[2].ecc_errors += 3;
    node.advance(HEARTBEAT, true);
    assert_eq!(conditions(&node, 2), [GpuConditionKind::EccErrors]);
    assert_eq!(accepts_jobs(&node), [true, true, false]);
    let report = node.reported.clone().unwrap();
    assert!(report.gpus[2].healthy, "its jobs continue");
    assert_eq!(report.gpus[2].health.as_ref().unwrap().ecc_errors_uncorrected, Some(7));
    ordered(&mut node);
    assert_eq!(node.gpus[2].cap, Power::from_w(150));
}
