//! Reads the catalog from TOML into the tables that the crate interpolates.
//!
//! All values are checked here, so queries cannot fail. Errors name the file, the entry and the
//! remedy. Figures measured on one GPU model only are carried over to the others.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::{Energy, Frequency, Power};

use crate::interference::{MildCurve, Sharing};
use crate::scaling::Scaling;
use crate::toml_format::{Caps, Clocks, File, GpuEntry, MeasuredEntry, SleepEntry, WorkloadEntry};
use crate::workload::{Response, Workload};
use crate::{Curve, GpuModel, Interference, NodeSleep, World};

/// Why a catalog is invalid.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// Invalid TOML, or a key that is missing, unknown or of the wrong type.
    #[error("{file}: invalid catalog file; correct the key below")]
    Syntax {
        /// The file.
        file: String,
        /// The TOML parser's error, with the line.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// An invalid value.
    #[error("{file}: {entry}: {problem}")]
    Entry {
        /// The file.
        file: String,
        /// The entry.
        entry: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// A required section is missing from all files.
    #[error("the catalog has {0}")]
    Incomplete(&'static str),
}

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

/// Location of an entry, for errors.
pub(crate) struct Location<'a> {
    file: &'a str,
    entry: String,
}

impl Location<'_> {
    pub(crate) fn wrong(&self, problem: impl Into<String>) -> CatalogError {
        let (file, entry) = (self.file.to_owned(), self.entry.clone());
        CatalogError::Entry { file, entry, problem: problem.into() }
    }
    pub(crate) fn check(&self, holds: bool, problem: &str) -> Result<(), CatalogError> {
        if holds { Ok(()) } else { Err(self.wrong(problem)) }
    }
}

pub(crate) fn read(files: &[(&str, &str)]) -> Result<World, CatalogError> {
    let mut parsed = Vec::new();
    for &(file, text) in files {
        let content: File = toml::from_str(text)
            .map_err(|e| CatalogError::Syntax { file: file.to_owned(), source: Box::new(e) })?;
        parsed.push((file, content));
    }
    let gpus = gpus(&parsed)?;
    let sharing = sharing(&parsed)?;
    let (strong, spread) = scalings(&parsed)?;
    let mut world = World {
        gpus,
        workloads: Vec::new(),
        by_id: BTreeMap::new(),
        by_model: BTreeMap::new(),
        sharing,
    };
    for (file, content) in &parsed {
        for entry in &content.workload {
            let location = Location { file, entry: format!("workload `{}`", entry.id) };
            let workload = workload(entry, &world.gpus, &strong, &spread, &location)?;
            let index = world.workloads.len();
            if world.by_id.insert(entry.id.as_str().to_owned(), index).is_some() {
                return Err(location.wrong("duplicate id; give each workload its own id"));
            }
            for name in &entry.trace_names {
                let name = crate::normalized(name);
                if world.by_model.insert(name.clone(), index).is_some() {
                    let problem =
                        format!("trace name `{name}` belongs to another workload too; keep one");
                    return Err(location.wrong(problem));
                }
            }
            world.workloads.push(workload);
        }
    }
    if world.gpus.is_empty() {
        return Err(CatalogError::Incomplete("no [[gpu]]; add gpus.toml"));
    }
    Ok(world)
}

