//! The inputs and decisions of a policy, from which the stages of a planning round follow.

use std::time::Duration;

/// The jobs whose surfaces and progress a policy reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// Neither.
    #[default]
    Nothing,
    /// Both, of running jobs and of the queue up to the first job that waits.
    Heads,
    /// Both, of every job, for every size and setting it may have.
    All,
}

/// The order in which a policy serves its queue. Decisions do not follow from it, only expected starts do
/// ([`crate::expected`]).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Service {
    /// By priority and arrival; the first job that does not fit blocks the rest.
    #[default]
    InOrder,
    /// By priority and arrival; a later job starts first if, by time limits, it does not delay the first that waits.
    ByLimits {
        /// The limit of a job without one.
        limit_default: Duration,
    },
    /// By remaining run time, less a share of the age. A job that has waited for this many times its run time, and this
    /// many seconds, stops others.
    ShortestFirst {
        /// The multiple.
        patience: f64,
        /// The time, s.
        patience_s: f64,
    },
}

/// The inputs and decisions of a policy. The default is a policy that reads neither surfaces nor prices
/// and gives each job its least size, exclusively, at default settings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capabilities {
    /// The surfaces and progress it reads. Callers need not provide others.
    pub reads: Reads,
    /// Whether it needs the exact duration of each job from its arrival on: an oracle.
    pub needs_exact_durations: bool,
    /// Whether it reads the time limits of jobs. A job whose limit is not known has the policy's default.
    pub reads_time_limits: bool,
    /// Whether it changes the number of GPUs of a job. Other policies give a job its minimum.
    pub is_elastic: bool,
    /// Whether it ever places two jobs on one GPU.
    pub shares_gpus: bool,
    /// Whether new co-tenants are observed and undone by the co-location trial of the pipeline. EaCO has
    /// an observation of its own.
    pub has_trials: bool,
    /// Whether it chooses caps or clocks. For other policies a budget may choose them.
    pub sets_gpus: bool,
    /// Whether a rule replaces its caps and clocks ([`Policy::fixed_setting`](crate::Policy::fixed_setting)).
    pub fixes_settings: bool,
    /// The energy prices between which its plans change; `None`: it reads no price.
    pub prices: Option<PriceRange>,
    /// Whether its plans follow the grid's carbon intensity.
    pub follows_grid: bool,
    /// The order in which it serves its queue.
    pub serves: Service,
}

impl Capabilities {
    /// Those of the policy under a rule that sets all caps and clocks, which then depend neither on the energy
    /// price nor on the grid.
    #[must_use]
    pub const fn with_fixed_settings(self) -> Self {
        Self { sets_gpus: true, fixes_settings: true, prices: None, follows_grid: false, ..self }
    }
}

/// Range of prices over which a policy's decisions change, in the policy's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceRange {
    /// Lowest price that has an effect.
    pub least: f64,
    /// Price above which almost no step that costs energy is taken.
    pub most: f64,
}

/// Factor on the highest price at position 1, so that no step is taken, however little energy it costs.
const SATURATED: f64 = 1e3;

impl PriceRange {
    /// The price at a position from 0 (energy is free) to 1 (every job is at its minimum power).
    #[must_use]
    pub fn at(&self, position: f64) -> f64 {
        if position <= 0.0 {
            return 0.0;
        }
        if position >= 1.0 {
            return self.most * SATURATED;
        }
        self.least * (self.most / self.least).powf(position)
    }
}
