//! Every message compared with its golden file: published messages must remain readable.
//!
//! Each test value is encoded and compared with the file, and the file is decoded and compared with
//! the value. `UPDATE_GOLDEN=1` writes missing files; it never overwrites one.

mod reports;

use std::fmt::Debug;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::codec::{decode_json, decode_telemetry, encode_telemetry};
use wattle_common::id::ProjectId;
use wattle_common::id::{PredictorId, SubmissionId, SwitchId, UserId};
use wattle_common::job::{
    GpuRequest, GpuSetting, JobPhase, JobSpec, NodeNeeds, NodeShare, Placement, SiteJob,
};
use wattle_common::messages::*;
use wattle_common::subject::{Rank, Requester};
use wattle_common::{
    Budget, Carbon, CarbonIntensity, Energy, Frequency, JobId, NodeId, Power, Timestamp, WorkloadId,
};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1").join(name)
}

fn read_or_write(name: &str, fresh: &[u8]) -> Vec<u8> {
    let path = path(name);
    if !path.exists() && std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, fresh).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|e| {
        panic!("{}: {e}; run with UPDATE_GOLDEN=1 to write a new message's file", path.display())
    })
}

#[track_caller]
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, value: &T) {
    let mut fresh = serde_json::to_vec_pretty(value).unwrap();
    fresh.push(b'\n');
    let golden = read_or_write(&format!("{name}.json"), &fresh);
    let decoded: T = decode_json(&golden).unwrap();
    assert_eq!(&decoded, value, "{name}.json decodes to another value");
    let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
    let fresh: serde_json::Value = serde_json::from_slice(&fresh).unwrap();
    assert_subset(name, &golden, &fresh);
}

/// Every field of the golden file must be present and equal; new optional fields are allowed.
fn assert_subset(at: &str, golden: &serde_json::Value, fresh: &serde_json::Value) {
    match (golden, fresh) {
        (serde_json::Value::Object(golden), serde_json::Value::Object(fresh)) => {
            for (key, value) in golden {
                let at = format!("{at}.{key}");
                assert_subset(
                    &at,
                    value,
                    fresh.get(key).unwrap_or_else(|| panic!("{at} is missing")),
                );
            }
        }
        (serde_json::Value::Array(golden), serde_json::Value::Array(fresh)) => {
            assert_eq!(golden.len(), fresh.len(), "{at}");
            for (i, (golden, fresh)) in golden.iter().zip(fresh).enumerate() {
                assert_subset(&format!("{at}[{i}]"), golden, fresh);
            }
        }
        _ => assert_eq!(golden, fresh, "{at}"),
    }
}

fn job(text: &str) -> JobId {
    JobId::new(text).unwrap()
}
fn node() -> NodeId {
    NodeId::new("n0").unwrap()
}
fn workload() -> WorkloadId {
    WorkloadId::new("resnet50").unwrap()
}
fn at(seconds: u64) -> Timestamp {
    Timestamp::from_s(1_700_000_000 + seconds)
}
fn share() -> NodeShare {
    NodeShare { node: node(), gpus: vec![0, 1] }
}

fn spec() -> JobSpec {
    JobSpec {
        job: job("train-7"),
        name: "train".into(),
        user: None,
        project: None,
        workload: Some(workload()),
        gpus: GpuRequest { min: 1, max: 2 },
        exclusive: false,
        consents_to_sharing: false,
        max_slowdown_permille: None,
        priority: 0,
        deadline_at_us: Some(at(7_200)),
        slack_ms: None,
        duration_ms_estimate: Some(3_600_000),
        memory_mib_max: Some(9_000),
        gpu_type: None,
        checkpoint_signal: Some("SIGUSR1".into()),
        command: vec!["python3".into(), "train.py".into()],
        environment: vec![("SEED".into(), "7".into())],
        working_dir: Some("/data/train".into()),
        site: None,
        submitted_at_us: at(0),
    }
}

