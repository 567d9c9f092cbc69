//! What each level requires of Slurm.

use std::time::Duration;

use wattle_common::NodeId;
use wattle_site::Level;

use super::{Facts, Findings};
use crate::text::gres::index_of_type;
use crate::text::hostlist;
use crate::text::nodes::ShownNode;

/// Largest difference between the clocks of this machine and slurmctld's.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(5);
/// Age from which a heartbeat is stale, unless the intake's settings have another one.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time that a checkpoint after `SIGTERM` should have, seconds. Slurm's default.
const KILL_WAIT_S: u64 = 30;
/// A number of jobs that a queue may well have.
const JOBS: u64 = 50_000;
/// Requests in a second that a placement round may well need.
const REQUESTS_PER_S: u64 = 100;

/// Adds the findings of all levels.
pub(super) fn all(facts: &Facts, findings: &mut Findings) {
    let mut rules = Rules { facts, findings };
    rules.advise();
    rules.caps();
    rules.start();
    rules.intake();
    rules.speed();
    rules.exact();
    rules.share();
}

struct Rules<'a> {
    facts: &'a Facts,
    findings: &'a mut Findings,
}

impl Rules<'_> {
    fn missing(&mut self, level: Level, finding: impl Into<String>, remedy: impl Into<String>) {
        self.findings.missing(level, finding, remedy);
    }

    fn advice(&mut self, level: Level, finding: impl Into<String>, remedy: impl Into<String>) {
        self.findings.advice(level, finding, remedy);
    }

    fn is_operator(&self) -> bool {
        let slurm_user = self.facts.config.get("SlurmUser");
        let is_slurm_user = slurm_user.split('(').next() == Some(self.facts.user.as_str());
        let level = self.facts.admin_level.as_deref().unwrap_or_default();
        self.facts.user == "root" || is_slurm_user || matches!(level, "Operator" | "Administrator")
    }

    fn advise(&mut self) {
        let facts = self.facts;
        if facts.version() < (22, 5) {
            let found = format!("Slurm {} is older than 22.05", facts.config.get("SLURM_VERSION"));
            self.missing(Level::Advise, found, "upgrade Slurm to 22.05 or later");
        }
        let hidden = facts.config.get("PrivateData");
        let hides_jobs = hidden.split(',').any(|part| part.trim() == "jobs");
        if hides_jobs && !self.is_operator() {
            let found =
                format!("PrivateData={hidden} hides the jobs of others from {}", facts.user);
            self.missing(Level::Advise, found, operator_line(&facts.user));
        }
        if facts.gpu_nodes().is_empty() {
            let partitions = facts.files.settings.as_ref().map(|s| s.get("partitions").to_owned());
            let found = match partitions.filter(|names| !names.is_empty()) {
                Some(names) => {
                    format!("no node of the partitions {names} has the generic resource gpu")
                }
                None => "no node has the generic resource gpu".to_owned(),
            };
            let remedy =
                "wattle slurm gres-conf, on a node: prints its lines of gres.conf and slurm.conf";
            self.missing(Level::Advise, found, remedy);
        }
        let odd = names(facts.gpu_nodes(), |node| NodeId::new(&node.name).is_err());
        if !odd.is_empty() {
            let found =
                format!("the node names {odd} have characters other than letters, digits, - and _");
            self.missing(Level::Advise, found, "give these nodes other NodeName= in slurm.conf");
        }
        if let Some(theirs) = facts.config.at {
            let (from, until) = facts.read_between;
            let difference = from.since(theirs).max(theirs.since(until));
            if difference > CLOCK_DIFFERENCE_MAX {
                let found = format!(
                    "the clocks of this machine and slurmctld differ by {} s",
                    difference.as_secs()
                );
                self.missing(
                    Level::Advise,
                    found,
                    "systemctl enable --now chrony, on both machines",
                );
            }
        }
    }

    fn caps(&mut self) {
        let config = &self.facts.config;
        if config.get("ProctrackType") != "proctrack/cgroup" {
            let found = format!(
                "ProctrackType={}: the processes of a job cannot be recognised",
                config.get("ProctrackType")
            );
            self.missing(Level::Caps, found, "slurm.conf: ProctrackType=proctrack/cgroup");
        }
        let gres_conf = self.facts.files.gres_conf.as_deref().unwrap_or_default();
        if gres_conf.lines().any(is_count_only) {
            let remedy =
                "gres.conf: give each GPU its File=; wattle slurm gres-conf prints the lines";
            self.missing(
                Level::Caps,
                "gres.conf has GPUs without File=: Slurm assigns no indices",
                remedy,
            );
        }
        if !config.is_yes("ConstrainDevices") {
            let found = "ConstrainDevices is off: a job can use GPUs that it does not hold";
            let remedy = "cgroup.conf: ConstrainDevices=yes\nslurm.conf: TaskPlugin=task/cgroup,task/affinity";
            self.advice(Level::Caps, found, remedy);
            self.missing(
                Level::Exact,
                "the GPU indices are not enforced: ConstrainDevices is off",
                remedy,
            );
        }
        if self.facts.version() >= (26, 5) && config.get("CgroupPlugin").ends_with("v2") {
            let found =
                "cgroups of version 2 do not have the job's id in their names from Slurm 26.05 on";
            self.advice(
                Level::Caps,
                found,
                "cgroup.conf: CgroupPlugin=cgroup/v1, where the system has it",
            );
        }
    }

    fn start(&mut self) {
        let facts = self.facts;
        let config = &facts.config;
        if facts.uid.is_none() {
            let found = format!("this machine has no user {}", facts.user);
            self.missing(Level::Start, found, format!("useradd --system {}", facts.user));
        }
        if config.get("AccountingStorageType") != "accounting_storage/slurmdbd" {
            let found = "no slurmdbd: Slurm has no level Operator, and ended jobs are forgotten";
            let remedy =
                "slurm.conf: AccountingStorageType=accounting_storage/slurmdbd, and run slurmdbd";
            self.missing(Level::Start, found, remedy);
        } else if !facts.accounting_error.is_empty() {
            let found = format!("slurmdbd does not answer: {}", facts.accounting_error);
            self.missing(Level::Start, found, "systemctl start slurmdbd, on its machine");
        } else if !self.is_operator() {
            let level = facts.admin_level.as_deref().unwrap_or("no account");
            let found =
                format!("{} has {level} in Slurm, and needs the level Operator", facts.user);
            self.missing(Level::Start, found, operator_line(&facts.user));
        }
        if config.get("SelectType") != "select/cons_tres" {
            let found = format!("SelectType={}: a GPU cannot be chosen", config.get("SelectType"));
            self.missing(Level::Start, found, "slurm.conf: SelectType=select/cons_tres");
        }
    }

    /// The plugin that holds jobs, and its settings.
    fn intake(&mut self) {
        let facts = self.facts;
        let folder = &facts.files.folder;
        if !facts.config.has_item("JobSubmitPlugins", "lua") {
            let found = "the plugin lua is off: no job is held for Wattle";
            self.missing(Level::Start, found, "slurm.conf: JobSubmitPlugins=lua");
        }
        if !facts.files.is_here {
            let found =
                format!("{folder} is not on this machine: the intake's files were not checked");
            self.advice(Level::Start, found, "run wattle slurm check on slurmctld's machine, too");
            return;
        }
        match &facts.files.job_submit {
            None => self.missing(
                Level::Start,
                format!("{folder}/job_submit.lua is not there"),
                format!("cp deploy/slurm/job_submit.lua {folder}/"),
            ),
            Some(text) if !text.contains("wattle") => self.missing(
                Level::Start,
                format!("{folder}/job_submit.lua does not load wattle.lua"),
                "call wattle.submit and wattle.modify as deploy/slurm/job_submit.lua does",
            ),
            Some(_) => {}
        }
        if facts.files.intake.is_none() {
            let found = format!("{folder}/wattle.lua is not there");
            self.missing(Level::Start, found, format!("cp deploy/slurm/wattle.lua {folder}/"));
        }
        let Some(settings) = &facts.files.settings else {
            let found = format!("{folder}/wattle_slurm.conf is not there");
            self.missing(
                Level::Start,
                found,
                format!("cp deploy/slurm/wattle_slurm.conf {folder}/"),
            );
            return;
        };
        let known: Vec<&str> = facts.partitions.iter().map(|p| p.name.as_str()).collect();
        for name in settings.partitions().iter().filter(|name| !known.contains(&name.as_str())) {
            let found =
                format!("wattle_slurm.conf names the partition {name}, which Slurm does not have");
            self.missing(
                Level::Start,
                found,
                format!("wattle_slurm.conf: partitions = {}", known.join(", ")),
            );
        }
        if let Some(uid) = facts.uid.map(|uid| uid.to_string()) {
            let operators = settings.list("operators");
            if !operators.contains(&uid) {
                let found =
                    format!("the intake checks the changes of {} (user id {uid})", facts.user);
                let list = [operators, vec![uid]].concat().join(", ");
                self.missing(Level::Start, found, format!("wattle_slurm.conf: operators = {list}"));
            }
        }
        let most = facts.gpu_nodes().iter().map(|node| node.gres.count("gpu")).max().unwrap_or(0);
        if settings.get("gpus_per_node").parse().ok() != Some(most) && most > 0 {
            let found = format!("a node has {most} GPUs, and the intake's settings another number");
            self.missing(Level::Start, found, format!("wattle_slurm.conf: gpus_per_node = {most}"));
        }
        let patience = settings.get("patience_s").parse().map_or(PATIENCE, Duration::from_secs);
        if facts.heartbeat_age.is_none_or(|age| age > patience) {
            let found = match facts.heartbeat_age {
                Some(age) => {
                    format!("the heartbeat is {} s old: jobs are left to Slurm", age.as_secs())
                }
                None => "there is no heartbeat: jobs are left to Slurm".to_owned(),
            };
            let remedy = "start wattle-slurm with level start, exact or share; the heartbeat's path is in wattle_slurm.conf";
            self.advice(Level::Start, found, remedy);
        }
    }

    /// What makes the level start slow, or costs jobs more than necessary.
    fn speed(&mut self) {
        let facts = self.facts;
        let config = &facts.config;
        let exits = config.get("RequeueExitHold");
        if !exits.split(',').any(|code| code.trim() == "85") {
            let found = "a job that checkpoints by a signal other than TERM completes before it is requeued";
            let list = if exits.is_empty() { "85".to_owned() } else { format!("{exits},85") };
            self.advice(Level::Start, found, format!("slurm.conf: RequeueExitHold={list}"));
        }
        let kill_wait = config.number("KillWait").unwrap_or(KILL_WAIT_S);
        if kill_wait < KILL_WAIT_S {
            let found = format!("a checkpoint after SIGTERM has only {kill_wait} s (KillWait)");
            self.advice(Level::Start, found, format!("slurm.conf: KillWait={KILL_WAIT_S}"));
        }
        if config.item("SchedulerParameters", "batch_sched_delay") != Some("0") {
            let found = "a released job starts up to 3 s later than possible";
            let line = with_item(config.get("SchedulerParameters"), "batch_sched_delay=0");
            self.advice(Level::Start, found, format!("slurm.conf: SchedulerParameters={line}"));
        }
        if config.number("MaxJobCount").is_some_and(|count| count < JOBS) {
            let found = format!(
                "Slurm accepts {} jobs at most, held ones included",
                config.get("MaxJobCount")
            );
            self.advice(Level::Start, found, format!("slurm.conf: MaxJobCount={JOBS}"));
        }
        let rate =
            config.item("SlurmctldParameters", "rl_refill_rate").and_then(|n| n.parse().ok());
        let is_limited = config.has_item("SlurmctldParameters", "rl_enable");
        if is_limited && rate.unwrap_or(2) < REQUESTS_PER_S {
            let found = "the request rate of each user is limited, that of operators included";
            let without: Vec<&str> = config
                .get("SlurmctldParameters")
                .split(',')
                .filter(|item| !item.trim().starts_with("rl_refill_rate="))
                .collect();
            let line = with_item(&without.join(","), &format!("rl_refill_rate={REQUESTS_PER_S}"));
            self.advice(Level::Start, found, format!("slurm.conf: SlurmctldParameters={line}"));
        }
        for partition in facts.managed() {
            let rival = facts.partitions.iter().find(|other| {
                other.name != partition.name
                    && other.priority_tier >= partition.priority_tier
                    && !facts.managed().contains(other)
                    && facts.nodes.iter().any(|node| {
                        node.partitions.contains(&other.name)
                            && node.partitions.contains(&partition.name)
                    })
            });
            if let Some(rival) = rival {
                let found = format!(
                    "pending jobs of the partition {} on the same nodes delay the starts of {}",
                    rival.name, partition.name
                );
                let (name, tier) = (&partition.name, rival.priority_tier.saturating_add(1));
                let remedy = format!("slurm.conf: PartitionName={name} ... PriorityTier={tier}");
                self.advice(Level::Start, found, remedy);
            }
        }
        if config.get("EpilogSlurmctld").is_empty() {
            let found = "the end of a job is noticed at the next reading, not at once";
            let remedy = format!("slurm.conf: EpilogSlurmctld={}/epilog_bell", facts.files.folder);
            self.advice(Level::Start, found, remedy);
        }
        if config.get("TaskProlog").is_empty() {
            let remedy = format!("slurm.conf: TaskProlog={}/task_prolog.sh", facts.files.folder);
            self.advice(Level::Start, "jobs do not get the variables WATTLE_*", remedy.clone());
            self.missing(
                Level::Share,
                "a guest's program does not find its GPUs: no TaskProlog",
                remedy,
            );
        }
    }

    fn exact(&mut self) {
        let nodes = self.facts.gpu_nodes();
        let untyped = names(nodes, |node| !has_index_types(node, "gpu"));
        if !untyped.is_empty() {
            let found = format!("the GPUs of {untyped} have no type for each index (g0, g1, ...)");
            let remedy = "wattle slurm gres-conf, on each of these nodes: prints the lines of gres.conf and slurm.conf";
            self.missing(Level::Exact, found, remedy);
        }
        let gres_conf = self.facts.files.gres_conf.as_deref().unwrap_or_default();
        let detects = |line: &str| {
            let line = line.split('#').next().unwrap_or(line).to_ascii_lowercase();
            line.contains("autodetect=") && !line.contains("autodetect=off")
        };
        if gres_conf.lines().any(detects) {
            let found = "gres.conf detects the GPUs, which refuses types for indices";
            self.missing(
                Level::Exact,
                found,
                "gres.conf: remove AutoDetect=, and write the lines of wattle slurm gres-conf",
            );
        }
    }

    fn share(&mut self) {
        let facts = self.facts;
        if facts.version() < (23, 2) {
            let found =
                "Slurm before 23.02 opens the device files of GPUs only to the resource gpu";
            self.missing(Level::Share, found, "upgrade Slurm to 23.02 or later");
        }
        let types = facts.config.get("GresTypes");
        if !types.split(',').any(|name| name.trim() == "guest") {
            let line = with_item(types, "guest");
            self.missing(
                Level::Share,
                "the generic resource guest is not known",
                format!("slurm.conf: GresTypes={line}"),
            );
        }
        let without = names(facts.gpu_nodes(), |node| !has_guests(node));
        if !without.is_empty() {
            let found = format!("nodes without a guest for each GPU: {without}");
            let remedy = "wattle slurm gres-conf, on each of these nodes: prints the lines of gres.conf and slurm.conf";
            self.missing(Level::Share, found, remedy);
        }
        let counted = facts.config.get("AccountingStorageTRES");
        if !counted.split(',').any(|name| name.trim() == "gres/guest") {
            let found = "the GPU time of guests is not accounted";
            let line = with_item("gres/gpu", "gres/guest");
            self.advice(Level::Share, found, format!("slurm.conf: AccountingStorageTRES={line}"));
        }
    }
}

