//! Programs that stand for Slurm's.

use wattle_runtime::testing::write_script;

use super::*;

fn programs(text: &str) -> (tempfile::TempDir, Programs) {
    let folder = tempfile::tempdir().unwrap();
    write_script(&folder.path().join("squeue"), text);
    let programs = Programs { folder: Some(folder.path().to_owned()), ..Programs::default() };
    (folder, programs)
}

#[tokio::test]
async fn arguments_reach_the_program_unchanged() {
    let (_folder, programs) = programs("printf '%s|' \"$@\" \"$A\" \"$SLURM_TIME_FORMAT\"");
    let printed = programs.run("squeue", &["a b", "$(id);\n", ""], &[("A", "`x`")]).await.unwrap();
    assert_eq!(printed.output, "a b|$(id);\n||`x`|%s|");
}

#[tokio::test]
async fn failures_have_their_cause() {
    let (_folder, away) = programs("echo 'Unable to contact slurm controller' >&2; exit 1");
    let error = away.run("squeue", &["-h"], &[]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Slurm does not answer `squeue -h`: Unable to contact slurm controller"
    );
    let error = away.run("sacct", &[], &[]).await.unwrap_err();
    assert!(matches!(error, SlurmError::Program { .. }), "{error}");
}

#[tokio::test]
async fn a_program_that_does_not_end_is_killed() {
    let (_folder, mut slow) = programs("exec sleep 1000");
    slow.time_limit = Duration::from_millis(50);
    let error = slow.run("squeue", &[], &[]).await.unwrap_err();
    assert!(matches!(error, SlurmError::Away { .. }), "{error}");
}

#[tokio::test]
async fn the_output_that_is_read_is_bounded() {
    let (_folder, mut endless) = programs("exec yes 0123456789");
    endless.output_max = 1 << 20;
    let error = endless.run("squeue", &["-h"], &[]).await.unwrap_err();
    assert!(matches!(&error, SlurmError::Output { .. }), "{error}");
    assert!(error.to_string().contains("longer than 1 MiB"), "{error}");
    let (_folder, mut short) = programs("printf 1234");
    short.output_max = 4;
    assert_eq!(short.run("squeue", &[], &[]).await.unwrap().output, "1234", "exactly the limit");
}
