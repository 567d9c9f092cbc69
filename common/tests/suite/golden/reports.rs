//! The reports of launcher and power agent.

use super::*;

#[test]
fn actual() {
    let launched = |id: &str, state| LaunchedJob {
        job: job(id),
        admission: None,
        attempt: 1,
        gpus: vec![0, 1],
        state,
        processes: Some(JobProcesses::Session(4_242)),
        since_us: at(2),
        log_path: format!("/var/lib/wattle/jobs/{id}/output.log"),
    };
    let report = |jobs| LaunchReport {
        instance: String::new(),
        node: node(),
        at_us: at(3),
        observed_generation: 12,
        has_ended: false,
        fault: None,
        site: None,
        jobs,
    };
    let jobs = vec![
        launched("a", LaunchState::Running),
        launched("b", LaunchState::Stopping),
        launched("c", LaunchState::STOPPED),
        launched("d", LaunchState::exited(137)),
        launched("e", LaunchState::refused("python4: no such program".into())),
    ];
    check("launch-report", &report(jobs));
    let admitted = LaunchedJob { admission: admission(), ..launched("a", LaunchState::Running) };
    check("launch-report-admission", &report(vec![admitted]));
    let limited = |limit| LaunchState::Exited { code: 137, limit: Some(limit) };
    let jobs = vec![
        launched("a", limited(ReachedLimit::MemoryMib(65_536))),
        launched("b", limited(ReachedLimit::Processes(4_096))),
    ];
    check("launch-report-limits", &report(jobs));
    let jobs = vec![launched("a", limited(ReachedLimit::Seconds(7_200)))];
    check("launch-report-time-limit", &report(jobs));
    let error = "cannot write spec.json: no space left on device".to_owned();
    let refused =
        LaunchState::Refused { error: error.clone(), node_fault: Some(NodeFaultKind::Disk) };
    let killed = LaunchState::Stopped { killed_by: Some(10) };
    let fault = NodeFault { kind: NodeFaultKind::Disk, error, since_us: at(2) };
    let jobs = vec![launched("a", refused), launched("b", killed)];
    check("launch-report-fault", &LaunchReport { fault: Some(fault), ..report(jobs) });
    check(
        "launch-report-site",
        &LaunchReport {
            instance: String::new(),
            node: node(),
            at_us: at(3),
            observed_generation: 12,
            has_ended: false,
            fault: None,
            site: Some(SiteNode {
                unavailable: Some("drained: bad DIMM".into()),
                asleep: false,
                partitions: vec!["gpu".into(), "debug".into()],
                cpus: 60,
                memory_mib: 250_000,
                gpus_taken: vec![3],
            }),
            jobs: vec![LaunchedJob {
                processes: Some(JobProcesses::Slurm { job: 42, uid: 1_005 }),
                ..launched("slurm-42-6565", LaunchState::Running)
            }],
        },
    );
    let report = PowerReport {
        instance: String::new(),
        node: node(),
        at_us: at(3),
        observed_generation: 12,
        lease_until_us: Some(at(61)),
        gpus: vec![AppliedGpu {
            gpu: 0,
            uuid: "GPU-0a".into(),
            gpu_type: "v100".into(),
            memory_mib: Some(16_384),
            healthy: true,
            cap_mw: Some(Power::from_w(200)),
            cap_mw_default: Some(Power::from_w(250)),
            cap_mw_min: Some(Power::from_w(100)),
            cap_mw_max: Some(Power::from_w(250)),
            clock_mhz_max: Some(Frequency::from_mhz(1_200)),
            clock_mhz_supported_min: None,
            clock_mhz_supported_max: None,
            cap_mw_advised: None,
            clock_mhz_max_advised: None,
            last_error: Some("cap of 90 W is below the GPU's 100 W".into()),
            no_meter: false,
            cap_unsupported: false,
            clock_unsupported: false,
            health: None,
        }],
        can_sleep: false,
        sleep_result: None,
        switch: None,
        gpus_per_board: None,
        node_limit_mw: None,
        advise_only: false,
        driver_error: None,
        read_at_us: None,
    };
    check("power-report", &report);
    let mut lacking = report.clone();
    let gpu = &mut lacking.gpus[0];
    (gpu.memory_mib, gpu.cap_mw_min, gpu.cap_mw_max, gpu.last_error) = (None, None, None, None);
    (gpu.no_meter, gpu.cap_unsupported, gpu.clock_unsupported) = (true, true, true);
    check("power-report-unsupported", &lacking);
    let mut advised = report.clone();
    advised.advise_only = true;
    let gpu = &mut advised.gpus[0];
    (gpu.cap_mw, gpu.clock_mhz_max, gpu.last_error) = (Some(Power::from_w(250)), None, None);
    gpu.cap_mw_advised = Some(Power::from_w(200));
    gpu.clock_mhz_max_advised = Some(Frequency::from_mhz(1_200));
    check("power-report-advised", &advised);
    let mut with_clocks = report;
    with_clocks.gpus[0].clock_mhz_supported_min = Some(Frequency::from_mhz(135));
    with_clocks.gpus[0].clock_mhz_supported_max = Some(Frequency::from_mhz(1_530));
    check("power-report-clocks", &with_clocks);
    let mut that_sleeps = with_clocks;
    that_sleeps.can_sleep = true;
    let error = Some("`/usr/sbin/suspend` ended with exit code 1".into());
    that_sleeps.sleep_result = Some(SleepResult { requested_at_us: at(1), error });
    check("power-report-sleep", &that_sleeps);
    let mut placed = that_sleeps;
    (placed.switch, placed.gpus_per_board) = (SwitchId::new("leaf-3").ok(), Some(4));
    check("power-report-place", &placed);
    placed.node_limit_mw = Some(Power::from_w(1_600));
    check("power-report-limit", &placed);
    placed.gpus[0].health = Some(GpuHealth {
        mig_enabled: Some(false),
        persistence_enabled: Some(true),
        ecc_errors_uncorrected: Some(3),
        memory_repair: Some(MemoryRepair::Pending),
        no_new_jobs: true,
        conditions: vec![GpuCondition {
            condition: GpuConditionKind::EccErrors,
            since_us: at(2),
            detail: Some("3 since the driver was loaded".into()),
        }],
    });
    check("power-report-health", &placed);
    placed.driver_error = Some("no NVIDIA driver".into());
    check("power-report-driver", &placed);
    placed.read_at_us = Some(at(2));
    check("power-report-reading", &placed);
}
