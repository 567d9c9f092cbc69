//! `wattle keys`: creates, rotates, revokes and lists the keys of services and people.
//!
//! The keys are nkeys, the identities of NATS. All files are in one folder; the NATS server needs only
//! its part `server/`, each service and person only its own seed.

mod certificates;
mod folder;
mod server;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use wattle_common::ClusterId;
use wattle_common::subject::roles::Role;

use self::folder::{Folder, Key};
use crate::output::{Align, Table, note, print, print_json, usage};

/// Default folder of the keys.
const FOLDER: &str = "keys";

/// Create, rotate, revoke and list the keys of services and people.
///
/// The folder has the seeds (seeds/ROLE.nk, one for each service or person), the part of the NATS
/// server (server/), contexts of people for `nats` (contexts/) and the key of the certificate authority
/// (ca.key). Keep it on one protected machine, and copy to others only what they need.
#[derive(Args)]
#[command(
    after_help = "Roles: placer, registry, slurm, openadr, predictor NAME, node NAME, user NAME, operator NAME, monitor NAME\n\n\
        Examples:\n  wattle keys init --cluster main --host nats.example.org\n  wattle keys add node n0 n1 n2\n  wattle keys add user ada\n  wattle keys rotate node n0\n  wattle keys revoke user ada\n  wattle keys list"
)]
pub(crate) struct Keys {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Create the folder with the keys of placer and registry, and certificates.
    Init(Init),
    /// Create keys.
    Add(Add),
    /// Replace a key; the previous one stays valid until it is revoked.
    Rotate(Rotate),
    /// Make keys invalid and delete their seeds.
    Revoke(Revoke),
    /// List the keys.
    List(List),
    /// Issue a new certificate of the NATS server.
    Certificate(Certificate),
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  wattle keys init --cluster main --host nats.example.org --host 10.0.0.5"
)]
struct Init {
    /// Name of the cluster
    #[arg(long, value_name = "ID")]
    cluster: ClusterId,
    /// Name or address by which clients reach the NATS server (repeatable)
    #[arg(long, value_name = "HOST", required = true)]
    host: Vec<String>,
    /// Where the NATS server finds its part of the folder [default: FOLDER/server]
    #[arg(long, value_name = "PATH")]
    server_path: Option<PathBuf>,
    #[command(flatten)]
    at: At,
}

#[derive(Args)]
struct At {
    /// The folder of the keys
    #[arg(long, value_name = "FOLDER", default_value = FOLDER)]
    folder: PathBuf,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  wattle keys add node n0 n1\n  wattle keys add operator bob")]
struct Add {
    /// predictor, node, slurm, openadr, web, user, operator or monitor; placer or registry after a revocation
    role: String,
    /// Their names
    names: Vec<String>,
    #[command(flatten)]
    at: At,
}

#[derive(Args)]
#[command(after_help = "Example:\n  wattle keys rotate node n0")]
struct Rotate {
    /// The role, as in `wattle keys list`
    role: String,
    /// Its name
    name: Option<String>,
    #[command(flatten)]
    at: At,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle keys revoke user ada\n  wattle keys revoke node n0 --previous"
)]
struct Revoke {
    /// The role, as in `wattle keys list`
    role: String,
    /// Its name
    name: Option<String>,
    /// Only the keys before the last rotation
    #[arg(long)]
    previous: bool,
    #[command(flatten)]
    at: At,
}

