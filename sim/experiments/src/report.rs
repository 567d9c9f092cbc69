//! HTML pages that show a comparison or a simulation.
//!
//! A page is one self-contained file: inline SVG plots, an inline style sheet, and a short script
//! that sorts tables. Apart from the recordings, a page shows only numbers which the commands also
//! print. The same input gives the same bytes. Templates ([`maud`]) escape all text, so names from
//! traces cannot become markup.

mod axes;
mod captions;
mod claims;
mod comparison;
mod equal_budget;
pub(crate) mod format;
mod frontier_plot;
mod job_table;
mod markers;
mod node_map;
mod page;
mod run_detail;
mod saving;
mod scale;
mod selected_runs;
mod simulation;
mod table;
mod timeline;
mod waterfall;

pub use comparison::comparison_page;
pub use saving::saving_page;
pub use selected_runs::{Recorded, record};
pub use simulation::simulation_page;
