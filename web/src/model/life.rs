//! The life of a job for its page: its starts, its measured power and speed over time, and its co-tenants.
//!
//! All of it follows from the job's windows and its record. A time without a window is a gap.

mod stages;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::messages::JobWindow;
use wattle_common::{JobId, NodeId, Power, Timestamp};

pub use self::stages::{Doing, Stage};

/// Number of equal parts into which a life with more parts is divided, each with its means.
const PARTS_MAX: u64 = 200;
/// Most starts that are kept; of more, the first ones are left out.
const STARTS_MAX: usize = 50;
/// Most co-tenants that are kept: those that shared its GPUs for the longest time.
const TENANTS_MAX: usize = 6;
/// Longest time between two windows that are one span of a co-tenant.
const JOINED: Duration = Duration::from_secs(2);

/// A mean over the time in which its value is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    span_s: f64,
}

impl Mean {
    fn add(&mut self, value: Option<f64>, span_s: f64) {
        if let Some(value) = value {
            self.merge(Self { sum: value * span_s, span_s });
        }
    }

    fn merge(&mut self, other: Self) {
        self.sum += other.sum;
        self.span_s += other.span_s;
    }

    /// The mean; `None`: its value was never known.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        (self.span_s > 0.0).then(|| self.sum / self.span_s)
    }
}

/// Means over a time, all nodes of the job together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Means {
    /// Power attributed to the job, watts.
    pub job_w: Mean,
    /// Power of its GPUs with all co-tenants, watts.
    pub gpus_w: Mean,
    /// The sum of the caps of its GPUs, watts.
    pub caps_w: Mean,
    /// Steps per second.
    pub rate: Mean,
}

impl Means {
    fn merge(&mut self, other: Self) {
        self.job_w.merge(other.job_w);
        self.gpus_w.merge(other.gpus_w);
        self.caps_w.merge(other.caps_w);
        self.rate.merge(other.rate);
    }
}

/// A part of the life with its means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Its start.
    pub from: Timestamp,
    /// Its end.
    pub until: Timestamp,
    /// The number of its start of the job.
    pub attempt: u32,
    /// The means.
    pub means: Means,
}

/// One start of the job as measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Start {
    /// Its number, from 1.
    pub attempt: u32,
    /// Beginning of its first window.
    pub from: Timestamp,
    /// End of its last window.
    pub until: Timestamp,
    /// Its GPUs on all nodes.
    pub gpus: u32,
    /// Its nodes.
    pub nodes: BTreeSet<NodeId>,
    /// The jobs that shared its GPUs.
    pub tenants: BTreeSet<JobId>,
    /// The means.
    pub means: Means,
}

/// When another job shared GPUs of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The other job.
    pub job: JobId,
    /// From and until.
    pub spans: Vec<(Timestamp, Timestamp)>,
}

impl Tenant {
    fn shared(&self) -> Duration {
        self.spans.iter().map(|(from, until)| until.since(*from)).sum()
    }
}

/// The life of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Life {
    /// Its last starts, the first one first.
    pub starts: Vec<Start>,
    /// Power, cap and speed over time, in order.
    pub parts: Vec<Part>,
    /// Its co-tenants, in order of their first span.
    pub tenants: Vec<Tenant>,
    /// Number of co-tenants that are left out.
    pub tenants_more: usize,
    /// Whether its step rate is inferred only, which is no speed.
    pub is_inferred: bool,
}

impl Life {
    /// The life that these windows measured.
    #[must_use]
    pub fn of(windows: &[JobWindow]) -> Self {
        let mut windows: Vec<&JobWindow> =
            windows.iter().filter(|window| window.from_us < window.until_us).collect();
        windows.sort_by_key(|window| window.from_us);
        let parts = pieces(&windows);
        let mut starts: BTreeMap<u32, Start> = BTreeMap::new();
        for window in &windows {
            let (attempt, from) = (window.attempt, window.from_us);
            let start = starts.entry(attempt).or_insert_with(|| Start {
                attempt,
                from,
                ..Start::default()
            });
            start.until = start.until.max(window.until_us);
            start.gpus = window.gpus_total;
            start.nodes.insert(window.node.clone());
            start.tenants.extend(window.neighbours.iter().map(|other| other.job.clone()));
        }
        for part in &parts {
            if let Some(start) = starts.get_mut(&part.attempt) {
                start.means.merge(part.means);
            }
        }
        let surplus = starts.len().saturating_sub(STARTS_MAX);
        let (tenants, tenants_more) = tenants(&windows);
        Self {
            starts: starts.into_values().skip(surplus).collect(),
            parts: divided(parts),
            tenants,
            tenants_more,
            is_inferred: windows.iter().any(|window| window.steps_inferred)
                && windows.iter().all(|window| rate(window).is_none()),
        }
    }
}

