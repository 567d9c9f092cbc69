//! The site's rule on sharing GPUs, under every policy.

use proptest::prelude::*;
use wattle_baselines::{NAMES, policy};
use wattle_common::job::Sharing;
use wattle_placer::JobFacts;

use crate::policies::helpers::{arrive, cluster, decide, decide_until_empty, facts};
use crate::policies::plans::{happen, spelling, step};
use crate::support::Site;

/// A site with this rule.
fn site(sizes: &[u32], share: Sharing) -> Site {
    let mut site = cluster(sizes);
    site.limits.share = share;
    site.sharing_known(share);
    site
}

/// The jobs on each GPU with several jobs.
fn shared(site: &Site) -> Vec<Vec<&JobFacts>> {
    let gpus =
        site.nodes().iter().flat_map(|node| (0..node.facts.gpus).map(move |gpu| node.tenants(gpu)));
    let shared = gpus.filter(|tenants| tenants.len() > 1);
    let jobs = |tenants: &[_]| tenants.iter().map(|&key| &site.job(key).unwrap().facts).collect();
    shared.map(jobs).collect()
}

proptest! {
    /// A shared GPU has only jobs which the rule permits to share.
    #[test]
    fn no_job_shares_a_gpu_against_the_rule(
        sizes in prop::collection::vec(prop_oneof![Just(2u32), Just(4), Just(8)], 1..4),
        share in prop::sample::select(Sharing::ALL.to_vec()),
        steps in prop::collection::vec(step(), 1..40),
        name in spelling(),
    ) {
        let policy = policy(&name).unwrap();
        let mut site = site(&sizes, share);
        for (i, step) in steps.into_iter().enumerate() {
            happen(&mut site, &sizes, format!("j{i}"), step);
            decide_until_empty(&mut site, &*policy);
            for key in site.stopping() {
                site.job_stopped(key);
            }
            decide_until_empty(&mut site, &*policy);
            for job in shared(&site).into_iter().flatten() {
                prop_assert!(share.permits(job.consents_to_sharing), "{name}, {share}: {job:?}");
            }
        }
    }
}

/// Two light jobs on one GPU: the policies that share GPUs share it exactly where the rule permits.
#[test]
fn jobs_share_a_gpu_where_the_rule_permits() {
    let mut sharing = 0;
    for name in NAMES {
        let policy = policy(name).unwrap();
        for share in Sharing::ALL {
            for consents in [false, true] {
                let mut site = site(&[1], share);
                for job in ["a", "b"] {
                    let facts = JobFacts { consents_to_sharing: consents, ..facts(job, 1) };
                    arrive(&mut site, facts, Some(0));
                }
                decide(&mut site, &*policy);
                let shares = !shared(&site).is_empty();
                assert!(!shares || share.permits(consents), "{name}, {share}, {consents}");
                sharing += usize::from(shares);
            }
        }
    }
    // Of the six cases of a policy three permit it, and at least two policies share here.
    assert!(sharing >= 6 && sharing % 3 == 0, "{sharing}");
}
