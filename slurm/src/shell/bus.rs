//! What goes to the bus without delaying the rounds: reports, submissions and cancellations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use wattle_common::id::{SubmissionId, UserId};
use wattle_common::job::JobSpec;
use wattle_common::messages::{CancelJob, LaunchReport, Reply, SubmitJob};
use wattle_common::subject::{Rank, Reporter, RequestTopic, Requester, Subject};
use wattle_common::{JobId, NodeId};
use wattle_runtime::bus::{Bus, BusError, KvBucket};
use wattle_runtime::shell::chain;

use crate::machine::Event;

/// Pause before a failed write is repeated: wall time.
const RETRY: Duration = Duration::from_secs(1);
/// Most requests that wait; the machine repeats those that are dropped.
pub(super) const REQUESTS_MAX: usize = 1_000;

/// The newest report of each node that is not stored yet.
#[derive(Clone, Default)]
pub(super) struct Reports {
    newest: Arc<Mutex<BTreeMap<NodeId, LaunchReport>>>,
    changed: Arc<Notify>,
}

impl Reports {
    pub(super) fn send(&self, report: LaunchReport) {
        self.lock().insert(report.node.clone(), report);
        self.changed.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, LaunchReport>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores reports; never returns.
    pub(super) async fn store(self, actual: KvBucket) {
        loop {
            let Some((node, report)) = self.lock().pop_first() else {
                self.changed.notified().await;
                continue;
            };
            let key = Reporter::Launcher.key(&node);
            if let Err(error) = actual.put(&key, &report).await {
                tracing::warn!(%node, error = chain(&error), "report not stored; retrying");
                self.lock().entry(node).or_insert(report);
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// A request in the name of a user.
pub(super) enum Ask {
    Submit(Box<JobSpec>, SubmissionId),
    Cancel(JobId, UserId),
}

/// Sends requests to the placer, one after the other, until their sender is gone.
pub(super) async fn ask(bus: Bus, mut requests: mpsc::Receiver<Ask>, events: mpsc::Sender<Event>) {
    while let Some(request) = requests.recv().await {
        let (job, answer) = match request {
            Ask::Submit(spec, submission) => {
                let job = spec.job.clone();
                let Some(user) = spec.user.as_deref().and_then(|user| UserId::new(user).ok())
                else {
                    continue;
                };
                let subject = subject(&bus, RequestTopic::JobSubmitted, user);
                let submission = Some(submission);
                let request = SubmitJob { spec: *spec, submission, user_proven: false };
                (job, bus.request::<_, Reply>(&subject, &request).await)
            }
            Ask::Cancel(job, user) => {
                let subject = subject(&bus, RequestTopic::JobCancelled, user);
                let request = CancelJob { job: job.clone() };
                (job, bus.request::<_, Reply>(&subject, &request).await)
            }
        };
        let refused = refusal(&job, answer);
        if events.send(Event::Answered { job, refused }).await.is_err() {
            return;
        }
    }
}

fn subject(bus: &Bus, topic: RequestTopic, user: UserId) -> Subject {
    Subject::request(bus.cluster().clone(), topic, Requester { rank: Rank::User, user })
}

fn refusal(job: &JobId, answer: Result<Reply, BusError>) -> Option<String> {
    match answer {
        Ok(Reply::Accepted { .. }) => None,
        Ok(Reply::Refused { error }) => Some(error),
        Err(error) => {
            // The machine repeats the request until it is answered.
            tracing::debug!(%job, error = chain(&error), "no answer of the placer");
            None
        }
    }
}
