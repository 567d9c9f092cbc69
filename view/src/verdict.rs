//! What is wrong with a cluster: the findings of what is stored ([`wattle_common::verdict`]), of the services and of
//! the nodes. The command line and the web page show the same sentences.

use std::time::Duration;

use wattle_common::duration::span;
use wattle_common::id::PredictorId;
use wattle_common::messages::{GpuConditionKind, PredictorState, PredictorStatus};
use wattle_common::{NodeId, Power};

use crate::node::Node;

pub use wattle_common::verdict::{Finding, Level, Stored, headline, sort};

/// Services of a node, by their names in messages.
pub const OF_NODE: [&str; 3] = ["profiler", "power-agent", "launcher"];

/// The NATS server does not answer.
#[must_use]
pub fn server_away(url: &str, since: Duration) -> Finding {
    let at = if url.is_empty() { String::new() } else { format!(" at {url}") };
    let since = span(since.as_secs_f64());
    let text = format!("the NATS server{at} has not answered for {since}: the figures are old");
    Finding::fault("server", "bus", text, "start nats-server, or check the network")
}

/// No process of a service is active; `None`: the cluster works without the service.
#[must_use]
pub fn service_away(service: &str) -> Option<Finding> {
    let (effect, is_fault) = match service {
        "placer" => ("no job starts", true),
        "registry" => ("predictions do not change", true),
        "predictor" => ("placements use priors", false),
        _ => return None,
    };
    let text = format!("no {service} is active: {effect}");
    let remedy = format!("systemctl start wattle-{service} on its host, and read its log");
    Some(if is_fault {
        Finding::fault("services", service, text, remedy)
    } else {
        Finding::warning("services", service, text, remedy)
    })
}

/// A service of a node does not answer.
#[must_use]
pub fn node_silent(node: &NodeId, service: &str) -> Finding {
    let effect = match service {
        "launcher" => "no job starts there",
        "power-agent" => "caps become safe, and no job starts there",
        _ => "power and speed of its jobs are not known",
    };
    let text = format!("the {service} of {node} does not answer: {effect}");
    let remedy = format!("systemctl status wattle-{service} on {node}");
    Finding::fault("node", node, text, remedy)
}

/// The fault that keeps a node from starting jobs, by the report of its launcher.
#[must_use]
pub fn fault(node: &Node) -> Option<Finding> {
    let (fault, name) = (node.fault()?, &node.node);
    let text = format!("{name} cannot start jobs: {}", fault.error);
    Some(Finding::fault("node", name, text, fault.kind.remedy()))
}

/// What is wrong with the GPUs of a node that is awake, by the report of its power agent.
#[must_use]
pub fn gpus(node: &Node) -> Vec<Finding> {
    let Some(report) = node.power.as_ref().filter(|_| node.sleep.is_none()) else {
        return Vec::new();
    };
    let name = &node.node;
    if let Some(error) = &report.driver_error {
        let text = format!("no GPU of {name} can be read: {error}");
        let remedy = "nvidia-smi on the node; load the driver, or reboot the node";
        // The conditions of its GPUs have the same cause.
        return vec![Finding::fault("node", name, text, remedy)];
    }
    let mut findings = Vec::new();
    for gpu in &report.gpus {
        let of = format!("GPU {} of {name}", gpu.gpu);
        let conditions = gpu.health.iter().flat_map(|health| &health.conditions);
        let mut kinds: Vec<_> = conditions.map(|condition| condition.condition).collect();
        if !gpu.healthy && !kinds.iter().any(|kind| kind.keeps_jobs_away()) {
            kinds.push(GpuConditionKind::Lost);
        }
        for kind in kinds {
            let text = format!("{of} {}", kind.description());
            findings.push(if kind.is_fault() {
                Finding::fault("node", &of, text, kind.remedy())
            } else {
                Finding::warning("node", &of, text, kind.remedy())
            });
        }
        if gpu.no_meter {
            let text =
                format!("the energy of {of} is not known: power and energy are not supported");
            let remedy =
                "budgets, reports and sums lack it; a newer driver may support the readings";
            findings.push(Finding::warning("node", &of, text, remedy));
        }
        if gpu.cap_unsupported {
            let text = format!("{of} supports no power cap: it is advised only");
            let remedy = "a power limit counts the node with the highest power of its GPUs; a driver or a board \
                          that permits caps lets Wattle set them";
            findings.push(Finding::warning("node", &of, text, remedy));
        }
        if let Some(error) = &gpu.last_error {
            let text = format!("cap or clock of {of} is not set: {error}");
            let remedy = "the power agent needs root or CAP_SYS_ADMIN, as its systemd unit gives it, or \
                          control = \"zeusd\" (docs/security.md)";
            findings.push(Finding::fault("node", &of, text, remedy));
        }
    }
    findings
}

