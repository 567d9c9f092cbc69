//! Submits a job in the name of the signed-in person, and reviews a form that is being filled in.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::json;
use wattle_common::JobId;
use wattle_common::messages::Reply;
use wattle_common::subject::{Rank, RequestTopic};
use wattle_runtime::bus::{Bus, BusError};
use wattle_runtime::clock;
use wattle_runtime::shell::chain;
use wattle_runtime::user::local_user;

use super::actions::{answer, not_signed_in, refuse};
use super::{Shared, guard};
use crate::submission::{Errors, Form, Submission, unknown_outcome};

/// Longest time until a submitted job is on its page, wall time.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);
/// Interval in which the job is looked for, wall time.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The connection of the person, if it may submit jobs.
fn submitter(shared: &Shared, headers: &HeaderMap) -> Result<Bus, Box<Response>> {
    let Some(bus) = guard::person(shared, headers) else {
        return Err(Box::new(not_signed_in()));
    };
    if bus.requester().rank == Rank::Monitor {
        let error = "a monitor may not submit jobs: sign in with the key of a user";
        return Err(Box::new(refuse(StatusCode::FORBIDDEN, error)));
    }
    Ok(bus)
}

fn wrong(errors: &Errors) -> Response {
    let all: Vec<&str> = errors.values().map(String::as_str).collect();
    answer(StatusCode::BAD_REQUEST, &json!({ "error": all.join("; "), "errors": errors }))
}

/// `POST /api/submit/review` with a form: its errors and the command that it runs. Nothing is submitted.
pub(super) async fn review(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Err(refusal) = submitter(&shared, &headers) {
        return *refusal;
    }
    match serde_json::from_slice::<Form>(&body) {
        Ok(form) => answer(StatusCode::OK, &json!(form.review())),
        Err(error) => refuse(StatusCode::BAD_REQUEST, error),
    }
}

/// `POST /api/submit` with a form and the number of the submission: submits a job, once for each number.
pub(super) async fn submit(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let bus = match submitter(&shared, &headers) {
        Ok(bus) => bus,
        Err(refusal) => return *refusal,
    };
    let submission: Submission = match serde_json::from_slice(&body) {
        Ok(submission) => submission,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, error),
    };
    // Another tab may have signed in with another key: all tabs share the session.
    let person = bus.requester().user.as_str();
    if submission.person.as_deref().is_some_and(|shown| shown != person) {
        let error =
            format!("you are signed in as {person} now; check the form, and submit it again");
        return refuse(StatusCode::CONFLICT, error);
    }
    // Without a key of its own a person is declared, as by `wattle submit`.
    let user = (bus.requester().rank == Rank::Local).then(local_user);
    let request = match submission.request(user, clock::now()) {
        Ok(request) => request,
        Err(errors) => return wrong(&errors),
    };
    match bus.request_repeatedly(RequestTopic::JobSubmitted, &request, |_, _| ()).await {
        Ok(Reply::Accepted { job, .. }) => {
            until_shown(&shared, &job).await;
            answer(StatusCode::OK, &json!({ "job": job }))
        }
        Ok(Reply::Refused { error }) => refuse(StatusCode::CONFLICT, error),
        // It is too large: it was not sent.
        Err(error) if error.is_value_refused() => refuse(StatusCode::BAD_REQUEST, chain(&error)),
        Err(error) => {
            let cause = match &error {
                BusError::Disconnected { .. } => "the NATS server cannot be reached".to_owned(),
                error if error.is_busy() => "the placer has too many requests".to_owned(),
                BusError::NoResponder { .. } | BusError::Timeout { .. } => {
                    "the placer did not answer; is wattle-placer running?".to_owned()
                }
                other => chain(other),
            };
            refuse(StatusCode::BAD_GATEWAY, unknown_outcome(&request.spec.job, &cause))
        }
    }
}

