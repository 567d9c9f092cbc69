//! The cluster at a glance: verdict, power, map of the nodes, running jobs, budget and saving.

use serde_json::{Map, Value, json};
use wattle_common::job::JobPhase;
use wattle_common::messages::{GpuSummary, UnknownCause};
use wattle_common::total::Total;
use wattle_common::{Power, duration};
use wattle_view::node::{Node, cap_when_read};
use wattle_view::verdict::{self, Level};

use super::faults;
use super::{
    DETAILED_NODES_MAX, budget, energy, grams, jobs, power_text, saving, seconds, significant,
    watts,
};
use crate::model::history::Point;
use crate::model::tally::day_of;
use crate::model::{Model, Now};

/// Jobs of each group.
const JOBS_MAX: usize = 8;
/// Nodes without a reading that are named.
const UNREAD_SHOWN_MAX: usize = 8;

/// Counts of GPUs.
#[derive(Default)]
struct Gpus {
    total: u64,
    busy: u64,
    idle: u64,
    asleep: u64,
    closed: u64,
    lost: u64,
    silent: u64,
}

/// The reading of a GPU of a node that is awake.
fn reading<'m>(model: &'m Model, node: &Node, gpu: u32) -> Option<&'m GpuSummary> {
    let summary = model.summaries.get(&node.node).filter(|_| node.sleep.is_none())?;
    summary.gpus.iter().find(|reading| reading.gpu == gpu)
}

/// The sum of the caps at the readings of power, and the power of the hosts that are awake. Unless the cap of each
/// GPU is known there is none: a power cannot be compared with a part of the caps.
fn caps(model: &Model, hosts: Power) -> Option<Power> {
    let mut caps = Total::<Power>::default();
    for node in model.nodes.values() {
        for gpu in node.power.iter().flat_map(|report| &report.gpus) {
            caps.add(cap_when_read(gpu, reading(model, node, gpu.gpu)));
        }
    }
    caps.known().filter(|_| caps.is_complete()).map(|caps| caps + hosts)
}

/// One node of the map: watts, caps, state, jobs, and its GPUs if they are drawn.
fn tile(model: &Model, node: &Node, gpus: &mut Gpus, detailed: bool, now: Now) -> Value {
    let (mut drawn, mut caps) = (Total::<Power>::default(), Total::<Power>::default());
    let mut busy_here = 0;
    let (mut cells, mut is_faulty) = (Vec::new(), false);
    let is_silent = model.is_silent(node, now);
    for gpu in node.power.iter().flat_map(|report| &report.gpus) {
        let reading = reading(model, node, gpu.gpu);
        let power = reading.and_then(|reading| reading.power_mw_mean);
        let cap = cap_when_read(gpu, reading);
        drawn.add(power);
        caps.add(cap);
        gpus.total += 1;
        let has_jobs = !node.jobs_on(gpu.gpu).is_empty();
        let state = if node.sleep.is_some() {
            gpus.asleep += 1;
            "asleep"
        } else if is_silent {
            gpus.silent += 1;
            "silent"
        } else if !gpu.healthy {
            gpus.lost += 1;
            is_faulty = true;
            "lost"
        } else if has_jobs {
            gpus.busy += 1;
            busy_here += 1;
            "busy"
        } else if node.accepts_jobs(gpu) {
            gpus.idle += 1;
            "idle"
        } else {
            gpus.closed += 1;
            is_faulty = true;
            "closed"
        };
        if detailed {
            cells.push(json!([
                power.map_or(Value::Null, watts),
                cap.map_or(Value::Null, watts),
                state
            ]));
        }
    }
    let state = match node.sleep {
        Some(sleep) => sleep.state.label(),
        None if is_silent => "silent",
        None if is_faulty => "fault",
        None if busy_here > 0 => "busy",
        None => "idle",
    };
    json!({
        "w": drawn.known().map(watts),
        "is_partial": (drawn.known().is_some() && !drawn.is_complete()).then_some(true),
        "cap": caps.known().filter(|_| caps.is_complete()).map(watts),
        "s": state,
        "busy": busy_here,
        "n": node.power.as_ref().map_or(0, |report| report.gpus.len()),
        "g": detailed.then_some(cells),
    })
}

/// What the energy of today lacks, one line each.
fn missing_today(model: &Model, today: u64) -> Vec<String> {
    let unmeasured = model.tally.unmeasured(today);
    let late = unmeasured.iter().filter(|(cause, _)| **cause != UnknownCause::NoMeter);
    let late: f64 = late.map(|(_, (time, _))| time.as_secs_f64()).sum();
    let late = (late > 0.0)
        .then(|| format!("{} of GPU time are not measured completely", duration::span(late)));
    model.tally.missing_gpus(today).into_iter().chain(late).collect()
}

