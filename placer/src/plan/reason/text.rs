//! The text of a reason, for users.

use std::fmt;
use std::time::Duration;

use wattle_common::{JobId, Power, Timestamp};

use super::{GPU_PRICE_MAX, NotShared, Reason};

const J_PER_KWH: f64 = 3.6e6;

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

            Self::NoRoom {
                requested,
                gpu_type,
                free,
                free_on_one_node,
                not_shared,
                reserved_at,
            } => {
                let (gpus, of_type) = (Gpus(*requested), OfType(gpu_type.as_deref()));
                write!(f, "requests {gpus}{of_type}; {free} free, ")?;
                write!(f, "at most {free_on_one_node} on one node")?;
                not_shared.map_or(Ok(()), |reason| write!(f, "; not co-located: {reason}"))?;
                reserved_at.map_or(Ok(()), |at| {
                    write!(f, "; starts by {} if jobs keep their time limits", Utc(at))
                })
            }
            Self::Backfilled { head, reserved_at, ends_before } => {
                backfilled(f, head, *reserved_at, *ends_before)
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

fn backfilled(
    f: &mut fmt::Formatter<'_>,
    head: &JobId,
    reserved_at: Option<Timestamp>,
    ends_before: bool,
) -> fmt::Result {
    match reserved_at {
        None => write!(f, "backfilled: the healthy GPUs do not hold {head}"),
        Some(at) if ends_before => {
            write!(
                f,
                "backfilled: its time limit ends by the reserved start of {head}, {}",
                Utc(at)
            )
        }
        Some(at) => {
            write!(f, "backfilled: {head} can start at its reserved {} without these GPUs", Utc(at))
        }
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
