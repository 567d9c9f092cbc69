//! The reason of a decision, as data; `Display` formats it for users.
//!
//! A simulation takes thousands of decisions in a tenth of a second and displays few of them, so text is
//! formatted only on request. Every variant holds the quantities that the decision was based on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::GpuSetting;
use wattle_common::{JobId, Power, Timestamp};

use crate::accounts::Account;

/// Highest market price of a GPU-second, s of completion time. Above it demand exceeds supply at every
/// price.
pub(crate) const GPU_PRICE_MAX: f64 = 1e9;
const J_PER_KWH: f64 = 3.6e6;

/// Reason of a decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Head of the queue, on the first free GPUs in node order.
    FirstFit,
    /// Head of the queue, larger than a node, on the first completely free nodes.
    WholeNodes {
        /// Number of nodes.
        nodes: u32,
    },
    /// Too few GPUs are free where the job could run.
    NoRoom {
        /// GPUs requested.
        requested: u32,
        /// GPU type requested, if any.
        gpu_type: Option<Arc<str>>,
        /// Free GPUs of the cluster that the job may use.
        free: u32,
        /// Free GPUs of the node with the most.
        free_on_one_node: u32,
        /// Why the job was not co-located either, if the policy co-locates jobs.
        not_shared: Option<NotShared>,
    },
    /// The job has just arrived and the predictor's surface is pending.
    SurfaceAwaited,
    /// Other jobs have precedence, or no job gets GPUs.
    Outranked {
        /// Number of jobs with precedence; 0: the policy gives GPUs to no job.
        before: u32,
    },
    /// Allocated step by step while completion time saved per energy exceeds the energy price.
    EfficientStep {
        /// GPUs allocated.
        gpus: u32,
        /// Relative completion time saved over relative energy spent, of the last step taken.
        ratio: f64,
        /// Lowest accepted ratio.
        price: f64,
    },
    /// Allocated at the market price of a GPU-second.
    Market {
        /// GPUs allocated.
        gpus: u32,
        /// Value of the job's progress, s of completion time per second.
        value: f64,
        /// Price, s of completion time per GPU-second; above 1e9 no price clears the market.
        gpu_price: f64,
        /// Price of power below a limit, seconds of completion time per joule; 0 where it is not scarce.
        power_price: f64,
    },
    /// The job's assigned GPUs are still occupied, asleep or fragmented.
    Awaits {
        /// GPUs assigned.
        gpus: u32,
    },
    /// Co-located because demand exceeds the number of GPUs.
    Paired {
        /// Co-tenant.
        beside: JobId,
        /// Sum of both jobs' predicted normalised speeds.
        sum: f64,
        /// Sum below which the pair is separated.
        threshold: f64,
    },
    /// The operating point at the energy price, for a policy that sets none.
    Priced {
        /// Least relative time saved over relative energy spent of a step.
        price: f64,
    },
    /// The GPU setting of a running job changes.
    Reset {
        /// New setting.
        setting: GpuSetting,
    },
    /// The policy's share of the GPUs for the job.
    Share {
        /// GPUs allocated.
        gpus: u32,
    },
    /// Not started: its account holds its quota.
    Quota {
        /// The account.
        account: Account,
        /// GPUs.
        gpus_max: u32,
    },
    /// Not started: its account holds its share of contended GPUs.
    FairShare {
        /// The account.
        account: Account,
        /// GPUs, rounded.
        share: u32,
    },
    /// Not admitted: the site's power draw with it would exceed the admission limit.
    HeldBack {
        /// Power draw with the job, complete nodes.
        drawn: Power,
        /// Admission limit.
        below: Power,
    },
    /// Not started: it cannot stop, and with it the jobs that cannot stop exceed a power limit during its run.
    LowestLimit {
        /// The least power of these jobs and of all nodes.
        drawn: Power,
        /// The power limit.
        most: Power,
        /// Start of the limit.
        at: Timestamp,
    },
    /// Preempted: the minimum power of the running jobs exceeds the rest of the budget.
    Paused {
        /// Minimum power draw, complete nodes.
        drawn: Power,
        /// Preemption limit.
        above: Power,
    },
    /// Stopped, not started or lowered: the settings with the most work per joule exceed the power limit.
    PowerLimit {
        /// Power limit.
        most: Option<Power>,
    },
    /// Stopped, not started or lowered: the settings with the most work per joule exceed the power limit of a feeder
    /// or a node.
    LocalLimit {
        /// The feeder or node.
        name: Arc<str>,
        /// The feeder whose loss gives it this much power; absent: every feeder is in operation.
        lost: Option<Arc<str>>,
        /// Its power limit.
        most: Power,
    },
    /// Lowered below the bound on its slowdown, because nothing else can give power.
    SlowdownBoundExceeded {
        /// The bound on the slowdown, thousandths.
        permille: u32,
        /// The power limit.
        most: Power,
    },
    /// Placed by the rules of the site's scheduler: CPUs, memory, the same GPU indices on each node.
    SiteRules {
        /// Number of nodes.
        nodes: u32,
    },
    /// Not started: no node with free GPUs has the CPUs and the memory, or no indices are free on all nodes.
    NoHostRoom {
        /// Number of nodes.
        nodes: u32,
        /// GPUs planned.
        gpus: u32,
    },
    /// Deferred within its slack until the grid is cleaner.
    Deferred {
        /// Carbon intensity now, g/kWh.
        now: f64,
        /// Carbon intensity it is expected to fall to, g/kWh.
        below: f64,
        /// Latest end of the deferral.
        until: Timestamp,
    },
    /// Moved, so that a block of GPUs becomes free for another job.
    Defragmented {
        /// GPUs of the block.
        gpus: u32,
    },
    /// Woken for queued jobs.
    Woken {
        /// GPUs these jobs need.
        gpus: u32,
    },
    /// The node was idle for the time after which nodes sleep.
    Unused {
        /// Idle time.
        idle: Duration,
    },
    /// No node and no set of equal nodes has enough GPUs.
    TooLarge {
        /// GPUs requested.
        requested: u32,
        /// GPUs of the cluster, of the requested type if any.
        gpus: u32,
        /// GPU type requested, if any.
        gpu_type: Option<Arc<str>>,
    },
    /// No GPU has the memory that the job declares.
    TooMuchMemory {
        /// Memory declared for each GPU, MiB.
        memory_mib: u64,
        /// GPU type requested, if any.
        gpu_type: Option<Arc<str>>,
    },
    /// No node has GPUs of the requested type.
    NoSuchGpuType {
        /// GPU type requested.
        gpu_type: Arc<str>,
        /// GPU types of the cluster.
        available: Vec<String>,
    },
    /// Co-located with the job with which the sum of normalised speeds is largest.
    Packed {
        /// Co-tenant.
        beside: JobId,
        /// Sum of both jobs' predicted normalised speeds.
        sum: f64,
        /// Sum that had to be exceeded.
        threshold: f64,
        /// Number of pairs evaluated.
        tried: u32,
    },
    /// Co-located on the GPUs with the highest utilization where all deadlines are met.
    Fullest {
        /// Co-tenants.
        beside: Vec<JobId>,
        /// Sum of their GPU utilizations, per cent.
        utilization_percent: f64,
        /// Rank of the candidate, from 1 (highest utilization).
        choice: u32,
        /// Number of candidates.
        candidates: u32,
        /// The job's predicted speed there relative to exclusive GPUs, if a deadline was checked.
        speed: Option<f64>,
    },
    /// On free GPUs, because the job could not be co-located.
    FreeGpus {
        /// Why it is not co-located.
        not_shared: NotShared,
    },
    /// The early observation has ended and all deadlines are met.
    DeadlinesHold {
        /// Jobs observed.
        tenants: u32,
        /// Duration of the observation.
        after: Duration,
    },
    /// The co-location trial has ended without evidence that time-sharing would be faster.
    PairHolds {
        /// Jobs observed.
        tenants: u32,
        /// Duration of the trial.
        after: Duration,
        /// Sum of the measured speeds, each relative to exclusive GPUs; `None` if one is unknown.
        sum: Option<f64>,
    },
    /// The co-location trial has ended and time-sharing would be faster.
    PairLoses {
        /// Duration of the trial.
        after: Duration,
        /// Sum of the measured speeds, each relative to exclusive GPUs.
        sum: f64,
    },
    /// An observed job has no co-tenant any more.
    NeighboursGone,
    /// The early observation has ended and a deadline would be missed.
    DeadlineBroken {
        /// Job with the deadline.
        job: JobId,
        /// Its deadline.
        deadline: Timestamp,
        /// Completion time at its measured speed.
        end: Timestamp,
    },
}

