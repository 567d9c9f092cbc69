//! A request to sleep is carried out once, while its lease runs and no job is on the node.

use std::time::Duration;

use wattle_common::messages::{
    DesiredJob, NodeDesired, NodeSleep, PowerReport, SleepResult, SleepState,
};
use wattle_common::{Machine, Timestamp};
use wattle_power_agent::{Action, Event, PowerMachine, Settings};
use wattle_testkit as kit;

struct Agent {
    machine: PowerMachine,
    now: Timestamp,
    report: Option<PowerReport>,
}

impl Agent {
    fn new(can_sleep: bool) -> Self {
        let settings = Settings { can_sleep, ..Settings::default() };
        let machine = PowerMachine::new(kit::node("n0"), settings);
        let mut agent = Self { machine, now: Timestamp::from_s(1_000), report: None };
        agent.handle(Event::GpusUnreadable("no driver".to_owned()));
        agent
    }

    /// Handles an event; returns the requests for which the sleep command is run.
    fn handle(&mut self, event: Event) -> Vec<Timestamp> {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        let mut run = Vec::new();
        for action in out {
            match action {
                Action::Sleep(requested_at) => run.push(requested_at),
                Action::Report(report) => self.report = Some(report),
                _ => {}
            }
        }
        run
    }

    fn request(&mut self, generation: u64, state: SleepState, since: u64) -> Vec<Timestamp> {
        let desired = self.desired(generation, state, since);
        self.handle(Event::DesiredChanged(desired))
    }

    fn desired(&mut self, generation: u64, state: SleepState, since: u64) -> NodeDesired {
        self.now = self.now + Duration::from_secs(1);
        let sleep = Some(NodeSleep { state, since_us: Timestamp::from_s(since) });
        let expires_at = self.now + Duration::from_secs(60);
        NodeDesired { sleep, ..kit::node_desired("n0", generation, self.now, expires_at) }
    }
}

#[test]
fn each_request_is_carried_out_once() {
    let mut agent = Agent::new(true);
    assert!(agent.report.as_ref().unwrap().can_sleep);
    assert_eq!(agent.request(1, SleepState::EnteringSleep, 7), [Timestamp::from_s(7)]);
    assert_eq!(agent.request(1, SleepState::EnteringSleep, 7), [], "its lease was renewed");
    for state in [SleepState::Asleep, SleepState::Waking, SleepState::WakeFailed] {
        assert_eq!(agent.request(2, state, 8), [], "{state:?}");
    }
    assert_eq!(agent.request(3, SleepState::EnteringSleep, 9), [Timestamp::from_s(9)]);
    let error = Some("`suspend` ended with exit status: 1".to_owned());
    let result = SleepResult { requested_at_us: Timestamp::from_s(9), error };
    agent.handle(Event::SleepEnded(result.clone()));
    assert_eq!(agent.report.as_ref().unwrap().sleep_result, Some(result));
}

#[test]
fn a_request_that_has_expired_or_names_a_job_is_ignored() {
    let mut agent = Agent::new(true);
    let mut expired = agent.desired(1, SleepState::EnteringSleep, 7);
    expired.expires_at_us = agent.now;
    assert_eq!(agent.handle(Event::DesiredChanged(expired)), []);
    let mut used = agent.desired(2, SleepState::EnteringSleep, 7);
    used.jobs.push(DesiredJob {
        user: None,
        job: kit::job("a"),
        admission: None,
        attempt: 1,
        gpus: vec![0],
        rank: 0,
        shares: vec![],
        command: vec!["train".to_owned()],
        environment: vec![],
        working_dir: None,
        checkpoint_signal: None,
        stop: true,
    });
    assert_eq!(agent.handle(Event::DesiredChanged(used)), []);
}

#[test]
fn a_missing_sleep_command_is_reported() {
    let mut agent = Agent::new(false);
    assert!(!agent.report.as_ref().unwrap().can_sleep);
    assert_eq!(agent.request(1, SleepState::EnteringSleep, 7), []);
    let result = agent.report.as_ref().unwrap().sleep_result.clone().unwrap();
    assert!(result.error.unwrap().contains("no sleep_command"));
}
