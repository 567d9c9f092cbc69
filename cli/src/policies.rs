//! Help texts about policies, derived from a set of policies.

use wattle_placer::policies::PolicySet;

/// A help text, followed by the names of the policies and their variants.
pub(crate) fn names_help(text: &str, policies: &PolicySet) -> String {
    let names: Vec<&str> = policies.names().collect();
    let additions: String =
        policies.additions.iter().map(|addition| format!(" or NAME+{}", addition.name)).collect();
    format!("{text}: {}; each also as NAME@MHZ{additions}", names.join(", "))
}

/// The policies with their rules and tuning numbers, one per line.
pub(crate) fn table(policies: &PolicySet) -> String {
    let width = policies.names().map(str::len).max().unwrap_or(0);
    let line = |entry: &wattle_placer::policies::PolicyEntry| {
        let number = entry.number().map(|number| format!("; {}:NUMBER: {number}", entry.name));
        format!("  {:width$}  {}{}", entry.name, entry.rule, number.unwrap_or_default())
    };
    format!("Policies:\n{}", policies.entries.iter().map(line).collect::<Vec<_>>().join("\n"))
}
