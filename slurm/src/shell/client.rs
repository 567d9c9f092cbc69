//! The client that runs Slurm's programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use wattle_common::id::GpuIndex;
use wattle_common::job::NodeShare;
use wattle_common::{NodeId, Timestamp};

use super::programs::Programs;
use crate::client::Client;
use crate::command::{Command, Place, SlurmError};
use crate::failure::is_about_absent_job;
use crate::give_back::GiveBack;
use crate::past::PastRun;
use crate::text::fields::{Mark, Record};
use crate::text::gres::index_of_type;
use crate::text::jobs::{self, QueuedJob};
use crate::text::{TextError, held, hostlist, nodes, past};
use crate::view::{SlurmJob, SlurmNode, SlurmState, SlurmView};

/// The options of `squeue` that print every job, with a line for each task of an array.
const EVERY_JOB: [&str; 4] = ["--noheader", "--all", "--array", "--states=all"];
/// Most jobs in one command.
const JOBS_PER_COMMAND: usize = 100;
/// Before every job: September 2001. Slurm refuses the second 0.
const LONG_AGO: Timestamp = Timestamp::from_s(1_000_000_000);
/// The source of a mark that no user can predict.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

/// Runs `squeue`, `scontrol`, `scancel`, `sacct` and `sacctmgr`.
#[derive(Debug, Default)]
pub struct CommandLine {
    programs: Programs,
    /// The GPUs of each job that holds some. They change only if the job starts again or loses nodes.
    held: BTreeMap<u32, Held>,
    /// The names of tasks of arrays: the last task of an array has the array's id, which as a name means
    /// all tasks.
    names: BTreeMap<u32, String>,
    was_rate_limited: bool,
}

/// The GPUs of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    restarts: u32,
    started_at: Option<Timestamp>,
    nodes: Vec<String>,
    on: Vec<NodeShare>,
}

impl Held {
    /// Whether it is that of the present run. A run that ends loses its nodes one by one, which does not
    /// matter.
    fn is_of(&self, queued: &QueuedJob) -> bool {
        let job = &queued.job;
        self.restarts == job.restarts
            && self.started_at == job.started_at
            && (self.nodes == queued.held_nodes || job.state == SlurmState::Completing)
    }
}

impl CommandLine {
    /// A client of these programs.
    #[must_use]
    pub fn new(programs: Programs) -> Self {
        Self { programs, ..Self::default() }
    }

