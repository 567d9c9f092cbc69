//! `wattle logs`: the output of a job, requested from the launchers of its nodes.
//!
//! It is the same for nodes elsewhere: the launchers answer over the bus. The output of a job that Slurm runs is
//! a file of its owner, which is read here if this machine has it.

mod merge;
mod site_output;

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use wattle_common::messages::{JobRecord, OutputReply, ReadOutput};
use wattle_common::subject::{Bucket, Reporter, Subject};
use wattle_common::text::{shown, shown_but};
use wattle_common::{JobId, NodeId};
use wattle_runtime::bus::{Bus, BusError};

use self::merge::Merge;
use crate::connection::{Connection, block_on};
use crate::job_name::JobName;
use crate::job_records;
use crate::output::{note, usage};

/// Interval at which new output is requested, wall time.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);

/// Print the output of a job.
#[derive(Args)]
#[command(
    after_help = "All attempts are printed, the oldest first. Lines of an attempt on several nodes begin with the node.\n\
        The output of a job of Slurm is the file that Slurm names, if this machine has it.\n\n\
        Examples:\n  wattle logs train-18f2c\n  wattle logs -f train\n  wattle logs --attempt 2 --node n1 train-18f2c"
)]
pub(crate) struct Logs {
    /// The job, as in `wattle jobs`, or a prefix that only it has
    job: JobName,
    /// Print new output until the job ends
    #[arg(short, long)]
    follow: bool,
    /// Only this attempt, from 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,
    /// Only this node
    #[arg(long, value_name = "NODE")]
    node: Option<NodeId>,
    #[command(flatten)]
    connection: Connection,
}

/// Reads the output of a job.
struct Reader<'a> {
    bus: &'a Bus,
    job: JobId,
    merge: Merge,
    /// Nodes whose launcher did not answer the last request.
    silent: BTreeSet<NodeId>,
}

impl Reader<'_> {
    /// The next part of the output on a node; `None` without an answer.
    async fn part(&self, node: &NodeId) -> anyhow::Result<Option<Vec<u8>>> {
        let (cluster, requester) = (self.bus.cluster().clone(), self.bus.requester().clone());
        let subject = Subject::of_output(cluster, node.clone(), requester);
        let body = ReadOutput { job: self.job.clone(), offset: self.merge.offset(node) };
        match self.bus.request(&subject, &body).await {
            Ok(OutputReply::Output { data, .. }) => Ok(Some(data)),
            Ok(OutputReply::Refused { error }) => anyhow::bail!("{node}: {error}"),
            Err(BusError::NoResponder { .. } | BusError::Timeout { .. }) => Ok(None),
            Err(error) => Err(error).context("the output cannot be read"),
        }
    }

    /// Prints the output that is new on these nodes.
    async fn print(&mut self, nodes: &[NodeId]) -> anyhow::Result<()> {
        self.silent.clear();
        self.merge.look_again();
        loop {
            let mut received = false;
            for node in nodes {
                if self.silent.contains(node) || !self.merge.needs(node) {
                    continue;
                }
                match self.part(node).await? {
                    Some(data) => {
                        received |= !data.is_empty();
                        self.merge.push(node, &data);
                    }
                    None => {
                        self.silent.insert(node.clone());
                        self.merge.push(node, b"");
                    }
                }
            }
            let out = self.merge.take(false);
            write(&out)?;
            if !received && out.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Writes output of a job: to a file as it is, to a terminal without what could take it over.
fn write(bytes: &[u8]) -> anyhow::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        out.write_all(for_terminal(&String::from_utf8_lossy(bytes)).as_bytes())?;
    } else {
        out.write_all(bytes)?;
    }
    Ok(out.flush()?)
}

/// The output of a job for a terminal: of what a terminal obeys, colours and carriage returns remain, as programs
/// use them for progress.
fn for_terminal(text: &str) -> String {
    let (mut safe, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\x1b') {
        safe.push_str(&shown_but(&rest[..at], |c| matches!(c, '\n' | '\t' | '\r')));
        let colour = rest[at..].strip_prefix("\x1b[").and_then(|sequence| {
            let end = sequence.find(|c: char| !(c.is_ascii_digit() || c == ';'))?;
            sequence[end..].starts_with('m').then_some(at + 2 + end + 1)
        });
        let end = colour.unwrap_or(at + 1);
        match colour {
            Some(end) => safe.push_str(&rest[at..end]),
            None => safe.push_str(&shown(&rest[at..end])),
        }
        rest = &rest[end..];
    }
    safe.push_str(&shown_but(rest, |c| matches!(c, '\n' | '\t' | '\r')));
    safe
}

