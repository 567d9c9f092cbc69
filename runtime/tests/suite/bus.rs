//! Core messages, requests and services on a real nats-server.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::common::{cluster, connect, job, until, within};
use futures_util::StreamExt;
use wattle_common::codec;
use wattle_common::id::{JobId, NodeId};
use wattle_common::messages::{JobProgressed, Reply, SubmitJob};
use wattle_common::subject::{Bucket, JobTopic, NodeTopic, RequestTopic, Subject, Topic};
use wattle_common::{ClusterId, Timestamp};
use wattle_runtime::bus::{Bus, BusConfig, BusError};
use wattle_runtime::testing::{HANG, NatsServer};

fn progress_subject(cluster: &ClusterId) -> Subject {
    let (node, job) = (NodeId::new("n0").unwrap(), JobId::new("j1").unwrap());
    Subject::of_job(cluster.clone(), JobTopic::JobProgressed, node, job)
}

fn progress(step: u64) -> JobProgressed {
    JobProgressed {
        job: JobId::new("j1").unwrap(),
        admission: None,
        node: NodeId::new("n0").unwrap(),
        attempt: 1,
        at_us: Timestamp::from_s(7),
        step,
        steps_total: None,
        epoch: None,
        steps_per_epoch: None,
        steps_per_s: None,
    }
}

#[tokio::test]
async fn messages_stay_within_their_cluster() {
    let server = NatsServer::start().await;
    let (east, west) = (connect(&server, "east").await, connect(&server, "west").await);
    let mut in_east = east.subscribe(&Topic::JobProgressed.pattern(east.cluster())).await.unwrap();
    let mut in_west = west.subscribe(&Subject::everything(west.cluster())).await.unwrap();

    let (to_east, to_west) = (progress_subject(east.cluster()), progress_subject(west.cluster()));
    east.publish(&to_east, &progress(1)).await.unwrap();
    west.publish(&to_west, &progress(2)).await.unwrap();

    let delivery = within("east receives", in_east.next()).await.unwrap();
    assert_eq!(delivery.subject.parse::<Subject>(), Ok(to_east));
    assert!(!delivery.headers);
    assert_eq!(codec::decode_json::<JobProgressed>(&delivery.payload).unwrap(), progress(1));
    // West receives only its own message, although east's was sent first.
    let delivery = within("west receives", in_west.next()).await.unwrap();
    assert_eq!(codec::decode_json::<JobProgressed>(&delivery.payload).unwrap(), progress(2));
}

#[tokio::test]
async fn request_is_answered_refused_or_without_responder() {
    let server = NatsServer::start().await;
    let (placer, client) = (connect(&server, "main").await, connect(&server, "main").await);
    let subject = client.request_subject(RequestTopic::JobSubmitted);

    let unanswered = client.request::<_, Reply>(&subject, &job("j1")).await;
    assert!(matches!(unanswered, Err(BusError::NoResponder { .. })), "{unanswered:?}");

    let service = placer.register("wattle-placer", "Places jobs", &[]).await.unwrap();
    let mut requests = service.endpoint(&subject).await.unwrap();
    let serve = tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            match request.decode::<SubmitJob>() {
                Ok(submitted) => {
                    request
                        .respond(&Reply::Accepted { job: submitted.spec.job, generation: 1 })
                        .await
                        .unwrap();
                }
                Err(error) => request.refuse(400, &error.to_string()).await.unwrap(),
            }
        }
    });
    // The endpoint's subscription and the request use different connections.
    let submit = job("j1");
    let mut reply = None;
    until("the placer answers", async || {
        reply = client.request::<_, Reply>(&subject, &submit).await.ok();
        reply.is_some()
    })
    .await;
    assert_eq!(reply, Some(Reply::Accepted { job: JobId::new("j1").unwrap(), generation: 1 }));

    let refused = client.request::<_, Reply>(&subject, &"no job").await.unwrap_err();
    let BusError::Service { code, message } = &refused else { panic!("{refused:?}") };
    assert_eq!(*code, 400);
    assert!(message.contains("invalid JSON for SubmitJob"), "{message}");

    service.stop().await;
    within("the service stops", serve).await.unwrap();
}

#[tokio::test]
async fn unanswered_request_times_out() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let subject = bus.request_subject(RequestTopic::JobCancelled);
    let service = bus.register("wattle-placer", "Never answers", &[]).await.unwrap();
    let _requests = service.endpoint(&subject).await.unwrap();
    let error = within("the request ends", bus.request::<_, Reply>(&subject, &job("j1"))).await;
    let error = error.unwrap_err();
    assert!(matches!(error, BusError::Timeout { .. }) && error.is_transient(), "{error:?}");
}

