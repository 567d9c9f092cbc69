//! Binary layout of a node's state in the shared file, as 64-bit words.
//!
//! ```text
//! word 0..3     the clock (TimeScale::to_bytes), the source of system time for all processes
//! word 3        layout version
//! word 4        number of GPUs
//! word 5        sequence number of the state; its lowest bit selects the valid copy
//! word 8..16    node id, NUL-padded
//! word 16..24   GPU type, NUL-padded
//! word 24..29   the grant of the clock (wattle_common::time::grant)
//! word 29       wall time at reading zero of the boot-time clock, microseconds
//! word 30       the boot of the machine in which word 29 was written, as a hash
//! word 512..    copy 0 of the state, then copy 1
//! ```
//!
//! This module converts between words and values; it does not access shared memory. File contents
//! are untrusted: every count is bounded and every text is validated.

use wattle_common::time::grant::Grant;
use wattle_common::time::{TimeScale, TimeScaleError};
use wattle_common::topology::GPUS_PER_NODE_MAX;
use wattle_common::units::EnergyMeter;
use wattle_common::{Energy, Frequency, JobId, NodeId, Power, Timestamp, WorkloadId};

use crate::driver::DriverState;
use crate::fault::SLOWDOWNS;
use crate::health::Health;
use crate::state::{CLAIMS_MAX, Claim, ClaimRequest, Gpu, NodeState, Phase, Share, TENANTS_MAX};

/// Changed with every incompatible layout.
const VERSION: u64 = 2;
/// Index of the sequence number.
pub(crate) const SEQUENCE: usize = 5;
/// Index of the clock's grant.
pub(crate) const GRANT: usize = Grant::OFFSET / 8;
/// Index of the wall time at reading zero of the boot-time clock.
pub(crate) const BOOTED: usize = 29;
/// Index of the boot in which that was written.
pub(crate) const BOOT: usize = 30;
/// Words before the first copy: one page, so that the head can be mapped separately.
pub(crate) const HEAD_WORDS: usize = 512;
const NODE: usize = 8;
const GPU_TYPE: usize = 16;
const TEXT_WORDS: usize = 8;
const GPU_WORDS: usize = 14 + TENANTS_MAX;
const CLAIM_WORDS: usize = 16 + 2 * TEXT_WORDS;
const STATE_HEAD_WORDS: usize = 3;

/// Constant properties of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) clock: TimeScale,
    pub(crate) node: NodeId,
    pub(crate) gpu_type: String,
    pub(crate) gpus: usize,
}

/// Why words are not a valid state.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LayoutError {
    #[error(transparent)]
    Clock(#[from] TimeScaleError),
    #[error(
        "layout version {0}, expected {VERSION}; recreate the node with the wattle-simnode of this release"
    )]
    Version(u64),
    #[error("the state is corrupt: {0}; recreate the node")]
    Corrupt(&'static str),
}

/// Number of words of one copy of the state.
pub(crate) const fn state_words(gpus: usize) -> usize {
    STATE_HEAD_WORDS + gpus * GPU_WORDS + CLAIMS_MAX * CLAIM_WORDS
}

/// Number of words of the file.
pub(crate) const fn file_words(gpus: usize) -> usize {
    HEAD_WORDS + 2 * state_words(gpus)
}

fn text_to_words(text: &str) -> [u64; TEXT_WORDS] {
    let mut words = [0; TEXT_WORDS];
    for (word, bytes) in words.iter_mut().zip(text.as_bytes().chunks(8)) {
        for (index, byte) in bytes.iter().enumerate() {
            *word |= u64::from(*byte) << (8 * index);
        }
    }
    words
}