fn gpus(files: &[(&str, File)]) -> Result<Vec<GpuModel>, CatalogError> {
    let mut gpus: Vec<GpuModel> = Vec::new();
    let mut entries: Vec<(GpuEntry, Location<'_>)> = Vec::new();
    for (file, content) in files {
        for entry in &content.gpu {
            let location = Location { file, entry: format!("gpu `{}`", entry.gpu_type) };
            entries.push((entry.clone(), location));
        }
        for entry in &content.derived_gpu {
            let location = Location { file, entry: format!("gpu `{}`", entry.gpu_type) };
            let from = entries.iter().map(|(from, _)| from).find(|f| f.gpu_type == entry.from);
            let from = from.ok_or_else(|| {
                location.wrong(format!("no gpu_type `{}` before it; add it", entry.from))
            })?;
            entries.push((crate::derived::entry(entry, from, &location)?, location));
        }
    }
    for (entry, location) in &entries {
        let gpu = gpu(entry, gpus.len(), location)?;
        location.check(
            gpus.iter().all(|other| other.gpu_type != gpu.gpu_type),
            "duplicate gpu_type; give each GPU its own",
        )?;
        gpus.push(gpu);
    }
    let mut families: BTreeMap<String, usize> = BTreeMap::new();
    for pair in files.iter().flat_map(|(_, content)| &content.pair) {
        let next = families.len();
        families.entry(pair.family.clone()).or_insert(next);
        let next = families.len();
        families.entry(pair.neighbour.clone()).or_insert(next);
    }
    let none = vec![vec![0.0; families.len()]; families.len()];
    for gpu in &mut gpus {
        gpu.families = families.clone();
        gpu.pairs = none.clone();
    }
    for (file, content) in files {
        for entry in &content.pair {
            let (family, neighbour) = (&entry.family, &entry.neighbour);
            let location = Location { file, entry: format!("pair `{family}` with `{neighbour}`") };
            location.check(entry.speed > 0.0 && entry.speed <= 1.0, "speed must be in (0, 1]")?;
            let Some(gpu) = gpus.iter_mut().find(|gpu| gpu.gpu_type == entry.gpu) else {
                return Err(location.wrong(format!("no [[gpu]] with gpu_type `{}`", entry.gpu)));
            };
            gpu.pairs[families[family]][families[neighbour]] = entry.speed;
        }
    }
    // GPU models without measured pairs use those of the first model that has some.
    if let Some(measured) = gpus.iter().find(|gpu| gpu.pairs != none).map(|gpu| gpu.pairs.clone()) {
        for gpu in gpus.iter_mut().filter(|gpu| gpu.pairs == none) {
            gpu.pairs = measured.clone();
        }
    }
    Ok(gpus)
}

fn gpu(entry: &GpuEntry, index: usize, location: &Location<'_>) -> Result<GpuModel, CatalogError> {
    wattle_common::id::check(&entry.gpu_type)
        .map_err(|e| location.wrong(format!("gpu_type: {e}")))?;
    let Caps { min, default, max } = entry.cap_w;
    location.check(min <= default && default <= max, "cap_w: need min <= default <= max")?;
    let idle = entry.idle_w.is_finite() && entry.idle_w > 0.0 && entry.idle_w < min as f64;
    location.check(idle, "idle_w must be above 0 and below the lowest cap")?;
    let Clocks { min: low, max: high, step } = entry.clock_mhz;
    location
        .check(low > 0 && low <= high && step > 0, "clock_mhz: need 0 < min <= max, step > 0")?;
    let scalars = [entry.active_w, entry.relative_speed];
    let positive = scalars.iter().all(|v| v.is_finite() && *v > 0.0) && entry.host_w >= 0.0;
    location.check(positive, "active_w, relative_speed and host_w must be positive numbers")?;
    location.check(entry.node_gpus > 0, "node_gpus must be at least 1")?;
    // Highest first, as in NVML; the top clock is included for every step.
    let clocks = (0..=(high - low) / step).map(|i| Frequency::from_mhz(high - i * step)).collect();
    Ok(GpuModel {
        gpu_type: entry.gpu_type.clone(),
        derived_from: entry.derived_from.clone(),
        nvml_name: entry.nvml_name.clone(),
        memory_mib: entry.memory_mib,
        idle: Power::from_w_f64(entry.idle_w),
        cap_default: Power::from_w(default),
        cap_min: Power::from_w(min),
        cap_max: Power::from_w(max),
        clocks,
        memory_clock: Frequency::from_mhz(entry.memory_clock_mhz),
        energy_counter: entry.energy_counter,
        locked_clocks: entry.locked_clocks,
        node_gpus: entry.node_gpus,
        source: entry.source.clone(),
        sleep: node_sleep(&entry.sleep, entry, location)?,
        host: Power::from_w_f64(entry.host_w),
        active_w: entry.active_w,
        relative_speed: entry.relative_speed,
        throttle: relative(&entry.throttle, "throttle", location)?,
        clock_speed: clock_speed(&entry.clock, location)?,
        clock_active: clock_active(&entry.clock, location)?,
        clock_of_active: Curve::through(
            &entry.clock.iter().map(|c| (c.2, f64::from(c.0))).collect::<Vec<_>>(),
        )
        .ok_or_else(|| location.wrong("clock: active power must increase with the clock"))?,
        index,
        families: BTreeMap::new(),
        pairs: Vec::new(),
    })
}

/// A curve that ends at 1.
fn relative(
    points: &[(f64, f64)],
    name: &str,
    location: &Location<'_>,
) -> Result<Curve, CatalogError> {
    let curve = Curve::through(points).filter(|c| (c.last().1 - 1.0).abs() < 1e-9);
    curve.ok_or_else(|| {
        location.wrong(format!("{name}: need points with increasing x that end at value 1"))
    })
}

fn clock_speed(clock: &[(u32, f64, f64)], location: &Location<'_>) -> Result<Curve, CatalogError> {
    let points: Vec<(f64, f64)> = clock.iter().map(|c| (f64::from(c.0), c.1)).collect();
    relative(&points, "clock", location)
}

fn clock_active(clock: &[(u32, f64, f64)], location: &Location<'_>) -> Result<Curve, CatalogError> {
    let points: Vec<(f64, f64)> = clock.iter().map(|c| (f64::from(c.0), c.2)).collect();
    relative(&points, "clock", location)
}

fn node_sleep(
    entry: &SleepEntry,
    gpu: &GpuEntry,
    location: &Location<'_>,
) -> Result<NodeSleep, CatalogError> {
    let SleepEntry { power_w, enter_s, wake_s, wake_j } = *entry;
    let seconds = |s: f64| (0.0..=86_400.0).contains(&s);
    let valid = power_w >= 0.0 && seconds(enter_s) && seconds(wake_s) && wake_j >= 0.0;
    location.check(
        valid && wake_j.is_finite(),
        "sleep: need power_w and wake_j of at least 0, enter_s and wake_s of 0 to 86,400",
    )?;
    let idle_w = gpu.host_w + gpu.idle_w * f64::from(gpu.node_gpus);
    location.check(
        power_w <= idle_w,
        "sleep: power_w must not exceed the power of the awake and idle node",
    )?;
    Ok(NodeSleep {
        power: Power::from_w_f64(power_w),
        enter: Duration::from_secs_f64(enter_s),
        wake: Duration::from_secs_f64(wake_s),
        wake_energy: Energy::from_j(wake_j.round() as u64),
    })
}

fn sharing(files: &[(&str, File)]) -> Result<Sharing, CatalogError> {
    let mut found = None;
    for (file, content) in files {
        if let Some(entry) = &content.sharing {
            let location = Location { file, entry: "[sharing]".to_owned() };
            location.check(found.is_none(), "defined more than once; keep one")?;
            let finite = entry.delay_per_neighbour >= 0.0 && entry.node_base_w >= 0.0;
            location.check(finite, "delay_per_neighbour and node_base_w must be at least 0")?;
            let mild = MildCurve::through(&entry.mild).ok_or_else(|| {
                location
                    .wrong("mild: need sums above 0 that increase, with speeds in (0, 1] that fall")
            })?;
            found = Some(Sharing {
                interference: Interference::default(),
                delay_per_neighbour: entry.delay_per_neighbour,
                mild,
            });
        }
    }
    found.ok_or(CatalogError::Incomplete("no [sharing]; add sharing.toml"))
}

type Strong = BTreeMap<String, Curve>;
type Spread = BTreeMap<String, Vec<(u32, Vec<(u32, f64)>)>>;

fn scalings(files: &[(&str, File)]) -> Result<(Strong, Spread), CatalogError> {
    let (mut strong, mut spread) = (Strong::new(), Spread::new());
    for (file, content) in files {
        for entry in &content.scaling {
            let location = Location { file, entry: format!("scaling `{}`", entry.name) };
            let complete = entry.gpus.len() == entry.speed.len()
                && entry.gpus.first() == Some(&1)
                && entry.speed.iter().all(|v| v.is_finite() && *v > 0.0);
            location.check(complete, "need one speed above 0 per GPU count, starting at 1 GPU")?;
            let points: Vec<(f64, f64)> = entry
                .gpus
                .iter()
                .zip(&entry.speed)
                .map(|(n, v)| (f64::from(*n).log2(), *v))
                .collect();
            let curve =
                Curve::through(&points).ok_or_else(|| location.wrong("gpus must increase"))?;
            strong.insert(entry.name.clone(), curve);
        }
        for entry in &content.spread {
            let location = Location { file, entry: format!("spread `{}`", entry.name) };
            let complete = entry.nodes.len() == entry.speed.len()
                && entry.speed.iter().all(|v| *v > 0.0 && *v <= 1.0);
            location.check(complete, "need one speed in (0, 1] per node count")?;
            let row = entry.nodes.iter().copied().zip(entry.speed.iter().copied()).collect();
            let rows = spread.entry(entry.name.clone()).or_default();
            rows.push((entry.gpus, row));
            rows.sort_by_key(|(gpus, _)| *gpus);
        }
    }
    Ok((strong, spread))
}

fn workload(
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
    Ok(Response {
        epoch_s,
        active_w,
        full_w,
        busy,
        memory_busy,
        core_bound,
        caps,
        clock,
        family,
        measured: true,
    })
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
        measured: false,
    }
}
