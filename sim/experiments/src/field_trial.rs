//! The site of a published field trial through grid events: 32 nodes of 8 A100s with six jobs and their promises (arXiv
//! 2507.00909; ai-emerald/emerald-ai-demo-may-2025, Apache-2.0).
//!
//! [`grid_srp`](crate::grid_srp) and [`grid_caiso`](crate::grid_caiso) have the events. Rules that follow the targets at
//! every instant are computed from the speed and power of each job under a cap; Wattle's policies are simulated. The
//! measure is the performance of the jobs over the events with their ramps, weighted by what their promises keep.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use wattle_baselines::policy;
use wattle_common::event::{
    Depth, EventBook, GridEvent, LOSS_ERROR, MeasuredBy, MeasuredMean, Participation, SiteFigures,
    TargetSteps,
};
use wattle_common::job::Flexibility;
use wattle_common::{EventId, JobId, Power, Timestamp};
use wattle_simulator::{
    PlannedEvent, RunOptions, Scenario, SimJob, SimulationError, Work, run_with, selectable_caps,
};
use wattle_world::{GpuModel, Setting, Tenant, World};

/// The policies that are simulated.
pub const POLICIES: [&str; 2] = ["fifo", "wattle"];

const CLUSTER: &str = "32x8:a100";
/// The jobs: workload and GPUs of the sweep, and the loss that the tier permits, per mille (Flex 1, 2 and 3: 100, 250
/// and 500). The trial's weights 0.231, 0.192 and 0.128 are in proportion to what remains.
const JOBS: [(&str, &str, u32, u32); 6] = [
    ("infer-flex1", "llama-8b-infer-48g", 48, 100),
    ("infer-flex2", "llama-8b-infer-48g", 48, 250),
    ("finetune-flex2", "llama-8b-finetune-p3", 32, 250),
    ("infer-flex3", "llama-8b-infer-32g", 32, 500),
    ("mpt-13b-flex3", "mpt-13b-pretrain-sm", 48, 500),
    ("mpt-7b-flex3", "mpt-7b-pretrain", 48, 500),
];
/// From the notice of all events to the start of the first one.
const NOTICE: Duration = Duration::from_secs(3_600);
/// The start of the first event: by then the predictor has measured the jobs.
pub(crate) const START_S: u64 = 4 * 3_600;
/// Every job runs through the events.
const LASTS: Duration = Duration::from_secs(10 * 3_600);
/// Time step of the rules that are computed.
const STEP: Duration = Duration::from_secs(10);

/// An event of a scenario: for a while the GPUs draw less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peak {
    pub(crate) name: &'static str,
    /// By how many per cent less than at the default setting.
    pub(crate) less: u32,
    /// Its start, from the first submission.
    pub(crate) start_s: u64,
    pub(crate) ramp_down_s: u64,
    pub(crate) duration_s: u64,
    pub(crate) ramp_up_s: u64,
}

/// What a rule or a policy gave to the jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// By how many per cent less the GPUs draw, in each event.
    pub less: Vec<u32>,
    /// The rule or the policy.
    pub name: String,
    /// The weighted performance over the event.
    pub performance: f64,
    /// That over the best with every floor kept at every instant.
    pub of_best: f64,
    /// The jobs whose promises were not kept in some event.
    pub broken: Vec<String>,
    /// The declared shortfall, kW.
    pub short_kw: f64,
    /// Minutes above the target.
    pub minutes_above: u64,
    /// The root mean square of predicted over measured power minus 1, over the events; absent: computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction_rmse: Option<f64>,
}

/// What a GPU counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// The power that it draws.
    Drawn,
    /// Its cap, which it can never exceed, as in every plan below a power limit.
    Caps,
}

/// A job with its speed over the power of one GPU, ascending, as straight lines between measured caps.
struct Curve {
    name: &'static str,
    gpus: f64,
    loss: f64,
    points: Vec<(f64, f64)>,
}

