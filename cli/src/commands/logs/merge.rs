//! The output of a job on its nodes, merged in the order of the attempts.
//!
//! A launcher writes one file for each job and node, in which a header line begins each attempt
//! (`--- JOB attempt 2 on NODE GPU 0,1 at TIME ---`). An attempt on one node is printed as it is. Lines
//! of an attempt on several nodes begin with the name of their node, and only complete lines are
//! printed, so the nodes' output never mixes within a line.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::{JobId, NodeId};
use wattle_launcher::log;

/// Longest line of several nodes that is held back until its end arrives, bytes. A longer one is
/// divided.
const LINE_LEN_MAX: usize = 64 << 10;

/// The output of one node.
#[derive(Debug, Default)]
struct Source {
    /// Bytes received and not yet printed.
    buffer: Vec<u8>,
    /// Bytes received.
    received: u64,
    /// Whether the launcher had no more output at the last request.
    drained: bool,
    /// The attempt of the last header line; 0 before the first.
    attempt: u32,
    /// Whether a part of the current line is printed.
    within_line: bool,
}

/// The next bytes of a source that can be printed: a line, or the beginning of one.
struct Unit {
    len: usize,
    attempt: u32,
}

/// Merges the output of the nodes of one job.
#[derive(Debug)]
pub(crate) struct Merge {
    job: JobId,
    /// The beginning of each header line up to the number of the attempt.
    header: String,
    sources: BTreeMap<NodeId, Source>,
    only: Option<u32>,
    /// Attempts known to have several nodes.
    several: BTreeSet<u32>,
}

impl Merge {
    /// The output of a job; of one attempt only if given.
    pub(crate) fn new(job: &JobId, only: Option<u32>) -> Self {
        let header = format!("--- {job} attempt ");
        Self { job: job.clone(), header, sources: BTreeMap::new(), only, several: BTreeSet::new() }
    }

    /// Declares that an attempt has several nodes.
    pub(crate) fn attempt_has_several_nodes(&mut self, attempt: u32) {
        self.several.insert(attempt);
    }

    /// Whether no node has any output.
    pub(crate) fn is_empty(&self) -> bool {
        self.sources.values().all(|source| source.received == 0)
    }

    /// The first byte that is missing of a node.
    pub(crate) fn offset(&self, node: &NodeId) -> u64 {
        self.sources.get(node).map_or(0, |source| source.received)
    }

    /// Whether the node's next bytes are needed.
    pub(crate) fn needs(&self, node: &NodeId) -> bool {
        self.sources.get(node).is_none_or(|source| !source.drained && !source.has_line())
    }

    /// Requests every node again.
    pub(crate) fn look_again(&mut self) {
        self.sources.values_mut().for_each(|source| source.drained = false);
    }

    /// Adds the next bytes of a node; none if it has no more now.
    pub(crate) fn push(&mut self, node: &NodeId, data: &[u8]) {
        let source = self.sources.entry(node.clone()).or_default();
        source.buffer.extend_from_slice(data);
        source.received += data.len() as u64;
        source.drained = data.is_empty();
    }

    /// The bytes that can be printed; all of them if the job writes no more.
    pub(crate) fn take(&mut self, finished: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let width = self.sources.keys().map(|node| node.as_str().len()).max().unwrap_or(0);
        loop {
            // The order of the attempts is known once every source has a line or no more output.
            if self.sources.values().any(|source| !source.drained && !source.has_line()) {
                return out;
            }
            let units: Vec<(NodeId, Unit)> = self
                .sources
                .iter()
                .filter_map(|(node, source)| {
                    Some((node.clone(), self.unit(node, source, finished)?))
                })
                .collect();
            let Some((node, unit)) = units.iter().min_by_key(|(_, unit)| unit.attempt) else {
                return out;
            };
            if units.iter().filter(|(_, other)| other.attempt == unit.attempt).count() > 1 {
                self.several.insert(unit.attempt);
            }
            let several = self.several.contains(&unit.attempt);
            let wanted = self.only.is_none_or(|only| only == unit.attempt);
            let source = self.sources.get_mut(node).expect("listed above");
            source.attempt = unit.attempt;
            let line: Vec<u8> = source.buffer.drain(..unit.len).collect();
            let ends = line.ends_with(b"\n");
            if wanted && several && !source.within_line {
                out.extend(format!("{:<width$} | ", node.as_str()).into_bytes());
            }
            if wanted {
                out.extend(&line);
            }
            if wanted && several && !ends {
                out.push(b'\n');
            }
            source.within_line = !ends && !several;
        }
    }

