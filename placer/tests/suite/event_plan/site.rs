//! A large site whose jobs have promises, and an event.

use std::sync::Arc;

use wattle_common::event::{
    Depth, EventBook, GridEvent, MeasuredBy, MeasuredMean, Participation, SiteFigures,
};
use wattle_common::job::{Flexibility, GpuRequest};
use wattle_common::messages::{Surface, SurfacePoint};
use wattle_common::rng::Stream;
use wattle_common::{Power, Timestamp};
use wattle_placer::controller::{Controller, ControllerConfig};
use wattle_placer::expected::Expected;
use wattle_placer::power::event_plan::PlanOf;
use wattle_placer::{GpuPower, JobFacts, Policy, Progress, policy};

use crate::support::{job_facts, node_facts, node_watts};

const WORKLOADS: u32 = 14;
const SIZES: [u32; 8] = [1, 2, 4, 4, 4, 8, 8, 16];

fn surface(workload: u32, gpus: u32) -> Surface {
    let bends = 1.5 + 0.1 * f64::from(workload);
    let points = (0..12_u32).map(|step| {
        let cap = 400.0 - 25.0 * f64::from(step);
        let speed = 1.0 - 0.6 * (f64::from(step) / 11.0).powf(bends);
        SurfacePoint {
            cap_mw: (step > 0).then(|| Power::from_w_f64(cap)),
            ..wattle_testkit::point(gpus, f64::from(gpus) * speed, cap.min(380.0))
        }
    });
    Surface { windows: 1, ..wattle_testkit::surface("any", "a100", points) }
}

/// The jobs have arrived, and a round has started those that fit.
pub(crate) fn busy((nodes, jobs): (u32, u32)) -> Controller<Box<dyn Policy>> {
    let mut controller = Controller::new(ControllerConfig::default(), policy("fifo").unwrap());
    let state = controller.events();
    state.inventory_known(true);
    for i in 0..nodes {
        let mut facts = node_facts(&format!("n{i}"), "a100", 8, 80_000);
        facts.watts = Some(node_watts(60, 1_000, 50, 300));
        state.node_known(facts);
    }
    let watts = Power::from_w;
    let power = GpuPower {
        idle: watts(60),
        most: watts(400),
        cap_min: Some(watts(100)),
        host: watts(1_000),
    };
    state.gpu_power_known([("a100".to_owned(), power)].into());
    let mut stream = Stream::new(7, "bench");
    for i in 0..jobs {
        let gpus = *stream.pick(&SIZES).unwrap();
        let request = GpuRequest { min: gpus, max: gpus };
        let facts = JobFacts {
            workload: Some(wattle_testkit::workload(&format!("w{}", i % WORKLOADS))),
            flexibility: Some(Flexibility {
                loss_permille: 50 + 50 * (i % 10),
                may_pause: i % 3 == 0,
                may_resize: false,
            }),
            ..job_facts(&format!("j{i}"), request)
        };
        let key = controller.admit(facts).unwrap();
        let state = controller.events();
        state.surface_known(key, Arc::new(surface(i % WORKLOADS, gpus)));
        let steps_total = Some((100_000.0 * (2.0 * stream.normal()).exp()) as u64 + 1);
        state.job_progressed(key, Progress { steps_total, ..Progress::default() });
    }
    controller.set_expected(Expected::new(Timestamp::EPOCH));
    let round = controller.plan();
    controller.apply(&round.plan);
    controller.follow_expected(&round.reports);
    controller
}

/// A third less for three hours, in an hour.
pub(crate) fn book(controller: &Controller<Box<dyn Policy>>) -> EventBook {
    let gpus = f64::from(controller.state().gpu_count());
    let power_mw = Power::from_w_f64(gpus * (125.0 + 380.0));
    let (from_us, until_us) = (Timestamp::EPOCH, Timestamp::EPOCH);
    let method = MeasuredBy::EnergyLedger;
    let drawn = Some(MeasuredMean { power_mw, from_us, until_us, method });
    let event = GridEvent {
        event: "peak".parse().unwrap(),
        source: "utility".to_owned(),
        feeder: None,
        start_us: Timestamp::from_s(3_600),
        ramp_down_s: 900,
        depth: Depth::Percent { percent: 33.0 },
        duration_s: 3 * 3_600,
        ramp_up_s: 900,
        priority: 0,
        participation: Participation::Voluntary,
    };
    let mut book = EventBook::default();
    book.add(event, Timestamp::EPOCH, &SiteFigures { drawn, idle: None }).unwrap();
    book
}

/// What is planned: the first event of a book.
pub(crate) fn of_first(book: &EventBook) -> PlanOf {
    PlanOf::Event(Box::new(book.events.values().next().cloned().unwrap()))
}
