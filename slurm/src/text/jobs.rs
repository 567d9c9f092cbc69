//! Jobs as `squeue` prints them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use wattle_common::job::NodeNeeds;
use wattle_common::{NodeId, Timestamp};

use super::TextError;
use super::fields::{Layout, Record};
use super::gres::GresList;
use super::hostlist;
use super::state::state;
use super::values::{instant, memory_mib, time_limit, tres_value};
use crate::view::{SlurmJob, SlurmState};

/// The fields that a [`SlurmJob`] is made of. Their names are the same from Slurm 22.05 to 26.05.
pub const LAYOUT: Layout = Layout {
    formed: &[
        "jobid",
        "jobarrayid",
        "hetjobid",
        "username",
        "userid",
        "account",
        "partition",
        "state",
        "prioritylong",
        "batchflag",
        "requeue",
        "restartcnt",
        "submittime",
        "starttime",
        "endtime",
        "eligibletime",
        "timelimit",
        "numtasks",
        "numnodes",
        "maxnodes",
        "cpus-per-task",
        "mincpus",
        "cpus-per-tres",
        "mem-per-tres",
        "tres-per-node",
        "tres-per-job",
        "tres-per-task",
        "tres-alloc",
        "reqnodes",
        "nodelist",
        "oversubscribe",
        "exit_code",
    ],
    free: &[
        "reason",
        "dependency",
        "feature",
        "reservation",
        "name",
        "comment",
        "admin_comment",
        "stdout",
    ],
};

/// A requeue sets the begin time this far ahead at most: `cred_expire` (120 s) and a second; longer values
/// are an owner's.
const REQUEUE_DELAY_MAX: Duration = Duration::from_secs(300);

/// Most tasks of one array that a view has.
const TASKS_MAX: usize = 10_000;

/// A job of `squeue`, and the nodes and resources by which its GPUs are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedJob {
    /// The job, without the GPUs that it holds.
    pub job: SlurmJob,
    /// Its name for `scontrol show job`, which prints several jobs for the id of an array: `11_2`, `13+1`.
    pub shown_as: String,
    /// The nodes that it holds.
    pub held_nodes: Vec<String>,
    /// The generic resources that it holds on all nodes together.
    pub held_gres: GresList,
}

/// The jobs of a queue. The tasks of an array that have no id of their own yet are printed one by one, with the
/// id of the array: they are one job.
#[derive(Debug, Default)]
pub struct Queue(BTreeMap<u32, QueuedJob>);

impl Queue {
    /// Adds a printed job.
    pub fn add(&mut self, job: QueuedJob) {
        let known = match self.0.entry(job.job.id) {
            Entry::Vacant(free) => {
                free.insert(job);
                return;
            }
            Entry::Occupied(known) => known.into_mut(),
        };
        let task = |name: &str| name.split_once('_')?.1.parse::<u32>().ok();
        let tasks = &mut known.job.unsplit_tasks;
        if tasks.is_empty() {
            tasks.extend(task(&known.shown_as));
        }
        tasks.extend(task(&job.shown_as).filter(|_| tasks.len() < TASKS_MAX));
    }

    /// The jobs in order of their ids.
    #[must_use]
    pub fn into_jobs(self) -> Vec<QueuedJob> {
        let named = |mut job: QueuedJob| {
            if !job.job.unsplit_tasks.is_empty() && !job.shown_as.contains('[') {
                job.job.unsplit_tasks.sort_unstable();
                let (array, _) = job.shown_as.split_once('_').unwrap_or((&job.shown_as, ""));
                job.shown_as = format!("{array}_[{}]", ranges(&job.job.unsplit_tasks));
                job.job.array = Some(job.shown_as.clone());
            }
            job
        };
        self.0.into_values().map(named).collect()
    }
}

