//! The content of each page as JSON, computed from the model.
//!
//! Numbers have their unit in their name and are rounded to what the page shows, so that a quantity that
//! has not changed visibly is not sent again. A quantity that is not known is absent.

mod budget;
mod energy;
mod event;
mod events;
mod faults;
mod job;
mod jobs;
mod life;
mod nodes;
mod overview;
mod predictors;
mod saving;
mod schedule;
mod services;
#[cfg(test)]
mod states;
mod submit;

use serde_json::{Value, json};
use wattle_common::{Carbon, Energy, Power, Timestamp};

use crate::model::{Model, Now};
use crate::patch::without_nulls;
use crate::topic::Topic;

pub use self::budget::allowance;
pub use self::energy::power_from;
pub use self::events::announcement;

/// Most nodes whose GPUs are drawn one by one.
const DETAILED_NODES_MAX: usize = 64;

/// The content of a page.
#[must_use]
pub fn content(topic: &Topic, model: &Model, now: Now) -> Value {
    let page = match topic {
        Topic::Overview => overview::content(model, now),
        Topic::Jobs(list) => jobs::content(list, model, now),
        Topic::Job(job) => job::content(job, model, now),
        Topic::Submit => submit::content(model),
        Topic::Schedule(list) => schedule::content(list, model, now),
        Topic::Nodes(list) => nodes::content(list, model, now),
        Topic::Energy(period) => energy::content(*period, model, now),
        Topic::Saving => saving::content(model, now),
        Topic::Budget => budget::content(model, now),
        Topic::Events => events::content(model, now),
        Topic::Event(event) => event::content(event, model, now),
        Topic::Predictors => predictors::content(model, now),
        Topic::Services => services::content(model, now),
    };
    without_nulls(json!({
        "cluster": model.cluster,
        // Wall time since the bus was lost, to the second.
        "bus_lost_s": model.lost_since().map(|since| now.steady.saturating_sub(since).as_secs()),
        "page": page,
    }))
}

/// A number with this many decimals; null if it is not finite.
fn rounded(value: f64, decimals: i32) -> Value {
    let scale = 10_f64.powi(decimals);
    let rounded = (value * scale).round() / scale;
    // A whole number without a point is shorter.
    if rounded.is_finite() && rounded.fract() == 0.0 && rounded.abs() < 9e15 {
        json!(rounded as i64)
    } else {
        json!(rounded)
    }
}

/// Watts, to the watt.
fn watts(power: Power) -> Value {
    rounded(power.as_w(), 0)
}

/// Watt-hours with at least four significant digits.
fn watt_hours(energy: Energy) -> Value {
    significant(energy.as_kwh() * 1e3)
}

/// Grams with at least four significant digits.
fn grams(carbon: Carbon) -> Value {
    significant(carbon.as_g())
}

/// At least four significant digits.
fn significant(value: f64) -> Value {
    let size = value.abs();
    rounded(
        value,
        if size >= 1_000.0 {
            0
        } else if size >= 10.0 {
            2
        } else {
            4
        },
    )
}

/// Seconds since the Unix epoch, to the second.
const fn seconds(at: Timestamp) -> u64 {
    at.as_us() / 1_000_000
}

