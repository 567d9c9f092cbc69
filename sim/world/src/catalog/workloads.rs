//! Workloads of the catalog: speed and power of each on every GPU model.

use super::{CatalogError, Location, Spread, Strong, clock_active, clock_speed};
use crate::scaling::Scaling;
use crate::toml_format::{MeasuredEntry, WorkloadEntry};
use crate::workload::{Response, Workload};
use crate::{Curve, GpuModel};

/// Memory utilisation per GPU utilisation, if not measured: EaCO's ResNet-50 and VGG-16 have 0.61
/// and 0.63 (arXiv 2412.08294, table 2).
const MEMORY_SHARE: f64 = 0.62;

/// A cap of at least this multiple of a job's uncapped mean power does not bind. In the Zeus V100
/// trace caps begin to slow a job at about 1.2 times its mean; differences above 1.5 are noise of
/// single measurements.
const NOT_BINDING: f64 = 1.5;

/// Replaces the values from index `from` on by their mean.
fn pool_from(mut values: Vec<f64>, from: usize) -> Vec<f64> {
    if let Some(rest) = values.get_mut(from..).filter(|rest| !rest.is_empty()) {
        let mean = rest.iter().sum::<f64>() / rest.len() as f64;
        rest.fill(mean);
    }
    values
}

/// Reads one workload.
pub(super) fn workload(
    entry: &WorkloadEntry,
    gpus: &[GpuModel],
    strong: &Strong,
    spread: &Spread,
    location: &Location<'_>,
) -> Result<Workload, CatalogError> {
    let counts = entry.gpus > 0 && entry.steps_per_epoch > 0 && entry.epochs > 0;
    location.check(counts, "gpus, steps_per_epoch and epochs must be at least 1")?;
    let waiting = entry.waiting_share.is_none_or(|share| (0.0..=1.0).contains(&share));
    location.check(waiting, "waiting_share must be a share, 0 to 1")?;
    location.check(!entry.measured.is_empty(), "has no [[workload.measured]]; add one")?;
    let scaling = Scaling {
        strong: strong
            .get(&entry.scaling)
            .ok_or_else(|| location.wrong(format!("no [[scaling]] named `{}`", entry.scaling)))?
            .clone(),
        spread: spread
            .get(&entry.spread)
            .ok_or_else(|| location.wrong(format!("no [[spread]] named `{}`", entry.spread)))?
            .clone(),
    };
    let mut measured: Vec<Option<Response>> = vec![None; gpus.len()];
    let mut first = None;
    for row in &entry.measured {
        let Some(gpu) = gpus.iter().find(|gpu| gpu.gpu_type == row.gpu) else {
            return Err(location.wrong(format!("no [[gpu]] with gpu_type `{}`", row.gpu)));
        };
        measured[gpu.index] = Some(response(row, entry.family.as_deref(), gpu, location)?);
        first.get_or_insert(gpu.index);
    }
    let from = first.expect("measured has at least one row, checked above");
    let known = measured[from].clone().expect("the row just filled in");
    let responses = measured
        .into_iter()
        .zip(gpus)
        .map(|(own, gpu)| own.unwrap_or_else(|| carried(&known, &gpus[from], gpu)))
        .collect();
    Ok(Workload {
        id: entry.id.clone(),
        model: entry.model.clone(),
        dataset: entry.dataset.clone(),
        batch_size: entry.batch_size,
        gpus: entry.gpus,
        steps_per_epoch: entry.steps_per_epoch,
        epochs: entry.epochs,
        memory_mib: entry.memory_mib,
        in_mix: entry.mix,
        source: entry.source.clone(),
        scaling,
        scaling_of_step: entry.scaling_of_step,
        waiting_share: entry.waiting_share,
        responses,
    })
}

