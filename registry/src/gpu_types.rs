//! Default cap and top clock of each GPU type, from data sheets and windows.

use std::collections::BTreeMap;

use wattle_common::datasheet;
use wattle_common::messages::surface::GPU_TYPES_MAX;
use wattle_common::observation::{Observation, Setting};

/// A cap within this share of the default counts as the default.
const DEFAULT_CAP_SHARE: f64 = 0.99;

/// Known properties of a GPU type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GpuType {
    /// Default cap, watts.
    pub(crate) cap_default_w: f64,
    /// Whether the default cap is known; otherwise it is a guess.
    pub(crate) cap_known: bool,
    /// Idle power, watts.
    pub(crate) idle_w: f64,
    /// Highest clock seen, MHz.
    clock_mhz_top: Option<f64>,
}

impl GpuType {
    /// Whether `setting` restricts a GPU no more than its default does.
    pub(crate) fn is_default(&self, setting: Setting) -> bool {
        let locked = setting
            .clock_mhz_max
            .is_some_and(|clock| self.clock_mhz_top.is_none_or(|top| clock < top));
        !locked && setting.cap_w.is_none_or(|cap| cap >= DEFAULT_CAP_SHARE * self.cap_default_w)
    }
}

/// Extremes seen in the windows of a GPU type.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    cap_w_max: Option<f64>,
    clock_mhz_max: Option<f64>,
    power_w_min: Option<f64>,
    power_w_max: Option<f64>,
}

/// The GPU types of the cluster, at most [`GPU_TYPES_MAX`].
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuTypes {
    seen: BTreeMap<String, Seen>,
    newest: Option<String>,
}

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.map_or(b, |a| Some(b.map_or(a, |b| a.max(b))))
}

fn smaller(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.map_or(b, |a| Some(b.map_or(a, |b| a.min(b))))
}

impl GpuTypes {
    /// Adds a type that the cluster has.
    pub(crate) fn add(&mut self, gpu_type: &str) {
        if self.seen.contains_key(gpu_type) || self.seen.len() >= GPU_TYPES_MAX {
            return;
        }
        self.seen.insert(gpu_type.to_owned(), Seen::default());
        if self.newest.is_none() {
            self.newest = Some(gpu_type.to_owned());
        }
    }

    /// Updates a type with a window on it.
    pub(crate) fn update(&mut self, gpu_type: &str, window: &Observation) {
        self.add(gpu_type);
        let Some(seen) = self.seen.get_mut(gpu_type) else { return };
        let clock = larger(window.clock_mhz_max, window.clock_mhz_mean);
        seen.cap_w_max = larger(seen.cap_w_max, window.cap_w);
        seen.clock_mhz_max = larger(seen.clock_mhz_max, clock);
        seen.power_w_min = smaller(seen.power_w_min, window.gpu_power_w);
        seen.power_w_max = larger(seen.power_w_max, window.gpu_power_w);
        if self.newest.as_deref() != Some(gpu_type) {
            self.newest = Some(gpu_type.to_owned());
        }
    }

    /// The type of the last window.
    pub(crate) fn newest(&self) -> Option<&str> {
        self.newest.as_deref()
    }

    /// Every type, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.seen.keys().map(String::as_str)
    }

    /// The known properties of a type.
    pub(crate) fn get(&self, gpu_type: &str) -> GpuType {
        let seen = self.seen.get(gpu_type).copied().unwrap_or_default();
        // Without a cap reading, the highest power shows the form factor.
        let cap = datasheet::default_cap(gpu_type, seen.cap_w_max.or(seen.power_w_max));
        GpuType {
            cap_default_w: cap.watts,
            cap_known: cap.known,
            idle_w: datasheet::idle_w(cap.watts, seen.power_w_min),
            clock_mhz_top: seen.clock_mhz_max,
        }
    }
}
