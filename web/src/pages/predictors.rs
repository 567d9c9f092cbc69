//! The contest of the predictors: their errors against later measurements.

use serde_json::{Map, Value, json};
use wattle_common::messages::{PredictorState, Score, Scores};

use super::{rounded, seconds};
use crate::model::{Model, Now};

const fn state(state: PredictorState) -> &'static str {
    match state {
        PredictorState::Champion => "champion",
        PredictorState::Challenger => "challenger",
        PredictorState::Silent => "silent",
        PredictorState::Failing => "failing",
    }
}

fn scores(scores: &Scores) -> Value {
    let one = |score: Option<Score>| {
        score.map(|score| {
            json!({
                "error": rounded(score.mape_percent, 1),
                "covered": rounded(score.coverage90_percent, 0),
                "windows": score.windows,
            })
        })
    };
    json!({
        "prior": one(scores.prior), "new": one(scores.new_config), "same": one(scores.same_config),
    })
}

/// The content of the page.
pub(super) fn content(model: &Model, _now: Now) -> Value {
    let row = |status: &wattle_common::messages::PredictorStatus| {
        json!({
            "version": status.version,
            "state": state(status.state),
            "champion": status.champion,
            "error": status.error,
            "active_s": status.last_active_us.map(seconds),
            "proposals": status.proposals,
            "refused": status.refused,
            "uncovered": status.windows_uncovered,
            "speed": scores(&status.speed),
            "power": scores(&status.power),
            "latency_ms": status.latency.map(|latency| json!([latency.ms_p50, latency.ms_p90])),
        })
    };
    let rows: Map<String, Value> =
        model.predictors.iter().map(|(name, status)| (name.to_string(), row(status))).collect();
    let mut order: Vec<_> = model.predictors.iter().collect();
    order.sort_by_key(|(name, status)| (!status.champion, name.to_string()));
    let order: Vec<String> = order.into_iter().map(|(name, _)| name.to_string()).collect();
    json!({ "rows": rows, "order": order })
}
