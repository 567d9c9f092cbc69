//! The short form of a message: its topic with ids, and the values of its first fields.
//!
//! Values are in W, J, MHz and s; times, absent values and ids that the subject contains are left out,
//! lists are counted.

use serde_json::Value;

/// Width of a line.
const WIDTH: usize = 80;

/// The name and the values of a message; together they have at most [`WIDTH`] columns.
pub(super) fn of(subject: &str, message: &Value) -> (String, String) {
    let name = name(subject);
    let width = WIDTH.saturating_sub(name.chars().count() + 1);
    let ids: Vec<&str> = name.split(['.', ' ']).collect();
    let fields = message.as_object().into_iter().flatten();
    // Scalars first: lists and objects are details.
    let (plain, nested): (Vec<_>, Vec<_>) =
        fields.partition(|(_, value)| !(value.is_array() || value.is_object()));
    let mut text = String::new();
    for (key, value) in plain.into_iter().chain(nested) {
        if value.as_str().is_some_and(|value| ids.contains(&value)) {
            continue;
        }
        let Some(shown) = field(key, value) else { continue };
        if text.chars().count() + shown.chars().count() + 6 > width {
            text.push_str("...");
            break;
        }
        text.push_str(&shown);
        text.push_str("  ");
    }
    if message.is_array() {
        text = value_text(message).unwrap_or_default();
    }
    (name, text.trim_end().to_owned())
}

/// `node.summarized n0`, `jobs train-7`.
fn name(subject: &str) -> String {
    let parts: Vec<&str> = subject.split('.').collect();
    match parts.as_slice() {
        // The last word of the bucket's name is its token.
        ["$KV", bucket, key @ ..] => {
            let token = bucket.rsplit('-').next().unwrap_or(bucket);
            format!("{token} {}", key.join("."))
        }
        ["wattle", "v1", _, noun, participle, ids @ ..] => {
            format!("{noun}.{participle} {}", ids.join(".")).trim_end().to_owned()
        }
        _ => subject.to_owned(),
    }
}

fn field(key: &str, value: &Value) -> Option<String> {
    // Times in microseconds since the epoch are of use to programs only.
    if key.ends_with("_us") || value.is_null() {
        return None;
    }
    let words: Vec<&str> = key.split('_').collect();
    let units: [(&str, &str, f64); 5] = [
        ("mw", "W", 1e3),
        ("mj", "J", 1e3),
        ("mhz", "MHz", 1.0),
        ("ms", "s", 1e3),
        ("mib", "MiB", 1.0),
    ];
    let unit = units.iter().find(|(unit, ..)| words.contains(unit));
    match (unit, value.as_f64()) {
        (Some((word, unit, scale)), Some(number)) => {
            let name: Vec<&str> = words.into_iter().filter(|part| part != word).collect();
            Some(format!("{} {:.0} {unit}", name.join("_"), number / scale))
        }
        _ => Some(format!("{key} {}", value_text(value)?)),
    }
}

fn value_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => {
            let number = number.as_f64()?;
            let digits = if number.fract().abs() < 1e-9 { 0 } else { 3 };
            Some(format!("{number:.digits$}"))
        }
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Array(list) => Some(format!("[{}]", list.len())),
        Value::Object(object) => {
            let phase = ["job", "phase", "state"].iter().find_map(|key| object.get(*key)?.as_str());
            Some(phase.map_or_else(|| format!("{{{}}}", object.len()), str::to_owned))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use wattle_common::subject::{NodeTopic, Subject};
    use wattle_common::{ClusterId, NodeId};

    #[test]
    fn every_golden_message_fits_a_line() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../common/tests/golden/v1");
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().collect();
        assert!(files.len() > 20);
        for file in files {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            let Ok(message) = serde_json::from_str::<Value>(&text) else { continue };
            let (name, text) = of("$KV.wattle-v1-main-jobs.train-7", &message);
            let columns = name.chars().count() + 1 + text.chars().count();
            assert!(columns <= WIDTH, "{columns} columns: {name} {text}");
        }
    }

    #[test]
    fn values_have_units_and_ids_are_not_repeated() {
        let message = json!({
            "node": "n0", "at_us": 5, "power_mw_mean": 123_400, "clock_mhz": 1380, "share": 0.25,
            "error": null, "gpus": [1, 2],
        });
        let (cluster, node) = (ClusterId::new("main").unwrap(), NodeId::new("n0").unwrap());
        let subject = Subject::of_node(cluster, NodeTopic::NodeSummarized, node);
        let (name, text) = of(&subject.to_string(), &message);
        assert_eq!(name, "node.summarized n0");
        assert_eq!(text, "clock 1380 MHz  power_mean 123 W  share 0.250  gpus [2]");
    }
}
