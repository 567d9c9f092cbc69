//! The HTML page and the SVG figure of a comparison, of the parts in [`wattle_saving::report`].

mod captions;
mod comparison;
mod equal_budget;
mod limits;
mod ratios;
mod selected_runs;
mod waterfall;

pub use comparison::{comparison_figure, comparison_page};
pub use limits::{limits_figure, limits_page};
pub use selected_runs::record;
