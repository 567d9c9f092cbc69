//! What each connection with a site's scheduler stores and sends.

pub mod reports;
pub mod requests;
mod state_folder;

pub use state_folder::{StateError, StateFolder};
