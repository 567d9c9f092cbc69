//! Why something was decided, as data; `Display` makes the sentence when somebody asks.
//!
//! A simulation takes thousands of decisions in a tenth of a second and reads none of them, so no
//! text is built before it is wanted. Every variant names the figures the decision rested on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::GpuSetting;
use wattle_common::{JobId, Power, Timestamp};

/// No GPU-second is said to be worth more, s of completion time: beyond it no price clears, since more
/// GPUs are asked for at any price than there are.
pub(crate) const GPU_PRICE_MAX: f64 = 1e9;

/// Why.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// First in the queue, and this was the first room in node order.
    FirstFit,
    /// First in the queue, larger than a node, and these were the first wholly free nodes.
    WholeNodes {
        /// How many nodes.
        nodes: u32,
    },
    /// Nothing fits: too few GPUs are free where it could run.
    NoRoom {
        /// GPUs it asks for.
        asked: u32,
        /// Their kind, where its owner names one.
        kind: Option<Arc<str>>,
        /// GPUs that are free in the whole cluster, of those that it may have.
        free: u32,
        /// GPUs that are free on the freest node.
        free_on_one_node: u32,
        /// Why it was not given neighbours either, where the policy shares.
        alone: Option<Alone>,
    },
    /// It has only just come, and the predictor has not spoken yet.
    SurfaceAwaited,
    /// Jobs with the right to it come first.
    Outranked {
        /// How many jobs come before it.
        before: u32,
    },
    /// A bargain: so many GPUs so set, at so much completion time won per energy spent.
    Bargain {
        /// GPUs it gets.
        gpus: u32,
        /// Relative completion time won over relative energy spent, of the last step taken.
        ratio: f64,
        /// The least ratio accepted.
        price: f64,
    },
    /// Worth its GPUs at their present price.
    Worth {
        /// GPUs it gets.
        gpus: u32,
        /// Value of its work, in seconds of completion time a second.
        value: f64,
        /// Price of a GPU-second now; above 1e9 there is none that clears.
        gpu_price: f64,
    },
    /// It is to have these GPUs, but they are asleep, taken apart or still being freed.
    Awaits {
        /// GPUs it is to have.
        gpus: u32,
    },
    /// Paired by chance, since more GPUs are asked for than there are.
    Paired {
        /// The other one.
        beside: JobId,
        /// Sum of both jobs' predicted normalised speeds.
        sum: f64,
        /// The sum below which they part.
        threshold: f64,
    },
    /// Its cards are to be set so, whoever decided where it runs.
    Reset {
        /// What they are set to.
        setting: GpuSetting,
    },
    /// Its share of the GPUs, by what each further one gives.
    Share {
        /// GPUs it gets.
        gpus: u32,
    },
    /// It would start, but what would then be drawn is more than may be.
    HeldBack {
        /// What would be drawn, whole nodes.
        drawn: Power,
        /// What may be.
        below: Power,
    },
    /// It is paused: even at the thriftiest more is drawn than the rest of the budget feeds.
    Paused {
        /// What is drawn at the thriftiest, whole nodes.
        drawn: Power,
        /// What may be.
        above: Power,
    },
    /// Even at the lowest settings more would be drawn than may ever be.
    PowerLimit {
        /// What may be drawn.
        most: Option<Power>,
    },
    /// Its owner lets it wait, and the grid will be cleaner.
    Deferred {
        /// The intensity now, g/kWh.
        now: f64,
        /// What it is to fall to, g/kWh.
        below: f64,
        /// Until when it waits at most.
        until: Timestamp,
    },
    /// Moved, so that another job finds a whole block.
    Defragmented {
        /// The block's GPUs.
        gpus: u32,
    },
    /// Woken for jobs that wait.
    Woken {
        /// GPUs they wait for.
        gpus: u32,
    },
    /// Nobody was on the node for long enough.
    Unused {
        /// For how long.
        idle: Duration,
    },
    /// No node and no set of equal nodes is large enough.
    TooLarge {
        /// GPUs it asks for.
        asked: u32,
        /// GPUs of the cluster, of that kind where one is named.
        gpus: u32,
        /// The kind, where its owner names one.
        kind: Option<Arc<str>>,
    },
    /// No card has as much memory as it needs.
    TooMuchMemory {
        /// MiB it needs on each GPU.
        asked_mib: u64,
        /// The kind of card, where its owner names one.
        kind: Option<Arc<str>>,
    },
    /// No node has GPUs of the kind it must have.
    NoSuchKind {
        /// The kind.
        kind: Arc<str>,
        /// The kinds there are.
        there: Vec<String>,
    },
    /// Packed beside a job with which it runs fastest in sum.
    Packed {
        /// The job already there.
        beside: JobId,
        /// Sum of both jobs' predicted normalised speeds.
        sum: f64,
        /// The sum it had to exceed.
        threshold: f64,
        /// Pairs looked at.
        tried: u32,
    },
    /// Put on the fullest GPUs that leave everyone's deadline whole.
    Fullest {
        /// Who is there.
        beside: Vec<JobId>,
        /// Their summed busy share, per cent.
        utilization_percent: f64,
        /// Which candidate it was, from 1 (the fullest).
        choice: u32,
        /// How many candidates there were.
        candidates: u32,
        /// The job's predicted speed there, relative to running alone, where it is known.
        speed: Option<f64>,
    },
    /// On free GPUs, since no occupied set would do.
    Idle {
        /// Why it does not share.
        alone: Alone,
    },
    /// The observation has ended and all deadlines hold.
    DeadlinesHold {
        /// Jobs observed.
        tenants: u32,
        /// How long it took.
        after: Duration,
    },
    /// The observation has ended and together they do more than in turns, as far as is known.
    PairHolds {
        /// Jobs observed.
        tenants: u32,
        /// How long it took.
        after: Duration,
        /// The sum of their measured speeds, each relative to what is known of it alone.
        sum: Option<f64>,
    },
    /// The observation has ended and together they do less than in turns.
    PairLoses {
        /// How long it took.
        after: Duration,
        /// The sum of their measured speeds, each relative to what is known of it alone.
        sum: f64,
    },
    /// A job that was observed has nobody beside it any more.
    NeighboursGone,
    /// The observation has ended and a deadline would be broken.
    DeadlineBroken {
        /// Whose.
        job: JobId,
        /// Its deadline.
        deadline: Timestamp,
        /// When it would end at its measured speed.
        end: Timestamp,
    },
}