/// The content of the page.
pub(super) fn content(model: &Model, now: Now) -> Value {
    let faults = faults::all(model, now);
    let mut gpus = Gpus::default();
    let detailed = model.nodes.len() <= DETAILED_NODES_MAX;
    let nodes: Map<String, Value> = model
        .nodes
        .iter()
        .map(|(id, node)| (id.to_string(), tile(model, node, &mut gpus, detailed, now)))
        .collect();
    let limit = model.limit();
    let drawn = model.drawn();
    let caps = caps(model, drawn.hosts);
    let power = drawn.known();
    let unread = model.unread();
    let course = budget::course(model, now);
    let mut figures = Vec::new();
    // Without a reading of every GPU the sum is a lower bound.
    let at_least = if drawn.is_complete { "" } else { "at least " };
    figures.push(match (power, limit.or(caps)) {
        (Some(power), Some(limit)) => {
            format!("{at_least}{} of {}", power_text(power), power_text(limit))
        }
        (Some(power), None) => format!("{at_least}{}", power_text(power)),
        (None, _) => "no reading of power".to_owned(),
    });
    figures.push(model.jobs.words());
    if let Some(course) = &course {
        figures.push(course.words());
    }
    let is_over = course.as_ref().is_some_and(budget::Course::is_over);
    let level = match faults.first().map(|found| found.level) {
        Some(Level::Fault) => "fault",
        Some(Level::Warning) => "warning",
        None if is_over => "warning",
        None => "ok",
    };
    // What is wrong comes first.
    let figures = figures.join(", ");
    let verdict = match verdict::headline(&faults) {
        Some(headline) => format!("{headline}; {figures}"),
        None => figures,
    };
    let today = day_of(now.at);
    let rates = model.rates();
    let sums = model.tally.sums(today, today, rates);
    let point = |point: &Point| {
        let shown = json!({
            "w": point.power.map(watts), "at_least": point.is_partial,
            "limit": point.limit.map(watts),
        });
        (seconds(point.at).to_string(), shown)
    };
    let history: Map<String, Value> = model.history.points().map(point).collect();
    let first = |group: u8| {
        let records: Vec<_> = model.jobs.group(group).take(JOBS_MAX).collect();
        jobs::rows(&records, model, now)
    };
    let sum = |phase| model.jobs.count(phase);
    json!({
        "verdict": verdict,
        "level": level,
        "power": {
            "now_w": power.map(watts),
            "is_partial": !drawn.is_complete,
            "missing": drawn.gpus.missing("GPU"),
            "gpus_w": drawn.gpus.known().map(watts),
            "hosts_w": power.filter(|_| drawn.hosts > Power::ZERO).map(|_| watts(drawn.hosts)),
            "limit_w": limit.map(watts),
            "caps_w": caps.map(watts),
            "unread": unread.iter().take(UNREAD_SHOWN_MAX).map(|id| id.as_str()).collect::<Vec<_>>(),
            "unread_count": unread.len(),
            "baseline_w": model.status.as_ref().and_then(|s| s.power_mw_baseline).map(watts),
        },
        "gpus": {
            "total": gpus.total, "busy": gpus.busy, "idle": gpus.idle, "asleep": gpus.asleep,
            "closed": gpus.closed, "lost": gpus.lost, "silent": gpus.silent,
        },
        "jobs": {
            "words": model.jobs.words(), "on_gpus": model.jobs.on_gpus(),
            "queued": sum(JobPhase::Queued), "finished": sum(JobPhase::Finished),
            "failed": sum(JobPhase::Failed), "cancelled": sum(JobPhase::Cancelled),
        },
        "today": {
            "energy": energy::uses(&sums),
            "missing": missing_today(model, today),
            "carbon_g": sums.all.carbon.map(grams),
            "cost": sums.all.cost.map(significant),
            "currency": rates.prices.map(|prices| prices.currency.clone()),
            "saving": saving::today(model, now).map(|row| saving::shown(&row)),
        },
        "budget": course.map(|course| course.shown()),
        "intensity_g_per_kwh": budget::intensity(model, now.at),
        "history": history,
        "nodes": nodes,
        "detailed": detailed,
        "running": first(0),
        "queued": first(1),
        "faults": faults::shown(&faults),
        "ledger_read": model.ledger_read,
    })
}
