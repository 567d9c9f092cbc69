//! Response surfaces: proposed by predictors, stored in the bucket `surfaces`.

use super::{
    DATE_TOLERANCE, GPU_POWER_W_MAX, GPUS_MAX, MEMORY_MIB_MAX, NEIGHBOURS_MAX, OutOfBounds,
    at_most, invalid, not_ahead,
};
use crate::id;
use crate::messages::surface::GPU_TYPES_MAX;
use crate::messages::{Estimate, Surface, SurfacePoint};
use crate::time::Timestamp;
use crate::units::{Frequency, Power};

/// Most points of one GPU type; the shipped predictors publish 256.
const POINTS_MAX: usize = 4_096;
/// Longest `basis`, bytes.
const BASIS_LEN_MAX: usize = 1_000;
/// Largest end of an interval of the step rate, steps per second: intervals of a guess are wide.
const RATE_MAX: f64 = 1e9;
/// Largest speed relative to the exclusive default.
const RELATIVE_SPEED_MAX: f64 = 100.0;
/// Smallest expected value: a step of 30 years, or a nanowatt. Quotients of accepted values stay finite.
const MEAN_MIN: f64 = 1e-9;
/// Largest clock, MHz: several times that of any GPU on the market.
const CLOCK_MHZ_MAX: u32 = 20_000;

/// Checks the numbers of a surface and of its surfaces on other GPU types.
///
/// # Errors
/// The first field outside its limits.
pub fn check_surface(surface: &Surface, now: Timestamp) -> Result<(), OutOfBounds> {
    at_most("number of other_gpu_types", surface.other_gpu_types.len(), GPU_TYPES_MAX - 1)?;
    for other in &surface.other_gpu_types {
        if !other.other_gpu_types.is_empty() {
            let expected = "no surfaces of other GPU types within one";
            return Err(invalid("other_gpu_types", &other.gpu_type, expected));
        }
        check_one_type(other, now)?;
    }
    check_one_type(surface, now)
}

/// Checks the numbers of a surface, without those on other GPU types.
///
/// # Errors
/// The first field outside its limits.
pub fn check_one_type(surface: &Surface, now: Timestamp) -> Result<(), OutOfBounds> {
    not_ahead("at_us", surface.at_us, now, DATE_TOLERANCE)?;
    if id::check(&surface.gpu_type).is_err() {
        let given = format_args!("a text of {} bytes", surface.gpu_type.len());
        return Err(invalid("gpu_type", given, "a name of letters, digits, - and _"));
    }
    let basis = surface.basis.as_ref().map_or(0, String::len);
    at_most("length of basis", basis, BASIS_LEN_MAX)?;
    for (field, percent) in [
        ("utilization_gpu_percent", surface.utilization_gpu_percent),
        ("utilization_memory_percent", surface.utilization_memory_percent),
    ] {
        share(field, percent.unwrap_or(0.0), 0.0, 100.0)?;
    }
    at_most("memory_mib_max", surface.memory_mib_max.unwrap_or(0), MEMORY_MIB_MAX)?;
    at_most("number of points", surface.points.len(), POINTS_MAX)?;
    surface.points.iter().try_for_each(check_point)
}

fn check_point(point: &SurfacePoint) -> Result<(), OutOfBounds> {
    check_shape(point.gpus, point.nodes)?;
    check_setting(point.cap_mw, point.clock_mhz_max)?;
    at_most("number of neighbours", point.neighbours.len(), NEIGHBOURS_MAX)?;
    if !point.neighbours.is_sorted() {
        return Err(invalid("neighbours", "unsorted", "sorted"));
    }
    if let Some(rate) = point.steps_per_s {
        check_estimate("steps_per_s", rate, RATE_MAX)?;
    }
    check_estimate("relative_speed", point.relative_speed, RELATIVE_SPEED_MAX)?;
    check_estimate("gpu_power_w", point.gpu_power_w, GPU_POWER_W_MAX as f64)
}

fn check_shape(gpus: u32, nodes: u32) -> Result<(), OutOfBounds> {
    if (1..=GPUS_MAX).contains(&gpus) && (1..=gpus).contains(&nodes) {
        return Ok(());
    }
    let expected = format!("1 to {GPUS_MAX} GPUs on at most as many nodes");
    Err(invalid("gpus and nodes", format_args!("{gpus} on {nodes} nodes"), expected))
}