#[test]
fn desired() {
    let desired = NodeDesired {
        node: node(),
        generation: 12,
        issued_at_us: at(1),
        expires_at_us: at(61),
        gpus: vec![DesiredGpu {
            gpu: 0,
            cap_mw: Some(Power::from_w(200)),
            clock_mhz_max: Some(Frequency::from_mhz(1_200)),
        }],
        jobs: vec![DesiredJob {
            job: job("train-7"),
            user: Some("ada".into()),
            attempt: 1,
            gpus: vec![0, 1],
            rank: 0,
            shares: vec![share()],
            command: vec!["python3".into(), "train.py".into()],
            environment: vec![("SEED".into(), "7".into())],
            working_dir: Some("/data/train".into()),
            checkpoint_signal: Some("SIGUSR1".into()),
            stop: false,
        }],
        power_limited: false,
        sleep: None,
    };
    check("node-desired", &desired);
    let sleep = Some(NodeSleep { state: SleepState::EnteringSleep, since_us: at(1) });
    check("node-desired-sleep", &NodeDesired { jobs: vec![], gpus: vec![], sleep, ..desired });
}

#[test]
fn job_measurements() {
    check(
        "job-window",
        &JobWindow {
            job: job("train-7"),
            workload: Some(workload()),
            node: node(),
            gpu_type: "v100".into(),
            attempt: 1,
            from_us: at(60),
            until_us: at(120),
            gpus: vec![0, 1],
            gpus_total: 2,
            nodes_total: 1,
            global_batch: None,
            cap_mw: Some(Power::from_w(200)),
            clock_mhz_mean: Some(Frequency::from_mhz(1_180)),
            clock_mhz_max: Some(Frequency::from_mhz(1_200)),
            neighbours: vec![Neighbour { job: job("other-1"), workload: None }],
            steps: Some(600),
            steps_per_s: Some(10.25),
            steps_per_s_error: Some(0.01),
            steps_inferred: false,
            step: Some(1_200),
            epoch: Some(1),
            early: true,
            power_mw_gpus: Some(Power::from_w(380)),
            power_mw_job: Some(Power::from_w(250)),
            energy_mj_gpus: Some(Energy::from_j(22_800)),
            utilization_gpu_percent: Some(81.5),
            utilization_gpu_percent_job: Some(50.25),
            utilization_memory_percent: Some(33.0),
            memory_mib_max_job: Some(9_000),
            samples: 600,
        },
    );
    check(
        "job-progressed",
        &JobProgressed {
            job: job("train-7"),
            node: node(),
            attempt: 1,
            at_us: at(120),
            step: 1_200,
            steps_total: Some(36_000),
            epoch: Some(1),
            steps_per_epoch: Some(600),
            steps_per_s: Some(10.25),
        },
    );
    check(
        "ledger-entry",
        &LedgerEntry {
            node: node(),
            from_us: at(60),
            until_us: at(120),
            energy_mj_gpus: vec![Some(Energy::from_j(11_400)), None],
            energy_mj_host: Energy::from_j(4_320),
            jobs: vec![JobEnergy {
                job: job("train-7"),
                energy_mj: Energy::from_j(9_000),
                user: None,
                project: None,
            }],
            unknown: vec![],
        },
    );
    let user = Some("ada".to_owned());
    let energy_mj = Energy::from_j(9_000);
    let unknown = UnknownEnergy {
        gpu: 0,
        cause: UnknownCause::CounterReset,
        from_us: at(70),
        until_us: at(90),
        energy_mj: Energy::from_j(400),
        unmeasured: true,
        estimate_mj: Some(Energy::from_j(2_600)),
    };
    let part = JobEnergy {
        job: job("train-7"),
        energy_mj,
        user: user.clone(),
        project: Some(ProjectId::new("nlp").unwrap()),
    };
    check(
        "ledger-entry-unknown",
        &LedgerEntry {
            node: node(),
            from_us: at(60),
            until_us: at(120),
            energy_mj_gpus: vec![Some(Energy::from_j(11_400))],
            energy_mj_host: Energy::from_j(4_320),
            jobs: vec![part],
            unknown: vec![unknown],
        },
    );
    check(
        "ledger-entry-user",
        &LedgerEntry {
            node: node(),
            from_us: at(60),
            until_us: at(120),
            energy_mj_gpus: vec![Some(Energy::from_j(11_400))],
            energy_mj_host: Energy::from_j(4_320),
            jobs: vec![JobEnergy { job: job("train-7"), energy_mj, user, project: None }],
            unknown: vec![],
        },
    );
}

