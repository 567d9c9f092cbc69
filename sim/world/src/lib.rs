//! Ground truth of the simulation: speed and power of jobs on GPUs, from measured tables.
//!
//! The simulator and the simulated driver query this crate. Services that predict or decide must
//! not depend on it, directly or indirectly. Every figure is an entry of a TOML file in `catalog/`
//! with its source; a new GPU or workload is a new entry. docs/world.md states what is measured,
//! carried over from another GPU, or estimated.
//!
//! ```
//! use wattle_common::Power;
//! use wattle_world::{Setting, Tenant, World};
//!
//! let world = World::builtin();
//! let v100 = world.gpu("v100").expect("in the catalog");
//! let job = world.workload("resnet50-imagenet-b256").expect("in the catalog");
//! let tenant = Tenant { workload: job, gpus: 1, nodes: 1 };
//! let free = world.gpu_state(v100, Setting::default(), &[tenant]);
//! let capped = world.gpu_state(v100, Setting { cap: Some(Power::from_w(150)), ..Setting::default() }, &[tenant]);
//! assert!(capped.power <= Power::from_w(150) && free.power > capped.power);
//! assert!(capped.tenants[0].speed < free.tenants[0].speed);
//! ```

mod catalog;
mod curve;
mod derived;
pub mod fit;
mod gpu;
mod gpu_state;
mod interference;
mod scaling;
mod sharing;
mod toml_format;
mod workload;

use std::collections::BTreeMap;

use wattle_common::Power;

use interference::Sharing;

pub use catalog::CatalogError;
pub use curve::Curve;
pub use derived::SPEED_ERROR;
pub use gpu::{GpuModel, NodeSleep};
pub use gpu_state::{GpuState, Setting, Tenant, TenantState};
pub use interference::Interference;
pub use sharing::TENANTS_MAX;
pub use workload::Workload;

/// The catalog: GPU models, workloads and their interaction.
#[derive(Clone, Debug)]
pub struct World {
    gpus: Vec<GpuModel>,
    workloads: Vec<Workload>,
    by_id: BTreeMap<String, usize>,
    by_model: BTreeMap<String, usize>,
    sharing: Sharing,
}

/// Built-in files: name and text.
const BUILTIN: [(&str, &str); 9] = [
    ("gpus.toml", include_str!("../catalog/gpus.toml")),
    ("gpus-derived.toml", include_str!("../catalog/gpus-derived.toml")),
    ("sharing.toml", include_str!("../catalog/sharing.toml")),
    ("pairs.toml", include_str!("../catalog/pairs.toml")),
    ("scaling.toml", include_str!("../catalog/scaling.toml")),
    ("eaco.toml", include_str!("../catalog/eaco.toml")),
    ("zeus.toml", include_str!("../catalog/zeus.toml")),
    ("eaco-compute-bound.toml", include_str!("../catalog/eaco-compute-bound.toml")),
    ("llm.toml", include_str!("../catalog/llm.toml")),
];

impl World {
    /// The built-in catalog.
    ///
    /// # Panics
    /// Never: tests cover it.
    #[must_use]
    pub fn builtin() -> Self {
        Self::from_toml(&BUILTIN).expect("the built-in catalog is valid")
    }