fn operator_line(user: &str) -> String {
    format!("sacctmgr add user {user} account=root adminlevel=operator")
}

fn with_item(list: &str, item: &str) -> String {
    if list.is_empty() { item.to_owned() } else { format!("{list},{item}") }
}

/// The names of the nodes that fulfil a condition, as a host list.
fn names(nodes: Vec<&ShownNode>, is_chosen: impl Fn(&ShownNode) -> bool) -> String {
    let chosen = nodes.into_iter().filter(|node| is_chosen(node));
    hostlist::compress(chosen.map(|node| node.name.as_str()))
}

/// Whether the types of a resource are `g0`, `g1`, ..., one for each.
fn has_index_types(node: &ShownNode, name: &str) -> bool {
    let mut indices: Vec<Option<u32>> =
        node.gres.types(name).map(|(kind, _)| index_of_type(kind)).collect();
    indices.sort_unstable();
    (0..).map(Some).zip(&indices).all(|(expected, index)| expected == *index)
        && node.gres.types(name).all(|(_, count)| count == 1)
}

/// Whether each GPU has a place for a guest.
fn has_guests(node: &ShownNode) -> bool {
    let of =
        |name: &str| node.gres.types(name).map(|(kind, _)| kind.to_owned()).collect::<Vec<_>>();
    has_index_types(node, "guest") && of("guest") == of("gpu")
}

/// Whether a line of gres.conf has GPUs by their number only.
fn is_count_only(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or(line).to_ascii_lowercase();
    let has_file = line.contains("file=") || line.contains("multiplefiles=");
    line.contains("name=gpu") && !has_file && !line.contains("autodetect=")
}