/// Why a job was not co-located.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotShared {
    /// The job requests exclusive GPUs.
    Exclusive,
    /// Its speed or memory is unknown.
    Unknown,
    /// The job cannot be stopped, so a co-location that breaks a deadline could not be undone.
    CannotStop,
    /// Its co-location was undone too often.
    UndoneOften,
    /// No occupied GPUs were within the thresholds and deadlines.
    NoCandidate,
}

impl fmt::Display for NotShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "the job is exclusive",
            Self::Unknown => "its workload has no measurement yet, so it first runs exclusively",
            Self::CannotStop => "it has no checkpoint signal, and a deadline could be missed",
            Self::UndoneOften => "its co-location was undone too often",
            Self::NoCandidate => "no occupied GPUs are within the thresholds and deadlines",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstFit => f.write_str("head of the queue; first fit in node order"),
            Self::WholeNodes { nodes: 1 } => f.write_str("head of the queue; first free node"),
            Self::WholeNodes { nodes } => write!(f, "head of the queue; first {nodes} free nodes"),
            Self::EfficientStep { gpus, ratio, price } => efficient_step(f, *gpus, *ratio, *price),
            Self::Market { gpus, value, gpu_price, power_price } => {
                market(f, *gpus, *value, *gpu_price)?;
                if *power_price > 0.0 {
                    let s_per_kwh = significant(*power_price * J_PER_KWH);
                    write!(f, "; power is scarce, price {s_per_kwh} s per kWh")?;
                }
                Ok(())
            }
            Self::Share { gpus } => write!(f, "its share of the GPUs: {}", Gpus(*gpus)),
            Self::Priced { price } => {
                write!(f, "operating point at energy price {}", significant(*price))
            }
            Self::Reset { setting } => write!(f, "GPU setting changed to {setting}"),
            Self::Defragmented { gpus } => write!(f, "moved to free a block of {}", Gpus(*gpus)),

            Self::Paired { beside, sum, threshold } => write!(
                f,
                "demand exceeds the GPUs; normalised speeds with {beside} sum to {sum:.2}, \
                 threshold {threshold}"
            ),
            Self::Packed { beside, sum, threshold, tried } => write!(
                f,
                "no free GPUs; normalised speeds with {beside} sum to {sum:.2} > {threshold} \
                 (best of {tried})"
            ),
            Self::Fullest { beside, utilization_percent, choice, candidates, speed } => {
                fullest(f, beside, *utilization_percent, (*choice, *candidates), *speed)
            }
            Self::FreeGpus { not_shared } => write!(f, "free GPUs: {not_shared}"),

            Self::NoRoom { requested, gpu_type, free, free_on_one_node, not_shared } => {
                let (gpus, of_type) = (Gpus(*requested), OfType(gpu_type.as_deref()));
                write!(f, "requests {gpus}{of_type}; {free} free, ")?;
                write!(f, "at most {free_on_one_node} on one node")?;
                not_shared.map_or(Ok(()), |reason| write!(f, "; not co-located: {reason}"))
            }
            Self::SurfaceAwaited => f.write_str("new job; the predictor's surface is pending"),
            Self::Outranked { before: 0 } => f.write_str(
                "no job gets GPUs: none is worth its energy at the energy price, or no GPU is available",
            ),
            Self::Outranked { before: 1 } => f.write_str("1 job has precedence"),
            Self::Outranked { before } => write!(f, "{before} jobs have precedence"),
            Self::Awaits { gpus } => {
                write!(f, "{} assigned, still occupied, asleep or fragmented", Gpus(*gpus))
            }
            Self::Deferred { now, below, until } => write!(
                f,
                "deferred until {} at the latest: grid at {now:.0} g/kWh, expected to fall to \
                 {below:.0} g/kWh",
                Utc(*until)
            ),
            Self::SiteRules { nodes: 1 } => f.write_str("on the node with enough CPUs and memory"),
            Self::SiteRules { nodes } => {
                write!(f, "on the same GPUs of {nodes} nodes with enough CPUs and memory")
            }
            Self::NoHostRoom { nodes: 1, gpus } => write!(
                f,
                "no node of its partition with {} free has the CPUs and the memory that the job needs",
                Gpus(*gpus)
            ),
            Self::NoHostRoom { nodes, gpus } => write!(
                f,
                "no {nodes} nodes of its partition with enough CPUs and memory have the same {} free",
                Gpus(gpus / nodes)
            ),
            Self::Woken { gpus } => write!(f, "queued jobs need {}", Gpus(*gpus)),
            Self::Unused { idle } => write!(f, "idle for {} s", idle.as_secs()),

            Self::TooLarge { requested, gpus, gpu_type: None } => {
                write!(
                    f,
                    "requests {}; the cluster of {gpus} cannot provide them",
                    Gpus(*requested)
                )
            }
            Self::TooLarge { requested, gpus, gpu_type: Some(gpu_type) } => write!(
                f,
                "requests {} of type {gpu_type}; the cluster's {gpus} cannot provide them",
                Gpus(*requested)
            ),
            Self::TooMuchMemory { memory_mib, gpu_type } => write!(
                f,
                "needs {memory_mib} MiB on each GPU; no GPU{} of the cluster has that much",
                OfType(gpu_type.as_deref())
            ),
            Self::NoSuchGpuType { gpu_type, available } => write!(
                f,
                "requests GPUs of type {gpu_type}; the cluster has: {}",
                available.join(", ")
            ),

            Self::Quota { account, gpus_max } => {
                write!(f, "it would exceed the quota of {account}: {gpus_max} GPUs")
            }
            Self::FairShare { account, share } => {
                write!(f, "the fair share of {account}, {share} GPUs, is in use")
            }
            Self::HeldBack { drawn, below } => {
                write!(f, "power draw would be {}, admission limit {}", Kw(*drawn), Kw(*below))
            }
            Self::LowestLimit { drawn, most, at } => write!(
                f,
                "it cannot stop, and such jobs would need {} under the power limit of {} at {}",
                Kw(*drawn),
                Kw(*most),
                Utc(*at)
            ),
            Self::Paused { drawn, above } => write!(
                f,
                "minimum power draw {} exceeds what the budget sustains, {}",
                Kw(*drawn),
                Kw(*above)
            ),
            Self::PowerLimit { most: Some(most) } => {
                write!(f, "no power left within the limit of {}", Kw(*most))
            }
            Self::LocalLimit { name, lost, most } => {
                write!(f, "no power left within the limit of {name}, {}", Kw(*most))?;
                match lost {
                    Some(lost) => write!(f, ", if {lost} is lost"),
                    None => Ok(()),
                }
            }
            Self::SlowdownBoundExceeded { permille, most } => write!(
                f,
                "slower than its bound of {} %: nothing else can give power within the limit of {}",
                f64::from(*permille) / 10.0,
                Kw(*most)
            ),
            Self::PowerLimit { most: None } => f.write_str("no power left within the limit"),

            Self::DeadlinesHold { tenants, after } => {
                observed(f, *tenants, *after)?;
                f.write_str("all deadlines are met")
            }
            Self::PairHolds { tenants, after, sum } => {
                observed(f, *tenants, *after)?;
                match sum {
                    Some(sum) => write!(f, "measured relative speeds sum to {sum:.2}"),
                    None => f.write_str("exclusive speeds are not all known"),
                }
            }
            Self::PairLoses { after, sum } => write!(
                f,
                "observed for {} s: measured relative speeds sum to {sum:.2}, slower than \
                 time-sharing",
                after.as_secs()
            ),
            Self::NeighboursGone => f.write_str("no co-tenant is left"),
            Self::DeadlineBroken { job, deadline, end } => {
                let (end, deadline) = (Utc(*end), Utc(*deadline));
                write!(f, "at its measured speed {job} would end at {end}, deadline {deadline}")
            }
        }
    }
}