    /// Names and texts of the built-in files, for use with additional files.
    #[must_use]
    pub fn builtin_files() -> &'static [(&'static str, &'static str)] {
        &BUILTIN
    }

    /// Reads a catalog from files, each given as name and text. Any file may hold any entry.
    ///
    /// # Errors
    /// [`CatalogError`] names the file, the entry and the remedy.
    pub fn from_toml(files: &[(&str, &str)]) -> Result<Self, CatalogError> {
        catalog::read(files)
    }

    /// The same catalog with another interference model; the default is [`Interference::Pairs`].
    #[must_use]
    pub fn with_interference(mut self, interference: Interference) -> Self {
        self.sharing.interference = interference;
        self
    }

    /// The interference model.
    #[must_use]
    pub fn interference(&self) -> Interference {
        self.sharing.interference
    }

    /// The GPU model of a type, e.g. `v100`.
    #[must_use]
    pub fn gpu(&self, gpu_type: &str) -> Option<&GpuModel> {
        self.gpus.iter().find(|gpu| gpu.gpu_type == gpu_type)
    }

    /// The GPU model of a GPU with this product name, as NVML or Slurm reports it
    /// (`nvidia_a100-sxm4-80gb`): of its form factor or memory size if the catalog has that, else of
    /// its type.
    #[must_use]
    pub fn gpu_named(&self, name: &str) -> Option<&GpuModel> {
        let exact = self.gpu(name);
        let variants = || wattle_common::gpu_type::variants_of(name);
        exact.or_else(|| variants().iter().find_map(|variant| self.gpu(variant)))
    }

    /// All GPU models, in catalog order.
    pub fn gpus(&self) -> impl Iterator<Item = &GpuModel> {
        self.gpus.iter()
    }

    /// The workload with this id.
    #[must_use]
    pub fn workload(&self, id: &str) -> Option<&Workload> {
        self.by_id.get(id).map(|&index| &self.workloads[index])
    }

    /// All workloads, in catalog order.
    pub fn workloads(&self) -> impl Iterator<Item = &Workload> {
        self.workloads.iter()
    }

    /// The workload for a model name of a trace; `None` if the catalog has no equivalent.
    ///
    /// Case, `-`, `_` and spaces are ignored: `ResNet-50` equals `resnet50`. A batch size, as in
    /// `ResNet-50 (batch size 64)`, must match.
    #[must_use]
    pub fn workload_for_model(&self, name: &str) -> Option<&Workload> {
        let (name, batch) = match name.split_once('(') {
            Some((name, rest)) => (name, rest.trim_end_matches(')').rsplit(' ').next()),
            None => (name, None),
        };
        let default = &self.workloads[*self.by_model.get(&normalized(name))?];
        let Some(batch) = batch else { return Some(default) };
        let batch: u32 = batch.parse().ok()?;
        self.workloads.iter().find(|other| {
            (&other.model, &other.dataset) == (&default.model, &default.dataset)
                && other.batch_size == batch
                && other.gpus == default.gpus
        })
    }

    /// The mix of workloads for jobs without a known workload; each fits 16 GB.
    pub fn mix(&self) -> impl Iterator<Item = &Workload> {
        self.workloads.iter().filter(|workload| workload.in_mix)
    }

    /// State of one GPU with these tenants.
    #[must_use]
    pub fn gpu_state(&self, gpu: &GpuModel, setting: Setting, tenants: &[Tenant<'_>]) -> GpuState {
        gpu_state::state(gpu, setting, tenants, &self.sharing)
    }

    /// Extra time per co-tenant, relative to an exclusive step, if the pair was not measured.
    #[must_use]
    pub fn delay_per_neighbour(&self) -> f64 {
        self.sharing.delay_per_neighbour
    }

    /// Whether the tenants fit into device memory together.
    #[must_use]
    pub fn fits(&self, gpu: &GpuModel, tenants: &[Tenant<'_>]) -> bool {
        tenants.iter().map(|tenant| tenant.workload.memory_mib).sum::<u64>() <= gpu.memory_mib
    }

    /// Constant power of a node without its GPUs, for the usual number of GPUs.
    #[must_use]
    pub fn host_power(&self, gpu: &GpuModel) -> Power {
        gpu.host
    }

    /// Constant power of a node without its GPUs, for a node with `gpus` GPUs.
    ///
    /// Assumption, not measured: half is independent of the number of GPUs (board, memory, fans),
    /// half is proportional to it. The usual number gives [`World::host_power`].
    #[must_use]
    pub fn host_power_of(&self, gpu: &GpuModel, gpus: u32) -> Power {
        gpu.host.scale(0.5 + 0.5 * f64::from(gpus) / f64::from(gpu.node_gpus.max(1)))
    }
}

/// A model name in lower case with letters and digits only.
fn normalized(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}