/// As `nats micro ls`: a client requests `$SRV.PING`, and every service replies.
#[tokio::test]
async fn services_are_visible_to_any_client() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let _placer = bus.register("wattle-placer", "Places jobs", &[]).await.unwrap();
    let _agent = bus.register("wattle-power-agent", "Caps GPUs", &[("node", "n3")]).await.unwrap();

    let client = async_nats::connect(server.url()).await.unwrap();
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.unwrap();
    client.publish_with_reply("$SRV.PING", inbox, "".into()).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let answer = within("a service answers", answers.next()).await.unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!(answer["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(answer["metadata"]["cluster"], "main");
        seen.push((answer["name"].to_string(), answer["metadata"]["node"].to_string()));
    }
    seen.sort();
    let expected = [("\"wattle-placer\"", "null"), ("\"wattle-power-agent\"", "\"n3\"")];
    assert_eq!(seen, expected.map(|(name, node)| (name.to_owned(), node.to_owned())));
}

/// Services of one name are found with their metadata, within one cluster.
#[tokio::test]
async fn services_are_found_by_name() {
    let server = NatsServer::start().await;
    let (bus, other) = (connect(&server, "main").await, connect(&server, "other").await);
    let words = |name| [("predictor", name)];
    let _a = bus.register("wattle-predictor", "Predicts", &words("a")).await.unwrap();
    let b = bus.register("wattle-predictor", "Predicts", &words("b")).await.unwrap();
    let _c = other.register("wattle-predictor", "Predicts", &words("c")).await.unwrap();
    let placer = bus.register("wattle-placer", "Places jobs", &[]).await.unwrap();
    let submit = Topic::JobSubmitted.pattern(bus.cluster());
    let serves = async || bus.serves("wattle-placer", &submit, Duration::from_millis(200)).await;
    assert!(!serves().await.unwrap(), "it is registered without an endpoint");
    let _submissions = placer.endpoint(&submit).await.unwrap();
    until("it serves", async || serves().await.unwrap()).await;
    let found = async |wanted: &[&str]| {
        let found = bus.services("wattle-predictor", Duration::from_millis(200)).await.unwrap();
        let mut names: Vec<_> = found.iter().map(|s| s.metadata["predictor"].as_str()).collect();
        names.sort_unstable();
        names == wanted
    };
    until("both are found", async || found(&["a", "b"]).await).await;
    b.stop().await;
    until("the stopped service is gone", async || found(&["a"]).await).await;
}

#[tokio::test]
async fn messages_are_not_delivered_after_a_reconnect() {
    let mut server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let subject = progress_subject(bus.cluster());
    let mut messages = bus.subscribe(&subject.to_string()).await.unwrap();
    bus.publish(&subject, &progress(1)).await.unwrap();
    within("the first is received", messages.next()).await.unwrap();

    server.kill();
    until("the loss is noticed", async || !bus.is_connected()).await;
    let error = bus.publish(&subject, &progress(2)).await.unwrap_err();
    assert!(matches!(error, BusError::Disconnected { .. }) && error.is_transient(), "{error:?}");
    let error = bus.request::<_, Reply>(&subject, &progress(2)).await.unwrap_err();
    assert!(matches!(error, BusError::Disconnected { .. }), "{error:?}");
    let error = bus.store(&crate::common::ledger_subject(&bus, "n0"), "x", &1).await.unwrap_err();
    assert!(matches!(error, BusError::Disconnected { .. }), "{error:?}");

    server.restart().await;
    // The subscription is restored; refused messages stay unsent.
    until("it is sent again", async || bus.publish(&subject, &progress(3)).await.is_ok()).await;
    let delivery = within("the subscription receives again", messages.next()).await.unwrap();
    assert_eq!(codec::decode_json::<JobProgressed>(&delivery.payload).unwrap().step, 3);
}

#[tokio::test]
async fn connect_waits_for_the_server() {
    let mut server = NatsServer::start().await;
    server.kill();
    let config = BusConfig::at(&server.url());
    let impatient =
        Bus::connect_within(&config, cluster("main"), "test", Duration::from_millis(50)).await;
    assert!(matches!(impatient, Err(BusError::Disconnected { .. })));
    let waiting = tokio::spawn({
        let config = config.clone();
        async move { Bus::connect(&config, cluster("main"), "test").await }
    });
    server.restart().await;
    let bus = within("it connects", waiting).await.unwrap().unwrap();
    assert!(bus.is_connected());
}

/// A pair made of the 32 bytes `wattle's tests, guarding nothing`.
const NKEY: &str = "UAGSGECBL5IUJH4H5YXHBG7NV6ZQT5LFFGYPMHIUNBC6IQR4S4TC4NF6";
const NKEY_SEED: &str = "SUAHOYLUORWGKJ3TEB2GK43UOMWCAZ3VMFZGI2LOM4QG433UNBUW4Z5MI4";

#[tokio::test]
async fn a_session_ends_when_the_server_refuses_its_key() {
    let with = |key: &str| format!("authorization: {{ users: [ {{ nkey: {key} }} ] }}");
    let server = NatsServer::start_with(&with(NKEY)).await;
    let config = BusConfig::at(&server.url());
    let connect =
        async || Bus::connect_with_key(&config, NKEY_SEED, cluster("main"), "test", HANG).await;
    let session = connect().await.unwrap();
    assert_eq!((session.public_key(), session.has_ended()), (Some(NKEY), false));
    server.reload(&with("UAAACAQDAQCQMBYIBEFAWDANBYHRAEISCMKBKFQXDAMRUGY4DUPB63NN"));
    until("the session ends", async || session.has_ended()).await;
}

