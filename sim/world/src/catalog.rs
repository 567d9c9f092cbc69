//! Reads the catalog from TOML into the tables that the crate interpolates.
//!
//! All values are checked here, so queries cannot fail. Errors name the file, the entry and the
//! remedy. Figures measured on one GPU model only are carried over to the others.

mod workloads;

use std::collections::BTreeMap;

use wattle_common::{Energy, Frequency, Power};

use crate::interference::{MildCurve, Sharing};
use crate::toml_format::{Caps, Clocks, File, GpuEntry, SleepEntry};
use crate::{Curve, GpuModel, Interference, NodeSleep, World};
use wattle_common::time::span_s;

use workloads::workload;

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
        enter: span_s(enter_s),
        wake: span_s(wake_s),
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
