//! GPU types as seen in windows: highest cap and clock, lowest power.
//!
//! Data sheets ([`crate::prior`]) complete it. Bounded in GPU types.

use wattle_common::observation::Observation;

use std::collections::BTreeMap;

use crate::model::cap::GpuSpec;
use crate::prior;

/// GPU types kept; a cluster has a handful.
pub const GPU_TYPES_MAX: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    cap_w_max: Option<f64>,
    clock_mhz_max: Option<f64>,
    power_w_min: Option<f64>,
    power_w_max: Option<f64>,
}

/// All GPU types seen.
#[derive(Clone, Debug, Default)]
pub struct GpuTypes {
    gpu_types: BTreeMap<String, Seen>,
    newest: Option<String>,
}

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

impl GpuTypes {
    /// Updates a GPU type with a window.
    pub fn see(&mut self, gpu_type: &str, window: &Observation) {
        if !self.gpu_types.contains_key(gpu_type) && self.gpu_types.len() >= GPU_TYPES_MAX {
            return;
        }
        let seen = self.gpu_types.entry(gpu_type.to_owned()).or_default();
        seen.cap_w_max = larger(seen.cap_w_max, window.cap_w);
        seen.clock_mhz_max =
            larger(larger(seen.clock_mhz_max, window.clock_mhz_max), window.clock_mhz_mean);
        seen.power_w_min = match (seen.power_w_min, window.gpu_power_w) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        seen.power_w_max = larger(seen.power_w_max, window.gpu_power_w);
        if self.newest.as_deref() != Some(gpu_type) {
            self.newest = Some(gpu_type.to_owned());
        }
    }

    /// Records a GPU type of which nothing was measured yet.
    pub fn restore(&mut self, gpu_type: &str) {
        if self.newest.is_none() {
            self.newest = Some(gpu_type.to_owned());
        }
    }

    /// The GPU type seen last.
    #[must_use]
    pub fn newest(&self) -> Option<&str> {
        self.newest.as_deref()
    }

    /// Specification of a GPU type.
    #[must_use]
    pub fn spec(&self, gpu_type: &str) -> GpuSpec {
        let seen = self.gpu_types.get(gpu_type).copied().unwrap_or_default();
        // Without any reported cap, the highest power indicates the form factor.
        let most = seen.cap_w_max.or(seen.power_w_max);
        let default = wattle_common::datasheet::default_cap(gpu_type, most);
        GpuSpec {
            cap_default_w: default.watts,
            cap_known: default.known,
            idle_w: wattle_common::datasheet::idle_w(default.watts, seen.power_w_min),
            clock_mhz_top: seen.clock_mhz_max,
            power_carried: gpu_type != prior::POWER_MEASURED_ON,
        }
    }
}
