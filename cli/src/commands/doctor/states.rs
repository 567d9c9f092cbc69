//! Broken states of a cluster, each with the first line of `wattle doctor`: an operator finds the cause in it.

use std::path::PathBuf;

use expect_test::expect;
use wattle_common::aim::Baseline;
use wattle_common::job::JobPhase;
use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetStatus, GpuCondition, GpuConditionKind, GpuHealth, JobRecord,
    NodeFault, NodeFaultKind, PowerReport, RecordedReason,
};
use wattle_common::{Budget, Power, Timestamp};
use wattle_testkit as testkit;

use super::facts::{Configured, Facts};
use super::rules::check;
use super::rules::tests::{fine, server};

const NOW: Timestamp = Timestamp::from_s(36_000);

/// The report of the node's power agent, which has two GPUs.
fn power(facts: &mut Facts) -> &mut PowerReport {
    let node = &mut facts.nodes[0].node;
    node.power.get_or_insert_with(|| {
        let gpus = [0, 1].map(|gpu| testkit::applied_gpu(gpu, "v100"));
        testkit::power_report("n0", NOW, gpus)
    })
}

fn condition(facts: &mut Facts, condition: GpuConditionKind) {
    let conditions = vec![GpuCondition { condition, since_us: NOW, detail: None }];
    power(facts).gpus[1].health = Some(GpuHealth { conditions, ..GpuHealth::default() });
}

fn stop(facts: &mut Facts, services: &[&str]) {
    facts.processes.retain(|process| !services.contains(&process.service.as_str()));
}

fn budget(facts: &mut Facts, energy_kwh: Option<f64>, power_kw: Option<f64>, mean_w: u64) {
    let budget = Budget::from_human(energy_kwh, None, power_kw, None).unwrap();
    let (generation, since_us) = (1, Timestamp::EPOCH);
    facts.budget.set = Some(BudgetRecord { generation, budget, since_us, intensity: None });
    facts.budget.status = Some(BudgetStatus {
        observed_generation: 1,
        price: 1.0,
        policy_price: 1.0,
        power_mw_expected: Power::from_w(450),
        power_mw_baseline: Some(Power::from_w(450)),
        power_mw_budget_mean: energy_kwh.map(|_| Power::from_w(mean_w)),
        ..testkit::budget_status(NOW)
    });
}

/// A job with a deadline an hour before or after the present.
fn job(facts: &mut Facts, phase: JobPhase, deadline_s: u64) -> &mut JobRecord {
    facts.now = NOW;
    let mut record = testkit::job_record(testkit::job_spec("t-7", 1), phase);
    record.spec.deadline_at_us = Some(Timestamp::from_s(deadline_s));
    facts.jobs.push(record);
    facts.jobs.last_mut().unwrap()
}

fn configured(name: &str) -> Configured {
    let table = "level = \"start\"".parse().unwrap();
    Configured { name: name.to_owned(), table, is_set_up: true }
}

