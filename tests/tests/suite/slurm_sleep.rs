//! Nodes that Slurm's power saving switches off: they stay in the inventory, and a job wakes only the node that
//! it needs.

use wattle_common::NodeId;
use wattle_common::job::JobPhase;
use wattle_common::messages::LaunchReport;
use wattle_common::subject::{Bucket, Reporter};
use wattle_tests::slurm_site::{Setup, SlurmSite};
use wattle_tests::until;

use crate::slurm::{SETUP, site};

/// The test itself switches the nodes off and on.
const POWER_SAVING: &str = "SuspendProgram=/bin/true\n\
    ResumeProgram=/bin/true\n\
    SuspendTime=10\n\
    SuspendTimeout=3\n\
    ResumeTimeout=120\n";

fn state(site: &SlurmSite, node: &str) -> String {
    let shown = site.as_user("root", &["scontrol", "show", "node", node]);
    let state = shown.split_whitespace().find_map(|word| word.strip_prefix("State="));
    state.unwrap_or_default().to_owned()
}

async fn until_state(site: &SlurmSite, node: &str, flag: &str) {
    until(&format!("{node} is {flag}"), async || state(site, node).contains(flag).then_some(()))
        .await;
}

async fn is_asleep(site: &SlurmSite, node: &str) -> Option<bool> {
    let bucket = site.bus.bucket(Bucket::Actual).await.ok()?;
    let key = Reporter::Launcher.key(&NodeId::new(node).ok()?);
    let (report, _) = bucket.get::<LaunchReport>(&key).await.ok()??;
    Some(report.site?.asleep)
}

#[tokio::test]
#[ignore = "minutes: tests/full slurm"]
async fn a_job_wakes_one_of_the_nodes_that_slurm_has_switched_off() {
    let conf = POWER_SAVING;
    let setup = Setup { prefix: "wz", port: 17_800, nodes: 2, gpus: 2, conf, ..SETUP };
    let Some((_turn, mut site)) = site(setup).await else { return };
    let nodes = site.nodes.clone();
    for node in &nodes {
        until_state(&site, node, "POWERED_DOWN").await;
        assert!(site.cluster("kill-node", &[node]).status.success());
        site.kill_9("power-agent", node);
        site.kill_9("profiler", node);
        until("wattle-slurm reports it", async || is_asleep(&site, node).await.filter(|is| *is))
            .await;
    }
    let shown = site.wattle(&["nodes"]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("4 asleep or waking"), "{text}");
    let job = site.sbatch("games", &["--gres=gpu:2"], 12);
    let node = until("Slurm boots a node for it", async || {
        let node = nodes.iter().find(|node| state(&site, node).contains("POWERING_UP"))?;
        Some(node.clone())
    })
    .await;
    site.run("power-agent", &node);
    site.run("profiler", &node);
    assert!(site.cluster("start-node", &[&node]).status.success());
    let end = site.until_job(job, "it has ended", |record| record.phase.is_final()).await;
    assert_eq!(end.phase, JobPhase::Finished, "{end:#?}\n{}", site.logs());
    let placement = end.reasons.iter().find(|reason| reason.decision.starts_with("placed on"));
    assert!(placement.is_some_and(|placement| placement.decision.contains(&node)), "{end:#?}");
    let other = nodes.iter().find(|other| **other != node).expect("two nodes");
    assert!(state(&site, other).contains("POWERED_DOWN"), "one node suffices");
    assert_eq!(is_asleep(&site, &node).await, Some(false));
}
