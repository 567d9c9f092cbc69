//! Messages and stored values in the state machines of all services.
//!
//! An input is lines of `KIND JSON`. Every line goes, in order, to all services that read its kind, as
//! their shells pass it on. Then time passes: the machines wake when they are due. The stored kinds are
//! also what a restarted service restores, so that no stored value can stop it again and again.

use std::time::Duration;

use serde::de::DeserializeOwned;
use wattle_common::bounds::{
    check_launch_report, check_power_report, check_progress_line, check_record,
};
use wattle_common::event::EventBook;
use wattle_common::id::{JobId, WorkloadId};
use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetStatus, CancelJob, Champion, EventRequest, JobProgressed,
    JobRecord, JobWindow, LaunchReport, LaunchState, LedgerEntry, NodeDesired, PowerReport,
    PromotePredictor, SetBudget, SubmitJob, Surface,
};
use wattle_common::progress::Progress;
use wattle_common::{Machine, Timestamp};
use wattle_testkit as kit;

/// The targets' time: that of the examples in `common/tests/golden`.
pub const NOW: Timestamp = Timestamp::from_s(1_700_000_122);
/// The node and the job of the examples.
const NODE: &str = "n0";
const JOB: &str = "train-7";
/// Most lines of an input.
const LINES_MAX: usize = 24;
/// Most wake-ups of a machine at one instant, and after one input.
const WAKES_MAX: usize = 200;

/// A decoded line.
enum Line {
    Submit(SubmitJob),
    Cancel(CancelJob),
    SetBudget(SetBudget),
    EventRequest(EventRequest),
    EventBook(EventBook),
    Ledger(LedgerEntry),
    Power(PowerReport),
    Launch(LaunchReport),
    Surface(Box<Surface>),
    Progressed(JobProgressed),
    Window(Box<JobWindow>),
    Record(Box<JobRecord>),
    Desired(NodeDesired),
    Champion(Champion),
    Promote(PromotePredictor),
    Budget(BudgetRecord),
    BudgetStatus(BudgetStatus),
    Aim(AimStatus),
    /// A predictor's stored job.
    KnownJob(Box<wattle_predictor::job::Job>),
    /// A predictor's stored class.
    KnownClass(wattle_predictor::history::Class),
    /// A predictor's stored scores.
    KnownScores(wattle_predictor::calibration::Scores),
    /// The registry's stored scores.
    RegistryScores(Box<wattle_registry::score::Record>),
    /// The profiler's state file.
    ProfilerState(wattle_profiler::State),
    /// A progress line, as a JSON string.
    Reported(Progress),
    /// Time that passes, seconds.
    Pass(u16),
}

/// The kind of an example file of `common/tests/golden`.
#[must_use]
pub fn kind_of(file: &str) -> Option<&'static str> {
    const KINDS: [&str; 18] = [
        "submit-job",
        "cancel-job",
        "set-budget",
        "event-request",
        "event-book",
        "ledger-entry",
        "power-report",
        "launch-report",
        "surface",
        "job-progressed",
        "job-window",
        "job-record",
        "node-desired",
        "champion",
        "promote-predictor",
        "budget-record",
        "budget-status",
        "aim-status",
    ];
    KINDS.into_iter().find(|kind| file.starts_with(kind))
}

fn line(text: &str) -> Option<Line> {
    fn read<T: DeserializeOwned>(json: &str) -> Option<T> {
        serde_json::from_str(json).ok()
    }
    let (kind, json) = text.split_once(' ')?;
    Some(match kind {
        "submit-job" => Line::Submit(read(json)?),
        "cancel-job" => Line::Cancel(read(json)?),
        "set-budget" => Line::SetBudget(read(json)?),
        "event-request" => Line::EventRequest(read(json)?),
        "event-book" => Line::EventBook(read(json)?),
        "ledger-entry" => Line::Ledger(read(json)?),
        "power-report" => Line::Power(read(json)?),
        "launch-report" => Line::Launch(read(json)?),
        "surface" => Line::Surface(read(json)?),
        "job-progressed" => Line::Progressed(read(json)?),
        "job-window" => Line::Window(read(json)?),
        "job-record" => Line::Record(read(json)?),
        "node-desired" => Line::Desired(read(json)?),
        "champion" => Line::Champion(read(json)?),
        "promote-predictor" => Line::Promote(read(json)?),
        "budget-record" => Line::Budget(read(json)?),
        "budget-status" => Line::BudgetStatus(read(json)?),
        "aim-status" => Line::Aim(read(json)?),
        "known-job" => Line::KnownJob(read(json)?),
        "known-class" => Line::KnownClass(read(json)?),
        "known-scores" => Line::KnownScores(read(json)?),
        "registry-scores" => Line::RegistryScores(read(json)?),
        "profiler-state" => Line::ProfilerState(read(json)?),
        "progress-line" => Line::Reported(Progress::parse(read::<String>(json)?.as_bytes()).ok()?),
        "pass" => Line::Pass(read(json)?),
        _ => return None,
    })
}

