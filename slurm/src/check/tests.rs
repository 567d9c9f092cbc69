//! The check of a site as Slurm 22.05 shows it, and of one that has everything.

use std::time::Duration;

use expect_test::expect;
use wattle_common::Timestamp;
use wattle_site::Level;

use super::*;
use crate::text::nodes;

const CONFIG: &str = include_str!("../../tests/slurm-22.05/show-config.txt");
const NODES: &str = include_str!("../../tests/slurm-22.05/show-node.txt");

fn partitions() -> Vec<Partition> {
    Partition::parse_all(
        "PartitionName=gpu\n   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO\n\nPartitionName=cpu\n",
    )
}

/// As installed: no file of Wattle.
fn plain() -> Facts {
    let config = Settings::parse(CONFIG).unwrap();
    Facts {
        user: "wattle".to_owned(),
        uid: Some(990),
        read_between: (config.at.unwrap(), config.at.unwrap()),
        config,
        partitions: partitions(),
        nodes: nodes::nodes(NODES).unwrap(),
        files: Files { folder: "/etc/slurm".to_owned(), is_here: true, ..Files::default() },
        ..Facts::default()
    }
}

/// Everything that the level share requires.
fn complete() -> Facts {
    let config = CONFIG
        .replace("SLURM_VERSION           = 22.05.8", "SLURM_VERSION           = 24.11.5")
        .replace("GresTypes               = gpu,shard", "GresTypes               = gpu,guest")
        .replace("JobSubmitPlugins        = (null)", "JobSubmitPlugins        = lua")
        .replace(
            "TaskProlog              = (null)",
            "TaskProlog              = /etc/slurm/task_prolog.sh",
        )
        .replace(
            "EpilogSlurmctld         = (null)",
            "EpilogSlurmctld         = /etc/slurm/epilog_bell",
        )
        .replace("gres/shard\n", "gres/guest\n")
        .replace("MaxJobCount             = 10000", "MaxJobCount             = 100000")
        .replace("KillWait                = 20 sec", "KillWait                = 60 sec");
    let nodes = NODES.replace(
        "shard:g0:4,shard:g1:4,shard:g2:4,shard:g3:4\n",
        "guest:g0:1,guest:g1:1,guest:g2:1,guest:g3:1\n",
    );
    let settings = "# comment\npartitions = gpu\noperators = 0, 990 # wattle\ngpus_per_node = 4\npatience_s = 60\n";
    let mut facts = plain();
    facts.config = Settings::parse(&config).unwrap();
    facts.nodes = nodes::nodes(&nodes).unwrap();
    facts.admin_level = Some("Operator".to_owned());
    facts.heartbeat_age = Some(Duration::from_secs(2));
    facts.files.job_submit = Some("local loaded, wattle = pcall(dofile, ...)".to_owned());
    facts.files.intake = Some(String::new());
    facts.files.settings = Some(IntakeSettings::parse(settings));
    facts.files.gres_conf = Some("Name=gpu Type=g0 File=/dev/nvidia0\n".to_owned());
    facts
}

