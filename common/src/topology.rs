//! The shape of a cluster: number of nodes, GPUs of each node, GPU type.
//!
//! The text form is `28x8:v100`: 28 nodes of 8 V100s. Groups are joined by commas:
//! `4x8:v100,2x4:p100`. The number of nodes on each leaf switch follows a slash: `28x8:v100/4` is
//! seven switches of four nodes. A switch has nodes of one group. Boards (GPUs that are closer to
//! each other than to the rest of their node, on a board, PCIe switch or link group) are a further
//! factor: `28x2x4:v100` is two boards of four GPUs in each node.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most nodes of a cluster; a limit against typing errors.
pub const NODES_MAX: usize = 100_000;
/// Most GPUs of a node.
pub const GPUS_PER_NODE_MAX: u32 = 64;

/// A group of equal nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeGroup {
    /// Number of nodes.
    pub nodes: u32,
    /// GPUs of each node.
    pub gpus_per_node: u32,
    /// GPUs on each board: a power of two, so that a block of GPUs fits on one board if possible
    /// ([`check_board`]); `None`: not known, or a single board.
    pub gpus_per_board: Option<u32>,
    /// GPU type in lower case, as in the catalog: `v100`.
    pub gpu_type: String,
    /// Nodes on each leaf switch; `None`: not known, or a single switch.
    pub nodes_per_switch: Option<u32>,
}

/// The shape of a cluster: its groups, in node order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterShape {
    groups: Vec<NodeGroup>,
}

/// Why a cluster shape is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Not of the form NODESxGPUS:TYPE.
    #[error("invalid cluster `{0}`: expected NODESxGPUS:TYPE, as in 28x8:v100")]
    Form(String),
    /// A count of zero or beyond the limit.
    #[error(
        "invalid cluster `{0}`: expected 1 to {NODES_MAX} nodes of 1 to {GPUS_PER_NODE_MAX} GPUs, \
         and at least 1 node on each switch"
    )]
    Count(String),
    /// Boards that do not divide a node.
    #[error("invalid nodes of {gpu_type}: {source}")]
    Board {
        /// The group's GPU type.
        gpu_type: String,
        /// The problem.
        source: BoardError,
    },
}

/// Why a node cannot have boards of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoardError {
    /// GPUs are allocated in aligned blocks of powers of two, which must not cross boards.
    #[error(
        "boards of {0} GPUs: the size must be 1, 2, 4, 8, ...; omit it for boards of other sizes"
    )]
    Size(u32),
    /// The boards do not divide the node.
    #[error(
        "{gpus} GPUs are not a multiple of the board size {gpus_per_board}; omit it if boards differ"
    )]
    Remainder {
        /// GPUs of the node.
        gpus: u32,
        /// GPUs on each board.
        gpus_per_board: u32,
    },
}

/// Checks that boards of `gpus_per_board` GPUs divide a node of `gpus` GPUs.
///
/// # Errors
/// If the board size is not a power of two, or does not divide the node.
pub const fn check_board(gpus: u32, gpus_per_board: u32) -> Result<(), BoardError> {
    if !gpus_per_board.is_power_of_two() {
        return Err(BoardError::Size(gpus_per_board));
    }
    if !gpus.is_multiple_of(gpus_per_board) {
        return Err(BoardError::Remainder { gpus, gpus_per_board });
    }
    Ok(())
}

impl ClusterShape {
    /// A cluster of equal nodes.
    ///
    /// # Errors
    /// If a count is zero or beyond the limit.
    pub fn uniform(nodes: u32, gpus_per_node: u32, gpu_type: &str) -> Result<Self, ShapeError> {
        format!("{nodes}x{gpus_per_node}:{gpu_type}").parse()
    }
    /// A cluster of these groups, in this order.
    ///
    /// # Errors
    /// If there is none, a count is zero or beyond the limit, or a GPU type is not a word.
    pub fn of(groups: Vec<NodeGroup>) -> Result<Self, ShapeError> {
        let shape = Self { groups };
        for (i, group) in shape.groups.iter().enumerate() {
            let text = || Self { groups: vec![shape.groups[i].clone()] }.to_string();
            let type_ok = group.gpu_type.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            if group.gpu_type.is_empty() || !type_ok {
                return Err(ShapeError::Form(text()));
            }
            let gpus = 1..=GPUS_PER_NODE_MAX;
            let switched = group.nodes_per_switch != Some(0);
            if group.nodes == 0 || !gpus.contains(&group.gpus_per_node) || !switched {
                return Err(ShapeError::Count(text()));
            }
            if let Some(board) = group.gpus_per_board {
                check_board(group.gpus_per_node, board).map_err(|source| ShapeError::Board {
                    gpu_type: group.gpu_type.clone(),
                    source,
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
    /// The leaf switch of each node, in node order, numbered over the cluster from 0; `None` if not
    /// known.
    pub fn switches(&self) -> impl Iterator<Item = Option<u32>> {
        let mut first = 0;
        self.groups.iter().flat_map(move |group| {
            let from = first;
            first += group.nodes_per_switch.map_or(0, |each| group.nodes.div_ceil(each));
            (0..group.nodes).map(move |node| group.nodes_per_switch.map(|each| from + node / each))
        })
    }
    /// GPUs on each board of each node, in node order; `None` if not known.
    pub fn boards(&self) -> impl Iterator<Item = Option<u32>> {
        self.groups.iter().flat_map(|g| (0..g.nodes).map(|_| g.gpus_per_board))
    }
    /// The groups of equal nodes, in node order.
    #[must_use]
    pub fn groups(&self) -> &[NodeGroup] {
        &self.groups
    }
    /// The number and type of GPUs of each node, in node order.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, &str)> {
        self.groups
            .iter()
            .flat_map(|g| (0..g.nodes).map(move |_| (g.gpus_per_node, g.gpu_type.as_str())))
    }
    /// Number of nodes.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.groups.iter().map(|g| g.nodes as usize).sum()
    }
    /// Number of GPUs.
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
                let (counts, gpu_type) = part.trim().split_once(':').ok_or_else(form)?;
                let (gpu_type, nodes_per_switch) = match gpu_type.split_once('/') {
                    Some((gpu_type, each)) => (gpu_type, Some(each.parse().map_err(|_| form())?)),
                    None => (gpu_type, None),
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
                    gpu_type: gpu_type.to_ascii_lowercase(),
                    nodes_per_switch,
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
    fn text_form_round_trips() {
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
    fn invalid_shapes_are_errors() {
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
        for (gpus, board, text) in [(6, 3, "1, 2, 4, 8"), (6, 4, "not a multiple"), (8, 0, "1, 2")]
        {
            let error = ClusterShape::of(vec![group(gpus, board)]).unwrap_err();
            assert!(matches!(error, ShapeError::Board { .. }), "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
