//! The rights of requesters: users change their own jobs, operators change everything.
//!
//! The person comes from the subject of the request, on which only that person's key may publish; the
//! payload is not trusted.

use wattle_common::event::{Depth, kw};
use wattle_common::messages::{CancelJob, EventRequest, Order, SetBudget, SubmitJob};
use wattle_common::subject::{Rank, Requester, Subject};
use wattle_common::{JobId, NodeId, Power};

use crate::live::Placer;

/// The sender of a request.
pub(super) struct Sender {
    pub(super) requester: Requester,
    /// Whether the NATS server has proven its identity.
    pub(super) proven: bool,
}

/// Permits a submission, and sets the owner of the job.
pub(super) fn submit(
    _: &Placer,
    sender: &Sender,
    request: &mut SubmitJob,
) -> (Order, Result<(), String>) {
    let order = Order::Submit { job: request.spec.job.clone() };
    match sender.requester.rank {
        Rank::Monitor => {
            return (order, Err("a monitor may not submit jobs: use the key of a user".to_owned()));
        }
        // A replayed trace has jobs of several users; nothing is proven.
        Rank::Local if request.spec.user.is_some() => {}
        Rank::User | Rank::Operator | Rank::Local => {
            request.spec.user = Some(sender.requester.user.to_string());
        }
    }
    request.user_proven = sender.proven;
    (order, Ok(()))
}

/// Permits a cancellation.
pub(super) fn cancel(
    placer: &Placer,
    sender: &Sender,
    request: &mut CancelJob,
) -> (Order, Result<(), String>) {
    let (order, job) = (Order::Cancel { job: request.job.clone() }, &request.job);
    let permitted = match placer.owner(job) {
        // The same text as for an unknown job: a user cannot find out which jobs others have.
        Some(owner) if !sender.requester.may_change(owner) => {
            Err(format!("unknown job `{job}`; `wattle jobs` lists all jobs"))
        }
        Some(_) | None => Ok(()),
    };
    (order, permitted)
}

/// Permits a budget.
pub(super) fn set_budget(
    _: &Placer,
    sender: &Sender,
    request: &mut SetBudget,
) -> (Order, Result<(), String>) {
    let budget = &request.budget;
    let limits = [
        budget.energy_mj.map(|energy| format!("{:.3} kWh", energy.as_kwh())),
        budget.carbon_ug.map(|carbon| format!("{:.3} kg", carbon.as_kg())),
        budget.power_mw.map(|power| format!("{:.3} kW", power.as_w() / 1e3)),
        budget.power_series.as_ref().map(|series| {
            let (least, most) = series.range();
            let kw = |power: Power| power.as_w() / 1e3;
            format!("{:.3} to {:.3} kW in {} steps", kw(least), kw(most), series.steps.len())
        }),
    ];
    let limits: Vec<String> = limits.into_iter().flatten().collect();
    let text = if limits.is_empty() { "without limits".to_owned() } else { limits.join(", ") };
    let permitted = if sender.requester.may_operate() {
        Ok(())
    } else {
        Err("only an operator sets the budget: use the key of an operator".to_owned())
    };
    (Order::Budget { budget: text }, permitted)
}

/// Permits a request about a grid event.
pub(super) fn set_event(
    _: &Placer,
    sender: &Sender,
    request: &mut EventRequest,
) -> (Order, Result<(), String>) {
    let change = match &*request {
        EventRequest::Add { event } => match event.depth {
            Depth::Target { power_mw } => format!("add, to {}", kw(power_mw)),
            Depth::Reduction { power_mw } => format!("add, {} less", kw(power_mw)),
            Depth::Percent { percent } => format!("add, {percent} % less"),
        },
        EventRequest::Change { duration_s, .. } => format!("change to {duration_s} s"),
        EventRequest::Cancel { .. } => "cancel".to_owned(),
        EventRequest::Decline { .. } => "decline".to_owned(),
    };
    let permitted = if sender.requester.may_operate() {
        Ok(())
    } else {
        Err("only an operator announces and changes events: use the key of an operator".to_owned())
    };
    (Order::Event { event: request.event().clone(), change }, permitted)
}

/// The order of a request that cannot be decoded.
pub(super) fn unreadable(subject: &str) -> Order {
    let topic = subject.parse::<Subject>().map(|subject| subject.topic().token().to_owned());
    Order::Unreadable { topic: topic.unwrap_or_default() }
}

/// Whether a message on `subject` may be about this node and job: a node's key may publish only on
/// subjects of its own node.
pub(super) fn is_about(subject: &str, node: Option<&NodeId>, job: Option<&JobId>) -> bool {
    subject
        .parse::<Subject>()
        .is_ok_and(|subject| subject.node() == node && (job.is_none() || subject.job() == job))
}
