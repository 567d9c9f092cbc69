//! The life of a job: its stages, power and speed over time, starts and co-tenants.

use serde_json::{Map, Value, json};
use wattle_common::messages::JobRecord;
use wattle_common::{JobId, NodeId, Timestamp};

use super::{rounded, significant};
use crate::model::Now;
use crate::model::life::{Doing, Life, Means, Part, Stage, Start, Tenant};

/// Seconds since the Unix epoch, to the tenth.
fn tenths(at: Timestamp) -> Value {
    rounded(at.as_s(), 1)
}

/// Entries by their number, so that only what changes is sent again.
fn numbered(entries: impl Iterator<Item = Value>) -> Map<String, Value> {
    entries.enumerate().map(|(number, entry)| (number.to_string(), entry)).collect()
}

const fn name(doing: Doing) -> &'static str {
    match doing {
        Doing::Waits => "waits",
        Doing::WaitsOrStarts => "waits-or-starts",
        Doing::Starts => "starts",
        Doing::Runs => "runs",
        Doing::Unknown => "unknown",
    }
}

fn stage(stage: &Stage) -> Value {
    json!({
        "doing": name(stage.doing), "from_s": tenths(stage.from),
        "until_s": stage.until.map(tenths), "start": stage.attempt,
    })
}

/// Own power, power of the GPUs, caps, all in watts, and steps per second; null where it is not known.
fn means(means: Means) -> [Value; 4] {
    let Means { job_w, gpus_w, caps_w, rate } = means;
    let power = [job_w, gpus_w, caps_w]
        .map(|mean| mean.value().map_or(Value::Null, |watts| rounded(watts, 0)));
    let [job_w, gpus_w, caps_w] = power;
    [job_w, gpus_w, caps_w, rate.value().map_or(Value::Null, significant)]
}

fn part(part: &Part) -> Value {
    let [job_w, gpus_w, caps_w, rate] = means(part.means);
    json!([tenths(part.from), tenths(part.until), job_w, gpus_w, caps_w, rate])
}

fn start(start: &Start) -> Value {
    let [job_w, gpus_w, caps_w, rate] = means(start.means);
    let nodes: Vec<&str> = start.nodes.iter().map(NodeId::as_str).collect();
    let tenants: Vec<&str> = start.tenants.iter().map(JobId::as_str).collect();
    json!({
        "start": start.attempt, "from_s": tenths(start.from), "until_s": tenths(start.until),
        "gpus": start.gpus, "nodes": nodes, "with": tenants,
        "w": job_w, "gpus_w": gpus_w, "caps_w": caps_w, "rate": rate,
    })
}

fn tenant(tenant: &Tenant) -> Value {
    let spans: Vec<[Value; 2]> =
        tenant.spans.iter().map(|(from, until)| [tenths(*from), tenths(*until)]).collect();
    json!({ "job": tenant.job.as_str(), "spans": spans })
}

/// The life of a job whose windows have been read.
pub(super) fn content(record: &JobRecord, life: &Life, now: Now) -> Value {
    let time = |time: Option<std::time::Duration>| time.map(|time| rounded(time.as_secs_f64(), 0));
    json!({
        "stages": numbered(life.stages(record).iter().map(stage)),
        "parts": numbered(life.parts.iter().map(part)),
        "starts": numbered(life.starts.iter().map(start)),
        "tenants": numbered(life.tenants.iter().map(tenant)),
        "tenants_more": (life.tenants_more > 0).then_some(life.tenants_more),
        "is_inferred": life.is_inferred,
        "waited_s": time(record.waited(now.at)),
        "ran_s": time(record.ran(now.at)),
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::job::JobPhase;
    use wattle_testkit as testkit;

    use super::*;
    use crate::model::tests::now;

    #[test]
    fn what_is_not_known_is_null() {
        let at = Timestamp::from_s;
        let mut window = testkit::job_window("a", at(40), at(100));
        window.cap_mw = None;
        window.neighbours = vec![testkit::neighbour("b", None)];
        let record = testkit::job_record(testkit::job_spec("a", 1), JobPhase::Running);
        let shown = content(&record, &Life::of(&[window]), now(100));
        assert_eq!(shown["parts"], json!({ "0": [40, 100, null, 180, null, 10] }));
        let start = &shown["starts"]["0"];
        assert_eq!((&start["gpus_w"], &start["caps_w"]), (&json!(180), &Value::Null));
        assert_eq!((&start["nodes"], &start["with"]), (&json!(["n0"]), &json!(["b"])));
        assert_eq!(shown["tenants"]["0"], json!({ "job": "b", "spans": [[40, 100]] }));
        let stages = &shown["stages"];
        assert_eq!(
            (&stages["0"]["doing"], &stages["1"]["doing"], &stages["1"]["until_s"]),
            (&json!("waits-or-starts"), &json!("runs"), &Value::Null)
        );
    }
}
