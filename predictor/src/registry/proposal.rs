//! A proposed surface: whether it can be one, and what it says of a configuration, in little room.
//!
//! A proposal comes from outside, perhaps from a program that nobody here wrote. One that cannot be
//! is refused as a whole, with the reason; the placer never sees it.

use wattle_common::Timestamp;
use wattle_common::id::{self, JobId, PredictorId, WorkloadId};
use wattle_common::messages::surface::GPU_TYPES_MAX;
use wattle_common::messages::{Estimate, Surface, SurfacePoint};

use crate::model::cap::GpuSpec;
use crate::observation::{Observation, unknown};

/// Points of a surface at most; ours have 256.
const POINTS_MAX: usize = 4_096;
/// Points kept for scoring: as in [`crate::config::PredictorConfig`], what matters most comes first.
const SCORED_MAX: usize = 256;
/// GPUs beyond this are a mistake.
const GPUS_MAX: u32 = 65_536;
/// Neighbours on one card beyond this are a mistake.
const NEIGHBOURS_MAX: usize = 16;
/// Longest word for people, bytes.
const BASIS_LEN_MAX: usize = 1_000;
/// A proposal from so far ahead comes from a clock that is wrong; it would outlive all later ones.
const AHEAD_MAX: std::time::Duration = std::time::Duration::from_secs(300);
/// Steps a second, speeds beside alone, watts of a card: beyond these it is a mistake.
const RATE_MAX: f64 = 1e9;
const RELATIVE_MAX: f64 = 100.0;
const POWER_W_MAX: f64 = 5_000.0;
/// Caps and clocks closer than this, as shares, are the same.
const SAME: f64 = 0.005;
/// The name of the registry's own priors.
pub const PRIOR: &str = "prior";

/// Checks a surface proposed on the subject of `predictor` and `job`.
///
/// # Errors
/// What is wrong with it, for people.
pub fn check(
    now: Timestamp,
    predictor: &PredictorId,
    job: &JobId,
    surface: &Surface,
) -> Result<(), String> {
    if predictor.as_str() == PRIOR {
        return Err(format!("the name `{PRIOR}` is the registry's own"));
    }
    if surface.predictor != *predictor {
        return Err(format!(
            "it says it is of {}, its subject says {predictor}",
            surface.predictor
        ));
    }
    if surface.job != *job {
        return Err(format!("it says it is of job {}, its subject says {job}", surface.job));
    }
    if surface.at_us > now + AHEAD_MAX {
        return Err("at_us lies in the future".to_owned());
    }
    if id::check(&surface.gpu_type).is_err() {
        return Err("gpu_type is no name".to_owned());
    }
    if surface.basis.as_ref().is_some_and(|basis| basis.len() > BASIS_LEN_MAX) {
        return Err(format!("basis is longer than {BASIS_LEN_MAX} bytes"));
    }
    for percent in [surface.utilization_gpu_percent, surface.utilization_memory_percent] {
        if percent.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
            return Err("a utilization is not between 0 and 100 per cent".to_owned());
        }
    }
    if surface.points.is_empty() {
        return Err("it has no points".to_owned());
    }
    if surface.points.len() > POINTS_MAX {
        return Err(format!("it has more than {POINTS_MAX} points"));
    }
    for (i, point) in surface.points.iter().enumerate() {
        check_point(point).map_err(|why| format!("points[{i}]: {why}"))?;
    }
    if surface.other_gpu_types.len() >= GPU_TYPES_MAX {
        return Err(format!("it speaks of more than {GPU_TYPES_MAX} kinds of GPU"));
    }
    for (i, other) in surface.other_gpu_types.iter().enumerate() {
        let mut named = surface.other_gpu_types[..i].iter().map(|known| &known.gpu_type);
        if other.gpu_type == surface.gpu_type || named.any(|kind| *kind == other.gpu_type) {
            return Err(format!("it speaks twice of kind {}", other.gpu_type));
        }
        if !other.other_gpu_types.is_empty() {
            return Err(format!("elsewhere[{i}]: it has an elsewhere of its own"));
        }
        check(now, predictor, job, other).map_err(|why| format!("elsewhere[{i}]: {why}"))?;
    }
    Ok(())
}