#[test]
fn surfaces() {
    let estimate = |mean: f64| Estimate { mean, low: mean * 0.9, high: mean * 1.1 };
    let surface = Surface {
        job: job("train-7"),
        predictor: PredictorId::new("physical").unwrap(),
        at_us: at(121),
        gpu_type: "v100".into(),
        windows: 2,
        basis: None,
        class: Some(workload()),
        utilization_gpu_percent: Some(50.0),
        utilization_memory_percent: Some(33.0),
        memory_mib_max: Some(9_000),
        other_gpu_types: Vec::new(),
        probe: None,
        points: vec![SurfacePoint {
            gpus: 2,
            nodes: 1,
            cap_mw: Some(Power::from_w(200)),
            clock_mhz_max: None,
            global_batch: None,
            neighbours: vec![WorkloadId::new("unknown").unwrap()],
            steps_per_s: Some(estimate(10.0)),
            relative_speed: estimate(0.5),
            gpu_power_w: estimate(190.0),
        }],
    };
    check("surface", &surface);
    let basis = Some("prior: 3 jobs of resnet50 seen on p100".into());
    let there = Surface { gpu_type: "p100".into(), windows: 0, basis, ..surface.clone() };
    check("surface-gpu-types", &Surface { other_gpu_types: vec![there], ..surface });
}

#[test]
fn predictors() {
    let physical = PredictorId::new("physical").unwrap();
    check("champion", &Champion { predictor: physical.clone(), since_us: at(9) });
    let score = |mape_percent| Score { windows: 12, mape_percent, coverage90_percent: 91.5 };
    check(
        "predictor-status",
        &PredictorStatus {
            name: physical.clone(),
            version: Some("0.1.0".into()),
            at_us: at(130),
            state: PredictorState::Silent,
            champion: true,
            error: Some("its service is gone".into()),
            last_active_us: Some(at(121)),
            proposals: 40,
            refused: 1,
            windows_uncovered: 2,
            speed: Scores {
                prior: None,
                new_config: Some(score(4.5)),
                same_config: Some(score(1.25)),
            },
            power: Scores { prior: Some(score(18.0)), ..Scores::default() },
            latency: Some(Latency { proposals: 39, ms_p50: 12, ms_p90: 9_800 }),
        },
    );
    check("promote-predictor", &PromotePredictor { predictor: physical.clone() });
    let previous = PredictorId::new("python-mean").unwrap();
    let warning = Some("it is silent: its service is gone".into());
    let promoted = PromoteReply::Promoted { predictor: physical, previous, warning };
    check("promote-reply-promoted", &promoted);
    let error = "no predictor `physicl`; there are: physical, python-mean".into();
    check("promote-reply-refused", &PromoteReply::Refused { error });
}