    async fn run(
        &mut self,
        program: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<String, SlurmError> {
        let printed = self.programs.run(program, arguments, variables).await?;
        if printed.is_rate_limited && !std::mem::replace(&mut self.was_rate_limited, true) {
            tracing::warn!(
                "Slurm limits the request rate, which delays the starts of jobs: raise rl_refill_rate in \
                 SlurmctldParameters"
            );
        }
        Ok(printed.output)
    }

    /// The jobs that `squeue` prints with these arguments, and those that are not readable.
    async fn queued(
        &mut self,
        arguments: &[&str],
        now: Timestamp,
    ) -> Result<(Vec<QueuedJob>, BTreeSet<u32>), SlurmError> {
        let command = || [&["squeue"], arguments].concat().join(" ");
        let wrong =
            |error: TextError| SlurmError::Output { command: command(), error: error.to_string() };
        let mark = mark(Path::new(RANDOM)).map_err(wrong)?;
        // In the environment, which other users cannot read.
        let format = jobs::LAYOUT.format(&mark);
        let output = self.run("squeue", arguments, &[("SQUEUE_FORMAT2", &format)]).await?;
        let mut queued = jobs::Queue::default();
        let mut unreadable = BTreeSet::new();
        for record in jobs::LAYOUT.records(&output, &mark).map_err(wrong)? {
            let record = record.map_err(wrong)?;
            match jobs::job(&record, now) {
                Ok(job) => queued.add(job),
                Err(error) => {
                    let id = id_of(&record).map_err(wrong)?;
                    tracing::error!(job = id, %error, "job not readable; nothing is done with it");
                    unreadable.insert(id);
                }
            }
        }
        Ok((queued.into_jobs(), unreadable))
    }

    /// The GPUs that a job holds.
    async fn on(
        &mut self,
        queued: &QueuedJob,
        nodes: &BTreeMap<NodeId, SlurmNode>,
    ) -> Result<Vec<NodeShare>, SlurmError> {
        let job = &queued.job;
        if queued.held_nodes.is_empty() || queued.held_gres.gpus() == 0 {
            return Ok(Vec::new());
        }
        if let Some(held) = self.held.get(&job.id).filter(|held| held.is_of(queued)) {
            return Ok(held.on.clone());
        }
        let shown =
            self.run("scontrol", &["show", "job", "--details", &queued.shown_as], &[]).await;
        let shown = match shown {
            // It has ended since.
            Err(error) if is_about_absent_job(&error) => String::new(),
            shown => shown?,
        };
        let on = match held::held(&shown, job.id, &job.name) {
            Ok(on) if !on.is_empty() => shares(on),
            // Its owner has changed its name since, or it has ended: it is read again in the next round.
            _ => return Ok(possible_gpus(queued, nodes)),
        };
        let held = Held {
            restarts: job.restarts,
            started_at: job.started_at,
            nodes: queued.held_nodes.clone(),
            on: on.clone(),
        };
        self.held.insert(job.id, held);
        Ok(on)
    }

    /// The job with this id now.
    async fn job(&mut self, id: u32) -> Result<SlurmJob, SlurmError> {
        let text = id.to_string();
        let arguments = [&EVERY_JOB[..], &["--jobs", text.as_str()]].concat();
        let (queued, _) = self.queued(&arguments, Timestamp::EPOCH).await?;
        let job = queued.into_iter().map(|queued| queued.job).find(|job| job.id == id);
        job.ok_or_else(|| SlurmError::Refused {
            command: arguments.join(" "),
            error: format!("no job has the id {id}"),
        })
    }

    /// A job's name in commands.
    fn name(&self, id: u32) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    async fn scontrol(&mut self, arguments: &[&str]) -> Result<(), SlurmError> {
        self.run("scontrol", arguments, &[]).await.map(drop)
    }

    /// One command for each 100 of the jobs.
    async fn hold(&mut self, jobs: &[String]) -> Result<(), SlurmError> {
        for jobs in jobs.chunks(JOBS_PER_COMMAND) {
            ended_is_fine(self.scontrol(&["hold", &jobs.join(",")]).await)?;
        }
        Ok(())
    }

    /// Restores the submitted request of a pending job and releases it, after [`Client::view`].
    ///
    /// # Errors
    /// [`SlurmError`]; the job is then not released.
    pub async fn give_back(&mut self, job: &GiveBack) -> Result<(), SlurmError> {
        let before = self.job(job.id).await?;
        if before.admin_comment != job.admin_comment || before.state != SlurmState::Pending {
            return Err(not_applied(job.id, "changed meanwhile", "the same job, pending"));
        }
        let name = self.name(job.id);
        let id = format!("JobId={name}");
        if let Some(gres) = &job.gres {
            // Slurm 22.05 refuses a number without types after types.
            self.scontrol(&["update", &id, "TresPerNode="]).await?;
            let untyped = self.scontrol(&["update", &id, &format!("Gres={gres}")]).await;
            if let Err(SlurmError::Refused { .. }) = untyped {
                let typed = format!("Gres={}", job.typed_gres);
                self.scontrol(&["update", &id, &typed]).await?;
            } else {
                untyped?;
            }
        }
        let nodes = format!("NumNodes={}", job.nodes);
        self.scontrol(&["update", &id, "ReqNodeList=", &nodes]).await?;
        let after = self.job(job.id).await?;
        let restored = [job.gres.as_deref(), Some(job.typed_gres.as_str())];
        if job.gres.is_some() && !restored.contains(&Some(after.gres.as_str())) {
            let (found, wanted) = (format!("`{}`", after.gres), format!("`{}`", job.typed_gres));
            return Err(not_applied(job.id, &found, &wanted));
        }
        if job.release { self.scontrol(&["release", &name]).await } else { Ok(()) }
    }

    async fn place(&mut self, place: &Place) -> Result<(), SlurmError> {
        let before = self.job(place.id).await?;
        if before.admin_comment != place.admin_comment {
            let (found, wanted) = (&before.admin_comment, &place.admin_comment);
            return Err(not_applied(place.id, &format!("`{found}`"), &format!("`{wanted}`")));
        }
        if !before.held && difference(&before, place).is_none() {
            return Ok(());
        }
        if before.state != SlurmState::Pending || !before.held {
            let found = format!("the state {:?}, {}", before.state, before.reason);
            return Err(not_applied(place.id, &found, "being held"));
        }
        let name = self.name(place.id);
        let id = format!("JobId={name}");
        let nodes = hostlist::compress(place.nodes.iter().map(NodeId::as_str));
        let mut settings = vec![
            format!("ReqNodeList={nodes}"),
            format!("NumNodes={count}-{count}", count = place.nodes.len()),
            "StartTime=now".to_owned(),
        ];
        settings.extend(place.extra.iter().cloned());
        if !place.gres.is_empty() {
            if !before.gres.is_empty() {
                // Slurm adds the new types to the old ones, or refuses them. Equal ones are set again, too:
                // Slurm 22.05 may keep a type of the last run, with which the job never starts.
                self.scontrol(&["update", &id, "TresPerNode="]).await?;
            }
            settings.insert(0, format!("Gres={}", place.gres));
        }
        let mut arguments = vec!["update", id.as_str()];
        arguments.extend(settings.iter().map(String::as_str));
        self.scontrol(&arguments).await?;
        let after = self.job(place.id).await?;
        if after.admin_comment != place.admin_comment || !after.held {
            return Err(not_applied(place.id, "changed meanwhile", "the same job, held"));
        }
        if let Some((found, wanted)) = difference(&after, place) {
            return Err(not_applied(place.id, &found, &wanted));
        }
        self.scontrol(&["release", &name]).await
    }
}

impl Client for CommandLine {
    async fn view(&mut self, now: Timestamp) -> Result<SlurmView, SlurmError> {
        let (queued, unreadable) = self.queued(&EVERY_JOB, now).await?;
        let shown = self.run("scontrol", &["show", "node", "--details"], &[]).await?;
        let shown = nodes::nodes(&shown).map_err(|error| SlurmError::Output {
            command: "scontrol show node".to_owned(),
            error: error.to_string(),
        })?;
        let nodes = nodes::with_gpus(&shown);
        self.names = queued.iter().filter_map(name_of_task).collect();
        let ids: BTreeSet<u32> = queued.iter().map(|queued| queued.job.id).collect();
        self.held.retain(|id, _| ids.contains(id));
        let mut jobs = BTreeMap::new();
        for mut queued in queued {
            queued.job.on = self.on(&queued, &nodes).await?;
            jobs.insert(queued.job.id, queued.job);
        }
        Ok(SlurmView { at: now, jobs, nodes, unreadable })
    }

