//! One job: why it runs where it does, what it costs, predicted against measured.

use serde_json::{Value, json};
use wattle_common::JobId;
use wattle_common::messages::{Estimate, JobRecord};
use wattle_view::alternatives::{Work, costs};
use wattle_view::consequence;
use wattle_view::intensity::intensity_at;
use wattle_view::label;
use wattle_view::measured::Measured;
use wattle_view::prediction::current;

use super::jobs::row;
use super::life;
use super::{rounded, seconds, significant, watt_hours};
use crate::model::detail::Detail;
use crate::model::{Model, Now};

fn estimate(estimate: &Estimate) -> Value {
    json!([significant(estimate.mean), significant(estimate.low), significant(estimate.high)])
}

fn measured(one: &Measured) -> Value {
    let here = &one.configuration;
    let neighbours: Vec<&str> = here.neighbours.iter().map(String::as_str).collect();
    let predicted = one.predicted.as_ref();
    json!({
        "label": label(here.gpus, here.cap_mw, here.clock_mhz_max, &neighbours),
        "span_s": rounded(one.span_s, 0),
        "rate": one.steps_per_s.map(significant),
        "rate_predicted": predicted.and_then(|point| point.steps_per_s.as_ref()).map(estimate),
        "gpu_w": one.gpu_power_w.map(|watts| rounded(watts, 1)),
        "gpu_w_predicted": predicted.map(|point| estimate(&point.gpu_power_w)),
    })
}

fn reasons(record: &JobRecord) -> Vec<Value> {
    let reason = |reason: &wattle_common::messages::RecordedReason| {
        json!({
            "at_s": seconds(reason.at_us), "by": reason.decided_by(), "decision": reason.decision,
            "reason": reason.reason, "details": reason.details,
            "consequence": reason.consequence.as_ref().and_then(consequence::sentence),
        })
    };
    record.reasons.iter().rev().map(reason).collect()
}

/// What needs the full record, the surface and the windows.
fn details(record: &JobRecord, detail: &Detail, now: Now) -> Value {
    let prediction = current(record, detail.surface.as_ref());
    let work = Work::of(record);
    let costs: Vec<Value> = prediction
        .iter()
        .flat_map(|prediction| costs(prediction, &work))
        .map(|cost| {
            json!({
                "label": cost.label, "rate": significant(cost.rate),
                "gpu_w": rounded(cost.gpu_power_w, 0), "time_s": rounded(cost.time_s, 0),
                "wh": cost.energy_j.map(|joules| significant(joules / 3.6e3)),
            })
        })
        .collect();
    json!({
        "reasons": reasons(record),
        "life": detail.read.map(|_| life::content(record, &detail.life, now)),
        "work": work.words,
        "costs": costs,
        "predictor": prediction.as_ref().map(|prediction| prediction.predictor.to_string()),
        "basis": prediction.as_ref().and_then(|prediction| prediction.basis.clone()),
        "windows": prediction.as_ref().map(|prediction| prediction.windows),
        "measured": detail.measured.iter().map(measured).collect::<Vec<_>>(),
        "restart_cost_s": record.restart_cost_ms.map(|ms| rounded(ms as f64 / 1e3, 0)),
        "restarts": record.restart_count(),
        "early_stops": record.early_stops,
        "log_nodes": record.output_nodes(),
    })
}

/// The content of the page.
pub(super) fn content(job: &JobId, model: &Model, now: Now) -> Value {
    let Some(record) = model.jobs.get(job) else {
        return json!({ "job": job.as_str(), "found": false });
    };
    let rates = model.rates();
    let grams = rates.intensity.and_then(|series| intensity_at(series, now.at));
    let price = rates.prices.and_then(|prices| prices.at(now.at));
    let detail = model.details.get(job);
    let full = detail.and_then(|detail| Some(details(detail.record.as_ref()?, detail, now)));
    json!({
        "job": job.as_str(),
        "found": true,
        "row": row(record, model, now),
        "requested": {
            "gpus": record.spec.gpus.to_string(),
            "gpu_type": record.spec.gpu_type,
            "exclusive": record.spec.exclusive,
        },
        "final": record.phase.is_final(),
        "observing": record.observing,
        "step": record.step,
        "steps_total": record.steps_total,
        "rate": record.steps_per_s.map(significant),
        "epoch": record.epoch,
        "error": record.error,
        "exit_code": record.exit_code,
        "compared": record.compared.map(|compared| json!({
            "used_wh": watt_hours(compared.energy_mj),
            "default_wh": watt_hours(compared.energy_mj_default),
            "saved_wh": significant(compared.saved_mj() / 3.6e6),
            "share": compared.saved_share().map(|share| rounded(share, 4)),
            "slowdown": compared.slowdown().map(|share| rounded(share, 4)),
        })),
        "intensity_g_per_kwh": grams.map(|grams| rounded(grams.as_g_per_kwh(), 0)),
        "price_per_kwh": price.map(significant),
        "currency": rates.prices.map(|prices| prices.currency.clone()),
        "details": full,
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::Timestamp;
    use wattle_common::job::JobPhase;
    use wattle_common::messages::RecordedReason;
    use wattle_testkit::{job_record, job_spec};

    use super::*;

    #[test]
    fn a_reason_names_the_stage_that_decided_or_the_policy() {
        let limit = "not enough power within the limit of 3.00 kW".to_owned();
        let at = Timestamp::from_s(300);
        let waits = RecordedReason {
            stage: Some("power limits".to_owned()),
            ..RecordedReason::new(at, "wattle", "waits".to_owned(), limit)
        };
        let placed = RecordedReason { stage: None, ..waits.clone() };
        let mut record = job_record(job_spec("a", 1), JobPhase::Queued);
        record.reasons = vec![placed, waits];
        let by: Vec<Value> = reasons(&record).iter().map(|reason| reason["by"].clone()).collect();
        assert_eq!(by, ["power limits", "wattle"], "the newest comes first");
    }
}
