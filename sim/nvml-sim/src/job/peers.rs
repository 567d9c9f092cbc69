//! Peers: the other processes of a job on several nodes.
//!
//! The nodes' state files are in one directory. Each contains the job's claim on that node with its
//! rank, its phase, and the rate that the node allows. Ranks find each other through these files,
//! without a network, and each limits its rate to that of the slowest peer.

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
    pub(super) gpus: u32,
    pub(super) local_rate: u64,
}

/// The other nodes of the cluster.
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

    /// Live processes of this attempt of the job on other nodes, by rank.
    pub(super) fn observe(&mut self) -> Vec<Peer> {
        let mut peers = self.find();
        if peers.len() as u32 + 1 < self.request.nodes {
            self.scan();
            peers = self.find();
        }
        peers
    }

    fn find(&self) -> Vec<Peer> {
        let mut peers = BTreeMap::new();
        for node in self.nodes.values() {
            // A node with a corrupt file has no peers.
            let Ok(snapshot) = node.observe() else { continue };
            for claim in snapshot.state.claims.iter().flatten() {
                let theirs = &claim.request;
                let ours = theirs.job == self.request.job && theirs.attempt == self.request.attempt;
                if ours && theirs.rank != self.request.rank {
                    let lost = snapshot.state.has_lost_gpu(claim);
                    peers.insert(
                        theirs.rank,
                        Peer {
                            rank: theirs.rank,
                            phase: claim.phase,
                            gpus: theirs.gpus.count_ones(),
                            local_rate: if lost { 0 } else { claim.local_rate },
                        },
                    );
                }
            }
        }
        peers.into_values().collect()
    }

    /// Opens new nodes of the directory and drops removed ones.
    fn scan(&mut self) {
        self.nodes.retain(|path, _| path.exists());
        let Some(entries) = self.own.path().parent().and_then(|dir| dir.read_dir().ok()) else {
            return;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            // A node is a regular file; opening a pipe would block.
            let regular = entry.file_type().is_ok_and(|kind| kind.is_file());
            if regular && !self.nodes.contains_key(&path) {
                // The directory may contain other files, and nodes of another cluster, which have
                // another clock.
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
