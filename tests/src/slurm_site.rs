//! A site with a real Slurm: slurmctld, slurmdbd and virtual nodes by `tests/slurm/cluster`, and all services of
//! Wattle with simulated GPUs beside it.
//!
//! It needs root and the distribution's Slurm packages. Each node of Slurm has a simulated node of the same
//! name. The jobs are real batch jobs of two users; they train on the simulated GPUs that Slurm gives them.

use std::fs::OpenOptions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use wattle_common::messages::{JobRecord, LaunchReport, LedgerEntry, PowerReport};
use wattle_common::subject::{Bucket, Reporter, StreamName};
use wattle_common::{ClusterId, JobId, NodeId, codec};
use wattle_runtime::bus::{Bus, BusConfig};
use wattle_runtime::clock;
use wattle_runtime::testing::{NatsServer, Turn, Weight, copy_program, turn, write_script};

use crate::examples::{example, simulate_gpus};
use crate::{answered, program, records, repository, until};

/// The Slurm operator of the test cluster, by name and ids: Debian's user `daemon`.
const OPERATOR: (u32, u32) = (1, 1);
/// Exit code of the cluster script where Slurm cannot be had.
const ABSENT: i32 = 3;
/// The first release that gives the device files of a GRES with another name than `gpu` to a job.
const SHARES: (u32, u32) = (23, 2);
/// Deadline of a condition. Slurm notices a lost end of a job when its node registers again, after about 200 s.
const PATIENCE: Duration = wattle_runtime::testing::HANG;

/// How a site is set up.
pub struct Setup {
    /// Names of nodes begin with it; sites that run at once need different ones.
    pub prefix: &'static str,
    /// First of 100 ports.
    pub port: u16,
    /// Number of nodes.
    pub nodes: usize,
    /// GPUs of each node.
    pub gpus: u32,
    /// The level of `wattle-slurm`.
    pub level: &'static str,
    /// The policy of the placer.
    pub policy: &'static str,
    /// Lines added to slurm.conf.
    pub conf: &'static str,
}

/// A running site.
pub struct SlurmSite {
    /// The bus, as any client sees it.
    pub bus: Bus,
    /// The names of the nodes.
    pub nodes: Vec<String>,
    setup: Setup,
    server: NatsServer,
    folder: TempDir,
    children: Vec<(String, Child)>,
    _turn: Turn,
}

/// Steps of a job that runs until the test ends it.
pub const ENDLESS: u32 = 100_000_000;

/// Year and month of the release of Slurm.
fn release() -> (u32, u32) {
    let printed = Command::new("slurmctld").arg("-V").output().expect("slurmctld is installed");
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let numbers = printed.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let numbers: Vec<u32> = numbers.collect();
    (numbers[0], numbers[1])
}

fn script() -> PathBuf {
    repository("tests/slurm/cluster")
}

fn succeeded(output: &Output) -> Result<(), String> {
    if output.status.success() {
        return Ok(());
    }
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    Err(format!("{}: {}", output.status, String::from_utf8_lossy(&text)))
}

