//! The text of a reason, for users: one sentence, and the prices and ratios behind it.

use std::fmt;
use std::time::Duration;

use wattle_common::{JobId, Power, Timestamp};

use super::{GPU_PRICE_MAX, NotShared, Reason};

const J_PER_KWH: f64 = 3.6e6;

impl fmt::Display for NotShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "the job is exclusive",
            Self::Unknown => "its workload has no measurement yet, so it first runs alone",
            Self::CannotStop => "it has no checkpoint signal, and a deadline could be missed",
            Self::UndoneOften => "its co-location was undone too often",
            Self::NoCandidate => "no occupied GPUs can be shared within the limits of utilization, memory and deadlines",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstFit => {
                f.write_str("first in the queue, on the first free GPUs in node order")
            }
            Self::WholeNodes { nodes: 1 } => {
                f.write_str("first in the queue, on the first free node")
            }
            Self::WholeNodes { nodes } => {
                write!(f, "first in the queue, on the first {nodes} free nodes")
            }
            Self::EfficientStep { gpus, .. } => write!(
                f,
                "{}: more GPUs or a higher clock would save too little time for their energy",
                Gpus(*gpus)
            ),
            Self::Market { gpus, is_only_size: true, gpu_price, power_price, .. } => {
                let scarce = match (*gpu_price > 0.0, *power_price > 0.0) {
                    (false, false) => "GPUs are not scarce",
                    (true, false) => "GPUs are scarce",
                    (false, true) => "power is scarce",
                    (true, true) => "GPUs and power are scarce",
                };
                write!(f, "{}, the only number that it permits; {scarce}", Gpus(*gpus))
            }
            Self::Market { gpus, gpu_price, power_price, .. } => {
                let gpus = Gpus(*gpus);
                match (*gpu_price > 0.0, *power_price > 0.0) {
                    (false, false) => {
                        write!(f, "{gpus}: the best number for its time and energy; GPUs are not scarce")
                    }
                    (true, false) => {
                        write!(
                            f,
                            "{gpus}: GPUs are scarce, and more of them serve other jobs better"
                        )
                    }
                    (false, true) => {
                        write!(
                            f,
                            "{gpus}: power is scarce, and more of it serves other jobs better"
                        )
                    }
                    (true, true) => {
                        write!(
                            f,
                            "{gpus}: GPUs and power are scarce, and more of them serve other jobs better"
                        )
                    }
                }
            }
            Self::Share { gpus } => {
                write!(
                    f,
                    "{}: its share of the GPUs, which the policy divides among all jobs",
                    Gpus(*gpus)
                )
            }
            Self::Priced { .. } => f.write_str(
                "any faster setting would save too little time for its energy",
            ),
            Self::Reset { setting } => write!(f, "GPU setting changed to {setting}"),
            Self::Defragmented { gpus } => write!(f, "moved to free a block of {}", Gpus(*gpus)),

            Self::Paired { beside, sum, .. } => write!(
                f,
                "more jobs than GPUs: shared with job {beside}; together {sum:.2} times the work of one job alone"
            ),
            Self::Packed { beside, sum, .. } => write!(
                f,
                "no GPU is free: shared with job {beside}; together {sum:.2} times the work of one job alone"
            ),
            Self::Fullest { beside, utilization_percent, speed, .. } => {
                fullest(f, beside, *utilization_percent, *speed)
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
            Self::SurfaceAwaited => {
                f.write_str("new job; the first prediction of its speed and power is pending")
            }
            Self::Outranked { before: 0 } => f.write_str(
                "no GPU is free for it, or its time is not worth its energy at the present energy price",
            ),
            Self::Outranked { before: 1 } => {
                f.write_str("1 job is before it in the policy's order")
            }
            Self::Outranked { before } => {
                write!(f, "{before} jobs are before it in the policy's order")
            }
            Self::Awaits { gpus } => {
                let (is, they) = if *gpus == 1 { ("is", "it is") } else { ("are", "they are") };
                let gpus = Gpus(*gpus);
                write!(f, "{gpus} {is} planned for it; it starts once {they} free, awake and in one block")
            }
            Self::Deferred { now, below, until } => write!(
                f,
                "deferred until {} at the latest: grid at {now:.0} g/kWh, expected to fall to \
                 {below:.0} g/kWh",
                Utc(*until)
            ),
            Self::SiteRules { nodes: 1 } => f.write_str("the node has enough CPUs and memory"),
            Self::SiteRules { nodes } => write!(
                f,
                "the {nodes} nodes have enough CPUs and memory, and the same GPU numbers are free on each"
            ),
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
                write!(f, "the fair share of {account}, {share} GPUs, is fully used")
            }
            Self::HeldBack { drawn: Some(drawn), below } => {
                write!(
                    f,
                    "with it the site would draw {}; at most {} is permitted",
                    Kw(*drawn),
                    Kw(*below)
                )
            }
            Self::HeldBack { drawn: None, below } => write!(
                f,
                "at most {} is permitted, and the power of its GPUs and nodes is not known before their first entry \
                 in the energy ledger",
                Kw(*below)
            ),
            Self::LowestLimit { drawn, most, at, feeder } => {
                let (drawn, most) = (Kw(*drawn), Kw(*most));
                write!(f, "once started it cannot be stopped; with it such jobs need {drawn}, and the power limit")?;
                if let Some(feeder) = feeder {
                    write!(f, " of {feeder}")?;
                }
                write!(f, " at {} is {most}", Utc(*at))
            }
            Self::Paused { drawn, above } => write!(
                f,
                "the running jobs need {} at their lowest caps; the budget permits {}",
                Kw(*drawn),
                Kw(*above)
            ),
            Self::PowerLimit { most: Some(most) } => {
                write!(f, "not enough power within the limit of {}", Kw(*most))
            }
            Self::LocalLimit { name, lost, most } => {
                write!(f, "not enough power within the limit of {name}, {}", Kw(*most))?;
                match lost {
                    Some(lost) => write!(f, ", if {lost} is lost"),
                    None => Ok(()),
                }
            }
            Self::SlowdownBoundExceeded { permille, most } => write!(
                f,
                "slowed by more than the {} % that its owner permits: no other job can give up power within the limit of {}",
                f64::from(*permille) / 10.0,
                Kw(*most)
            ),
            Self::PowerLimit { most: None } => f.write_str("not enough power within the limit"),

            Self::DeadlinesHold { tenants, after } => {
                observed(f, *tenants, *after)?;
                f.write_str("all deadlines are met")
            }
            Self::PairHolds { tenants, after, sum } => {
                observed(f, *tenants, *after)?;
                match sum {
                    Some(sum) => {
                        write!(f, "together they do {sum:.2} times the work of one job alone")
                    }
                    None => f.write_str("the speeds alone are not all known"),
                }
            }
            Self::PairLoses { after, sum } => write!(
                f,
                "observed for {} s: together they do {sum:.2} times the work of one job alone, less than one after the other",
                after.as_secs()
            ),
            Self::NeighboursGone => f.write_str("no co-tenant is left"),
            Self::DeadlineBroken { job, deadline, end } => {
                let (end, deadline) = (Utc(*end), Utc(*deadline));
                write!(
                    f,
                    "job {job}, at its measured speed, would end at {end}; its deadline is {deadline}"
                )
            }
        }
    }
}

