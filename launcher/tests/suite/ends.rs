//! The ends of jobs without cgroups: no process of a job is left, whatever it has started.

use std::fs;

use wattle_launcher::config::JobLimits;
use wattle_launcher::engine::Engine as _;
use wattle_launcher::engine::local::process;
use wattle_launcher::engine::local::run_folder::{RunFolder, StopRecord};
use wattle_launcher::{Outcome, StopStage};
use wattle_runtime::testing::{HANG, until};

use crate::limits::Node;

/// Starts 30 chains of processes, of which each starts the next one and exits, 10 of them in new sessions,
/// and 5 processes that have left their session and ignore signals. `beats` grows while a chain lives.
const LEAVES: &str = r#"
cat > link.sh <<'END'
echo x >> beats
case $1 in
    2?) setsid sh "$PWD/link.sh" "$1" & ;;
    *) sh "$PWD/link.sh" "$1" & ;;
esac
END
for chain in $(seq 0 29); do sh "$PWD/link.sh" $chain & done
for daemon in $(seq 5); do
    (setsid sh -c "trap '' TERM HUP INT USR1; while true; do sleep 0.2; done" "$PWD/daemon" &) &
done
trap 'exit 0' USR1
echo $$ > pid
while [ ! -e go ]; do sleep 0.02; done
exit 4
"#;

/// Starts 5 processes that leave their session.
const DAEMONS: &str = r#"
for daemon in $(seq 5); do
    (setsid sh -c "trap '' TERM HUP; while true; do sleep 0.2; done" "$PWD/daemon" &) &
done
echo $$ > pid
while true; do sleep 0.05; done
"#;

/// One test at a time: several of them together may use up the machine's process numbers.
static STORM: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The command lines of processes that were started in `folder`.
fn left(folder: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(folder)).collect()
}

async fn leaves_none(stop: &[StopStage], restarts: bool, expected: Outcome) {
    let _alone = STORM.lock().await;
    let mut node = Node::new(JobLimits::default());
    let run = node.start("leaves", 1, LEAVES).run();
    node.pid("leaves", "pid").await;
    let folder = node.config.checkpoint_dir.join("leaves");
    let beats = || fs::metadata(folder.join("beats")).map_or(0, |beats| beats.len());
    until(HANG, async || (beats() > 120).then_some(())).await.expect("the chains run");
    if restarts {
        node = node.restart().await;
    }
    for stage in stop {
        node.engine.stop(&run, *stage);
    }
    if stop.is_empty() {
        fs::write(folder.join("go"), "").unwrap();
    }
    assert_eq!(node.end(&run).await, expected);
    let (name, last) = (folder.display().to_string(), beats());
    // A list may miss a process of a chain, which lives for a millisecond.
    for _ in 0..20 {
        let left = left(&name);
        assert!(left.is_empty(), "{} left: {left:?}", left.len());
    }
    assert_eq!(beats(), last, "a chain lives on");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_survives_the_end_of_its_job() {
    leaves_none(&[], false, Outcome::Code(4)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_survives_a_preemption_after_a_restart_of_the_launcher() {
    leaves_none(&[StopStage::Checkpoint], true, Outcome::Code(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_survives_a_cancellation() {
    leaves_none(&[StopStage::Kill], false, Outcome::Killed(9)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_survives_the_kill_of_its_supervisor() {
    let mut node = Node::new(JobLimits::default());
    let run = node.start("daemons", 1, DAEMONS).run();
    node.pid("daemons", "pid").await;
    let folder = node.config.checkpoint_dir.join("daemons").display().to_string();
    until(HANG, async || (left(&folder).len() >= 5).then_some(())).await.expect("they run");
    let claim = RunFolder::of(&node.config.state_dir, &run).claimed().unwrap().unwrap();
    process::signal(&claim.supervisor, process::Signal::KILL);
    assert!(matches!(node.end(&run).await, Outcome::Lost(_)));
    until(HANG, async || left(&folder).is_empty().then_some(())).await.expect("none is left");
}

/// The launcher was killed after it stored the stop and before it sent the signal.
#[tokio::test]
async fn a_restart_sends_the_signal_of_a_stop_once() {
    let mut node = Node::new(JobLimits::default());
    let script = "trap 'echo x >> signals' USR1; trap 'exit 5' TERM; echo $$ > pid; \
                  while true; do sleep 0.02; done";
    let run = node.start("stops", 1, script).run();
    node.running(&run).await;
    node.pid("stops", "pid").await;
    let folder = RunFolder::of(&node.config.state_dir, &run);
    let at_us = wattle_runtime::clock::now();
    let stop = StopRecord { stage: StopStage::Checkpoint, at_us, is_signalled: false };
    folder.write_stop(&stop).unwrap();
    let node = node.restart().await;
    let signals = node.config.checkpoint_dir.join("stops/signals");
    // The shell creates the file before it writes a line, and the launcher stores the record after the signal.
    let written = async || fs::read_to_string(&signals).ok().filter(|text| text.ends_with('\n'));
    assert_eq!(until(HANG, written).await.as_deref(), Some("x\n"));
    let is_stored = || folder.stop().unwrap() == Some(StopRecord { is_signalled: true, ..stop });
    until(HANG, async || is_stored().then_some(())).await.expect("the record states the signal");
    let mut node = node.restart().await;
    node.engine.stop(&run, StopStage::Terminate);
    assert_eq!(node.end(&run).await, Outcome::Code(5));
    assert_eq!(fs::read_to_string(&signals).unwrap(), "x\n", "sent once");
}
