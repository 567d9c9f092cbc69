//! The power of the site by minute, read from its stream.

use wattle_common::Timestamp;
use wattle_common::event::report::SiteMinutes;
use wattle_common::messages::SiteMinute;
use wattle_common::messages::site_minute::MINUTE;
use wattle_common::subject::StreamName;

use crate::bus::{Bus, BusError};
use crate::clock;

/// The minutes from an instant on. Each is in the stream at most once; of repeated records the first counts.
///
/// # Errors
/// If the server refuses or is away.
pub async fn read(bus: &Bus, from: Timestamp) -> Result<SiteMinutes, BusError> {
    let end = bus.last_sequence(StreamName::Site).await?;
    let newest = decoded(bus, end).await?;
    let Some((last, _)) = newest.last_key_value() else { return Ok(newest) };
    // A stream has at most one record for each minute, so the first one needed is this or a later one; repeated records are
    // few.
    let needed = last.since(from).as_secs() / MINUTE.as_secs();
    let mut minutes = decoded(bus, end.saturating_sub(needed + needed / 100 + 2)).await?;
    Ok(minutes.split_off(&from))
}

/// The minutes from a sequence number on.
async fn decoded(bus: &Bus, sequence: u64) -> Result<SiteMinutes, BusError> {
    let (mut minutes, now) = (SiteMinutes::new(), clock::now());
    let mut stored = bus.replay_from(StreamName::Site, sequence).await?;
    while let Some(payload) = stored.next().await? {
        if let Some(minute) = SiteMinute::plausible(&payload, now) {
            minutes.entry(minute.minute_us).or_insert(minute);
        }
    }
    Ok(minutes)
}
