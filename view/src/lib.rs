//! What the command line and the web page show of jobs, nodes and energy, computed from messages.
//!
//! Pure: it does no I/O and reads no clock.

pub mod aim;
pub mod alternatives;
pub mod budget;
pub mod consequence;
pub mod date;
pub mod emissions;
pub mod energy;
pub mod event;
pub mod event_report;
pub mod expected;
pub mod feeders;
pub mod intensity;
pub mod job;
pub mod measured;
pub mod node;
pub mod power_margin;
pub mod prediction;
pub mod saved;
pub mod unmeasured;
pub mod verdict;
pub mod what_if;

use std::collections::BTreeMap;

use wattle_common::messages::NodeSummary;
use wattle_common::{Frequency, NodeId, Power};

/// The style sheet of every plot: colours for light and dark grounds, font, grid, lines, areas and legends. The
/// web page, the report pages and the figures of the documentation use it.
pub const PLOT_STYLE: &str = include_str!("plot.css");

/// The last summaries of nodes. A node whose profiler is silent is absent.
pub type Summaries = BTreeMap<NodeId, NodeSummary>;

/// A configuration in words: `2 GPUs at 150 W`, `1 GPU shared with bert-b8`.
#[must_use]
pub fn label(
    gpus: u32,
    cap: Option<Power>,
    clock: Option<Frequency>,
    neighbours: &[&str],
) -> String {
    let mut text = format!("{gpus} GPU{}", if gpus == 1 { "" } else { "s" });
    if let Some(cap) = cap {
        text.push_str(&format!(" at {:.0} W", cap.as_w()));
    }
    if let Some(clock) = clock {
        text.push_str(&format!(" at {} MHz", clock.as_mhz()));
    }
    if !neighbours.is_empty() {
        text.push_str(&format!(" shared with {}", neighbours.join(", ")));
    }
    text
}