/// Response from the measured rows on one GPU model.
fn response(
    row: &MeasuredEntry,
    family: Option<&str>,
    gpu: &GpuModel,
    location: &Location<'_>,
) -> Result<Response, CatalogError> {
    let n = row.epoch_s.len();
    let rows = n > 0
        && n == row.power_w.len()
        && (n == row.cap_w.len() || (n == 1 && row.cap_w.is_empty()));
    location
        .check(rows, "need one epoch_s and one power_w per cap_w (or one of each without cap_w)")?;
    let positive = row.epoch_s.iter().chain(&row.power_w).all(|v| v.is_finite() && *v > 0.0);
    location.check(positive, "epoch_s and power_w must be above 0")?;
    let shares = [row.busy, row.memory_busy, row.core_bound];
    let shares = shares.iter().flatten().all(|v| (0.0..=1.0).contains(v));
    location.check(shares, "busy, memory_busy and core_bound must be shares, 0 to 1")?;
    let clock = match &row.clock[..] {
        [] => None,
        points => Some((clock_speed(points, location)?, clock_active(points, location)?)),
    };
    let family = match family {
        Some(name) => Some(*gpu.families.get(name).ok_or_else(|| {
            location.wrong(format!("no [[pair]] has the family `{name}`; remove it"))
        })?),
        None => None,
    };
    let idle_w = gpu.idle.as_w();
    let active = |cap: Option<u64>, power: f64| {
        let power = cap.map_or(power, |cap| power.min(cap as f64));
        (power - idle_w).max(0.0)
    };
    let (mut epoch_s, mut active_w, mut caps) =
        (row.epoch_s[0], active(None, row.power_w[0]), None);
    if !row.cap_w.is_empty() {
        let watts: Vec<f64> = row.cap_w.iter().map(|cap| *cap as f64).collect();
        // Caps that do not bind are pooled: single measurements have 1 to 3 % noise.
        let not_binding = watts.partition_point(|cap| *cap < NOT_BINDING * row.power_w[n - 1]);
        let rates = pool_from(row.epoch_s.iter().map(|s| 1.0 / s).collect(), not_binding);
        let power_w = pool_from(row.power_w.clone(), not_binding);
        let rates = crate::curve::monotone(rates.into_iter());
        let rate = |c: f64| watts.iter().zip(&rates).map(|(w, r)| (*w, *r)).find(|(w, _)| *w >= c);
        let top = rate(gpu.cap_default.as_w()).map_or(rates[n - 1], |(_, r)| r);
        let speeds: Vec<(f64, f64)> =
            watts.iter().zip(&rates).map(|(w, r)| (*w, (r / top).min(1.0))).collect();
        let active_points: Vec<(f64, f64)> = row
            .cap_w
            .iter()
            .zip(&power_w)
            .map(|(cap, power)| (*cap as f64, active(Some(*cap), *power)))
            .collect();
        let curves = Curve::through(&speeds).zip(Curve::through(&active_points));
        let (speeds, actives) = curves.ok_or_else(|| location.wrong("cap_w must increase"))?;
        epoch_s = 1.0 / top;
        active_w = actives.at(gpu.cap_default.as_w());
        caps = Some((speeds, actives));
    }
    let busy = row.busy.unwrap_or_else(|| (active_w / gpu.active_w).clamp(0.01, 1.0));
    let by_caps = || {
        let (speeds, actives) = caps.as_ref()?;
        core_bound(gpu, speeds, actives, active_w)
    };
    let core_bound = row.core_bound.or_else(by_caps).unwrap_or(busy);
    let memory_busy = row.memory_busy.unwrap_or(MEMORY_SHARE * busy);
    let full_w = full_w(gpu, active_w);
    Ok(Response { epoch_s, active_w, full_w, busy, memory_busy, core_bound, caps, clock, family })
}

/// The core-bound share for which the GPU's general throttle law gives the speed measured at the
/// lowest cap; `None` if that cap does not bind.
fn core_bound(gpu: &GpuModel, speeds: &Curve, actives: &Curve, active_w: f64) -> Option<f64> {
    let left = actives.first().1 / active_w.max(1e-9);
    if left > 0.9 {
        return None;
    }
    let (own, general) = (1.0 / speeds.first().1 - 1.0, 1.0 / gpu.throttle.at(left) - 1.0);
    (general > 0.0).then(|| (own / general).clamp(0.0, 1.0))
}

/// Upper bound on the active power of a job with `active_w` in the measurement: that of a saturating
/// job, limited by the default cap.
fn full_w(gpu: &GpuModel, active_w: f64) -> f64 {
    gpu.active_w.max(active_w).min((gpu.cap_default.saturating_sub(gpu.idle)).as_w())
}

/// Response on a GPU model without measurements: GPU time scales with the relative speed of
/// compute-bound jobs, active power with that of a saturating job up to the default cap, and the cap
/// acts by the model's general law.
fn carried(known: &Response, from: &GpuModel, to: &GpuModel) -> Response {
    let on_gpu = known.busy * from.relative_speed / to.relative_speed;
    let time = 1.0 - known.busy + on_gpu;
    let range_w = to.cap_default.saturating_sub(to.idle).as_w();
    let active_w = (known.active_w * to.active_w / from.active_w).min(range_w);
    Response {
        epoch_s: known.epoch_s * time,
        active_w,
        full_w: full_w(to, active_w),
        busy: on_gpu / time,
        memory_busy: known.memory_busy / time,
        core_bound: known.core_bound,
        caps: None,
        clock: None,
        family: known.family,
    }
}