    async fn execute(&mut self, command: &Command) -> Result<(), SlurmError> {
        match command {
            Command::Hold(ids) => {
                let names: Vec<String> = ids.iter().map(|id| self.name(*id)).collect();
                self.hold(&names).await
            }
            Command::SplitArray { id, tasks } => {
                self.hold(&tasks.iter().map(|task| format!("{id}_{task}")).collect::<Vec<_>>())
                    .await
            }
            Command::Place(place) => self.place(place).await,
            Command::Checkpoint { id, signal } => {
                let signal = format!("--signal={signal}");
                let name = self.name(*id);
                let sent = self.run("scancel", &[&signal, "--batch", &name], &[]).await;
                ended_is_fine(sent.map(drop))
            }
            Command::RequeueHold(id) => {
                let name = self.name(*id);
                self.scontrol(&["requeuehold", &name]).await
            }
            Command::Cancel(id) => {
                let name = self.name(*id);
                ended_is_fine(self.run("scancel", &[&name], &[]).await.map(drop))
            }
            Command::SetAdminComment { id, text } => {
                // slurmctld writes its own comment with the end of a job: after that of Wattle if slurmdbd was
                // away.
                let runs = self.past(&[*id], LONG_AGO).await?;
                if runs.last().is_none_or(|run| run.ended_at.is_none()) {
                    return Err(SlurmError::NotAccounted { id: *id });
                }
                let (id, text) =
                    (format!("jobid={}", self.name(*id)), format!("AdminComment={text}"));
                let arguments = ["--immediate", "modify", "job", "where", &id, "set", &text];
                self.run("sacctmgr", &arguments, &[]).await.map(drop)
            }
        }
    }

