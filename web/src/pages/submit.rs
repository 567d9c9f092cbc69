//! What the form of a submission offers: GPU types of the nodes, workloads and projects of known jobs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use wattle_common::job::CHECKPOINT_SIGNALS;
use wattle_view::node::Node;

use crate::model::Model;

/// Most workloads and most projects that are offered.
const OFFERED_MAX: usize = 100;

/// The first names in alphabetical order.
fn names<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let names: BTreeSet<&str> = all.collect();
    names.into_iter().take(OFFERED_MAX).collect()
}

/// The content of the page.
pub(super) fn content(model: &Model) -> Value {
    let mut types = BTreeMap::<&str, u32>::new();
    for (gpu, _) in model.nodes.values().flat_map(Node::gpus) {
        *types.entry(&gpu.gpu_type).or_default() += 1;
    }
    let types: Vec<Value> =
        types.iter().map(|(kind, gpus)| json!({ "type": kind, "gpus": gpus })).collect();
    let specs = || model.jobs.listed().map(|record| &record.spec);
    json!({
        "gpu_types": types,
        "workloads": names(specs().filter_map(|spec| Some(spec.workload.as_ref()?.as_str()))),
        "projects": names(specs().filter_map(|spec| Some(spec.project.as_ref()?.as_str()))),
        "signals": CHECKPOINT_SIGNALS,
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::job::JobPhase;
    use wattle_testkit as testkit;

    use super::*;
    use crate::model::tests::example;

    #[test]
    fn known_types_workloads_and_projects_are_offered() {
        let mut model = example();
        for (id, workload) in [("c", "resnet50"), ("d", "bert"), ("e", "resnet50")] {
            let mut spec = testkit::job_spec(id, 1);
            spec.workload = Some(testkit::workload(workload));
            let record = testkit::job_record(spec, JobPhase::Finished);
            model.job(id, Some(&serde_json::to_vec(&record).unwrap()));
        }
        let content = content(&model);
        assert_eq!(content["gpu_types"], json!([{ "type": "v100", "gpus": 4 }]));
        let workloads = content["workloads"].as_array().unwrap();
        let has = |name: &str| workloads.iter().filter(|known| *known == name).count();
        assert_eq!((has("bert"), has("resnet50")), (1, 1), "{workloads:?}");
        assert_eq!(content["signals"][0], "SIGUSR1");
    }
}