fn words_to_text(words: &[u64]) -> Result<String, LayoutError> {
    let bytes: Vec<u8> =
        words.iter().flat_map(|w| w.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8(bytes).map_err(|_| LayoutError::Corrupt("a name is not UTF-8"))
}

/// Splits a 128-bit count into two words, low word first.
fn halves(count: u128) -> [u64; 2] {
    [count as u64, (count >> 64) as u64]
}

impl Head {
    pub(crate) fn to_words(&self) -> Vec<u64> {
        let mut words = vec![0; HEAD_WORDS];
        for (word, bytes) in words.iter_mut().zip(self.clock.to_bytes().chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight"));
        }
        words[3] = VERSION;
        words[4] = self.gpus as u64;
        words[NODE..NODE + TEXT_WORDS].copy_from_slice(&text_to_words(self.node.as_str()));
        words[GPU_TYPE..GPU_TYPE + TEXT_WORDS].copy_from_slice(&text_to_words(&self.gpu_type));
        words
    }

    pub(crate) fn from_words(words: &[u64]) -> Result<Self, LayoutError> {
        if words.len() < HEAD_WORDS {
            return Err(TimeScaleError::NotAState.into());
        }
        let clock_bytes: Vec<u8> = words[..3].iter().flat_map(|w| w.to_le_bytes()).collect();
        let clock = TimeScale::from_bytes(&clock_bytes)?;
        if words[3] != VERSION {
            return Err(LayoutError::Version(words[3]));
        }
        if words[4] == 0 || words[4] > u64::from(GPUS_PER_NODE_MAX) {
            return Err(LayoutError::Corrupt("invalid number of GPUs"));
        }
        let node = words_to_text(&words[NODE..NODE + TEXT_WORDS])?;
        Ok(Self {
            clock,
            node: NodeId::new(&node).map_err(|_| LayoutError::Corrupt("invalid node id"))?,
            gpu_type: words_to_text(&words[GPU_TYPE..GPU_TYPE + TEXT_WORDS])?,
            gpus: words[4] as usize,
        })
    }
}

/// Appends words.
struct Writer(Vec<u64>);

impl Writer {
    fn put(&mut self, word: impl Into<u64>) {
        self.0.push(word.into());
    }
    fn put_all(&mut self, words: &[u64]) {
        self.0.extend_from_slice(words);
    }
}

/// Reads words in sequence.
struct Reader<'a>(std::slice::Iter<'a, u64>);

impl Reader<'_> {
    fn word(&mut self) -> Result<u64, LayoutError> {
        self.0.next().copied().ok_or(LayoutError::Corrupt("unexpected end"))
    }
    fn small(&mut self) -> Result<u32, LayoutError> {
        u32::try_from(self.word()?).map_err(|_| LayoutError::Corrupt("number out of range"))
    }
    fn wide(&mut self) -> Result<u128, LayoutError> {
        let low = u128::from(self.word()?);
        Ok(u128::from(self.word()?) << 64 | low)
    }
    fn ratio(&mut self) -> Result<f64, LayoutError> {
        let value = f64::from_bits(self.word()?);
        if value.is_finite() { Ok(value) } else { Err(LayoutError::Corrupt("not a finite number")) }
    }
    fn text(&mut self) -> Result<String, LayoutError> {
        let words = (0..TEXT_WORDS).map(|_| self.word()).collect::<Result<Vec<_>, _>>()?;
        words_to_text(&words)
    }
}

pub(crate) fn state_to_words(state: &NodeState) -> Vec<u64> {
    let mut out = Writer(Vec::with_capacity(state_words(state.gpus.len())));
    out.put(state.advanced_to.as_us());
    out.put(state.next_serial);
    out.put(state.driver.to_word());
    for gpu in &state.gpus {
        put_gpu(&mut out, gpu);
    }
    for claim in &state.claims {
        match claim {
            Some(claim) => put_claim(&mut out, claim),
            None => out.put_all(&[0; CLAIM_WORDS]),
        }
    }
    out.0
}