#[test]
fn budgets() {
    let budget = Budget::from_human(Some(120.0), Some(30.0), Some(9.5), None).unwrap();
    let intensity = IntensitySeries {
        name: "grid.csv".into(),
        starts_at_us: at(1),
        steps: vec![
            (0, CarbonIntensity::from_g_per_kwh(250.0)),
            (3_600, CarbonIntensity::from_g_per_kwh(310.5)),
        ],
        period_s: 7_200,
        origins: Vec::new(),
    };
    check("set-budget", &SetBudget { budget, intensity: Some(intensity.clone()) });
    check("budget-reply-stored", &BudgetReply::Stored { budget });
    let error = "a carbon budget needs the grid's intensity: give --carbon FILE".into();
    check("budget-reply-refused", &BudgetReply::Refused { error });
    let record = BudgetRecord { budget, since_us: at(1), intensity: Some(intensity) };
    check("budget-record", &record);
    let status = BudgetStatus {
        at_us: at(3),
        window_from_us: at(1),
        window_until_us: at(86_401),
        energy_mj: Energy::from_j(5_400_000),
        carbon_ug: Some(Carbon::from_ug(375_000_000)),
        overrun_previous: Some(0.002),
        price: 0.42,
        policy_price: 0.42,
        power_mw_expected: Power::from_w(4_200),
        power_mw_baseline: None,
        power_mw_budget_mean: None,
        intensity_mg_per_kwh: Some(CarbonIntensity::from_g_per_kwh(250.0)),
        counted_until_us: [(node(), at(3))].into(),
    };
    check("budget-status", &status);
    let aim = AimStatus {
        at_us: at(3),
        max_slowdown: 0.05,
        present_s: 86_400.0,
        delay_s: 3_600.0,
        price: 0.42,
        policy_price: 0.0013,
    };
    check("aim-status", &aim);
    let carbon = SignalStatus {
        provider: "electricity-maps DE".into(),
        accounting: Some(Accounting::Average),
        in_use: InUse::LastKnown,
        since_us: at(7),
        origin: Origin::Forecast,
        read_at_us: Some(at(5)),
        valid_until_us: Some(at(86_405)),
        error: Some("https://api.electricitymaps.com does not answer: timeout".into()),
    };
    let price = SignalStatus {
        provider: "/var/lib/wattle/day-ahead.xml".into(),
        accounting: None,
        in_use: InUse::Live,
        origin: Origin::Measured,
        error: None,
        ..carbon.clone()
    };
    let prices =
        PriceSeries { currency: "EUR".into(), steps: vec![(at(0), 118_600), (at(900), -4_350)] };
    let grid =
        GridStatus { at_us: at(9), carbon: Some(carbon), price: Some(price), prices: Some(prices) };
    check("grid-status", &grid);
    let origins = vec![(0, Origin::Measured), (3_600, Origin::Forecast), (7_200, Origin::Static)];
    let provided = IntensitySeries {
        name: "electricity-maps DE, average, measured".into(),
        starts_at_us: at(1),
        steps: vec![
            (0, CarbonIntensity::from_g_per_kwh(250.0)),
            (3_600, CarbonIntensity::from_g_per_kwh(310.5)),
            (7_200, CarbonIntensity::from_g_per_kwh(380.0)),
        ],
        period_s: 316_231_200,
        origins,
    };
    let record = BudgetRecord { budget, since_us: at(1), intensity: Some(provided) };
    check("budget-record-of-a-provider", &record);
    let (power_mw_baseline, power_mw_budget_mean) =
        (Some(Power::from_w(450)), Some(Power::from_w(4_975)));
    check("budget-status-fed", &BudgetStatus { power_mw_baseline, power_mw_budget_mean, ..status });
}

