//! The open streams of events, bounded in total and for each viewer.
//!
//! While the most streams are open, a further one displaces the oldest of the viewer with the most, and a
//! signed-in person displaces visitors first: no visitor and no single person locks others out.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;

use crate::topic::Topic;

/// Most different pages that are followed at a time.
const TOPICS_MAX: usize = 128;
/// Most streams of one person. A browser opens at most six to a host.
const PER_PERSON_MAX: usize = 24;

/// For what a stream counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Viewer {
    /// A visitor without a session, by its address. Several persons may share one.
    Address(String),
    /// A signed-in person.
    Person(String),
}

/// The limit of viewers or of followed pages is reached.
#[derive(Debug)]
pub(super) struct Full;

struct Open {
    viewer: Viewer,
    topic: Topic,
    /// Ends the stream when it is dropped.
    _keep: oneshot::Sender<()>,
}

/// The open streams by number; later ones have higher numbers.
pub(super) struct Streams {
    open: BTreeMap<u64, Open>,
    next: u64,
    streams_max: usize,
}

impl Streams {
    pub(super) const fn new(streams_max: usize) -> Self {
        Self { open: BTreeMap::new(), next: 0, streams_max }
    }

    pub(super) fn count(&self) -> usize {
        self.open.len()
    }

    /// Whether a page is followed.
    pub(super) fn follows(&self, topic: &Topic) -> bool {
        self.open.values().any(|open| open.topic == *topic)
    }

    /// Admits a stream: its number, and what resolves when it has to end.
    pub(super) fn begin(
        &mut self,
        viewer: &Viewer,
        topic: &Topic,
    ) -> Result<(u64, oneshot::Receiver<()>), Full> {
        let most = match viewer {
            Viewer::Person(_) => PER_PERSON_MAX.min(self.streams_max),
            // Without signing in, all users of a proxy or a login node have one address.
            Viewer::Address(_) => (self.streams_max / 2).max(1),
        };
        if self.numbers_of(viewer).count() >= most {
            self.end_oldest(viewer);
        }
        while self.open.len() >= self.streams_max || self.is_topic_too_many(topic) {
            let victim = self.victim(viewer).ok_or(Full)?;
            self.end_oldest(&victim);
        }
        let (keep, ended) = oneshot::channel();
        let number = self.next;
        self.next += 1;
        let (viewer, topic) = (viewer.clone(), topic.clone());
        self.open.insert(number, Open { viewer, topic, _keep: keep });
        Ok((number, ended))
    }

    /// Forgets a stream that has ended.
    pub(super) fn end(&mut self, number: u64) {
        self.open.remove(&number);
    }

    fn numbers_of<'a>(&'a self, viewer: &'a Viewer) -> impl Iterator<Item = u64> + 'a {
        self.open.iter().filter(move |(_, open)| open.viewer == *viewer).map(|(number, _)| *number)
    }

    fn end_oldest(&mut self, viewer: &Viewer) {
        let oldest = self.numbers_of(viewer).next();
        if let Some(number) = oldest {
            self.open.remove(&number);
        }
    }

    fn is_topic_too_many(&self, topic: &Topic) -> bool {
        let topics: BTreeSet<&Topic> = self.open.values().map(|open| &open.topic).collect();
        topics.len() >= TOPICS_MAX && !topics.contains(topic)
    }

    /// The viewer of which a stream ends for a new one of `newcomer`: that with the most, among visitors as
    /// long as there are some. Persons with as few as the newcomer keep theirs.
    fn victim(&self, newcomer: &Viewer) -> Option<Viewer> {
        let mut counts: BTreeMap<&Viewer, usize> = BTreeMap::new();
        for open in self.open.values() {
            *counts.entry(&open.viewer).or_default() += 1;
        }
        let is_visitor = |viewer: &Viewer| matches!(viewer, Viewer::Address(_));
        let own = counts.get(newcomer).copied().unwrap_or(0);
        let visitors = counts.iter().filter(|(viewer, _)| is_visitor(viewer));
        let visitor = visitors.max_by_key(|(_, count)| **count);
        let found = if is_visitor(newcomer) {
            visitor.filter(|(_, count)| **count > own)
        } else {
            let person = || counts.iter().max_by_key(|(_, count)| **count);
            visitor.or_else(|| person().filter(|(_, count)| **count > own))
        };
        found.map(|(viewer, _)| (*viewer).clone())
    }
}

#[cfg(test)]
mod tests {
    use wattle_testkit as testkit;

    use super::*;

    fn person(name: &str) -> Viewer {
        Viewer::Person(name.to_owned())
    }

    fn visitor(address: &str) -> Viewer {
        Viewer::Address(address.to_owned())
    }

    fn of(streams: &Streams, viewer: &Viewer) -> usize {
        streams.numbers_of(viewer).count()
    }

    #[test]
    fn one_person_with_many_streams_locks_no_other_out() {
        let mut streams = Streams::new(256);
        let mut first = None;
        for _ in 0..300 {
            let begun = streams.begin(&person("bob"), &Topic::Overview).unwrap();
            first.get_or_insert(begun.1);
        }
        assert_eq!(of(&streams, &person("bob")), PER_PERSON_MAX);
        assert!(first.unwrap().try_recv().is_err(), "the oldest has ended");
        streams.begin(&person("olga"), &Topic::Saving).unwrap();
    }

    #[test]
    fn visitors_give_way_to_persons_and_the_most_to_the_fewest() {
        let mut streams = Streams::new(8);
        for address in ["a", "a", "a", "a", "a", "a", "b", "b", "b"] {
            streams.begin(&visitor(address), &Topic::Overview).unwrap();
        }
        assert_eq!((of(&streams, &visitor("a")), of(&streams, &visitor("b"))), (4, 3));
        streams.begin(&visitor("c"), &Topic::Overview).unwrap();
        streams.begin(&visitor("c"), &Topic::Overview).unwrap();
        assert_eq!((streams.count(), of(&streams, &visitor("c"))), (8, 2));
        for _ in 0..8 {
            streams.begin(&person("olga"), &Topic::Overview).unwrap();
        }
        assert_eq!(of(&streams, &person("olga")), 8);
        assert!(streams.begin(&visitor("a"), &Topic::Overview).is_err(), "persons keep theirs");
        streams.begin(&person("ada"), &Topic::Overview).unwrap();
        assert_eq!((of(&streams, &person("olga")), of(&streams, &person("ada"))), (7, 1));
    }

    #[test]
    fn different_pages_are_bounded() {
        let mut streams = Streams::new(1_000);
        for number in 0..TOPICS_MAX {
            let topic = Topic::Job(testkit::job(&format!("j{number}")));
            streams.begin(&visitor("a"), &topic).unwrap();
        }
        assert!(streams.begin(&visitor("a"), &Topic::Overview).is_err());
        streams.begin(&person("olga"), &Topic::Overview).unwrap();
        let topics: BTreeSet<_> = streams.open.values().map(|open| open.topic.clone()).collect();
        assert_eq!(topics.len(), TOPICS_MAX);
        streams.begin(&visitor("b"), &Topic::Saving).unwrap();
    }
}