pub(crate) fn state_from_words(words: &[u64], gpus: usize) -> Result<NodeState, LayoutError> {
    let mut input = Reader(words.iter());
    let advanced_to = Timestamp::from_us(input.word()?);
    let next_serial = input.word()?;
    let driver = DriverState::from_word(input.word()?);
    let gpus = (0..gpus).map(|_| get_gpu(&mut input)).collect::<Result<Vec<_>, _>>()?;
    let claims = (0..CLAIMS_MAX).map(|_| get_claim(&mut input)).collect::<Result<Vec<_>, _>>()?;
    Ok(NodeState { advanced_to, next_serial, driver, gpus, claims })
}

const CAPPED: u64 = 1;
const LOST: u64 = 2;
const NO_PERMISSION: u64 = 4;
const STUCK: u64 = 8;
const CLOCK_LOCKED: u64 = 16;
const MIG: u64 = 32;
const PERSISTENCE_OFF: u64 = 64;
const REPAIR_PENDING: u64 = 128;
const REPAIR_FAILED: u64 = 256;

fn put_gpu(out: &mut Writer, gpu: &Gpu) {
    let flag = |set: bool, bit: u64| if set { bit } else { 0 };
    out.put(
        flag(gpu.power_capped, CAPPED)
            | flag(gpu.lost, LOST)
            | flag(gpu.no_permission, NO_PERMISSION)
            | flag(gpu.energy_stuck.is_some(), STUCK)
            | flag(gpu.clock_max.is_some(), CLOCK_LOCKED)
            | flag(gpu.health.mig, MIG)
            | flag(gpu.health.persistence_off, PERSISTENCE_OFF)
            | flag(gpu.health.repair_pending, REPAIR_PENDING)
            | flag(gpu.health.repair_failed, REPAIR_FAILED),
    );
    out.put(gpu.cap.as_mw());
    out.put(gpu.clock_max.unwrap_or_default().as_mhz());
    out.put_all(&halves(gpu.meter.as_nj()));
    out.put(gpu.power.as_mw());
    out.put(gpu.clock.as_mhz());
    out.put(gpu.utilization_gpu.to_bits());
    out.put(gpu.utilization_memory.to_bits());
    out.put(gpu.energy_stuck.unwrap_or_default().as_mj());
    out.put(gpu.unsupported);
    out.put(gpu.health.ecc_errors);
    // Zero: none; else its number in the list, from 1.
    let cause = |slowdown| SLOWDOWNS.iter().position(|(cause, _)| *cause == slowdown);
    out.put(gpu.health.slowdown.and_then(cause).map_or(0, |index| index as u64 + 1));
    out.put(gpu.shares.len().min(TENANTS_MAX) as u64);
    for index in 0..TENANTS_MAX {
        // One word holds the claim's slot and the utilisation in millionths.
        out.put(gpu.shares.get(index).map_or(0, |share| {
            (share.claim as u64) << 32 | (share.utilization * 1e6).round() as u64
        }));
    }
}

fn get_gpu(input: &mut Reader<'_>) -> Result<Gpu, LayoutError> {
    let flags = input.word()?;
    let cap = Power::from_mw(input.word()?);
    let clock_max = Frequency::from_mhz(input.small()?);
    let meter = EnergyMeter::from_nj(input.wide()?);
    let power = Power::from_mw(input.word()?);
    let clock = Frequency::from_mhz(input.small()?);
    let utilization_gpu = input.ratio()?;
    let utilization_memory = input.ratio()?;
    let stuck = Energy::from_mj(input.word()?);
    let unsupported = input.word()?;
    let (ecc_errors, slowdown) = (input.word()?, input.word()?);
    let tenants = input.word()?;
    let words = (0..TENANTS_MAX).map(|_| input.word()).collect::<Result<Vec<_>, _>>()?;
    if tenants > TENANTS_MAX as u64 {
        return Err(LayoutError::Corrupt("too many tenants"));
    }
    let shares = words[..tenants as usize]
        .iter()
        .map(|word| Share {
            claim: (word >> 32) as usize,
            utilization: (word & u64::from(u32::MAX)) as f64 / 1e6,
        })
        .collect::<Vec<_>>();
    if shares.iter().any(|share| share.claim >= CLAIMS_MAX) {
        return Err(LayoutError::Corrupt("invalid tenant"));
    }
    Ok(Gpu {
        cap,
        clock_max: (flags & CLOCK_LOCKED != 0).then_some(clock_max),
        meter,
        power,
        clock,
        utilization_gpu,
        utilization_memory,
        power_capped: flags & CAPPED != 0,
        lost: flags & LOST != 0,
        no_permission: flags & NO_PERMISSION != 0,
        energy_stuck: (flags & STUCK != 0).then_some(stuck),
        unsupported,
        health: Health {
            mig: flags & MIG != 0,
            persistence_off: flags & PERSISTENCE_OFF != 0,
            repair_pending: flags & REPAIR_PENDING != 0,
            repair_failed: flags & REPAIR_FAILED != 0,
            ecc_errors,
            slowdown: match usize::try_from(slowdown).map(|number| number.checked_sub(1)) {
                Ok(None) => None,
                Ok(Some(index)) if index < SLOWDOWNS.len() => Some(SLOWDOWNS[index].0),
                _ => return Err(LayoutError::Corrupt("invalid slowdown")),
            },
        },
        shares,
    })
}

