//! The cluster inferred from a trace: nodes, GPUs per node, GPU types, and the stated assumptions.

use std::path::PathBuf;

use wattle_simulator::trace::{self, InferError, Trace};
use wattle_world::World;

const HEADER: &str = "JobID|Partition|Submit|Start|End|Elapsed|AllocTRES|NNodes|NodeList\n";

fn parse(rows: &str) -> Trace {
    trace::parse("s.txt", format!("{HEADER}{rows}").as_bytes()).unwrap()
}

/// Start of the traces, s: Slurm prints 0 for an instant that is not set.
const BEGIN: u32 = 1_000_000;

/// A job of 1,000 s that starts `start` seconds after the begin.
fn row(id: u32, start: u32, tres: &str, nodes: u32, list: &str) -> String {
    let (start, clock) = (BEGIN + start, "00:16:40");
    format!("{id}|gpu|{start}|{start}|{}|{clock}|{tres}|{nodes}|{list}\n", start + 1_000)
}

fn shape(rows: &str) -> Result<String, InferError> {
    trace::infer(&World::builtin(), &parse(rows)).map(|inferred| inferred.shape.to_string())
}

#[test]
fn the_odd_export_gives_its_cluster_with_every_assumption() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/traces/sacct-odd.txt");
    let mut trace = trace::read(&file).unwrap();
    let inferred = trace::infer(&World::builtin(), &trace).unwrap();
    assert_eq!(inferred.shape.to_string(), "6x8:a100,2x4:v100");
    expect_test::expect![[r#"
        8 nodes with a GPU job; nodes without one in the trace are not counted
        6 nodes of a100 named `gpu...`: 8 GPUs each inferred, the most in use on one of them; 1 node never had as many in use, so that 5x8:a100,1x5:a100 fits as well: give unequal sizes in --cluster
        2 nodes of v100 named `node...`: 4 GPUs each inferred, the most in use on one of them; 1 node never had as many in use, so that 1x4:v100,1x2:v100 fits as well: give unequal sizes in --cluster
    "#]]
    .assert_eq(&(inferred.assumptions.join("\n") + "\n"));
    assert_eq!(inferred.gpu_types["node11"], "v100");
    // Jobs without a type keep that of their nodes, since the cluster has two types.
    assert_eq!(inferred.assign_types(&mut trace), 2);
    let speech = trace.jobs.iter().find(|job| job.id.as_str() == "521").unwrap();
    assert_eq!(speech.gpu_type.as_deref(), Some("v100"));
}

#[test]
fn gpus_per_node_are_the_most_in_use_at_once() {
    let one = "gres/gpu:a100=1";
    // Three jobs of one GPU overlap; the fourth starts in the second in which the first ends.
    let rows = [row(1, 0, one, 1, "n1"), row(2, 10, one, 1, "n1"), row(3, 20, one, 1, "n1")];
    assert_eq!(shape(&rows.concat()).unwrap(), "1x3:a100");
    let rows = [row(1, 0, one, 1, "n1"), row(2, 1_000, one, 1, "n1")];
    assert_eq!(shape(&rows.concat()).unwrap(), "1x1:a100");
    // Seven GPUs on two nodes: at least four on one of them.
    assert_eq!(shape(&row(1, 0, "gres/gpu:a100=7", 2, "n[1-2]")).unwrap(), "2x4:a100");
    // A suspended job (Elapsed below End - Start) does not count at the same time as another.
    let end = BEGIN + 2_000;
    let suspended = format!("1|gpu|{BEGIN}|{BEGIN}|{end}|00:01:00|gres/gpu:a100=4|1|n1\n");
    let rows = suspended + &row(2, 500, "gres/gpu:a100=4", 1, "n1");
    assert_eq!(shape(&rows).unwrap(), "1x4:a100");
}

#[test]
fn nodes_are_grouped_by_name_and_type() {
    let rows = [
        row(1, 0, "gres/gpu:v100=4", 1, "old1"),
        row(2, 0, "gres/gpu:v100=2", 1, "old2"),
        row(3, 0, "gres/gpu:v100=8", 1, "dgx1"),
        row(4, 0, "gres/gpu:tesla_p100-pcie-16gb=4", 1, "p1"),
        row(5, 5_000, "gres/gpu=4", 1, "p2"),
    ];
    assert_eq!(shape(&rows.concat()).unwrap(), "2x4:p100,2x4:v100,1x8:v100");
}

#[test]
fn without_node_lists_the_gpus_in_use_give_the_nodes() {
    let header = "JobID|Submit|Start|End|Elapsed|AllocTRES|NNodes\n";
    let job = |id: u32, start: u32, gpus: u32, nodes: u32| {
        let (start, end) = (BEGIN + start, BEGIN + start + 1_000);
        format!("{id}|{start}|{start}|{end}|00:16:40|gres/gpu:v100={gpus}|{nodes}\n")
    };
    let text = format!("{header}{}{}{}", job(1, 0, 8, 2), job(2, 5, 2, 1), job(3, 9, 4, 1));
    let trace = trace::parse("s.txt", text.as_bytes()).unwrap();
    let inferred = trace::infer(&World::builtin(), &trace).unwrap();
    assert_eq!(inferred.shape.to_string(), "4x4:v100");
    assert!(inferred.assumptions[0].contains("14 GPUs in use at once"), "{inferred:?}");
}

#[test]
fn a_cluster_that_cannot_be_inferred_is_an_error_with_the_remedy() {
    let untyped = shape(&row(1, 0, "gres/gpu=4", 2, "n[1-2]")).unwrap_err();
    let text = untyped.to_string();
    assert!(text.contains("--cluster 2x2:TYPE") && text.contains("a100"), "{text}");
    let unknown = shape(&row(1, 0, "gres/gpu:gaudi2=4", 1, "n1")).unwrap_err();
    let text = unknown.to_string();
    assert!(text.contains("`gaudi2`") && text.contains("--cluster 1x4:TYPE"), "{text}");
    let philly = "job_id,submit_s,duration_s,num_gpus\na,0,60,1\n";
    let philly = trace::parse("p.csv", philly.as_bytes()).unwrap();
    let error = trace::infer(&World::builtin(), &philly).unwrap_err();
    assert!(error.to_string().contains("does not name its nodes"), "{error}");
    let huge = shape(&row(1, 0, "gres/gpu:a100=400", 1, "n1")).unwrap_err();
    assert!(matches!(huge, InferError::Shape(_)), "{huge}");
}
