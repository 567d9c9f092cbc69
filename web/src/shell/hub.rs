//! The viewers: for each followed page its last content, and the changes that all its viewers receive.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use wattle_common::JobId;

use crate::model::{Model, Now};
use crate::pages::content;
use crate::patch::patch;
use crate::topic::Topic;

/// Most different pages that are followed at a time.
const CHANNELS_MAX: usize = 128;
/// Events that wait for a slow viewer; with more it is disconnected, and receives the whole content after it connects again.
const EVENTS_MAX: usize = 8;

/// One followed page.
struct Channel {
    value: Value,
    events: broadcast::Sender<Bytes>,
}

/// The limit of viewers or of followed pages is reached.
#[derive(Debug)]
pub(super) struct Full;

/// The followed pages.
pub(super) struct Hub {
    channels: BTreeMap<Topic, Channel>,
    viewers_max: usize,
    /// Number of updates so far.
    updates: u64,
}

/// Number of updates after which a page is computed again: sums of the ledger change slowly, and they and
/// long lists need the most time.
const fn every(topic: &Topic) -> u64 {
    match topic {
        Topic::Overview | Topic::Job(_) | Topic::Nodes(_) => 1,
        Topic::Jobs(_) | Topic::Budget | Topic::Predictors | Topic::Services => 2,
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
        Self { channels: BTreeMap::new(), viewers_max, updates: 0 }
    }

    /// Number of viewers.
    pub(super) fn viewers(&self) -> usize {
        self.channels.values().map(|channel| channel.events.receiver_count()).sum()
    }

    /// Begins to follow a page: the event with its whole content, and those that follow.
    pub(super) fn follow(
        &mut self,
        topic: &Topic,
        model: &mut Model,
        now: Now,
    ) -> Result<(Bytes, broadcast::Receiver<Bytes>), Full> {
        let viewers: usize = self.channels.values().map(|c| c.events.receiver_count()).sum();
        let is_new = !self.channels.contains_key(topic);
        if viewers >= self.viewers_max || (is_new && self.channels.len() >= CHANNELS_MAX) {
            return Err(Full);
        }
        if let Topic::Job(job) = topic {
            model.follow(job);
        }
        let channel = self.channels.entry(topic.clone()).or_insert_with(|| Channel {
            value: content(topic, model, now),
            events: broadcast::Sender::new(EVENTS_MAX),
        });
        Ok((event("all", now, "all", Some(&channel.value)), channel.events.subscribe()))
    }

    /// Sends what has changed to the viewers of each page, and forgets pages without a viewer.
    pub(super) fn update(&mut self, model: &mut Model, now: Now) {
        self.channels.retain(|_, channel| channel.events.receiver_count() > 0);
        model.keep_details(&self.jobs());
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

    #[test]
    fn viewers_receive_everything_first_and_then_changes() {
        let (mut hub, mut model) = (Hub::new(2), example());
        let (first, mut events) = hub.follow(&Topic::Overview, &mut model, now(100)).unwrap();
        assert_eq!(data(&first)["all"]["page"]["power"]["now_w"], json!(680));
        let (_, second) = hub.follow(&Topic::Overview, &mut model, now(100)).unwrap();
        assert!(hub.follow(&Topic::Saving, &mut model, now(100)).is_err(), "viewers are limited");
        model.summary(&serde_json::to_vec(&summary("n1", 130)).unwrap(), now(101));
        hub.update(&mut model, now(101));
        let change = data(&events.try_recv().unwrap());
        assert_eq!(
            change["change"]["page"]["nodes"],
            json!({"n1": {"w": 260, "g": [[130, 250, "idle"], [130, 250, "idle"]]}})
        );
        hub.update(&mut model, now(101));
        assert!(data(&events.try_recv().unwrap()).get("change").is_none(), "a sign of life");
        drop((events, second));
        hub.update(&mut model, now(103));
        assert!(hub.channels.is_empty() && hub.viewers() == 0);
    }

    #[test]
    fn slow_viewers_lose_events_and_notice_it() {
        let (mut hub, mut model) = (Hub::new(9), example());
        let (_, mut events) = hub.follow(&Topic::Overview, &mut model, now(100)).unwrap();
        for number in 0..EVENTS_MAX as u64 + 1 {
            model.summary(&serde_json::to_vec(&summary("n1", number)).unwrap(), now(101));
            hub.update(&mut model, now(101));
        }
        assert!(matches!(events.try_recv(), Err(broadcast::error::TryRecvError::Lagged(1))));
    }
}
