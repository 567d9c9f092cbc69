//! Energy and steps are the exact integrals of power and rate, whatever happens and however often
//! somebody looks.

use nvml_sim::fault::Fault;
use nvml_sim::node::world;
use nvml_sim::state::{ClaimRequest, FEMTOSTEPS, NodeState, Phase, Physics};
use proptest::prelude::*;
use wattle_common::units::EnergyMeter;
use wattle_common::{Frequency, JobId, Power, Timestamp, WorkloadId};

const GPUS: usize = 3;

#[derive(Clone, Debug)]
enum Event {
    Cap(u32, u64),
    Clock(u32, Option<u32>),
    Come { cards: u64, workload: usize },
    Go(usize),
    Lose(u32),
    Mend(u32),
    Pace(usize, u64),
}

fn event() -> impl Strategy<Value = Event> {
    let gpu = 0..GPUS as u32;
    prop_oneof![
        (gpu.clone(), 100_000u64..=250_000).prop_map(|(gpu, mw)| Event::Cap(gpu, mw)),
        (gpu.clone(), prop::option::of(400u32..1_500))
            .prop_map(|(gpu, mhz)| Event::Clock(gpu, mhz)),
        (1u64..1 << GPUS, 0usize..200)
            .prop_map(|(cards, workload)| Event::Come { cards, workload }),
        (0usize..8).prop_map(Event::Go),
        gpu.clone().prop_map(Event::Lose),
        gpu.prop_map(Event::Mend),
        (0usize..8, 0u64..5_000_000_000).prop_map(|(place, rate)| Event::Pace(place, rate)),
    ]
}

fn happen(state: &mut NodeState, physics: Physics<'_>, at: Timestamp, event: &Event) {
    // A refusal is an event as well: it must change nothing.
    match event {
        Event::Cap(gpu, mw) => {
            let _ = state.set_cap(physics, at, *gpu, Power::from_mw(*mw));
        }
        Event::Clock(gpu, mhz) => {
            let _ = state.set_clock_max(physics, at, *gpu, mhz.map(Frequency::from_mhz));
        }
        Event::Come { cards, workload } => {
            let workloads: Vec<_> = physics.world.workloads().collect();
            let request = ClaimRequest {
                pid: 7,
                job: JobId::new("j").unwrap(),
                workload: workloads[workload % workloads.len()].id.clone(),
                attempt: 1,
                rank: 0,
                nodes: 1,
                cards: *cards,
            };
            if let Ok(place) = state.place_for(physics, &request, |_| true) {
                let serial = state.claim(physics, at, place, request).unwrap();
                let gpus = cards.count_ones();
                let run = (Phase::Running, gpus, u64::MAX);
                state.change_claim(physics, at, (place, serial), run).unwrap();
            }
        }
        Event::Go(place) => state.release(physics, at, &[*place]),
        Event::Lose(gpu) => state.set_fault(physics, at, *gpu, Fault::Lost).unwrap(),
        Event::Mend(gpu) => state.set_fault(physics, at, *gpu, Fault::Clear).unwrap(),
        Event::Pace(place, rate) => {
            if let Some(claim) = state.claims[*place].clone() {
                let to = (Phase::Running, claim.gpus_total, *rate);
                state.change_claim(physics, at, (*place, claim.serial), to).unwrap();
            }
        }
    }
}