    async fn past(&mut self, ids: &[u32], since: Timestamp) -> Result<Vec<PastRun>, SlurmError> {
        let since = format!("--starttime=uts{}", since.as_us() / 1_000_000);
        let format = format!("--format={}", past::FORMAT);
        let mut runs = Vec::new();
        for ids in ids.chunks(JOBS_PER_COMMAND) {
            let list = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let jobs = format!("--jobs={list}");
            let arguments = ["--duplicates", "--parsable2", "--noheader", &since, &format, &jobs];
            let output = self.run("sacct", &arguments, &[]).await?;
            let found = past::runs(&output).map_err(|error| SlurmError::Output {
                command: format!("sacct {jobs}"),
                error: error.to_string(),
            })?;
            // Slurm selects the tasks of an array by the array's id, too.
            runs.extend(found.into_iter().filter(|run| ids.contains(&run.id)));
        }
        Ok(runs)
    }
}

/// The name of a task of an array, or of several that share an id. An ended array with a limit of running tasks
/// has none.
fn name_of_task(queued: &QueuedJob) -> Option<(u32, String)> {
    let name = &queued.shown_as;
    let is_task = name.contains('_') && !name.contains('%');
    is_task.then(|| (queued.job.id, name.clone()))
}

/// What the job has instead of the placement; `None` if it agrees.
fn difference(job: &SlurmJob, place: &Place) -> Option<(String, String)> {
    let count = u32::try_from(place.nodes.len()).unwrap_or(u32::MAX);
    if !place.gres.is_empty() && job.gres != place.gres {
        Some((format!("the resources `{}`", job.gres), format!("`{}`", place.gres)))
    } else if job.required_nodes != place.nodes {
        let list = |nodes: &[NodeId]| hostlist::compress(nodes.iter().map(NodeId::as_str));
        Some((
            format!("the nodes `{}`", list(&job.required_nodes)),
            format!("`{}`", list(&place.nodes)),
        ))
    } else if job.nodes != count {
        Some((format!("{} nodes", job.nodes), count.to_string()))
    } else {
        None
    }
}

fn not_applied(id: u32, found: &str, wanted: &str) -> SlurmError {
    SlurmError::NotApplied { id, found: found.to_owned(), wanted: wanted.to_owned() }
}

/// A job that has ended needs no hold, no signal and no cancellation.
fn ended_is_fine(result: Result<(), SlurmError>) -> Result<(), SlurmError> {
    match result {
        Err(error) if is_about_absent_job(&error) => Ok(()),
        result => result,
    }
}

fn shares(on: Vec<(String, Vec<GpuIndex>)>) -> Vec<NodeShare> {
    let share = |(name, gpus): (String, Vec<GpuIndex>)| {
        Some(NodeShare { node: NodeId::new(&name).ok()?, gpus })
    };
    on.into_iter().filter_map(share).filter(|share| !share.gpus.is_empty()).collect()
}

/// The GPUs that a job may hold, where Slurm has not shown them: those of its types, or all of its nodes.
fn possible_gpus(queued: &QueuedJob, nodes: &BTreeMap<NodeId, SlurmNode>) -> Vec<NodeShare> {
    let gres = &queued.held_gres;
    let kinds = gres.names().flat_map(|name| gres.types(name).map(|(kind, _)| index_of_type(kind)));
    let typed: Option<BTreeSet<GpuIndex>> = kinds.collect();
    let share = |name: &String| {
        let node = NodeId::new(name).ok()?;
        let all = &nodes.get(&node)?.gpus;
        let gpus = all.iter().filter(|gpu| typed.as_ref().is_none_or(|typed| typed.contains(gpu)));
        Some(NodeShare { gpus: gpus.copied().collect(), node })
    };
    queued.held_nodes.iter().filter_map(share).collect()
}

fn id_of(record: &Record<'_>) -> Result<u32, TextError> {
    let id = record.get("jobid");
    id.parse().map_err(|_| TextError::new("job id", id))
}

fn mark(random: &Path) -> Result<Mark, TextError> {
    let text = std::fs::read_to_string(random).unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    Mark::new(&digits)
}
