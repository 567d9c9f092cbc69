//! The conditions of GPUs in words: one state for the table, and a line with the remedy.

use std::collections::BTreeMap;

use wattle_common::Timestamp;
use wattle_common::duration::span;
use wattle_common::messages::{GpuCondition, GpuConditionKind};

use wattle_view::node::Node;

/// One line for each condition of a node, with its GPUs, the first detail, its age and the remedy.
pub(super) fn faults(node: &Node, now: Timestamp) -> Vec<String> {
    let Some(report) = &node.power else { return Vec::new() };
    let mut by_kind: BTreeMap<GpuConditionKind, (Vec<u32>, &GpuCondition)> = BTreeMap::new();
    for gpu in &report.gpus {
        for condition in gpu.health.iter().flat_map(|health| &health.conditions) {
            let (gpus, first) =
                by_kind.entry(condition.condition).or_insert_with(|| (Vec::new(), condition));
            gpus.push(gpu.gpu);
            if condition.since_us < first.since_us {
                *first = condition;
            }
        }
    }
    let line = |(kind, (gpus, first)): (GpuConditionKind, (Vec<u32>, &GpuCondition))| {
        let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        let detail = first.detail.as_ref().map(|text| format!(" ({text})")).unwrap_or_default();
        let age = span(now.since(first.since_us).as_secs_f64());
        let (what, remedy) = (kind.description(), kind.remedy());
        format!("{} GPU {}: {what}{detail}, for {age}: {remedy}", node.node, gpus.join(", "))
    };
    let mut lines: Vec<String> = by_kind.into_iter().map(line).collect();
    // Before the first reading no GPU is known.
    if let Some(error) = report.driver_error.as_ref().filter(|_| report.gpus.is_empty()) {
        let remedy = GpuConditionKind::DriverFailed.remedy();
        lines.push(format!("{}: no GPU can be read ({error}): {remedy}", node.node));
    }
    lines
}

#[cfg(test)]
mod tests {
    use wattle_common::messages::{AppliedGpu, GpuHealth, PowerReport};
    use wattle_testkit as testkit;
    use wattle_view::node::condition;

    use super::super::tests::two_nodes;
    use super::super::{table, verdict};
    use super::*;

    fn health(conditions: &[GpuConditionKind], detail: Option<&str>) -> Option<GpuHealth> {
        let condition = |condition: &GpuConditionKind| GpuCondition {
            condition: *condition,
            since_us: Timestamp::from_s(40),
            detail: detail.map(str::to_owned),
        };
        Some(GpuHealth {
            no_new_jobs: conditions.iter().any(|kind| kind.keeps_jobs_away()),
            conditions: conditions.iter().map(condition).collect(),
            ..GpuHealth::default()
        })
    }

    #[test]
    fn conditions_are_states_with_remedies() {
        let mut nodes = two_nodes();
        let now = Timestamp::from_s(100);
        let gpus = &mut nodes[0].power.as_mut().unwrap().gpus;
        let off = GpuConditionKind::PersistenceOff;
        gpus[0].health = health(&[GpuConditionKind::EccErrors, off], Some("9"));
        gpus[1].health = health(&[GpuConditionKind::MigEnabled], None);
        gpus[2].health = health(&[GpuConditionKind::Lost], Some("it is lost"));
        let text = format!("{}\n{}", verdict(&nodes), table(&nodes, now, false, 80).render(false));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(
            text.contains("1 with jobs, 0 idle, 1 asleep or waking, 1 without new jobs, 1 lost"),
            "{text}"
        );
        for (gpu, state) in [(0, "ECC"), (1, "MIG"), (2, "lost")] {
            let row = text.lines().find(|line| line.starts_with(&format!("n0      {gpu}")));
            assert!(row.unwrap().contains(state), "{text}");
        }
        let lines = faults(&nodes[0], now);
        assert_eq!(lines.len(), 4, "{lines:#?}");
        assert!(lines[0].starts_with("n0 GPU 2: does not respond"), "{lines:#?}");
        assert!(lines[1].contains("n0 GPU 0: has uncorrected memory errors: no new jobs (9), for"));
        assert!(
            lines[3].contains("run nvidia-persistenced"),
            "a warning has its remedy: {lines:#?}"
        );
        // A GPU that has responded again for a short time.
        let returned =
            AppliedGpu { healthy: true, ..nodes[0].power.as_ref().unwrap().gpus[2].clone() };
        assert_eq!(condition(&returned), "returns");
        let words = GpuConditionKind::ALL.map(|kind| {
            condition(&AppliedGpu {
                healthy: false,
                health: health(&[kind], None),
                ..testkit::applied_gpu(0, "v100")
            })
        });
        assert!(words.into_iter().all(|word| word.len() <= 8));
    }

    #[test]
    fn one_line_names_all_gpus_of_a_condition() {
        let off = |gpu| AppliedGpu {
            health: health(&[GpuConditionKind::PersistenceOff], None),
            ..testkit::applied_gpu(gpu, "v100")
        };
        let now = Timestamp::from_s(100);
        let report = testkit::power_report("n0", now, [off(0), off(1), off(2)]);
        let node = Node { power: Some(report), ..Node::new(testkit::node("n0")) };
        assert_eq!(condition(&off(0)), "ok");
        let lines = faults(&node, now);
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].starts_with("n0 GPU 0, 1, 2: has persistence mode off"), "{lines:#?}");

        let report = testkit::power_report("n0", now, []);
        let report = PowerReport { driver_error: Some("no NVIDIA driver".to_owned()), ..report };
        let node = Node { power: Some(report), ..Node::new(testkit::node("n0")) };
        assert!(
            faults(&node, now)[0].starts_with("n0: no GPU can be read (no NVIDIA driver): run")
        );
    }
}
