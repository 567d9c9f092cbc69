//! Energy and steps are the exact integrals of power and rate for every sequence of events and
//! observations.

use nvml_sim::fault::Fault;
use nvml_sim::node::world;
use nvml_sim::state::{ClaimRequest, FEMTOSTEPS, Hardware, NodeState, Phase};
use proptest::prelude::*;
use wattle_common::units::EnergyMeter;
use wattle_common::{Frequency, JobId, Power, Timestamp, WorkloadId};

const GPUS: usize = 3;

#[derive(Clone, Debug)]
enum Event {
    Cap(u32, u64),
    Clock(u32, Option<u32>),
    Claim { gpus: u64, workload: usize },
    Release(usize),
    Lose(u32),
    Clear(u32),
    PeerRate(usize, u64),
}

fn event() -> impl Strategy<Value = Event> {
    let gpu = 0..GPUS as u32;
    prop_oneof![
        (gpu.clone(), 100_000u64..=250_000).prop_map(|(gpu, mw)| Event::Cap(gpu, mw)),
        (gpu.clone(), prop::option::of(400u32..1_500))
            .prop_map(|(gpu, mhz)| Event::Clock(gpu, mhz)),
        (1u64..1 << GPUS, 0usize..200).prop_map(|(gpus, workload)| Event::Claim { gpus, workload }),
        (0usize..8).prop_map(Event::Release),
        gpu.clone().prop_map(Event::Lose),
        gpu.prop_map(Event::Clear),
        (0usize..8, 0u64..5_000_000_000).prop_map(|(slot, rate)| Event::PeerRate(slot, rate)),
    ]
}

fn apply(state: &mut NodeState, hardware: Hardware<'_>, at: Timestamp, event: &Event) {
    // Refused events must not change the state.
    match event {
        Event::Cap(gpu, mw) => {
            let _ = state.set_cap(hardware, at, *gpu, Power::from_mw(*mw));
        }
        Event::Clock(gpu, mhz) => {
            let _ = state.set_clock_max(hardware, at, *gpu, mhz.map(Frequency::from_mhz));
        }
        Event::Claim { gpus, workload } => {
            let workloads: Vec<_> = hardware.world.workloads().collect();
            let request = ClaimRequest {
                pid: 7,
                job: JobId::new("j").unwrap(),
                workload: workloads[workload % workloads.len()].id.clone(),
                attempt: 1,
                rank: 0,
                nodes: 1,
                gpus: *gpus,
            };
            if let Ok(slot) = state.free_slot(hardware, &request, |_| true) {
                let serial = state.claim(hardware, at, slot, request).unwrap();
                let gpus = gpus.count_ones();
                let run = (Phase::Running, gpus, u64::MAX);
                state.change_claim(hardware, at, (slot, serial), run).unwrap();
            }
        }
        Event::Release(slot) => state.release(hardware, at, &[*slot]),
        Event::Lose(gpu) => state.set_fault(hardware, at, *gpu, Fault::Lost).unwrap(),
        Event::Clear(gpu) => state.set_fault(hardware, at, *gpu, Fault::Clear).unwrap(),
        Event::PeerRate(slot, rate) => {
            if let Some(claim) = state.claims[*slot].clone() {
                let to = (Phase::Running, claim.gpus_total, *rate);
                state.change_claim(hardware, at, (*slot, claim.serial), to).unwrap();
            }
        }
    }
}

