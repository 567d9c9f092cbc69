//! Mutations of seeds: of bytes, of words, of numbers in texts, and of values in JSON.

use serde_json::Value;
use wattle_common::rng::Stream;

use crate::INPUT_LEN_MAX;

/// Numbers at the borders of types and limits, around the targets' time.
const NUMBERS: [&str; 28] = [
    "0",
    "1",
    "-1",
    "2",
    "63",
    "64",
    "65",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "4294967295",
    "4294967296",
    "9007199254740992",
    "9223372036854775807",
    "18446744073709551614",
    "18446744073709551615",
    "18446744073709551616",
    "1700000122000000",
    "1700000182000000",
    "1700086400000000",
    "1e-300",
    "5e-324",
    "1e300",
    "-1e300",
    "0.5",
    "1e19",
];

/// One input: one or two seeds, mutated a few times.
pub(crate) fn input(rng: &mut Stream, seeds: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut bytes = rng.pick(seeds).cloned().unwrap_or_default();
    // A sequence of inputs, for targets that read lines.
    while rng.below(3) == 0 {
        let more = rng.pick(seeds).cloned().unwrap_or_default();
        if bytes.len() + more.len() > INPUT_LEN_MAX {
            break;
        }
        bytes.extend(more);
    }
    for _ in 0..1 + rng.below(4) {
        bytes = mutate(rng, bytes, seeds, words);
    }
    bytes.truncate(INPUT_LEN_MAX);
    bytes
}

fn mutate(rng: &mut Stream, bytes: Vec<u8>, seeds: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    match rng.below(8) {
        0..4 => match lines_of_json(rng, &bytes) {
            Some(mutated) => mutated,
            None => number(rng, bytes),
        },
        4 => number(rng, bytes),
        5 => word(rng, bytes, words),
        6 => splice(rng, bytes, seeds),
        _ => raw(rng, bytes),
    }
}

fn at(rng: &mut Stream, length: usize) -> usize {
    rng.below(length as u64 + 1) as usize
}

/// Changes, inserts or removes bytes.
fn raw(rng: &mut Stream, mut bytes: Vec<u8>) -> Vec<u8> {
    let from = at(rng, bytes.len());
    match rng.below(4) {
        0 if from < bytes.len() => bytes[from] ^= 1 << rng.below(8),
        1 if from < bytes.len() => bytes[from] = rng.below(256) as u8,
        2 => {
            let until = (from + rng.below(16) as usize).min(bytes.len());
            bytes.drain(from..until);
        }
        _ => {
            let inserted: Vec<u8> = (0..1 + rng.below(8)).map(|_| rng.below(256) as u8).collect();
            bytes.splice(from..from, inserted);
        }
    }
    bytes
}

/// Inserts a word of the format, or replaces as many bytes by it.
fn word(rng: &mut Stream, mut bytes: Vec<u8>, words: &[&str]) -> Vec<u8> {
    let Some(word) = rng.pick(words).copied() else { return raw(rng, bytes) };
    let from = at(rng, bytes.len());
    let until = if rng.below(2) == 0 { from } else { (from + word.len()).min(bytes.len()) };
    bytes.splice(from..until, word.bytes());
    bytes
}

/// Replaces a part by a part of another seed.
fn splice(rng: &mut Stream, mut bytes: Vec<u8>, seeds: &[Vec<u8>]) -> Vec<u8> {
    let Some(other) = rng.pick(seeds).filter(|other| !other.is_empty()) else { return bytes };
    let from = at(rng, other.len() - 1);
    let until = (from + 1 + rng.below(64) as usize).min(other.len());
    let into = at(rng, bytes.len());
    let end = (into + rng.below(64) as usize).min(bytes.len());
    bytes.splice(into..end, other[from..until].iter().copied());
    bytes
}

/// Replaces a number in a text.
fn number(rng: &mut Stream, bytes: Vec<u8>) -> Vec<u8> {
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|i| bytes[*i].is_ascii_digit() && (*i == 0 || !bytes[*i - 1].is_ascii_digit()))
        .collect();
    let Some(&from) = rng.pick(&starts) else { return raw(rng, bytes) };
    let length = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut bytes = bytes;
    let text = rng.pick(&NUMBERS).copied().unwrap_or("0");
    bytes.splice(from..from + length, text.bytes());
    bytes
}

/// Mutates a value in one of the lines of JSON, each of which may begin with a word; `None` where the input
/// has no such line.
fn lines_of_json(rng: &mut Stream, bytes: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok()?;
    // A single value, possibly over several lines.
    if let Ok(mut value) = serde_json::from_str::<Value>(text) {
        mutate_value(rng, &mut value);
        return Some(value.to_string().into_bytes());
    }
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let chosen = rng.below(lines.len() as u64) as usize;
    let line = lines.get(chosen)?;
    let (kind, json) = line.split_once(' ')?;
    let mut value: Value = serde_json::from_str(json).ok()?;
    match rng.below(8) {
        0 => drop(lines.remove(chosen)),
        1 => lines.push(line.clone()),
        _ => {
            mutate_value(rng, &mut value);
            lines[chosen] = format!("{kind} {value}");
        }
    }
    let mut text = lines.join("\n");
    text.push('\n');
    Some(text.into_bytes())
}

/// Mutates one of the leaves or containers of a value.
fn mutate_value(rng: &mut Stream, value: &mut Value) {
    let count = size(value);
    let mut at = rng.below(count as u64) as usize;
    if let Some(chosen) = nth(value, &mut at) {
        change(rng, chosen);
    }
}

fn size(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(size).sum::<usize>(),
        _ => 1,
    }
}

fn nth<'a>(value: &'a mut Value, at: &mut usize) -> Option<&'a mut Value> {
    if *at == 0 {
        return Some(value);
    }
    *at -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, at)),
        Value::Object(fields) => fields.values_mut().find_map(|field| nth(field, at)),
        _ => None,
    }
}

fn change(rng: &mut Stream, value: &mut Value) {
    match value {
        Value::Array(items) if !items.is_empty() && rng.below(4) > 0 => {
            let chosen = rng.below(items.len() as u64) as usize;
            match rng.below(3) {
                0 => drop(items.remove(chosen)),
                1 => items.push(items[chosen].clone()),
                // Many equal items, within the fuzzer's limit on lengths.
                _ => items.extend(vec![items[chosen].clone(); rng.below(70) as usize]),
            }
        }
        Value::Object(fields) if !fields.is_empty() && rng.below(4) > 0 => {
            let chosen = rng.below(fields.len() as u64) as usize;
            let name = fields.keys().nth(chosen).cloned().unwrap_or_default();
            fields.remove(&name);
        }
        Value::String(text) if rng.below(2) == 0 => {
            *text = match rng.below(4) {
                0 => String::new(),
                1 => text.repeat(1 + rng.below(40) as usize),
                2 => format!("{text}\u{1b}[2J\u{0}.>*"),
                _ => "train-7".to_owned(),
            };
        }
        other => {
            *other = match rng.below(12) {
                0 => Value::Null,
                1 => Value::Bool(rng.below(2) == 0),
                2 => Value::Array(Vec::new()),
                _ => {
                    let text = rng.pick(&NUMBERS).copied().unwrap_or("0");
                    serde_json::from_str(text).unwrap_or(Value::Null)
                }
            };
        }
    }
}