#[test]
fn a_plain_site_is_ready_for_caps() {
    let report = check(&plain());
    assert!(report.is_ready(Level::Caps) && !report.is_ready(Level::Start));
    expect![[r#"
        level advise: ready
        level caps: ready
        level start: missing 5
        level exact: missing 5
        level share: missing 9

        Slurm 22.05.8, cluster test_tx, 3 nodes with 12 GPUs, user wattle

        missing (start): wattle has no account in Slurm, and needs the level Operator
          sacctmgr add user wattle account=root adminlevel=operator

        missing (start): the plugin lua is off: no job is held for Wattle
          slurm.conf: JobSubmitPlugins=lua

        missing (start): /etc/slurm/job_submit.lua is not there
          cp deploy/slurm/job_submit.lua /etc/slurm/

        missing (start): /etc/slurm/wattle.lua is not there
          cp deploy/slurm/wattle.lua /etc/slurm/

        missing (start): /etc/slurm/wattle_slurm.conf is not there
          cp deploy/slurm/wattle_slurm.conf /etc/slurm/

        missing (share): a guest's program does not find its GPUs: no TaskProlog
          slurm.conf: TaskProlog=/etc/slurm/task_prolog.sh

        missing (share): Slurm before 23.02 opens the device files of GPUs only to the resource gpu
          upgrade Slurm to 23.02 or later

        missing (share): the generic resource guest is not known
          slurm.conf: GresTypes=gpu,shard,guest

        missing (share): nodes without a guest for each GPU: tx[1-3]
          wattle slurm gres-conf, on each of these nodes: prints the lines of gres.conf and slurm.conf

        advice (start): a checkpoint after SIGTERM has only 20 s (KillWait)
          slurm.conf: KillWait=30

        advice (start): Slurm accepts 10000 jobs at most, held ones included
          slurm.conf: MaxJobCount=50000

        advice (start): the end of a job is noticed at the next reading, not at once
          slurm.conf: EpilogSlurmctld=/etc/slurm/epilog_bell

        advice (start): jobs do not get the variables WATTLE_*
          slurm.conf: TaskProlog=/etc/slurm/task_prolog.sh

        advice (share): the GPU time of guests is not accounted
          slurm.conf: AccountingStorageTRES=gres/gpu,gres/guest
    "#]].assert_eq(&report.to_string());
}

#[test]
fn a_complete_site_has_no_finding() {
    let report = check(&complete());
    assert_eq!(report.findings, []);
    assert!(Level::ALL.into_iter().all(|level| report.is_ready(level)));
}

/// Each change of the complete site gives one finding for its level.
#[test]
fn each_rule_finds_its_fault() {
    type Fault = (Level, Kind, &'static str, fn(&mut Facts));
    fn set(facts: &mut Facts, from: &str, to: &str) {
        let padded = |text: &str| {
            let (name, value) = text.split_once('=').unwrap();
            format!("{name} = {value}")
        };
        let mut text =
            format!("Configuration data as of {}\n", facts.read_between.0.as_us() / 1_000_000);
        for line in CONFIG.lines().skip(1) {
            let name = line.split('=').next().unwrap().trim();
            text.push_str(&format!("{name} = {}\n", facts.config.get(name)));
        }
        assert!(text.contains(&padded(from)), "{from}");
        facts.config = Settings::parse(&text.replace(&padded(from), &padded(to))).unwrap();
    }
    let (missing, advice) = (Kind::Missing, Kind::Advice);
    let faults: &[Fault] = &[
        (Level::Advise, missing, "older than 22.05", |f| {
            set(f, "SLURM_VERSION=24.11.5", "SLURM_VERSION=20.11.1");
        }),
        (Level::Advise, missing, "clocks", |f| {
            let (from, until) = f.read_between;
            // slurmctld answers late: only what exceeds that time is a difference.
            f.read_between = (from + Duration::from_secs(9), until + Duration::from_secs(60));
        }),
        (Level::Advise, missing, "a.1", |f| f.nodes[0].name = "a.1".to_owned()),
        (Level::Caps, missing, "ProctrackType", |f| {
            set(f, "ProctrackType=proctrack/cgroup", "ProctrackType=proctrack/linuxproc");
        }),
        (Level::Caps, missing, "without File=", |f| {
            f.files.gres_conf = Some("Name=gpu Count=4".to_owned());
        }),
        (Level::Caps, advice, "ConstrainDevices is off: a job", |f| {
            set(f, "ConstrainDevices=yes", "ConstrainDevices=no");
        }),
        (Level::Start, missing, "no user wattle", |f| f.uid = None),
        (Level::Start, missing, "has None in Slurm", |f| f.admin_level = Some("None".to_owned())),
        (Level::Start, missing, "no account", |f| f.admin_level = None),
        (Level::Start, missing, "does not answer: refused", |f| {
            f.accounting_error = "refused".to_owned();
        }),
        (Level::Start, missing, "no slurmdbd", |f| {
            set(
                f,
                "AccountingStorageType=accounting_storage/slurmdbd",
                "AccountingStorageType=accounting_storage/none",
            );
        }),
        (Level::Start, missing, "SelectType", |f| {
            set(f, "SelectType=select/cons_tres", "SelectType=select/linear");
        }),
        (Level::Start, missing, "plugin lua is off", |f| {
            set(f, "JobSubmitPlugins=lua", "JobSubmitPlugins=all_partitions");
        }),
        (Level::Start, missing, "job_submit.lua is not there", |f| f.files.job_submit = None),
        (Level::Start, missing, "does not load", |f| {
            f.files.job_submit = Some("return 0".to_owned());
        }),
        (Level::Start, missing, "wattle.lua is not there", |f| f.files.intake = None),
        (Level::Start, missing, "wattle_slurm.conf is not there", |f| f.files.settings = None),
        (Level::Start, missing, "user id 7", |f| f.uid = Some(7)),
        (Level::Start, advice, "not on this machine", |f| f.files.is_here = false),
        (Level::Start, advice, "61 s old", |f| f.heartbeat_age = Some(Duration::from_secs(61))),
        (Level::Start, advice, "no heartbeat", |f| f.heartbeat_age = None),
        (Level::Start, advice, "other than TERM", |f| {
            set(f, "RequeueExitHold=85", "RequeueExitHold=86");
        }),
        (Level::Start, advice, "only 9 s", |f| set(f, "KillWait=60 sec", "KillWait=9 sec")),
        (Level::Start, advice, "3 s later", |f| {
            set(f, "SchedulerParameters=batch_sched_delay=0", "SchedulerParameters=");
        }),
        (Level::Start, advice, "9000 jobs", |f| set(f, "MaxJobCount=100000", "MaxJobCount=9000")),
        (Level::Start, advice, "request rate", |f| {
            set(f, "SlurmctldParameters=", "SlurmctldParameters=rl_enable,rl_refill_rate=5,x=");
        }),
        (Level::Start, advice, "partition cpu", |f| f.nodes[0].partitions.push("cpu".to_owned())),
        (Level::Exact, missing, "tx2", |f| {
            f.nodes[1].gres = crate::text::gres::GresList::parse("gpu:v100:4,guest:g0:1").unwrap();
        }),
        (Level::Exact, missing, "detects", |f| {
            f.files.gres_conf = Some("AutoDetect=nvml".to_owned());
        }),
        (Level::Share, missing, "guest is not known", |f| {
            set(f, "GresTypes=gpu,guest", "GresTypes=gpu");
        }),
        (Level::Share, missing, "no TaskProlog", |f| {
            set(f, "TaskProlog=/etc/slurm/task_prolog.sh", "TaskProlog=");
        }),
        (Level::Share, missing, "before 23.02", |f| {
            set(f, "SLURM_VERSION=24.11.5", "SLURM_VERSION=22.05.8");
        }),
    ];
    for (level, kind, text, break_it) in faults {
        let mut facts = complete();
        break_it(&mut facts);
        let report = check(&facts);
        let found = report.findings.iter().find(|finding| finding.finding.contains(text));
        let found = found.unwrap_or_else(|| panic!("{text}: {report}"));
        assert_eq!((found.level, found.kind), (*level, *kind), "{text}");
        assert!(!found.remedy.is_empty());
        assert_eq!(report.is_ready(*level), *kind == Kind::Advice, "{text}: {report}");
    }
}

#[test]
fn hidden_jobs_need_an_operator() {
    let mut facts = plain();
    let hidden =
        CONFIG.replace("PrivateData             = none", "PrivateData             = jobs,usage");
    facts.config = Settings::parse(&hidden).unwrap();
    assert!(!check(&facts).is_ready(Level::Advise));
    facts.admin_level = Some("Operator".to_owned());
    assert!(check(&facts).is_ready(Level::Advise));
}

#[test]
fn the_settings_of_slurm_have_items() {
    let settings = Settings::parse(CONFIG).unwrap();
    assert_eq!(settings.item("SchedulerParameters", "batch_sched_delay"), Some("0"));
    assert!(!settings.has_item("SchedulerParameters", "batch"));
    assert_eq!(settings.number("KillWait"), Some(20));
    assert_eq!(settings.get("TaskProlog"), "");
    assert_eq!(settings.at, Some(Timestamp::from_s(1_795_581_497)));
    assert!(Settings::parse("slurmctld is away").is_err());
}
