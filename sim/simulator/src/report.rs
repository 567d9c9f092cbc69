//! One page that shows a comparison or a simulation: who is ahead, and what happened.
//!
//! The page is one file that needs no network: its drawings are SVG made here, its style stands in
//! it, and its few lines of script only sort tables. Everything but the recordings it is made of is
//! read from what the commands print anyway, so it says nothing that the figures do not.
//!
//! What it must not do: run a policy on its own account, choose runs by how well they look, or pass
//! on text of other people unescaped. The same input gives the same bytes.

mod claims;
mod close;
mod compared;
mod described;
mod equal;
mod frame;
mod frontier_plot;
mod job_table;
mod lost;
mod marks;
mod markup;
mod node_map;
mod page;
mod scale;
mod shown;
mod simulated;
mod table;
mod timeline;

pub use compared::comparison_page;
pub use shown::{Recorded, record};
pub use simulated::simulation_page;
