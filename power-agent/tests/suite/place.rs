//! Where a node stands, as its operator says and its report repeats.

use wattle_common::{Machine, NodeId, Power, Timestamp};
use wattle_power_agent::{Action, CardFacts, CardRead, Event, Note, PowerMachine, Settings};

fn card() -> CardRead {
    let facts = CardFacts {
        uuid: "GPU-x".into(),
        kind: "v100".into(),
        memory_mib: 16_384,
        cap_default: Some(Power::from_w(300)),
        cap_range: Some((Power::from_w(100), Power::from_w(300))),
        clock_range: None,
    };
    CardRead { facts, cap: Some(Power::from_w(300)), clock: None }
}

#[test]
fn switch_and_boards_are_reported_and_boards_that_cannot_be_are_not() {
    let place = |gpus: u32, board: u32| {
        let switch = Some("leaf-3".parse().unwrap());
        let settings = Settings { switch, gpus_per_board: Some(board), ..Settings::default() };
        let mut machine = PowerMachine::new(NodeId::new("n0").unwrap(), settings);
        let mut out = Vec::new();
        for second in [1, 2] {
            let cards = (0..gpus).map(|gpu| (gpu, Ok(card()))).collect();
            machine.handle(Timestamp::from_s(second), Event::CardsRead(cards), &mut out);
        }
        let notes = out.iter().filter_map(|action| match action {
            Action::Log(note @ Note::NoSuchBoards { .. }) => Some(note.to_string()),
            _ => None,
        });
        let notes: Vec<String> = notes.collect();
        let report = out.iter().find_map(|action| match action {
            Action::Report(report) => Some(report.clone()),
            _ => None,
        });
        let report = report.unwrap();
        assert_eq!(report.switch.unwrap().as_str(), "leaf-3");
        (report.gpus_per_board, notes)
    };
    assert_eq!(place(8, 4), (Some(4), vec![]));
    let said = "gpus_per_board is not used: 6 GPUs are no whole number of boards of 4; leave it out \
                where boards differ";
    assert_eq!(place(6, 4), (None, vec![said.to_owned()]), "said once");
}
