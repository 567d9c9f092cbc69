//! Clusters of several GPU types, or of GPUs with different memory.

use crate::support::Site;
use wattle_baselines::policy;
use wattle_common::job::GpuRequest;
use wattle_placer::{JobFacts, JobKey, NodeDecision, NodeFacts, NodeKey, State, Wakefulness};

use crate::policies::helpers::{arrive, cluster, converge, decide, facts, node, surface, wake};

/// Nodes of these GPU types with four GPUs each.
fn of_types(types: &[&str]) -> Site {
    let mut site = cluster(&vec![4; types.len()]);
    for (i, gpu_type) in types.iter().enumerate() {
        site.node_known(NodeFacts { gpu_type: (*gpu_type).to_owned(), ..node(i, 4) });
    }
    site
}

/// Puts these nodes to sleep.
fn asleep(site: &mut Site, nodes: &[usize]) {
    site.limits.nodes_sleep = true;
    for &i in nodes {
        site.wakefulness_changed(NodeKey::at(i), Wakefulness::Asleep);
    }
}

/// A job that requests a GPU type, with a surface for it.
fn named(site: &mut Site, name: &str, gpu_type: &str, gpus: u32) -> JobKey {
    let requested = Some(gpu_type.into());
    let key = arrive(site, JobFacts { gpu_type: requested, ..facts(name, gpus) }, None);
    let mut surface = surface(&name.parse().unwrap(), 0, GpuRequest::exactly(gpus));
    surface.gpu_type = gpu_type.to_owned();
    site.surface_known(key, surface.into());
    key
}

fn woken(site: &mut Site, name: &str) -> Vec<usize> {
    let plan = decide(site, &*policy(name).unwrap());
    plan.nodes.iter().map(|decision| NodeDecision::node(decision).index()).collect()
}

fn runs(site: &Site, key: JobKey) -> bool {
    matches!(site.job(key).unwrap().state, State::Running { .. })
}

#[test]
fn a_job_that_names_a_gpu_type_wakes_nodes_of_that_type() {
    for name in ["fifo", "srtf", "fifo-packed", "powerflow", "afs", "wattle"] {
        let mut site = of_types(&["v100", "kind1", "kind2"]);
        asleep(&mut site, &[1, 2]);
        // The free V100s do not suit the job.
        named(&mut site, "picky", "kind2", 4);
        assert_eq!(woken(&mut site, name), [2], "{name}");
        wake(&mut site);
        assert_eq!(decide(&mut site, &*policy(name).unwrap()).decisions.len(), 1, "{name}");
    }
}

#[test]
fn a_job_that_needs_memory_wakes_nodes_that_have_it() {
    for name in ["fifo", "srtf", "gandiva", "fifo-packed", "powerflow", "afs", "wattle"] {
        let mut site = cluster(&[4, 4, 4]);
        site.node_known(NodeFacts { memory_mib: Some(32_768), ..node(2, 4) });
        asleep(&mut site, &[1, 2]);
        let memory_mib_max = Some(20_000);
        let large = JobFacts { memory_mib_max, ..facts("large", 4) };
        let key = arrive(&mut site, large, Some(0));
        assert_eq!(woken(&mut site, name), [2], "{name}");
        wake(&mut site);
        decide(&mut site, &*policy(name).unwrap());
        assert!(runs(&site, key), "{name}");
    }
}

#[test]
fn a_gpu_of_unknown_memory_is_used_and_not_shared() {
    for name in
        ["fifo", "srtf", "gandiva", "fifo-packed", "eaco", "powerflow", "afs", "tiresias", "wattle"]
    {
        let mut site = cluster(&[1]);
        site.node_known(NodeFacts { memory_mib: None, ..node(0, 1) });
        let memory_mib_max = Some(20_000);
        let first = arrive(&mut site, JobFacts { memory_mib_max, ..facts("first", 1) }, Some(0));
        let second = arrive(&mut site, JobFacts { memory_mib_max, ..facts("second", 1) }, Some(0));
        decide(&mut site, &*policy(name).unwrap());
        let running = [first, second].map(|key| runs(&site, key));
        assert_eq!(running.iter().filter(|runs| **runs).count(), 1, "{name}: {running:?}");
    }
}

#[test]
fn entire_nodes_are_woken_where_enough_are_equal() {
    for name in ["fifo", "srtf", "fifo-packed", "tiresias", "gandiva"] {
        let mut site = of_types(&["p100", "v100", "v100"]);
        asleep(&mut site, &[2]);
        // Eight GPUs are free or asleep, but not of one type.
        let key = arrive(&mut site, facts("wide", 8), None);
        assert_eq!(woken(&mut site, name), [2], "{name}");
        wake(&mut site);
        decide(&mut site, &*policy(name).unwrap());
        assert!(runs(&site, key), "{name}");
    }
}

#[test]
fn one_node_is_not_woken_for_a_job_of_two() {
    for name in ["fifo", "srtf", "tiresias", "gandiva", "fifo-packed"] {
        let mut site = of_types(&["p100", "v100", "v100"]);
        asleep(&mut site, &[1, 2]);
        let there = arrive(&mut site, facts("there", 4), None);
        decide(&mut site, &*policy(name).unwrap());
        assert!(runs(&site, there), "{name}");
        let any = arrive(&mut site, facts("any", 4), None);
        let picky = named(&mut site, "picky", "v100", 4);
        assert_eq!(woken(&mut site, name), [1, 2], "{name}");
        wake(&mut site);
        decide(&mut site, &*policy(name).unwrap());
        assert!(runs(&site, any) && runs(&site, picky), "{name}");
    }
}

#[test]
fn a_job_that_names_a_gpu_type_gets_no_other() {
    for name in ["srtf", "tiresias", "gandiva"] {
        let mut site = of_types(&["v100", "p100"]);
        site.limits.tenants_max = 1;
        // A job without a GPU type gets the type that no queued job names.
        let mut keys: Vec<JobKey> =
            (0..8).map(|i| named(&mut site, &format!("picky{i}"), "p100", 1)).collect();
        let any: Vec<JobKey> =
            (0..4).map(|i| arrive(&mut site, facts(&format!("any{i}"), 1), Some(2))).collect();
        keys.extend(&any);
        converge(&mut site, &*policy(name).unwrap());
        let running = keys.iter().filter(|&&key| runs(&site, key)).count();
        assert_eq!(running, 8, "{name}");
        assert!(any.iter().all(|&key| runs(&site, key)), "{name}");
    }
}
