//! Every call of the server, with its time limit, and what the server does not answer.
//!
//! The client library and its buckets are inside a [`Bounded`], which gives them out for one call at a time, so no
//! call waits without a limit. A caller repeats what was not answered. [`Answers`] notes since when each kind of
//! call about a bucket or stream is without an answer. [`Bus::unanswered`] returns what has been so for too long
//! while this process was responsible: a process that holds a lease then gives it up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream;
use tokio::time::Instant;
use wattle_common::subject::Bucket;

use super::stream::is_unavailable;
use super::{ANSWER_WITHIN, Bus, BusError};

/// Time limit of a call, wall time. The client waits for an answer for half of it; the rest is for a full queue of
/// commands.
pub(super) const CALL_WITHIN: Duration = Duration::from_secs(4);
/// Interval in which the answers are looked at, wall time.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Calls of one kind about one bucket or stream.
type Calls = (&'static str, String);

/// Calls that the server does not answer: from the first failure without a success since, to the newest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Silence {
    from: Instant,
    to: Instant,
}

/// Which calls the server does not answer.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<BTreeMap<Calls, Silence>>);

impl Answers {
    fn note(&self, verb: &'static str, object: &str, is_answered: bool) {
        let now = Instant::now();
        let mut silent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if silent.is_empty() && is_answered {
            return;
        }
        let calls = (verb, object.to_owned());
        if is_answered {
            silent.remove(&calls);
        } else {
            silent.entry(calls).or_insert(Silence { from: now, to: now }).to = now;
        }
    }

    /// Notes that nothing was received, or that something was.
    pub(super) fn received(&self, object: &str, is_answered: bool) {
        self.note("read", object, is_answered);
    }

    /// Calls that failed for `limit` from `from` on, except those about `other`.
    fn silent_for(&self, limit: Duration, from: Instant, other: &str) -> Option<String> {
        let silent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |silence: &Silence| {
            silence.to.saturating_duration_since(silence.from.max(from)) >= limit
        };
        let found =
            silent.iter().find(|((_, object), silence)| object != other && is_over(silence));
        found.map(|((verb, object), _)| format!("{verb} {object}"))
    }
}

/// A part of the client library. Every use that waits is a call with a time limit.
#[derive(Clone)]
pub(super) struct Bounded<T> {
    inner: T,
    answers: Arc<Answers>,
}

impl<T> Bounded<T> {
    pub(super) const fn new(inner: T, answers: Arc<Answers>) -> Self {
        Self { inner, answers }
    }

    /// Another part, with the same notes.
    pub(super) fn with<U>(&self, inner: U) -> Bounded<U> {
        Bounded { inner, answers: Arc::clone(&self.answers) }
    }

    /// A use that does not wait: what it returns cannot refer to the library's value.
    pub(super) fn now<R: 'static>(&self, work: impl FnOnce(&T) -> R) -> R {
        work(&self.inner)
    }

    /// A call about a bucket or stream, which the server answers: `verb` and `object` name it in alarms.
    ///
    /// # Errors
    /// [`BusError::Timeout`] after [`CALL_WITHIN`].
    pub(super) async fn call<'a, R, E, F>(
        &'a self,
        verb: &'static str,
        object: &str,
        work: impl FnOnce(&'a T) -> F,
    ) -> Result<Result<R, E>, BusError>
    where
        E: std::error::Error + 'static,
        F: Future<Output = Result<R, E>>,
    {
        let began = Instant::now();
        let answer = tokio::time::timeout(CALL_WITHIN, work(&self.inner)).await;
        let is_answered = match &answer {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => began.elapsed() < ANSWER_WITHIN && !is_silence(error),
            Err(_) => false,
        };
        self.answers.note(verb, object, is_answered);
        answer.map_err(|_| BusError::Timeout { what: format!("{verb} {object}") })
    }

    /// A use that only waits for room in the client's queue.
    ///
    /// # Errors
    /// As [`sent`].
    pub(super) async fn send<'a, F: Future>(
        &'a self,
        work: impl FnOnce(&'a T) -> F,
    ) -> Result<F::Output, BusError> {
        sent(work(&self.inner)).await
    }
}

