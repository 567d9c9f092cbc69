//! Verdict, tables and CSV of a ledger with every use.

use expect_test::expect;
use wattle_common::AdmissionId;
use wattle_common::id::ProjectId;
use wattle_common::messages::{JobEnergy, LedgerEntry, UnknownCause, UnknownEnergy};
use wattle_testkit as testkit;

use super::*;

fn accounts() -> Accounts {
    let at = |s: u64| Timestamp::from_s(1_790_000_000 + s);
    let j = Energy::from_j;
    let part = |job: &str, joules, user: Option<&str>| JobEnergy {
        job: testkit::job(job),
        admission: None,
        energy_mj: j(joules),
        user: user.map(str::to_owned),
        project: user.and_then(|user| (user == "ada").then(|| ProjectId::new("nlp").unwrap())),
        compared: None,
    };
    let entry = |node: &str, from, gpus: [Energy; 2], jobs| LedgerEntry {
        energy_mj_gpus: gpus.map(Some).to_vec(),
        jobs,
        ..testkit::ledger_entry(node, at(from), at(from + 36_000), j(5_400_000))
    };
    let mut accounts = Accounts::default();
    let jobs =
        vec![part("python3-660bb7234354a", 7_100_000, Some("ada")), part("t-2", 810_000, None)];
    let mut first = entry("n0", 0, [j(7_200_000), j(1_080_000)], jobs);
    let lost = |gpu, cause, energy_mj, unmeasured| UnknownEnergy {
        gpu,
        cause,
        from_us: at(0),
        until_us: at(7_200),
        energy_mj,
        unmeasured,
        estimate_mj: unmeasured.then_some(j(36_000)),
        jobs: Vec::new(),
        admissions: [].into(),
    };
    first.unknown = vec![
        lost(0, UnknownCause::ProfilerAway, j(72_000), false),
        lost(1, UnknownCause::CounterReset, j(18_000), true),
    ];
    accounts.count(&first, Timestamp::EPOCH);
    let jobs = vec![part("t-3", 3_600_000, Some("a user, with a comma"))];
    accounts.count(&entry("n1", 36_000, [j(3_600_000), j(1_440_000)], jobs), Timestamp::EPOCH);
    accounts
}

fn shown(by: By) -> String {
    let report = Report::new(by, &accounts(), |_| (None, None));
    let text = report.table(80).render(false);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    text
}

