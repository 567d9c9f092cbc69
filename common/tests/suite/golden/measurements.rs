//! Measurements of jobs and nodes, leases of services, and telemetry.

use super::*;

#[test]
fn job_measurements() {
    let window = JobWindow {
        job: job("train-7"),
        admission: None,
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
    };
    check("job-window", &window);
    check("job-window-admission", &JobWindow { admission: admission(), ..window });
    check(
        "job-progressed",
        &JobProgressed {
            job: job("train-7"),
            admission: None,
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
                admission: None,
                energy_mj: Energy::from_j(9_000),
                user: None,
                project: None,
                compared: None,
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
        jobs: vec![],
        admissions: [].into(),
    };
    let no_meter = UnknownEnergy {
        cause: UnknownCause::NoMeter,
        energy_mj: Energy::ZERO,
        estimate_mj: None,
        jobs: vec![job("train-7")],
        ..unknown.clone()
    };
    let unmetered = |unknown| LedgerEntry {
        node: node(),
        from_us: at(60),
        until_us: at(120),
        energy_mj_gpus: vec![None],
        energy_mj_host: Energy::from_j(4_320),
        jobs: vec![],
        unknown: vec![unknown],
    };
    check("ledger-entry-no-meter", &unmetered(no_meter.clone()));
    let admissions = admission().map(|admission| (job("train-7"), admission)).into_iter().collect();
    let of_submission = unmetered(UnknownEnergy { admissions, ..no_meter });
    check("ledger-entry-no-meter-admission", &of_submission);
    let part = JobEnergy {
        job: job("train-7"),
        admission: None,
        energy_mj,
        user: user.clone(),
        project: Some(ProjectId::new("nlp").unwrap()),
        compared: None,
    };
    let entry = |part: &JobEnergy| LedgerEntry {
        node: node(),
        from_us: at(60),
        until_us: at(120),
        energy_mj_gpus: vec![Some(Energy::from_j(11_400))],
        energy_mj_host: Energy::from_j(4_320),
        jobs: vec![part.clone()],
        unknown: vec![],
    };
    check("ledger-entry-unknown", &LedgerEntry { unknown: vec![unknown], ..entry(&part) });
    let admitted = JobEnergy { admission: admission(), ..part.clone() };
    check("ledger-entry-admission", &entry(&admitted));
    let of_user = JobEnergy { user, project: None, ..part };
    check("ledger-entry-user", &entry(&of_user));
    let compared = Some(ComparedEnergy {
        energy_mj: Energy::from_j(6_000),
        energy_mj_default: Energy::from_j(7_500),
        gpu_time_us: 30_000_000,
        gpu_time_us_default: 28_500_000,
    });
    let compared = JobEnergy { user: None, compared, ..of_user };
    check("ledger-entry-compared", &entry(&compared));
}

#[test]
fn node_readings() {
    check(
        "node-summary",
        &NodeSummary {
            node: node(),
            at_us: at(5),
            span_ms: 1_000,
            observed_generation: 0,
            samples: 10,
            readings_failed: 1,
            gpus: vec![GpuSummary {
                gpu: 0,
                power_mw_mean: Some(Power::from_w(190)),
                energy_mj_total: Some(Energy::from_j(190_000)),
                utilization_gpu_percent_mean: Some(97),
                meter: None,
                memory_used_mib: Some(9_000),
                memory_free_mib: None,
                clock_mhz: Some(Frequency::from_mhz(1_180)),
                cap_mw: Some(Power::from_w(200)),
                cap_mw_enforced: None,
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
    let with_jobs = NodeSummary {
        node: node(),
        at_us: at(5),
        span_ms: 1_000,
        observed_generation: 0,
        samples: 10,
        readings_failed: 0,
        gpus: Vec::new(),
        jobs: vec![JobSummary {
            job: job("train-7"),
            admission: None,
            power_mw_mean: Some(Power::from_w(180)),
            energy_mj_open: Some(Energy::from_j(900)),
            unmetered_ms_open: 0,
        }],
        power_mw_host: Some(Power::from_w(72)),
        ledger_from_us: Some(at(0)),
    };
    check("node-summary-jobs", &with_jobs);
    let no_meter = GpuSummary {
        gpu: 0,
        power_mw_mean: None,
        energy_mj_total: None,
        meter: Some(Meter::None),
        utilization_gpu_percent_mean: Some(97),
        memory_used_mib: Some(9_000),
        memory_free_mib: Some(7_100),
        clock_mhz: None,
        cap_mw: Some(Power::from_w(250)),
        cap_mw_enforced: Some(Power::from_w(200)),
        temperature_c: None,
        throttle_reasons: None,
        jobs: vec![job("train-7")],
        error: None,
    };
    let unmetered = JobSummary {
        job: job("train-7"),
        admission: None,
        power_mw_mean: None,
        energy_mj_open: None,
        unmetered_ms_open: 5_000,
    };
    let admitted = JobSummary { admission: admission(), ..with_jobs.jobs[0].clone() };
    let admitted = NodeSummary { jobs: vec![admitted], ..with_jobs.clone() };
    check("node-summary-admission", &admitted);
    let unmetered =
        NodeSummary { gpus: vec![no_meter], jobs: vec![unmetered], ..with_jobs.clone() };
    check("node-summary-no-meter", &unmetered);
    check("node-summary-span", &NodeSummary { span_ms: 6_000, ..with_jobs.clone() });
    check("node-summary-generation", &NodeSummary { observed_generation: 12, ..with_jobs });
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
