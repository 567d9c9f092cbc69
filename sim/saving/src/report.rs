//! HTML pages and SVG figures of simulated runs, and the parts that they are made of.
//!
//! A page is one self-contained file: inline SVG plots, an inline style sheet, and a short script
//! that sorts tables. Apart from the recordings, a page shows only numbers which the commands also
//! print. The same input gives the same bytes. Templates ([`maud`]) escape all text, so names from
//! traces cannot become markup.

mod axes;
mod capacity;
pub mod claims;
pub mod format;
mod frame;
pub mod frontier_plot;
mod job_names;
mod job_table;
pub mod markers;
mod node_map;
pub mod page;
mod recorded;
pub mod run_detail;
mod saving;
mod scale;
mod simulation;
pub mod table;
mod timeline;

pub use capacity::capacity_figure;
pub use recorded::Recorded;
pub use saving::saving_page;
pub use simulation::{simulation_figure, simulation_page};