impl Curve {
    fn new(
        world: &World,
        gpu: &GpuModel,
        (name, workload, gpus, loss): (&'static str, &str, u32, u32),
        counted: Counted,
    ) -> Self {
        let workload = world.workload(workload).expect("in the catalog");
        let tenant = [Tenant { workload, gpus, nodes: gpus.div_ceil(8) }];
        let at = |cap: Option<Power>| {
            let state = world.gpu_state(gpu, Setting { cap, clock_max: None }, &tenant);
            let power = match counted {
                Counted::Drawn => state.power,
                Counted::Caps => cap.unwrap_or(gpu.cap_default),
            };
            (power.as_w(), state.tenants[0].speed)
        };
        let full = at(None);
        let capped = selectable_caps(gpu).into_iter().map(|cap| at(Some(cap)));
        let mut points: Vec<(f64, f64)> =
            capped.filter(|one| one.0 < full.0).chain([full]).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.dedup_by(|a, b| a.0.total_cmp(&b.0).is_eq());
        points.iter_mut().for_each(|one| one.1 /= full.1);
        Self { name, gpus: f64::from(gpus), loss: f64::from(loss) / 1e3, points }
    }

    fn weight(&self) -> f64 {
        1.0 - self.loss
    }

    fn full_w(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.0)
    }

    /// The speed at this power of each GPU.
    fn speed(&self, gpu_w: f64) -> f64 {
        interpolated(&self.points, gpu_w, |point| *point)
    }

    /// The power of each GPU at this speed.
    fn watts(&self, speed: f64) -> f64 {
        interpolated(&self.points, speed, |&(watts, speed)| (speed, watts))
    }

    fn floor_w(&self) -> f64 {
        self.watts(1.0 - self.loss)
    }

    /// The steps of the concave hull from the floor up: gain per watt, width in watts of one GPU, gain of speed.
    fn steps(&self) -> Vec<(f64, f64, f64)> {
        let floor = (self.floor_w(), 1.0 - self.loss);
        let above = self.points.iter().filter(|point| point.0 > floor.0 && point.1 >= floor.1);
        let mut hull: Vec<(f64, f64)> = Vec::new();
        for &point in [floor].iter().chain(above) {
            while let [.., a, b] = hull[..]
                && (b.1 - a.1) * (point.0 - a.0) <= (point.1 - a.1) * (b.0 - a.0)
            {
                hull.pop();
            }
            hull.push(point);
        }
        let step = |pair: &[(f64, f64)]| {
            let (width, gain) = (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
            (self.weight() * gain / (self.gpus * width), width, gain)
        };
        hull.windows(2).map(step).collect()
    }
}

fn interpolated(points: &[(f64, f64)], at: f64, of: fn(&(f64, f64)) -> (f64, f64)) -> f64 {
    let after = points.partition_point(|point| of(point).0 < at);
    let (Some(b), Some(a)) = (points.get(after), points.get(after.saturating_sub(1))) else {
        return points.last().map_or(0.0, |point| of(point).1);
    };
    let ((ax, ay), (bx, by)) = (of(a), of(b));
    if bx <= ax { by } else { ay + (by - ay) * (at - ax) / (bx - ax) }
}

/// A rule that gives each job a speed within a power of all GPUs, watts.
type Rule = fn(&[Curve], f64) -> Vec<f64>;

/// How long before it falls plans follow a limit.
const AHEAD: Duration = Duration::from_secs(60);

/// The rules with what they count, and how long ahead they follow the limit.
const RULES: [(&str, Rule, Counted, Duration); 7] = [
    ("uniform cap", uniform, Counted::Drawn, Duration::ZERO),
    ("newest paused", newest_paused, Counted::Drawn, Duration::ZERO),
    ("common power, floors", common, Counted::Drawn, Duration::ZERO),
    ("floors, caps counted", common, Counted::Caps, Duration::ZERO),
    ("best, caps counted", best, Counted::Caps, Duration::ZERO),
    ("best, a minute ahead", best, Counted::Drawn, AHEAD),
    (BEST, best, Counted::Drawn, Duration::ZERO),
];
const BEST: &str = "best";

/// The highest power per GPU that fits, each job at least at `least` and at most at its full power.
fn common_level(curves: &[Curve], limit_w: f64, least: impl Fn(&Curve) -> f64) -> Vec<f64> {
    let at = |level: f64| -> Vec<f64> {
        curves.iter().map(|curve| level.min(curve.full_w()).max(least(curve))).collect()
    };
    let drawn = |watts: &[f64]| -> f64 { curves.iter().zip(watts).map(|(c, w)| c.gpus * w).sum() };
    let (mut low, mut high) = (0.0, 1_000.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if drawn(&at(middle)) <= limit_w { low = middle } else { high = middle }
    }
    curves.iter().zip(at(low)).map(|(curve, watts)| curve.speed(watts)).collect()
}

fn uniform(curves: &[Curve], limit_w: f64) -> Vec<f64> {
    common_level(curves, limit_w, |curve| curve.points[0].0)
}

fn common(curves: &[Curve], limit_w: f64) -> Vec<f64> {
    common_level(curves, limit_w, Curve::floor_w)
}

fn newest_paused(curves: &[Curve], limit_w: f64) -> Vec<f64> {
    let mut left_w = limit_w;
    let mut runs = |curve: &Curve| {
        left_w -= curve.gpus * curve.full_w();
        if left_w >= -1e-6 { 1.0 } else { 0.0 }
    };
    curves.iter().map(&mut runs).collect()
}

/// The linear programme of the greatest weighted speed with every floor kept: steps of the concave hulls by gain.
fn best(curves: &[Curve], limit_w: f64) -> Vec<f64> {
    let mut speeds: Vec<f64> = curves.iter().map(|curve| 1.0 - curve.loss).collect();
    let floors_w: f64 = curves.iter().map(|curve| curve.gpus * curve.floor_w()).sum();
    let mut left_w = (limit_w - floors_w).max(0.0);
    let of = |(index, curve): (usize, &Curve)| {
        curve.steps().into_iter().map(move |step| (index, step)).collect::<Vec<_>>()
    };
    let mut steps: Vec<(usize, (f64, f64, f64))> = curves.iter().enumerate().flat_map(of).collect();
    steps.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    for (index, (_, width, gain)) in steps {
        let watts = curves[index].gpus * width;
        let share = (left_w / watts).min(1.0);
        speeds[index] += share * gain;
        left_w -= share * watts;
    }
    speeds
}

/// The site: its jobs, and what its hosts draw.
struct Site {
    curves: Vec<Curve>,
    by_cap: Vec<Curve>,
    hosts_w: f64,
}

impl Site {
    fn new(world: &World) -> Self {
        let gpu = world.gpu("a100").expect("in the catalog");
        let curves =
            |counted| JOBS.iter().map(|job| Curve::new(world, gpu, *job, counted)).collect();
        let (curves, by_cap) = (curves(Counted::Drawn), curves(Counted::Caps));
        Self { curves, by_cap, hosts_w: 32.0 * world.host_power(gpu).as_w() }
    }

