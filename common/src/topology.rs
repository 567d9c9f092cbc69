//! The shape of a cluster: how many nodes, how many GPUs in each, of which kind.
//!
//! Written as people write it, `28x8:v100`: 28 nodes of 8 V100s. Several groups are joined by
//! commas: `4x8:v100,2x4:p100`. Nodes below leaf switches have their number after a slash:
//! `28x8:v100/4` is seven switches of four nodes. A switch holds nodes of one group. GPUs that are
//! closer to each other than to the rest of their node (on a board, behind one PCIe switch, linked in
//! a group) are written apart: `28x2x4:v100` is two boards of four in each node.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most nodes a cluster may have; a limit against a slip of the finger.
pub const NODES_MAX: usize = 100_000;
/// Most GPUs a node may have.
pub const GPUS_PER_NODE_MAX: u32 = 64;

/// Some equal nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeGroup {
    /// How many nodes.
    pub nodes: u32,
    /// GPUs in each of them.
    pub gpus_per_node: u32,
    /// GPUs on each board of a node: a power of two, so that a block of GPUs lies on one board where
    /// it can ([`check_board`]); `None`: not known, or all on one.
    pub gpus_per_board: Option<u32>,
    /// The GPUs' kind, in lower case as in the catalog: `v100`.
    pub gpu_type: String,
    /// Nodes below each leaf switch; `None`: not known, or all below one.
    pub nodes_per_switch: Option<u32>,
}

/// A whole cluster: its groups, in node order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterShape {
    groups: Vec<NodeGroup>,
}

/// Why a text is no cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Not of the form NODESxGPUS:KIND.
    #[error("`{0}` is no cluster; write NODESxGPUS:KIND, as in 28x8:v100")]
    Form(String),
    /// A count of zero or beyond the limit.
    #[error(
        "`{0}`: 1 to {NODES_MAX} nodes of 1 to {GPUS_PER_NODE_MAX} GPUs, and at least 1 node a switch"
    )]
    Count(String),
    /// Boards that a node cannot have, or blocks of GPUs would not fit.
    #[error("{0}")]
    Board(String),
}

/// Checks that nodes of `gpus` GPUs may have them on boards of `gpus_per_board`.
///
/// # Errors
/// Where that is no power of two (GPUs are given out in aligned blocks of powers of two, which would
/// lie across such boards), or a node does not have a whole number of boards.
pub fn check_board(gpus: u32, gpus_per_board: u32) -> Result<(), String> {
    if !gpus_per_board.is_power_of_two() {
        return Err(format!(
            "boards of {gpus_per_board} GPUs: a board has 1, 2, 4, 8, ... of them; leave it out where \
             yours do not"
        ));
    }
    if !gpus.is_multiple_of(gpus_per_board) {
        return Err(format!(
            "{gpus} GPUs are no whole number of boards of {gpus_per_board}; leave it out where boards \
             differ"
        ));
    }
    Ok(())
}

impl ClusterShape {
    /// A cluster of equal nodes.
    ///
    /// # Errors
    /// Where a count is zero or beyond the limit.
    pub fn uniform(nodes: u32, gpus_per_node: u32, gpu_type: &str) -> Result<Self, ShapeError> {
        format!("{nodes}x{gpus_per_node}:{gpu_type}").parse()
    }
    /// A cluster of these groups, in this order.
    ///
    /// # Errors
    /// Where there is none, a count is zero or beyond the limit, or a kind is no word.
    pub fn of(groups: Vec<NodeGroup>) -> Result<Self, ShapeError> {
        let shape = Self { groups };
        for (i, group) in shape.groups.iter().enumerate() {
            let text = || Self { groups: vec![shape.groups[i].clone()] }.to_string();
            let kind_ok = group.gpu_type.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            if group.gpu_type.is_empty() || !kind_ok {
                return Err(ShapeError::Form(text()));
            }
            let gpus = 1..=GPUS_PER_NODE_MAX;
            let switched = group.nodes_per_switch != Some(0);
            if group.nodes == 0 || !gpus.contains(&group.gpus_per_node) || !switched {
                return Err(ShapeError::Count(text()));
            }
            if let Some(board) = group.gpus_per_board {
                check_board(group.gpus_per_node, board).map_err(|why| {
                    ShapeError::Board(format!("a node of {}: {why}", group.gpu_type))
                })?;
            }
        }
        if shape.groups.is_empty() {
            return Err(ShapeError::Form(String::new()));
        }
        if shape.node_count() > NODES_MAX {
            return Err(ShapeError::Count(shape.to_string()));
        }
        Ok(shape)
    }
    /// The leaf switch each node is below, in node order, counted over the cluster from 0; `None`
    /// where that is not known.
    pub fn switches(&self) -> impl Iterator<Item = Option<u32>> {
        let mut first = 0;
        self.groups.iter().flat_map(move |group| {
            let from = first;
            first += group.nodes_per_switch.map_or(0, |each| group.nodes.div_ceil(each));
            (0..group.nodes).map(move |node| group.nodes_per_switch.map(|each| from + node / each))
        })
    }
    /// GPUs on each board of each node, in node order; `None` where that is not known.
    pub fn boards(&self) -> impl Iterator<Item = Option<u32>> {
        self.groups.iter().flat_map(|g| (0..g.nodes).map(|_| g.gpus_per_board))
    }
    /// The groups of equal nodes, in node order.
    #[must_use]
    pub fn groups(&self) -> &[NodeGroup] {
        &self.groups
    }
    /// Each node in order: its GPUs and their kind.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, &str)> {
        self.groups
            .iter()
            .flat_map(|g| (0..g.nodes).map(move |_| (g.gpus_per_node, g.gpu_type.as_str())))
    }
    /// How many nodes there are.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.groups.iter().map(|g| g.nodes as usize).sum()
    }
    /// How many GPUs there are.
    #[must_use]
    pub fn gpu_count(&self) -> usize {
        self.groups.iter().map(|g| g.nodes as usize * g.gpus_per_node as usize).sum()
    }
}