/// Handles the lines in all services.
pub(super) fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<Line> = text.lines().take(LINES_MAX).filter_map(line).collect();
    if lines.is_empty() {
        return;
    }
    placer(&lines);
    registry(&lines);
    predictor(&lines);
    profiler(&lines);
    launcher(&lines);
    power_agent(&lines);
}

/// Wakes a machine until it has nothing due for some time.
fn pass<M: Machine>(machine: &mut M, now: &mut Timestamp, seconds: u64) {
    let until = *now + Duration::from_secs(seconds);
    let mut out = Vec::new();
    for _ in 0..WAKES_MAX {
        match machine.next_wake().filter(|(at, _)| *at <= until) {
            Some((at, _)) => *now = at.max(*now),
            None => break,
        }
        machine.wake(*now, &mut out);
        out.clear();
    }
    *now = until.max(*now);
}

/// Delivers events in order; the machine wakes after each, and for a minute at the end.
fn drive<M: Machine>(
    machine: &mut M,
    lines: &[Line],
    event: impl Fn(&Line, Timestamp) -> Option<M::Event>,
) {
    let mut now = NOW;
    let mut out = Vec::new();
    for line in lines {
        if let Line::Pass(seconds) = line {
            pass(machine, &mut now, u64::from(*seconds).min(3_600));
        }
        if let Some(event) = event(line, now) {
            machine.handle(now, event, &mut out);
            out.clear();
            pass(machine, &mut now, 1);
        }
    }
    pass(machine, &mut now, 60);
}

fn placer(lines: &[Line]) {
    use wattle_placer::{Event, PersistedState, Placer};
    let config = || {
        let text = "cluster = \"main\"\npolicy = \"wattle\"\n[nats]\nurl = \"nats://localhost\"\n";
        toml::from_str::<wattle_placer::Config>(text).expect("a valid configuration")
    };
    let policy = || wattle_placer::policy("wattle").expect("a policy");
    let gpus = || (0..2).map(|gpu| kit::applied_gpu(gpu, "v100"));
    let event = |line: &Line, now: Timestamp| {
        Some(match line {
            Line::Submit(message) => {
                let admission = wattle_common::AdmissionId::accepted(now, 1);
                Event::Submitted(1, admission, Box::new(message.clone()))
            }
            Line::Cancel(message) => Event::Cancelled(2, message.clone()),
            Line::SetBudget(message) => Event::BudgetSet(3, Box::new(message.clone())),
            Line::EventRequest(message) => Event::EventSet(4, Box::new(message.clone())),
            Line::Ledger(entry) => Event::EnergyMetered(Box::new(entry.clone())),
            Line::Power(report) => Event::PowerReported(report.clone()),
            Line::Launch(report) => Event::LaunchReported(report.clone()),
            Line::Surface(surface) => Event::SurfaceKnown(surface.clone()),
            Line::Progressed(message) => Event::Progressed(message.clone()),
            _ => return None,
        })
    };
    // As events: a running job of which each message may be one.
    let run = kit::launched_job(JOB, 1, [0, 1], LaunchState::Running, NOW);
    let mut record = kit::job_record(kit::job_spec(JOB, 2), wattle_common::job::JobPhase::Running);
    record.attempt = 1;
    record.spec.checkpoint_signal = Some("SIGUSR1".to_owned());
    record.placement = Some(kit::placement([(NODE, [0, 1])]));
    let persisted = PersistedState {
        jobs: vec![record],
        power: vec![kit::power_report(NODE, NOW, gpus())],
        launch: vec![kit::launch_report(NODE, NOW, 1, [run])],
        ..PersistedState::default()
    };
    drive(&mut Placer::new(config(), policy(), persisted, NOW), lines, event);
    // As stored values: a restarted placer restores them, and then plans.
    let mut persisted = PersistedState::default();
    for line in lines {
        match line {
            Line::Record(record) => persisted.jobs.push((**record).clone()),
            Line::Desired(order) => persisted.desired.push(order.clone()),
            Line::Power(report) => persisted.power.push(report.clone()),
            Line::Launch(report) => persisted.launch.push(report.clone()),
            Line::Surface(surface) => persisted.surfaces.push((**surface).clone()),
            Line::Budget(record) => persisted.budget = Some(record.clone()),
            Line::EventBook(book) => persisted.events = Some(book.clone()),
            Line::BudgetStatus(status) => persisted.budget_status = Some(status.clone()),
            Line::Aim(status) => persisted.aim_status = Some(status.clone()),
            _ => {}
        }
    }
    // A bucket has one value of a key.
    persisted.jobs.dedup_by(|a, b| a.spec.job == b.spec.job);
    if persisted.power.is_empty() {
        persisted.power = vec![kit::power_report(NODE, NOW, gpus())];
    }
    let later: Vec<Line> = vec![Line::Submit(SubmitJob {
        spec: kit::job_spec("new", 1),
        submission: None,
        user_proven: false,
    })];
    drive(&mut Placer::new(config(), policy(), persisted, NOW), &later, event);
}

