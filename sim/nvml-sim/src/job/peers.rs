//! The other processes of a job that runs on several nodes.
//!
//! The nodes' state files lie in one folder, and each shows the job's claim on that node: its rank,
//! its phase, and how fast that node alone would let it go. So the ranks find each other without a
//! network, and each takes the slowest of the others as its own limit.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::node::Node;
use crate::state::{ClaimRequest, Phase};

/// Another process of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) rank: u32,
    pub(super) phase: Phase,
    pub(super) cards: u32,
    pub(super) rate_here: u64,
}

/// The nodes around this one.
#[derive(Debug)]
pub(super) struct Peers {
    own: Arc<Node>,
    request: ClaimRequest,
    nodes: BTreeMap<PathBuf, Node>,
}

impl Peers {
    pub(super) fn new(own: Arc<Node>, request: ClaimRequest) -> Self {
        Self { own, request, nodes: BTreeMap::new() }
    }

    /// Every other process of this start of the job that is alive, by rank.
    pub(super) fn look(&mut self) -> Vec<Peer> {
        let mut peers = self.known();
        if peers.len() as u32 + 1 < self.request.nodes {
            self.scan();
            peers = self.known();
        }
        peers
    }

    fn known(&self) -> Vec<Peer> {
        let mut peers = BTreeMap::new();
        for node in self.nodes.values() {
            // A node whose file was spoilt has no peer of ours.
            let Ok(view) = node.look() else { continue };
            for claim in view.state.claims.iter().flatten() {
                let theirs = &claim.request;
                let ours = theirs.job == self.request.job && theirs.attempt == self.request.attempt;
                if ours && theirs.rank != self.request.rank {
                    let lost = view.state.has_lost_card(claim);
                    peers.insert(
                        theirs.rank,
                        Peer {
                            rank: theirs.rank,
                            phase: claim.phase,
                            cards: theirs.cards.count_ones(),
                            rate_here: if lost { 0 } else { claim.rate_here },
                        },
                    );
                }
            }
        }
        peers.into_values().collect()
    }

    /// Opens the nodes that have appeared in the folder, and forgets those that are gone.
    fn scan(&mut self) {
        self.nodes.retain(|path, _| path.exists());
        let Some(entries) = self.own.path().parent().and_then(|dir| dir.read_dir().ok()) else {
            return;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            // Opening a pipe would wait for ever; a node is a plain file.
            let plain = entry.file_type().is_ok_and(|kind| kind.is_file());
            if plain && !self.nodes.contains_key(&path) {
                // Files that are no nodes may lie there as well, and nodes of another cluster,
                // whose clock began at another instant.
                if let Ok(node) = Node::open(&path)
                    && node.id() != self.own.id()
                    && node.clock() == self.own.clock()
                {
                    self.nodes.insert(path, node);
                }
            }
        }
    }
}
