//! Telemetry decoded with the tables of `docs/messages.md` only: the page suffices for a reader in any
//! language.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use wattle_common::codec;

/// Fields of each structure on the page, in order: name and type.
type Layout = BTreeMap<String, Vec<(String, String)>>;

fn layout() -> Layout {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/messages.md");
    let page = std::fs::read_to_string(path).expect("docs/messages.md is part of the repository");
    let mut layout = Layout::new();
    let mut open = None;
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match cells.as_slice() {
            ["", name, "type", "meaning", ""] => {
                let name = name.trim_matches('`').to_owned();
                layout.insert(name.clone(), Vec::new());
                open = Some(name);
            }
            ["", field, kind, _, ""] if !field.starts_with('-') => {
                if let Some(fields) = open.as_ref().and_then(|name| layout.get_mut(name)) {
                    fields.push((field.to_string(), kind.to_string()));
                }
            }
            ["", ..] if line.starts_with('|') => {}
            _ => open = None,
        }
    }
    layout
}

/// Reads the types of the page from bytes.
struct Reader<'a> {
    layout: &'a Layout,
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        let (taken, rest) = self.bytes.split_at(count);
        self.bytes = rest;
        taken
    }

    fn integer(&mut self) -> u64 {
        let count = match self.take(1)[0] {
            251 => 2,
            252 => 4,
            253 => 8,
            small => return small.into(),
        };
        self.take(count).iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    fn read(&mut self, kind: &str) -> Value {
        if let Some(inner) = kind.strip_prefix("optional ") {
            return if self.take(1)[0] == 1 { self.read(inner) } else { Value::Null };
        }
        if let Some(inner) = kind.strip_prefix("list of ") {
            let count = self.integer();
            return (0..count).map(|_| self.read(inner)).collect();
        }
        match kind {
            "byte" => self.take(1)[0].into(),
            "integer" => self.integer().into(),
            "text" => {
                let length = usize::try_from(self.integer()).unwrap();
                String::from_utf8(self.take(length).to_vec()).unwrap().into()
            }
            structure => {
                let fields = &self.layout[structure];
                let read = fields.iter().map(|(name, kind)| (name.clone(), self.read(kind)));
                read.collect::<Map<_, _>>().into()
            }
        }
    }
}

fn decode(layout: &Layout, payload: &[u8]) -> Value {
    let mut reader = Reader { layout, bytes: payload.strip_prefix(&[0xE5, 1, 1, 0]).unwrap() };
    let batch = reader.read("TelemetryBatch");
    assert!(reader.bytes.is_empty(), "bytes left over");
    batch
}

#[test]
fn telemetry_is_decoded_by_the_page_alone() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1/telemetry-batch.bin");
    let payload = std::fs::read(golden).unwrap();
    let expected = serde_json::to_value(codec::decode_telemetry(&payload).unwrap()).unwrap();
    assert_eq!(decode(&layout(), &payload), expected);
    // The example.
    let example = [0xe5, 1, 1, 0, 2, b'n', b'0', 7, 0];
    let expected = serde_json::to_value(codec::decode_telemetry(&example).unwrap()).unwrap();
    assert_eq!(decode(&layout(), &example), expected);
    assert_eq!(expected["sequence"], 7);
}