fn physics() -> Physics<'static> {
    Physics { world: world(), gpu: world().gpu("v100").unwrap() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn energy_and_steps_are_exact_integrals(
        events in prop::collection::vec((0u64..90_000_000_000, event()), 1..40),
        looks in prop::collection::vec(0u64..1_000_000, 0..4),
    ) {
        let physics = physics();
        let mut at = Timestamp::from_s(1_000);
        let mut state = NodeState::new(physics, GPUS, at);
        let mut often = state.clone();
        // The same integrals, kept apart: nanojoules and femtosteps.
        let mut energy = [0u128; GPUS];
        let mut steps = std::collections::BTreeMap::new();
        for (span_us, event) in &events {
            for (sum, card) in energy.iter_mut().zip(&state.cards) {
                *sum += u128::from(card.power.as_mw()) * u128::from(*span_us);
            }
            for claim in state.claims.iter().flatten() {
                *steps.entry(claim.serial).or_insert(0u128) += u128::from(claim.rate()) * u128::from(*span_us);
            }
            // One copy is settled again and again on the way; it must not matter.
            for part in &looks {
                let on_the_way = Timestamp::from_us(at.as_us() + span_us * part / 1_000_000);
                often.settle(on_the_way);
            }
            at = Timestamp::from_us(at.as_us() + span_us);
            for (index, sum) in energy.iter().enumerate() {
                let meter = state.energy(&state.cards[index], at);
                prop_assert_eq!(meter, EnergyMeter::from_nj(*sum), "as a reader sees it");
            }
            for claim in state.claims.iter().flatten() {
                prop_assert_eq!(u128::from(state.steps(claim, at)), steps[&claim.serial] / FEMTOSTEPS);
            }
            happen(&mut state, physics, at, event);
            happen(&mut often, physics, at, event);
            // A refused event settles nothing; whether one settles or not must not matter either.
            often.settle(at);
            let mut state_settled = state.clone();
            state_settled.settle(at);
            prop_assert_eq!(&state_settled, &often);
            for (card, sum) in often.cards.iter().zip(energy) {
                prop_assert_eq!(card.meter.as_nj(), sum, "as the next event leaves it");
                prop_assert!(card.power <= card.cap);
            }
        }
    }

    /// The instant that `until_steps` names has the steps, and is at most a tick late.
    #[test]
    fn the_end_is_foreseen(steps in 1u64..1_000_000, cap_w in 100u64..=250, after_us in 0u64..1_000_000_000) {
        let physics = physics();
        let at = Timestamp::from_s(5);
        let mut state = NodeState::new(physics, GPUS, at);
        state.set_cap(physics, at, 0, Power::from_w(cap_w)).unwrap();
        let request = ClaimRequest {
            pid: 7, job: JobId::new("j").unwrap(), workload: WorkloadId::new("resnet50-imagenet-b64").unwrap(),
            attempt: 1, rank: 0, nodes: 1, cards: 0b11,
        };
        let serial = state.claim(physics, at, 0, request).unwrap();
        state.change_claim(physics, at, (0, serial), (Phase::Running, 2, u64::MAX)).unwrap();
        let claim = state.claims[0].clone().unwrap();
        let later = Timestamp::from_us(at.as_us() + after_us);
        let end = later + state.until_steps(&claim, later, steps).unwrap();
        prop_assert!(state.steps(&claim, end) >= steps);
        if end > later {
            let tick = std::time::Duration::from_micros(2);
            prop_assert!(state.steps(&claim, end - tick) < steps);
        }
    }
}

#[test]
fn a_full_card_and_a_full_memory_are_refused() {
    use nvml_sim::state::StateError;
    let physics = physics();
    let at = Timestamp::from_s(5);
    let request = |workload: &str| ClaimRequest {
        pid: 7,
        job: JobId::new("j").unwrap(),
        workload: WorkloadId::new(workload).unwrap(),
        attempt: 1,
        rank: 0,
        nodes: 1,
        cards: 1,
    };
    // As many as fit, and what the next one is told.
    let fill = |workload: &str| {
        let mut state = NodeState::new(physics, 1, at);
        loop {
            match state.place_for(physics, &request(workload), |_| true) {
                Ok(place) => state.claim(physics, at, place, request(workload)).unwrap(),
                Err(error) => break (state, error),
            };
        }
    };
    let (state, refused) = fill("resnet50-imagenet-b256");
    assert!(matches!(refused, StateError::OutOfMemory { card: 0, .. }), "{refused:?}");
    assert!(state.memory_mib(&state.cards[0]) <= physics.gpu.memory_mib);
    let smallest = physics.world.workloads().min_by_key(|workload| workload.memory_mib).unwrap();
    assert!(smallest.memory_mib * 9 <= physics.gpu.memory_mib);
    let (state, refused) = fill(smallest.id.as_str());
    assert_eq!((refused, state.cards[0].shares.len()), (StateError::Full, 8));
}