#[test]
fn verdict_has_total_and_uses() {
    let report = Report::new(By::Job, &accounts(), |_| (None, None));
    assert!(report.verdict().lines().all(|line| line.chars().count() <= 80));
    expect![[r#"
        6.70 kWh from 2026-09-21 14:13 to 2026-09-22 10:13 UTC
        jobs 3.197 kWh (48 %), idle GPUs 0.478 kWh (7 %), hosts 3.000 kWh (45 %)
        unknown 0.025 kWh (0 %), because:
          no profiler ran: 0.020 kWh (0 %)
          energy counter reset: 0.005 kWh (0 %)
        not measured completely, and at most partly in the sums:
          energy counter reset: 2.0 h of GPU time, estimated 10.0 Wh"#]]
    .assert_eq(&report.verdict());
}

#[test]
fn emissions_and_cost_name_their_source() {
    use wattle_common::messages::{IntensitySeries, PriceSeries};
    let mut accounts = accounts();
    accounts.emissions = wattle_view::emissions::Emissions {
        carbon: Some(wattle_common::Carbon::from_ug(2_000_000_000)),
        carbon_energy: accounts.all.total(),
        static_energy: accounts.all.total().scale(0.25),
        cost: Some(1.234),
    };
    let intensity = IntensitySeries {
        name: "static value, no current value of electricity-maps DE".into(),
        starts_at_us: Timestamp::EPOCH,
        steps: Vec::new(),
        period_s: 1,
        origins: Vec::new(),
    };
    let rates = Rates {
        intensity: Some(intensity),
        prices: Some(PriceSeries { currency: "EUR".into(), steps: Vec::new() }),
        price_source: Some("prices.xml, measured".into()),
    };
    let report = Report::new(By::Job, &accounts, |_| (None, None)).with_rates(&accounts, &rates);
    let verdict = report.verdict();
    let last: Vec<&str> = verdict.lines().rev().take(3).collect();
    assert_eq!(
        last,
        [
            "cost 1.23 EUR; price: prices.xml, measured",
            "  25 % of the energy at the static value",
            "CO2 2 kg; intensity: static value, no current value of electricity-maps DE",
        ]
    );
}

#[test]
fn table_by_job() {
    expect![[r#"
        JOB                    USER                  ENERGY kWh  SHARE %
        python3-660bb7234354a  ada                        1.972     29.4
        t-3                    a user, with a comma       1.000     14.9
        t-2                                               0.225      3.4
        (idle GPUs)                                       0.478      7.1
        (unknown)                                         0.025      0.4
        (hosts)                                           3.000     44.8
        all                                               6.700    100.0
    "#]]
    .assert_eq(&shown(By::Job));
}

#[test]
fn submissions_of_one_name_are_rows_of_their_own() {
    let at = |s: u64| Timestamp::from_s(1_790_000_000 + s);
    let mut accounts = accounts();
    let submissions = [0, 36_000].map(|s| Some(AdmissionId::accepted(at(s), 1)));
    let parts = [(&submissions[0], "ada"), (&submissions[1], "eve"), (&None, "eve")];
    for (place, (admission, user)) in (0..).zip(parts) {
        let part = JobEnergy {
            job: testkit::job("t-4"),
            admission: admission.clone(),
            energy_mj: Energy::from_j(360_000 * (3 - place)),
            user: Some(user.to_owned()),
            project: None,
            compared: None,
        };
        let (from, until) = (at(72_000 + place * 60), at(72_060 + place * 60));
        let entry = LedgerEntry {
            energy_mj_gpus: vec![Some(part.energy_mj)],
            jobs: vec![part],
            ..testkit::ledger_entry("n1", from, until, Energy::ZERO)
        };
        accounts.count(&entry, Timestamp::EPOCH);
    }
    let report = Report::new(By::Job, &accounts, |_| (None, None));
    let table = report.table(80).render(false);
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("t-4")).collect();
    let shown: Vec<String> =
        rows.iter().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        shown,
        [
            "t-4, of 2026-09-21 14:13 ada 0.300 4.1",
            "t-4, of 2026-09-22 00:13 eve 0.200 2.7",
            "t-4, submission not known eve 0.100 1.4",
        ]
    );
    let csv = report.csv().unwrap();
    let [first, second] = submissions.map(Option::unwrap);
    for admission in [first, second] {
        assert!(csv.contains(&format!("job,t-4,{admission},")), "{csv}");
    }
    let users = Report::new(By::User, &accounts, |_| (None, None)).table(80).render(false);
    assert!(users.lines().any(|line| line.starts_with("eve") && line.contains(" 2 ")), "{users}");
}

#[test]
fn table_by_user() {
    expect![[r#"
        USER                  JOBS  ENERGY kWh  SHARE %
        ada                      1       1.972     29.4
        a user, with a comma     1       1.000     14.9
        (not known)              1       0.225      3.4
        (idle GPUs)                      0.478      7.1
        (unknown)                        0.025      0.4
        (hosts)                          3.000     44.8
        all                              6.700    100.0
    "#]]
    .assert_eq(&shown(By::User));
}

#[test]
fn table_by_node() {
    expect![[r#"
        NODE  JOBS kWh  IDLE kWh  UNKNOWN kWh  HOSTS kWh  TOTAL kWh  SHARE %
        n0       2.197     0.078        0.025      1.500      3.800     56.7
        n1       1.000     0.400        0.000      1.500      2.900     43.3
        all      3.197     0.478        0.025      3.000      6.700    100.0
    "#]]
    .assert_eq(&shown(By::Node));
}

#[test]
fn table_by_day() {
    expect![[r#"
        DAY         JOBS kWh  IDLE kWh  UNKNOWN kWh  HOSTS kWh  TOTAL kWh  SHARE %
        2026-09-21     2.148     0.076        0.024      1.467      3.716     55.5
        2026-09-22     1.049     0.402        0.001      1.533      2.984     44.5
        all            3.197     0.478        0.025      3.000      6.700    100.0
    "#]]
    .assert_eq(&shown(By::Day));
}

#[test]
fn table_by_project() {
    expect![[r#"
        PROJECT      JOBS  ENERGY kWh  SHARE %
        nlp             1       1.972     29.4
        (none)          2       1.225     18.3
        (idle GPUs)             0.478      7.1
        (unknown)               0.025      0.4
        (hosts)                 3.000     44.8
        all                     6.700    100.0
    "#]]
    .assert_eq(&shown(By::Project));
}

#[test]
fn table_by_cause() {
    expect![[r#"
        CAUSE                 ENERGY kWh  SHARE %  NOT MEASURED
        no profiler ran            0.020      0.3           0 h
        energy counter reset       0.005      0.1         2.0 h
    "#]]
    .assert_eq(&shown(By::Cause));
    let report = Report::new(By::Cause, &accounts(), |_| (None, None));
    expect![[r#"
        cause,energy_mj,energy_kwh,unmeasured_gpu_s,estimate_mj
        profiler_away,72000000,0.020000,0.000,0
        counter_reset,18000000,0.005000,7200.000,36000000
    "#]]
    .assert_eq(&report.csv().unwrap());
}

#[test]
fn csv_sums_to_the_total() {
    for by in [By::Job, By::User, By::Project, By::Node, By::Day] {
        let report = Report::new(by, &accounts(), |_| (None, None));
        let text = report.csv().unwrap();
        let mut csv = ::csv::Reader::from_reader(text.as_bytes());
        let at = csv.headers().unwrap().iter().position(|name| name == "energy_mj").unwrap();
        let sum: u64 = csv.records().map(|row| row.unwrap()[at].parse::<u64>().unwrap()).sum();
        assert_eq!(sum, report.total.energy_mj.as_mj(), "{text}");
    }
    let report = Report::new(By::User, &accounts(), |_| (None, None));
    expect![[r#"
        use,user,jobs,energy_mj,energy_kwh
        job,ada,1,7100000000,1.972222
        job,"a user, with a comma",1,3600000000,1.000000
        job,,1,810000000,0.225000
        idle-gpus,,,1720000000,0.477778
        unknown,,,90000000,0.025000
        hosts,,,10800000000,3.000000
    "#]]
    .assert_eq(&report.csv().unwrap());
}

#[test]
fn a_gpu_without_a_meter_is_in_no_sum_without_a_word() {
    let at = |s: u64| Timestamp::from_s(1_790_000_000 + s);
    let no_meter = UnknownEnergy {
        gpu: 0,
        cause: UnknownCause::NoMeter,
        from_us: at(72_000),
        until_us: at(108_000),
        energy_mj: Energy::ZERO,
        unmeasured: true,
        estimate_mj: None,
        jobs: vec![testkit::job("g0"), testkit::job("t-3")],
        admissions: [].into(),
    };
    let mut accounts = accounts();
    let host = Energy::from_j(5_400_000);
    let entry = LedgerEntry {
        energy_mj_gpus: vec![None, Some(Energy::from_j(1_440_000))],
        unknown: vec![no_meter],
        ..testkit::ledger_entry("n1", at(72_000), at(108_000), host)
    };
    accounts.count(&entry, Timestamp::EPOCH);
    assert_eq!(accounts.incomplete, 0, "its cause is stated");
    let report = Report::new(By::Job, &accounts, |_| (None, None));
    let verdict = report.verdict();
    let lines: Vec<&str> = verdict.lines().collect();
    assert!(lines[0].starts_with("at least 8.60 kWh from "), "{verdict}");
    assert_eq!(lines[1], "1 of 4 GPUs has no reading");
    assert!(verdict.contains("power and energy not supported: 10.0 h of GPU time"), "{verdict}");
    let table = report.table(80).render(false);
    let row = |job: &str| table.lines().find(|line| line.starts_with(job)).unwrap().to_owned();
    assert!(row("g0").trim_end().ends_with("not known"), "{table}");
    assert!(row("t-3").contains("≥ 1.000"), "{table}");
    let json = serde_json::to_value(&report).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let g0 = rows.iter().find(|row| row["name"] == "g0").unwrap();
    assert_eq!((g0.get("energy_mj"), &g0["unmetered_gpu_s"]), (None, &36_000.0.into()));
    let csv = report.csv().unwrap();
    assert!(csv.contains("job,g0,,,,,\n"), "{csv}");
    let users = Report::new(By::User, &accounts, |_| (Some("eve".to_owned()), None));
    let table = users.table(80).render(false);
    let eve = table.lines().find(|line| line.starts_with("eve")).unwrap();
    assert!(eve.contains("≥ 0.225"), "t-2 is measured, g0 is not: {table}");
}
