//! Messages with a number outside its limits ([`wattle_common::bounds`]): ignored with an alarm.

use wattle_common::NodeId;
use wattle_common::bounds::{
    OutOfBounds, check_launch_report, check_ledger_entry, check_power_report, check_progress,
    check_record, check_surface,
};
use wattle_common::messages::{JobRecord, LaunchReport, PowerReport, Surface};
use wattle_common::topology::NODES_MAX;

use crate::live::nodes::Nodes;
use crate::live::{Event, Turn};

/// Whether the numbers of an event are within their limits. If not, an alarm is raised.
pub(super) fn is_within(turn: &mut Turn<'_>, event: &Event, nodes: &Nodes) -> bool {
    match event {
        Event::EnergyMetered(entry) => {
            let sender = format!("an energy ledger entry of {}", entry.node);
            is_accepted(&check_ledger_entry(entry, turn.now), sender, turn)
        }
        Event::PowerReported(report) => is_power_report_within(turn, report, nodes),
        Event::LaunchReported(report) => is_launch_report_within(turn, report, nodes),
        Event::Progressed(message) => {
            let sender = format!("progress of {}", message.job);
            is_accepted(&check_progress(message, turn.now), sender, turn)
        }
        Event::SurfaceKnown(surface) => is_surface_within(turn, surface),
        _ => true,
    }
}

pub(super) fn is_power_report_within(
    turn: &mut Turn<'_>,
    report: &PowerReport,
    nodes: &Nodes,
) -> bool {
    let known = check_node_count(&report.node, nodes);
    let checked = known.and_then(|()| check_power_report(report, turn.now));
    is_accepted(&checked, format!("a power agent's report of {}", report.node), turn)
}

pub(super) fn is_launch_report_within(
    turn: &mut Turn<'_>,
    report: &LaunchReport,
    nodes: &Nodes,
) -> bool {
    let known = check_node_count(&report.node, nodes);
    let checked = known.and_then(|()| check_launch_report(report, turn.now));
    is_accepted(&checked, format!("a launcher's report of {}", report.node), turn)
}

pub(super) fn is_surface_within(turn: &mut Turn<'_>, surface: &Surface) -> bool {
    let sender = format!("the surface of {}", surface.job);
    is_accepted(&check_surface(surface, turn.now), sender, turn)
}

/// Whether a stored record can be restored. If not, an alarm is raised: the job is adopted if it runs.
pub(super) fn is_restorable(turn: &mut Turn<'_>, record: &JobRecord) -> bool {
    let sender = format!("the record of {}", record.spec.job);
    is_accepted(&check_record(record, turn.now), sender, turn)
}

fn is_accepted(checked: &Result<(), OutOfBounds>, sender: String, turn: &mut Turn<'_>) -> bool {
    if let Err(error) = checked {
        turn.outbox.alarm_out_of_bounds(turn.now, sender, error);
    }
    checked.is_ok()
}

/// No report adds a node beyond the largest number.
fn check_node_count(node: &NodeId, nodes: &Nodes) -> Result<(), OutOfBounds> {
    if nodes.len() < NODES_MAX || nodes.contains(node) {
        return Ok(());
    }
    let (field, value) = ("node", node.to_string());
    Err(OutOfBounds { field, value, expected: format!("at most {NODES_MAX} nodes") })
}
