//! Every message compared with its golden file: published messages must remain readable.
//!
//! Each test value is encoded and compared with the file, and the file is decoded and compared with
//! the value. `UPDATE_GOLDEN=1` writes missing files; it never overwrites one.

mod budgets;
mod events;
mod jobs;
mod measurements;
mod orders;
mod predictions;
mod reports;

use std::fmt::Debug;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::codec::{decode_json, decode_telemetry, encode_telemetry};
use wattle_common::comparison::ComparedEnergy;
use wattle_common::event::*;
use wattle_common::feeders::{Connection, Feeder};
use wattle_common::id::FeederId;
use wattle_common::id::ProjectId;
use wattle_common::id::{PredictorId, SubmissionId, SwitchId, UserId};
use wattle_common::job::{
    Flexibility, GpuRequest, GpuSetting, JobPhase, JobSpec, NodeNeeds, NodeShare, Placement,
    SiteJob,
};
use wattle_common::messages::*;
use wattle_common::subject::{Rank, Requester};
use wattle_common::{
    AdmissionId, Budget, Carbon, CarbonIntensity, Energy, Frequency, JobId, NodeId, Power,
    Timestamp, WorkloadId,
};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1").join(name)
}

fn read_or_write(name: &str, fresh: &[u8]) -> Vec<u8> {
    let path = path(name);
    if !path.exists() && std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, fresh).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|e| {
        panic!("{}: {e}; run with UPDATE_GOLDEN=1 to write a new message's file", path.display())
    })
}

#[track_caller]
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, value: &T) {
    let mut fresh = serde_json::to_vec_pretty(value).unwrap();
    fresh.push(b'\n');
    let golden = read_or_write(&format!("{name}.json"), &fresh);
    let decoded: T = decode_json(&golden).unwrap();
    assert_eq!(&decoded, value, "{name}.json decodes to another value");
    let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
    let fresh: serde_json::Value = serde_json::from_slice(&fresh).unwrap();
    assert_subset(name, &golden, &fresh);
}

/// A file of an earlier version, with fields that messages no longer have: readers ignore them.
#[track_caller]
fn check_read<T: DeserializeOwned + PartialEq + Debug>(name: &str, value: &T) {
    let golden = std::fs::read(path(&format!("{name}.json"))).unwrap();
    assert_eq!(&decode_json::<T>(&golden).unwrap(), value, "{name}.json decodes to another value");
}

/// Every field of the golden file must be present and equal; new optional fields are allowed.
fn assert_subset(at: &str, golden: &serde_json::Value, fresh: &serde_json::Value) {
    match (golden, fresh) {
        (serde_json::Value::Object(golden), serde_json::Value::Object(fresh)) => {
            for (key, value) in golden {
                let at = format!("{at}.{key}");
                assert_subset(
                    &at,
                    value,
                    fresh.get(key).unwrap_or_else(|| panic!("{at} is missing")),
                );
            }
        }
        (serde_json::Value::Array(golden), serde_json::Value::Array(fresh)) => {
            assert_eq!(golden.len(), fresh.len(), "{at}");
            for (i, (golden, fresh)) in golden.iter().zip(fresh).enumerate() {
                assert_subset(&format!("{at}[{i}]"), golden, fresh);
            }
        }
        _ => assert_eq!(golden, fresh, "{at}"),
    }
}

fn job(text: &str) -> JobId {
    JobId::new(text).unwrap()
}
fn admission() -> Option<AdmissionId> {
    Some(AdmissionId::accepted(at(0), 7))
}
fn node() -> NodeId {
    NodeId::new("n0").unwrap()
}
fn workload() -> WorkloadId {
    WorkloadId::new("resnet50").unwrap()
}
fn at(seconds: u64) -> Timestamp {
    Timestamp::from_s(1_700_000_000 + seconds)
}
fn share() -> NodeShare {
    NodeShare { node: node(), gpus: vec![0, 1] }
}