/// Waits for room in the client's queue.
///
/// # Errors
/// [`BusError::Busy`] after half of [`CALL_WITHIN`]: nothing was sent.
pub(super) async fn sent<F: Future>(work: F) -> Result<F::Output, BusError> {
    tokio::time::timeout(ANSWER_WITHIN, work).await.map_err(|_| BusError::Busy)
}

/// Whether an error states that there is no answer for now, and not what the answer is.
fn is_silence(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(this) = cause {
        if this.downcast_ref::<jetstream::Error>().is_some_and(is_unavailable)
            || this.downcast_ref::<BusError>().is_some_and(BusError::is_transient)
        {
            return true;
        }
        cause = this.source();
    }
    false
}

impl Bus {
    /// Returns when the server has not answered calls of one kind about a bucket or stream for `limit` of wall time,
    /// while this process was responsible all the time; it returns what was called. Calls about the bucket of the
    /// leases do not count: without their answers no lease is held.
    pub(crate) async fn unanswered(
        &self,
        limit: Duration,
        is_responsible: impl Fn() -> bool,
    ) -> String {
        let leases = Bucket::Leases.name(self.cluster());
        let mut since = Instant::now();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if !is_responsible() {
                since = Instant::now();
            }
            if let Some(calls) = self.shared.answers.silent_for(limit, since, &leases) {
                return calls;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(15);

    async fn pass(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    fn silent(answers: &Answers, from: Instant) -> Option<String> {
        answers.silent_for(LIMIT, from, "leases")
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_calls_without_an_answer_are_found_after_the_limit() {
        let (answers, start) = (Answers::default(), Instant::now());
        for second in 0..15 {
            answers.note("watch", "bucket actual", false);
            // The stream is found each time; the consumer is not created.
            answers.note("find", "bucket actual", true);
            assert_eq!(silent(&answers, start), None, "after {second} s");
            pass(1).await;
        }
        answers.note("watch", "bucket actual", false);
        assert_eq!(silent(&answers, start).as_deref(), Some("watch bucket actual"));
        // This process was responsible later only.
        assert_eq!(silent(&answers, start + Duration::from_secs(1)), None);
        answers.note("watch", "bucket actual", true);
        assert_eq!(silent(&answers, start), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_not_repeated_and_the_lease_itself_do_not_count() {
        let (answers, start) = (Answers::default(), Instant::now());
        answers.note("read", "bucket jobs", false);
        answers.note("write", "leases", false);
        pass(60).await;
        answers.note("write", "leases", false);
        assert_eq!(silent(&answers, start), None);
    }

    /// A value of the client library in a field, or a stream of messages that is awaited directly, would be a wait
    /// without a limit.
    #[test]
    fn the_client_library_is_used_through_bounded_values_only() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let mut files = vec![std::path::PathBuf::from(folder).join("bus.rs")];
        let bus = std::fs::read_dir(format!("{folder}/bus")).unwrap();
        files.extend(bus.map(|file| file.unwrap().path()));
        let raw = [": async_nats::Client,", ": jetstream::Context,", ": kv::Store,"];
        let awaited = [".messages().await", ".subscribe(subject).await", ".info().await"];
        for file in files.iter().filter(|file| !file.ends_with("bounded.rs")) {
            let text = std::fs::read_to_string(file).unwrap();
            for wrong in raw.iter().chain(&awaited) {
                assert!(!text.contains(wrong), "{}: {wrong}: use Bounded", file.display());
            }
        }
        assert!(files.len() > 20, "{files:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_has_a_limit_and_a_refusal_is_an_answer() {
        let part = Bounded::new((), Arc::new(Answers::default()));
        let began = Instant::now();
        let never = |(): &()| std::future::pending::<Result<(), std::fmt::Error>>();
        let error = part.call("find", "stream ledger", never).await.unwrap_err();
        assert!(matches!(error, BusError::Timeout { what } if what == "find stream ledger"));
        assert_eq!(began.elapsed(), CALL_WITHIN);
        assert_eq!(part.answers.0.lock().unwrap().len(), 1);
        let refused = |(): &()| std::future::ready(Err::<(), _>(std::fmt::Error));
        assert!(part.call("find", "stream ledger", refused).await.unwrap().is_err());
        assert!(part.answers.0.lock().unwrap().is_empty());
        let began = Instant::now();
        assert!(matches!(part.send(never).await, Err(BusError::Busy)));
        assert_eq!(began.elapsed(), ANSWER_WITHIN);
    }
}
