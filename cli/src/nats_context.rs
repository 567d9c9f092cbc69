//! Context files of `nats`, NATS's own command line: `nats --context FILE.json`.

use std::path::Path;

use serde_json::json;
use wattle_common::subject::roles;

/// A connection.
pub(crate) struct Context<'a> {
    /// What it connects to, and as which identity.
    pub(crate) description: &'a str,
    /// The server's address.
    pub(crate) url: &'a str,
    /// The file with the key.
    pub(crate) nkey: &'a Path,
    /// The file with the trusted certificates; `None`: without TLS.
    pub(crate) ca: Option<&'a Path>,
    /// The public key.
    pub(crate) public: &'a str,
}

/// The text of a context file. It names files and contains no secret.
pub(crate) fn text(context: &Context<'_>) -> String {
    let mut value = json!({
        "description": context.description,
        "url": context.url,
        "nkey": context.nkey.to_string_lossy(),
        // The only replies that a key of the role table may read.
        "inbox_prefix": roles::inbox(context.public),
    });
    if let Some(ca) = context.ca {
        value["ca"] = json!(ca.to_string_lossy());
    }
    format!("{value:#}\n")
}
