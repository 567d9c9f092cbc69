//! Waits for views that reflect a request, whatever they have shown before.
//!
//! A value that a test waits for may also be that of an earlier view. The generation in the reply to a request
//! excludes those.

use serde_json::Value;
use wattle_common::NodeId;
use wattle_common::messages::{BudgetStatus, PowerReport, PredictorStatus};
use wattle_common::subject::{BUDGET_STATUS, Bucket, Reporter};
use wattle_runtime::bus::Bus;

use crate::until;

/// The generation in the reply that a command prints with `--json`, or of a stored value.
#[must_use]
pub fn generation(value: &Value) -> u64 {
    value["generation"].as_u64().unwrap_or_else(|| panic!("no generation in {value}"))
}

/// Waits until the view under `key` reflects at least this generation, and returns the view.
async fn at_least(bus: &Bus, bucket: Bucket, key: &str, least: u64) -> Value {
    until(&format!("`{key}` reflects generation {least}"), async || {
        let (view, _) = bus.bucket(bucket).await.ok()?.get::<Value>(key).await.ok()??;
        (view["observed_generation"].as_u64()? >= least).then_some(view)
    })
    .await
}

/// Waits until the budget's status reflects the budget of this reply.
pub async fn budget(bus: &Bus, reply: &Value) -> BudgetStatus {
    let status = at_least(bus, Bucket::Budget, BUDGET_STATUS, generation(reply)).await;
    serde_json::from_value(status).expect("a status of the budget")
}

/// Waits until the status of `predictor` reflects the promotion of this reply.
pub async fn promotion(bus: &Bus, predictor: &str, reply: &Value) -> PredictorStatus {
    let key = format!("status.{predictor}");
    let status = at_least(bus, Bucket::Predictors, &key, generation(reply)).await;
    serde_json::from_value(status).expect("a status of a predictor")
}

/// Waits until the reports of a node's launcher and power agent reflect its present desired state, and returns
/// the power agent's.
pub async fn orders(bus: &Bus, node: &str) -> PowerReport {
    let ordered = until(&format!("{node} has an order"), async || {
        let (order, _) =
            bus.bucket(Bucket::Desired).await.ok()?.get::<Value>(node).await.ok()??;
        Some(generation(&order))
    })
    .await;
    let node = NodeId::new(node).expect("the id of a node");
    at_least(bus, Bucket::Actual, &Reporter::Launcher.key(&node), ordered).await;
    let report = at_least(bus, Bucket::Actual, &Reporter::Power.key(&node), ordered).await;
    serde_json::from_value(report).expect("a report of a power agent")
}
