//! Submissions and cancellations in the name of a job's owner.

use tokio::sync::mpsc;
use wattle_common::JobId;
use wattle_common::id::{SubmissionId, UserId};
use wattle_common::job::JobSpec;
use wattle_common::messages::{CancelJob, Reply, SubmitJob};
use wattle_common::subject::{Rank, RequestTopic, Requester, Subject};
use wattle_runtime::bus::{Bus, BusError};
use wattle_runtime::shell::chain;

/// Most requests that wait; those that are dropped must be repeated.
pub const REQUESTS_MAX: usize = 1_000;

/// A request in the name of a user.
#[derive(Debug)]
pub enum PersonRequest {
    /// Submit a job as its user, with this submission.
    Submit(Box<JobSpec>, SubmissionId),
    /// Cancel a job as this user.
    Cancel(JobId, UserId),
}

/// The end of a request.
#[derive(Debug)]
pub struct Answer {
    /// The job.
    pub job: JobId,
    /// Why it was refused; absent: it was accepted, or there was no answer.
    pub refused: Option<String>,
}

/// Sends requests to the placer, one after the other, until their sender is gone.
pub async fn send(
    bus: Bus,
    mut requests: mpsc::Receiver<PersonRequest>,
    answers: mpsc::Sender<Answer>,
) {
    while let Some(request) = requests.recv().await {
        let (job, answer) = match request {
            PersonRequest::Submit(spec, submission) => {
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
            PersonRequest::Cancel(job, user) => {
                let subject = subject(&bus, RequestTopic::JobCancelled, user);
                let request = CancelJob { job: job.clone() };
                (job, bus.request::<_, Reply>(&subject, &request).await)
            }
        };
        let refused = refusal(&job, answer);
        if answers.send(Answer { job, refused }).await.is_err() {
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
            // The request is repeated until it is answered.
            tracing::debug!(%job, error = chain(&error), "no answer of the placer");
            None
        }
    }
}