/// A state and how it differs from a cluster without a problem.
type State = (&'static str, fn(&mut Facts));

const SERVER: &[State] = &[
    ("server stopped", |f| {
        f.server = Some(Err("no NATS server answers at nats://10.0.0.1:4222".to_owned()));
    }),
    ("server requires TLS", |f| {
        let text = "the server at nats://10.0.0.1:4222 does not answer; if it requires TLS and a key, name \
                    the files with --ca and --credentials";
        f.server = Some(Err(text.to_owned()));
    }),
    ("key revoked", |f| {
        let text =
            "nats server at nats://10.0.0.1:4222 refuses the connection: it does not know the key";
        f.server = Some(Err(text.to_owned()));
    }),
    ("server too old", |f| server(f).limits.version = "2.8.4".to_owned()),
    ("no storage", |f| {
        let text = "cluster `main` has no storage on the nats server at nats://10.0.0.1:4222";
        server(f).storage_error = Some((text.to_owned(), None));
    }),
    ("server without JetStream", |f| {
        let text = "nats server at nats://10.0.0.1:4222 has no JetStream";
        server(f).storage_error = Some((text.to_owned(), None));
    }),
    ("server without space", |f| server(f).fill = vec![("jobs", 1.0)]),
    ("storage fills up", |f| server(f).fill = vec![("surfaces", 0.8)]),
    ("clock of this host off", |f| server(f).ahead_s = Some(-7.0)),
    ("clock of a node off", |f| f.nodes[0].ahead_s = Some(3_600.0)),
];

const SERVICES: &[State] = &[
    ("placer stopped", |f| stop(f, &["placer"])),
    ("placer on standby only", |f| f.processes[0].state = "standby".to_owned()),
    ("registry stopped", |f| stop(f, &["registry"])),
    ("predictor stopped", |f| stop(f, &["predictor"])),
    ("all services stopped", |f| f.processes.clear()),
    ("profiler stopped", |f| stop(f, &["profiler"])),
    ("power agent stopped", |f| stop(f, &["power-agent"])),
    ("launcher stopped", |f| stop(f, &["launcher"])),
    ("node silent", |f| stop(f, &["profiler", "power-agent", "launcher"])),
    ("upgrade half done", |f| f.processes[4].version = "0.0.9".to_owned()),
];

const NODES: &[State] = &[
    ("driver updated without a reboot", |f| {
        let error = "Driver/library version mismatch".to_owned();
        power(f).driver_error = Some(error);
    }),
    ("GPU off the bus", |f| power(f).gpus[1].healthy = false),
    ("memory errors", |f| condition(f, GpuConditionKind::EccErrors)),
    ("memory to repair", |f| condition(f, GpuConditionKind::MemoryRepairPending)),
    ("memory beyond repair", |f| condition(f, GpuConditionKind::MemoryRepairFailed)),
    ("MIG", |f| condition(f, GpuConditionKind::MigEnabled)),
    ("hot", |f| condition(f, GpuConditionKind::ThermalSlowdown)),
    ("power brake", |f| condition(f, GpuConditionKind::PowerBrake)),
    ("slowed by hardware", |f| condition(f, GpuConditionKind::HardwareSlowdown)),
    ("persistence off", |f| condition(f, GpuConditionKind::PersistenceOff)),
    ("cap refused", |f| power(f).gpus[1].last_error = Some("Insufficient Permissions".to_owned())),
    ("card without meter", |f| power(f).gpus[1].no_meter = true),
    ("card without caps", |f| power(f).gpus[1].cap_unsupported = true),
    ("state disk of a node full", |f| {
        let (kind, error) = (NodeFaultKind::Disk, "cannot write to /var/lib/wattle".to_owned());
        let launcher = f.nodes[0].node.launcher.as_mut().unwrap();
        launcher.fault = Some(NodeFault { kind, error, since_us: NOW });
    }),
];

const HOST: &[State] = &[
    ("disk full", |f| f.disks[0].free = 0),
    ("disk nearly full", |f| f.disks[0].free = 15),
    ("configuration broken", |f| {
        let error = "TOML parse error at line 3, column 1".to_owned();
        f.unreadable.push((PathBuf::from("/etc/wattle/placer.toml"), error));
    }),
    ("driver not loaded", |f| f.configured.push(configured("profiler"))),
    ("no GPU listed", |f| {
        f.configured.push(configured("power-agent"));
        f.gpus = Some(Ok(0));
    }),
    ("Slurm away", |f| {
        f.configured.push(configured("slurm"));
        f.slurm = Some(Err("Unable to contact slurm controller".to_owned()));
    }),
];

const JOBS: &[State] = &[
    ("budget below the idle draw", |f| budget(f, Some(5.0), None, 207)),
    ("power limit below the idle draw", |f| budget(f, None, Some(0.2), 0)),
    ("budget spent", |f| {
        let record = job(f, JobPhase::Queued, 90_000);
        record.reasons.push(RecordedReason {
            stage: Some("budget".to_owned()),
            ..RecordedReason::new(
                NOW,
                "wattle",
                "waits".to_owned(),
                "the budget of this window is spent".to_owned(),
            )
        });
    }),
    ("aim exceeded", |f| {
        f.now = NOW;
        let (at_us, max_slowdown) = (NOW, 0.05);
        let (present_s, delay_s) = (1_000.0, 99.5);
        let (price, policy_price) = (0.0, 0.0);
        f.budget.aim = Some(AimStatus {
            at_us,
            baseline: Some(Baseline::Backfill),
            max_slowdown,
            present_s,
            delay_s,
            price,
            policy_price,
            max_project_slowdown: None,
            projects: Vec::new(),
        });
        f.budget.twin = Some(testkit::twin_status(NOW, 20, 150.0));
    }),
    ("deadline missed", |f| drop(job(f, JobPhase::Running, 12_600).clone())),
    ("deadline impossible", |f| {
        job(f, JobPhase::Queued, 36_600).spec.duration_ms_estimate = Some(13_200_000);
    }),
    ("deadline in reach", |f| {
        job(f, JobPhase::Queued, 90_000).spec.duration_ms_estimate = Some(13_200_000);
    }),
];

fn first_lines(states: &[State]) -> String {
    let line = |(name, change): &State| {
        let mut facts = fine();
        change(&mut facts);
        let report = check(&facts).to_string();
        format!("{name}: {}\n", report.lines().next().unwrap_or_default())
    };
    states.iter().map(line).collect()
}

#[test]
fn the_first_line_names_a_cause_of_the_server() {
    expect![[r#"
        server stopped: 1 problem: no NATS server answers at nats://10.0.0.1:4222
        server requires TLS: 1 problem: the server at nats://10.0.0.1:4222 does not answer; if it requires TLS and a key, name the files with --ca and --credentials
        key revoked: 1 problem: nats server at nats://10.0.0.1:4222 refuses the connection: it does not know the key
        server too old: 1 problem: the NATS server is limited: it is version 2.8.4, and 2.9 or later is needed
        no storage: 1 problem: the cluster's storage cannot be read: cluster `main` has no storage on the nats server at nats://10.0.0.1:4222
        server without JetStream: 1 problem: the cluster's storage cannot be read: nats server at nats://10.0.0.1:4222 has no JetStream
        server without space: 1 problem: bucket jobs is 100 % full
        storage fills up: no problem found; advice: bucket surfaces is 80 % full
        clock of this host off: 1 problem: the clock of this host is 7.0 s behind the NATS server's
        clock of a node off: 1 problem: the clock of n0 is 3600.0 s ahead of the NATS server's
    "#]].assert_eq(&first_lines(SERVER));
}

#[test]
fn a_refused_key_has_a_remedy_of_its_own() {
    let remedy = |of: &str| {
        let mut facts = fine();
        SERVER.iter().find(|(name, _)| *name == of).unwrap().1(&mut facts);
        check(&facts).to_string()
    };
    let refused = remedy("key revoked");
    assert!(refused.contains("wattle keys") && !refused.contains("firewall"), "{refused}");
    assert!(remedy("server stopped").contains("firewall"));
}

#[test]
fn the_first_line_names_the_service_that_is_away() {
    expect![[r#"
        placer stopped: 1 problem: no placer is active: no job starts
        placer on standby only: 1 problem: no placer is active: no job starts
        registry stopped: 1 problem: no registry is active: predictions do not change
        predictor stopped: no problem found; advice: no predictor is active: placements use priors
        all services stopped: 5 problems: no placer is active: no job starts (and 4 more); advice: 1
        profiler stopped: 1 problem: the profiler of n0 does not answer: power and speed of its jobs are not known
        power agent stopped: 1 problem: the power-agent of n0 does not answer: caps become safe, and no job starts there
        launcher stopped: 1 problem: the launcher of n0 does not answer: no job starts there
        node silent: 3 problems: the profiler of n0 does not answer: power and speed of its jobs are not known (and 2 more)
        upgrade half done: 1 problem: the versions differ: 0.0.9, 0.1.0 of services, 0.1.0 of this program
    "#]].assert_eq(&first_lines(SERVICES));
}

#[test]
fn the_first_line_names_the_gpu_and_its_condition() {
    expect![[r#"
        driver updated without a reboot: 1 problem: no GPU of n0 can be read: Driver/library version mismatch
        GPU off the bus: 1 problem: GPU 1 of n0 does not respond, or responds again only since a moment ago
        memory errors: 1 problem: GPU 1 of n0 has uncorrected memory errors: no new jobs
        memory to repair: 1 problem: GPU 1 of n0 has defective memory that is replaced at its next reset: no new jobs
        memory beyond repair: 1 problem: GPU 1 of n0 has defective memory that cannot be replaced: no new jobs
        MIG: no problem found; advice: GPU 1 of n0 is in MIG mode: Wattle places no jobs on it and sets nothing
        hot: no problem found; advice: GPU 1 of n0 is slowed because of its temperature
        power brake: no problem found; advice: GPU 1 of n0 is slowed by the power brake
        slowed by hardware: no problem found; advice: GPU 1 of n0 is slowed by hardware; the driver does not report the cause
        persistence off: no problem found; advice: GPU 1 of n0 has persistence mode off: its cap and clock are lost when the last program that uses it ends
        cap refused: 1 problem: cap or clock of GPU 1 of n0 is not set: Insufficient Permissions
        card without meter: no problem found; advice: the energy of GPU 1 of n0 is not known: power and energy are not supported
        card without caps: no problem found; advice: GPU 1 of n0 supports no power cap: it is advised only
        state disk of a node full: 1 problem: n0 cannot start jobs: cannot write to /var/lib/wattle
    "#]].assert_eq(&first_lines(NODES));
}

#[test]
fn the_first_line_names_a_cause_of_this_host() {
    expect![[r#"
        disk full: 1 problem: little free disk: /: 0.0 GiB free, 0 %
        disk nearly full: no problem found; advice: little free disk: /: 0.0 GiB free, 15 %
        configuration broken: 1 problem: /etc/wattle/placer.toml cannot be read: TOML parse error at line 3, column 1
        driver not loaded: 1 problem: the GPUs of this host cannot be read: no driver
        no GPU listed: 1 problem: the driver lists no GPU
        Slurm away: 1 problem: Slurm does not answer: Unable to contact slurm controller
    "#]].assert_eq(&first_lines(HOST));
}

#[test]
fn the_first_line_names_the_budget_the_aim_or_the_job() {
    expect![[r#"
        budget below the idle draw: 1 problem: no job can start: the idle cluster draws 0.45 kW, but the budget allows 0.207 kW on average
        power limit below the idle draw: 1 problem: no job can start: the idle cluster draws 0.45 kW, but the limit is 0.2 kW
        budget spent: no problem found; advice: no job runs: the budget holds 1 queued job back: the budget of this window is spent
        aim exceeded: no problem found; advice: jobs complete 11.05 % later on average than under backfill, by estimate, and the bound is 5 %
        deadline missed: no problem found; advice: t-7 is 6.5 h past its deadline
        deadline impossible: no problem found; advice: t-7 will miss its deadline by 3.5 h, by prediction
        deadline in reach: no problem found
    "#]].assert_eq(&first_lines(JOBS));
}