impl Reason {
    /// The prices and ratios behind the sentence; `None`: the sentence has all.
    #[must_use]
    pub fn details(&self) -> Option<String> {
        let text = match self {
            Self::EfficientStep { ratio, price, .. } => format!(
                "the last step saved {ratio:.2} of completion time per energy, price {price:.2}"
            ),
            Self::Market { value, gpu_price, power_price, .. } => {
                let mut text = market(*value, *gpu_price);
                if *power_price > 0.0 {
                    let s_per_kwh = significant(*power_price * J_PER_KWH);
                    text.push_str(&format!("; price of power {s_per_kwh} s per kWh"));
                }
                text
            }
            Self::Priced { price } => format!("energy price {}", significant(*price)),
            Self::Paired { threshold, .. } => format!("separated below {threshold}"),
            Self::Packed { threshold, tried, .. } => {
                format!("more than {threshold} is required; the best of {tried} jobs")
            }
            Self::Fullest { choice, candidates, .. } => {
                format!("candidate {choice} of {candidates} by utilization")
            }
            _ => return None,
        };
        Some(text)
    }
}

fn market(value: f64, gpu_price: f64) -> String {
    let value = format!("worth {} s of completion time per second", significant(value));
    if gpu_price > GPU_PRICE_MAX {
        format!("{value}; demand exceeds the GPUs at any price")
    } else if gpu_price > 0.0 {
        format!("{value}; GPU price {} s per GPU-second", significant(gpu_price))
    } else {
        format!("{value}; GPU price 0")
    }
}

