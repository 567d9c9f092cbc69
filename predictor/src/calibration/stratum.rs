//! Strata of predictions: what is new in the configuration, and the evidence on the job.

use std::collections::BTreeSet;

use wattle_common::id::WorkloadId;
use wattle_common::observation::Observation;

use crate::configurations::Configuration;
use crate::model::cap::GpuSpec;
use crate::workload_name::WorkloadName;

/// In what a configuration differs from those seen of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// Only in cap or clock.
    Setting,
    /// In GPUs, nodes or batch.
    Shape,
    /// In neighbours.
    Colocation,
}

/// Evidence on the job in that respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Horizon {
    /// The same configuration.
    SameConfig,
    /// Similar ones: two settings, shapes on either side, other neighbours.
    SimilarConfig,
    /// Windows, but none that vary this aspect.
    NewAspect,
    /// No window.
    NewJob,
}

/// Stratum of a prediction: predictions whose scores are exchangeable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stratum {
    pub(super) aspect: Aspect,
    pub(super) horizon: Horizon,
    pub(super) family: String,
    /// Whether the job communicates in a way that it was not seen in: between GPUs after one GPU only, or
    /// between nodes after one node only.
    pub(super) unobserved: bool,
    /// Class of the neighbour, if the neighbour is new and not the job.
    pub(super) newcomer: Option<WorkloadId>,
}

impl Stratum {
    /// The aspect in which the configuration is new.
    #[must_use]
    pub fn aspect(&self) -> Aspect {
        self.aspect
    }
}

/// GPUs, nodes, global batch.
type Shape = (u32, u32, Option<u32>);

/// Configurations seen of a job.
#[derive(Clone, Debug)]
pub struct SeenConfigurations<'a> {
    gpu: &'a GpuSpec,
    windows: &'a [Observation],
    /// Shapes with exclusive GPUs.
    shapes: BTreeSet<Shape>,
    /// Whether more than one setting was seen.
    settings: bool,
    /// Whether any neighbour was seen.
    company: bool,
    family: String,
}

fn family(class: Option<&WorkloadId>) -> String {
    let name = class.map_or(wattle_common::observation::UNKNOWN, WorkloadId::as_str);
    WorkloadName::of(name).family.to_owned()
}

/// Cap (W) and clock (MHz), 0 for the default, whether it was named or not.
fn setting(gpu: &GpuSpec, cap_w: Option<f64>, clock_mhz: Option<f64>) -> (u64, u64) {
    let cap = cap_w.filter(|w| *w < 0.99 * gpu.cap_default_w);
    let clock = clock_mhz.filter(|f| gpu.clock_mhz_top.is_none_or(|top| *f < 0.99 * top));
    (cap.map_or(0, |w| w.round() as u64), clock.map_or(0, |f| f.round() as u64))
}

impl<'a> SeenConfigurations<'a> {
    /// Configurations in `windows` of a job of `class`.
    #[must_use]
    pub fn of(windows: &'a [Observation], gpu: &'a GpuSpec, class: Option<&WorkloadId>) -> Self {
        let settings: BTreeSet<_> =
            windows.iter().map(|w| setting(gpu, w.cap_w, w.clock_mhz_max)).collect();
        let exclusive = windows.iter().filter(|w| w.is_exclusive());
        Self {
            gpu,
            windows,
            shapes: exclusive.map(|w| (w.gpus, w.nodes, w.global_batch)).collect(),
            settings: settings.len() > 1,
            company: windows.iter().any(|w| !w.is_exclusive()),
            family: family(class),
        }
    }

    /// Stratum of a prediction of `at`; `seen_colocated` states whether a class was ever seen co-located.
    #[must_use]
    pub fn place(
        &self,
        at: &Configuration,
        seen_colocated: impl Fn(&WorkloadId) -> bool,
    ) -> Stratum {
        let family_here = || self.family.clone();
        let unobserved = self.is_unobserved(at);
        let place = |aspect, horizon| {
            let family = family_here();
            Stratum { aspect, horizon, family, unobserved, newcomer: None }
        };
        let colocated = !at.neighbours.is_empty();
        let same = |seen: Option<u32>| at.global_batch.is_none_or(|b| seen.is_none_or(|s| s == b));
        let here =
            |(gpus, nodes, batch): Shape| gpus == at.gpus && nodes == at.nodes && same(batch);
        let shape = self.shapes.iter().any(|s| here(*s));
        let aspect = match (colocated, shape) {
            (true, _) => Aspect::Colocation,
            (false, true) => Aspect::Setting,
            (false, false) => Aspect::Shape,
        };
        if self.windows.is_empty() {
            return place(aspect, Horizon::NewJob);
        }
        let cap_w = at.cap.map(wattle_common::Power::as_w);
        let clock = at.clock_max.map(|f| f64::from(f.as_mhz()));
        let requested = setting(self.gpu, cap_w, clock);
        let again = self.windows.iter().any(|w| {
            here((w.gpus, w.nodes, w.global_batch))
                && setting(self.gpu, w.cap_w, w.clock_mhz_max) == requested
                && w.neighbours == at.neighbours
        });
        if again {
            return place(aspect, Horizon::SameConfig);
        }
        let known = match aspect {
            Aspect::Setting => self.settings,
            Aspect::Shape => self.around(at),
            Aspect::Colocation => {
                if let Some(new) = at.neighbours.iter().find(|n| self.company && !seen_colocated(n))
                {
                    // The neighbour is new, so its family determines the error.
                    let newcomer = Some(new.clone());
                    let fresh = place(aspect, Horizon::NewAspect);
                    return Stratum { family: family(Some(new)), newcomer, ..fresh };
                }
                self.company
            }
        };
        place(aspect, if known { Horizon::SimilarConfig } else { Horizon::NewAspect })
    }

    /// Whether `at` needs communication between GPUs, or between nodes, and no seen shape did.
    fn is_unobserved(&self, at: &Configuration) -> bool {
        let seen = |of: fn(&Shape) -> u32| self.shapes.iter().any(|s| of(s) > 1);
        (at.gpus > 1 && !seen(|s| s.0)) || (at.nodes > 1 && !seen(|s| s.1))
    }

    /// Whether seen shapes lie on either side of `at`.
    fn around(&self, at: &Configuration) -> bool {
        let inside = |of: fn(&Shape) -> u32, value: u32| {
            let (min, max) = (self.shapes.iter().map(of).min(), self.shapes.iter().map(of).max());
            min.zip(max).is_some_and(|(min, max)| (min..=max).contains(&value))
        };
        let batch: fn(&Shape) -> u32 = |s| s.2.unwrap_or(0) / s.0.max(1);
        self.shapes.len() > 1
            && inside(|s| s.0, at.gpus)
            && inside(|s| s.1, at.nodes)
            && at.global_batch.is_none_or(|b| inside(batch, b / at.gpus.max(1)))
    }
}
