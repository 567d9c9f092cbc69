//! The facts of a site's Slurm that a check reads, and their form in the outputs of programs and in files.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::Timestamp;

use crate::text::nodes::ShownNode;
use crate::text::{TextError, values};

/// The facts of a site's Slurm.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The user under which the service runs.
    pub user: String,
    /// Its number; absent: the user does not exist here.
    pub uid: Option<u32>,
    /// Its level in Slurm, as `Operator`; absent: the accounting database has no such user.
    pub admin_level: Option<String>,
    /// Why the accounting database does not answer; empty: it does.
    pub accounting_error: String,
    /// This machine's time before and after `config` was read: slurmctld's clock was read in between.
    pub read_between: (Timestamp, Timestamp),
    /// `scontrol show config`.
    pub config: Settings,
    /// `scontrol show partition`.
    pub partitions: Vec<Partition>,
    /// `scontrol show node`.
    pub nodes: Vec<ShownNode>,
    /// The folder of Slurm's configuration, and the files there.
    pub files: Files,
    /// How old the heartbeat of the service is; absent: there is none.
    pub heartbeat_age: Option<Duration>,
}

/// Files in the folder of `slurm.conf`; absent: not there or not readable.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// The folder.
    pub folder: String,
    /// Whether this machine has the folder with `slurm.conf`.
    pub is_here: bool,
    /// `job_submit.lua`.
    pub job_submit: Option<String>,
    /// `wattle.lua`.
    pub intake: Option<String>,
    /// `wattle_slurm.conf`.
    pub settings: Option<IntakeSettings>,
    /// `gres.conf`.
    pub gres_conf: Option<String>,
}

impl Facts {
    /// The partitions whose jobs Wattle places: those of the intake's settings, otherwise all that have
    /// nodes with GPUs.
    pub(super) fn managed(&self) -> Vec<&Partition> {
        let chosen =
            self.files.settings.as_ref().map(IntakeSettings::partitions).unwrap_or_default();
        let has_gpus = |partition: &&Partition| {
            self.nodes
                .iter()
                .any(|n| n.partitions.contains(&partition.name) && n.gres.count("gpu") > 0)
        };
        let is_chosen = |partition: &&Partition| {
            if chosen.is_empty() { has_gpus(partition) } else { chosen.contains(&partition.name) }
        };
        self.partitions.iter().filter(is_chosen).collect()
    }

    /// The nodes with GPUs of these partitions.
    pub(super) fn gpu_nodes(&self) -> Vec<&ShownNode> {
        let managed = self.managed();
        let is_in = |node: &ShownNode| managed.iter().any(|p| node.partitions.contains(&p.name));
        self.nodes.iter().filter(|node| node.gres.count("gpu") > 0 && is_in(node)).collect()
    }

    /// Release and sub-release: `(22, 5)`.
    pub(super) fn version(&self) -> (u32, u32) {
        let mut parts =
            self.config.get("SLURM_VERSION").split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }
}

/// Settings of `scontrol show config`, by name.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The values; empty where Slurm writes `(null)`.
    values: BTreeMap<String, String>,
    /// slurmctld's time.
    pub at: Option<Timestamp>,
}

impl Settings {
    /// The settings of the output.
    ///
    /// # Errors
    /// If it is another output.
    pub fn parse(output: &str) -> Result<Self, TextError> {
        const FIRST: &str = "Configuration data as of ";
        let at = output.lines().find_map(|line| line.strip_prefix(FIRST));
        let at = at.ok_or_else(|| TextError::new("output of `scontrol show config`", output))?;
        let pairs = output.lines().filter_map(|line| line.split_once('='));
        let value = |text: &str| match text.trim() {
            "(null)" | "N/A" => String::new(),
            text => text.to_owned(),
        };
        let values = pairs.map(|(name, text)| (name.trim().to_owned(), value(text))).collect();
        Ok(Self { values, at: values::instant(at.trim()).ok().flatten() })
    }

    /// A value; empty if it is not set.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// The first number of a value: 30 of `30 sec`.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name).split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }

    /// Whether a list has an item, alone or with a value: `rl_enable`, `batch_sched_delay=0`.
    #[must_use]
    pub fn has_item(&self, name: &str, item: &str) -> bool {
        self.item(name, item).is_some()
    }

    /// The value of an item of a list: 0 of `batch_sched_delay=0`; empty without a value.
    #[must_use]
    pub fn item(&self, name: &str, item: &str) -> Option<&str> {
        let mut items = self.get(name).split(',').map(str::trim);
        items.find_map(|text| match text.split_once('=') {
            Some((key, value)) => (key == item).then_some(value),
            None => (text == item).then_some(""),
        })
    }

    /// Whether a setting is `yes`.
    #[must_use]
    pub fn is_yes(&self, name: &str) -> bool {
        self.get(name).eq_ignore_ascii_case("yes")
    }
}

/// A partition of `scontrol show partition`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// Its tier: jobs of a higher tier are considered first.
    pub priority_tier: u32,
}

impl Partition {
    /// The partitions of the output.
    #[must_use]
    pub fn parse_all(output: &str) -> Vec<Self> {
        let mut partitions: Vec<Self> = Vec::new();
        for word in output.split_ascii_whitespace() {
            if let Some(name) = word.strip_prefix("PartitionName=") {
                partitions.push(Self { name: name.to_owned(), priority_tier: 1 });
            } else if let Some(tier) = word.strip_prefix("PriorityTier=")
                && let (Some(last), Ok(tier)) = (partitions.last_mut(), tier.parse())
            {
                last.priority_tier = tier;
            }
        }
        partitions
    }
}

/// Settings of the intake plugin: `wattle_slurm.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntakeSettings(BTreeMap<String, String>);

impl IntakeSettings {
    /// The settings of the file: lines `name = value`, and comments that begin with `#`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or(line));
        let pairs = lines.filter_map(|line| line.split_once('='));
        Self(pairs.map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned())).collect())
    }

    /// A value; empty if it is not set.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// The items of a list.
    #[must_use]
    pub fn list(&self, name: &str) -> Vec<String> {
        self.get(name).split(',').map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect()
    }

    /// The partitions whose jobs the intake holds.
    #[must_use]
    pub fn partitions(&self) -> Vec<String> {
        self.list("partitions")
    }
}