/// `1,3-5` of sorted numbers.
fn ranges(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let text = runs.filter_map(|run| match run {
        [only] => Some(only.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
        [] => None,
    });
    text.collect::<Vec<_>>().join(",")
}

/// The job of a record.
///
/// # Errors
/// If a field has another form.
pub fn job(record: &Record<'_>, now: Timestamp) -> Result<QueuedJob, TextError> {
    let get = |name| record.get(name);
    let id: u32 = number("job id", get("jobid"))?;
    let state = state(get("state")).ok_or_else(|| TextError::new("job state", get("state")))?;
    let is_pending = state == SlurmState::Pending;
    let tres = get("tres-alloc");
    // `numnodes` of a pending job is an estimate, or the number of its last run.
    let nodes = match tres_value(tres, "node") {
        Some(nodes) => number("number of nodes", nodes)?,
        None => first_number(get("numnodes")).unwrap_or(1),
    };
    let nodes = nodes.max(1);
    let tasks = first_number(get("numtasks")).unwrap_or(1).max(1);
    let gres = GresList::parse(get("tres-per-node"))?;
    let gpus_per_node = if gres.gpus() > 0 {
        gres.gpus()
    } else {
        let per_job = GresList::parse(get("tres-per-job"))?.gpus();
        let per_task = GresList::parse(get("tres-per-task"))?.gpus();
        per_job.max(per_task.saturating_mul(tasks)).div_ceil(nodes)
    };
    let required = hostlist::expand(get("reqnodes"))?;
    let mut required_nodes: Vec<NodeId> =
        required.iter().filter_map(|n| NodeId::new(n).ok()).collect();
    required_nodes.sort();
    let has_foreign_nodes = required_nodes.len() < required.len();
    let shown_as = get("jobarrayid");
    let submitted_at = instant(get("submittime"))?
        .ok_or_else(|| TextError::new("submission time", get("submittime")))?;
    let restarts = first_number(get("restartcnt")).unwrap_or(0);
    let waits = is_pending
        && (!get("dependency").is_empty()
            || instant(get("eligibletime"))?.is_some_and(|at| {
                at > now && (restarts == 0 || at.since(submitted_at) > REQUEUE_DELAY_MAX)
            }));
    let output = output(get("stdout"), id, shown_as, get("name"), get("username"));
    let job = SlurmJob {
        id,
        array: shown_as.contains('_').then(|| shown_as.to_owned()),
        unsplit_tasks: unsplit_tasks(shown_as)?,
        name: get("name").to_owned(),
        user: get("username").to_owned(),
        uid: number("user id", get("userid"))?,
        account: get("account").to_owned(),
        partition: get("partition").to_owned(),
        state,
        reason: get("reason").to_owned(),
        held: is_pending && get("prioritylong") == "0",
        is_batch: get("batchflag") == "1",
        requeue: get("requeue") == "1",
        restarts,
        submitted_at,
        started_at: instant(get("starttime"))?.filter(|_| !is_pending),
        ended_at: instant(get("endtime"))?.filter(|_| state.is_final()),
        time_limit: time_limit(get("timelimit"))?,
        waits,
        nodes,
        gpus_per_node,
        needs: needs(record, nodes, tasks)?,
        features: get("feature").to_owned(),
        gres: gres.to_string(),
        required_nodes,
        whole_nodes: get("oversubscribe") == "NO",
        is_special: !get("hetjobid").is_empty() && get("hetjobid") != "0"
            || !get("reservation").is_empty()
            || has_foreign_nodes,
        on: Vec::new(),
        exit: exit(get("exit_code")).filter(|_| state.is_final()),
        comment: get("comment").to_owned(),
        admin_comment: get("admin_comment").to_owned(),
        output,
    };
    let holds = !is_pending && !state.is_final();
    Ok(QueuedJob {
        job,
        shown_as: shown_as.to_owned(),
        held_nodes: if holds { hostlist::expand(get("nodelist"))? } else { Vec::new() },
        held_gres: GresList::of_tres(tres)?,
    })
}

/// CPUs and memory of each node. Slurm adds the requests for each CPU, task and node up; those for each GPU
/// are separate.
fn needs(record: &Record<'_>, nodes: u32, tasks: u32) -> Result<NodeNeeds, TextError> {
    let get = |name| record.get(name);
    let tres = get("tres-alloc");
    let cpus_per_gpu = per_gpu(get("cpus-per-tres"))?;
    let memory_mib_per_gpu = per_gpu(get("mem-per-tres"))?;
    let cpus = if cpus_per_gpu > 0 {
        let per_task = first_number(get("cpus-per-task")).unwrap_or(1);
        // Its CPUs for each GPU are usually all that it needs.
        first_number(get("mincpus"))
            .unwrap_or(1)
            .max(per_task.saturating_mul(tasks.div_ceil(nodes)))
    } else {
        first_number(tres_value(tres, "cpu").unwrap_or("1")).unwrap_or(1).div_ceil(nodes)
    };
    let memory_mib = match tres_value(tres, "mem") {
        Some(total) if memory_mib_per_gpu == 0 => memory_mib(total)?.div_ceil(nodes),
        _ => 0,
    };
    Ok(NodeNeeds { cpus, cpus_per_gpu, memory_mib, memory_mib_per_gpu })
}

/// The number in `gres:gpu:1000` or `gres/gpu:1000`, which counts for each GPU.
fn per_gpu(text: &str) -> Result<u32, TextError> {
    Ok(u32::try_from(GresList::parse(text)?.count("gpu")).unwrap_or(u32::MAX))
}

/// The tasks of `11_[2,4-8:2%3]`, which have no id of their own yet.
fn unsplit_tasks(shown_as: &str) -> Result<Vec<u32>, TextError> {
    let Some((_, list)) = shown_as.split_once("_[") else { return Ok(Vec::new()) };
    let invalid = || TextError::new("tasks of an array", shown_as);
    let list = list.split([']', '%']).next().unwrap_or(list);
    let mut tasks = Vec::new();
    for part in list.split(',') {
        // A list that Slurm has cut off ends with `...`.
        if part.starts_with('.') {
            break;
        }
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u32, u32) =
            (low.parse().map_err(|_| invalid())?, high.parse().map_err(|_| invalid())?);
        let step: usize = step.parse().ok().filter(|s| *s > 0).ok_or_else(invalid)?;
        tasks.extend((low..=high).step_by(step).take(TASKS_MAX - tasks.len()));
    }
    Ok(tasks)
}