    fn full_w(&self) -> f64 {
        self.curves.iter().map(|curve| curve.gpus * curve.full_w()).sum()
    }

    /// The events of a scenario, all announced before the first one.
    fn events(&self, peaks: &[Peak]) -> Vec<PlannedEvent> {
        let first_s = peaks.iter().map(|peak| peak.start_s).min().unwrap_or_default();
        let event = |peak: &Peak| {
            let gpus_w = self.full_w() * (1.0 - f64::from(peak.less) / 100.0);
            let event = GridEvent {
                event: EventId::new(peak.name).expect("an id"),
                source: "utility".to_owned(),
                feeder: None,
                start_us: Timestamp::from_s(peak.start_s),
                ramp_down_s: peak.ramp_down_s,
                depth: Depth::Target { power_mw: Power::from_w_f64(self.hosts_w + gpus_w) },
                duration_s: peak.duration_s,
                ramp_up_s: peak.ramp_up_s,
                priority: 0,
                participation: Participation::Voluntary,
            };
            PlannedEvent { notice: Timestamp::from_s(first_s) - NOTICE, event }
        };
        peaks.iter().map(event).collect()
    }

    /// The limits over time, from the power of all jobs at the default setting.
    fn targets(&self, events: &[PlannedEvent]) -> TargetSteps {
        let mut book = EventBook::default();
        let power_mw = Power::from_w_f64(self.hosts_w + self.full_w());
        for planned in events {
            let (from_us, until_us) = (planned.notice - NOTICE, planned.notice);
            let method = MeasuredBy::EnergyLedger;
            let drawn = MeasuredMean { power_mw, from_us, until_us, method };
            let site = SiteFigures { drawn: Some(drawn), idle: None };
            book.add(planned.event.clone(), planned.notice, &site).expect("a valid event");
        }
        book.targets(Timestamp::EPOCH).site
    }