fn fullest(
    f: &mut fmt::Formatter<'_>,
    beside: &[JobId],
    utilization_percent: f64,
    speed: Option<f64>,
) -> fmt::Result {
    let beside: Vec<&str> = beside.iter().map(JobId::as_str).collect();
    let job_s = if beside.len() == 1 { "job" } else { "jobs" };
    write!(f, "on the busiest suitable GPUs, {utilization_percent:.0} % utilized by {job_s} ")?;
    write!(f, "{}; ", beside.join(", "))?;
    match speed {
        Some(speed) => {
            write!(f, "this job runs at {speed:.2} of its speed alone; all deadlines are met")
        }
        None => f.write_str("no job has a deadline"),
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
    fn prices_are_details_of_a_sentence() {
        let market = |gpu_price, power_price| {
            let reason =
                Reason::Market { gpus: 1, is_only_size: false, value: 2.5, gpu_price, power_price };
            (reason.to_string(), reason.details().unwrap())
        };
        let worth = "worth 2.50 s of completion time per second";
        for (gpu_price, power_price, sentence, prices) in [
            (
                0.0,
                0.0,
                "the best number for its time and energy; GPUs are not scarce",
                "GPU price 0",
            ),
            (
                1.5,
                0.0,
                "GPUs are scarce, and more of them serve other jobs better",
                "GPU price 1.50 s per GPU-second",
            ),
            (
                1_717_986_918.4,
                0.0,
                "GPUs are scarce, and more of them serve other jobs better",
                "demand exceeds the GPUs at any price",
            ),
            (
                0.0,
                1e-4,
                "power is scarce, and more of it serves other jobs better",
                "GPU price 0; price of power 360 s per kWh",
            ),
        ] {
            let expected = (format!("1 GPU: {sentence}"), format!("{worth}; {prices}"));
            assert_eq!(market(gpu_price, power_price), expected);
        }
        let fixed = Reason::Market {
            gpus: 4,
            is_only_size: true,
            value: 2.5,
            gpu_price: 1.5,
            power_price: 0.0,
        };
        assert_eq!(fixed.to_string(), "4 GPUs, the only number that it permits; GPUs are scarce");
    }

    #[test]
    fn singular_and_plural() {
        let outranked = |before| Reason::Outranked { before }.to_string();
        assert!(outranked(0).starts_with("no GPU is free for it, "), "{}", outranked(0));
        assert_eq!(
            [outranked(1), outranked(2)],
            [
                "1 job is before it in the policy's order",
                "2 jobs are before it in the policy's order"
            ]
        );
        assert_eq!(
            Reason::WholeNodes { nodes: 1 }.to_string(),
            "first in the queue, on the first free node"
        );
    }
}
