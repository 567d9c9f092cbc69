//! Energy saved so far: today, in the last week and in the last month.

use serde_json::{Map, Value, json};
use wattle_common::Energy;

use super::{rounded, seconds, significant, watt_hours};
use crate::model::tally::{Sums, day_of};
use crate::model::{Model, Now};
use crate::topic::Period;

/// Days of the chart.
const DAYS: u64 = 30;

fn shown(sums: &Sums) -> Value {
    let compared = &sums.compared;
    let jobs = sums.uses.jobs;
    json!({
        "saved_wh": significant(compared.saved_mj() / 3.6e6),
        "share": compared.saved_share().map(|share| rounded(share, 4)),
        "used_wh": watt_hours(compared.energy_mj),
        "baseline_wh": watt_hours(compared.energy_mj_default),
        "jobs_wh": watt_hours(jobs),
        "coverage": (jobs > Energy::ZERO).then(|| rounded(compared.energy_mj.ratio(jobs), 3)),
        "slowdown": compared.slowdown().map(|share| rounded(share, 4)),
        "carbon_g": sums.all.carbon.map(|_| significant(sums.carbon_saved_ug / 1e6)),
        "cost": sums.all.cost.map(|_| significant(sums.cost_saved)),
        "carbon_is_partial": sums.all.carbon.is_some() && sums.carbon_is_partial,
        "cost_is_partial": sums.all.cost.is_some() && sums.cost_is_partial,
    })
}

/// The content of the page.
pub(super) fn content(model: &Model, now: Now) -> Value {
    let today = day_of(now.at);
    let rates = model.rates();
    let sums = |days: u64| model.tally.sums((today + 1).saturating_sub(days), today, rates);
    let periods: Map<String, Value> = Period::ALL
        .into_iter()
        .map(|period| (period.name().to_owned(), shown(&sums(period.days()))))
        .collect();
    let first = (today + 1).saturating_sub(DAYS);
    let days: Map<String, Value> = (first..=today)
        .map(|day| (day.to_string(), shown(&model.tally.sums(day, day, rates))))
        .collect();
    json!({
        "periods": periods,
        "days": days,
        "currency": rates.prices.map(|prices| prices.currency.clone()),
        "until_s": model.tally.until().map(seconds),
        "ledger_read": model.ledger_read,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wattle_common::comparison::{ComparedEnergy, DefaultRatio};
    use wattle_common::job::JobPhase;
    use wattle_common::messages::{JobEnergy, JobRecord, LedgerEntry};
    use wattle_common::subject::{NodeTopic, Subject};
    use wattle_common::{ClusterId, Timestamp, codec};
    use wattle_testkit as testkit;

    use super::*;
    use crate::model::tests::now;

    /// One minute of a job at 100 W, with the ratio of the setting in force then.
    fn entry(minute: u64, job: &str, energy: f64) -> LedgerEntry {
        let (from, until) = (Timestamp::from_s(minute * 60), Timestamp::from_s(minute * 60 + 60));
        let energy_mj = Energy::from_j(6_000);
        let ratio = DefaultRatio { energy, time: 0.9 };
        let compared = Some(ComparedEnergy::new(energy_mj, Duration::from_secs(60), ratio));
        LedgerEntry {
            energy_mj_gpus: vec![Some(Energy::from_j(7_000))],
            jobs: vec![JobEnergy {
                job: testkit::job(job),
                admission: None,
                energy_mj,
                user: None,
                project: None,
                compared,
            }],
            ..testkit::ledger_entry("n0", from, until, Energy::from_j(10))
        }
    }

    fn read(model: &mut Model, entry: &LedgerEntry) {
        let cluster = ClusterId::new("test").unwrap();
        let subject = Subject::of_node(cluster, NodeTopic::EnergyMetered, entry.node.clone());
        model.entry(&subject.to_string(), &codec::encode_json(entry), now(10_000));
    }

    /// The record of a job that counts these entries, as the placer writes it.
    fn record(job: &str, phase: JobPhase, entries: &[LedgerEntry]) -> JobRecord {
        let mut record = testkit::job_record(testkit::job_spec(job, 1), phase);
        for part in
            entries.iter().flat_map(|entry| &entry.jobs).filter(|part| part.job == record.spec.job)
        {
            *record.energy_mj.get_or_insert_default() += part.energy_mj;
            record.compared.get_or_insert_default().add(part.compared.unwrap());
        }
        record
    }

    #[test]
    fn saved_energy_does_not_depend_on_restarts_and_later_settings() {
        // The cap of `a` is raised twice, the last time to the default; `b` has ended.
        let ratios = [("a", 1.6), ("b", 1.4), ("a", 1.2), ("a", 1.0)];
        let entries: Vec<LedgerEntry> =
            (0..).zip(ratios).map(|(minute, (job, ratio))| entry(minute, job, ratio)).collect();
        let saved = |model: &Model| content(model, now(10_000))["periods"]["day"].clone();
        let mut running = Model::new("test");
        for (index, entry) in entries.iter().enumerate() {
            for (job, phase) in [("a", JobPhase::Running), ("b", JobPhase::Finished)] {
                let record = record(job, phase, &entries[..index]);
                running.job(job, Some(&codec::encode_json(&record)));
            }
            read(&mut running, entry);
        }
        // Another process reads the ledger once more, after the records were deleted.
        let mut restarted = Model::new("test");
        entries.iter().chain(&entries).for_each(|entry| read(&mut restarted, entry));
        assert_eq!(saved(&running), saved(&restarted));
        let expected = 6_000.0 * (0.6 + 0.4 + 0.2) / 3_600.0;
        assert!((saved(&running)["saved_wh"].as_f64().unwrap() - expected).abs() < 1e-3);
        assert_eq!(saved(&running)["coverage"], json!(1));

        // The pages of the jobs add up to it.
        let topic = |job: &str| crate::topic::Topic::Job(testkit::job(job));
        let of_jobs: f64 = ["a", "b"]
            .map(|job| {
                running.job(
                    job,
                    Some(&codec::encode_json(&record(job, JobPhase::Finished, &entries))),
                );
                let page = super::super::content(&topic(job), &running, now(10_000));
                page["page"]["compared"]["saved_wh"].as_f64().unwrap()
            })
            .iter()
            .sum();
        assert!((of_jobs - expected).abs() < 1e-3, "{of_jobs} Wh");
    }
}