    /// A row from the mean performance of each job in each event.
    fn row(&self, peaks: &[Peak], name: &str, means: &[BTreeMap<String, f64>]) -> Row {
        let mean = |curve: &Curve, of: &BTreeMap<String, f64>| of.get(curve.name).copied();
        let seconds = |peak: &Peak| (peak.ramp_down_s + peak.duration_s + peak.ramp_up_s) as f64;
        let all_s: f64 = peaks.iter().map(seconds).sum();
        let whole = |curve: &Curve| -> f64 {
            let parts = peaks.iter().zip(means);
            parts.map(|(peak, of)| seconds(peak) * mean(curve, of).unwrap_or(0.0)).sum::<f64>()
                / all_s
        };
        let weights: f64 = self.curves.iter().map(Curve::weight).sum();
        let sum: f64 = self.curves.iter().map(|curve| curve.weight() * whole(curve)).sum();
        let is_broken = |curve: &&Curve| {
            let least = curve.weight() - LOSS_ERROR;
            means.iter().any(|of| mean(curve, of).unwrap_or(0.0) < least)
        };
        let broken = self.curves.iter().filter(is_broken);
        Row {
            less: peaks.iter().map(|peak| peak.less).collect(),
            name: name.to_owned(),
            performance: sum / weights,
            of_best: 0.0,
            broken: broken.map(|curve| curve.name.to_owned()).collect(),
            short_kw: 0.0,
            minutes_above: 0,
            prediction_rmse: None,
        }
    }

    /// A rule at every instant of the events.
    fn computed(
        &self,
        peaks: &[Peak],
        (name, rule, counted, ahead): (&str, Rule, Counted, Duration),
    ) -> Row {
        let curves = if counted == Counted::Caps { &self.by_cap } else { &self.curves };
        let events = self.events(peaks);
        let targets = self.targets(&events);
        let during = |planned: &PlannedEvent| -> BTreeMap<String, f64> {
            let event = &planned.event;
            let (mut at, end) =
                (event.start_us, event.end() + Duration::from_secs(event.ramp_up_s));
            let (mut sums, mut count) = (vec![0.0; self.curves.len()], 0.0);
            while at < end {
                let limit = targets.least(at, at + ahead);
                let limit_w = limit.map_or(f64::INFINITY, Power::as_w) - self.hosts_w;
                let speeds = rule(curves, limit_w);
                sums.iter_mut().zip(speeds).for_each(|(sum, speed)| *sum += speed);
                (at, count) = (at + STEP, count + 1.0);
            }
            let named = self.curves.iter().zip(sums);
            named.map(|(curve, sum)| (curve.name.to_owned(), sum / count)).collect()
        };
        let means: Vec<BTreeMap<String, f64>> = events.iter().map(during).collect();
        self.row(peaks, name, &means)
    }

