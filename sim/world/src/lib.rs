//! What hardware would do: measured tables and how they are interpolated.
//!
//! The world is the judge: the simulator asks it how fast jobs run and what they draw, and the
//! simulated driver shows what it says. So nothing that predicts or decides may reach this crate.
//! It is data first: every figure lies in a TOML file of the catalog with its source, and a new
//! GPU or workload is a new entry. What is measured, what is carried from one card to another and
//! what is estimated is told in docs/world.md.
//!
//! ```
//! use wattle_common::Power;
//! use wattle_world::{Setting, Tenant, World};
//!
//! let world = World::builtin();
//! let v100 = world.gpu("v100").expect("in the catalog");
//! let job = world.workload("resnet50-imagenet-b256").expect("in the catalog");
//! let tenant = Tenant { workload: job, gpus: 1, nodes: 1 };
//! let free = world.card(v100, Setting::default(), &[tenant]);
//! let capped = world.card(v100, Setting { cap: Some(Power::from_w(150)), ..Setting::default() }, &[tenant]);
//! assert!(capped.power <= Power::from_w(150) && free.power > capped.power);
//! assert!(capped.tenants[0].speed < free.tenants[0].speed);
//! ```

mod card;
mod catalog;
mod curve;
mod entry;
pub mod fit;
mod gpu;
mod interference;
mod scaling;
mod sharing;
mod workload;

use std::collections::BTreeMap;

use wattle_common::Power;

use interference::Sharing;

pub use card::{CardState, Setting, Tenant, TenantState};
pub use catalog::CatalogError;
pub use curve::Curve;
pub use gpu::{GpuModel, NodeSleep};
pub use interference::Interference;
pub use sharing::TENANTS_MAX;
pub use workload::Workload;

/// GPU models, workloads, and how they meet.
#[derive(Clone, Debug)]
pub struct World {
    gpus: Vec<GpuModel>,
    workloads: Vec<Workload>,
    by_id: BTreeMap<String, usize>,
    by_model: BTreeMap<String, usize>,
    sharing: Sharing,
}

/// The files compiled in: name and text.
const BUILTIN: [(&str, &str); 7] = [
    ("gpus.toml", include_str!("../catalog/gpus.toml")),
    ("sharing.toml", include_str!("../catalog/sharing.toml")),
    ("pairs.toml", include_str!("../catalog/pairs.toml")),
    ("scaling.toml", include_str!("../catalog/scaling.toml")),
    ("eaco.toml", include_str!("../catalog/eaco.toml")),
    ("zeus.toml", include_str!("../catalog/zeus.toml")),
    ("eaco-busier.toml", include_str!("../catalog/eaco-busier.toml")),
];

impl World {
    /// The catalog that is compiled in.
    ///
    /// # Panics
    /// Never: a test reads it.
    #[must_use]
    pub fn builtin() -> Self {
        Self::from_toml(&BUILTIN).expect("the built-in catalog is read by a test")
    }

    /// Names and texts of the catalog that is compiled in, to add files of one's own to.
    #[must_use]
    pub fn builtin_files() -> &'static [(&'static str, &'static str)] {
        &BUILTIN
    }

    /// A catalog from files, each as its name and text. Entries of any kind may stand in any file.
    ///
    /// # Errors
    /// [`CatalogError`] names the file, the entry and the remedy.
    pub fn from_toml(files: &[(&str, &str)]) -> Result<Self, CatalogError> {
        catalog::read(files)
    }

    /// The same world with neighbours as this one of the two has them; a new world has
    /// [`Interference::Pairs`].
    #[must_use]
    pub fn with_interference(mut self, interference: Interference) -> Self {
        self.sharing.interference = interference;
        self
    }

    /// How jobs that share a card slow each other here.
    #[must_use]
    pub fn interference(&self) -> Interference {
        self.sharing.interference
    }

    /// The GPU model of this kind, as in `v100`.
    #[must_use]
    pub fn gpu(&self, kind: &str) -> Option<&GpuModel> {
        self.gpus.iter().find(|gpu| gpu.kind == kind)
    }

    /// All GPU models, in the catalog's order.
    pub fn gpus(&self) -> impl Iterator<Item = &GpuModel> {
        self.gpus.iter()
    }

    /// The workload of this id.
    #[must_use]
    pub fn workload(&self, id: &str) -> Option<&Workload> {
        self.by_id.get(id).map(|&index| &self.workloads[index])
    }

    /// All workloads, in the catalog's order.
    pub fn workloads(&self) -> impl Iterator<Item = &Workload> {
        self.workloads.iter()
    }

    /// The workload that stands for a model as traces name it, where one of the catalog honestly
    /// does; `None` leaves the choice to a seeded mix.
    ///
    /// Case, `-`, `_` and spaces do not count: `ResNet-50` is `resnet50`. A batch size in the form
    /// `ResNet-50 (batch size 64)` is honoured, or nothing stands for it.
    #[must_use]
    pub fn workload_for_model(&self, name: &str) -> Option<&Workload> {
        let (name, batch) = match name.split_once('(') {
            Some((name, rest)) => (name, rest.trim_end_matches(')').rsplit(' ').next()),
            None => (name, None),
        };
        let standing = &self.workloads[*self.by_model.get(&plain(name))?];
        let Some(batch) = batch else { return Some(standing) };
        let batch: u32 = batch.parse().ok()?;
        self.workloads.iter().find(|other| {
            (&other.model, &other.dataset) == (&standing.model, &standing.dataset)
                && other.batch_size == batch
                && other.gpus == standing.gpus
        })
    }

    /// The workloads meant to be drawn from where a trace does not name one; each fits 16 GB.
    pub fn mix(&self) -> impl Iterator<Item = &Workload> {
        self.workloads.iter().filter(|workload| workload.in_mix)
    }

    /// One card and all tenants on it.
    #[must_use]
    pub fn card(&self, gpu: &GpuModel, setting: Setting, tenants: &[Tenant<'_>]) -> CardState {
        card::state(gpu, setting, tenants, &self.sharing)
    }

    /// Extra time for each neighbour on a card, relative to a step alone, where no pair was
    /// measured.
    #[must_use]
    pub fn delay_per_neighbour(&self) -> f64 {
        self.sharing.delay_per_neighbour
    }

    /// Whether the tenants' memory fits the card together.
    #[must_use]
    pub fn fits(&self, gpu: &GpuModel, tenants: &[Tenant<'_>]) -> bool {
        tenants.iter().map(|tenant| tenant.workload.memory_mib).sum::<u64>() <= gpu.memory_mib
    }

    /// Constant power of a node beside its GPUs, for a node with the model's usual number of them.
    #[must_use]
    pub fn host_power(&self, gpu: &GpuModel) -> Power {
        gpu.host
    }

    /// Constant power of a node beside its GPUs, for a node with `gpus` of them.
    ///
    /// Half of it is taken to be there whatever the number of cards (board, memory, fans at rest),
    /// half to grow with them: nothing measured says so, and the usual number gives
    /// [`World::host_power`] exactly.
    #[must_use]
    pub fn host_power_of(&self, gpu: &GpuModel, gpus: u32) -> Power {
        gpu.host.scale(0.5 + 0.5 * f64::from(gpus) / f64::from(gpu.node_gpus.max(1)))
    }
}

/// A model's name without what writers of traces differ in.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}
