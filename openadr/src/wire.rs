//! The messages of an OpenADR 3.1 server, as far as they are used, and their limits.
//!
//! An answer is read element by element, so that one that cannot be used hides no other. Unknown fields are ignored.
//! Source: the definitions and the user guide of OpenADR 3.1 of the OpenADR Alliance.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Elements of a page, the most that OpenADR permits.
pub const PAGE: usize = 50;
/// Most elements of a list: of all programs, or of the events of one.
pub const LISTED_MAX: usize = 1_000;
/// Most intervals of an event.
pub const INTERVALS_MAX: usize = 100;
/// Most payloads of an interval.
pub const PAYLOADS_MAX: usize = 32;
/// Most targets and most descriptors of an event.
pub const DESCRIPTORS_MAX: usize = 100;
/// Longest id, name or type, characters.
pub const TEXT_LEN_MAX: usize = 128;

/// A label by which an event is addressed: a text, before 3.1 texts of one kind.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Target {
    /// The label.
    Label(String),
    /// Labels of a kind.
    Values {
        /// The labels.
        values: Vec<Value>,
    },
}

impl Target {
    /// Whether it has one of these labels.
    #[must_use]
    pub fn is_one_of(&self, labels: &[&str]) -> bool {
        match self {
            Self::Label(label) => labels.contains(&label.as_str()),
            Self::Values { values } => {
                values.iter().filter_map(Value::as_str).any(|value| labels.contains(&value))
            }
        }
    }
}

/// The unit of a kind of payload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PayloadDescriptor {
    /// The kind.
    pub payload_type: String,
    /// Its unit.
    pub units: Option<String>,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Program {
    /// The server's id.
    pub id: String,
    /// Its name.
    pub program_name: String,
    /// Default units of its events.
    pub payload_descriptors: Option<Vec<PayloadDescriptor>>,
}

/// Start and duration of intervals.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IntervalPeriod {
    /// The start.
    pub start: Option<String>,
    /// The duration.
    pub duration: Option<String>,
    /// The most by which the client shifts the start, in either direction.
    pub randomize_start: Option<String>,
}

/// Values of one kind.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Payload {
    /// The kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// The values.
    pub values: Vec<Value>,
}

/// An interval of an event.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interval {
    /// Its number, unique in its event.
    pub id: i64,
    /// Its times, where they are not those of the event.
    pub interval_period: Option<IntervalPeriod>,
    /// What holds during it.
    pub payloads: Option<Vec<Payload>>,
}

/// A requested report.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportDescriptor {
    /// The kind of its values.
    pub payload_type: String,
    /// How they are obtained.
    pub reading_type: Option<String>,
    /// Their unit.
    pub units: Option<String>,
    /// The resources that it is about.
    pub targets: Option<Vec<Target>>,
    /// Whether it is one sum over all resources.
    pub aggregate: Option<bool>,
    /// The first interval, counted from 0; -1: the first of all.
    pub start_interval: Option<i64>,
    /// The number of intervals; -1: all.
    pub num_intervals: Option<i64>,
    /// Whether it is about intervals that are over, and not a forecast.
    pub historical: Option<bool>,
    /// The number of intervals between two reports; -1: one report after all intervals.
    pub frequency: Option<i64>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The server's id.
    pub id: String,
    /// The id of its program.
    #[serde(rename = "programID")]
    pub program_id: String,
    /// When it was last changed.
    pub modification_date_time: Option<String>,
    /// Its order: 0 is the first.
    pub priority: Option<i64>,
    /// The labels by which it is addressed; none: to all.
    pub targets: Option<Vec<Target>>,
    /// Its duration, where it differs from that of its intervals.
    pub duration: Option<String>,
    /// Start and duration of its intervals.
    pub interval_period: Option<IntervalPeriod>,
    /// The intervals.
    pub intervals: Option<Vec<Interval>>,
    /// The requested reports.
    pub report_descriptors: Option<Vec<ReportDescriptor>>,
    /// Units of its payloads.
    pub payload_descriptors: Option<Vec<PayloadDescriptor>>,
}

/// An element of an answer that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its id; absent: it has none.
    pub id: Option<String>,
    /// Why.
    pub reason: String,
}

/// The answer of the token endpoint.
#[derive(Deserialize)]
pub struct Token {
    /// The token.
    pub access_token: String,
    /// For how long it is valid, seconds.
    pub expires_in: Option<f64>,
}

/// The id of a stored object, and the name of a report.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredReport {
    /// The server's id.
    pub id: String,
    /// The client's name of it.
    pub report_name: Option<String>,
}

/// A report, as it is sent.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Its name, by which it is found again.
    pub report_name: String,
    /// The event that requested it.
    #[serde(rename = "eventID")]
    pub event_id: String,
    /// The name of this client.
    pub client_name: String,
    /// The units.
    pub payload_descriptors: Vec<Value>,
    /// The values by resource.
    pub resources: Vec<Value>,
}

/// The elements of an answer.
///
/// # Errors
/// If it is not a list.
pub fn elements(body: &[u8]) -> Result<Vec<Value>, String> {
    serde_json::from_slice::<Vec<Value>>(body)
        .map_err(|error| format!("the answer is not a list in JSON: {error}"))
}