fn check_point(point: &SurfacePoint) -> Result<(), String> {
    if point.gpus == 0 || point.gpus > GPUS_MAX || point.nodes == 0 || point.nodes > point.gpus {
        return Err("its numbers of gpus and nodes cannot be".to_owned());
    }
    if point.cap_mw.is_some_and(|cap| cap.as_mw() == 0)
        || point.clock_mhz_max.is_some_and(|clock| clock.as_mhz() == 0)
    {
        return Err("a cap or clock of 0 cannot be; leave it out for the default".to_owned());
    }
    if point.neighbours.len() > NEIGHBOURS_MAX {
        return Err(format!("more than {NEIGHBOURS_MAX} neighbours"));
    }
    if !point.neighbours.is_sorted() {
        return Err("neighbours are not sorted".to_owned());
    }
    if let Some(rate) = point.steps_per_s {
        check_estimate("steps_per_s", rate, RATE_MAX)?;
    }
    check_estimate("relative_speed", point.relative_speed, RELATIVE_MAX)?;
    check_estimate("gpu_power_w", point.gpu_power_w, POWER_W_MAX)
}

fn check_estimate(name: &str, estimate: Estimate, max: f64) -> Result<(), String> {
    let Estimate { mean, low, high } = estimate;
    if !(low.is_finite() && mean.is_finite() && high.is_finite()) {
        return Err(format!("{name} is not finite"));
    }
    if !(low <= mean && mean <= high) {
        return Err(format!("{name}: low {low}, mean {mean}, high {high} are not in order"));
    }
    if mean <= 0.0 || low < 0.0 || high > max {
        return Err(format!("{name}: {low} to {high} is not within 0 to {max}"));
    }
    Ok(())
}

/// What the registry had seen of the job when a proposal arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Whether a window of it had come.
    pub any: bool,
    /// How many of its configurations had come.
    pub configurations: usize,
}

/// A proposal as it is kept for scoring.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// When its predictor says it was made.
    pub at: Timestamp,
    /// When it arrived.
    pub received: Timestamp,
    /// What the registry had seen of the job by then.
    pub known: Known,
    /// What it says of each kind of GPU.
    on: Box<[OnKind]>,
}

/// What a proposal says of one kind of GPU.
#[derive(Clone, Debug)]
struct OnKind {
    gpu_type: Box<str>,
    points: Box<[Point]>,
    /// The sets of neighbours that points name by their place here; 0 is alone.
    sets: Box<[Box<[WorkloadId]>]>,
}

/// One point: 72 bytes.
#[derive(Clone, Copy, Debug)]
struct Point {
    gpus: u32,
    nodes: u32,
    set: u16,
    cap_w: Option<f32>,
    clock_mhz: Option<f32>,
    batch: Option<u32>,
    /// Mean, low, high; a mean of zero: not said.
    rate: [f32; 3],
    relative: [f32; 3],
    power: [f32; 3],
}

/// What is expected of a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Steps a second, where it is said.
    pub steps_per_s: Option<Estimate>,
    /// Speed relative to alone at the default cap and clock.
    pub relative_speed: Estimate,
    /// Watts of one card.
    pub gpu_power_w: Estimate,
}

fn packed(estimate: Estimate) -> [f32; 3] {
    [estimate.mean as f32, estimate.low as f32, estimate.high as f32]
}

/// Between two estimates, a share of the way, along straight lines of their logarithms: speed and
/// power over caps and clocks are close to powers of them.
fn between(a: [f32; 3], b: [f32; 3], share: f64) -> Estimate {
    let at = |i: usize| {
        let (a, b) = (f64::from(a[i]).max(1e-12), f64::from(b[i]).max(1e-12));
        (a.ln() + share * (b.ln() - a.ln())).exp()
    };
    Estimate { mean: at(0), low: at(1), high: at(2) }
}

impl Proposal {
    /// What is kept of a surface that passed [`check`].
    #[must_use]
    pub fn of(surface: &Surface, received: Timestamp, known: Known) -> Self {
        let on = std::iter::once(surface).chain(&surface.other_gpu_types).map(OnKind::of).collect();
        Self { at: surface.at_us, received, known, on }
    }

    /// What it expects of the configuration of `seen` on cards of `kind`; `None` where it has no
    /// point there and none on either side of it.
    #[must_use]
    pub fn expects(&self, kind: &str, seen: &Observation, card: &GpuSpec) -> Option<Expected> {
        self.on.iter().find(|on| *on.gpu_type == *kind)?.expects(seen, card)
    }
}

