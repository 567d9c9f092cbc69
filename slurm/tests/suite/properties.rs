//! Seeded histories with faults. In each of them no job is lost, no completed job is started again by the
//! machine, no GPU is given twice, no attempt is released twice, and once the faults end every job ends.

use wattle_slurm::Level;
use wattle_testkit::cases;

use crate::world::{Plan, World};

/// Steps with faults, about 0.7 s each.
const FAULTY: u32 = 400;
/// Steps within which every job must end once the faults have ended.
const CALM_MAX: u32 = 4_000;

fn run(plan: Plan) {
    let mut world = World::new(plan);
    world.trace(&format!("{plan:?}"));
    for _ in 0..FAULTY {
        world.step(false);
    }
    for _ in 0..CALM_MAX {
        if world.is_over() {
            world.check_ends();
            return;
        }
        world.step(true);
    }
    panic!("{plan:?}: not every job has ended\n{}\n{:#?}", world.open(), world.alarms);
}

fn run_all(level: Level, has_accounting: bool) {
    let usual = u64::from(cases(40, 150));
    let count: u64 = std::env::var("WATTLE_SLURM_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(usual);
    let first: u64 =
        std::env::var("WATTLE_SLURM_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    for seed in first..first + count {
        let plan = Plan {
            level,
            seed,
            nodes: 3,
            jobs: 12,
            has_accounting,
            loses_memory: has_accounting && seed % 3 > 0,
        };
        run(plan);
    }
}

#[test]
fn jobs_survive_faults_at_level_start() {
    run_all(Level::Start, true);
}

#[test]
fn jobs_survive_faults_at_level_exact() {
    run_all(Level::Exact, true);
}

#[test]
fn jobs_survive_faults_at_level_share() {
    run_all(Level::Share, true);
}