fn efficient_step(f: &mut fmt::Formatter<'_>, gpus: u32, ratio: f64, price: f64) -> fmt::Result {
    let gpus = Gpus(gpus);
    write!(f, "{gpus}: last step saved {ratio:.2} of completion time per energy, price {price:.2}")
}

fn market(f: &mut fmt::Formatter<'_>, gpus: u32, value: f64, gpu_price: f64) -> fmt::Result {
    let (gpus, value) = (Gpus(gpus), significant(value));
    if gpu_price > GPU_PRICE_MAX {
        return write!(
            f,
            "{gpus}: among the most valuable jobs; demand exceeds the GPUs at any price"
        );
    }
    write!(f, "{gpus}: worth {value} s of completion time per second; ")?;
    if gpu_price <= 0.0 {
        f.write_str("GPUs are not scarce, price 0")
    } else {
        write!(f, "GPU price {} s per GPU-second", significant(gpu_price))
    }
}

fn fullest(
    f: &mut fmt::Formatter<'_>,
    beside: &[JobId],
    utilization_percent: f64,
    (choice, candidates): (u32, u32),
    speed: Option<f64>,
) -> fmt::Result {
    let beside: Vec<&str> = beside.iter().map(JobId::as_str).collect();
    write!(f, "candidate {choice} of {candidates} by utilization; co-located with ")?;
    write!(f, "{} at {utilization_percent:.0} % utilization; ", beside.join(", "))?;
    match speed {
        Some(speed) => write!(f, "predicted speed {speed:.2}, all deadlines are met"),
        None => f.write_str("no deadlines"),
    }
}

