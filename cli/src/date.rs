//! Dates and times for people, in UTC.

pub(crate) use wattle_view::date::{date, minute, near, second};