/// The GPUs of a node that have no energy counter, by the last readings.
#[must_use]
pub fn without_counter(node: &Node) -> Option<Finding> {
    let name = &node.node;
    let readings = node.summary.iter().flat_map(|summary| &summary.gpus);
    let without =
        readings.filter(|gpu| gpu.energy_mj_total.is_none() && gpu.power_mw_mean.is_some());
    let gpus: Vec<String> = without.map(|gpu| gpu.gpu.to_string()).collect();
    (!gpus.is_empty()).then(|| {
        let text = format!(
            "GPU {} of {name} has no energy counter: its energy is integrated from power, and what it uses \
             while no profiler runs is not counted",
            gpus.join(", ")
        );
        let remedy = "`nvidia-smi -q -d POWER`; NVML has a counter from Volta on, and a new driver may be needed";
        Finding::warning("node", name, text, remedy)
    })
}

/// A predictor that does not work.
#[must_use]
pub fn predictor(name: &PredictorId, status: &PredictorStatus) -> Option<Finding> {
    let what = match status.state {
        PredictorState::Silent => "does not answer",
        PredictorState::Failing => "sends invalid surfaces",
        PredictorState::Champion | PredictorState::Challenger => return None,
    };
    let cause = status.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    let text = format!("predictor {name} {what}{cause}");
    let of = format!("predictor {name}");
    Some(if status.champion {
        let remedy = "start it, or promote another: wattle predictors promote NAME";
        Finding::fault("services", of, text, remedy)
    } else {
        Finding::warning("services", of, text, "start wattle-predictor, if it is needed")
    })
}

/// The measured power exceeds the limit of the budget.
#[must_use]
pub fn over_limit(drawn: Power, limit: Power) -> Option<Finding> {
    (drawn > limit).then(|| {
        let (drawn, limit) = (drawn.as_w(), limit.as_w());
        let text = format!("the power limit is exceeded: {drawn:.0} W of {limit:.0} W");
        let remedy = "`wattle nodes` shows caps that are not confirmed";
        Finding::fault("budget", "power", text, remedy)
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::Timestamp;
    use wattle_common::messages::{GpuCondition, GpuHealth, NodeSleep, SleepState};
    use wattle_testkit as testkit;

    use super::*;

    fn node() -> Node {
        let gpus = [0, 1].map(|gpu| testkit::applied_gpu(gpu, "v100"));
        let report = testkit::power_report("n1", Timestamp::from_s(20), gpus);
        Node { power: Some(report), ..Node::new(testkit::node("n1")) }
    }

    fn texts(node: &Node) -> Vec<String> {
        gpus(node).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn a_gpu_that_does_not_respond_is_named_with_and_without_a_condition() {
        assert_eq!(texts(&node()), [""; 0]);
        let mut lost = node();
        let gpu = &mut lost.power.as_mut().unwrap().gpus[1];
        gpu.healthy = false;
        let expected = "GPU 1 of n1 does not respond, or responds again only since a moment ago";
        assert_eq!(texts(&lost), [expected]);
        let gpu = &mut lost.power.as_mut().unwrap().gpus[1];
        let (condition, since_us) = (GpuConditionKind::Lost, Timestamp::EPOCH);
        let conditions = vec![GpuCondition { condition, since_us, detail: None }];
        gpu.health = Some(GpuHealth { conditions, ..GpuHealth::default() });
        assert_eq!(texts(&lost), [expected], "once");
    }

    #[test]
    fn a_failed_driver_is_one_finding_and_a_sleeping_node_none() {
        let mut failed = node();
        let report = failed.power.as_mut().unwrap();
        report.driver_error = Some("Driver/library version mismatch".to_owned());
        report.gpus.iter_mut().for_each(|gpu| gpu.healthy = false);
        assert_eq!(texts(&failed), ["no GPU of n1 can be read: Driver/library version mismatch"]);
        let (state, since_us) = (SleepState::Asleep, Timestamp::EPOCH);
        failed.sleep = Some(NodeSleep { state, since_us });
        assert_eq!(texts(&failed), [""; 0]);
    }
}