fn put_claim(out: &mut Writer, claim: &Claim) {
    let request = &claim.request;
    // Zero marks an empty slot.
    out.put(match claim.phase {
        Phase::Waiting => 1u64,
        Phase::Running => 2,
        Phase::Ended => 3,
    });
    out.put(claim.serial);
    out.put(request.pid);
    out.put(request.attempt);
    out.put(request.rank);
    out.put(request.nodes);
    out.put(request.gpus);
    out.put(claim.gpus_total);
    out.put(claim.memory_mib);
    out.put(claim.local_rate);
    out.put(claim.peer_rate);
    out.put_all(&halves(claim.femtosteps));
    out.put_all(&[0; 3]);
    out.put_all(&text_to_words(request.job.as_str()));
    out.put_all(&text_to_words(request.workload.as_str()));
}

fn get_claim(input: &mut Reader<'_>) -> Result<Option<Claim>, LayoutError> {
    let phase = match input.word()? {
        0 => {
            for _ in 1..CLAIM_WORDS {
                input.word()?;
            }
            return Ok(None);
        }
        1 => Phase::Waiting,
        2 => Phase::Running,
        3 => Phase::Ended,
        _ => return Err(LayoutError::Corrupt("invalid phase")),
    };
    let serial = input.word()?;
    let (pid, attempt) = (input.small()?, input.small()?);
    let (rank, nodes) = (input.small()?, input.small()?);
    let gpus = input.word()?;
    let gpus_total = input.small()?;
    let memory_mib = input.word()?;
    let (local_rate, peer_rate) = (input.word()?, input.word()?);
    let femtosteps = input.wide()?;
    for _ in 0..3 {
        input.word()?;
    }
    let job = JobId::new(&input.text()?).map_err(|_| LayoutError::Corrupt("invalid job id"))?;
    let workload =
        WorkloadId::new(&input.text()?).map_err(|_| LayoutError::Corrupt("invalid workload id"))?;
    let request = ClaimRequest { pid, job, workload, attempt, rank, nodes, gpus };
    Ok(Some(Claim {
        serial,
        request,
        phase,
        gpus_total,
        memory_mib,
        local_rate,
        peer_rate,
        femtosteps,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(b"abzAZ09-_".to_vec()), 1..=64)
            .prop_map(|bytes| String::from_utf8(bytes).unwrap())
    }

    fn gpu() -> impl Strategy<Value = Gpu> {
        let shares = prop::collection::vec((0..CLAIMS_MAX, 0u32..=1_000_000), 0..=TENANTS_MAX);
        (any::<[u64; 5]>(), any::<[u32; 2]>(), any::<[bool; 9]>(), any::<u128>(), shares).prop_map(
            |([cap, power, stuck, unsupported, ecc_errors], [clock, lock], flags, nj, shares)| {
                Gpu {
                    cap: Power::from_mw(cap),
                    clock_max: flags[0].then(|| Frequency::from_mhz(lock)),
                    meter: EnergyMeter::from_nj(nj),
                    power: Power::from_mw(power),
                    clock: Frequency::from_mhz(clock),
                    utilization_gpu: 0.25,
                    utilization_memory: 0.1,
                    power_capped: flags[1],
                    lost: flags[2],
                    no_permission: flags[3],
                    energy_stuck: flags[4].then(|| Energy::from_mj(stuck)),
                    unsupported,
                    health: Health {
                        mig: flags[5],
                        persistence_off: flags[6],
                        repair_pending: flags[7],
                        repair_failed: flags[8],
                        ecc_errors,
                        slowdown: SLOWDOWNS.get(ecc_errors as usize % 5).map(|(cause, _)| *cause),
                    },
                    shares: shares
                        .into_iter()
                        .map(|(claim, u)| Share { claim, utilization: f64::from(u) / 1e6 })
                        .collect(),
                }
            },
        )
    }

    fn claim() -> impl Strategy<Value = Option<Claim>> {
        let phase = prop::sample::select(vec![Phase::Waiting, Phase::Running, Phase::Ended]);
        let claim = (any::<[u64; 5]>(), any::<[u32; 5]>(), any::<u128>(), phase, id(), id())
            .prop_map(|(wide, small, femtosteps, phase, job, workload)| Claim {
                serial: wide[0],
                request: ClaimRequest {
                    pid: small[0],
                    job: JobId::new(&job).unwrap(),
                    workload: WorkloadId::new(&workload).unwrap(),
                    attempt: small[1],
                    rank: small[2],
                    nodes: small[3],
                    gpus: wide[1],
                },
                phase,
                gpus_total: small[4],
                memory_mib: wide[2],
                local_rate: wide[3],
                peer_rate: wide[4],
                femtosteps,
            });
        prop::option::of(claim)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_state_round_trips(
            at in any::<u64>(),
            next_serial in any::<u64>(),
            driver in any::<u64>(),
            gpus in prop::collection::vec(gpu(), 1..5),
            claims in prop::collection::vec(claim(), CLAIMS_MAX),
        ) {
            let advanced_to = Timestamp::from_us(at);
            let driver = DriverState::from_word(driver);
            let state = NodeState { advanced_to, next_serial, driver, gpus, claims };
            let words = state_to_words(&state);
            prop_assert_eq!(words.len(), state_words(state.gpus.len()));
            prop_assert_eq!(state_from_words(&words, state.gpus.len()), Ok(state));
        }

        #[test]
        fn arbitrary_words_never_panic(words in prop::collection::vec(any::<u64>(), 0..4_000), small in any::<bool>(), gpus in 0usize..70) {
            let words: Vec<u64> = if small { words.iter().map(|w| w % 5).collect() } else { words };
            let _ = state_from_words(&words, gpus);
            let _ = Head::from_words(&words);
        }

        #[test]
        fn a_head_round_trips(epoch_us in any::<u64>(), rate in 1u32.., node in id(), gpus in 1usize..=64) {
            let node = NodeId::new(&node).unwrap();
            let head = Head { clock: TimeScale { epoch_us, rate }, node, gpu_type: "v100".to_owned(), gpus };
            let words = head.to_words();
            prop_assert_eq!(Head::from_words(&words), Ok(head));
            // `runtime` reads the clock from the head of the file.
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            prop_assert_eq!(TimeScale::from_bytes(&bytes), Ok(TimeScale { epoch_us, rate }));
        }
    }

    #[test]
    fn other_version_is_refused_with_a_remedy() {
        let node = NodeId::new("n0").unwrap();
        let head = Head { clock: TimeScale::WALL, node, gpu_type: "v100".to_owned(), gpus: 8 };
        let mut words = head.to_words();
        words[3] = 9;
        let error = Head::from_words(&words).unwrap_err().to_string();
        assert!(error.contains("recreate the node"), "{error}");
    }
}