#[test]
fn requests_and_job_records() {
    let submission = Some(SubmissionId::new("n0-41-18f2c").unwrap());
    check(
        "submit-job-once",
        &SubmitJob { spec: spec(), submission: submission.clone(), user_proven: false },
    );
    let submit = |spec| SubmitJob { spec, submission: None, user_proven: false };
    check("submit-job", &submit(spec()));
    let spec_of_more = JobSpec { priority: 3, slack_ms: Some(7_200_000), ..spec() };
    check("submit-job-priority", &submit(spec_of_more));
    let of_kind = JobSpec { gpu_type: Some("v100".into()), ..spec() };
    check("submit-job-type", &submit(of_kind));
    let needs = NodeNeeds { cpus: 4, cpus_per_gpu: 8, memory_mib: 0, memory_mib_per_gpu: 16_000 };
    let site = |placed_by_site, partition| {
        Some(SiteJob { id: "42".into(), placed_by_site, nodes: Some(2), partition, needs })
    };
    let of_site = JobSpec { command: Vec::new(), site: site(false, Some("gpu".into())), ..spec() };
    check("submit-job-site", &submit(of_site));
    let placed_by_site = JobSpec { command: Vec::new(), site: site(true, None), ..spec() };
    check("submit-job-placed-by-site", &submit(placed_by_site));
    check("cancel-job", &CancelJob { job: job("train-7") });
    check("reply-accepted", &Reply::Accepted { job: job("train-7") });
    check("reply-refused", &Reply::Refused { error: "requests 9 GPUs, the cluster has 8".into() });
    let record = JobRecord {
        spec: spec(),
        submission: None,
        user_proven: false,
        phase: JobPhase::Running,
        phase_since_us: at(2),
        attempt: 1,
        placement: Some(Placement { shares: vec![share()] }),
        setting: GpuSetting::DEFAULT,
        started_at_us: Some(at(2)),
        gpu_time_ms: None,
        run_time_ms: None,
        ended_at_us: None,
        exit_code: None,
        limit: None,
        next_phase: None,
        error: None,
        step: Some(1_200),
        steps_total: Some(36_000),
        step_at_us: None,
        steps_per_s: None,
        energy_mj: None,
        energy_until_us: [].into(),
        work_s: None,
        epoch: Some(1),
        observing: true,
        log_paths: vec!["/var/lib/wattle/jobs/train-7/output.log".into()],
        reasons: vec![RecordedReason {
            at_us: at(1),
            policy: "eaco".into(),
            decision: "placed on n0:0,1".into(),
            reason: "the fullest candidate that keeps every deadline".into(),
        }],
        restarts: vec![],
        restart_cost_ms: None,
        early_stops: 0,
        left_sizes: vec![],
        probes: vec![],
        prediction_placed: None,
        prediction_last: None,
    };
    check("job-record", &record);
    let probe = ProbeRecord {
        at_us: at(60),
        cap_mw: Power::from_w(150),
        clock_mhz_max: None,
        duration_ms: 30_000,
        energy_mj_max: Energy::from_j(9_000),
    };
    let probed = JobRecord { probes: vec![probe.clone()], ..record.clone() };
    check("job-record-probed", &probed);
    let (gpu_time_ms, run_time_ms) = (Some(7_200_000), Some(3_600_000));
    check("job-record-ran", &JobRecord { gpu_time_ms, run_time_ms, ..record.clone() });
    let failed = JobRecord {
        phase: JobPhase::Failed,
        exit_code: Some(137),
        limit: Some(ReachedLimit::MemoryMib(65_536)),
        ..record.clone()
    };
    check("job-record-limit", &failed);
    check("job-record-submission", &JobRecord { submission, ..record.clone() });
    let clock_mhz_max = Some(Frequency::from_mhz(1_080));
    let setting = GpuSetting { clock_mhz_max, ..GpuSetting::DEFAULT };
    check("job-record-set", &JobRecord { setting, ..record.clone() });
    let point = SurfacePoint {
        gpus: 2,
        nodes: 1,
        cap_mw: None,
        clock_mhz_max: None,
        global_batch: None,
        neighbours: Vec::new(),
        steps_per_s: Some(Estimate { mean: 10.0, low: 9.0, high: 11.0 }),
        relative_speed: Estimate { mean: 1.0, low: 1.0, high: 1.0 },
        gpu_power_w: Estimate { mean: 190.0, low: 171.0, high: 209.0 },
    };
    let prediction = Box::new(Prediction {
        at_us: at(1),
        predictor: PredictorId::new("physical").unwrap(),
        gpu_type: "v100".into(),
        windows: 2,
        basis: Some("2 windows of this job".into()),
        placed: Some(point.clone()),
        alternatives: vec![SurfacePoint { gpus: 1, ..point }],
    });
    let predicted = JobRecord {
        step_at_us: Some(at(120)),
        steps_per_s: Some(10.25),
        energy_mj: Some(Energy::from_j(9_000)),
        energy_until_us: [(node(), at(120))].into(),
        prediction_placed: Some(prediction.clone()),
        prediction_last: Some(prediction),
        ..record.clone()
    };
    check("job-record-predicted", &predicted);
    let owned = JobSpec { user: Some("ada".into()), ..spec() };
    check("submit-job-user", &SubmitJob { spec: owned, submission: None, user_proven: false });
    let proven = JobSpec { user: Some("ada".into()), ..spec() };
    let proven = JobRecord { user_proven: true, ..JobRecord::queued(proven, at(2)) };
    check("job-record-proven", &proven);
    let read = ReadJobs { after: Some(job("train-7")), ..ReadJobs::default() };
    check("read-jobs", &read);
    check("read-jobs-list", &ReadJobs { list: Some(JobList { ended: false }), ..read });
    let reply = JobsReply::Jobs { records: vec![proven], more: true, counts: None };
    check("jobs-reply", &reply);
    let counts = Some([(JobPhase::Queued, 2), (JobPhase::Finished, 7)].into());
    check("jobs-reply-list", &JobsReply::Jobs { records: Vec::new(), more: false, counts });
    check("jobs-reply-refused", &JobsReply::Refused { error: "no key".into() });
    let clock_mhz_max = Some(Frequency::from_mhz(1_095));
    let clock = ProbeRecord { cap_mw: Power::from_w(250), clock_mhz_max, ..probe };
    check("job-record-probed-clock", &JobRecord { probes: vec![clock], ..probed });
}