#[derive(Args)]
#[command(after_help = "Example:\n  wattle keys list --json")]
struct List {
    #[command(flatten)]
    at: At,
    /// Print the keys as a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n  wattle keys certificate --host nats.example.org")]
struct Certificate {
    /// Name or address by which clients reach the NATS server (repeatable)
    #[arg(long, value_name = "HOST", required = true)]
    host: Vec<String>,
    #[command(flatten)]
    at: At,
}

fn role(kind: &str, name: Option<&str>) -> anyhow::Result<Role> {
    Role::new(kind, name).map_err(|error| usage(error.to_string()))
}

/// Notes that the server must load the change.
fn note_reload(folder: &Folder) {
    note(&format!(
        "the NATS server needs {}: copy the folder to its host, then `nats-server --signal reload`",
        folder.server().display()
    ));
}

fn init(command: &Init) -> anyhow::Result<()> {
    let mut folder = Folder::create(
        &command.at.folder,
        command.cluster.clone(),
        command.server_path.as_deref(),
        &command.host[0],
    )?;
    certificates::create(&folder, &command.host)?;
    for role in [Role::Placer, Role::Registry] {
        folder.add(&role)?;
    }
    folder.save()?;
    print(&format!(
        "{} has the keys of placer and registry of cluster {}",
        folder.path().display(),
        command.cluster
    ))?;
    note("next: `wattle keys add` for predictors, nodes, operators and users");
    note_reload(&folder);
    Ok(())
}

fn add(command: &Add) -> anyhow::Result<()> {
    let mut folder = Folder::open(&command.at.folder)?;
    let roles: Vec<Role> = if command.names.is_empty() {
        vec![role(&command.role, None)?]
    } else {
        let named = command.names.iter().map(|name| role(&command.role, Some(name)));
        named.collect::<anyhow::Result<_>>()?
    };
    let mut seeds = Vec::new();
    for role in &roles {
        seeds.push(folder.add(role)?);
    }
    folder.save()?;
    for seed in seeds {
        print(&seed.display().to_string())?;
    }
    note_reload(&folder);
    Ok(())
}

fn rotate(command: &Rotate) -> anyhow::Result<()> {
    let mut folder = Folder::open(&command.at.folder)?;
    let role = role(&command.role, command.name.as_deref())?;
    let seed = folder.rotate(&role)?;
    folder.save()?;
    print(&seed.display().to_string())?;
    note_reload(&folder);
    note(&format!(
        "then replace the seed where it is used, and `wattle keys revoke {role} --previous`"
    ));
    Ok(())
}

fn revoke(command: &Revoke) -> anyhow::Result<()> {
    let mut folder = Folder::open(&command.at.folder)?;
    let role = role(&command.role, command.name.as_deref())?;
    let keys = match folder.revoke(&role, command.previous)? {
        1 => "1 key".to_owned(),
        keys => format!("{keys} keys"),
    };
    folder.save()?;
    print(&format!("{keys} of {role} revoked"))?;
    note_reload(&folder);
    Ok(())
}

fn list(command: &List) -> anyhow::Result<()> {
    let folder = Folder::read(&command.at.folder)?;
    if !folder.is_complete()? {
        note(
            "server/auth.conf does not agree with this list, because a change was interrupted or another version \
             wrote it: the next change replaces it",
        );
    }
    if command.json {
        return print_json(&folder.keys());
    }
    let mut table = Table::new(&[
        ("ROLE", Align::Left),
        ("STATE", Align::Left),
        ("CREATED", Align::Left),
        ("PUBLIC KEY", Align::Left),
    ]);
    for Key { role, public, created, previous } in folder.keys() {
        let state = if *previous { "previous" } else { "current" };
        table.row(vec![role.clone(), state.to_owned(), created.clone(), public.clone()]);
    }
    table.print()
}

/// Runs the command.
pub(crate) fn run(command: Keys) -> anyhow::Result<()> {
    match command.action {
        Action::Init(command) => init(&command),
        Action::Add(command) => add(&command),
        Action::Rotate(command) => rotate(&command),
        Action::Revoke(command) => revoke(&command),
        Action::List(command) => list(&command),
        Action::Certificate(command) => {
            let mut folder = Folder::open(&command.at.folder)?;
            certificates::issue(&folder, &command.host)?;
            folder.set_host(&command.host[0]);
            folder.save()?;
            print(&format!("{} is replaced", folder.server().join("server.pem").display()))?;
            note_reload(&folder);
            Ok(())
        }
    }
}
