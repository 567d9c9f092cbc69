//! The accounting as `sacct --json` writes it: data parsers 0.0.39 to 0.0.46 (Slurm 23.02 and later), and the older
//! plugins of Slurm 21.08 and 22.05, whose fields have the same names.
//!
//! A job's fields become the columns of `sacct -P`, and the rules of [`super::slurm`] apply. Numbers are plain,
//! or `{"set": true, "infinite": false, "number": 5}`; a state is one name or several. Times are seconds since
//! 1970. The older plugins write the eligible time as `start`; the rules infer the start then.
//!
//! Source: the schema `dbv0.0.NN_job` of the OpenAPI documents (slurm.schedmd.com/rest_api.html), and the parser `JOB`
//! in `parsers.c` of `src/plugins/data_parser` (github.com/SchedMD/slurm).

use csv::StringRecord;
use serde::Deserialize;
use serde_json::Value;

use super::RowError;
use super::format::Format;
use super::slurm;

/// The columns that a job's fields fill beside those of the documented export. The time that it ran is a number of
/// seconds, so `Elapsed` stays empty.
const FURTHER: [&str; 8] = [
    "ElapsedRaw",
    "Suspended",
    "Constraints",
    "Comment",
    "Cluster",
    "TimelimitRaw",
    "Priority",
    "Account",
];

/// The columns of `sacct -P` that a job's fields are read as.
static COLUMNS: [&str; slurm::EXPORT.len() + FURTHER.len()] = {
    let mut columns = [""; slurm::EXPORT.len() + FURTHER.len()];
    let (export, further) = columns.split_at_mut(slurm::EXPORT.len());
    export.copy_from_slice(&slurm::EXPORT);
    further.copy_from_slice(&FURTHER);
    columns
};

pub(super) static FORMAT: Format =
    Format { name: "Slurm sacct --json", headless: &COLUMNS, json: Some(records), ..slurm::FORMAT };

#[derive(Deserialize)]
struct Job {
    job_id: Value,
    #[serde(default)]
    array: Option<Array>,
    #[serde(default)]
    het: Option<Het>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    account: Option<String>,
    #[serde(default)]
    cluster: Option<String>,
    #[serde(default)]
    partition: Option<String>,
    #[serde(default)]
    priority: Value,
    #[serde(default)]
    constraints: Value,
    #[serde(default)]
    comment: Value,
    #[serde(default)]
    nodes: Option<String>,
    #[serde(default)]
    allocation_nodes: Value,
    time: Time,
    #[serde(default)]
    state: State,
    #[serde(default)]
    tres: Option<Tres>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Array {
    job_id: Value,
    task_id: Value,
    task: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Het {
    job_id: Value,
    job_offset: Value,
}

#[derive(Deserialize)]
struct Time {
    submission: Value,
    #[serde(default)]
    eligible: Value,
    #[serde(default)]
    start: Value,
    #[serde(default)]
    end: Value,
    #[serde(default)]
    elapsed: Value,
    #[serde(default)]
    suspended: Value,
    #[serde(default)]
    limit: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    current: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tres {
    allocated: Option<Vec<Resource>>,
    requested: Option<Vec<Resource>>,
}

#[derive(Deserialize)]
struct Resource {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    count: Value,
}

/// A number, plain or with the flags `set` and `infinite`; `None` where it is not set.
fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Object(fields) => {
            let flag = |name| fields.get(name).and_then(Value::as_bool);
            let is_set = flag("set").unwrap_or(true) && !flag("infinite").unwrap_or(false);
            fields.get("number").filter(|_| is_set).and_then(number)
        }
        Value::String(text) => text.parse().ok(),
        plain => plain.as_i64(),
    }
}

fn text(value: &Value) -> String {
    number(value).map_or(String::new(), |number| number.to_string())
}

/// One text of several, as the names of a state and the features of a constraint.
fn joined(value: &Value, between: &str) -> String {
    match value {
        Value::String(one) => one.clone(),
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(between),
        _ => String::new(),
    }
}

fn tres(resources: Option<&Vec<Resource>>) -> String {
    let one = |resource: &Resource| {
        let name = resource.name.as_deref().filter(|name| !name.is_empty());
        let name = name.map_or(String::new(), |name| format!("/{name}"));
        Some(format!("{}{name}={}", resource.kind, number(&resource.count)?))
    };
    resources.into_iter().flatten().filter_map(one).collect::<Vec<_>>().join(",")
}

/// The id as `sacct -P` writes it: `123`, `123_4` of an array, `123+1` of a heterogeneous job.
fn id(job: &Job) -> String {
    /// Slurm's number for none, which the older plugins write as it is.
    const NONE: i64 = 0xffff_fffe;
    let id_of = |value: &Value| number(value).filter(|id| (1..NONE).contains(id));
    let index_of = |value: &Value| number(value).filter(|index| (0..NONE).contains(index));
    if let Some(array) = &job.array {
        let tasks = array.task.as_str().filter(|tasks| !tasks.is_empty());
        match (id_of(&array.job_id), index_of(&array.task_id), tasks) {
            (Some(array), Some(task), _) => return format!("{array}_{task}"),
            (Some(array), None, Some(tasks)) => return format!("{array}_[{tasks}]"),
            _ => {}
        }
    }
    let het = job.het.as_ref();
    match het.map(|het| (id_of(&het.job_id), index_of(&het.job_offset))) {
        Some((Some(first), Some(offset))) => format!("{first}+{offset}"),
        _ => text(&job.job_id),
    }
}

fn records(object: &[u8]) -> Result<Vec<StringRecord>, RowError> {
    let job: Job = serde_json::from_slice(object).map_err(|error| RowError::json(&error))?;
    let plain = |text: &Option<String>| text.clone().unwrap_or_default();
    // The owner's comment; the others are those of administrators.
    let comment = job.comment.get("job").unwrap_or(&job.comment);
    let resources = job.tres.as_ref();
    let cells = [
        id(&job),
        plain(&job.name),
        plain(&job.user),
        plain(&job.partition),
        text(&job.time.submission),
        text(&job.time.eligible),
        // A job that never started has 0, which is no time.
        text(&job.time.start),
        text(&job.time.end),
        String::new(),
        joined(&job.state.current, ","),
        tres(resources.and_then(|tres| tres.requested.as_ref())),
        tres(resources.and_then(|tres| tres.allocated.as_ref())),
        text(&job.allocation_nodes),
        plain(&job.nodes),
        text(&job.time.elapsed),
        text(&job.time.suspended),
        joined(&job.constraints, "&"),
        joined(comment, " "),
        plain(&job.cluster),
        text(&job.time.limit),
        text(&job.priority),
        plain(&job.account),
    ];
    Ok(vec![StringRecord::from(cells.to_vec())])
}