/// A power in a sentence: `840 W`, `12.40 kW`, `1.98 MW`.
fn power_text(power: Power) -> String {
    let watts = power.as_w();
    if watts < 1e3 {
        format!("{watts:.0} W")
    } else if watts < 1e6 {
        format!("{:.2} kW", watts / 1e3)
    } else {
        format!("{:.2} MW", watts / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use wattle_common::codec;
    use wattle_common::job::JobPhase;
    use wattle_common::messages::{GridStatus, PriceSeries};
    use wattle_common::subject::{NodeTopic, Subject};

    use super::*;
    use crate::model::tests::{example, lease, now, summary};

    fn of(parameters: &[(&str, &str)]) -> Value {
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let parameters: BTreeMap<String, String> = parameters.iter().map(text).collect();
        let topic = Topic::parse(&parameters).unwrap();
        let mut model = example();
        model.follow(&wattle_testkit::job("a"));
        content(&topic, &model, now(100))["page"].take()
    }

    #[test]
    fn every_page_has_content_without_nulls() {
        fn has_null(value: &Value) -> bool {
            match value {
                Value::Null => true,
                Value::Object(members) => members.values().any(has_null),
                _ => false,
            }
        }
        let pages = [
            "overview",
            "jobs",
            "job",
            "nodes",
            "schedule",
            "energy",
            "saving",
            "budget",
            "events",
            "event",
            "predictors",
            "services",
        ];
        for page in pages {
            let content = of(&[("topic", page), ("job", "a"), ("event", "peak")]);
            assert!(content.is_object() && !has_null(&content), "{page}: {content}");
        }
    }

    #[test]
    fn overview_begins_with_a_verdict() {
        let page = of(&[("topic", "overview")]);
        let verdict = page["verdict"].as_str().unwrap();
        assert!(verdict.ends_with("680 W of 1.20 kW, 1 running, 1 queued"), "{verdict}");
        assert_eq!(page["nodes"]["n0"]["w"], json!(240));
        assert_eq!(page["gpus"]["busy"], json!(1));
        assert_eq!(page["level"], json!("fault"), "no placer: {page}");
    }

    /// The verdict and the level of the overview.
    fn verdict(model: &Model) -> (String, Value) {
        let parameters = [("topic".to_owned(), "overview".to_owned())];
        let mut page = content(&Topic::parse(&parameters.into()).unwrap(), model, now(100));
        let page = page["page"].take();
        (page["verdict"].as_str().unwrap().to_owned(), page["level"].clone())
    }

    #[test]
    fn the_verdict_names_the_cause() {
        let mut model = example();
        let late = |job: &str, deadline_s| {
            let mut record =
                wattle_testkit::job_record(wattle_testkit::job_spec(job, 1), JobPhase::Running);
            record.spec.deadline_at_us = Some(Timestamp::from_s(deadline_s));
            codec::encode_json(&record)
        };
        let (text, level) = verdict(&model);
        assert!(text.starts_with("no placer is active: no job starts (and 1 more); "), "{text}");
        assert_eq!(level, "fault");
        for service in ["placer", "registry"] {
            let lease = codec::encode_json(&lease());
            model.lease(service, Some(&lease), now(100));
        }
        let (text, level) = verdict(&model);
        assert_eq!((text.as_str(), level), ("680 W of 1.20 kW, 1 running, 1 queued", json!("ok")));
        model.job("t-7", Some(&late("t-7", 40)));
        let (text, level) = verdict(&model);
        assert!(text.starts_with("t-7 is 60 s past its deadline; 680 W"), "{text}");
        assert_eq!(level, "warning");
    }

    #[test]
    fn power_is_compared_with_the_caps_at_its_reading() {
        let mut model = example();
        // A cap was lowered after the last reading of n0, at 240 W of its two GPUs.
        let gpu = |index, cap| wattle_common::messages::AppliedGpu {
            cap_mw: Some(Power::from_w(cap)),
            ..wattle_testkit::applied_gpu(index, "v100")
        };
        let at = Timestamp::from_s(100);
        let report = wattle_testkit::power_report("n0", at, [gpu(0, 100), gpu(1, 100)]);
        let report = codec::encode_json(&report);
        let caps = |model: &Model| {
            let parameters = [("topic".to_owned(), "overview".to_owned())];
            let page = content(&Topic::parse(&parameters.into()).unwrap(), model, now(101));
            (page["page"]["power"]["caps_w"].clone(), page["page"]["nodes"]["n0"]["cap"].clone())
        };
        model.report("power.n0", Some(&report), now(100));
        assert_eq!(caps(&model), (json!(1_200), json!(500)));
        let mut read = summary("n0", 95);
        read.gpus.iter_mut().for_each(|gpu| gpu.cap_mw = Some(Power::from_w(100)));
        model.summary(&codec::encode_json(&read), now(101));
        assert_eq!(caps(&model), (json!(900), json!(200)));
    }

    #[test]
    fn cost_is_shown_where_a_price_is_known() {
        let page = |topic: &str, price: Option<i64>| {
            let parameters = [("topic".to_owned(), topic.to_owned()), ("job".into(), "a".into())];
            let mut model = example();
            let at = Timestamp::from_s;
            let host = Energy::from_j(3_600_000);
            let entry = wattle_testkit::ledger_entry("n0", at(0), at(60), host);
            let cluster = wattle_common::ClusterId::new("test").unwrap();
            let subject = Subject::of_node(cluster, NodeTopic::EnergyMetered, entry.node.clone());
            model.entry(&subject.to_string(), &codec::encode_json(&entry), now(100));
            let steps = price.map(|price| (Timestamp::EPOCH, price)).into_iter().collect();
            let prices = PriceSeries { currency: "EUR".to_owned(), steps };
            let (carbon, prices) = (None, Some(prices));
            let (at_us, observed_generation) = (Timestamp::EPOCH, 1);
            model.grid =
                Some(GridStatus { at_us, observed_generation, carbon, price: None, prices });
            content(&Topic::parse(&parameters.into()).unwrap(), &model, now(100))["page"].take()
        };
        let energy = page("energy", Some(500_000));
        let sums = &energy["sums"];
        let kwh = sums["total_wh"].as_f64().unwrap() / 1e3;
        let cost = sums["cost"].as_f64().unwrap();
        assert!(kwh >= 1.0 && (cost - kwh * 0.5).abs() < 1e-3, "{kwh} kWh: {cost}");
        assert_eq!((&energy["currency"], &sums["cost_is_partial"]), (&json!("EUR"), &json!(false)));
        assert_eq!(page("job", Some(500_000))["price_per_kwh"], json!(0.5));
        assert!(page("overview", Some(500_000))["today"]["cost"].is_number());
        assert!(page("energy", None)["sums"].get("cost").is_none(), "no price is known");
    }

    /// The second GPU of n1 has no meter: a job on it, and readings of the others.
    fn without_a_meter() -> Model {
        use wattle_common::messages::{UnknownCause, UnknownEnergy};
        let mut model = example();
        let gpu = |index, no_meter| wattle_common::messages::AppliedGpu {
            cap_mw: Some(Power::from_w(250)),
            no_meter,
            ..wattle_testkit::applied_gpu(index, "v100")
        };
        let at = Timestamp::from_s;
        let report = wattle_testkit::power_report("n1", at(100), [gpu(0, false), gpu(1, true)]);
        model.report("power.n1", Some(&codec::encode_json(&report)), now(100));
        let mut read = summary("n1", 120);
        read.gpus[1].power_mw_mean = None;
        model.summary(&codec::encode_json(&read), now(100));
        let mut entry = wattle_testkit::ledger_entry("n1", at(0), at(60), Energy::from_j(3_600));
        entry.energy_mj_gpus = vec![Some(Energy::from_j(7_200)), None];
        entry.unknown = vec![UnknownEnergy {
            gpu: 1,
            cause: UnknownCause::NoMeter,
            from_us: at(0),
            until_us: at(60),
            energy_mj: Energy::ZERO,
            unmeasured: true,
            estimate_mj: None,
            jobs: vec![wattle_testkit::job("a")],
            admissions: [].into(),
        }];
        let cluster = wattle_common::ClusterId::new("test").unwrap();
        let subject = Subject::of_node(cluster, NodeTopic::EnergyMetered, entry.node.clone());
        model.entry(&subject.to_string(), &codec::encode_json(&entry), now(100));
        model.tick(true, now(100));
        model
    }

    #[test]
    fn sums_without_the_readings_of_a_gpu_are_marked() {
        let model = without_a_meter();
        let page = |topic: &str| {
            let parameters = [("topic".to_owned(), topic.to_owned())];
            content(&Topic::parse(&parameters.into()).unwrap(), &model, now(100))["page"].take()
        };
        let missing = |of: &str| json!(format!("1 of {of} GPUs has no reading"));
        let overview = page("overview");
        let verdict = overview["verdict"].as_str().unwrap();
        assert!(verdict.contains("; at least 560 W of 1.20 kW, "), "{verdict}");
        let power = &overview["power"];
        assert_eq!((&power["is_partial"], &power["missing"]), (&json!(true), &missing("4")));
        assert_eq!((&power["now_w"], &power["unread_count"]), (&json!(560), &json!(0)));
        let [n0, n1] = ["n0", "n1"].map(|node| &overview["nodes"][node]);
        assert_eq!((&n1["w"], &n1["is_partial"]), (&json!(120), &json!(true)));
        assert!(n0.get("is_partial").is_none(), "{n0}");
        let today = &overview["today"];
        assert_eq!(today["energy"]["total_wh"], json!(3));
        assert_eq!(today["energy"]["is_partial"], json!(true));
        assert_eq!(today["missing"], json!([missing("2")]));
        let energy = page("energy");
        assert_eq!(energy["missing"], missing("2"));
        let sums = &energy["sums"];
        assert_eq!((&sums["total_wh"], &sums["is_partial"]), (&json!(3), &json!(true)));
        assert!(sums.get("jobs_wh").is_none(), "no energy of jobs was measured: {sums}");
        assert_eq!((&sums["jobs_partial"], &sums["idle_wh"]), (&json!(true), &json!(2)));
        assert!(sums.get("idle_partial").is_none());
        let rows = energy["users"]["rows"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[0]["is_partial"]), (1, &json!(true)));
        assert!(rows[0].get("wh").is_none(), "{rows:?}");
        assert_eq!(energy["days"]["0"], energy["sums"]);
    }

    #[test]
    fn lists_are_filtered_and_divided() {
        let rows = |parameters: &[(&str, &str)]| of(parameters)["order"].clone();
        assert_eq!(rows(&[("topic", "jobs")]), json!(["a", "b"]));
        assert_eq!(rows(&[("topic", "jobs"), ("show", "queued")]), json!(["b"]));
        assert_eq!(rows(&[("topic", "jobs"), ("q", "A")]), json!(["a"]));
        assert_eq!(rows(&[("topic", "jobs"), ("page", "3")]), json!([]));
        assert_eq!(rows(&[("topic", "nodes"), ("q", "n1")]), json!(["n1"]));
    }

    #[test]
    fn a_running_job_has_a_predicted_end() {
        let page = of(&[("topic", "jobs")]);
        assert_eq!(page["rows"]["a"]["end_s"], json!(850));
        assert_eq!(page["rows"]["a"]["done"], json!(0.25));
        assert!(page["rows"]["b"].get("end_s").is_none());
    }

    #[test]
    fn an_unknown_job_is_stated() {
        assert_eq!(of(&[("topic", "job"), ("job", "zz")])["found"], json!(false));
    }

    #[test]
    fn numbers_have_the_shown_digits() {
        assert_eq!(rounded(1.26, 1), json!(1.3));
        assert_eq!(rounded(3.0, 1).to_string(), "3");
        assert_eq!(rounded(f64::NAN, 1), Value::Null);
        assert_eq!((significant(1_234.56), significant(12.345)), (json!(1_235), json!(12.35)));
    }
}