#[tokio::test]
async fn nkey_permissions_are_enforced() {
    let forbidden = Topic::JobProgressed.pattern(&cluster("main"));
    let configuration = format!(
        "authorization: {{ users: [ {{ nkey: {NKEY}, permissions: {{ publish: {{ deny: \"{forbidden}\" }} }} }} ] }}"
    );
    let mut server = NatsServer::start_with(&configuration).await;
    let folder = tempfile::tempdir().unwrap();
    let seed = folder.path().join("placer.nk");
    std::fs::write(&seed, format!("{NKEY_SEED}\n")).unwrap();
    std::fs::set_permissions(&seed, PermissionsExt::from_mode(0o600)).unwrap();

    let mut config = BusConfig::at(&server.url());
    let unknown =
        Bus::connect_within(&config, cluster("main"), "test", Duration::from_millis(500)).await;
    let error = unknown.err().expect("an unknown client is refused");
    assert!(matches!(error, BusError::Unauthorized { .. }), "{error}");
    assert!(error.to_string().contains("--credentials"), "{error}");

    config.credentials_file = Some(seed);
    let bus = within("the client connects", Bus::connect(&config, cluster("main"), "test"))
        .await
        .unwrap();
    let mut messages = bus.subscribe(&Subject::everything(bus.cluster())).await.unwrap();
    for _ in 0..2 {
        // The server drops the first without notice to the client.
        bus.publish(&progress_subject(bus.cluster()), &progress(1)).await.unwrap();
        let node = NodeId::new("n0").unwrap();
        let allowed = Subject::of_node(cluster("main"), NodeTopic::NodeSummarized, node);
        bus.publish(&allowed, &progress(2)).await.unwrap();
        let delivery = within("the allowed message is received", messages.next()).await.unwrap();
        assert_eq!(delivery.subject.parse::<Subject>(), Ok(allowed));
        server.restart().await;
        until("the client reconnects", async || bus.is_connected()).await;
    }
}

/// The error with which a command ends that may not publish to this subject and opens a bucket.
async fn error_without(denied: &str) -> BusError {
    let users = format!(
        "authorization: {{ users: [ {{ nkey: {NKEY}, permissions: {{ publish: {{ deny: \"{denied}\" }} }} }} ] }}"
    );
    let server = NatsServer::start_with(&users).await;
    let folder = tempfile::tempdir().unwrap();
    let seed = folder.path().join("user.nk");
    std::fs::write(&seed, format!("{NKEY_SEED}\n")).unwrap();
    std::fs::set_permissions(&seed, PermissionsExt::from_mode(0o600)).unwrap();
    let config = BusConfig { credentials_file: Some(seed), ..BusConfig::at(&server.url()) };
    let bus = Bus::connect_within(&config, cluster("main"), "test", HANG).await.unwrap();
    bus.bucket(Bucket::Jobs).await.err().expect("it cannot be opened")
}

/// A server that does not answer has not stated that a cluster has no storage.
#[tokio::test]
async fn storage_is_missing_only_if_the_server_answers_so() {
    // A starved server may not answer the first time.
    let missing = until("the server answers", async || {
        matches!(error_without("$JS.API.STREAM.CREATE.>").await, BusError::NoStorage { .. })
    });
    let ((), unanswered) = tokio::join!(missing, error_without("$JS.API.STREAM.INFO.>"));
    assert!(matches!(unanswered, BusError::StorageUnanswered { .. }), "{unanswered}");
}

#[tokio::test]
async fn invalid_configuration_fails_at_once() {
    let wrong = |change: fn(&mut BusConfig)| async move {
        let mut config = BusConfig::at("nats://127.0.0.1:4222");
        change(&mut config);
        let connect = Bus::connect(&config, cluster("main"), "test");
        match within("it fails", connect).await {
            Ok(_) => panic!("connected with {config:?}"),
            Err(error) => error,
        }
    };
    let error = wrong(|config| config.url = "not an address".to_owned()).await;
    assert!(error.to_string().contains("nats://HOST:4222"), "{error}");
    let error = wrong(|config| config.ca_file = Some("/nowhere/ca.pem".into())).await;
    assert!(matches!(error, BusError::File { .. }), "{error}");
    let error = wrong(|config| config.credentials_file = Some("/nowhere/seed".into())).await;
    assert!(error.to_string().contains("/nowhere/seed"), "{error}");

    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let subject = progress_subject(bus.cluster());
    let error = bus.publish_bytes(&subject, vec![0; (1 << 20) + 1]).await.unwrap_err();
    assert!(matches!(error, BusError::TooLarge { .. }), "{error}");
}
