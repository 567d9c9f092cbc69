//! Requests of people: received with their sender, answered, and recorded in the log of orders.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::messages::{EventPlanReply, JobsReply, Order, PlanEvent, ReadJobs, Reply};
use wattle_common::subject::Requester;
use wattle_runtime::bus::Request;
use wattle_runtime::clock;
use wattle_runtime::orders::requester_of;
use wattle_runtime::shell::chain;

use super::PlacerService;
use super::access::{self, Sender};
use crate::live::{Placer, RequestNumber};

/// A request that is not answered yet.
pub(super) struct Waiting {
    request: Request,
    requester: Requester,
    order: Order,
}

impl PlacerService {
    /// Decodes a request, checks that its sender has the right to it, and assigns its number. Refuses
    /// it otherwise.
    pub(super) async fn receive<T: DeserializeOwned>(
        &mut self,
        request: Request,
        permit: impl FnOnce(&Placer, &Sender, &mut T) -> (Order, Result<(), String>),
    ) -> Option<(RequestNumber, T)> {
        let requester = match requester_of(&self.bus, &request) {
            Ok(requester) => requester,
            Err(error) => {
                tracing::warn!(subject = request.subject, error, "request refused");
                answer(&request, &Reply::Refused { error }).await;
                return None;
            }
        };
        let sender = Sender { requester, proven: self.bus.has_own_key() };
        let (order, error, body) = match request.decode::<T>() {
            Ok(mut body) => {
                let (order, permitted) = permit(&self.placer, &sender, &mut body);
                (order, permitted.err(), Some(body))
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                let error = format!("{error}{}", cause.unwrap_or_default());
                tracing::warn!(
                    subject = request.subject,
                    error,
                    "request refused: it cannot be decoded"
                );
                (access::unreadable(&request.subject), Some(error), None)
            }
        };
        let requester = sender.requester;
        match (error, body) {
            (None, Some(body)) => {
                self.count += 1;
                self.waiting.insert(self.count, Waiting { request, requester, order });
                Some((self.count, body))
            }
            (error, _) => {
                self.orders_log.record(&requester, order, error.as_deref());
                let error = error.unwrap_or_default();
                answer(&request, &Reply::Refused { error }).await;
                None
            }
        }
    }

    /// Answers a request for the records of jobs.
    pub(super) async fn answer_read(&self, request: &Request) {
        let reply = match (requester_of(&self.bus, request), request.decode::<ReadJobs>()) {
            (Ok(requester), Ok(body)) => self.placer.records(&requester, &body),
            (Err(error), _) => JobsReply::Refused { error },
            (_, Err(error)) => JobsReply::Refused { error: chain(&error) },
        };
        answer(request, &reply).await;
    }

    /// Answers a request for the plan of a grid event. The plan is computed beside the rounds, one at a time.
    pub(super) async fn plan_event(&self, request: Request) {
        let busy = || "another plan is being computed; repeat the request".to_owned();
        let planning = match (requester_of(&self.bus, &request), request.decode::<PlanEvent>()) {
            (Ok(requester), Ok(_)) if !requester.may_operate() => {
                Err("only an operator plans events: use the key of an operator".to_owned())
            }
            (Ok(_), Ok(body)) => match Arc::clone(&self.planning).try_acquire_owned() {
                Ok(permit) => {
                    let planning = self.placer.event_planning(clock::now(), &body);
                    planning.map(|planning| (planning, permit))
                }
                Err(_) => Err(busy()),
            },
            (Err(error), _) => Err(error),
            (_, Err(error)) => Err(chain(&error)),
        };
        let (planning, permit) = match planning {
            Ok(both) => both,
            Err(error) => return answer(&request, &EventPlanReply::Refused { error }).await,
        };
        tokio::spawn(async move {
            let planned = tokio::task::spawn_blocking(move || Box::new(planning.plan())).await;
            let reply = match planned {
                Ok(plan) => EventPlanReply::Planned { plan },
                Err(error) => EventPlanReply::Refused { error: chain(&error) },
            };
            drop(permit);
            answer(&request, &reply).await;
        });
    }

    /// Answers an order and records it in the log of orders.
    pub(super) async fn conclude<T: Serialize + std::fmt::Debug>(
        &mut self,
        number: RequestNumber,
        reply: &T,
        refused: Option<&str>,
    ) {
        let Some(Waiting { request, requester, order }) = self.waiting.remove(&number) else {
            return;
        };
        self.orders_log.record(&requester, order, refused);
        answer(&request, reply).await;
    }
}

async fn answer<T: Serialize + std::fmt::Debug>(request: &Request, reply: &T) {
    if let Err(error) = request.respond(reply).await {
        let error = chain(&error);
        tracing::warn!(
            error,
            subject = request.subject,
            "cannot send a reply; the client may repeat its request"
        );
    }
}
