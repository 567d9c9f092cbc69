//! GPU models derived from another one by data-sheet ratios.
//!
//! The response of a type to caps and clocks is that of the type it is derived from: the same speed at
//! the same share of active power (power above idle at the default cap), and at the same share of the
//! top clock. Idle power is the same share of the default cap, and the active power of a saturating job
//! the same share of the range between idle power and default cap. Host and sleep of the node are
//! those of the other type.
//!
//! Speed relative to other types, where no measurement is given, scales with the geometric mean of the
//! ratios of tensor throughput and memory bandwidth: training is bound by either. Against measured
//! speeds this rule is 3 % too high from A100 to H100 (MPT), 5 % from V100 to A40, 36 % too low from
//! V100 to P100, and 1.9 times too high from V100 to A100 (ResNet-50).
//!
//! [`SPEED_ERROR`] bounds the error of the first rule by the measured types: the largest difference
//! between any two of their curves. A test repeats the comparison.

use crate::CatalogError;
use crate::catalog::Location;
use crate::toml_format::{Caps, Clocks, DerivedEntry, GpuEntry, SleepEntry};

/// Largest relative error of the speed under a cap or clock of a derived type, by the share of active
/// power that remains: between any two measured types the speeds differ at most this much at this
/// share or above.
pub const SPEED_ERROR: [(f64, f64); 3] = [(0.5, 0.29), (0.7, 0.05), (0.8, 0.04)];

/// The entry of a derived type.
pub(crate) fn entry(
    derived: &DerivedEntry,
    from: &GpuEntry,
    location: &Location<'_>,
) -> Result<GpuEntry, CatalogError> {
    let positive = |v: f64| v.is_finite() && v > 0.0;
    let ratios =
        [(derived.peak_tflops, from.peak_tflops), (derived.bandwidth_gbs, from.bandwidth_gbs)];
    let speed = match (derived.relative_speed, ratios) {
        (Some(speed), _) => speed,
        (None, [(own_peak, Some(peak)), (own_bandwidth, Some(bandwidth))]) => {
            let ratio = own_peak / peak * own_bandwidth / bandwidth;
            location.check(positive(ratio), "peak_tflops and bandwidth_gbs must be above 0")?;
            from.relative_speed * ratio.sqrt()
        }
        (None, _) => {
            let name = &from.gpu_type;
            return Err(location.wrong(format!(
                "give relative_speed, or peak_tflops and bandwidth_gbs of `{name}`"
            )));
        }
    };
    let cap = |entry: &Caps| entry.default as f64;
    let idle_w = derived.idle_w.unwrap_or(from.idle_w / cap(&from.cap_w) * cap(&derived.cap_w));
    let active = from.active_w / (cap(&from.cap_w) - from.idle_w);
    let top = f64::from(derived.clock_max_mhz) / f64::from(from.clock_mhz.max);
    let clock_mhz =
        Clocks { min: from.clock_mhz.min, max: derived.clock_max_mhz, step: from.clock_mhz.step };
    let clock = from
        .clock
        .iter()
        .map(|&(mhz, speed, active)| ((f64::from(mhz) * top).round() as u32, speed, active));
    let node_w = from.host_w + idle_w * f64::from(from.node_gpus);
    Ok(GpuEntry {
        gpu_type: derived.gpu_type.clone(),
        derived_from: Some(from.gpu_type.clone()),
        nvml_name: derived.nvml_name.clone(),
        memory_mib: derived.memory_mib,
        peak_tflops: Some(derived.peak_tflops),
        bandwidth_gbs: Some(derived.bandwidth_gbs),
        idle_w,
        cap_w: derived.cap_w,
        clock_mhz,
        memory_clock_mhz: from.memory_clock_mhz,
        energy_counter: true,
        locked_clocks: true,
        active_w: active * (cap(&derived.cap_w) - idle_w),
        relative_speed: speed,
        node_gpus: from.node_gpus,
        host_w: from.host_w,
        sleep: SleepEntry { wake_j: from.sleep.wake_s * node_w, ..from.sleep },
        throttle: from.throttle.clone(),
        clock: clock.collect(),
        source: derived.source.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Curve, GpuModel, World};

    fn measured(world: &World) -> Vec<&GpuModel> {
        world.gpus().filter(|gpu| gpu.derived_from.is_none()).collect()
    }

    /// Largest relative difference of two types' curves at shares from `from` up to 1.
    fn largest(gpus: &[&GpuModel], from: f64, speed: impl Fn(&GpuModel, f64) -> f64) -> f64 {
        let shares = (0..=50).map(|i| from + (1.0 - from) * f64::from(i) / 50.0);
        let mut largest = 0.0_f64;
        for x in shares {
            let speeds: Vec<f64> = gpus.iter().map(|gpu| speed(gpu, x)).collect();
            let (low, high) =
                speeds.iter().fold((1.0_f64, 0.0_f64), |(l, h), &s| (l.min(s), h.max(s)));
            largest = largest.max(high / low - 1.0);
        }
        largest
    }

    /// The stated error covers every pair of measured types.
    #[test]
    fn the_stated_error_is_the_largest_between_measured_types() {
        let world = World::builtin();
        let gpus = measured(&world);
        assert_eq!(
            gpus.iter().map(|gpu| gpu.gpu_type.as_str()).collect::<Vec<_>>(),
            ["v100", "p100", "a100", "a40", "rtx6000"]
        );
        for (share, stated) in SPEED_ERROR {
            let cap = largest(&gpus, share, |gpu, x| gpu.throttle.at(x));
            let of_power = |gpu: &GpuModel, x: f64| {
                let curve: &Curve = &gpu.clock_of_active;
                gpu.clock_speed.at(curve.at(x))
            };
            let clock = largest(&gpus, share, of_power);
            assert!(cap.max(clock) <= stated, "{share}: {cap} {clock}");
            assert!(cap.max(clock) > stated - 0.02, "{share}: {cap} {clock}");
        }
    }
}
