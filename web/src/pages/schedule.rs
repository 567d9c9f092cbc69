//! The GPUs over time: the jobs that had and have them until their expected ends, and the expected starts and ends of
//! the queue.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use wattle_common::job::Placement;
use wattle_common::messages::JobRecord;
use wattle_common::{GpuIndex, NodeId, Timestamp};
use wattle_view::expected;
use wattle_view::node::Node;

use super::{DETAILED_NODES_MAX, jobs, seconds};
use crate::model::{Model, Now};
use crate::topic::List;

/// Queued jobs that are shown.
const QUEUED_MAX: usize = 60;
/// Past placements of one row, the newest.
const PAST_MAX: usize = 40;

/// A GPU; without an index a node.
type Place = (NodeId, Option<GpuIndex>);

/// What a row shows: jobs with their number of GPUs there.
#[derive(Default)]
struct Row {
    gpus: usize,
    state: Option<&'static str>,
    held: Vec<Value>,
    past: Vec<Value>,
}

/// The rows of some nodes.
struct Rows {
    rows: BTreeMap<Place, Row>,
    detailed: bool,
}

impl Rows {
    fn of(nodes: &[&Node], detailed: bool, model: &Model, now: Now) -> Self {
        let mut rows = BTreeMap::new();
        for node in nodes {
            let silent = model.is_silent(node, now).then_some("silent");
            let gpus = node.power.iter().flat_map(|report| &report.gpus);
            if !detailed {
                let state = silent.or(node.sleep.map(|sleep| sleep.state.label()));
                let row = Row { gpus: gpus.count(), state, ..Row::default() };
                rows.insert((node.node.clone(), None), row);
                continue;
            }
            for gpu in gpus {
                let state = silent.or(Some(node.state(gpu)).filter(|state| *state != "ok"));
                let row = Row { gpus: 1, state, ..Row::default() };
                rows.insert((node.node.clone(), Some(gpu.gpu)), row);
            }
        }
        Self { rows, detailed }
    }

    /// Calls `add` with each row of a placement and the number of its GPUs there; returns whether there is one.
    fn each(&mut self, placement: &Placement, mut add: impl FnMut(&mut Row, usize)) -> bool {
        let mut found = false;
        for share in &placement.shares {
            let places: Vec<(Option<GpuIndex>, usize)> = if self.detailed {
                share.gpus.iter().map(|gpu| (Some(*gpu), 1)).collect()
            } else {
                vec![(None, share.gpus.len())]
            };
            for (gpu, count) in places {
                if let Some(row) = self.rows.get_mut(&(share.node.clone(), gpu)) {
                    add(row, count);
                    found = true;
                }
            }
        }
        found
    }

    fn shown(self) -> Map<String, Value> {
        let row = |((node, gpu), row): (Place, Row)| {
            let key = gpu.map_or_else(|| node.to_string(), |gpu| format!("{node}/{gpu}"));
            let shown = json!({
                "node": node.as_str(), "gpu": gpu, "gpus": row.gpus, "state": row.state,
                "held": row.held, "past": row.past,
            });
            (key, shown)
        };
        self.rows.into_iter().map(row).collect()
    }
}

/// A job with GPUs.
fn running(record: &JobRecord, from: Timestamp) -> Value {
    json!({
        "from_s": seconds(from),
        "phase": record.phase.to_string(),
        "where": record.placement.as_ref().map(ToString::to_string),
        "expected": jobs::expected_times(record),
    })
}

fn queued(record: &JobRecord) -> Value {
    json!({
        "gpus": record.spec.gpus.to_string(),
        "submitted_s": seconds(record.spec.submitted_at_us),
        "expected": jobs::expected_times(record),
    })
}

