//! Help texts about policies, derived from the placer's table of policies.

use wattle_placer::policies::{NAMES, POLICIES};

/// `TEXT: fifo, eaco, ...`
pub(crate) fn names_help(text: &str) -> String {
    format!("{text}: {}; each also as NAME@MHZ or NAME+zeus", NAMES.join(", "))
}

/// One line per policy: its name, its rule and its tuning number.
pub(crate) fn table() -> String {
    let width = NAMES.iter().map(|name| name.len()).max().unwrap_or(0);
    let line = |entry: &wattle_placer::policies::PolicyEntry| {
        let number = entry.number().map(|number| format!("; {}:NUMBER: {number}", entry.name));
        format!("  {:width$}  {}{}", entry.name, entry.rule, number.unwrap_or_default())
    };
    format!("Policies:\n{}", POLICIES.iter().map(line).collect::<Vec<_>>().join("\n"))
}
