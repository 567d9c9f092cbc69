//! What an operator should look at: faults with their remedies, the gravest first.

use serde_json::{Value, json};
use wattle_common::messages::PredictorState;

use crate::model::{Model, Now};

/// Most faults on a page.
const FAULTS_MAX: usize = 20;

/// How grave a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// The cluster does not work as it should.
    Fault,
    /// It works, and something needs attention.
    Warning,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Warning => "warning",
        }
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fault {
    /// How grave it is.
    pub(super) level: Level,
    /// The service or the node that has the fault.
    pub(super) of: String,
    /// What is wrong.
    pub(super) text: String,
    /// What to do.
    pub(super) remedy: String,
}

impl Fault {
    fn new(level: Level, of: impl ToString, text: impl ToString, remedy: impl ToString) -> Self {
        let (of, text, remedy) = (of.to_string(), text.to_string(), remedy.to_string());
        Self { level, of, text, remedy }
    }
}

/// All faults, the gravest first.
pub(super) fn all(model: &Model, now: Now) -> Vec<Fault> {
    let mut faults = services(model, now);
    for node in model.nodes.values() {
        let id = &node.node;
        for (power, service) in [(true, "power agent"), (false, "launcher")] {
            if model.is_overdue(node, power, now) {
                let unit = if power { "wattle-power-agent" } else { "wattle-launcher" };
                let remedy = format!("look at {unit} on {id}");
                faults.push(Fault::new(
                    Level::Fault,
                    id,
                    format!("its {service} is silent"),
                    remedy,
                ));
            }
        }
        if node.sleep.is_none() && model.lost_since().is_none() && !model.summaries.contains_key(id)
        {
            let remedy = format!("look at wattle-profiler on {id}");
            faults.push(Fault::new(Level::Warning, id, "its profiler sends no readings", remedy));
        }
        let Some(report) = &node.power else { continue };
        if let Some(error) = &report.driver_error {
            faults.push(Fault::new(Level::Fault, id, "no GPU can be read", error));
        }
        for gpu in &report.gpus {
            let of = format!("{id} GPU {}", gpu.gpu);
            for condition in gpu.health.iter().flat_map(|health| &health.conditions) {
                let kind = condition.condition;
                let level = if kind.keeps_jobs_away() { Level::Fault } else { Level::Warning };
                faults.push(Fault::new(level, &of, kind.description(), kind.remedy()));
            }
            if let Some(error) = &gpu.last_error {
                faults.push(Fault::new(Level::Warning, &of, "a setting was refused", error));
            }
        }
    }
    faults.sort();
    faults
}

fn services(model: &Model, now: Now) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Some(since) = model.lost_since() {
        let age = now.steady.saturating_sub(since).as_secs();
        let text = format!("the NATS server has been away for {age} s: the figures are old");
        faults.push(Fault::new(
            Level::Fault,
            "bus",
            text,
            "start nats-server, or check the network",
        ));
        return faults;
    }
    for (key, effect) in [("placer", "no job starts"), ("registry", "predictions do not change")] {
        if !model.leases.get(key).is_some_and(|lease| lease.is_active(now.steady)) {
            let text = format!("no {key} is active: {effect}");
            faults.push(Fault::new(Level::Fault, key, text, format!("start wattle-{key}")));
        }
    }
    for (name, status) in &model.predictors {
        if matches!(status.state, PredictorState::Silent | PredictorState::Failing) {
            let level = if status.champion { Level::Fault } else { Level::Warning };
            let text = status.error.clone().unwrap_or_else(|| "it does not answer".to_owned());
            let remedy = if status.champion {
                "start it, or promote another: wattle predictors promote NAME"
            } else {
                "start wattle-predictor, if it is needed"
            };
            faults.push(Fault::new(level, format!("predictor {name}"), text, remedy));
        }
    }
    if let Some(fault) = &model.fault {
        let text = format!("{} values could not be read; the last: {fault}", model.unreadable);
        let remedy = "update wattle-web, or look at the log of the writer";
        faults.push(Fault::new(Level::Warning, "page", text, remedy));
    }
    faults
}

/// The first faults, for a page.
pub(super) fn shown(faults: &[Fault]) -> Value {
    let rows: Vec<Value> = faults
        .iter()
        .take(FAULTS_MAX)
        .map(|fault| {
            json!({
                "level": fault.level.name(), "of": fault.of, "text": fault.text,
                "remedy": fault.remedy,
            })
        })
        .collect();
    json!({ "shown": rows, "count": faults.len() })
}