/// The speed of a window. An inferred rate counts periods of the power, which need not be steps.
fn rate(window: &JobWindow) -> Option<f64> {
    let span = window.until_us.since(window.from_us).as_secs_f64();
    let counted = window.steps.map(|steps| steps as f64 / span);
    window.steps_per_s.or(counted).filter(|_| !window.steps_inferred)
}

/// The parts between all changes of the windows, which are in order of their beginnings.
fn pieces(windows: &[&JobWindow]) -> Vec<Part> {
    let changes: BTreeSet<Timestamp> =
        windows.iter().flat_map(|window| [window.from_us, window.until_us]).collect();
    let changes: Vec<Timestamp> = changes.into_iter().collect();
    let mut begins = windows.iter().peekable();
    let mut open: BTreeMap<&NodeId, &JobWindow> = BTreeMap::new();
    let mut pieces = Vec::new();
    for between in changes.windows(2) {
        let (from, until) = (between[0], between[1]);
        while let Some(window) = begins.next_if(|window| window.from_us <= from) {
            open.insert(&window.node, window);
        }
        open.retain(|_, window| window.until_us > from);
        let Some(attempt) = open.values().map(|window| window.attempt).max() else { continue };
        let of: Vec<&JobWindow> =
            open.values().copied().filter(|window| window.attempt == attempt).collect();
        let means = means(&of, until.since(from).as_secs_f64());
        pieces.push(Part { from, until, attempt, means });
    }
    pieces
}

/// The means of windows of different nodes at the same time. Without a window of each node only the speed is known.
fn means(windows: &[&JobWindow], span_s: f64) -> Means {
    let nodes = windows.iter().map(|window| window.nodes_total).max();
    let is_whole = nodes.is_some_and(|nodes| windows.len() >= nodes as usize);
    let sum = |of: &dyn Fn(&JobWindow) -> Option<f64>| {
        windows.iter().map(|window| of(window)).sum::<Option<f64>>().filter(|_| is_whole)
    };
    let own = |window: &JobWindow| {
        let alone = window.power_mw_gpus.filter(|_| window.neighbours.is_empty());
        window.power_mw_job.or(alone).map(Power::as_w)
    };
    let mut means = Means::default();
    means.job_w.add(sum(&own), span_s);
    means.gpus_w.add(sum(&|window| window.power_mw_gpus.map(Power::as_w)), span_s);
    let caps = |window: &JobWindow| window.cap_mw.map(|cap| cap.as_w() * window.gpus.len() as f64);
    means.caps_w.add(sum(&caps), span_s);
    let mut rates = Mean::default();
    windows.iter().for_each(|window| rates.add(rate(window), 1.0));
    means.rate.add(rates.value(), span_s);
    means
}

/// The parts, or of more than [`PARTS_MAX`] the means over equal parts of the life.
fn divided(pieces: Vec<Part>) -> Vec<Part> {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return pieces };
    if pieces.len() as u64 <= PARTS_MAX {
        return pieces;
    }
    let begin = first.from;
    let length_us = last.until.since(begin).as_micros() as u64 / PARTS_MAX + 1;
    let slot = |at: Timestamp| at.since(begin).as_micros() as u64 / length_us;
    let mut parts: Vec<Part> = Vec::new();
    for piece in pieces {
        let joined = parts
            .last_mut()
            .filter(|part| part.attempt == piece.attempt && slot(part.from) == slot(piece.from));
        match joined {
            Some(part) => {
                part.until = piece.until;
                part.means.merge(piece.means);
            }
            None => parts.push(piece),
        }
    }
    parts
}

/// The co-tenants that shared GPUs for the longest time, in order of their first span, and the number of the others.
fn tenants(windows: &[&JobWindow]) -> (Vec<Tenant>, usize) {
    let mut found: BTreeMap<&JobId, Vec<(Timestamp, Timestamp)>> = BTreeMap::new();
    for window in windows {
        for other in &window.neighbours {
            let spans = found.entry(&other.job).or_default();
            match spans.last_mut().filter(|(_, until)| window.from_us.since(*until) <= JOINED) {
                Some((_, until)) => *until = (*until).max(window.until_us),
                None => spans.push((window.from_us, window.until_us)),
            }
        }
    }
    let tenant = |(job, spans): (&JobId, Vec<_>)| Tenant { job: job.clone(), spans };
    let mut tenants: Vec<Tenant> = found.into_iter().map(tenant).collect();
    tenants.sort_by_key(|tenant| std::cmp::Reverse(tenant.shared()));
    let more = tenants.len().saturating_sub(TENANTS_MAX);
    tenants.truncate(TENANTS_MAX);
    tenants.sort_by_key(|tenant| tenant.spans.first().copied());
    (tenants, more)
}

#[cfg(test)]
pub(crate) mod tests {
    use wattle_testkit as testkit;

    use super::*;

    pub(crate) fn at(s: u64) -> Timestamp {
        Timestamp::from_s(s)
    }

