//! Messages with a number outside its limits ([`wattle_common::bounds`]): ignored with an alarm.

use wattle_common::bounds::{
    OutOfBounds, check_launch_report, check_ledger_entry, check_power_report, check_progress,
    check_record, check_surface,
};
use wattle_common::messages::{JobRecord, LaunchReport, PowerReport, Surface};
use wattle_common::topology::NODES_MAX;
use wattle_common::{NodeId, Timestamp};

use crate::live::Event;
use crate::live::nodes::Nodes;
use crate::live::outbox::Outbox;

/// Whether the numbers of an event are within their limits. If not, an alarm is raised.
pub(super) fn is_within(now: Timestamp, event: &Event, nodes: &Nodes, outbox: &mut Outbox) -> bool {
    match event {
        Event::EnergyMetered(entry) => {
            let sender = format!("an energy ledger entry of {}", entry.node);
            is_accepted(now, sender, &check_ledger_entry(entry, now), outbox)
        }
        Event::PowerReported(report) => is_power_report_within(now, report, nodes, outbox),
        Event::LaunchReported(report) => is_launch_report_within(now, report, nodes, outbox),
        Event::Progressed(message) => {
            let sender = format!("progress of {}", message.job);
            is_accepted(now, sender, &check_progress(message, now), outbox)
        }
        Event::SurfaceKnown(surface) => is_surface_within(now, surface, outbox),
        _ => true,
    }
}

pub(super) fn is_power_report_within(
    now: Timestamp,
    report: &PowerReport,
    nodes: &Nodes,
    outbox: &mut Outbox,
) -> bool {
    let known = check_node_count(&report.node, nodes);
    let checked = known.and_then(|()| check_power_report(report, now));
    is_accepted(now, format!("a power agent's report of {}", report.node), &checked, outbox)
}

pub(super) fn is_launch_report_within(
    now: Timestamp,
    report: &LaunchReport,
    nodes: &Nodes,
    outbox: &mut Outbox,
) -> bool {
    let known = check_node_count(&report.node, nodes);
    let checked = known.and_then(|()| check_launch_report(report, now));
    is_accepted(now, format!("a launcher's report of {}", report.node), &checked, outbox)
}

pub(super) fn is_surface_within(now: Timestamp, surface: &Surface, outbox: &mut Outbox) -> bool {
    let sender = format!("the surface of {}", surface.job);
    is_accepted(now, sender, &check_surface(surface, now), outbox)
}

/// Whether a stored record can be restored. If not, an alarm is raised: the job is adopted if it runs.
pub(super) fn is_restorable(now: Timestamp, record: &JobRecord, outbox: &mut Outbox) -> bool {
    let sender = format!("the record of {}", record.spec.job);
    is_accepted(now, sender, &check_record(record, now), outbox)
}

fn is_accepted(
    now: Timestamp,
    sender: String,
    checked: &Result<(), OutOfBounds>,
    outbox: &mut Outbox,
) -> bool {
    if let Err(error) = checked {
        outbox.alarm_out_of_bounds(now, sender, error);
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
