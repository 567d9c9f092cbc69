//! The health of the services: faults, processes that answer, and leases.

use serde_json::{Map, Value, json};
use wattle_common::subject::LeaseKey;

use super::{faults, seconds};
use crate::model::{Model, Now};

/// Most processes and leases on the page.
const ROWS_MAX: usize = 200;

/// The content of the page.
pub(super) fn content(model: &Model, now: Now) -> Value {
    let leases: Map<String, Value> = model
        .leases
        .iter()
        .take(ROWS_MAX)
        .map(|(key, lease)| {
            let label = LeaseKey::parse(key).map_or_else(|| key.clone(), |key| key.label());
            let row = json!({
                "label": label,
                "holder": lease.lease.holder.instance,
                "active": lease.is_active(now.steady),
                "since_s": seconds(lease.lease.since_us),
            });
            (key.clone(), row)
        })
        .collect();
    let mut counts: Map<String, Value> = Map::new();
    for process in model.processes.iter().flatten() {
        let number = counts.get(&process.service).and_then(Value::as_u64).unwrap_or(0);
        counts.insert(process.service.clone(), json!(number + 1));
    }
    let processes = model.processes.as_ref().map(|processes| {
        processes.iter().take(ROWS_MAX).map(|process| json!(process)).collect::<Vec<_>>()
    });
    json!({
        "faults": faults::shown(&faults::all(model, now)),
        "leases": leases,
        "processes": processes,
        "counts": counts,
        "hidden": model.processes.as_ref().map_or(0, Vec::len).saturating_sub(ROWS_MAX),
        "nodes": model.nodes.len(),
        "unreadable": model.unreadable,
    })
}
