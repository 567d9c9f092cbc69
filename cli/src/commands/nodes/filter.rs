//! Which GPUs `wattle nodes` lists.

use std::collections::BTreeSet;

use clap::Args;
use wattle_common::messages::AppliedGpu;
use wattle_common::{JobId, NodeId};
use wattle_view::node::{Node, STATES};

/// States by what a GPU does, beside those of the column STATE.
const USES: [&str; 3] = ["busy", "idle", "closed"];

/// Conditions that each listed GPU meets.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only the GPUs of this node; may be repeated
    #[arg(long = "node", value_name = "NODE")]
    nodes: Vec<NodeId>,
    /// Only GPUs in this state: busy (with jobs), idle, closed (it gets no jobs) or one of the column STATE; may be
    /// repeated
    #[arg(long = "state", value_name = "STATE", value_parser = state)]
    states: Vec<&'static str>,
    /// Only GPUs with a job of this user
    #[arg(long, value_name = "USER")]
    pub(super) user: Option<String>,
}

/// A state by its name; its words may be joined by `-`, and letters may be of either case.
fn state(text: &str) -> Result<&'static str, String> {
    let all = || USES.iter().chain(&STATES);
    let is_same = |known: &&&'static str| known.eq_ignore_ascii_case(&text.replace('-', " "));
    all().find(is_same).copied().ok_or_else(|| {
        let names: Vec<String> = all().map(|name| name.replace(' ', "-")).collect();
        format!("give one of {}", names.join(", "))
    })
}

impl Filter {
    /// Whether it has a condition.
    pub(super) const fn is_given(&self) -> bool {
        !self.nodes.is_empty() || !self.states.is_empty() || self.user.is_some()
    }

    /// A named node that is not among these.
    pub(super) fn unknown<'a>(&'a self, known: &BTreeSet<NodeId>) -> Option<&'a NodeId> {
        self.nodes.iter().find(|node| !known.contains(*node))
    }

    /// The nodes with the GPUs that meet every condition. `jobs`: those of the named user.
    pub(super) fn only(&self, nodes: &[Node], jobs: &BTreeSet<JobId>) -> Vec<Node> {
        let is_named = |node: &&Node| self.nodes.is_empty() || self.nodes.contains(&node.node);
        let mut kept: Vec<Node> = nodes.iter().filter(is_named).cloned().collect();
        if self.states.is_empty() && self.user.is_none() {
            return kept;
        }
        for node in &mut kept {
            let whole = node.clone();
            let keeps = |gpu: &AppliedGpu| self.keeps(&whole, gpu, jobs);
            let Some(report) = &mut node.power else { continue };
            report.gpus.retain(keeps);
            let listed: BTreeSet<u32> = report.gpus.iter().map(|gpu| gpu.gpu).collect();
            let readings = node.summary.iter_mut().map(|summary| &mut summary.gpus);
            readings.for_each(|readings| readings.retain(|reading| listed.contains(&reading.gpu)));
        }
        kept.retain(|node| node.gpus().next().is_some());
        kept
    }

    fn keeps(&self, node: &Node, gpu: &AppliedGpu, jobs: &BTreeSet<JobId>) -> bool {
        let on = node.jobs_on(gpu.gpu);
        let is_in = |state: &&'static str| match *state {
            "busy" => !on.is_empty(),
            "idle" => {
                let may = gpu.healthy && node.sleep.is_none() && node.accepts_jobs(gpu);
                may && on.is_empty()
            }
            "closed" => node.sleep.is_none() && !node.accepts_jobs(gpu),
            state => node.state(gpu) == state,
        };
        let is_users = || on.iter().any(|job| jobs.contains(*job));
        (self.states.is_empty() || self.states.iter().any(is_in))
            && (self.user.is_none() || is_users())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use wattle_testkit as testkit;

    use super::*;
    use crate::commands::nodes::tests::two_nodes;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        filter: Filter,
    }

    fn filter(words: &[&str]) -> Result<Filter, clap::Error> {
        Line::try_parse_from([&["nodes"], words].concat()).map(|line| line.filter)
    }

    /// The listed GPUs: one with two jobs, an idle and a lost one of `n0`, and a sleeping one of `n1`.
    fn gpus(words: &[&str]) -> Vec<String> {
        let nodes = filter(words).unwrap().only(&two_nodes(), &[testkit::job("resnet-2")].into());
        let name = |node: &Node, gpu: &AppliedGpu| format!("{}:{}", node.node, gpu.gpu);
        let of = |node| Node::gpus(node).map(move |(gpu, _)| name(node, gpu));
        nodes.iter().flat_map(of).collect()
    }

    #[test]
    fn gpus_meet_every_condition() {
        assert_eq!(gpus(&[]), ["n0:0", "n0:1", "n0:2", "n1:0"]);
        assert_eq!(gpus(&["--node", "n1"]), ["n1:0"]);
        assert_eq!(gpus(&["--node", "n1", "--node", "n0"]).len(), 4);
        assert_eq!(gpus(&["--state", "ok"]), ["n0:0", "n0:1"]);
        assert_eq!(gpus(&["--state", "busy"]), ["n0:0"]);
        assert_eq!(gpus(&["--state", "idle"]), ["n0:1"]);
        assert_eq!(gpus(&["--state", "closed"]), ["n0:2"]);
        assert_eq!(gpus(&["--state", "lost", "--state", "asleep"]), ["n0:2", "n1:0"]);
        assert_eq!(gpus(&["--state", "entering-sleep"]), [""; 0]);
        assert_eq!(gpus(&["--user", "ada"]), ["n0:0"]);
        assert_eq!(gpus(&["--user", "ada", "--state", "idle"]), [""; 0]);
        assert_eq!(gpus(&["--node", "n1", "--state", "busy"]), [""; 0]);
    }

    #[test]
    fn readings_of_other_gpus_are_left_out() {
        let nodes = filter(&["--state", "idle"]).unwrap().only(&two_nodes(), &BTreeSet::new());
        let readings = &nodes[0].summary.as_ref().unwrap().gpus;
        assert_eq!(readings.iter().map(|reading| reading.gpu).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn unknown_states_are_refused_and_the_known_ones_named() {
        let error = filter(&["--state", "sleepy"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let error = error.to_string();
        let names = "give one of busy, idle, closed, ok, lost, fault, driver, returns, ECC, repair";
        assert!(error.contains(names) && error.contains("wake-failed"), "{error}");
        assert!(filter(&["--state", "ecc"]).is_ok());
    }

    #[test]
    fn unknown_nodes_are_found() {
        let known = [testkit::node("n0"), testkit::node("n1")].into();
        let unknown = |words: &[&str]| filter(words).unwrap().unknown(&known).cloned();
        assert_eq!(unknown(&["--node", "n0", "--node", "n9"]), Some(testkit::node("n9")));
        assert_eq!(unknown(&["--node", "n0"]), None);
        assert_eq!(unknown(&[]), None);
    }
}