/// A text of the server for a message: short and without control characters.
#[must_use]
pub fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_LEN_MAX).collect()
}

/// Whether a text is an id of the server: letters, digits, `-` and `_`.
#[must_use]
pub fn is_id(text: &str) -> bool {
    let permitted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=TEXT_LEN_MAX).contains(&text.len()) && text.bytes().all(permitted)
}

/// Reads an element that has an id.
///
/// # Errors
/// [`Refused`] with the id, where it has one.
pub fn read<T: DeserializeOwned>(element: Value) -> Result<T, Refused> {
    let id = element.get("id").and_then(Value::as_str).filter(|id| is_id(id)).map(str::to_owned);
    let refused = |reason| Refused { id: id.clone(), reason };
    if id.is_none() {
        return Err(refused("without an id of letters, digits, - and _".to_owned()));
    }
    serde_json::from_value(element).map_err(|error| refused(shown(&error.to_string())))
}

impl Event {
    /// Checks the number of its parts and the length of its texts.
    ///
    /// # Errors
    /// Names the part and the limit.
    pub fn check(&self) -> Result<(), String> {
        let count = |what: &str, number: usize, most: usize| match number > most {
            true => Err(format!("{number} {what}: at most {most} are accepted")),
            false => Ok(()),
        };
        let text = |what: &str, text: &str| match text.chars().count() > TEXT_LEN_MAX {
            true => Err(format!("{what} is longer than {TEXT_LEN_MAX} characters")),
            false => Ok(()),
        };
        if !is_id(&self.program_id) {
            return Err("programID is not an id of letters, digits, - and _".to_owned());
        }
        let intervals = self.intervals.as_deref().unwrap_or_default();
        count("intervals", intervals.len(), INTERVALS_MAX)?;
        for interval in intervals {
            let payloads = interval.payloads.as_deref().unwrap_or_default();
            count("payloads of an interval", payloads.len(), PAYLOADS_MAX)?;
            payloads.iter().try_for_each(|payload| text("a payload's type", &payload.kind))?;
        }
        let reports = self.report_descriptors.as_deref().unwrap_or_default();
        count("reportDescriptors", reports.len(), DESCRIPTORS_MAX)?;
        for report in reports {
            text("a report's payloadType", &report.payload_type)?;
            text("a report's units", report.units.as_deref().unwrap_or_default())?;
        }
        count("targets", self.targets.as_deref().map_or(0, <[_]>::len), DESCRIPTORS_MAX)?;
        let units = self.payload_descriptors.as_deref().map_or(0, <[_]>::len);
        count("payloadDescriptors", units, DESCRIPTORS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_unusable_element_hides_no_other() {
        let body = json!([
            { "id": "e-1", "programID": "p", "objectType": "EVENT", "later": 1 },
            { "id": "e-2", "programID": 7 },
            { "programID": "p" },
            "nonsense",
        ]);
        let body = body.to_string();
        let read: Vec<Result<Event, Refused>> =
            elements(body.as_bytes()).unwrap().into_iter().map(read).collect();
        assert_eq!(read[0].as_ref().unwrap().id, "e-1");
        let ids = read[1..].iter().map(|read| read.as_ref().unwrap_err().id.clone());
        assert_eq!(ids.collect::<Vec<_>>(), [Some("e-2".to_owned()), None, None]);
        for wrong in [&b"<html>"[..], b"{}", b"", b"[", b"\xff"] {
            assert!(elements(wrong).is_err());
        }
    }

    #[test]
    fn targets_are_labels_or_values_of_a_kind() {
        let targets = json!(["group-1", { "type": "VEN_NAME", "values": ["site-a", 7] }]);
        let targets: Vec<Target> = serde_json::from_value(targets).unwrap();
        assert!(targets[0].is_one_of(&["x", "group-1"]) && targets[1].is_one_of(&["site-a"]));
        assert!(!targets.iter().any(|target| target.is_one_of(&["VEN_NAME"])));
    }

    #[test]
    fn more_than_the_limits_is_refused_with_the_limit() {
        let event = |more: Value| {
            let mut event = json!({ "id": "e", "programID": "p" });
            event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read::<Event>(event).unwrap().check()
        };
        assert_eq!(event(json!({})), Ok(()));
        let intervals: Vec<Value> =
            (0..101).map(|id| json!({ "id": id, "payloads": [] })).collect();
        let long = "x".repeat(TEXT_LEN_MAX + 1);
        let payload = json!([{ "id": 0, "payloads": [{ "type": long, "values": [] }] }]);
        let reports = json!([{ "payloadType": long }]);
        for (more, expected) in [
            (json!({ "intervals": intervals }), "101 intervals: at most 100 are accepted"),
            (json!({ "intervals": payload }), "a payload's type is longer than 128 characters"),
            (json!({ "reportDescriptors": reports }), "longer than 128 characters"),
            (json!({ "targets": vec!["t"; 101] }), "101 targets: at most 100"),
            (json!({ "programID": "a/b" }), "programID is not an id"),
        ] {
            let error = event(more).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