impl FromStr for ClusterShape {
    type Err = ShapeError;
    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let groups = text
            .split(',')
            .map(|part| {
                let form = || ShapeError::Form(part.to_owned());
                let (counts, kind) = part.trim().split_once(':').ok_or_else(form)?;
                let (kind, switched) = match kind.split_once('/') {
                    Some((kind, each)) => (kind, Some(each.parse().map_err(|_| form())?)),
                    None => (kind, None),
                };
                let (nodes, gpus) = counts.split_once('x').ok_or_else(form)?;
                let nodes: u32 = nodes.parse().map_err(|_| form())?;
                let (boards, gpus) = match gpus.split_once('x') {
                    Some((boards, each)) => {
                        (Some(boards.parse::<u32>().map_err(|_| form())?), each)
                    }
                    None => (None, gpus),
                };
                let gpus: u32 = gpus.parse().map_err(|_| form())?;
                Ok(NodeGroup {
                    nodes,
                    gpus_per_node: boards.map_or(gpus, |boards| boards.saturating_mul(gpus)),
                    gpus_per_board: boards.map(|_| gpus),
                    gpu_type: kind.to_ascii_lowercase(),
                    nodes_per_switch: switched,
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        Self::of(groups)
    }
}

impl TryFrom<String> for ClusterShape {
    type Error = ShapeError;
    fn try_from(text: String) -> Result<Self, ShapeError> {
        text.parse()
    }
}

impl From<ClusterShape> for String {
    fn from(shape: ClusterShape) -> Self {
        shape.to_string()
    }
}

impl fmt::Display for ClusterShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, g) in self.groups.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}x", g.nodes)?;
            match g.gpus_per_board.filter(|&board| check_board(g.gpus_per_node, board).is_ok()) {
                Some(board) => write!(f, "{}x{board}", g.gpus_per_node / board)?,
                None => write!(f, "{}", g.gpus_per_node)?,
            }
            write!(f, ":{}", g.gpu_type)?;
            if let Some(each) = g.nodes_per_switch {
                write!(f, "/{each}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_read_and_show_alike() {
        for text in
            ["28x8:v100", "4x8:v100,2x4:p100", "28x8:v100/4,2x8:a100", "4x2x4:v100/2,1x1x8:a100"]
        {
            assert_eq!(text.parse::<ClusterShape>().unwrap().to_string(), text);
        }
        let mixed: ClusterShape = "1x8:V100, 2x4:p100".parse().unwrap();
        assert_eq!(mixed.nodes().collect::<Vec<_>>(), [(8, "v100"), (4, "p100"), (4, "p100")]);
        assert_eq!((mixed.node_count(), mixed.gpu_count()), (3, 16));
        let switched: ClusterShape = "3x8:v100/2,1x8:a100,2x8:p100/2".parse().unwrap();
        let below: Vec<_> = switched.switches().collect();
        assert_eq!(below, [Some(0), Some(0), Some(1), None, Some(2), Some(2)]);
        let boards: ClusterShape = "1x3x4:v100,2x8:a100".parse().unwrap();
        assert_eq!(boards.boards().collect::<Vec<_>>(), [Some(4), None, None]);
        assert_eq!(boards.gpu_count(), 28);
    }

    #[test]
    fn what_is_no_shape_says_how_to_write_one() {
        for text in [
            "",
            "8",
            "4x8",
            "x8:v100",
            "4x8:",
            "4x8:v 100",
            "-1x8:v100",
            "4x8:v100/",
            "4x2x2x2:v100",
        ] {
            let error = text.parse::<ClusterShape>().unwrap_err();
            assert!(matches!(error, ShapeError::Form(_)), "{text}: {error}");
        }
        for text in
            ["0x8:v100", "4x0:v100", "4x65:v100", "100001x1:v100", "4x8:v100/0", "1x0x4:v100"]
        {
            let error = text.parse::<ClusterShape>().unwrap_err();
            assert!(matches!(error, ShapeError::Count(_)), "{text}: {error}");
        }
        let group = |gpus_per_node, board| NodeGroup {
            nodes: 1,
            gpus_per_node,
            gpus_per_board: Some(board),
            gpu_type: "v100".to_owned(),
            nodes_per_switch: None,
        };
        for (gpus, board, said) in [(6, 3, "1, 2, 4, 8"), (6, 4, "no whole number"), (8, 0, "1, 2")]
        {
            let error = ClusterShape::of(vec![group(gpus, board)]).unwrap_err();
            assert!(matches!(error, ShapeError::Board(_)), "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