/// Why a job was not given neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// Its owner said so.
    Exclusive,
    /// Nothing is known of its speed or memory yet.
    Unknown,
    /// It cannot be stopped, so a placement that breaks a deadline could not be undone.
    CannotStop,
    /// It was undone often enough.
    UndoneOften,
    /// No occupied GPUs were within the thresholds and deadlines.
    NoCandidate,
}

/// With three significant digits, down to a millionth.
fn significant(value: f64) -> String {
    let digits = match value.abs() {
        0.0..1e-6 => 0,
        size => (2.0 - size.log10().floor()).clamp(0.0, 8.0) as usize,
    };
    format!("{value:.digits$}")
}

/// `1 GPU`, `2 GPUs`.
fn count(gpus: u32) -> String {
    format!("{gpus} GPU{}", if gpus == 1 { "" } else { "s" })
}

/// `1 job`, `2 jobs`.
fn jobs(jobs: u32) -> String {
    format!("{jobs} job{}", if jobs == 1 { "" } else { "s" })
}

/// ` of kind v100`, where a kind is named.
fn of_kind(kind: Option<&Arc<str>>) -> String {
    kind.map(|kind| format!(" of kind {kind}")).unwrap_or_default()
}

impl fmt::Display for Alone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "it is exclusive",
            Self::Unknown => "nothing was measured of its kind yet, so it runs alone first",
            Self::CannotStop => "it has no checkpoint signal, and deadlines are at stake",
            Self::UndoneOften => "it was undone often enough",
            Self::NoCandidate => "no occupied GPUs are within thresholds and deadlines",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstFit => write!(f, "first in the queue; first room in node order"),
            Self::WholeNodes { nodes } => match nodes {
                1 => write!(f, "first in the queue; first wholly free node"),
                more => write!(f, "first in the queue; first {more} wholly free nodes"),
            },
            Self::NoRoom { asked, kind, free, free_on_one_node, alone } => {
                write!(
                    f,
                    "asks for {}{}; {free} free, at most {free_on_one_node} on one node",
                    count(*asked),
                    of_kind(kind.as_ref())
                )?;
                match alone {
                    Some(alone) => write!(f, "; not beside others: {alone}"),
                    None => Ok(()),
                }
            }
            Self::SurfaceAwaited => {
                write!(f, "it has only just come; what is known of its kind is being looked up")
            }
            Self::Outranked { before } => match before {
                1 => write!(f, "1 job comes first"),
                more => write!(f, "{more} jobs come first"),
            },
            Self::Bargain { gpus, ratio, price } => write!(
                f,
                "{}: the last step won {ratio:.2} of completion time per energy, price {price:.2}",
                count(*gpus)
            ),
            Self::Worth { gpus, gpu_price, .. } if *gpu_price > GPU_PRICE_MAX => write!(
                f,
                "{}: more GPUs are asked for than there are, whatever they cost, and its work is \
                 among that worth most",
                count(*gpus)
            ),
            Self::Worth { gpus, value, gpu_price } => write!(
                f,
                "{}: its work is worth {} s a second, a GPU costs {}",
                count(*gpus),
                significant(*value),
                significant(*gpu_price)
            ),
            Self::Awaits { gpus } => {
                write!(f, "is to have {}, which are not free together yet", count(*gpus))
            }
            Self::Paired { beside, sum, threshold } => write!(
                f,
                "more GPUs are asked for than there are; with {beside} the normalised speeds sum to \
                 {sum:.2}, not below {threshold}"
            ),
            Self::Reset { setting } => write!(f, "its cards are to be set to {setting}"),
            Self::Share { gpus } => write!(f, "its share is {}", count(*gpus)),
            Self::HeldBack { drawn, below } => write!(
                f,
                "with it {:.2} kW would be drawn, and {:.2} kW may be",
                drawn.as_w() / 1e3,
                below.as_w() / 1e3
            ),
            Self::Paused { drawn, above } => write!(
                f,
                "at the thriftiest {:.2} kW are drawn, and the rest of the budget feeds {:.2} kW",
                drawn.as_w() / 1e3,
                above.as_w() / 1e3
            ),
            Self::PowerLimit { most } => match most {
                Some(most) => write!(f, "no more than {:.2} kW may be drawn", most.as_w() / 1e3),
                None => write!(f, "no more may be drawn"),
            },
            Self::Deferred { now, below, until } => write!(
                f,
                "its owner lets it wait until {until} at most; the grid is at {now:.0} g/kWh and \
                 expected at {below:.0}"
            ),
            Self::Defragmented { gpus } => {
                write!(f, "moved, so that a whole block of {} is free", count(*gpus))
            }
            Self::Woken { gpus } => write!(f, "jobs wait for {}", count(*gpus)),
            Self::Unused { idle } => write!(f, "nobody was on it for {} s", idle.as_secs()),
            Self::TooLarge { asked, gpus, kind } => match kind {
                None => write!(
                    f,
                    "asks for {}; the cluster of {gpus} can never give them",
                    count(*asked)
                ),
                Some(kind) => write!(
                    f,
                    "asks for {} of kind {kind}; a cluster with {gpus} of them can never give them",
                    count(*asked)
                ),
            },
            Self::TooMuchMemory { asked_mib, kind } => write!(
                f,
                "needs {asked_mib} MiB on each GPU; no card{} here has as much",
                of_kind(kind.as_ref())
            ),
            Self::NoSuchKind { kind, there } => write!(
                f,
                "must have GPUs of kind {kind}; no node has any, there are: {}",
                there.join(", ")
            ),
            Self::Packed { beside, sum, threshold, tried } => write!(
                f,
                "no free GPUs; with {beside} the normalised speeds sum to {sum:.2} > {threshold} \
                 (best of {tried})"
            ),
            Self::Fullest { beside, utilization_percent, choice, candidates, speed } => {
                write!(f, "candidate {choice} of {candidates}, fullest first; beside ")?;
                for (i, job) in beside.iter().enumerate() {
                    write!(f, "{}{job}", if i == 0 { "" } else { ", " })?;
                }
                write!(f, " at {utilization_percent:.0} % busy")?;
                match speed {
                    Some(speed) => write!(f, "; predicted speed {speed:.2}; all deadlines hold"),
                    None => write!(f, "; nobody has a deadline"),
                }
            }
            Self::Idle { alone } => write!(f, "free GPUs: {alone}"),
            Self::DeadlinesHold { tenants, after } => write!(
                f,
                "observed {} for an epoch each ({} s); all deadlines hold",
                jobs(*tenants),
                after.as_secs()
            ),
            Self::PairHolds { tenants, after, sum } => {
                let (jobs, seconds) = (jobs(*tenants), after.as_secs());
                write!(f, "observed {jobs} for an epoch each ({seconds} s); ")?;
                match sum {
                    Some(sum) => write!(f, "their measured speeds sum to {sum:.2} of those alone"),
                    None => write!(f, "their speeds alone are not all known"),
                }
            }
            Self::PairLoses { after, sum } => write!(
                f,
                "observed for {} s: the measured speeds sum to {sum:.2} of those alone, less than in \
                 turns",
                after.as_secs()
            ),
            Self::NeighboursGone => write!(f, "nobody is beside it any more"),
            Self::DeadlineBroken { job, deadline, end } => {
                write!(f, "at its measured speed {job} would end at {end}, deadline {deadline}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_that_clears_nothing_is_not_shown_as_one() {
        let worth = |gpu_price| Reason::Worth { gpus: 1, value: 2.5, gpu_price }.to_string();
        assert_eq!(worth(1.5), "1 GPU: its work is worth 2.50 s a second, a GPU costs 1.50");
        let none = worth(1_717_986_918.4);
        assert_eq!(
            none,
            "1 GPU: more GPUs are asked for than there are, whatever they cost, and its work is \
             among that worth most"
        );
    }

    #[test]
    fn one_job_comes_and_two_come() {
        let said = |before| Reason::Outranked { before }.to_string();
        assert_eq!([said(1), said(2)], ["1 job comes first", "2 jobs come first"]);
        assert_eq!(
            Reason::WholeNodes { nodes: 1 }.to_string(),
            "first in the queue; first wholly free node"
        );
    }
}
