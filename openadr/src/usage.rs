//! The energy of the site over an interval, by its power in each minute.
//!
//! Each node must have been metered during the whole interval, or slept. Otherwise the energy is not known.

use wattle_common::Timestamp;
use wattle_common::event::report::SiteMinutes;
use wattle_common::messages::site_minute::{MINUTE, minute_of};

/// The energy of an interval, J. Of its first and last minute a part counts.
///
/// # Errors
/// Why it is not known.
pub fn joules(site: &SiteMinutes, from: Timestamp, until: Timestamp) -> Result<f64, String> {
    let (mut joules, mut begin) = (0.0, minute_of(from));
    while begin < until {
        let end = begin + MINUTE;
        let minute = site
            .get(&begin)
            .ok_or_else(|| format!("no node was metered in the minute from {begin} on"))?;
        let power = minute.power().ok_or_else(|| {
            let (metered, nodes) = (minute.metered, minute.nodes - minute.asleep);
            format!("{metered} of {nodes} nodes were metered in the minute from {begin} on")
        })?;
        joules += power.as_w() * end.min(until).since(begin.max(from)).as_secs_f64();
        begin = end;
    }
    Ok(joules)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wattle_common::Power;
    use wattle_common::messages::SiteMinute;

    use super::*;

    #[test]
    fn the_energy_is_known_where_each_node_was_metered_throughout() {
        let at = |minute: u64| Timestamp::from_s(120_000 + 60 * minute);
        // Of the three nodes one sleeps.
        let minute = |n, watts| SiteMinute {
            nodes: 3,
            asleep: 1,
            asleep_mw: Power::from_w(100),
            ..wattle_testkit::site_minute(at(n), Power::from_w(watts))
        };
        let mut site: SiteMinutes =
            (10..14).map(|n| (at(n), minute(n, if n == 10 { 2_900 } else { 900 }))).collect();
        // Half a minute of the first and of the last record.
        let half = Duration::from_secs(30);
        let found = joules(&site, at(10) + half, at(13) + half).unwrap();
        assert!((found - (90_000.0 + 150_000.0)).abs() < 1e-6, "{found}");
        assert!(joules(&site, at(10), at(14)).is_ok());
        let absent = joules(&site, at(10), at(14) + half).unwrap_err();
        assert!(absent.starts_with("no node was metered in the minute from "), "{absent}");
        site.get_mut(&at(12)).unwrap().metered = 1;
        let partly = joules(&site, at(10), at(14)).unwrap_err();
        assert!(partly.starts_with("1 of 2 nodes were metered in the minute from "), "{partly}");
        assert!(joules(&site, at(10), at(12)).is_ok());
    }
}
