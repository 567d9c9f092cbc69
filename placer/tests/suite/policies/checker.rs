//! The plan checker on invalid plans.

use crate::support::Site;
use wattle_common::NodeId;
use wattle_common::job::GpuSetting;
use wattle_placer::plan::violation_text::sentences;
use wattle_placer::{Decision, JobFacts, NodeFacts, Plan, Reason, check};

use crate::policies::helpers::{arrive, cluster, facts, node};

#[test]
fn the_checker_reports_every_violation() {
    use wattle_placer::{GpuSet, Violation};
    let mut site = cluster(&[2, 2]);
    let n0 = site.node_key(&NodeId::new("n0").unwrap()).unwrap();
    site.node_known(NodeFacts { healthy: 0b01, ..node(1, 2) });
    let n1 = site.node_key(&NodeId::new("n1").unwrap()).unwrap();
    let job = |site: &mut Site, name: &str, gpus, class| arrive(site, facts(name, gpus), class);
    let heavy = job(&mut site, "heavy", 1, Some(2));
    let other = job(&mut site, "other", 1, Some(2));
    let third = job(&mut site, "third", 1, None);
    let two = job(&mut site, "two", 2, Some(0));
    let mine = arrive(&mut site, JobFacts { exclusive: true, ..facts("mine", 1) }, Some(0));
    let start = |job, on: &GpuSet| Decision::Start {
        setting: GpuSetting::DEFAULT,
        job,
        on: on.clone(),
        observe: false,
        reason: Reason::FirstFit,
    };
    let reason = Reason::FirstFit;
    let first = GpuSet::on(n0, 0b01);
    let cases = [
        (vec![start(heavy, &first), start(heavy, &first)], "Twice"),
        (vec![start(heavy, &first), start(other, &first)], "MemoryExceeded"),
        (vec![start(heavy, &first), start(third, &first)], "MemoryExceeded"),
        (vec![start(two, &first)], "WrongCount"),
        (vec![start(two, &GpuSet::on(n1, 0b11))], "Unhealthy"),
        (vec![start(two, &GpuSet::on(n0, 0b101))], "NoSuchPlace"),
        (vec![start(heavy, &GpuSet::default())], "NoSuchPlace"),
        (vec![start(heavy, &first), start(mine, &first)], "Exclusive"),
        (
            vec![Decision::Start {
                setting: GpuSetting::DEFAULT,
                job: heavy,
                on: first.clone(),
                observe: true,
                reason: reason.clone(),
            }],
            "NothingToObserve",
        ),
        (vec![Decision::Undo { job: heavy, reason: reason.clone() }], "NotObserved"),
        (vec![Decision::Confirm { job: heavy, reason: reason.clone() }], "NotObserved"),
        (vec![Decision::Reject { job: heavy, reason }], "WronglyRejected"),
    ];
    for (decisions, expected) in cases {
        let found: Vec<Violation> = check(site.input(), &Plan { decisions, ..Plan::default() });
        assert!(
            found.iter().any(|v| format!("{v:?}").starts_with(expected)),
            "{expected}: {found:?}"
        );
        let text = sentences(site.input().state, &found);
        let names = ["heavy", "other", "third", "two", "mine"].map(|name| format!("job {name} "));
        assert!(names.iter().any(|name| text.contains(name)), "{text}");
        assert!(!text.contains("Key"), "{text}");
    }
    site.limits.tenants_max = 1;
    let light = job(&mut site, "light", 1, Some(0));
    let both = vec![start(light, &first), start(heavy, &first)];
    let found = check(site.input(), &Plan { decisions: both, ..Plan::default() });
    assert!(matches!(found[..], [Violation::TooManyTenants { tenants: 2, .. }]), "{found:?}");
    let text = sentences(site.input().state, &found);
    assert_eq!(text, "job heavy is placed on a GPU that would have 2 jobs");
    let unhealthy = vec![start(two, &GpuSet::on(n1, 0b11))];
    let found = check(site.input(), &Plan { decisions: unhealthy, ..Plan::default() });
    let text = sentences(site.input().state, &found);
    assert_eq!(text, "job two is placed on GPU 1 of node n1, which is unhealthy");
}
