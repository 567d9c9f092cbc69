//! Extreme values in every message that the placer receives: no panic, no endless loop, and it still
//! serves.

use proptest::prelude::*;
use wattle_common::job::GpuRequest;
use wattle_common::messages::{
    IntensitySeries, JobEnergy, JobProgressed, LaunchState, LaunchedJob, SetBudget,
};
use wattle_common::{
    Budget, Carbon, CarbonIntensity, Energy, Frequency, Power, PowerSeries, Timestamp,
};
use wattle_testkit as kit;

use crate::live::Event;
use crate::live::tests::spec;
use crate::live::tests::world::World;

const NOW: u64 = 1_000_000_000;

fn extreme() -> impl Strategy<Value = u64> {
    let known = [0, 1, NOW - 1, NOW, NOW + 60_000_000, 1 << 32, 1 << 53, u64::MAX - 1, u64::MAX];
    prop_oneof![4 => prop::sample::select(known.to_vec()), 1 => any::<u64>()]
}

/// A message of each kind from these numbers.
fn event(world: &World, kind: u8, n: &[u64; 5], count: usize) -> Event {
    let at = Timestamp::from_us;
    let float = [0.0, -1.0, 1e-300, 1e300, f64::MAX][n[4] as usize % 5];
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let (mut power, mut launch) = world.reports("n0");
    match kind {
        0 => {
            let mut spec = spec("x", 1);
            spec.gpus = GpuRequest { min: small(n[0]), max: small(n[1]) };
            spec.deadline_at_us = Some(at(n[2]));
            (spec.slack_ms, spec.duration_ms_estimate) = (Some(n[3]), Some(n[4]));
            spec.time_limit_ms = Some(n[1]);
            (spec.memory_mib_max, spec.max_slowdown_permille) = (Some(n[0]), Some(small(n[2])));
            let submit =
                wattle_common::messages::SubmitJob { spec, submission: None, user_proven: false };
            let admission = wattle_common::AdmissionId::accepted(at(n[2]), n[0]);
            Event::Submitted(1 << 40, admission, Box::new(submit))
        }
        1 => {
            let budget = Budget {
                energy_mj: Some(Energy::from_mj(n[0])),
                carbon_ug: Some(Carbon::from_ug(n[1])),
                power_mw: Some(Power::from_mw(n[2])),
                power_series: (count > 0).then(|| PowerSeries {
                    starts_at_us: at(n[4]),
                    steps: (0..count as u64)
                        .map(|i| (i.saturating_mul(n[4]), Power::from_mw(n[2])))
                        .collect(),
                    period_s: n[3],
                }),
                window_ms: n[3],
            };
            let steps = (0..count as u64)
                .map(|i| (i.saturating_mul(n[4]), CarbonIntensity::from_g_per_kwh(float)));
            let (name, starts_at_us, period_s) = ("x".to_owned(), at(n[4]), n[3]);
            let series = IntensitySeries {
                name,
                starts_at_us,
                steps: steps.collect(),
                period_s,
                origins: Vec::new(),
            };
            Event::BudgetSet(1, Box::new(SetBudget { budget, intensity: Some(series) }))
        }
        2 => {
            let mut entry = kit::ledger_entry("n0", at(n[0]), at(n[1]), Energy::from_mj(n[2]));
            entry.energy_mj_gpus = vec![Some(Energy::from_mj(n[3])); count];
            let energy_mj = Energy::from_mj(n[4]);
            entry.jobs = vec![
                JobEnergy {
                    job: kit::job("a"),
                    admission: None,
                    energy_mj,
                    user: None,
                    project: None,
                    compared: None
                };
                count
            ];
            Event::EnergyMetered(Box::new(entry))
        }
        3 => {
            (power.at_us, power.observed_generation) = (at(n[0]), n[1]);
            power.gpus_per_board = Some(small(n[2]));
            let mut gpu = power.gpus[0].clone();
            (gpu.gpu, gpu.memory_mib) = (small(n[3]), Some(n[4]));
            gpu.cap_mw_default = Some(Power::from_mw(n[2]));
            gpu.cap_mw_min = Some(Power::from_mw(n[3]));
            gpu.clock_mhz_supported_max = Some(Frequency::from_mhz(small(n[2])));
            power.gpus = vec![gpu; count];
            Event::PowerReported(power)
        }
        4 => {
            (launch.at_us, launch.observed_generation) = (at(n[0]), n[1]);
            let run = LaunchedJob {
                job: kit::job("a"),
                admission: None,
                attempt: small(n[2]),
                gpus: vec![small(n[3]); count],
                state: LaunchState::Running,
                processes: None,
                since_us: at(n[4]),
                log_path: String::new(),
            };
            launch.jobs.extend(vec![run; count]);
            Event::LaunchReported(launch)
        }
        5 => {
            let mut point = kit::point(1, float, float);
            (point.gpus, point.nodes) = (small(n[0]), small(n[1]));
            point.cap_mw = Some(Power::from_mw(n[2]));
            let mut surface = kit::surface("a", "v100", vec![point; count]);
            (surface.at_us, surface.memory_mib_max) = (at(n[3]), Some(n[4]));
            Event::SurfaceKnown(Box::new(surface))
        }
        _ => Event::Progressed(JobProgressed {
            job: kit::job("a"),
            admission: None,
            node: kit::node("n0"),
            attempt: 1,
            at_us: at(n[0]),
            step: n[1],
            steps_total: Some(n[2]),
            epoch: Some(small(n[3])),
            steps_per_epoch: Some(n[4]),
            steps_per_s: Some(float),
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_message_stops_the_placer(
        messages in prop::collection::vec(
            (0u8..7, [extreme(), extreme(), extreme(), extreme(), extreme()], 0usize..70), 1..10),
    ) {
        let mut world = World::new(1, 2);
        world.long = true;
        world.policy = || crate::policy("wattle").unwrap();
        world.restart();
        world.submit(spec("a", 1));
        world.pass(2);
        for (kind, numbers, count) in &messages {
            let event = event(&world, *kind, numbers, *count);
            world.deliver(event);
            world.pass(1);
        }
        // A submission is still answered.
        world.request_submit(spec("z", 1));
        prop_assert_eq!(world.unanswered(), 0);
    }
}
