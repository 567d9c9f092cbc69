//! The leaf switch and boards of a node, from its configuration to its report.

use wattle_common::{Machine, NodeId, Power, Timestamp};
use wattle_power_agent::{Action, Event, GpuFacts, GpuStatus, Note, PowerMachine, Settings};

fn state() -> GpuStatus {
    let facts = GpuFacts {
        uuid: "GPU-x".into(),
        gpu_type: "v100".into(),
        memory_mib: Some(16_384),
        cap_default: Some(Power::from_w(300)),
        cap_range: Some((Power::from_w(100), Power::from_w(300))),
        clock_range: None,
    };
    let health = wattle_gpu::GpuHealth::default();
    let cap = Some(Power::from_w(300));
    GpuStatus { facts, cap, clock: None, energy_total: None, no_meter: false, health }
}

#[test]
fn switch_and_valid_boards_are_reported() {
    let report_of = |gpus: u32, board: u32| {
        let switch = Some("leaf-3".parse().unwrap());
        let settings = Settings { switch, gpus_per_board: Some(board), ..Settings::default() };
        let mut machine = PowerMachine::new(NodeId::new("n0").unwrap(), settings);
        let mut out = Vec::new();
        for second in [1, 2] {
            let gpus = (0..gpus).map(|gpu| (gpu, Ok(state()))).collect();
            machine.handle(Timestamp::from_s(second), Event::GpusRead(gpus), &mut out);
        }
        let notes = out.iter().filter_map(|action| match action {
            Action::Log(note @ Note::InvalidBoards { .. }) => Some(note.to_string()),
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
    assert_eq!(report_of(8, 4), (Some(4), vec![]));
    let note = "gpus_per_board is not used: 6 GPUs are not a multiple of the board size 4; omit it if \
                boards differ";
    assert_eq!(report_of(6, 4), (None, vec![note.to_owned()]), "logged once");
}