/// The nodes whose name, or a job on which, contains the text.
fn found<'m>(model: &'m Model, search: &str) -> Vec<&'m Node> {
    let has = |record: &JobRecord| jobs::contains(record, search);
    let held = model.occupancy.held().iter();
    let with_job: BTreeSet<&NodeId> = held
        .filter(|(job, _)| !search.is_empty() && model.jobs.get(job).is_some_and(has))
        .flat_map(|(_, held)| held.placement.shares.iter().map(|share| &share.node))
        .collect();
    let nodes = model
        .nodes
        .iter()
        .filter(|(id, _)| id.as_str().to_lowercase().contains(search) || with_job.contains(id));
    nodes.map(|(_, node)| node).collect()
}

/// The content of the page.
pub(super) fn content(list: &List, model: &Model, now: Now) -> Value {
    let detailed = model.nodes.len() <= DETAILED_NODES_MAX;
    let nodes = found(model, &list.search);
    let part = nodes.iter().skip(list.page * DETAILED_NODES_MAX).take(DETAILED_NODES_MAX);
    let part: Vec<&Node> = part.copied().collect();
    let mut rows = Rows::of(&part, detailed, model, now);
    let mut on_gpus = Map::new();
    for (job, held) in model.occupancy.held() {
        let add = |row: &mut Row, count| row.held.push(json!([job.as_str(), count]));
        let is_shown = rows.each(&held.placement, add);
        if let Some(record) = model.jobs.get(job).filter(|_| is_shown) {
            on_gpus.insert(job.to_string(), running(record, held.from));
        }
    }
    for past in model.occupancy.past().rev() {
        rows.each(&past.placement, |row, count| {
            if row.past.len() < PAST_MAX {
                let (from, until) = (seconds(past.from), seconds(past.until));
                row.past.push(json!([past.job.as_str(), from, until, count]));
            }
        });
    }
    let is_found =
        |record: &&JobRecord| list.search.is_empty() || jobs::contains(record, &list.search);
    let waits = model.jobs.group(1).filter(is_found);
    let mut waits: Vec<&JobRecord> = waits.collect();
    // Those without an expected start are the last.
    waits.sort_by_cached_key(|record| {
        let start = expected::start(record).map_or(Timestamp::FOREVER, |start| start.at_us);
        (start, record.spec.submitted_at_us, record.spec.job.clone())
    });
    let first = waits.iter().take(QUEUED_MAX);
    let order: Vec<&str> = first.clone().map(|record| record.spec.job.as_str()).collect();
    let queue: Map<String, Value> =
        first.map(|record| (record.spec.job.to_string(), queued(record))).collect();
    let gaps: Vec<Value> = model
        .occupancy
        .gaps()
        .map(|(from, until)| json!([seconds(from), until.map(seconds)]))
        .collect();
    json!({
        "detailed": detailed,
        "rows": rows.shown(),
        "jobs": on_gpus,
        "queued": { "rows": queue, "order": order, "total": waits.len() },
        "since_s": model.occupancy.since().map(seconds),
        "gaps": gaps,
        "search": list.search,
        "number": list.page,
        "total": nodes.len(),
        "pages": nodes.len().div_ceil(DETAILED_NODES_MAX).max(1),
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::codec;
    use wattle_common::job::JobPhase;
    use wattle_common::messages::{ExpectedInstant, ExpectedTimes, NotExpected};
    use wattle_testkit as testkit;

    use super::*;
    use crate::model::tests::{example, now};

    fn instant(s: u64) -> ExpectedInstant {
        let at = Timestamp::from_s;
        ExpectedInstant { at_us: at(s), from_us: at(s - 10), until_us: at(s + 50), forecasts: 7 }
    }

    fn times(start: Option<u64>, end: Option<u64>) -> ExpectedTimes {
        let unknown = start.is_none().then_some(NotExpected::Budget);
        let (start, end) = (start.map(instant), end.map(instant));
        ExpectedTimes { at_us: Timestamp::from_s(100), start, end, unknown }
    }

    fn store(model: &mut Model, record: &JobRecord) {
        model.job(record.spec.job.as_str(), Some(&codec::encode_json(record)));
    }

    /// `a` runs on both GPUs of n0 after `p` did on the first; `b`, `c` and `d` wait.
    fn model() -> Model {
        let mut model = example();
        let on = |job: &str, phase, since_s, gpus: &[u32]| JobRecord {
            phase_since_us: Timestamp::from_s(since_s),
            placement: (!gpus.is_empty()).then(|| testkit::placement([("n0", gpus.to_vec())])),
            ..testkit::job_record(testkit::job_spec(job, 1), phase)
        };
        model.job("a", None);
        store(&mut model, &on("p", JobPhase::Running, 20, &[0]));
        store(&mut model, &on("p", JobPhase::Finished, 50, &[]));
        let mut running = on("a", JobPhase::Running, 60, &[0, 1]);
        running.expected = Some(Box::new(times(None, Some(300))));
        store(&mut model, &running);
        for (job, start) in [("b", Some(310)), ("c", None), ("d", Some(305))] {
            let mut record = testkit::job_record(testkit::job_spec(job, 2), JobPhase::Queued);
            record.expected = Some(Box::new(times(start, start.map(|start| start + 100))));
            store(&mut model, &record);
        }
        model
    }

    fn search(model: &Model, text: &str) -> Value {
        let list = List { search: text.to_owned(), ..List::default() };
        content(&list, model, now(101))
    }

    #[test]
    fn each_gpu_has_its_past_and_present_jobs() {
        let page = search(&model(), "");
        assert_eq!(page["detailed"], json!(true));
        let keys: Vec<&String> = page["rows"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["n0/0", "n0/1", "n1/0", "n1/1"]);
        let [first, second, free] = ["n0/0", "n0/1", "n1/0"].map(|key| &page["rows"][key]);
        assert_eq!(
            (&first["held"], &first["past"]),
            (&json!([["a", 1]]), &json!([["p", 20, 50, 1]]))
        );
        assert_eq!((&second["held"], &second["past"]), (&json!([["a", 1]]), &json!([])));
        assert_eq!((&free["held"], &page["since_s"]), (&json!([]), &json!(100)));
        let job = &page["jobs"]["a"];
        assert_eq!(
            (&job["from_s"], &job["expected"]["end"]["s"]),
            (&json!(60), &json!([300, 290, 350]))
        );
    }

    #[test]
    fn the_queue_is_in_the_order_of_its_expected_starts() {
        let page = search(&model(), "");
        let queued = &page["queued"];
        assert_eq!((&queued["order"], &queued["total"]), (&json!(["d", "b", "c"]), &json!(3)));
        assert_eq!(queued["rows"]["b"]["expected"]["start"]["s"], json!([310, 300, 360]));
        let unknown = &queued["rows"]["c"]["expected"];
        assert_eq!(unknown["unknown"], "waits for the budget");
        assert!(unknown["start"].is_null(), "{unknown}");
    }

    #[test]
    fn a_search_finds_nodes_and_jobs() {
        let model = model();
        let rows = |text| search(&model, text)["rows"].as_object().unwrap().len();
        assert_eq!((rows("n1"), rows("a"), rows("zz")), (2, 2, 0));
        assert_eq!(search(&model, "d")["queued"]["order"], json!(["d"]));
    }

    #[test]
    fn of_a_large_cluster_a_row_is_a_node() {
        let mut model = model();
        for number in 2..=DETAILED_NODES_MAX {
            let node = format!("m{number:03}");
            let gpus = [testkit::applied_gpu(0, "v100")];
            let report = testkit::power_report(&node, Timestamp::from_s(99), gpus);
            model.report(&format!("power.{node}"), Some(&codec::encode_json(&report)), now(100));
        }
        let list = List { page: 1, ..List::default() };
        let page = content(&list, &model, now(101));
        assert_eq!(
            (&page["detailed"], &page["pages"], &page["total"]),
            (&json!(false), &json!(2), &json!(65))
        );
        let row = &page["rows"]["n1"];
        assert_eq!((page["rows"].as_object().unwrap().len(), &row["gpus"]), (1, &json!(2)));
        let first = search(&model, "n0");
        assert_eq!(first["rows"]["n0"]["held"], json!([["a", 2]]), "on two of its GPUs");
    }
}