fn registry(lines: &[Line]) {
    use wattle_registry::{Event, Registry, RegistryConfig};
    let predictor = kit::predictor("physical");
    let mut champion = None;
    let mut records = Vec::new();
    for line in lines {
        match line {
            Line::Champion(stored) => champion = Some(stored.clone()),
            Line::RegistryScores(stored) => records.push((predictor.clone(), (**stored).clone())),
            _ => {}
        }
    }
    let mut registry = Registry::new(NOW, RegistryConfig::shipped(), champion, records);
    drive(&mut registry, lines, |line, now| {
        Some(match line {
            Line::Surface(surface) => Event::Proposed {
                predictor: surface.predictor.clone(),
                job: surface.job.clone(),
                surface: Ok(surface.clone()),
            },
            Line::Window(window) => Event::WindowClosed(window.clone()),
            Line::Record(record) if check_record(record, now).is_ok() => Event::JobDescribed {
                job: record.spec.job.clone(),
                admission: record.admission.clone(),
                workload: record.spec.workload.clone(),
                gpus: record.spec.gpus,
                gpu_type: record.spec.gpu_type.clone(),
                started: record.attempt > 0,
            },
            Line::Promote(request) => {
                let predictor = request.predictor.clone();
                Event::Promoted(Champion { predictor, since_us: now, generation: 2 })
            }
            _ => return None,
        })
    });
}

fn predictor(lines: &[Line]) {
    use wattle_predictor::{Event, Predictor, PredictorConfig, PredictorMachine};
    let mut predictor = Predictor::new(PredictorConfig::shipped());
    for line in lines {
        match line {
            Line::KnownJob(stored) => {
                predictor.restore_job(kit::job(JOB), (**stored).clone());
            }
            Line::KnownClass(stored) => {
                predictor.restore_class("v100", kit::workload("resnet50"), stored.clone());
            }
            Line::KnownScores(stored) => {
                predictor.restore_scores("v100", "power-setting-same_config", stored.clone());
            }
            _ => {}
        }
    }
    let mut machine = PredictorMachine::with(predictor);
    let described = |job: &JobId, workload: Option<WorkloadId>, gpus, gpu_type| {
        Event::JobDescribed { job: job.clone(), admission: None, workload, gpus, gpu_type }
    };
    drive(&mut machine, lines, |line, now| {
        Some(match line {
            Line::Window(window) => Event::WindowClosed(window.clone()),
            Line::Record(record) if check_record(record, now).is_ok() => described(
                &record.spec.job,
                record.spec.workload.clone(),
                record.spec.gpus,
                record.spec.gpu_type.clone(),
            ),
            Line::Power(report) if check_power_report(report, now).is_ok() => {
                Event::GpuTypeFound(report.gpus.first()?.gpu_type.clone())
            }
            Line::Champion(_) => Event::AllRequested,
            Line::Cancel(cancel) => Event::JobEnded(cancel.job.clone(), None),
            _ => return None,
        })
    });
}

fn profiler(lines: &[Line]) {
    use wattle_profiler::{Event, ProfilerMachine, Sender, Settings};
    let node = kit::node(NODE);
    let state = lines.iter().find_map(|line| match line {
        Line::ProfilerState(state)
            if state.check(&node, NOW, None, Duration::from_secs(2)).is_ok() =>
        {
            Some(state.clone())
        }
        _ => None,
    });
    let mut machine = ProfilerMachine::new(node, Settings::default(), state, None);
    drive(&mut machine, lines, |line, now| {
        Some(match line {
            Line::Launch(report) if check_launch_report(report, now).is_ok() => {
                Event::LaunchReported(report.clone())
            }
            Line::Power(report) if check_power_report(report, now).is_ok() => {
                Event::PowerReported(report.clone())
            }
            Line::Record(record) if check_record(record, now).is_ok() => {
                Event::JobRecorded(record.clone())
            }
            Line::Reported(line) if check_progress_line(line).is_ok() => {
                Event::Progressed { at: now, line: line.clone(), sender: Sender::root() }
            }
            _ => return None,
        })
    });
}

fn launcher(lines: &[Line]) {
    use wattle_launcher::{Event, Launcher, PersistedState};
    let text = "cluster = \"main\"\nnode = \"n0\"\nstate_dir = \"/nonexistent\"\n\
                progress_socket = \"/nonexistent\"\ncheckpoint_dir = \"/nonexistent\"\n\
                log_dir = \"/nonexistent\"\n[nats]\nurl = \"nats://localhost\"\n";
    let config = toml::from_str(text).expect("a valid configuration");
    let mut machine = Launcher::new(config, PersistedState::default());
    drive(&mut machine, lines, |line, _| match line {
        Line::Desired(order) => Some(Event::DesiredChanged(order.clone())),
        _ => None,
    });
}

fn power_agent(lines: &[Line]) {
    use wattle_power_agent::{Event, PowerMachine, Settings};
    let mut machine = PowerMachine::new(kit::node(NODE), Settings::default());
    drive(&mut machine, lines, |line, _| match line {
        Line::Desired(order) => Some(Event::DesiredChanged(order.clone())),
        _ => None,
    });
}