impl OnKind {
    fn of(surface: &Surface) -> Self {
        let mut sets: Vec<Box<[WorkloadId]>> = vec![Box::default()];
        let mut points = Vec::with_capacity(surface.points.len().min(SCORED_MAX));
        for point in surface.points.iter().take(SCORED_MAX) {
            let place = sets.iter().position(|set| **set == *point.neighbours);
            let place = place.unwrap_or_else(|| {
                sets.push(point.neighbours.clone().into());
                sets.len() - 1
            });
            points.push(Point {
                gpus: point.gpus,
                nodes: point.nodes,
                set: u16::try_from(place).expect("no more sets than points that are kept"),
                cap_w: point.cap_mw.map(|cap| cap.as_w() as f32),
                clock_mhz: point.clock_mhz_max.map(|clock| clock.as_mhz() as f32),
                batch: point.global_batch,
                rate: point.steps_per_s.map_or([0.0; 3], packed),
                relative: packed(point.relative_speed),
                power: packed(point.gpu_power_w),
            });
        }
        Self {
            gpu_type: surface.gpu_type.as_str().into(),
            points: points.into(),
            sets: sets.into(),
        }
    }

    fn expects(&self, seen: &Observation, card: &GpuSpec) -> Option<Expected> {
        let set = self.set_of(&seen.neighbours)?;
        let here = |p: &&Point| p.gpus == seen.gpus && p.nodes == seen.nodes && p.set == set;
        let of_batch = seen.global_batch.filter(|batch| {
            self.points.iter().filter(here).any(|point| point.batch == Some(*batch))
        });
        let points = self.points.iter().filter(here).filter(|point| point.batch == of_batch);
        let default = card.cap_known.then_some(card.cap_default_w);
        // At its default where nothing else is said; without a known default, by itself.
        let cap_of = |cap: Option<f64>| cap.or(default).map_or(0.0, f64::ln);
        let same = |a: f64, b: f64| (a - b).abs() < SAME;
        let cap = cap_of(seen.cap_w.map(|cap| default.map_or(cap, |default| cap.min(default))));
        let along: Vec<(f64, &Point)> = match seen.clock_mhz_max {
            None => points
                .filter(|point| point.clock_mhz.is_none())
                .map(|point| (cap_of(point.cap_w.map(f64::from)), point))
                .collect(),
            Some(_) => points
                .filter(|point| same(cap_of(point.cap_w.map(f64::from)), cap))
                .filter_map(|point| Some((f64::from(point.clock_mhz?).ln(), point)))
                .collect(),
        };
        let at = seen.clock_mhz_max.map_or(cap, f64::ln);
        let below =
            along.iter().filter(|(x, _)| *x <= at + SAME).max_by(|a, b| a.0.total_cmp(&b.0));
        let above =
            along.iter().filter(|(x, _)| *x >= at - SAME).min_by(|a, b| a.0.total_cmp(&b.0));
        let ((x0, a), (x1, b)) = (below?, above?);
        let share = if same(*x0, *x1) { 0.0 } else { ((at - x0) / (x1 - x0)).clamp(0.0, 1.0) };
        let said = a.rate[0] > 0.0 && b.rate[0] > 0.0;
        Some(Expected {
            steps_per_s: said.then(|| between(a.rate, b.rate, share)),
            relative_speed: between(a.relative, b.relative, share),
            gpu_power_w: between(a.power, b.power, share),
        })
    }

    /// The place of these neighbours; a class that is not on the axis stands under the name of all
    /// unknown ones, as the placer reads it.
    fn set_of(&self, neighbours: &[WorkloadId]) -> Option<u16> {
        let place = |wanted: &[WorkloadId]| {
            let place = self.sets.iter().position(|set| **set == *wanted)?;
            u16::try_from(place).ok()
        };
        place(neighbours).or_else(|| {
            let named = |class: &WorkloadId| self.sets.iter().any(|set| set.contains(class));
            let stand_in =
                |class: &WorkloadId| if named(class) { class.clone() } else { unknown() };
            let mut read: Vec<WorkloadId> = neighbours.iter().map(stand_in).collect();
            read.sort();
            place(&read)
        })
    }
}