/// Exit code and signal of `3:0`, or of the wait status `768` that Slurm 22.05 prints.
fn exit(text: &str) -> Option<(i32, i32)> {
    if let Some((code, signal)) = text.split_once(':') {
        return Some((code.parse().ok()?, signal.parse().ok()?));
    }
    let status: i32 = text.parse().ok()?;
    Some(((status >> 8) & 0xff, status & 0x7f))
}

/// The file of the standard output, with the names that Slurm replaces.
fn output(path: &str, id: u32, shown_as: &str, name: &str, user: &str) -> String {
    let (array, task) = shown_as.split_once('_').unwrap_or((shown_as, "4294967294"));
    let mut expanded = String::with_capacity(path.len());
    let mut characters = path.chars();
    while let Some(c) = characters.next() {
        let kind = if c == '%' { characters.next() } else { None };
        match kind {
            Some('j') => expanded.push_str(&id.to_string()),
            Some('A') => expanded.push_str(array),
            Some('a') => expanded.push_str(task),
            Some('x') => expanded.push_str(name),
            Some('u') => expanded.push_str(user),
            Some('%') => expanded.push('%'),
            Some(other) => expanded.extend(['%', other]),
            None => expanded.push(c),
        }
    }
    expanded
}

fn number(what: &'static str, text: &str) -> Result<u32, TextError> {
    text.parse().map_err(|_| TextError::new(what, text))
}

/// The number at the beginning: 2 of `2-4`.
fn first_number(text: &str) -> Option<u32> {
    text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests;
