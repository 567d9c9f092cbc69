//! Several placers of a cluster: one leads, another takes over, an earlier leader changes nothing.

use std::collections::BTreeSet;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use wattle_common::id::SubmissionId;
use wattle_common::job::JobPhase;
use wattle_common::messages::{
    CancelJob, JobEnergy, JobRecord, LaunchState, LedgerEntry, NodeDesired, Reply, SubmitJob,
};
use wattle_common::subject::{NodeTopic, RequestTopic, Subject};
use wattle_common::{Energy, JobId, Timestamp, codec};
use wattle_runtime::clock;
use wattle_testkit::ledger_entry;

use crate::site::{Site, accepted, cancelled, cluster, node, spec};

/// Time between two requests of one user.
const SUBMIT_EVERY: Duration = Duration::from_millis(20);
/// Time after which a request is repeated for the first time, doubled for each further one: a placer that ends may
/// leave one without an answer.
const REPEAT_AFTER: Duration = Duration::from_millis(300);

fn signal(placer: &Child, signal: &str) {
    let sent = Command::new("kill").args([format!("-{signal}"), placer.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// Ends a placer when the test ends.
struct Second(Child);

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Site {
    /// The states of all placers that answer.
    async fn states(&self) -> BTreeSet<(u32, String)> {
        let found = self.bus.services("wattle-placer", Duration::from_millis(100)).await;
        let placers = found.unwrap_or_default();
        let state = |word: &str, metadata: &std::collections::BTreeMap<String, String>| {
            metadata.get(word).cloned().unwrap_or_default()
        };
        placers
            .iter()
            .map(|found| {
                (state("pid", &found.metadata).parse().unwrap(), state("state", &found.metadata))
            })
            .collect()
    }

    async fn until_state(&self, placer: &Child, wanted: &str) {
        let wanted = (placer.id(), wanted.to_owned());
        self.until(&format!("{wanted:?}"), async || {
            self.states().await.contains(&wanted).then_some(())
        })
        .await;
    }

    /// Waits until two more jobs are accepted.
    async fn until_more(&self, count: &AtomicUsize) {
        let so_far = count.load(Ordering::Relaxed);
        let more = async || (count.load(Ordering::Relaxed) > so_far + 1).then_some(());
        self.until("two more jobs are accepted", more).await;
    }

    /// Stores a ledger entry in which job `a` used a joule, of this second after an instant of its run.
    async fn meter(&self, began: Timestamp, second: u64) {
        let from = began + Duration::from_secs(second);
        let job = JobEnergy {
            job: JobId::new("a").unwrap(),
            admission: None,
            energy_mj: Energy::from_j(1),
            user: None,
            project: None,
            compared: None,
        };
        let entry = LedgerEntry {
            jobs: vec![job],
            ..ledger_entry("n0", from, from + Duration::from_secs(1), Energy::from_j(2))
        };
        let subject = Subject::of_node(cluster(), NodeTopic::EnergyMetered, node());
        self.bus.store(&subject, &format!("n0-{second}"), &entry).await.unwrap();
    }
}

/// With jobs running, submissions under way and energy being metered, no record is lost, no attempt
/// doubled and no joule counted twice, after kill -9 of the leader and after its clean stop. How long a
/// takeover takes is a test of the lease on virtual time (`common/src/lease/takeover_tests.rs`).
#[tokio::test(flavor = "multi_thread")]
async fn another_placer_takes_over_and_loses_nothing() {
    let mut site = Site::new().await;
    site.power(2).await;
    site.launch(0, &[]).await;
    assert_eq!(site.submit(spec("a", 1)).await, accepted("a"));
    let order = site.order("a is ordered", |order| order.jobs.len() == 1).await;
    site.launch(order.generation, &[("a", 1, LaunchState::Running)]).await;
    site.record("a", |record| record.phase == JobPhase::Running).await;
    let began = clock::now();
    let second = Second(site.spawn_placer_as("second"));
    let third = Second(site.spawn_placer_as("third"));
    let first = site.placer.take().unwrap();
    site.until_state(&first, "active").await;
    site.until_state(&second.0, "standby").await;
    site.until_state(&third.0, "standby").await;

    // A user who submits one job after another and repeats what is not answered.
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (bus, ended, accepted_jobs) = (site.bus.clone(), stop.clone(), count.clone());
    let submissions = tokio::spawn(async move {
        let mut accepted_at = Vec::new();
        let mut pace = tokio::time::interval(SUBMIT_EVERY);
        while !ended.load(Ordering::Relaxed) {
            let job = format!("s{}", accepted_at.len());
            let subject = bus.request_subject(RequestTopic::JobSubmitted);
            let submission = SubmissionId::new(&format!("once-{job}")).ok();
            let request = SubmitJob { spec: spec(&job, 2), submission, user_proven: false };
            let mut patience = REPEAT_AFTER;
            loop {
                pace.tick().await;
                let reply = bus.request::<_, Reply>(&subject, &request);
                match tokio::time::timeout(patience, reply).await {
                    Ok(Ok(Reply::Accepted { .. })) => break accepted_at.push(clock::monotonic()),
                    Ok(Ok(Reply::Refused { error })) => panic!("{job} is refused: {error}"),
                    // Not answered: the client repeats its request.
                    Ok(Err(_)) => {}
                    Err(_) => patience *= 2,
                }
            }
            accepted_jobs.store(accepted_at.len(), Ordering::Relaxed);
        }
        accepted_at
    });
    site.meter(began, 0).await;
    site.until_more(&count).await;

    // Not waited for: its process id exists, so nothing but its silence shows that it has ended.
    signal(&first, "KILL");
    let killed = clock::monotonic();
    site.meter(began, 1).await;
    let led = site
        .until("another leads", async || {
            let states = site.states().await;
            states.iter().find(|(_, state)| state == "active").map(|(pid, _)| *pid)
        })
        .await;
    site.meter(began, 2).await;
    // The node's report was on its way.
    site.launch(order.generation, &[("a", 1, LaunchState::Running)]).await;
    let (leader, last) = if led == second.0.id() { (second, third) } else { (third, second) };
    assert_eq!(leader.0.id(), led);

    // The clean stop.
    site.until_more(&count).await;
    signal(&leader.0, "TERM");
    let stopped = clock::monotonic();
    site.until_state(&last.0, "active").await;
    site.meter(began, 3).await;
    site.until_more(&count).await;
    let counted = |record: &JobRecord| record.energy_mj == Some(Energy::from_j(4));
    let record = site.record("a", counted).await;
    assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1), "{record:#?}");
    stop.store(true, Ordering::Relaxed);
    let accepted_at = submissions.await.unwrap();
    // The longest time without an accepted submission.
    let gap = |from: Duration, until: Duration| {
        let ends = accepted_at.windows(2).filter(|pair| pair[1] > from && pair[0] < until);
        ends.map(|pair| pair[1] - pair[0]).max().unwrap()
    };
    let (kill_9, clean) = (gap(killed, stopped), gap(stopped, Duration::MAX));
    println!("takeover: {kill_9:?} after kill -9, {clean:?} after a clean stop");
    for number in 0..accepted_at.len() {
        let record = site.record(&format!("s{number}"), |_| true).await;
        assert_eq!((record.phase, record.attempt), (JobPhase::Queued, 0), "{record:#?}");
    }
    let order = site.order("the order", |_| true).await;
    let jobs: Vec<_> = order.jobs.iter().map(|job| (job.job.as_str(), job.attempt)).collect();
    assert_eq!(jobs, [("a", 1)]);
    drop(first);
}

/// A leader that was paused past its lease and continues: none of its orders reaches a node, and none of
/// its records the store; it returns to standby and can lead again.
#[tokio::test(flavor = "multi_thread")]
async fn paused_leader_orders_nothing_after_another_led() {
    let site = Site::new().await;
    site.power(2).await;
    site.launch(0, &[]).await;
    assert_eq!(site.submit(spec("a", 1)).await, accepted("a"));
    let order = site.order("a is ordered", |order| order.jobs.len() == 1).await;
    site.launch(order.generation, &[("a", 1, LaunchState::Running)]).await;
    site.record("a", |record| record.phase == JobPhase::Running).await;
    let second = Second(site.spawn_placer_as("second"));
    site.until_state(&second.0, "standby").await;
    let mut orders = site.desired.watch().await.unwrap();
    orders.initial().await;

    let first = site.placer.as_ref().unwrap();
    signal(first, "STOP");
    site.until_state(&second.0, "active").await;
    // The new leader changes what the paused one knows, and both have messages to process.
    let cancel = CancelJob { job: JobId::new("a").unwrap() };
    assert_eq!(site.request(RequestTopic::JobCancelled, &cancel).await, cancelled("a"));
    let stop = site.order("a is to stop", |order| order.jobs.iter().all(|job| job.stop)).await;
    site.launch(stop.generation, &[("a", 1, LaunchState::STOPPED)]).await;
    site.record("a", |record| record.phase == JobPhase::Cancelled).await;
    let empty = site.order("nothing is ordered", |order| order.jobs.is_empty()).await;
    site.power(2).await;
    // All orders so far have been received.
    site.until("the last order", async || {
        let change = orders.next().await?;
        let order: NodeDesired = codec::decode_json(&change.value?).unwrap();
        (order.issued_at_us >= empty.issued_at_us && order.jobs.is_empty()).then_some(())
    })
    .await;

    signal(first, "CONT");
    site.until("the first placer is on standby", async || {
        site.log().contains("another placer is active in this cluster because").then_some(())
    })
    .await;
    site.until_state(first, "standby").await;
    // A renewal of the lease of the order by the leader, which is after all that the first one sent.
    let now = clock::now();
    site.until("the order is renewed", async || {
        let change = orders.next().await?;
        let order: NodeDesired = codec::decode_json(&change.value?).unwrap();
        assert!(order.jobs.is_empty() && order.generation >= empty.generation, "{order:#?}");
        (order.issued_at_us > now).then_some(())
    })
    .await;
    assert_eq!(site.record("a", |_| true).await.phase, JobPhase::Cancelled);
    // Exactly one placer answers, and the first can lead again.
    assert_eq!(site.submit(spec("b", 1)).await, accepted("b"));
    signal(&second.0, "TERM");
    site.until_state(first, "active").await;
    assert_eq!(site.submit(spec("c", 1)).await, accepted("c"));
    let order = site.order("b and c are ordered", |order| order.jobs.len() == 2).await;
    assert!(order.generation > empty.generation);
}

/// The server loses its whole store while no placer is active: the one on standby stores the records again from the
/// copy that it has kept, also those of jobs that no node knows.
#[tokio::test(flavor = "multi_thread")]
async fn queued_jobs_survive_a_lost_store_while_one_placer_lives() {
    let mut site = Site::new().await;
    let jobs: Vec<String> = (0..15).map(|number| format!("q{number}")).collect();
    for job in &jobs {
        assert_eq!(site.submit(spec(job, 1)).await, accepted(job));
    }
    let second = Second(site.spawn_placer_as("second"));
    site.until_state(&second.0, "standby").await;
    site.server.kill();
    site.kill_placer();
    site.server.restart_empty().await;
    site.until_state(&second.0, "active").await;
    for job in &jobs {
        let record = site.record(job, |_| true).await;
        assert_eq!((record.phase, record.attempt), (JobPhase::Queued, 0), "{record:#?}");
    }
    assert_eq!(site.submit(spec("next", 1)).await, accepted("next"));
}