fn check_setting(cap: Option<Power>, clock: Option<Frequency>) -> Result<(), OutOfBounds> {
    let caps = Power::from_mw(1)..=Power::from_w(GPU_POWER_W_MAX);
    if let Some(cap) = cap.filter(|cap| !caps.contains(cap)) {
        let expected = format_args!("above 0 to {GPU_POWER_W_MAX} W; omit it for the default");
        return Err(invalid("cap_mw", cap, expected));
    }
    match clock.filter(|clock| !(1..=CLOCK_MHZ_MAX).contains(&clock.as_mhz())) {
        Some(clock) => {
            let expected = format_args!("1 to {CLOCK_MHZ_MAX} MHz; omit it for the default");
            Err(invalid("clock_mhz_max", clock, expected))
        }
        None => Ok(()),
    }
}

fn check_estimate(field: &'static str, estimate: Estimate, max: f64) -> Result<(), OutOfBounds> {
    let Estimate { mean, low, high } = estimate;
    // False for NaN.
    if 0.0 <= low && low <= mean && MEAN_MIN <= mean && mean <= high && high <= max {
        return Ok(());
    }
    let expected = format!("low, mean and high in order, from 0 to {max}, the mean above 0");
    Err(invalid(field, format_args!("{low}, {mean}, {high}"), expected))
}

fn share(field: &'static str, value: f64, min: f64, max: f64) -> Result<(), OutOfBounds> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(invalid(field, value, format_args!("{min} to {max}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{JobId, PredictorId};

    const NOW: Timestamp = Timestamp::from_s(1_000_000_000);

    fn good() -> Surface {
        let estimate = |mean: f64| Estimate { mean, low: 0.9 * mean, high: 1.1 * mean };
        Surface {
            job: JobId::new("a").unwrap(),
            admission: None,
            predictor: PredictorId::new("physical").unwrap(),
            at_us: NOW,
            gpu_type: "v100".to_owned(),
            windows: 3,
            basis: None,
            class: None,
            utilization_gpu_percent: Some(97.0),
            utilization_memory_percent: None,
            memory_mib_max: Some(12_000),
            points: vec![SurfacePoint {
                gpus: 2,
                nodes: 1,
                cap_mw: Some(Power::from_w(150)),
                clock_mhz_max: None,
                global_batch: None,
                neighbours: vec![],
                steps_per_s: Some(estimate(7.0)),
                relative_speed: estimate(0.8),
                gpu_power_w: estimate(140.0),
            }],
            other_gpu_types: vec![],
        }
    }

    #[test]
    fn numbers_of_surfaces_are_limited() {
        assert_eq!(check_surface(&good(), NOW), Ok(()));
        let field = |change: &dyn Fn(&mut Surface)| {
            let mut changed = good();
            change(&mut changed);
            let nested = Surface { other_gpu_types: vec![changed.clone()], ..good() };
            let (own, nested) = (check_surface(&changed, NOW), check_surface(&nested, NOW));
            assert_eq!(own.is_err(), nested.is_err(), "{nested:?}");
            own.err().map(|error| error.field)
        };
        assert_eq!(field(&|s| s.at_us = Timestamp::FOREVER), Some("at_us"));
        assert_eq!(field(&|s| s.gpu_type = "a GPU".to_owned()), Some("gpu_type"));
        let many = |s: &mut Surface| s.points = vec![s.points[0].clone(); POINTS_MAX + 1];
        assert_eq!(field(&many), Some("number of points"));
        assert_eq!(field(&|s| s.memory_mib_max = Some(u64::MAX)), Some("memory_mib_max"));
        assert_eq!(field(&|s| s.points[0].nodes = 3), Some("gpus and nodes"));
        assert_eq!(field(&|s| s.points[0].cap_mw = Some(Power::ZERO)), Some("cap_mw"));
        for wrong in [0.0, -1.0, 1e-300, 1e300, f64::NAN, f64::INFINITY] {
            let speed = |s: &mut Surface| s.points[0].relative_speed.mean = wrong;
            assert_eq!(field(&speed), Some("relative_speed"), "{wrong}");
        }
    }
}
