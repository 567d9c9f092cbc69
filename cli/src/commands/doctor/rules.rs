//! What the facts mean: a pure function from facts to a report.

use std::collections::BTreeSet;

use wattle_common::messages::JobCounts;
use wattle_view::job;
use wattle_view::verdict::{self, Level};

use super::facts::{Facts, NodeFacts, Server, slurm_level};
use super::grid;
use super::report::{Finding, Kind, Report};

/// Largest difference of two clocks, seconds: as in the placer's alarm, with room for a late report.
const AHEAD_MAX_S: f64 = 5.0;
/// Shares of free disk below which there is advice, and a problem.
const FREE_ADVICE: f64 = 0.2;
const FREE_MIN: f64 = 0.05;
/// Shares of a bucket in use above which there is advice, and a problem: the placer refuses submissions at 0.9.
const FILL_ADVICE: f64 = 0.7;
const FILL_MAX: f64 = 0.9;
/// Services without which no job is placed.
const REQUIRED: [&str; 2] = ["placer", "registry"];
/// Services of a node that read its GPUs.
const OF_GPUS: [&str; 2] = ["profiler", "power-agent"];
const GIB: f64 = 1_073_741_824.0;

/// Checks the facts.
pub(crate) fn check(facts: &Facts) -> Report {
    let mut rules = Rules { facts, findings: Vec::new(), checked: Vec::new() };
    rules.server();
    rules.services();
    rules.stored();
    rules.nodes();
    if let Some((status, now)) = &facts.grid {
        let (findings, checked) = grid::check(status, *now);
        rules.findings.extend(findings);
        rules.checked.extend(checked);
    }
    rules.configuration();
    rules.driver();
    rules.disks();
    rules.slurm();
    Report::new(rules.findings, rules.checked)
}

struct Rules<'a> {
    facts: &'a Facts,
    findings: Vec<Finding>,
    checked: Vec<String>,
}