fn observed(f: &mut fmt::Formatter<'_>, tenants: u32, after: Duration) -> fmt::Result {
    let s = if tenants == 1 { "" } else { "s" };
    write!(f, "observed {tenants} job{s} for one epoch each ({} s): ", after.as_secs())
}

/// Displays as `1 GPU`, `2 GPUs`.
struct Gpus(u32);

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GPU{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// Displays as ` of type v100`, or empty without a GPU type.
struct OfType<'a>(Option<&'a str>);

impl fmt::Display for OfType<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |gpu_type| write!(f, " of type {gpu_type}"))
    }
}

/// Displays as `0.64 kW`.
struct Kw(Power);

impl fmt::Display for Kw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} kW", self.0.as_w() / 1e3)
    }
}

/// Displays as `2026-11-27 16:00:00 UTC`; in a simulation, which starts at the Unix epoch, as `1970-01-02 03:40:00 UTC`.
struct Utc(Timestamp);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = i64::try_from(self.0.as_us()).ok();
        match us.and_then(|us| jiff::Timestamp::from_microsecond(us).ok()) {
            Some(at) => write!(f, "{} UTC", at.strftime("%Y-%m-%d %H:%M:%S")),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Three significant digits, down to a millionth.
fn significant(value: f64) -> String {
    let digits = match value.abs() {
        0.0..1e-6 => 0,
        size => (2.0 - size.log10().floor()).clamp(0.0, 8.0) as usize,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_that_does_not_clear_the_market_is_not_displayed() {
        let market = |gpu_price| {
            let power_price = 0.0;
            Reason::Market { gpus: 1, value: 2.5, gpu_price, power_price }.to_string()
        };
        let scarce = Reason::Market { gpus: 1, value: 2.5, gpu_price: 0.0, power_price: 1e-4 };
        assert!(scarce.to_string().ends_with("price 0; power is scarce, price 360 s per kWh"));
        assert_eq!(
            market(1.5),
            "1 GPU: worth 2.50 s of completion time per second; GPU price 1.50 s per GPU-second"
        );
        assert_eq!(
            market(0.0),
            "1 GPU: worth 2.50 s of completion time per second; GPUs are not scarce, price 0"
        );
        assert_eq!(
            market(1_717_986_918.4),
            "1 GPU: among the most valuable jobs; demand exceeds the GPUs at any price"
        );
    }

    #[test]
    fn singular_and_plural() {
        let outranked = |before| Reason::Outranked { before }.to_string();
        assert!(outranked(0).starts_with("no job gets GPUs: "), "{}", outranked(0));
        assert_eq!(
            [outranked(1), outranked(2)],
            ["1 job has precedence", "2 jobs have precedence"]
        );
        assert_eq!(
            Reason::WholeNodes { nodes: 1 }.to_string(),
            "head of the queue; first free node"
        );
    }
}
