//! A grid event as a person enters it in the form of the page.

use serde::Deserialize;
use wattle_common::event::{Depth, GridEvent, Participation};
use wattle_common::messages::EventRequest;
use wattle_common::{EventId, FeederId, Power, Timestamp};
use wattle_view::event::default_id;

/// How a depth is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DepthBy {
    /// Per cent less than before.
    PercentLess,
    /// Kilowatts less than before.
    KwLess,
    /// At most these kilowatts.
    KwMost,
}

/// An event as it is entered. Times are minutes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Announced {
    /// Its name; absent: made from its start.
    #[serde(default)]
    pub id: Option<String>,
    /// Its source; absent: the operator.
    #[serde(default)]
    pub source: Option<String>,
    /// The feeder; absent: the whole site.
    #[serde(default)]
    pub feeder: Option<String>,
    /// Start of the ramp down, seconds since the Unix epoch; absent: now.
    #[serde(default)]
    pub start_s: Option<u64>,
    /// The ramp down.
    #[serde(default)]
    pub ramp_down_min: f64,
    /// The number of the depth.
    pub depth: Option<f64>,
    /// Its meaning.
    pub depth_by: DepthBy,
    /// Time at the target.
    pub duration_min: Option<f64>,
    /// The ramp up.
    #[serde(default)]
    pub ramp_up_min: f64,
    /// Whether it may not be declined.
    #[serde(default)]
    pub mandatory: bool,
}

/// Seconds of minutes.
///
/// # Errors
/// It names the field.
pub fn seconds(field: &str, minutes: f64) -> Result<u64, String> {
    if (0.0..=527_040.0).contains(&minutes) {
        return Ok((60.0 * minutes).round() as u64);
    }
    Err(format!("{field} of {minutes} min: give 0 to 527,040 min"))
}

impl Announced {
    /// The event from `now` on.
    ///
    /// # Errors
    /// It names the field and what is accepted.
    pub fn event(&self, now: Timestamp) -> Result<GridEvent, String> {
        let start_us = self.start_s.map_or(now, Timestamp::from_s);
        let depth = self.depth.ok_or("give the depth: by how much less, or at most how much")?;
        let power = |kilowatts: f64| {
            if kilowatts > 0.0 && kilowatts <= 1e9 {
                return Ok(Power::from_w_f64(1e3 * kilowatts));
            }
            Err(format!("depth of {kilowatts} kW: give a power above 0"))
        };
        let depth = match self.depth_by {
            DepthBy::PercentLess => Depth::Percent { percent: depth },
            DepthBy::KwLess => Depth::Reduction { power_mw: power(depth)? },
            DepthBy::KwMost => Depth::Target { power_mw: power(depth)? },
        };
        let duration = self.duration_min.ok_or("give the time at the target")?;
        let event = match self.id.as_deref().map(str::trim).filter(|id| !id.is_empty()) {
            Some(id) => EventId::new(id).map_err(|error| error.to_string())?,
            None => default_id(start_us).ok_or("the start has no date")?,
        };
        let source = self.source.as_deref().map(str::trim).filter(|source| !source.is_empty());
        let feeder = self.feeder.as_deref().map(str::trim).filter(|feeder| !feeder.is_empty());
        let feeder = feeder.map(FeederId::new).transpose().map_err(|error| error.to_string())?;
        let event = GridEvent {
            event,
            source: source.unwrap_or("operator").to_owned(),
            feeder,
            start_us,
            ramp_down_s: seconds("ramp down", self.ramp_down_min)?,
            depth,
            duration_s: seconds("duration", duration)?,
            ramp_up_s: seconds("ramp up", self.ramp_up_min)?,
            priority: 0,
            participation: if self.mandatory {
                Participation::Mandatory
            } else {
                Participation::Voluntary
            },
        };
        event.check(now).map_err(|error| error.to_string())?;
        Ok(event)
    }
}

/// What a person requests.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Requested {
    /// Announce an event.
    Add {
        /// The event.
        event: Box<Announced>,
    },
    /// Shorten or extend it.
    Change {
        /// Its id.
        event: EventId,
        /// Time at the target, in all.
        duration_min: f64,
    },
    /// Cancel it.
    Cancel {
        /// Its id.
        event: EventId,
    },
    /// Decline it.
    Decline {
        /// Its id.
        event: EventId,
    },
}

impl Requested {
    /// The request to the placer.
    ///
    /// # Errors
    /// It names the field and what is accepted.
    pub fn request(self, now: Timestamp) -> Result<EventRequest, String> {
        Ok(match self {
            Self::Add { event } => EventRequest::Add { event: event.event(now)? },
            Self::Change { event, duration_min } => {
                EventRequest::Change { event, duration_s: seconds("duration", duration_min)? }
            }
            Self::Cancel { event } => EventRequest::Cancel { event },
            Self::Decline { event } => EventRequest::Decline { event },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_s(1_795_962_300);

    fn entered(text: &str) -> Result<GridEvent, String> {
        serde_json::from_str::<Announced>(text).unwrap().event(NOW)
    }

    #[test]
    fn an_entered_event_is_the_one_of_the_command() {
        let event = entered(
            r#"{"depth": 25, "depth_by": "percent-less", "duration_min": 180, "ramp_down_min": 15, "ramp_up_min": 15}"#,
        )
        .unwrap();
        assert_eq!(event.event.as_str(), "event-20261129-142500");
        assert_eq!((event.start_us, event.duration_s, event.ramp_up_s), (NOW, 10_800, 900));
        assert_eq!(event.depth, Depth::Percent { percent: 25.0 });
        let at_most = entered(
            r#"{"id": "peak-1", "source": " utility ", "feeder": "board-a", "start_s": 1795969500, "depth": 70.5, "depth_by": "kw-most", "duration_min": 60, "mandatory": true}"#,
        )
        .unwrap();
        assert_eq!((at_most.event.as_str(), at_most.source.as_str()), ("peak-1", "utility"));
        assert_eq!(at_most.depth, Depth::Target { power_mw: Power::from_w(70_500) });
        assert_eq!(at_most.participation, Participation::Mandatory);
        assert_eq!((at_most.place().as_str(), event.feeder), ("feeder board-a", None));
    }

    #[test]
    fn a_refusal_names_the_field_and_what_is_accepted() {
        for (text, expected) in [
            (
                r#"{"depth_by": "kw-less", "duration_min": 60}"#,
                "give the depth: by how much less, or at most how much",
            ),
            (
                r#"{"depth": 0, "depth_by": "kw-less", "duration_min": 60}"#,
                "depth of 0 kW: give a power above 0",
            ),
            (r#"{"depth": 5, "depth_by": "kw-less"}"#, "give the time at the target"),
            (
                r#"{"depth": 5, "depth_by": "kw-less", "duration_min": -1}"#,
                "duration of -1 min: give 0 to 527,040 min",
            ),
            (
                r#"{"depth": 125, "depth_by": "percent-less", "duration_min": 60}"#,
                "depth = 125 %: expected above 0 % and below 100 %",
            ),
            (
                r#"{"depth": 5, "depth_by": "kw-less", "duration_min": 10, "ramp_up_min": 20}"#,
                "ramp_up = 20 min: expected at most the duration of 10 min",
            ),
        ] {
            assert_eq!(entered(text).unwrap_err(), expected);
        }
    }
}