    fn simulated(
        &self,
        world: &World,
        peaks: &[Peak],
        name: &str,
        draw: Option<u64>,
    ) -> Result<Row, SimulationError> {
        let options = RunOptions {
            oracle: draw.is_none(),
            oracle_caps: true,
            events: self.events(peaks),
            tenants_max: Some(1),
            ..RunOptions::default()
        };
        let policy = policy(name).map_err(SimulationError::Policy)?;
        let outcome = run_with(world, &scenario(draw.unwrap_or(1)), policy.as_ref(), &options)?;
        let events = outcome.events.as_ref();
        let of = |peak: &Peak| -> BTreeMap<String, f64> {
            let jobs = events.and_then(|events| {
                events.jobs.events.iter().find(|(event, _)| event.as_str() == peak.name)
            });
            let jobs = jobs.into_iter().flat_map(|(_, jobs)| jobs);
            jobs.map(|(job, own)| (job.as_str().to_owned(), 1.0 - own.loss())).collect()
        };
        let means: Vec<BTreeMap<String, f64>> = peaks.iter().map(of).collect();
        let predictions = match draw {
            None => "known curves".to_owned(),
            Some(1) => "predictions".to_owned(),
            Some(draw) => format!("predictions {draw}"),
        };
        Ok(Row {
            short_kw: events.map_or(0.0, |events| events.kw_short_max),
            minutes_above: events.map_or(0, |events| events.minutes_above),
            prediction_rmse: events.and_then(|events| events.prediction_rmse),
            ..self.row(peaks, &format!("{name}, {predictions}"), &means)
        })
    }
}

/// The cluster with its jobs, all submitted at once, and a draw of the noise of measurements.
fn scenario(draw: u64) -> Scenario {
    let job = |&(name, workload, gpus, loss_permille): &(&str, &str, u32, u32)| {
        let id = |name: &str| JobId::new(name).expect("an id");
        let workload = workload.parse().expect("an id");
        let flexibility = Some(Flexibility { loss_permille, ..Flexibility::default() });
        SimJob {
            flexibility,
            ..SimJob::new(id(name), Duration::ZERO, gpus, workload, Work::Lasts(LASTS))
        }
    };
    Scenario::new(
        "field trial",
        CLUSTER.parse().expect("a cluster"),
        JOBS.iter().map(job).collect(),
        draw,
    )
}

/// Compares the rules and the policies during these events, one set after the other, with this number of draws of the noise of
/// measurements.
pub(crate) fn compare(
    sets: &[Vec<Peak>],
    policies: &[String],
    draws: u64,
) -> Result<Vec<Row>, SimulationError> {
    let world = &World::builtin();
    let site = Site::new(world);
    let mut rows = Vec::new();
    for peaks in sets {
        let mut of_set: Vec<Row> = RULES.iter().map(|rule| site.computed(peaks, *rule)).collect();
        let best = of_set.iter().find(|row| row.name == BEST).map_or(1.0, |row| row.performance);
        for name in policies {
            for draw in std::iter::once(None).chain((1..=draws).map(Some)) {
                of_set.push(site.simulated(world, peaks, name, draw)?);
            }
        }
        of_set.iter_mut().for_each(|row| row.of_best = row.performance / best);
        rows.extend(of_set);
    }
    Ok(rows)
}

/// The rows as a table.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:>8}  {:<22}  {:>11}  {:>7}  {:>5}  {:>5}  {:>6}  {}\n",
        "LESS", "POLICY", "PERFORMANCE", "OF BEST", "SHORT", "ABOVE", "RMSE", "PROMISES BROKEN"
    );
    for row in rows {
        let broken = if row.broken.is_empty() { "none".to_owned() } else { row.broken.join(", ") };
        let rmse =
            row.prediction_rmse.map_or("-".to_owned(), |off| format!("{:.2} %", 100.0 * off));
        let less: Vec<String> = row.less.iter().map(u32::to_string).collect();
        text.push_str(&format!(
            "{:>6} %  {:<22}  {:>11.4}  {:>7.4}  {:>2.0} kW  {:>5}  {rmse:>6}  {broken}\n",
            less.join(", "),
            row.name,
            row.performance,
            row.of_best,
            row.short_kw,
            row.minutes_above
        ));
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row<'r>(rows: &'r [Row], name: &str) -> &'r Row {
        rows.iter().find(|row| row.name == name).unwrap()
    }

    /// The policies keep every promise and target, and are close to the best.
    pub(crate) fn policies_are_close_to_the_best(rows: &[Row], least: [f64; 2]) {
        let common = row(rows, "common power, floors");
        let paused = row(rows, "newest paused");
        assert!(paused.performance < common.performance - 0.05, "{paused:?}");
        assert!(!paused.broken.is_empty(), "{paused:?}");
        assert!(common.of_best > 0.99 && common.of_best < 1.0, "{common:?}");
        assert!(common.broken.is_empty(), "{common:?}");
        for policy in POLICIES {
            for (predictions, least) in ["known curves", "predictions"].into_iter().zip(least) {
                let row = row(rows, &format!("{policy}, {predictions}"));
                assert_eq!((row.broken.len(), row.minutes_above), (0, 0), "{row:?}");
                assert!(row.of_best >= least && row.short_kw < 1e-9, "{row:?}");
                let rmse = row.prediction_rmse.unwrap();
                assert!(rmse < 0.01, "{row:?}");
            }
        }
    }

    #[test]
    fn the_power_of_the_jobs_is_that_of_the_trial() {
        // The trial's GPUs drew 94 kW before the event.
        let full_w = Site::new(&World::builtin()).full_w();
        assert!((full_w - 94_800.0).abs() < 300.0, "{full_w}");
    }
}
