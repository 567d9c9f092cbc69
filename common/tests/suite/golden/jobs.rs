//! Requests about jobs, and the records of jobs.

use super::*;

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
        flexibility: None,
        priority: 0,
        deadline_at_us: Some(at(7_200)),
        slack_ms: None,
        duration_ms_estimate: Some(3_600_000),
        time_limit_ms: None,
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
    check("submit-job-site", &submit(of_site.clone()));
    let limited = JobSpec { time_limit_ms: Some(86_400_000), ..of_site };
    check("submit-job-time-limit", &submit(limited));
    let placed_by_site = JobSpec { command: Vec::new(), site: site(true, None), ..spec() };
    check("submit-job-placed-by-site", &submit(placed_by_site));
    let promised = Flexibility { loss_permille: 250, may_pause: true, may_resize: false };
    check("submit-job-flexibility", &submit(JobSpec { flexibility: Some(promised), ..spec() }));
    check("cancel-job", &CancelJob { job: job("train-7") });
    let accepted = |generation| Reply::Accepted { job: job("train-7"), generation };
    check("reply-accepted", &accepted(0));
    check("reply-accepted-generation", &accepted(2));
    check("reply-refused", &Reply::Refused { error: "requests 9 GPUs, the cluster has 8".into() });
    let record = JobRecord {
        spec: spec(),
        admission: None,
        submission: None,
        user_proven: false,
        generation: 0,
        phase: JobPhase::Running,
        phase_since_us: at(2),
        attempt: 1,
        attempts_prevented: 0,
        placement: Some(Placement { shares: vec![share()] }),
        ran_on: [].into(),
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
        unmetered_ms: 0,
        energy_mj: None,
        energy_until_us: [].into(),
        compared: None,
        work_s: None,
        twin_work: None,
        epoch: Some(1),
        observing: true,
        log_paths: vec!["/var/lib/wattle/jobs/train-7/output.log".into()],
        reasons: vec![RecordedReason::new(
            at(1),
            "eaco",
            "placed on n0:0,1".into(),
            "the fullest candidate that keeps every deadline".into(),
        )],
        restarts: vec![],
        restart_cost_ms: None,
        early_stops: 0,
        stops_us: vec![],
        stops_unsaved: 0,
        left_sizes: vec![],
        expected: None,
        prediction_placed: None,
        prediction_last: None,
    };
    check("job-record", &record);
    check("job-record-generation", &JobRecord { generation: 2, ..record.clone() });
    check("job-record-prevented", &JobRecord { attempts_prevented: 1, ..record.clone() });
    check_read("job-record-probed", &record);
    let (gpu_time_ms, run_time_ms) = (Some(7_200_000), Some(3_600_000));
    let instant = |s| ExpectedInstant {
        at_us: at(s),
        from_us: at(s - 60),
        until_us: at(s + 600),
        forecasts: 132,
    };
    let (start, end) = (Some(instant(100)), Some(instant(900)));
    let times = ExpectedTimes { at_us: at(3), start, end, unknown: None };
    check("job-record-expected", &JobRecord { expected: Some(times.into()), ..record.clone() });
    let unknown = Some(NotExpected::TooFewGpus);
    let times = ExpectedTimes { at_us: at(3), start: None, end: None, unknown };
    check("job-record-unexpected", &JobRecord { expected: Some(times.into()), ..record.clone() });
    check("job-record-unsaved", &JobRecord { stops_unsaved: 1, ..record.clone() });
    check("job-record-stops", &JobRecord { stops_us: vec![at(1)], ..record.clone() });
    check("job-record-unmetered", &JobRecord { unmetered_ms: 60_000, ..record.clone() });
    let work = TwinWork {
        done_s: 300.0,
        run_time_s: Some(310.5),
        gpu_s: 620.0,
        gpu_w: Some(210.5),
        ..TwinWork::default()
    };
    check("job-record-worked", &JobRecord { twin_work: Some(work.into()), ..record.clone() });
    check("job-record-ran", &JobRecord { gpu_time_ms, run_time_ms, ..record.clone() });
    let failed = JobRecord {
        phase: JobPhase::Failed,
        exit_code: Some(137),
        limit: Some(ReachedLimit::MemoryMib(65_536)),
        ..record.clone()
    };
    check("job-record-limit", &failed);
    check("job-record-submission", &JobRecord { submission, ..record.clone() });
    let ran_on = [node()].into();
    let admitted = JobRecord { admission: admission(), ran_on, ..record.clone() };
    check("job-record-admission", &admitted);
    let clock_mhz_max = Some(Frequency::from_mhz(1_080));
    let setting = GpuSetting { clock_mhz_max, ..GpuSetting::DEFAULT };
    check("job-record-set", &JobRecord { setting, ..record.clone() });
    let waits = RecordedReason {
        stage: Some("power limits".into()),
        ..RecordedReason::new(
            at(1),
            "eaco",
            "waits".into(),
            "no power left within the limit of 3.00 kW".into(),
        )
    };
    check("job-record-stage", &JobRecord { reasons: vec![waits], ..record.clone() });
    let smaller = RecordedReason {
        consequence: Some(Consequence {
            in_place_of: "8 GPUs".into(),
            end_later_s: Some(2_400.0),
            energy_more_j: Some(-756_000.0),
            queued_sooner: Some(MovedJobs { jobs: 3, by_s: 7_200.0 }),
            queued_later: Some(MovedJobs { jobs: 1, by_s: 60.0 }),
            tenants_later: Some(MovedJobs { jobs: 1, by_s: 300.0 }),
        }),
        details: Some("worth 1.25 s of completion time per second; GPU price 0".into()),
        ..record.reasons[0].clone()
    };
    check("job-record-consequence", &JobRecord { reasons: vec![smaller], ..record.clone() });
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
    let compared = Some(ComparedEnergy {
        energy_mj: Energy::from_j(6_000),
        energy_mj_default: Energy::from_j(7_500),
        gpu_time_us: 30_000_000,
        gpu_time_us_default: 28_500_000,
    });
    check("job-record-compared", &JobRecord { compared, ..predicted });
    let owned = JobSpec { user: Some("ada".into()), ..spec() };
    check("submit-job-user", &SubmitJob { spec: owned, submission: None, user_proven: false });
    let proven = JobSpec { user: Some("ada".into()), ..spec() };
    let proven = JobRecord { user_proven: true, generation: 0, ..JobRecord::queued(proven, at(2)) };
    check("job-record-proven", &proven);
    let read = ReadJobs { after: Some(job("train-7")), ..ReadJobs::default() };
    check("read-jobs", &read);
    check("read-jobs-list", &ReadJobs { list: Some(JobList { ended: false }), ..read });
    let reply = JobsReply::Jobs { records: vec![proven], more: true, counts: None };
    check("jobs-reply", &reply);
    let counts = Some([(JobPhase::Queued, 2), (JobPhase::Finished, 7)].into());
    check("jobs-reply-list", &JobsReply::Jobs { records: Vec::new(), more: false, counts });
    check("jobs-reply-refused", &JobsReply::Refused { error: "no key".into() });
}
