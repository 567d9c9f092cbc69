//! Simulates a trace under a virtual clock with the placer's controller and the predictor.
//!
//! These two are the libraries of the live services; the world determines speeds and powers. The profiler is
//! not: the simulator makes the windows of a job itself. It makes no decisions, reads no wall clock, and draws
//! random numbers from the seed only: the same trace, seed and policy give identical results.
//!
//! ```
//! use wattle_placer::policies::Fifo;
//! use wattle_simulator::{RunOptions, Scenario, run_with, trace};
//! use wattle_world::World;
//!
//! let text = "job_id,submit_s,duration_s,num_gpus,vc\na,0,3600,8,x\nb,60,1800,4,x\n";
//! let world = World::builtin();
//! let trace = trace::parse("two.csv", text.as_bytes())?;
//! let scenario = Scenario::from_trace(&world, &trace, &"1x8:v100".parse()?, 7)?;
//! let outcome = run_with(&world, &scenario, &Fifo, &RunOptions::default())?;
//! // The second job waits 3,540 s for the first, then runs for 1,800 s.
//! assert_eq!(outcome.jct_s_mean, Some((3_600.0 + 5_340.0) / 2.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod carbon;
mod detail;
mod engine;
mod events;
mod feeders;
pub mod gavel;
pub mod generator;
mod gpus;
pub mod input_file;
mod load;
pub mod measured;
mod meter;
mod oracle;
mod outcome;
mod prediction_error;
pub mod price;
mod profiles;
mod repeating;
pub mod replay;
mod restartable;
mod sampled;
mod scenario;
mod simulation;
mod spending;
mod surface_noise;
pub mod text;
mod time_limits;
pub mod trace;

pub use carbon::CarbonSeries;
pub use detail::{Detail, JobOutcome, NodeOutcome};
pub use engine::recording::{
    Level, RecordedJob, RecordedNode, RecordedPlacement, Recording, SleepInterval,
};
pub use events::{EventsOutcome, PlannedEvent};
pub use feeders::FeederUse;
pub use load::LoadError;
pub use oracle::{gpu_counts, selectable_caps, selectable_clocks};
pub use outcome::{
    Against, AimHeld, Baseline, ExpectedErrors, ExpectedOutcome, ExpectedRatios, Outcome,
    PolicyOutcome, PredictionRegret, ProjectChange, TwinOutcome,
};
pub use prediction_error::{Prediction, PredictionError};
pub use price::PriceSeries;
pub use restartable::{Restartable, RestartableError};
pub use scenario::{OPEN_GPUS_MAX, Scenario, ScenarioError, SimJob, Work, WorkloadShare};
pub use simulation::{
    EVERY_JOB_MAX, Forecast, Learning, Lengths, Restarts, RunOptions, SimulationError, gather,
    run_detailed, run_recorded, run_with, run_with_progress,
};
pub use spending::{Spending, WindowSpent};
pub use surface_noise::{Shape as ErrorShape, SurfaceNoise};
