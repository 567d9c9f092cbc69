//! Submissions at a given rate, and their latencies.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use wattle_common::messages::{Reply, SubmitJob};
use wattle_common::subject::RequestTopic;
use wattle_runtime::bus::Bus;
use wattle_testkit::{job_spec, workload};

use super::Site;

/// Connections over which submissions are distributed.
const CONNECTIONS: usize = 4;

/// The submission of a job of `gpus` GPUs, which declares a workload and its duration.
#[must_use]
pub fn submission(job: &str, gpus: u32) -> SubmitJob {
    let mut spec = job_spec(job, gpus);
    spec.workload = Some(workload("resnet50"));
    spec.duration_ms_estimate = Some(4 * 3_600_000);
    spec.checkpoint_signal = Some("SIGUSR1".to_owned());
    SubmitJob { spec, submission: None, user_proven: false }
}

/// Results of submissions.
#[derive(Debug, Default)]
pub struct Results {
    /// Accepted jobs.
    pub accepted: usize,
    /// The causes of refusals, with one entry for each.
    pub refused: Vec<String>,
    /// The errors of requests without an answer.
    pub unanswered: Vec<String>,
    /// Time from each request to its answer, ascending.
    pub latencies: Vec<Duration>,
    /// Time from the first request to the last answer.
    pub took: Duration,
}

impl Results {
    /// The quantile of the latencies; zero without answers.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let index = (share * self.latencies.len().saturating_sub(1) as f64).round() as usize;
        self.latencies.get(index).copied().unwrap_or_default()
    }

    /// Accepted submissions with their median and 99th percentile, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let rate = self.accepted as f64 / self.took.as_secs_f64();
        format!(
            "{} accepted ({rate:.0}/s), {} refused, {} unanswered; median {:.1?}, p99 {:.1?}, longest {:.1?}",
            self.accepted,
            self.refused.len(),
            self.unanswered.len(),
            self.quantile(0.5),
            self.quantile(0.99),
            self.quantile(1.0),
        )
    }
}

/// Submits jobs at `rate` per second, each at its time whether or not earlier ones were answered.
pub async fn submit_at(site: &Site, rate: f64, jobs: Vec<SubmitJob>) -> Results {
    let mut buses: Vec<Arc<Bus>> = Vec::new();
    for _ in 0..CONNECTIONS {
        buses.push(Arc::new(site.connect().await));
    }
    let start = Instant::now();
    let requests = jobs.into_iter().enumerate().map(|(i, job)| {
        let bus = Arc::clone(&buses[i % CONNECTIONS]);
        let at = start + wattle_common::time::span_s(i as f64 / rate);
        tokio::spawn(async move {
            tokio::time::sleep_until(at).await;
            let sent = Instant::now();
            let subject = bus.request_subject(RequestTopic::JobSubmitted);
            let reply = bus.request::<_, Reply>(&subject, &job).await;
            (sent.elapsed(), reply)
        })
    });
    let mut results = Results::default();
    for (latency, reply) in join_all(requests).await.into_iter().flatten() {
        match reply {
            Ok(Reply::Accepted { .. }) => {
                results.accepted += 1;
                results.latencies.push(latency);
            }
            Ok(Reply::Refused { error }) => results.refused.push(error),
            Err(error) => results.unanswered.push(error.to_string()),
        }
    }
    results.latencies.sort();
    results.took = start.elapsed();
    results
}