#[test]
fn orders() {
    let requester = Requester { rank: Rank::User, user: UserId::new("ada").unwrap() };
    let record = OrderRecord {
        at_us: at(3),
        requester,
        proven: true,
        order: Order::Submit { job: job("train-7") },
        refused: None,
    };
    check("order-record", &record);
    let order = Order::Budget { budget: "1.200 kWh".into() };
    let refused = Some("only an operator sets the budget".into());
    check("order-record-refused", &OrderRecord { order, refused, ..record });
}

#[test]
fn output() {
    let request = ReadOutput { job: job("train-7"), offset: 4_096 };
    check("read-output", &request);
    let data = b"step 9".to_vec();
    check("output-reply", &OutputReply::Output { bytes: 4_102, data });
    let error = "/var/log/wattle/jobs/train-7.n0.log: permission denied".into();
    check("output-reply-refused", &OutputReply::Refused { error });
}

#[test]
fn node_readings() {
    check(
        "node-summary",
        &NodeSummary {
            node: node(),
            at_us: at(5),
            samples: 10,
            readings_failed: 1,
            gpus: vec![GpuSummary {
                gpu: 0,
                power_mw_mean: Some(Power::from_w(190)),
                energy_mj_total: Some(Energy::from_j(190_000)),
                utilization_gpu_percent_mean: Some(97),
                memory_used_mib: Some(9_000),
                clock_mhz: Some(Frequency::from_mhz(1_180)),
                cap_mw: Some(Power::from_w(200)),
                temperature_c: Some(61),
                throttle_reasons: Some(4),
                jobs: vec![job("train-7")],
                error: Some("GPU is lost".into()),
            }],
            jobs: Vec::new(),
            power_mw_host: None,
            ledger_from_us: None,
        },
    );
    check(
        "node-summary-jobs",
        &NodeSummary {
            node: node(),
            at_us: at(5),
            samples: 10,
            readings_failed: 0,
            gpus: Vec::new(),
            jobs: vec![JobSummary {
                job: job("train-7"),
                power_mw_mean: Some(Power::from_w(180)),
                energy_mj_open: Energy::from_j(900),
            }],
            power_mw_host: Some(Power::from_w(72)),
            ledger_from_us: Some(at(0)),
        },
    );
    check("read-summary", &ReadSummary {});
    let lease = ServiceLease {
        holder: LeaseHolder {
            instance: "host-1, process 4243, started 1700000000000000".to_owned(),
            boot: Some("6a0ed5f1-6f3b-4d1c-9a35-0d6d3b6f2f11".to_owned()),
            pid_namespace: Some("pid:[4026531836]".to_owned()),
            pid: 4_243,
        },
        length_ms: 5_000,
        since_us: at(5),
        released: false,
    };
    check("service-lease", &lease);
    check("service-lease-released", &ServiceLease { released: true, ..lease });
    check("store-restored", &StoreRestored { backup_at_us: at(1), restored_at_us: at(7) });
    let batch = TelemetryBatch {
        node: node(),
        sequence: 9,
        samples: vec![GpuSample {
            at_us: at(5),
            gpu: 1,
            power_mw: Some(Power::from_mw(190_250)),
            energy_mj: Some(Energy::from_mj(19_025)),
            utilization_gpu_percent: Some(97),
            utilization_memory_percent: None,
            memory_used_mib: Some(9_000),
            clock_mhz: Some(Frequency::from_mhz(1_180)),
            cap_mw: Some(Power::from_w(200)),
            temperature_c: Some(61),
            throttle_reasons: Some(4),
            tenants: vec![TenantSample {
                job: Some(job("train-7")),
                pid: 4_243,
                memory_used_mib: Some(8_900),
                utilization_gpu_percent: Some(97),
            }],
        }],
    };
    let golden = read_or_write("telemetry-batch.bin", &encode_telemetry(&batch));
    assert_eq!(decode_telemetry(&golden).unwrap(), batch);
    assert_eq!(
        encode_telemetry(&batch),
        golden,
        "the layout changed and needs a new schema number"
    );
}
