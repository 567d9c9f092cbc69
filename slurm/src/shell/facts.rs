//! Reads the facts of [`crate::check()`] from Slurm's programs and files.

use std::path::Path;
use std::time::Duration;

use nix::unistd::User;
use wattle_common::Timestamp;
use wattle_runtime::clock;

use super::programs::Programs;
use crate::check::{Facts, Files, IntakeSettings, Partition, Settings};
use crate::command::SlurmError;
use crate::text::{TextError, nodes};

/// The facts about the Slurm of this machine, for a service that runs as `user`.
///
/// # Errors
/// If Slurm's programs are not there or slurmctld does not answer.
pub async fn facts(programs: &Programs, user: &str) -> Result<Facts, SlurmError> {
    let show = async |what: &str| -> Result<String, SlurmError> {
        Ok(programs.run("scontrol", &["show", what], &[]).await?.output)
    };
    let wrong = |what: &str, error: TextError| SlurmError::Output {
        command: format!("scontrol show {what}"),
        error: error.to_string(),
    };
    let before = clock::wall_now();
    let config = show("config").await?;
    let read_between = (before, clock::wall_now());
    let config = Settings::parse(&config).map_err(|e| wrong("config", e))?;
    let partitions = Partition::parse_all(&show("partition").await?);
    let nodes = nodes::nodes(&show("node").await?).map_err(|e| wrong("node", e))?;
    let (admin_level, accounting_error) = match admin_level(programs, user).await {
        Ok(level) => (level, String::new()),
        Err(error) => (None, error.to_string()),
    };
    let files = files(Path::new(config.get("SLURM_CONF")));
    let heartbeat_age =
        files.settings.as_ref().and_then(|s| heartbeat_age(s.get("heartbeat"), clock::wall_now()));
    Ok(Facts {
        user: user.to_owned(),
        uid: User::from_name(user).ok().flatten().map(|user| user.uid.as_raw()),
        admin_level,
        accounting_error,
        read_between,
        config,
        partitions,
        nodes,
        files,
        heartbeat_age,
    })
}

/// The user's level in the accounting database; `None` for a user that is not in it.
async fn admin_level(programs: &Programs, user: &str) -> Result<Option<String>, SlurmError> {
    let name = format!("name={user}");
    let arguments =
        ["--parsable2", "--noheader", "show", "user", "where", &name, "format=user,adminlevel"];
    let printed = programs.run("sacctmgr", &arguments, &[]).await?.output;
    let lines = printed.lines().filter_map(|line| line.split_once('|'));
    Ok(lines.filter(|(name, _)| *name == user).map(|(_, level)| level.to_owned()).next())
}

fn files(slurm_conf: &Path) -> Files {
    let folder = slurm_conf.parent().unwrap_or(Path::new("/etc/slurm"));
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    Files {
        folder: folder.display().to_string(),
        is_here: slurm_conf.is_file(),
        job_submit: read("job_submit.lua"),
        intake: read("wattle.lua"),
        settings: read("wattle_slurm.conf").map(|text| IntakeSettings::parse(&text)),
        gres_conf: read("gres.conf"),
    }
}

/// How long ago the service wrote the heartbeat, whose first line has seconds since the Unix epoch.
#[must_use]
pub fn heartbeat_age(path: &str, now: Timestamp) -> Option<Duration> {
    let text = std::fs::read_to_string(path).ok()?;
    let at: u64 = text.lines().next()?.trim().parse().ok()?;
    Some(now.since(Timestamp::from_s(at)))
}
