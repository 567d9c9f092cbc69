//! An order to fall asleep is obeyed once, while it is current and nobody is on the node.

use std::time::Duration;

use wattle_common::messages::{
    DesiredJob, NodeDesired, NodeSleep, PowerReport, SleepResult, SleepState,
};
use wattle_common::{JobId, Machine, NodeId, Timestamp};
use wattle_power_agent::{Action, Event, PowerMachine, Settings};

struct Agent {
    machine: PowerMachine,
    now: Timestamp,
    report: Option<PowerReport>,
}

impl Agent {
    fn new(can_sleep: bool) -> Self {
        let settings = Settings { can_sleep, ..Settings::default() };
        let machine = PowerMachine::new(NodeId::new("n0").unwrap(), settings);
        let mut agent = Self { machine, now: Timestamp::from_s(1_000), report: None };
        // A node without cards says so; its reports are what this is about.
        agent.tell(Event::CardsUnreadable("no driver".to_owned()));
        agent
    }

    /// What it wants run, by the order's instant.
    fn tell(&mut self, event: Event) -> Vec<Timestamp> {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        let mut run = Vec::new();
        for action in out {
            match action {
                Action::Sleep(ordered) => run.push(ordered),
                Action::Report(report) => self.report = Some(report),
                _ => {}
            }
        }
        run
    }

    fn order(&mut self, generation: u64, state: SleepState, since: u64) -> Vec<Timestamp> {
        let order = self.desired(generation, state, since);
        self.tell(Event::DesiredChanged(order))
    }

    fn desired(&mut self, generation: u64, state: SleepState, since: u64) -> NodeDesired {
        self.now = self.now + Duration::from_secs(1);
        NodeDesired {
            node: NodeId::new("n0").unwrap(),
            generation,
            issued_at_us: self.now,
            expires_at_us: self.now + Duration::from_secs(60),
            gpus: vec![],
            jobs: vec![],
            sleep: Some(NodeSleep { state, since_us: Timestamp::from_s(since) }),
        }
    }
}

#[test]
fn each_order_is_obeyed_once_and_renewed_in_vain() {
    let mut agent = Agent::new(true);
    assert!(agent.report.as_ref().unwrap().can_sleep);
    assert_eq!(agent.order(1, SleepState::EnteringSleep, 7), [Timestamp::from_s(7)]);
    assert_eq!(agent.order(1, SleepState::EnteringSleep, 7), [], "its lease was renewed");
    for state in [SleepState::Asleep, SleepState::Waking, SleepState::WakeFailed] {
        assert_eq!(agent.order(2, state, 8), [], "{state:?}");
    }
    assert_eq!(agent.order(3, SleepState::EnteringSleep, 9), [Timestamp::from_s(9)]);
    let error = Some("`suspend` ended with exit status: 1".to_owned());
    let answer = SleepResult { requested_at_us: Timestamp::from_s(9), error };
    agent.tell(Event::SleepAnswered(answer.clone()));
    assert_eq!(agent.report.as_ref().unwrap().sleep_result, Some(answer));
}

#[test]
fn an_order_that_is_stale_or_names_a_job_is_not_obeyed() {
    let mut agent = Agent::new(true);
    let mut stale = agent.desired(1, SleepState::EnteringSleep, 7);
    stale.expires_at_us = agent.now;
    assert_eq!(agent.tell(Event::DesiredChanged(stale)), []);
    let mut used = agent.desired(2, SleepState::EnteringSleep, 7);
    used.jobs.push(DesiredJob {
        job: JobId::new("a").unwrap(),
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
    assert_eq!(agent.tell(Event::DesiredChanged(used)), []);
}

#[test]
fn without_a_command_it_says_so() {
    let mut agent = Agent::new(false);
    assert!(!agent.report.as_ref().unwrap().can_sleep);
    assert_eq!(agent.order(1, SleepState::EnteringSleep, 7), []);
    let slept = agent.report.as_ref().unwrap().sleep_result.clone().unwrap();
    assert!(slept.error.unwrap().contains("no sleep_command"));
}
