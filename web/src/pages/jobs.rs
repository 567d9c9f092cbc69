//! A part of the list of jobs.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use wattle_common::job::{JobPhase, Placement};
use wattle_common::messages::{ExpectedInstant, JobRecord, NodeSummary};
use wattle_common::{Energy, NodeId};
use wattle_view::expected;
use wattle_view::job::JobView;

use super::{rounded, seconds, watt_hours, watts};
use crate::model::{Model, Now};
use crate::topic::List;

/// Jobs of one part.
const ROWS: usize = 50;

/// Seconds to which a predicted end is rounded, so that it is not sent again with each report.
const END_STEP_S: f64 = 5.0;

/// The columns of one job.
pub(super) fn row(record: &JobRecord, model: &Model, now: Now) -> Value {
    // Those of its placement, and those where it has run before.
    let placed = record.placement.iter().flat_map(|placement| &placement.shares);
    let nodes: BTreeSet<&NodeId> =
        placed.map(|share| &share.node).chain(record.energy_until_us.keys()).collect();
    let summaries: Vec<&NodeSummary> =
        nodes.into_iter().filter_map(|node| model.summaries.get(node)).collect();
    let view = JobView::on(record.clone(), &summaries, now.at);
    let end = view.rest().filter(|_| view.is_running()).map(|rest| {
        let end = now.at.as_s() + rest.as_secs_f64();
        rounded((end / END_STEP_S).round() * END_STEP_S, 0)
    });
    let spec = &record.spec;
    let is_waiting = !view.is_running() && !record.phase.is_final();
    json!({
        "name": (spec.name != spec.job.as_str()).then_some(&spec.name),
        "user": spec.user,
        "proven": record.user_proven,
        "project": spec.project.as_ref().map(ToString::to_string),
        "workload": spec.workload.as_ref().map(ToString::to_string),
        "phase": view.phase(),
        "group": record.list_order().0,
        "gpus": view.gpus(),
        "where": record.placement.as_ref().map(ToString::to_string),
        "setting": (!record.setting.is_default()).then(|| record.setting.to_string()),
        "w": view.power_mw.map(watts),
        "wh": view.energy_mj_total.map(watt_hours),
        "energy_missing": view.energy_missing(),
        "unsaved": view.stops_unsaved(),
        "done": view.done.map(|done| rounded(done, 3)),
        "end_s": end,
        "expected": expected_times(record),
        "rest_s": view.rest().filter(|_| !view.is_running()).map(|rest| rounded(rest.as_secs_f64(), 0)),
        "ran_s": view.ran().filter(|_| record.phase.is_final()).map(|ran| rounded(ran.as_secs_f64(), 0)),
        "waited_s": view.waited().filter(|_| !is_waiting).map(|waited| waited.as_secs()),
        // While it waits this does not change.
        "waits_as_since_s": view
            .waited()
            .filter(|_| is_waiting)
            .map(|waited| seconds(now.at).saturating_sub(waited.as_secs())),
        "submitted_s": seconds(spec.submitted_at_us),
        "started_s": record.started_at_us.map(seconds),
        "ended_s": record.ended_at_us.map(seconds),
        "deadline_s": spec.deadline_at_us.map(seconds),
        "starts": record.attempt,
        "priority": (spec.priority > 0).then_some(spec.priority),
    })
}

/// The expected start and end, each as the instant and the ends of its 90 % interval, or why the next of them is not
/// known.
pub(super) fn expected_times(record: &JobRecord) -> Option<Value> {
    let instant = |of: ExpectedInstant| {
        let ends = [of.at_us, of.from_us, of.until_us].map(|at| rounded(at.as_s(), 0));
        json!({ "s": ends, "basis": expected::basis(&of) })
    };
    let (start, end) = (expected::start(record), expected::end(record));
    let unknown = expected::unknown(record).map(|why| why.to_string());
    let is_known = start.is_some() || end.is_some() || unknown.is_some();
    is_known.then(
        || json!({ "start": start.map(instant), "end": end.map(instant), "unknown": unknown }),
    )
}

/// Rows by id, and the ids in order.
pub(super) fn rows(records: &[&JobRecord], model: &Model, now: Now) -> Value {
    let rows: Map<String, Value> = records
        .iter()
        .map(|record| (record.spec.job.to_string(), row(record, model, now)))
        .collect();
    let order: Vec<&str> = records.iter().map(|record| record.spec.job.as_str()).collect();
    json!({ "rows": rows, "order": order })
}

/// Whether a job, its owner, its workload or a node of it has the text in its name.
pub(super) fn contains(record: &JobRecord, search: &str) -> bool {
    let spec = &record.spec;
    let within = |text: &str| text.to_lowercase().contains(search);
    within(spec.job.as_str())
        || within(&spec.name)
        || spec.user.as_deref().is_some_and(within)
        || spec.project.as_ref().is_some_and(|project| within(project.as_str()))
        || spec.workload.as_ref().is_some_and(|workload| within(workload.as_str()))
        || record.placement.iter().flat_map(|p| &p.shares).any(|s| within(s.node.as_str()))
}