    /// The next unit of a source.
    fn unit(&self, node: &NodeId, source: &Source, finished: bool) -> Option<Unit> {
        let line = source.buffer.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        if let Some(len) = line {
            let line = std::str::from_utf8(&source.buffer[..len]).ok();
            let line = line.filter(|_| !source.within_line).map(str::trim_end);
            let header = line.and_then(|line| log::attempt_of(line, &self.job, node));
            return Some(Unit { len, attempt: header.unwrap_or(source.attempt) });
        }
        let len = source.buffer.len();
        if len == 0 {
            return None;
        }
        // The beginning of a line is printed at once, unless it may become a header line or belongs
        // to an attempt on several nodes.
        let header = self.header.as_bytes();
        let may_be_header = !source.within_line && {
            let shared = len.min(header.len());
            source.buffer[..shared] == header[..shared]
        };
        let held_back = may_be_header || self.several.contains(&source.attempt);
        (finished || !held_back || len >= LINE_LEN_MAX)
            .then_some(Unit { len, attempt: source.attempt })
    }
}

impl Source {
    fn has_line(&self) -> bool {
        self.buffer.contains(&b'\n')
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn header(attempt: u32, node: &str) -> String {
        format!("--- a attempt {attempt} on {node} GPU 0 at 2026-05-03T09:15:00Z ---\n")
    }

    /// Merges complete files, received in parts of this size.
    fn merged(files: &[(&str, &str)], part: usize, only: Option<u32>) -> String {
        let mut merge = Merge::new(&JobId::new("a").unwrap(), only);
        let mut out = Vec::new();
        loop {
            let mut received = false;
            for (name, file) in files {
                let node = node(name);
                if merge.needs(&node) {
                    let rest = &file.as_bytes()[merge.offset(&node) as usize..];
                    merge.push(&node, &rest[..rest.len().min(part)]);
                    received = true;
                }
            }
            out.extend(merge.take(false));
            if !received {
                out.extend(merge.take(true));
                return String::from_utf8(out).unwrap();
            }
        }
    }

    #[test]
    fn output_of_one_node_is_printed_as_it_is() {
        let file = format!("{}step 1\nstep 2 \x1b[1m{}rest", header(1, "n0"), header(2, "n0"));
        for part in [1, 7, 1_000] {
            assert_eq!(merged(&[("n0", &file)], part, None), file, "{part}");
        }
        assert_eq!(merged(&[("n0", &file), ("n1", "")], 9, None), file);
    }

    #[test]
    fn attempts_of_a_moved_job_are_in_order() {
        let n0 = format!("{}one\n{}three\n", header(1, "n0"), header(3, "n0"));
        let n1 = format!("{}two\n", header(2, "n1"));
        let expected = [header(1, "n0"), "one\n".into(), header(2, "n1"), "two\n".into()].concat()
            + &header(3, "n0")
            + "three\n";
        for part in [1, 7, 1_000] {
            assert_eq!(merged(&[("n0", &n0), ("n1", &n1)], part, None), expected, "{part}");
        }
        let second = header(2, "n1") + "two\n";
        assert_eq!(merged(&[("n0", &n0), ("n1", &n1)], 5, Some(2)), second);
    }

    #[test]
    fn beginning_of_a_line_is_printed_at_once_on_one_node() {
        let mut merge = Merge::new(&JobId::new("a").unwrap(), None);
        merge.push(&node("n0"), b"epoch 1: 40 %");
        merge.push(&node("n0"), b"");
        assert_eq!(merge.take(false), b"epoch 1: 40 %");
        merge.look_again();
        merge.push(&node("n0"), b" done\n--- a att");
        merge.push(&node("n0"), b"");
        assert_eq!(merge.take(false), b" done\n", "a possible header line is held back");
        assert_eq!(merge.take(true), b"--- a att");
    }

    proptest! {
        /// Lines of several nodes are complete, in the order of their node, and none is lost.
        #[test]
        fn lines_of_several_nodes_never_mix(
            lines in prop::collection::vec((0usize..2, "[a-z ]{0,12}"), 1..40),
            part in 1usize..60,
        ) {
            let names = ["n0", "node-1"];
            let mut files = names.map(|name| header(1, name));
            for (at, line) in &lines {
                files[*at].push_str(&format!("{line}\n"));
            }
            let out = merged(&[(names[0], &files[0]), (names[1], &files[1])], part, None);
            for (name, file) in names.iter().zip(&files) {
                let prefix = format!("{name:<6} | ");
                let own: Vec<&str> =
                    out.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
                prop_assert_eq!(own, file.lines().collect::<Vec<_>>());
            }
            prop_assert_eq!(out.lines().count(), lines.len() + 2);
        }
    }
}