    /// A window of one GPU at 180 W below a cap of 250 W, at 10 steps/s.
    pub(crate) fn window(attempt: u32, from_s: u64, until_s: u64) -> JobWindow {
        JobWindow { attempt, ..testkit::job_window("a", at(from_s), at(until_s)) }
    }

    fn values(part: &Part) -> [Option<f64>; 4] {
        let Means { job_w, gpus_w, caps_w, rate } = part.means;
        [job_w, gpus_w, caps_w, rate].map(Mean::value)
    }

    #[test]
    fn the_nodes_of_a_job_are_summed_where_all_of_them_are_measured() {
        let on = |node: &str, from_s, until_s, watts| JobWindow {
            node: testkit::node(node),
            nodes_total: 2,
            gpus: vec![0, 1],
            gpus_total: 4,
            power_mw_gpus: Some(Power::from_w(watts)),
            ..window(1, from_s, until_s)
        };
        let windows = [on("n0", 100, 160, 300), on("n1", 110, 170, 400)];
        // A doubled window counts once.
        let life = Life::of(&[windows[0].clone(), windows[1].clone(), windows[0].clone()]);
        let spans: Vec<(f64, f64)> =
            life.parts.iter().map(|part| (part.from.as_s(), part.until.as_s())).collect();
        assert_eq!(spans, [(100.0, 110.0), (110.0, 160.0), (160.0, 170.0)]);
        let found: Vec<_> = life.parts.iter().map(values).collect();
        let alone = [None, None, None, Some(10.0)];
        assert_eq!(found, [alone, [Some(700.0), Some(700.0), Some(1_000.0), Some(10.0)], alone]);
        let start = &life.starts[0];
        assert_eq!((start.gpus, start.nodes.len(), start.until), (4, 2, at(170)));
        assert_eq!(start.means.gpus_w.value(), Some(700.0), "over the time in which it is known");
    }

    #[test]
    fn what_is_not_known_is_a_gap() {
        let unread = JobWindow {
            power_mw_gpus: None,
            cap_mw: None,
            steps_inferred: true,
            ..window(1, 160, 220)
        };
        let life = Life::of(&[window(1, 100, 160), unread.clone(), window(1, 300, 360)]);
        let known: Vec<_> =
            life.parts.iter().map(|part| values(part).map(|value| value.is_some())).collect();
        assert_eq!(known, [[true; 4], [false; 4], [true; 4]]);
        assert_eq!((life.parts[2].from, life.is_inferred), (at(300), false));
        assert!(Life::of(&[unread]).is_inferred);
    }

    #[test]
    fn the_own_power_of_a_job_with_a_co_tenant_is_the_attributed_one() {
        let shared = JobWindow {
            neighbours: vec![testkit::neighbour("b", None)],
            power_mw_job: Some(Power::from_w(70)),
            ..window(1, 100, 160)
        };
        let unknown = JobWindow { power_mw_job: None, ..shared.clone() };
        let own = |window: &JobWindow| values(&Life::of(std::slice::from_ref(window)).parts[0]);
        assert_eq!(own(&shared)[..2], [Some(70.0), Some(180.0)]);
        assert_eq!(own(&unknown)[..2], [None, Some(180.0)], "the power of both is not its own");
    }

    #[test]
    fn co_tenants_have_spans() {
        let with = |job: &str, from_s, until_s| JobWindow {
            neighbours: vec![testkit::neighbour(job, None)],
            ..window(1, from_s, until_s)
        };
        let mut windows =
            vec![with("b", 0, 60), with("b", 60, 120), window(1, 120, 180), with("b", 180, 200)];
        let tenants = Life::of(&windows).tenants;
        assert_eq!(tenants[0].spans, [(at(0), at(120)), (at(180), at(200))]);
        windows.extend((0..8).map(|number| with(&format!("c{number}"), 300, 301 + number)));
        let life = Life::of(&windows);
        let jobs: Vec<&str> = life.tenants.iter().map(|tenant| tenant.job.as_str()).collect();
        assert_eq!((jobs, life.tenants_more), (vec!["b", "c3", "c4", "c5", "c6", "c7"], 3));
    }

    #[test]
    fn a_long_life_is_divided() {
        let windows: Vec<JobWindow> = (0..20_000)
            .map(|minute| JobWindow {
                power_mw_gpus: Some(Power::from_w(if minute % 2 == 0 { 100 } else { 200 })),
                ..window(1 + minute / 300, u64::from(minute) * 60, u64::from(minute) * 60 + 60)
            })
            .collect();
        let life = Life::of(&windows);
        assert!(life.parts.len() <= 200 + 67, "{} parts", life.parts.len());
        assert_eq!((life.starts.len(), life.starts[49].attempt), (STARTS_MAX, 67));
        let watts = life.parts[0].means.gpus_w.value().unwrap();
        assert!((watts - 150.0).abs() < 1.0, "{watts}");
        assert_eq!(life.parts.last().unwrap().until, windows.last().unwrap().until_us);
    }
}
