use std::sync::Arc;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuRequest;
use wattle_testkit as testkit;

use super::*;