fn hardware() -> Hardware<'static> {
    Hardware { world: world(), model: world().gpu("v100").unwrap() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn energy_and_steps_are_exact_integrals(
        events in prop::collection::vec((0u64..90_000_000_000, event()), 1..40),
        instants in prop::collection::vec(0u64..1_000_000, 0..4),
    ) {
        let hardware = hardware();
        let mut at = Timestamp::from_s(1_000);
        let mut state = NodeState::new(hardware, GPUS, at);
        let mut advanced = state.clone();
        // Independent integrals: nanojoules and femtosteps.
        let mut energy = [0u128; GPUS];
        let mut steps = std::collections::BTreeMap::new();
        for (span_us, event) in &events {
            for (sum, gpu) in energy.iter_mut().zip(&state.gpus) {
                *sum += u128::from(gpu.power.as_mw()) * u128::from(*span_us);
            }
            for claim in state.claims.iter().flatten() {
                *steps.entry(claim.serial).or_insert(0u128) += u128::from(claim.rate()) * u128::from(*span_us);
            }
            // One copy is advanced at intermediate instants, which must not change the result.
            for part in &instants {
                let intermediate = Timestamp::from_us(at.as_us() + span_us * part / 1_000_000);
                advanced.advance(intermediate);
            }
            at = Timestamp::from_us(at.as_us() + span_us);
            for (index, sum) in energy.iter().enumerate() {
                let meter = state.energy(&state.gpus[index], at);
                prop_assert_eq!(meter, EnergyMeter::from_nj(*sum), "as observed");
            }
            for claim in state.claims.iter().flatten() {
                prop_assert_eq!(u128::from(state.steps(claim, at)), steps[&claim.serial] / FEMTOSTEPS);
            }
            apply(&mut state, hardware, at, event);
            apply(&mut advanced, hardware, at, event);
            // A refused event may or may not advance the state.
            advanced.advance(at);
            let mut state_settled = state.clone();
            state_settled.advance(at);
            prop_assert_eq!(&state_settled, &advanced);
            for (gpu, sum) in advanced.gpus.iter().zip(energy) {
                prop_assert_eq!(gpu.meter.as_nj(), sum, "after the event");
                prop_assert!(gpu.power <= gpu.cap);
            }
        }
    }

    /// `until_steps` returns the instant at which the steps are complete, within 2 µs.
    #[test]
    fn time_until_steps_is_exact(steps in 1u64..1_000_000, cap_w in 100u64..=250, after_us in 0u64..1_000_000_000) {
        let hardware = hardware();
        let at = Timestamp::from_s(5);
        let mut state = NodeState::new(hardware, GPUS, at);
        state.set_cap(hardware, at, 0, Power::from_w(cap_w)).unwrap();
        let request = ClaimRequest {
            pid: 7, job: JobId::new("j").unwrap(), workload: WorkloadId::new("resnet50-imagenet-b64").unwrap(),
            attempt: 1, rank: 0, nodes: 1, gpus: 0b11,
        };
        let serial = state.claim(hardware, at, 0, request).unwrap();
        state.change_claim(hardware, at, (0, serial), (Phase::Running, 2, u64::MAX)).unwrap();
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
fn claims_beyond_memory_or_slots_are_refused() {
    use nvml_sim::state::StateError;
    let hardware = hardware();
    let at = Timestamp::from_s(5);
    let request = |workload: &str| ClaimRequest {
        pid: 7,
        job: JobId::new("j").unwrap(),
        workload: WorkloadId::new(workload).unwrap(),
        attempt: 1,
        rank: 0,
        nodes: 1,
        gpus: 1,
    };
    // Fills the GPU and returns the refusal of the next claim.
    let fill = |workload: &str| {
        let mut state = NodeState::new(hardware, 1, at);
        loop {
            match state.free_slot(hardware, &request(workload), |_| true) {
                Ok(slot) => state.claim(hardware, at, slot, request(workload)).unwrap(),
                Err(error) => break (state, error),
            };
        }
    };
    let (state, refused) = fill("resnet50-imagenet-b256");
    assert!(matches!(refused, StateError::OutOfMemory { gpu: 0, .. }), "{refused:?}");
    assert!(state.memory_mib(&state.gpus[0]) <= hardware.model.memory_mib);
    let smallest = hardware.world.workloads().min_by_key(|workload| workload.memory_mib).unwrap();
    assert!(smallest.memory_mib * 9 <= hardware.model.memory_mib);
    let (state, refused) = fill(smallest.id.as_str());
    assert_eq!((refused, state.gpus[0].shares.len()), (StateError::Full, 8));
}