/// Waits until the record of the job, which the placer has stored, is received: its page shows it then.
async fn until_shown(shared: &Shared, job: &JobId) {
    let shown = async {
        while shared.model().jobs.get(job).is_none() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let _ = tokio::time::timeout(SHOWN_WITHIN, shown).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::Value;
    use wattle_common::ClusterId;
    use wattle_common::config::MetricsConfig;
    use wattle_common::job::JobPhase;
    use wattle_common::messages::SubmitJob;
    use wattle_runtime::bus::BusConfig;
    use wattle_runtime::testing::NatsServer;
    use wattle_testkit as testkit;

    use super::super::links::Links;
    use super::*;
    use crate::config::Config;
    use crate::model::Model;

    /// A page with one session on a server without keys, and a placer that keeps what it receives.
    struct Page {
        shared: Arc<Shared>,
        session: String,
        _folder: tempfile::TempDir,
        received: Arc<Mutex<Vec<SubmitJob>>>,
        _server: NatsServer,
    }

    impl Page {
        /// `reply` is that of the placer.
        async fn start(reply: fn(&SubmitJob) -> Reply) -> Self {
            let server = NatsServer::start().await;
            let nats = BusConfig::at(&server.url());
            let cluster = ClusterId::new("main").unwrap();
            let connect = async || Bus::connect(&nats, cluster.clone(), "test").await.unwrap();
            let (bus, placer) = (connect().await, connect().await);
            let subject = bus.request_subject(RequestTopic::JobSubmitted);
            let received = Arc::new(Mutex::new(Vec::new()));
            let into = Arc::clone(&received);
            let service = placer.register("wattle-placer", "a test", &[]).await.unwrap();
            let mut requests = service.endpoint(subject).await.unwrap();
            tokio::spawn(async move {
                let _service = service;
                while let Some(request) = requests.next().await {
                    let submit: SubmitJob = request.decode().unwrap();
                    request.respond(&reply(&submit)).await.unwrap();
                    into.lock().unwrap().push(submit);
                }
            });
            let config = Config {
                cluster,
                listen: "127.0.0.1:8620".parse().unwrap(),
                hosts: Vec::new(),
                permit_insecure: false,
                require_sign_in: false,
                sign_in_file: None,
                viewers_max: 1,
                metrics: MetricsConfig::default(),
                nats,
            };
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("page.json");
            let links = Links::open(&file, config.listen).unwrap();
            let stored: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
            let session = links.begin(stored["token"].as_str().unwrap()).unwrap().unwrap();
            let shared = Arc::new(Shared {
                links: Some(links),
                model: Mutex::new(Model::new("main")),
                hub: Mutex::new(super::super::hub::Hub::new(1)),
                sessions: super::super::sessions::Sessions::new(1),
                bus,
                config,
            });
            // The page waits for the record of a submitted job.
            let record = testkit::job_record(testkit::job_spec("sh-1f", 1), JobPhase::Queued);
            shared.model().job("sh-1f", Some(&serde_json::to_vec(&record).unwrap()));
            Self { shared, session, _folder: folder, received, _server: server }
        }

        /// The headers of a request from this machine with this session.
        fn headers(session: &str) -> HeaderMap {
            let mut headers = HeaderMap::new();
            headers.insert("host", "127.0.0.1:8620".parse().unwrap());
            headers.insert("cookie", format!("{}={session}", guard::COOKIE).parse().unwrap());
            headers
        }

        async fn submit_with(&self, session: &str, body: &str) -> (StatusCode, Value) {
            let state = State(Arc::clone(&self.shared));
            let body = Bytes::copy_from_slice(body.as_bytes());
            read(submit(state, Self::headers(session), body).await).await
        }

        async fn submit(&self, body: &str) -> (StatusCode, Value) {
            self.submit_with(&self.session, body).await
        }

        async fn review_with(&self, session: &str, body: &str) -> (StatusCode, Value) {
            let state = State(Arc::clone(&self.shared));
            let body = Bytes::copy_from_slice(body.as_bytes());
            read(review(state, Self::headers(session), body).await).await
        }
    }

    async fn read(response: Response) -> (StatusCode, Value) {
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    fn accepted(request: &SubmitJob) -> Reply {
        Reply::Accepted { job: request.spec.job.clone(), generation: 1 }
    }

    const SLEEP: &str = r#"{"form":{"command":"sleep 1","shell":true},"number":"1f"}"#;

    #[tokio::test]
    async fn without_a_session_nothing_is_submitted() {
        let page = Page::start(accepted).await;
        assert_eq!(page.submit_with("", SLEEP).await.0, StatusCode::UNAUTHORIZED);
        assert_eq!(page.review_with("17", "{}").await.0, StatusCode::UNAUTHORIZED);
        assert!(page.received.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn invalid_forms_name_the_fields_and_are_not_sent() {
        let page = Page::start(accepted).await;
        let body = r#"{"form":{"command":"a","gpus":"0","deadline":"soon"},"number":"1f"}"#;
        let (status, value) = page.submit(body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let expected = "invalid number of GPUs `0`: expected a number or a range, as in 4 or 1..8";
        assert_eq!(value["errors"]["gpus"], expected);
        let expected = "invalid duration `soon`: expected 90s, 45m, 12h or 3d";
        assert_eq!(value["errors"]["deadline"], expected);
        for body in ["", "[]", r#"{"form":{"user":"olga"},"number":"1f"}"#, r#"{"form":{}}"#] {
            assert_eq!(page.submit(body).await.0, StatusCode::BAD_REQUEST, "{body}");
        }
        let (status, value) =
            page.review_with(&page.session, r#"{"command":"a 'b c'","gpus":"0"}"#).await;
        assert_eq!((status, &value["words"]), (StatusCode::OK, &json!(["a", "b c"])));
        assert!(value["errors"]["gpus"].is_string());
        assert!(page.received.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn the_owner_is_the_person_that_the_page_shows() {
        let page = Page::start(accepted).await;
        let by = |person: &str| {
            let form = json!({ "command": "sleep 1", "shell": true });
            json!({ "form": form, "number": "1f", "person": person }).to_string()
        };
        let (status, value) = page.submit(&by("olga")).await;
        assert_eq!(status, StatusCode::CONFLICT, "{value}");
        assert!(page.received.lock().unwrap().is_empty());
        let person = page.shared.bus.requester().user.to_string();
        assert_eq!(page.submit(&by(&person)).await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn a_repetition_has_the_same_job_and_submission() {
        let page = Page::start(accepted).await;
        let replies = tokio::join!(page.submit(SLEEP), page.submit(SLEEP));
        for (status, value) in [replies.0, replies.1] {
            assert_eq!((status, value), (StatusCode::OK, json!({ "job": "sh-1f" })));
        }
        let received = page.received.lock().unwrap();
        assert_eq!(received.len(), 2);
        assert!(received.iter().all(|request| request.submission == received[0].submission));
        assert!(received.iter().all(|request| request.spec.job.as_str() == "sh-1f"));
        assert_eq!(received[0].spec.user, Some(local_user()), "as by `wattle submit`");
        assert_eq!(received[0].spec.command, ["sh", "-c", "sleep 1"]);
    }

    #[tokio::test]
    async fn a_refusal_has_the_words_of_the_placer() {
        let page = Page::start(|_| Reply::Refused { error: "no GPU is free".to_owned() }).await;
        let (status, value) = page.submit(SLEEP).await;
        assert_eq!((status, value), (StatusCode::CONFLICT, json!({ "error": "no GPU is free" })));
    }
}