fn count(number: usize, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

impl Rules<'_> {
    fn add(&mut self, kind: Kind, about: &'static str, finding: String, remedy: impl Into<String>) {
        self.findings.push(Finding { kind, about, finding, remedy: remedy.into() });
    }

    fn problem(&mut self, about: &'static str, finding: String, remedy: impl Into<String>) {
        self.add(Kind::Problem, about, finding, remedy);
    }

    fn advice(&mut self, about: &'static str, finding: String, remedy: impl Into<String>) {
        self.add(Kind::Advice, about, finding, remedy);
    }

    /// Adds a finding of the verdict that all views share.
    fn found(&mut self, finding: verdict::Finding) {
        let verdict::Finding { level, about, text, remedy, .. } = finding;
        let kind = match level {
            Level::Fault => Kind::Problem,
            Level::Warning => Kind::Advice,
        };
        self.add(kind, about, text, remedy);
    }

    fn clock(&mut self, whose: &str, ahead_s: f64) {
        if ahead_s.abs() <= AHEAD_MAX_S {
            return;
        }
        let side = if ahead_s < 0.0 { "behind" } else { "ahead of" };
        let finding =
            format!("the clock of {whose} is {:.1} s {side} the NATS server's", ahead_s.abs());
        self.problem(
            "clock",
            finding,
            "synchronise the clocks of both hosts: timedatectl set-ntp true, or chronyc makestep",
        );
    }

    fn server(&mut self) {
        let facts = self.facts;
        let Some(server) = &facts.server else { return };
        let server = match server {
            Ok(server) => server,
            Err(error) => {
                // An error of the key names its own remedy.
                let remedy = if error.contains("refuses the connection") {
                    "the server runs and requires a key that it knows (`wattle keys`, docs/security.md)"
                } else {
                    "check that nats-server runs and that no firewall is between; \
                     name the address with --nats or WATTLE_NATS_URL"
                };
                self.problem("server", error.clone(), remedy);
                self.checked.push("NATS server: cannot be used".to_owned());
                return;
            }
        };
        let Server { url, limits, ahead_s, .. } = server;
        let clock = ahead_s
            .map_or("clock not compared: no report within 6 s".to_owned(), |ahead| {
                format!("clock of this host {ahead:+.1} s")
            });
        let version = &limits.version;
        self.checked.push(format!("NATS server {version} at {url}; {clock}"));
        for limit in limits.too_low() {
            self.problem("server", format!("the NATS server is limited: {limit}"), limit.remedy());
        }
        if let Some((error, remedy)) = &server.storage_error {
            let finding = format!("the cluster's storage cannot be read: {error}");
            let otherwise = "start the placer once, which creates it; check the cluster's name \
                             (--cluster), and that your key is an operator's or a monitor's";
            self.problem("server", finding, remedy.as_deref().unwrap_or(otherwise));
        }
        for stream in &server.missing {
            let remedy = "restart the placer, which creates it; if its log names a limit of the NATS \
                          server, change the line that it names";
            self.problem("server", format!("stream {stream} is missing"), remedy);
        }
        for (bucket, share) in server.fill.iter().filter(|(_, share)| *share > FILL_ADVICE) {
            let finding = format!("bucket {bucket} is {:.0} % full", share * 100.0);
            let remedy = "enlarge it with `nats stream edit`, or lower `ended_kept` of the placer";
            let kind = if *share > FILL_MAX { Kind::Problem } else { Kind::Advice };
            self.add(kind, "server", finding, remedy);
        }
        if let Some(ahead_s) = ahead_s {
            self.clock("this host", *ahead_s);
        }
    }

    fn services(&mut self) {
        let facts = self.facts;
        if !matches!(facts.server, Some(Ok(_))) {
            return;
        }
        let own: BTreeSet<&str> = facts
            .processes
            .iter()
            // Other predictors may come from elsewhere.
            .filter(|process| process.service != "predictor")
            .map(|process| process.version.as_str())
            .collect();
        let versions: Vec<&str> = own.iter().copied().collect();
        let processes = count(facts.processes.len(), "process").replace("processs", "processes");
        let shown = if versions.is_empty() { "none".to_owned() } else { versions.join(", ") };
        self.checked.push(format!("services: {processes}, version {shown}"));
        for service in REQUIRED {
            let is_active =
                facts.processes.iter().any(|p| p.service == service && p.state == "active");
            if !is_active {
                verdict::service_away(service).into_iter().for_each(|found| self.found(found));
            }
        }
        if !facts.processes.iter().any(|process| process.service == "predictor") {
            verdict::service_away("predictor").into_iter().for_each(|found| self.found(found));
        }
        let mut all = own;
        all.insert(&facts.version);
        if all.len() > 1 {
            let finding = format!(
                "the versions differ: {} of services, {} of this program",
                versions.join(", "),
                facts.version
            );
            let remedy = "wattle services lists them; finish the upgrade (docs/operations.md)";
            self.problem("services", finding, remedy);
        }
    }

    /// The jobs, the budget and the aim.
    fn stored(&mut self) {
        let facts = self.facts;
        if !matches!(facts.server, Some(Ok(_))) {
            return;
        }
        let mut counts = JobCounts::new();
        for record in &facts.jobs {
            *counts.entry(record.phase).or_default() += 1;
        }
        self.checked.push(format!("jobs: {}", job::counts(&counts)));
        let stored = facts.budget.stored(facts.jobs.iter(), facts.now);
        stored.findings().into_iter().for_each(|found| self.found(found));
    }

    fn nodes(&mut self) {
        let facts = self.facts;
        if !matches!(facts.server, Some(Ok(_))) {
            return;
        }
        let gpus: usize =
            facts.nodes.iter().filter_map(|n| Some(n.node.power.as_ref()?.gpus.len())).sum();
        self.checked.push(format!("nodes: {} with {}", facts.nodes.len(), count(gpus, "GPU")));
        for node in &facts.nodes {
            self.node(node);
        }
    }

    fn node(&mut self, node: &NodeFacts) {
        let NodeFacts { node, ahead_s } = node;
        if node.sleep.is_some() {
            return;
        }
        let name = &node.node;
        for service in verdict::OF_NODE {
            let is_of_site = service == "launcher" && node.launcher.is_some();
            let answers = self.facts.processes.iter().any(|process| {
                process.service == service
                    && process.of == name.as_str()
                    && process.state == "active"
            });
            // Slurm's jobs have no launcher; the report is that of wattle-slurm.
            let has_slurm = self.facts.processes.iter().any(|process| process.service == "slurm");
            if !(answers || is_of_site && has_slurm) {
                self.found(verdict::node_silent(name, service));
            }
        }
        if let Some(ahead_s) = ahead_s {
            self.clock(name.as_str(), *ahead_s);
        }
        verdict::fault(node).into_iter().for_each(|found| self.found(found));
        verdict::gpus(node).into_iter().for_each(|found| self.found(found));
        verdict::without_counter(node).into_iter().for_each(|found| self.found(found));
    }

    fn configuration(&mut self) {
        let facts = self.facts;
        let names: Vec<&str> =
            facts.configured.iter().map(|service| service.name.as_str()).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        self.checked.push(format!("configuration on this host: {names}"));
        for (file, error) in &facts.unreadable {
            let finding = format!("{} cannot be read: {}", file.display(), error.trim_end());
            let remedy = "correct the line, or run the command as the user of the services";
            self.problem("configuration", finding, remedy);
        }
    }

    fn driver(&mut self) {
        let facts = self.facts;
        let of_gpus = |name: &str| OF_GPUS.iter().any(|service| name.starts_with(service));
        let services = || facts.configured.iter().filter(|service| of_gpus(&service.name));
        let is_node = services().any(|service| service.is_set_up);
        match &facts.gpus {
            Some(Ok(gpus)) if *gpus > 0 => {
                self.checked.push(format!("driver on this host: {}", count(*gpus as usize, "GPU")));
                let control = facts.configured.iter().find(|s| s.name.starts_with("power-agent"));
                let control = control.map(|service| service.text("control").unwrap_or("nvml"));
                if control.is_none() && !facts.is_root {
                    self.advice(
                        "driver",
                        "only root can set caps and clocks, and this user is not root".to_owned(),
                        "run `wattle up` as root, or the services by the units in deploy/systemd; \
                         control = \"zeusd\" or \"advise\" in power-agent.toml needs no rights",
                    );
                }
            }
            Some(Ok(_)) if is_node => {
                let remedy = "nvidia-smi -L; look for Xid messages in the kernel log";
                self.problem("driver", "the driver lists no GPU".to_owned(), remedy);
            }
            Some(Err(error)) if is_node => {
                let finding = format!("the GPUs of this host cannot be read: {error}");
                let remedy =
                    "nvidia-smi; load the driver, or reboot; nvml_library names another library";
                self.problem("driver", finding, remedy);
            }
            Some(Ok(_) | Err(_)) | None => {
                let names: Vec<&str> = services().map(|service| service.name.as_str()).collect();
                let services = match names[..] {
                    [] => "no service of a node".to_owned(),
                    _ => format!("installed but not set up: {}", names.join(", ")),
                };
                self.checked.push(format!("driver on this host: no GPU; {services}"));
            }
        }
    }

    fn disks(&mut self) {
        let facts = self.facts;
        for disk in &facts.disks {
            let share = if disk.size == 0 { 1.0 } else { disk.free as f64 / disk.size as f64 };
            let (folder, free) = (disk.folder.display(), disk.free as f64 / GIB);
            let state = format!("{folder}: {free:.1} GiB free, {:.0} %", share * 100.0);
            if share < FREE_ADVICE {
                let kind = if share < FREE_MIN { Kind::Problem } else { Kind::Advice };
                let remedy =
                    "free the disk, or move the folder (state_dir, log_dir, checkpoint_dir)";
                self.add(kind, "disk", format!("little free disk: {state}"), remedy);
            }
            self.checked.push(format!("disk of {state}"));
        }
    }

    fn slurm(&mut self) {
        let facts = self.facts;
        let configured = slurm_level(&facts.configured);
        let service = facts.configured.iter().find(|service| service.name == "slurm");
        let is_set_up = service.is_some_and(|service| service.is_set_up);
        let installed = if service.is_some() && !is_set_up {
            "; installed but not set up: wattle-slurm"
        } else {
            ""
        };
        match &facts.slurm {
            None => self.checked.push(format!("Slurm on this host: none{installed}")),
            Some(Err(error)) if is_set_up => {
                self.checked.push("Slurm on this host: does not answer".to_owned());
                let finding = format!("Slurm does not answer: {error}");
                let remedy = "scontrol ping; start slurmctld, or correct `commands` in slurm.toml";
                self.problem("slurm", finding, remedy);
            }
            Some(Err(error)) => {
                let line = format!("Slurm on this host: does not answer ({error}){installed}");
                self.checked.push(line);
            }
            Some(Ok(report)) => {
                let ready = report.levels.iter().filter(|verdict| verdict.is_ready);
                let ready = ready.map(|verdict| verdict.level.to_string()).collect::<Vec<_>>();
                let ready = if ready.is_empty() { "none".to_owned() } else { ready.join(", ") };
                let version = &report.version;
                self.checked
                    .push(format!("Slurm {version} on this host: ready for {ready}{installed}"));
                if let Some(level) = configured.filter(|level| !report.is_ready(*level)) {
                    let finding = format!("Slurm is not ready for the configured level {level}");
                    self.problem("slurm", finding, format!("wattle slurm check --level {level}"));
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use wattle_common::Timestamp;
    use wattle_common::messages::{NodeFault, NodeFaultKind};
    use wattle_runtime::bus::ServerLimits;
    use wattle_testkit as testkit;
    use wattle_view::node::Node;

    use super::super::facts::{Configured, Disk};
    use super::*;
    use crate::commands::services::Process;

    fn process(service: &str, of: &str, version: &str) -> Process {
        let text = |text: &str| text.to_owned();
        Process {
            service: text(service),
            of: text(of),
            state: text("active"),
            host: String::new(),
            pid: String::new(),
            version: text(version),
            requests: 0,
            errors: 0,
        }
    }

    /// A cluster of one node without a problem.
    pub(in crate::commands::doctor) fn fine() -> Facts {
        let server = Server {
            url: "nats://127.0.0.1:4222".to_owned(),
            limits: ServerLimits {
                version: "2.9.10".to_owned(),
                is_clustered: false,
                max_payload: 1 << 20,
            },
            ahead_s: Some(0.01),
            ..Server::default()
        };
        let mut processes =
            ["placer", "registry", "predictor"].map(|s| process(s, "", "0.1.0")).to_vec();
        processes.extend(verdict::OF_NODE.map(|service| process(service, "n0", "0.1.0")));
        Facts {
            version: "0.1.0".to_owned(),
            server: Some(Ok(server)),
            processes,
            nodes: vec![NodeFacts {
                node: Node {
                    launcher: Some(testkit::launch_report("n0", Timestamp::EPOCH, 1, [])),
                    ..Node::new(testkit::node("n0"))
                },
                ahead_s: Some(-0.2),
            }],
            disks: vec![Disk { folder: PathBuf::from("/"), free: 50, size: 100 }],
            gpus: Some(Err("no driver".to_owned())),
            ..Facts::default()
        }
    }

    #[test]
    fn what_a_gpu_does_not_support_is_stated() {
        let gpu = wattle_common::messages::AppliedGpu {
            no_meter: true,
            cap_unsupported: true,
            memory_mib: None,
            ..wattle_testkit::applied_gpu(0, "gb10")
        };
        let at = wattle_common::Timestamp::from_s(1);
        let report = wattle_testkit::power_report("n0", at, [gpu]);
        let found = findings(|facts| facts.nodes[0].node.power = Some(report));
        let energy = "the energy of GPU 0 of n0 is not known: power and energy are not supported";
        assert!(found.iter().any(|line| line.contains(energy)), "{found:?}");
        let cap = "GPU 0 of n0 supports no power cap: it is advised only";
        assert!(found.iter().any(|line| line.contains(cap)), "{found:?}");
        assert!(!found.iter().any(|line| line.contains("does not respond")), "{found:?}");
    }

    fn findings(change: impl FnOnce(&mut Facts)) -> Vec<String> {
        let mut facts = fine();
        change(&mut facts);
        let report = check(&facts);
        assert!(report.findings.iter().all(|finding| !finding.remedy.is_empty()));
        report
            .findings
            .into_iter()
            .map(|f| format!("{:?} {}: {}", f.kind, f.about, f.finding))
            .collect()
    }

    pub(in crate::commands::doctor) fn server(facts: &mut Facts) -> &mut Server {
        facts.server.as_mut().unwrap().as_mut().unwrap()
    }

    #[test]
    fn nothing_is_found_where_nothing_is_wrong() {
        assert!(findings(|_| {}).is_empty());
        let text = check(&fine()).to_string();
        assert!(
            text.starts_with("no problem found\n\nchecked:\n  NATS server 2.9.10 at"),
            "{text}"
        );
    }

    #[test]
    fn the_first_line_names_the_cause() {
        let mut facts = fine();
        facts.processes[0].state = "standby".to_owned();
        let text = check(&facts).to_string();
        let first = text.lines().next().unwrap_or_default();
        assert_eq!(first, "1 problem: no placer is active: no job starts");
    }

    #[test]
    fn each_fault_is_one_finding() {
        type Change = fn(&mut Facts);
        let cases: [(Change, &str); 16] = [
            (|f| f.server = Some(Err("no server".to_owned())), "Problem server: no server"),
            (
                |f| server(f).limits.version = "2.8.4".to_owned(),
                "Problem server: the NATS server is limited: it is version 2.8.4, and 2.9 or later",
            ),
            (
                |f| server(f).limits.is_clustered = true,
                "Problem server: the NATS server is limited: it is version 2.9.10 and belongs to a",
            ),
            (
                |f| server(f).limits.max_payload = 8_192,
                "Problem server: the NATS server is limited: it accepts messages of at most 8192",
            ),
            (
                |f| server(f).storage_error = Some(("no room".to_owned(), None)),
                "Problem server: the cluster's storage cannot be read: no room",
            ),
            (
                |f| server(f).missing = vec!["ledger".to_owned()],
                "Problem server: stream ledger is missing",
            ),
            (
                |f| server(f).ahead_s = Some(-7.0),
                "Problem clock: the clock of this host is 7.0 s behind",
            ),
            (|f| server(f).fill = vec![("jobs", 0.95)], "Problem server: bucket jobs is 95 %"),
            (|f| server(f).fill = vec![("jobs", 0.75)], "Advice server: bucket jobs is 75 %"),
            (|f| f.processes[0].state = "standby".to_owned(), "Problem services: no placer"),
            (
                |f| f.processes[4].version = "0.0.9".to_owned(),
                "Problem services: the versions differ",
            ),
            (|f| drop(f.processes.pop()), "Problem node: the launcher of n0"),
            (|f| f.nodes[0].ahead_s = Some(60.0), "Problem clock: the clock of n0 is 60.0 s ahead"),
            (
                |f| {
                    let (kind, error) = (NodeFaultKind::Disk, "cannot write to /s".to_owned());
                    let since_us = wattle_common::Timestamp::from_s(1);
                    let launcher = f.nodes[0].node.launcher.as_mut().unwrap();
                    launcher.fault = Some(NodeFault { kind, error, since_us });
                },
                "Problem node: n0 cannot start jobs: cannot write to /s",
            ),
            (|f| f.disks[0].free = 1, "Problem disk: little free disk: /"),
            (|f| f.disks[0].free = 15, "Advice disk: little free disk: /"),
        ];
        for (change, expected) in cases {
            let found = findings(change);
            assert_eq!(found.len(), 1, "{expected}: {found:?}");
            assert!(found[0].starts_with(expected), "{found:?}");
        }
    }

    fn configured(name: &str, is_set_up: bool) -> Configured {
        let table = "level = \"start\"".parse().unwrap();
        Configured { name: name.to_owned(), table, is_set_up }
    }

    #[test]
    fn slurm_is_a_problem_only_where_its_service_is_set_up() {
        let silent = |service: Option<Configured>| Facts {
            slurm: Some(Err("no slurmctld".to_owned())),
            configured: service.into_iter().collect(),
            ..fine()
        };
        let report = check(&silent(Some(configured("slurm", true))));
        assert_eq!(report.findings.len(), 1);
        assert_eq!(report.findings[0].finding, "Slurm does not answer: no slurmctld");
        for (service, line) in [
            (None, "Slurm on this host: does not answer (no slurmctld)\n"),
            (
                Some(configured("slurm", false)),
                "does not answer (no slurmctld); installed but not set up: wattle-slurm\n",
            ),
        ] {
            let report = check(&silent(service));
            let text = report.to_string();
            assert!(report.findings.is_empty() && text.contains(line), "{text}");
        }
        let report = check(&Facts { configured: vec![configured("slurm", false)], ..fine() });
        let line = "Slurm on this host: none; installed but not set up: wattle-slurm\n";
        assert!(report.to_string().contains(line), "{report}");
    }

    #[test]
    fn a_missing_driver_is_a_problem_only_on_a_node() {
        let found = findings(|facts| facts.configured.push(configured("profiler", true)));
        assert_eq!(found, ["Problem driver: the GPUs of this host cannot be read: no driver"]);
        let installed = ["launcher", "power-agent", "profiler"].map(|name| configured(name, false));
        let report = check(&Facts { configured: installed.to_vec(), ..fine() });
        let line = "driver on this host: no GPU; installed but not set up: power-agent, profiler";
        assert!(report.findings.is_empty() && report.to_string().contains(line), "{report}");
        let found = findings(|facts| facts.gpus = Some(Ok(2)));
        assert!(found[0].starts_with("Advice driver: only root"), "{found:?}");
    }
}
