//! The viewers: for each followed page its last content, and the changes that all its viewers receive.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::{broadcast, oneshot};
use wattle_common::{EventId, JobId, Timestamp};

use super::streams::{Full, Streams, Viewer};
use crate::model::{Model, Now};
use crate::pages::{content, power_from};
use crate::patch::patch;
use crate::topic::Topic;

/// Events that wait for a slow viewer; with more it is disconnected, and receives the whole content after it connects again.
const EVENTS_MAX: usize = 8;

/// One followed page.
struct Channel {
    value: Value,
    events: broadcast::Sender<Bytes>,
}

/// A stream that has begun.
pub(super) struct Begun {
    /// Its number, by which it ends.
    pub(super) number: u64,
    /// The event with the whole content of the page.
    pub(super) first: Bytes,
    /// The events that follow.
    pub(super) events: broadcast::Receiver<Bytes>,
    /// Resolves when another viewer has displaced it.
    pub(super) displaced: oneshot::Receiver<()>,
}

/// The followed pages.
pub(super) struct Hub {
    channels: BTreeMap<Topic, Channel>,
    streams: Streams,
    /// Number of updates so far.
    updates: u64,
}

/// Number of updates after which a page is computed again: sums of the ledger change slowly, and they and
/// long lists need the most time.
const fn every(topic: &Topic) -> u64 {
    match topic {
        Topic::Overview | Topic::Job(_) | Topic::Nodes(_) => 1,
        Topic::Jobs(_)
        | Topic::Events
        | Topic::Event(_)
        | Topic::Schedule(_)
        | Topic::Budget
        | Topic::Predictors
        | Topic::Services => 2,
        Topic::Energy(_) | Topic::Saving | Topic::Submit => 5,
    }
}

/// An event that begins with the present.
fn event(name: &str, now: Now, key: &str, value: Option<&Value>) -> Bytes {
    let mut data = json!({ "now_s": (now.at.as_s() * 10.0).round() / 10.0, "rate": now.rate });
    if let (Some(members), Some(value)) = (data.as_object_mut(), value) {
        members.insert(key.to_owned(), value.clone());
    }
    format!("event: {name}\ndata: {data}\n\n").into()
}

impl Hub {
    pub(super) const fn new(viewers_max: usize) -> Self {
        Self { channels: BTreeMap::new(), streams: Streams::new(viewers_max), updates: 0 }
    }

    /// Number of viewers.
    pub(super) fn viewers(&self) -> usize {
        self.streams.count()
    }

    /// Begins to follow a page.
    pub(super) fn follow(
        &mut self,
        viewer: &Viewer,
        topic: &Topic,
        model: &mut Model,
        now: Now,
    ) -> Result<Begun, Full> {
        let (number, displaced) = self.streams.begin(viewer, topic)?;
        if let Topic::Job(job) = topic {
            model.follow(job);
        }
        if let Topic::Event(event) = topic {
            model.followed_events.insert(event.clone());
        }
        let channel = self.channels.entry(topic.clone()).or_insert_with(|| Channel {
            value: content(topic, model, now),
            events: broadcast::Sender::new(EVENTS_MAX),
        });
        let first = event("all", now, "all", Some(&channel.value));
        Ok(Begun { number, first, events: channel.events.subscribe(), displaced })
    }

    /// Forgets a stream that has ended.
    pub(super) fn leave(&mut self, number: u64) {
        self.streams.end(number);
    }

    /// Sends what has changed to the viewers of each page, and forgets pages without a viewer.
    pub(super) fn update(&mut self, model: &mut Model, now: Now) {
        let streams = &self.streams;
        self.channels.retain(|topic, _| streams.follows(topic));
        model.keep_details(&self.jobs());
        model.follow_power(self.power_since(now));
        model.follow_events(self.events());
        self.updates += 1;
        for (topic, channel) in &mut self.channels {
            let is_due = model.lost_since().is_some() || self.updates.is_multiple_of(every(topic));
            let value = is_due.then(|| content(topic, model, now));
            let change = value.as_ref().and_then(|value| patch(&channel.value, value));
            if let Some(value) = value {
                channel.value = value;
            }
            // Also without a change, as a sign of life. Without a viewer it is forgotten at the next update.
            let _ = channel.events.send(event("change", now, "change", change.as_ref()));
        }
    }

    /// The jobs whose pages are followed.
    fn jobs(&self) -> BTreeSet<JobId> {
        let jobs = self.channels.keys().filter_map(|topic| match topic {
            Topic::Job(job) => Some(job.clone()),
            _ => None,
        });
        jobs.collect()
    }

    /// The events whose pages are followed.
    fn events(&self) -> BTreeSet<EventId> {
        let events = self.channels.keys().filter_map(|topic| match topic {
            Topic::Event(event) => Some(event.clone()),
            _ => None,
        });
        events.collect()
    }

    /// From when on the followed pages of energy show the power of the site.
    fn power_since(&self, now: Now) -> Option<Timestamp> {
        let since = self.channels.keys().filter_map(|topic| match topic {
            Topic::Energy(period) => Some(power_from(*period, now)),
            _ => None,
        });
        since.min()
    }

    /// Whether the page of services is followed.
    pub(super) fn follows_services(&self) -> bool {
        self.channels.contains_key(&Topic::Services)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{example, now, summary};

    fn data(event: &Bytes) -> Value {
        let text = std::str::from_utf8(event).unwrap();
        serde_json::from_str(text.split_once("data: ").unwrap().1.trim()).unwrap()
    }

    fn ada() -> Viewer {
        Viewer::Person("ada".to_owned())
    }

    #[test]
    fn viewers_receive_everything_first_and_then_changes() {
        let (mut hub, mut model) = (Hub::new(2), example());
        let mut begun = hub.follow(&ada(), &Topic::Overview, &mut model, now(100)).unwrap();
        assert_eq!(data(&begun.first)["all"]["page"]["power"]["now_w"], json!(680));
        model.summary(&serde_json::to_vec(&summary("n1", 130)).unwrap(), now(101));
        hub.update(&mut model, now(101));
        let change = data(&begun.events.try_recv().unwrap());
        assert_eq!(
            change["change"]["page"]["nodes"],
            json!({"n1": {"w": 260, "g": [[130, 250, "idle"], [130, 250, "idle"]]}})
        );
        hub.update(&mut model, now(101));
        assert!(data(&begun.events.try_recv().unwrap()).get("change").is_none(), "a sign of life");
        hub.leave(begun.number);
        hub.update(&mut model, now(103));
        assert!(hub.channels.is_empty() && hub.viewers() == 0);
    }

    #[test]
    fn slow_viewers_lose_events_and_notice_it() {
        let (mut hub, mut model) = (Hub::new(9), example());
        let mut begun = hub.follow(&ada(), &Topic::Overview, &mut model, now(100)).unwrap();
        for number in 0..EVENTS_MAX as u64 + 1 {
            model.summary(&serde_json::to_vec(&summary("n1", number)).unwrap(), now(101));
            hub.update(&mut model, now(101));
        }
        let received = begun.events.try_recv();
        assert!(matches!(received, Err(broadcast::error::TryRecvError::Lagged(1))));
    }
}
