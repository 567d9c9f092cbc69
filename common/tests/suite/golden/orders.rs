//! Orders: of the placer to nodes, of people to the placer, and output of a job on request.

use super::*;

#[test]
fn desired() {
    let desired = NodeDesired {
        node: node(),
        generation: 12,
        issued_at_us: at(1),
        expires_at_us: at(61),
        gpus: vec![DesiredGpu {
            gpu: 0,
            cap_mw: Some(Power::from_w(200)),
            clock_mhz_max: Some(Frequency::from_mhz(1_200)),
        }],
        jobs: vec![DesiredJob {
            job: job("train-7"),
            admission: None,
            user: Some("ada".into()),
            attempt: 1,
            gpus: vec![0, 1],
            rank: 0,
            shares: vec![share()],
            command: vec!["python3".into(), "train.py".into()],
            environment: vec![("SEED".into(), "7".into())],
            working_dir: Some("/data/train".into()),
            checkpoint_signal: Some("SIGUSR1".into()),
            stop: false,
        }],
        power_limited: false,
        caps_ahead: Vec::new(),
        event_until_us: None,
        sleep: None,
    };
    check("node-desired", &desired);
    let mut admitted = desired.clone();
    admitted.jobs[0].admission = admission();
    check("node-desired-admission", &admitted);
    let bound = |s, w: Option<u64>| CapBound {
        from_us: at(s),
        cap_mw: w.map(Power::from_w),
        ..CapBound::default()
    };
    let caps_ahead = vec![bound(57_600, Some(180)), bound(68_400, None)];
    let bounded = NodeDesired { power_limited: true, caps_ahead, ..desired.clone() };
    check("node-desired-caps-ahead", &bounded);
    let gpus = [(1, Power::from_w(230))].into();
    let caps_ahead = vec![CapBound { gpus, ..bound(57_600, Some(180)) }, bound(68_400, Some(300))];
    let event_until_us = Some(at(68_400));
    let event = NodeDesired { caps_ahead, event_until_us, ..bounded };
    check("node-desired-event", &event);
    let sleep = Some(NodeSleep { state: SleepState::EnteringSleep, since_us: at(1) });
    check("node-desired-sleep", &NodeDesired { jobs: vec![], gpus: vec![], sleep, ..desired });
}

#[test]
fn orders() {
    let requester = Requester { rank: Rank::User, user: UserId::new("ada").unwrap() };
    let record = OrderRecord {
        at_us: at(3),
        requester,
        proven: true,
        order: Order::Submit { job: job("train-7") },
        refused: None,
    };
    check("order-record", &record);
    let order = Order::Budget { budget: "1.200 kWh".into() };
    let refused = Some("only an operator sets the budget".into());
    check("order-record-refused", &OrderRecord { order, refused, ..record });
}

#[test]
fn output() {
    let request = ReadOutput { job: job("train-7"), offset: 4_096 };
    check("read-output", &request);
    let data = b"step 9".to_vec();
    check("output-reply", &OutputReply::Output { bytes: 4_102, data });
    let error = "/var/log/wattle/jobs/train-7.n0.log: permission denied".into();
    check("output-reply-refused", &OutputReply::Refused { error });
}