/// The nodes that may have output: every node with a launcher, or for people without access to the
/// reports those on which the job has run.
async fn nodes(bus: &Bus, record: Option<&JobRecord>) -> anyhow::Result<Vec<NodeId>> {
    if !job_records::reads_storage(bus) {
        return Ok(record.map(JobRecord::output_nodes).into_iter().flatten().collect());
    }
    let keys = bus.bucket(Bucket::Actual).await?.keys().await?;
    let launcher = |(reporter, node)| (reporter == Reporter::Launcher).then_some(node);
    Ok(keys.iter().filter_map(|key| Reporter::parse(key).and_then(launcher)).collect())
}

/// Notes on output that could not be read.
fn explain_missing(reader: &Reader<'_>, record: Option<&JobRecord>) {
    for node in &reader.silent {
        note(&format!("{node}: its launcher does not answer; the output there is missing"));
    }
    if !reader.merge.is_empty() {
        return;
    }
    match record {
        Some(record) if record.attempt == 0 => {
            note(&format!("{} has not started; its phase is {}", reader.job, record.phase));
        }
        Some(record) => {
            let paths: BTreeSet<&String> = record.log_paths.iter().collect();
            note(&format!("no output of {} on the nodes that answer", reader.job));
            paths.into_iter().for_each(|path| note(&format!("its launcher reported {path}")));
        }
        None => note(&format!("no output of {}", reader.job)),
    }
}

/// Runs the command.
pub(crate) fn run(command: &Logs) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        let job = command.job.resolve(&bus).await?;
        let record = job_records::one(&bus, &job).await?;
        if let Some(record) = record.as_ref().filter(|record| record.spec.site.is_some()) {
            return site_output::print(&bus, record, command).await;
        }
        let known = nodes(&bus, record.as_ref()).await?;
        if let Some(node) = command.node.as_ref().filter(|node| !known.contains(node)) {
            return Err(usage(format!("no node `{node}`; `wattle nodes` lists the nodes")));
        }
        let merge = Merge::new(&job, command.attempt);
        let only = |node: &NodeId| command.node.as_ref().is_none_or(|only| only == node);
        let mut reader = Reader { bus: &bus, job, merge, silent: BTreeSet::new() };
        let mut lost = false;
        loop {
            // The phase is read before the output: an ended job writes no more.
            let round = async {
                let now = job_records::one(&bus, &reader.job).await?;
                let mut known = nodes(&bus, now.as_ref()).await?;
                known.retain(only);
                let on_several = now.as_ref().filter(|record| {
                    record.placement.as_ref().is_some_and(|placement| placement.node_count() > 1)
                });
                if let Some(record) = on_several {
                    reader.merge.attempt_has_several_nodes(record.attempt);
                }
                reader.print(&known).await?;
                anyhow::Ok(now)
            };
            let now = match round.await {
                Ok(now) => now,
                Err(error) if command.follow && !bus.is_connected() => {
                    if !std::mem::replace(&mut lost, true) {
                        note(&format!("bus lost, reconnecting: {error:#}"));
                    }
                    tokio::time::sleep(FOLLOW_EVERY).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if std::mem::take(&mut lost) {
                note("bus connected again");
            }
            let ended = now.as_ref().is_none_or(|record| record.phase.is_final());
            if !command.follow || ended {
                write(&reader.merge.take(true))?;
                explain_missing(&reader, now.as_ref());
                return Ok(());
            }
            tokio::time::sleep(FOLLOW_EVERY).await;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::for_terminal;

    #[test]
    fn output_on_a_terminal_keeps_colours_and_loses_other_sequences() {
        let plain = "step 1\r\x1b[1;32mdone\x1b[0m\t\u{e9}\n";
        assert_eq!(for_terminal(plain), plain);
        for (hostile, expected) in [
            ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
            ("\x1b[2J\x1b[31mred", "\\u{1b}[2J\x1b[31mred"),
            ("\x1b", "\\u{1b}"),
            ("\x1b[31", "\\u{1b}[31"),
            ("\u{9b}2J\x08", "\\u{9b}2J\\u{8}"),
        ] {
            assert_eq!(for_terminal(hostile), expected);
        }
    }
}