/// What a list is ordered by, the most first; jobs without it are last.
type Order = fn(&JobRecord, Now) -> Option<f64>;

/// The order by a column; `None`: that of the list.
fn order(sort: &str) -> Option<Order> {
    Some(match sort {
        "gpus" => |record, _| {
            let placed = record.placement.as_ref().map(Placement::gpu_count);
            Some(f64::from(placed.unwrap_or(record.spec.gpus.min)))
        },
        "energy" => |record, _| record.energy_mj.map(Energy::as_j),
        "done" => |record, now| record.done(now.at),
        "waited" => |record, now| record.waited(now.at).map(|waited| waited.as_secs_f64()),
        // The earliest first.
        "deadline" => |record, _| record.spec.deadline_at_us.map(|at| -at.as_s()),
        _ => return None,
    })
}

/// The content of the page.
pub(super) fn content(list: &List, model: &Model, now: Now) -> Value {
    let shown = match list.show.as_str() {
        "running" | "queued" | "ended" | "failed" | "all" => list.show.as_str(),
        _ => "active",
    };
    let wanted = |record: &&JobRecord| {
        let group = record.list_order().0;
        let by_phase = match shown {
            "running" => group == 0,
            "queued" => group == 1,
            "ended" => group == 2,
            "failed" => record.phase == JobPhase::Failed,
            "all" => true,
            _ => group < 2,
        };
        by_phase && (list.search.is_empty() || contains(record, &list.search))
    };
    let groups = match shown {
        "active" => Some([0, 1]),
        "running" => Some([0, 0]),
        "queued" => Some([1, 1]),
        "ended" => Some([2, 2]),
        "all" => Some([0, 2]),
        _ => None,
    };
    let by = order(&list.sort);
    let (records, total) = match groups.filter(|_| list.search.is_empty() && by.is_none()) {
        Some(groups) => model.jobs.part(groups, list.page * ROWS, ROWS),
        None => {
            let mut found: Vec<&JobRecord> = model.jobs.listed().filter(wanted).collect();
            if let Some(by) = by {
                let key = |record: &JobRecord| by(record, now).unwrap_or(f64::NEG_INFINITY);
                found.sort_by(|a, b| key(b).total_cmp(&key(a)));
            }
            let part = found.iter().skip(list.page * ROWS).take(ROWS).copied().collect();
            (part, found.len())
        }
    };
    let mut page = rows(&records, model, now);
    let sum = |phase| model.jobs.count(phase);
    let more = json!({
        "show": shown,
        "sort": by.is_some().then_some(&list.sort),
        "search": list.search,
        "number": list.page,
        "total": total,
        "pages": total.div_ceil(ROWS).max(1),
        "counts": {
            "words": model.jobs.words(), "on_gpus": model.jobs.on_gpus(), "queued": sum(JobPhase::Queued),
            "finished": sum(JobPhase::Finished), "failed": sum(JobPhase::Failed),
            "cancelled": sum(JobPhase::Cancelled),
        },
    });
    if let (Value::Object(page), Value::Object(more)) = (&mut page, more) {
        page.extend(more);
    }
    page
}

#[cfg(test)]
mod tests {
    use wattle_common::job::JobSpec;
    use wattle_common::{Timestamp, codec};
    use wattle_testkit as testkit;

    use super::*;
    use crate::model::tests::now;

    #[test]
    fn a_list_is_ordered_by_a_column() {
        let mut model = Model::new("test");
        for (name, submitted_s, deadline_s) in
            [("a", 10, None), ("b", 30, Some(900)), ("c", 20, Some(500))]
        {
            let spec = JobSpec {
                submitted_at_us: Timestamp::from_s(submitted_s),
                deadline_at_us: deadline_s.map(Timestamp::from_s),
                ..testkit::job_spec(name, 1)
            };
            let record = JobRecord {
                phase_since_us: spec.submitted_at_us,
                ..testkit::job_record(spec, JobPhase::Queued)
            };
            model.job(name, Some(&codec::encode_json(&record)));
        }
        let page = |sort: &str| {
            let list = List { sort: sort.to_owned(), ..List::default() };
            content(&list, &model, now(100))
        };
        assert_eq!(page("deadline")["order"], json!(["c", "b", "a"]), "the earliest first");
        assert_eq!(page("waited")["order"], json!(["a", "c", "b"]));
        assert_eq!((&page("waited")["sort"], &page("x")["sort"]), (&json!("waited"), &Value::Null));
        let row = &page("waited")["rows"]["a"];
        // It does not change from second to second.
        assert_eq!((&row["waits_as_since_s"], &row["waited_s"]), (&json!(10), &Value::Null));
    }
}
