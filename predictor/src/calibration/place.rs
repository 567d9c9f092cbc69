//! Where a prediction belongs among the scores: in what it is new, and how well the job is known there.
//!
//! Says nothing of how far off anything is.

use std::collections::BTreeSet;

use wattle_common::id::WorkloadId;

use crate::model::cap::Card;
use crate::surface::Configuration;
use crate::workload_name::WorkloadName;
use wattle_common::observation::Observation;

/// In what a configuration differs from those seen of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// In cap or clock only.
    Setting,
    /// In GPUs, nodes or batch.
    Shape,
    /// In its neighbours.
    Beside,
}

/// How well the job is known in that respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Horizon {
    /// It was seen in this very configuration.
    Again,
    /// It was seen in others like it: two settings, shapes around this one, other neighbours.
    Known,
    /// It was seen, but never in this respect.
    Fresh,
    /// It was never seen.
    Unmet,
}

/// Where in the records a prediction belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) aspect: Aspect,
    pub(super) horizon: Horizon,
    pub(super) family: String,
    /// The class of the neighbour that is new, where it is that and not the job.
    pub(super) newcomer: Option<WorkloadId>,
}

impl Place {
    /// In what it is new.
    #[must_use]
    pub fn aspect(&self) -> Aspect {
        self.aspect
    }
}

/// GPUs, nodes, global batch.
type Shape = (u32, u32, Option<u32>);

/// What was seen of a job, as far as it tells how new a configuration is.
#[derive(Clone, Debug)]
pub struct Experience<'a> {
    card: &'a Card,
    windows: &'a [Observation],
    /// Those it had alone.
    shapes: BTreeSet<Shape>,
    /// More than one cap or clock was seen.
    settings: bool,
    /// Some neighbour was seen.
    company: bool,
    family: String,
}

fn family(class: Option<&WorkloadId>) -> String {
    let name = class.map_or(wattle_common::observation::UNKNOWN, WorkloadId::as_str);
    WorkloadName::of(name).family.to_owned()
}

/// A cap in watts and a clock in MHz that mean the same whether they were named or not.
fn setting(card: &Card, cap_w: Option<f64>, clock_mhz: Option<f64>) -> (u64, u64) {
    let cap = cap_w.filter(|w| *w < 0.99 * card.cap_default_w);
    let clock = clock_mhz.filter(|f| card.clock_mhz_top.is_none_or(|top| *f < 0.99 * top));
    (cap.map_or(0, |w| w.round() as u64), clock.map_or(0, |f| f.round() as u64))
}

impl<'a> Experience<'a> {
    /// What `windows` show of a job of `class`.
    #[must_use]
    pub fn of(windows: &'a [Observation], card: &'a Card, class: Option<&WorkloadId>) -> Self {
        let settings: BTreeSet<_> =
            windows.iter().map(|w| setting(card, w.cap_w, w.clock_mhz_max)).collect();
        let alone = windows.iter().filter(|w| w.alone());
        Self {
            card,
            windows,
            shapes: alone.map(|w| (w.gpus, w.nodes, w.global_batch)).collect(),
            settings: settings.len() > 1,
            company: windows.iter().any(|w| !w.alone()),
            family: family(class),
        }
    }

    /// Where a prediction of `at` belongs; `met` says whether a class was ever seen beside others.
    #[must_use]
    pub fn place(&self, at: &Configuration, met: impl Fn(&WorkloadId) -> bool) -> Place {
        let family_here = || self.family.clone();
        let place =
            |aspect, horizon| Place { aspect, horizon, family: family_here(), newcomer: None };
        let beside = !at.neighbours.is_empty();
        let same = |seen: Option<u32>| at.global_batch.is_none_or(|b| seen.is_none_or(|s| s == b));
        let here =
            |(gpus, nodes, batch): Shape| gpus == at.gpus && nodes == at.nodes && same(batch);
        let shape = self.shapes.iter().any(|s| here(*s));
        let aspect = match (beside, shape) {
            (true, _) => Aspect::Beside,
            (false, true) => Aspect::Setting,
            (false, false) => Aspect::Shape,
        };
        if self.windows.is_empty() {
            return place(aspect, Horizon::Unmet);
        }
        let cap_w = at.cap.map(wattle_common::Power::as_w);
        let clock = at.clock_max.map(|f| f64::from(f.as_mhz()));
        let asked = setting(self.card, cap_w, clock);
        let again = self.windows.iter().any(|w| {
            here((w.gpus, w.nodes, w.global_batch))
                && setting(self.card, w.cap_w, w.clock_mhz_max) == asked
                && w.neighbours == at.neighbours
        });
        if again {
            return place(aspect, Horizon::Again);
        }
        let known = match aspect {
            Aspect::Setting => self.settings,
            Aspect::Shape => self.around(at),
            Aspect::Beside => {
                if let Some(new) = at.neighbours.iter().find(|n| self.company && !met(n)) {
                    // What is new is the neighbour, so its family tells how far off it may be.
                    let newcomer = Some(new.clone());
                    let fresh = place(aspect, Horizon::Fresh);
                    return Place { family: family(Some(new)), newcomer, ..fresh };
                }
                self.company
            }
        };
        place(aspect, if known { Horizon::Known } else { Horizon::Fresh })
    }

    /// Whether shapes seen lie on either side of `at`.
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