impl SlurmSite {
    /// Starts everything; `Err` with the reason where Slurm cannot run here.
    ///
    /// # Panics
    /// If a service does not start although Slurm can run here.
    pub async fn start(setup: Setup) -> Result<Self, String> {
        let installed = Command::new(script()).arg("install-packages").output();
        let installed = installed.map_err(|error| error.to_string())?;
        if installed.status.code() == Some(ABSENT) {
            return Err(String::from_utf8_lossy(&installed.stderr).trim().to_owned());
        }
        succeeded(&installed).expect("the packages are installed");
        let release = release();
        if setup.level == "share" && release < SHARES {
            return Err(format!("level share needs Slurm 23.02, this is {release:?}"));
        }
        let folder = tempfile::Builder::new().prefix("ws").tempdir().expect("a temporary folder");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).expect("our folder");
        let turn = turn(Weight::Heavy);
        let server = NatsServer::start().await;
        let cluster = ClusterId::new("main").expect("the cluster of the examples in deploy");
        let bus = Bus::connect(&BusConfig::at(&server.url()), cluster, "test").await;
        let nodes = (1..=setup.nodes).map(|number| format!("{}{number}", setup.prefix)).collect();
        let bus = bus.expect("the server runs");
        let children = Vec::new();
        let mut site = Self { bus, nodes, setup, server, folder, children, _turn: turn };
        site.start_hardware();
        let (nodes, gpus) = (site.setup.nodes.to_string(), site.setup.gpus.to_string());
        let port = site.setup.port.to_string();
        let options = ["--nodes", &nodes, "--gpus", &gpus, "--prefix", site.setup.prefix];
        let more = ["--port", &port, "--max-jobs", "20000", "--kill-wait", "10"];
        // Below the level `start` nothing changes in Slurm.
        let places = !matches!(site.setup.level, "advise" | "caps");
        let intake: &[&str] = if places { &["--intake"] } else { &[] };
        // Below the level `exact` a site keeps the types of its cards.
        let names_gpus = matches!(site.setup.level, "exact" | "share");
        let types = ["--types", if names_gpus { "index" } else { "v100" }];
        let conf = site.folder.path().join("site.conf");
        std::fs::write(&conf, site.setup.conf).expect("our folder");
        let conf = conf.display().to_string();
        let conf = ["--conf", conf.as_str()];
        let options = [&options[..], &more[..], intake, &types[..], &conf[..]].concat();
        let started = site.cluster("start", &options);
        if started.status.code() == Some(ABSENT) {
            return Err(String::from_utf8_lossy(&started.stderr).trim().to_owned());
        }
        succeeded(&started).expect("Slurm starts");
        for service in ["placer", "registry", "predictor"] {
            site.run(service, "control");
        }
        for node in site.nodes.clone() {
            for service in ["profiler", "power-agent"] {
                site.run(service, &node);
            }
        }
        site.run("slurm", "control");
        until("wattle-slurm reports every node", async || {
            let actual = site.bus.bucket(Bucket::Actual).await.ok()?;
            for node in &site.nodes {
                let key = Reporter::Launcher.key(&NodeId::new(node).ok()?);
                actual.get::<LaunchReport>(&key).await.ok()??;
            }
            Some(())
        })
        .await;
        // Without it the intake leaves jobs to Slurm.
        let heartbeat = site.slurm_folder().join("run/heartbeat");
        until("the heartbeat is there", async || (!places || heartbeat.exists()).then_some(()))
            .await;
        Ok(site)
    }

    fn start_hardware(&self) {
        let epoch = clock::wall_now().as_us().to_string();
        for node in &self.nodes {
            let made = Command::new(program("wattle-simnode"))
                .args(["create", "--node", node, "--gpus", &self.setup.gpus.to_string()])
                .args(["--gpu-type", "v100", "--rate", "1", "--epoch-us", &epoch, "--state"])
                .arg(self.state_of(node))
                .status();
            assert!(made.expect("wattle-simnode runs").success());
            // The jobs of all users train on it.
            let open = std::fs::Permissions::from_mode(0o666);
            std::fs::set_permissions(self.state_of(node), open).expect("our file");
        }
        // Where every user can run it.
        copy_program(&program("wattle-simjob"), &self.folder.path().join("simjob"));
        write_script(&self.folder.path().join("train"), &self.training());
    }

    /// A batch script: trains `$1` steps of a workload on the GPUs that Slurm gives it, about three steps per
    /// second on one GPU. It writes a checkpoint on SIGTERM and SIGUSR1.
    fn training(&self) -> String {
        let folder = self.folder.path().display();
        format!(
            "#SBATCH --open-mode=append --output=%x-%j.out\n\
             export WATTLE_SIM_NODE={folder}/$SLURMD_NODENAME.state\n\
             export CUDA_VISIBLE_DEVICES=$SLURM_JOB_GPUS\n\
             export WATTLE_CHECKPOINT_DIR=$PWD/checkpoint-$SLURM_JOB_ID\n\
             export WATTLE_PROGRESS={folder}/$SLURMD_NODENAME/run/progress.sock\n\
             mkdir -p \"$WATTLE_CHECKPOINT_DIR\"\n\
             echo \"$SLURM_JOB_NAME attempt $((${{SLURM_RESTART_COUNT:-0}} + 1)) on $SLURM_JOB_NODELIST GPUs $SLURM_JOB_GPUS\"\n\
             exec {folder}/simjob --workload eaco-alexnet --steps \"$1\" --steps-per-epoch 10"
        )
    }

    fn state_of(&self, node: &str) -> PathBuf {
        self.folder.path().join(format!("{node}.state"))
    }

    fn slurm_folder(&self) -> PathBuf {
        self.folder.path().join("slurm")
    }

    /// Runs a command of the cluster script.
    ///
    /// # Panics
    /// If it cannot be run.
    pub fn cluster(&self, command: &str, args: &[&str]) -> Output {
        let mut script = Command::new(script());
        script.arg(command).arg(self.slurm_folder()).args(args);
        script.output().expect("the script runs")
    }

    /// Runs one of Slurm's programs as a user, and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn as_user(&self, user: &str, command: &[&str]) -> String {
        let output = self.cluster("as", &[&[user], command].concat());
        if let Err(error) = succeeded(&output) {
            panic!("{command:?}: {error}");
        }
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Submits the training script with `sbatch`; returns Slurm's job id.
    ///
    /// # Panics
    /// If it is refused.
    pub fn sbatch(&self, user: &str, options: &[&str], steps: u32) -> u32 {
        let submitted = self.try_sbatch(user, options, steps);
        submitted.unwrap_or_else(|| panic!("sbatch {options:?} failed"))
    }

    /// The same; `None` if it is refused, or if slurmctld does not answer.
    #[must_use]
    pub fn try_sbatch(&self, user: &str, options: &[&str], steps: u32) -> Option<u32> {
        let train = self.folder.path().join("train").display().to_string();
        let steps = steps.to_string();
        let command = [&[user, "sbatch", "--parsable"], options, &[&train, &steps]].concat();
        let output = self.cluster("as", &command);
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    }

    /// Completes a running job of [`ENDLESS`] steps: it writes a checkpoint and exits with code 0. It has begun to train
    /// before: the signal would end the shell that starts it.
    ///
    /// # Panics
    /// If it does not begin, or Slurm refuses the signal.
    pub async fn complete(&self, slurm_id: u32) {
        let trains = |record: &JobRecord| {
            let output = self.output_of(record);
            output.rsplit(" attempt ").next().is_some_and(|last| last.contains(", step "))
        };
        self.until_job(slurm_id, "it trains", trains).await;
        self.as_user("root", &["scancel", "--batch", "--signal=USR1", &slurm_id.to_string()]);
    }

    /// What a job has printed in all its attempts.
    #[must_use]
    pub fn output_of(&self, record: &JobRecord) -> String {
        let path = record.log_paths.first().map(PathBuf::from);
        path.map(|path| std::fs::read_to_string(path).unwrap_or_default()).unwrap_or_default()
    }

    fn configuration(&self, service: &str, host: &str) -> anyhow::Result<String> {
        let folder = self.folder.path().join(host);
        let mut table = example(service, &self.server.url(), &folder)?;
        if host != "control" {
            simulate_gpus(&mut table, service, host, &self.state_of(host))?;
        }
        let slurm = self.slurm_folder();
        let path = |name: &str| toml::Value::from(slurm.join(name).display().to_string());
        let settings = match service {
            "placer" => vec![
                ("nodes_expected", (self.nodes.len() as i64).into()),
                ("share", "consented".into()),
                ("policy", self.setup.policy.into()),
            ],
            "slurm" => vec![
                ("level", self.setup.level.into()),
                ("heartbeat_file", path("run/heartbeat")),
                ("bell", path("run/bell")),
            ],
            // The tests wait for the energy of jobs.
            "profiler" => vec![("ledger_ms", 10_000.into())],
            "power-agent" => {
                // Advice needs no rights on a node.
                let control = if self.setup.level == "advise" { "advise" } else { "nvml" };
                vec![("heartbeat_ms", 1_000.into()), ("control", control.into())]
            }
            _ => Vec::new(),
        };
        for (name, value) in settings {
            table.insert(name.to_owned(), value);
        }
        Ok(table.to_string())
    }

    /// Starts a service on a host; `slurm` as Slurm's operator.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run(&mut self, service: &str, host: &str) {
        let folder = self.folder.path().join(host);
        std::fs::create_dir_all(&folder).expect("the folder takes a folder");
        let config = folder.join(format!("{service}.toml"));
        let text = self.configuration(service, host).expect("the example is valid");
        std::fs::write(&config, text).expect("the folder takes a file");
        let log = OpenOptions::new().create(true).append(true).open(self.log_of(service, host));
        let log = log.expect("the folder takes a file");
        let mut command = Command::new(program(&format!("wattle-{service}")));
        command.arg("--config").arg(&config);
        if host != "control" {
            command.env("WATTLE_SIM_NODE", self.state_of(host));
            command.env("WATTLE_CLOCK", self.state_of(host));
        }
        if service == "slurm" {
            give_to(&folder, OPERATOR).expect("our folder");
            let copy = self.folder.path().join("wattle-slurm");
            copy_program(&program("wattle-slurm"), &copy);
            command = Command::new(copy);
            command.arg("--config").arg(&config);
            command.env("SLURM_CONF", self.slurm_folder().join("etc/slurm.conf"));
            command.uid(OPERATOR.0).gid(OPERATOR.1);
        }
        command.stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a file")).stderr(log);
        let child = command.spawn().expect("the service starts");
        self.children.push((format!("{service} {host}"), child));
    }

    /// Ends a service with SIGKILL.
    ///
    /// # Panics
    /// If it was not started.
    pub fn kill_9(&mut self, service: &str, host: &str) {
        let name = format!("{service} {host}");
        let at = self.children.iter().position(|(known, _)| *known == name);
        let (_, mut child) = self.children.swap_remove(at.expect("a started service"));
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }

    /// What a service has logged.
    #[must_use]
    pub fn log(&self, service: &str, host: &str) -> String {
        std::fs::read_to_string(self.log_of(service, host)).unwrap_or_default()
    }

    fn log_of(&self, service: &str, host: &str) -> PathBuf {
        self.folder.path().join(host).join(format!("{service}.log"))
    }

    /// Runs a command of `wattle`.
    ///
    /// # Panics
    /// If it cannot be run.
    pub fn wattle(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("wattle"));
        command
            .args(args)
            .env("WATTLE_NATS_URL", self.server.url())
            .env("WATTLE_CLUSTER", "main")
            .env("SLURM_CONF", self.slurm_folder().join("etc/slurm.conf"))
            .env("XDG_STATE_HOME", self.folder.path());
        answered(|| command.output().expect("wattle runs"))
    }

    /// The records of Slurm's job.
    pub async fn records_of(&self, slurm_id: u32) -> Vec<JobRecord> {
        records::with_prefix(&self.bus, &format!("slurm-{slurm_id}-")).await
    }

    /// Waits until the record of Slurm's job satisfies `wanted`.
    ///
    /// # Panics
    /// If it does not.
    pub async fn until_job(
        &self,
        slurm_id: u32,
        what: &str,
        wanted: impl Fn(&JobRecord) -> bool,
    ) -> JobRecord {
        let what = format!("job {slurm_id}: {what}");
        let read = async || self.records_of(slurm_id).await;
        let queue = || self.as_user("root", &["squeue", "-a", "-t", "all"]);
        let logs = || format!("{}\n{}", queue(), self.logs());
        records::until(PATIENCE, &what, read, wanted, logs).await
    }

    /// Waits until `squeue` prints this reason of a pending job.
    pub async fn until_reason(&self, slurm_id: u32, wanted: &str) {
        let id = slurm_id.to_string();
        until(&format!("the reason of job {id} is {wanted}"), async || {
            let reason = self.as_user("root", &["squeue", "-h", "-j", &id, "-o", "%r"]);
            (reason == wanted).then_some(())
        })
        .await;
    }

    /// Waits until slurmctld has saved a state that is newer than this call: it loses up to 5 s if it is killed.
    ///
    /// # Panics
    /// If it does not save.
    pub async fn until_saved(&self) {
        let file = self.slurm_folder().join("state/job_state");
        let begun = std::fs::metadata(&file).expect("a state").modified().expect("a time");
        // A change makes slurmctld save.
        let job = self.sbatch("games", &["--hold", "--gres=gpu:1"], 1).to_string();
        until("slurmctld has saved its state", async || {
            let modified = std::fs::metadata(&file).ok()?.modified().ok()?;
            (modified > begun).then_some(())
        })
        .await;
        self.as_user("games", &["scancel", &job]);
    }

    /// Waits until `wattle-slurm` has read Slurm after this call.
    pub async fn until_followed(&self) {
        let file = self.slurm_folder().join("run/heartbeat");
        let written = || std::fs::metadata(&file).and_then(|file| file.modified()).ok();
        let before = written();
        until("wattle-slurm reads Slurm", async || (written() > before).then_some(())).await;
    }

    /// CPU time of slurmctld since its start.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn controller_cpu(&self) -> Duration {
        let pid = std::fs::read_to_string(self.slurm_folder().join("pids/slurmctld"));
        let pid = pid.expect("a pid file");
        let pid = pid.split_whitespace().next().expect("a pid");
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("slurmctld runs");
        let (_, fields) = stat.rsplit_once(')').expect("the form of stat");
        // utime and stime, in ticks of 10 ms.
        let ticks =
            fields.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok());
        Duration::from_millis(10 * ticks.sum::<u64>())
    }

    /// The energy of a job in the ledger, joules.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub async fn ledger_j(&self, job: &JobId) -> anyhow::Result<f64> {
        let mut replay = self.bus.replay(StreamName::Ledger, None).await?;
        let mut sum = 0.0;
        while let Some(payload) = replay.next().await? {
            let entry: LedgerEntry = codec::decode_json(&payload)?;
            let of_job = entry.jobs.iter().filter(|of| of.job == *job);
            sum += of_job.map(|of| of.energy_mj.as_j()).sum::<f64>();
        }
        Ok(sum)
    }

    /// The report of a node's power agent.
    pub async fn power_report(&self, node: &str) -> Option<PowerReport> {
        let bucket = self.bus.bucket(Bucket::Actual).await.ok()?;
        let key = Reporter::Power.key(&NodeId::new(node).ok()?);
        bucket.get(&key).await.ok().flatten().map(|(report, _)| report)
    }

    /// The last lines of every log.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for (name, _) in &self.children {
            let (service, host) = name.split_once(' ').unwrap_or((name, "control"));
            let log = self.log(service, host);
            let lines: Vec<&str> = log.lines().collect();
            let (early, late) = lines.split_at(lines.len().saturating_sub(25));
            let early = early.iter().filter(|line| !line.contains("\"INFO\""));
            let tail: Vec<&str> = early.chain(late).copied().collect();
            let tail = tail.join("\n");
            text.push_str(&format!("--- {name}\n{tail}\n"));
        }
        text
    }
}

/// Gives a folder and everything in it to a user.
fn give_to(folder: &Path, owner: (u32, u32)) -> std::io::Result<()> {
    std::os::unix::fs::chown(folder, Some(owner.0), Some(owner.1))?;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            give_to(&path, owner)?;
        } else {
            std::os::unix::fs::chown(&path, Some(owner.0), Some(owner.1))?;
        }
    }
    Ok(())
}

impl Drop for SlurmSite {
    #[expect(clippy::print_stdout, reason = "logs of a failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.logs());
        }
        for (_, child) in &mut self.children {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.cluster("wipe", &[]);
    }
}
