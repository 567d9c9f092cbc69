//! Messages with a number outside its limits ([`wattle_common::bounds`]): ignored with an alarm.

use wattle_common::bounds::{
    OutOfBounds, check_launch_report, check_ledger_entry, check_power_report, check_progress,
    check_record, check_surface,
};
use wattle_common::messages::JobRecord;
use wattle_common::topology::NODES_MAX;
use wattle_common::{NodeId, Timestamp};

use crate::live::Event;
use crate::live::nodes::Nodes;
use crate::live::outbox::Outbox;

/// Whether the numbers of an event are within their limits. If not, an alarm is raised.
pub(super) fn is_within(now: Timestamp, event: &Event, nodes: &Nodes, outbox: &mut Outbox) -> bool {
    let (sender, checked) = match event {
        Event::EnergyMetered(entry) => {
            (format!("an energy ledger entry of {}", entry.node), check_ledger_entry(entry, now))
        }
        Event::PowerReported(report) => {
            let known = check_node_count(&report.node, nodes);
            let checked = known.and_then(|()| check_power_report(report, now));
            (format!("a power agent's report of {}", report.node), checked)
        }
        Event::LaunchReported(report) => {
            let known = check_node_count(&report.node, nodes);
            let checked = known.and_then(|()| check_launch_report(report, now));
            (format!("a launcher's report of {}", report.node), checked)
        }
        Event::Progressed(message) => {
            (format!("progress of {}", message.job), check_progress(message, now))
        }
        Event::SurfaceKnown(surface) => {
            (format!("the surface of {}", surface.job), check_surface(surface, now))
        }
        _ => return true,
    };
    if let Err(error) = &checked {
        outbox.alarm_out_of_bounds(now, sender, error);
    }
    checked.is_ok()
}

/// Whether a stored record can be restored. If not, an alarm is raised: the job is adopted if it runs.
pub(super) fn is_restorable(now: Timestamp, record: &JobRecord, outbox: &mut Outbox) -> bool {
    let checked = check_record(record, now);
    if let Err(error) = &checked {
        outbox.alarm_out_of_bounds(now, format!("the record of {}", record.spec.job), error);
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
