//! Properties of every policy, and the rule of each in small examples.

mod accounts;
mod backfill;
mod bounds;
mod checker;
mod defer;
mod eaco;
mod feeders;
mod first_fit;
pub(crate) mod helpers;
mod kinds;
mod plans;
mod priority;
mod share;
mod sleep;
mod stages;
mod wakes;
mod watch;
