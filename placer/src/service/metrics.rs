//! Metrics of the placer: jobs, rounds, power, price, budget, and the energy of the cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, LedgerEntry};
use wattle_common::{JobId, NodeId, Power, Timestamp};
use wattle_grid::poller::Read;
use wattle_runtime::clock;
use wattle_runtime::metrics::{Counter, Counters, Gauge, Gauges, Histogram, Metrics};
use wattle_runtime::traces;

use super::event_metrics::EventGauges;
use super::expected_metrics::ExpectedGauges;
use super::grid_metrics::GridMetrics;
use super::twin_metrics::TwinGauges;
use crate::live::Action;
use crate::live::measures::{Measures, WindowMeasures};

/// Least wall time between two updates of the gauges, which read every job.
const UPDATE_EVERY: Duration = Duration::from_secs(1);
/// Bounds of waits and completion times, seconds: half a minute to a week.
const JOB_BOUNDS: [f64; 10] =
    [30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0];
/// Bounds of the duration of a round, seconds.
const ROUND_BOUNDS: [f64; 9] = [0.000_1, 0.001, 0.003, 0.01, 0.03, 0.1, 1.0, 3.0, 10.0];
/// All phases.
const PHASES: [JobPhase; 7] = [
    JobPhase::Queued,
    JobPhase::Starting,
    JobPhase::Running,
    JobPhase::Stopping,
    JobPhase::Finished,
    JobPhase::Failed,
    JobPhase::Cancelled,
];
/// Joules in a kilowatt-hour.
const J_PER_KWH: f64 = 3.6e6;

/// The metrics of one placer. Clones share them.
#[derive(Clone)]
pub struct PlacerMetrics {
    active: Gauge,
    jobs: Gauges<1>,
    oldest_queued: Gauge,
    waits: Histogram,
    completions: Histogram,
    ended: Counters<1>,
    nodes: Gauges<1>,
    gpus: Gauges<1>,
    rounds: Histogram,
    alarms: Counter,
    power: Gauges<1>,
    power_price: Gauge,
    kw_saves: Gauge,
    power_correction: Gauge,
    power_unused: Gauge,
    feeder_power: Gauges<2>,
    events: EventGauges,
    price: Gauge,
    slowdown: Gauges<1>,
    twin: TwinGauges,
    expected: ExpectedGauges,
    findings: Gauges<1>,
    budget: BudgetGauges,
    intensity: Gauge,
    energy: Counters<1>,
    compared: Counters<1>,
    carbon: Counter,
    spans: Counters<1>,
    grid: GridMetrics,
    state: Arc<Mutex<Counted>>,
}

/// The gauges of the budget's window.
#[derive(Clone)]
struct BudgetGauges {
    energy: Gauges<1>,
    carbon: Gauges<1>,
    left: Gauge,
}

/// What is counted already.
#[derive(Default)]
struct Counted {
    updated_at: Option<Duration>,
    rounds: u64,
    /// The attempt of each job that has not ended; bounded like the placer's jobs.
    attempts: BTreeMap<JobId, u32>,
    /// The end of the last entry of each node.
    metered_until: BTreeMap<NodeId, Timestamp>,
    intensity_g_per_kwh: Option<f64>,
}

impl BudgetGauges {
    fn new(metrics: &Metrics) -> Self {
        Self {
            energy: metrics.gauges(
                "wattle_placer_budget_energy_joules",
                "Energy of the open budget window: limit, spent or remaining, joules",
                ["quantity"],
            ),
            carbon: metrics.gauges(
                "wattle_placer_budget_carbon_grams",
                "CO2 equivalent of the open budget window: limit, spent or remaining, grams",
                ["quantity"],
            ),
            left: metrics.gauge(
                "wattle_placer_budget_window_remaining_seconds",
                "Time until the open budget window ends, seconds",
            ),
        }
    }

    fn set(&self, window: Option<WindowMeasures>) {
        let show = |gauges: &Gauges<1>, limit: Option<f64>, spent: Option<f64>| {
            gauges.set(["limit"], limit);
            gauges.set(["spent"], spent);
            gauges.set(["remaining"], limit.zip(spent).map(|(limit, spent)| limit - spent));
        };
        let energy_limit = window.and_then(|window| Some(window.energy_limit?.as_j()));
        show(&self.energy, energy_limit, window.map(|window| window.energy_spent_j));
        let carbon_limit = window.and_then(|window| window.carbon_limit_g);
        show(&self.carbon, carbon_limit, window.and_then(|window| window.carbon_spent_g));
        self.left.set([], window.map(|window| window.left.as_secs_f64()));
    }
}

impl PlacerMetrics {
    /// The counters of spans.
    #[must_use]
    pub fn spans(&self) -> Counters<1> {
        self.spans.clone()
    }

    /// Registers the metrics.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        let ended = metrics.counters(
            "wattle_placer_jobs_ended_total",
            "Ended jobs by result: finished, failed or cancelled",
            ["result"],
        );
        ended.begin([["finished"], ["failed"], ["cancelled"]]);
        let energy = metrics.counters(
            "wattle_cluster_energy_joules_total",
            "Energy in the ledger since the start of the placer, of jobs, idle GPUs, unknown owners and \
             hosts, joules",
            ["owner"],
        );
        energy.begin([["jobs"], ["idle"], ["unknown"], ["hosts"]]);
        let compared = metrics.counters(
            "wattle_cluster_compared_joules_total",
            "Energy of jobs in the ledger since the start of the placer that is compared with the default \
             caps and clocks: measured, and predicted for the default; the difference is saved, joules",
            ["setting"],
        );
        compared.begin([["measured"], ["default"]]);
        let active = metrics
            .gauge("wattle_placer_active", "Whether this placer decides: 1, or 0 on standby");
        active.set([], Some(0.0));
        Self {
            active,
            jobs: metrics.gauges(
                "wattle_placer_jobs",
                "Jobs by phase; of ended jobs, those that are kept",
                ["phase"],
            ),
            oldest_queued: metrics.gauge(
                "wattle_placer_oldest_queued_seconds",
                "Age of the oldest submission in the queue, seconds of system time",
            ),
            waits: metrics.histogram(
                "wattle_placer_queue_wait_seconds",
                "Time from a job's submission to its first start, seconds of system time",
                &JOB_BOUNDS,
            ),
            completions: metrics.histogram(
                "wattle_placer_completion_seconds",
                "Time from a job's submission to its end, seconds of system time",
                &JOB_BOUNDS,
            ),
            ended,
            nodes: metrics.gauges(
                "wattle_placer_nodes",
                "Nodes by state: ready, faulty (cannot start jobs), silent, asleep or waking",
                ["state"],
            ),
            gpus: metrics.gauges(
                "wattle_placer_gpus",
                "GPUs by use: busy, free or unavailable",
                ["use"],
            ),
            rounds: metrics.histogram(
                "wattle_placer_round_seconds",
                "Duration of a planning round, seconds of wall time",
                &ROUND_BOUNDS,
            ),
            alarms: metrics.counter("wattle_placer_alarms_total", "Alarms of the placer's decisions"),
            power: metrics.gauges(
                "wattle_placer_power_watts",
                "Power of the cluster with its hosts: expected, baseline, reserved or limit, watts",
                ["quantity"],
            ),
            power_price: metrics.gauge(
                "wattle_placer_power_price_seconds_per_kwh",
                "Price of power below the power limit now, seconds of completion time per kWh; 0: it does not bind",
            ),
            kw_saves: metrics.gauge(
                "wattle_placer_power_limit_seconds_per_kw",
                "By how much one more kW would have shortened the mean completion time of about the last day's \
                 jobs, seconds",
            ),
            power_correction: metrics.gauge(
                "wattle_placer_power_correction_ratio",
                "Expected over predicted power above idle of the running jobs, by measurements below a power limit",
            ),
            power_unused: metrics.gauge(
                "wattle_placer_power_unused_ratio",
                "Share of the power limit that was unused while jobs waited, of about the last hour, by measured power",
            ),
            feeder_power: metrics.gauges(
                "wattle_placer_feeder_power_watts",
                "Power on a feeder with its static load: expected, worst (the highest if any single feeder is \
                 lost) or limit, watts",
                ["feeder", "quantity"],
            ),
            events: EventGauges::new(metrics),
            price: metrics.gauge(
                "wattle_placer_energy_price_ratio",
                "Energy price of the budget or the energy aim, 0 (free) to 1 (the policy's highest)",
            ),
            slowdown: metrics.gauges(
                "wattle_placer_slowdown_ratio",
                "Mean completion time under the energy aim relative to its reference, minus 1: estimate or limit, a \
                 share",
                ["quantity"],
            ),
            twin: TwinGauges::new(metrics),
            expected: ExpectedGauges::new(metrics),
            findings: metrics.gauges(
                "wattle_placer_findings",
                "Problems by kind. late: number of jobs past their deadlines. late-predicted: number of jobs \
                 predicted to miss them. aim-exceeded, budget-below-idle: 1 while it is so, else 0",
                ["kind"],
            ),
            budget: BudgetGauges::new(metrics),
            intensity: metrics.gauge(
                "wattle_placer_carbon_intensity_grams_per_kwh",
                "Carbon intensity of the grid now, grams of CO2 equivalent per kWh",
            ),
            energy,
            compared,
            spans: traces::counters(metrics),
            carbon: metrics.counter(
                "wattle_cluster_carbon_grams_total",
                "CO2 equivalent of the energy in the ledger since the start of the placer, while the \
                 intensity is known, grams",
            ),
            grid: GridMetrics::new(metrics),
            state: Arc::default(),
        }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This placer becomes active, or returns to standby.
    pub(super) fn is_active(&self, active: bool) {
        self.active.set([], Some(f64::from(u8::from(active))));
        // The next active phase starts from the stored records.
        *self.counted() = Counted::default();
    }

    /// A stored job of an earlier placer.
    pub(super) fn restored(&self, records: &[JobRecord]) {
        let active = records.iter().filter(|record| !record.phase.is_final());
        self.counted().attempts =
            active.map(|record| (record.spec.job.clone(), record.attempt)).collect();
    }

    /// The placer is to carry out these actions.
    pub(super) fn acted(&self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::StoreJob(record) => self.stored(record),
                Action::Alarm(_) => self.alarms.increment([]),
                _ => {}
            }
        }
    }

    fn stored(&self, record: &JobRecord) {
        let mut counted = self.counted();
        let (job, submitted) = (&record.spec.job, record.spec.submitted_at_us);
        if record.phase.is_final() {
            if counted.attempts.remove(job).is_some() {
                self.ended.increment([&record.phase.to_string()]);
                let ended = record.ended_at_us.unwrap_or(record.phase_since_us);
                self.completions.observe(ended.since(submitted).as_secs_f64());
            }
            return;
        }
        let before = counted.attempts.insert(job.clone(), record.attempt);
        if before.unwrap_or(0) == 0 && record.attempt == 1 {
            self.waits.observe(record.phase_since_us.since(submitted).as_secs_f64());
        }
    }

    /// An entry of the energy ledger was delivered; a repeated one does not count.
    pub(super) fn metered(&self, entry: &LedgerEntry) {
        let mut counted = self.counted();
        let until = counted.metered_until.entry(entry.node.clone()).or_default();
        if entry.until_us <= *until {
            return;
        }
        *until = entry.until_us;
        for (owner, energy) in [
            ("jobs", entry.attributed()),
            ("idle", entry.idle()),
            ("unknown", entry.unknown()),
            ("hosts", entry.energy_mj_host),
        ] {
            self.energy.add([owner], energy.as_j());
        }
        for compared in entry.jobs.iter().filter_map(|job| job.compared) {
            self.compared.add(["measured"], compared.energy_mj.as_j());
            self.compared.add(["default"], compared.energy_mj_default.as_j());
        }
        if let Some(intensity) = counted.intensity_g_per_kwh {
            let joules = (entry.gpus() + entry.energy_mj_host).as_j();
            self.carbon.add([], joules / J_PER_KWH * intensity);
        }
    }

    /// The placer handled an event in `took`; `measures` are read when an update is due.
    pub(super) fn handled(&self, rounds: u64, took: Duration, measures: impl FnOnce() -> Measures) {
        let now = clock::monotonic();
        let mut counted = self.counted();
        if counted.rounds != rounds {
            counted.rounds = rounds;
            self.rounds.observe(took.as_secs_f64());
        }
        if counted.updated_at.is_some_and(|at| now.saturating_sub(at) < UPDATE_EVERY) {
            return;
        }
        counted.updated_at = Some(now);
        let measures = measures();
        counted.intensity_g_per_kwh = measures.intensity_g_per_kwh;
        drop(counted);
        self.update(&measures);
    }

    fn update(&self, measures: &Measures) {
        for phase in PHASES {
            let count = measures.jobs.get(&phase).copied().unwrap_or_default();
            self.jobs.set([&phase.to_string()], Some(count as f64));
        }
        self.oldest_queued.set([], Some(measures.oldest_queued.as_secs_f64()));
        let nodes = measures.nodes;
        for (state, count) in [
            ("ready", nodes.ready),
            ("faulty", nodes.faulty),
            ("silent", nodes.silent),
            ("asleep", nodes.asleep),
            ("waking", nodes.waking),
        ] {
            self.nodes.set([state], Some(count as f64));
        }
        let gpus = measures.gpus;
        for (used, count) in
            [("busy", gpus.busy), ("free", gpus.free), ("unavailable", gpus.unavailable)]
        {
            self.gpus.set([used], Some(f64::from(count)));
        }
        for (quantity, power) in [
            ("expected", Some(measures.power_expected)),
            ("baseline", measures.power_baseline),
            ("reserved", measures.power_reserved),
            ("limit", measures.power_limit),
        ] {
            self.power.set([quantity], power.map(Power::as_w));
        }
        let cost = measures.limit_cost;
        self.power_price.set([], cost.map(|cost| cost.price_s_per_kwh));
        self.kw_saves.set([], cost.and_then(|cost| cost.saved_s_per_kw));
        let margin = measures.power_margin;
        self.power_correction.set([], margin.map(|margin| margin.correction));
        self.power_unused.set([], margin.and_then(|margin| margin.unused_share));
        self.events.set(&measures.events);
        for status in &measures.feeders {
            for (quantity, power) in [
                ("expected", status.power_mw_expected),
                ("worst", status.power_mw_worst),
                ("limit", status.feeder.limit_mw),
            ] {
                self.feeder_power.set([status.feeder.name.as_str(), quantity], Some(power.as_w()));
            }
        }
        self.price.set([], measures.price);
        self.slowdown.set(["estimate"], measures.slowdown.map(|(estimate, _)| estimate));
        self.slowdown.set(["limit"], measures.slowdown.map(|(_, limit)| limit));
        self.twin.set(measures.twin);
        self.expected.set(measures.expected);
        let findings = measures.findings;
        for (kind, count) in [
            ("late", findings.late),
            ("late-predicted", findings.late_predicted),
            ("aim-exceeded", usize::from(findings.aim_exceeded)),
            ("budget-below-idle", usize::from(findings.below_idle)),
        ] {
            self.findings.set([kind], Some(count as f64));
        }
        self.budget.set(measures.window);
        self.intensity.set([], measures.intensity_g_per_kwh);
        self.grid.update(measures);
    }

    /// A read of a provider has ended.
    pub(super) fn grid_read(&self, read: &Read) {
        self.grid.ended(read);
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::comparison::ComparedEnergy;
    use wattle_common::messages::JobEnergy;
    use wattle_common::{ClusterId, Energy};

    use super::*;

    fn value(metrics: &Metrics, name: &str, label: &str) -> f64 {
        let text = metrics.text();
        let is_sample = |line: &&str| line.starts_with(name) && line.contains(label);
        let line = text.lines().find(is_sample).unwrap_or_else(|| panic!("{name} {label}: {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn entry(until_s: u64) -> LedgerEntry {
        let job = JobEnergy {
            job: JobId::new("a").unwrap(),
            admission: None,
            energy_mj: Energy::from_mj(2_000),
            user: None,
            project: None,
            compared: Some(ComparedEnergy {
                energy_mj: Energy::from_mj(1_000),
                energy_mj_default: Energy::from_mj(1_500),
                ..ComparedEnergy::default()
            }),
        };
        LedgerEntry {
            node: NodeId::new("n0").unwrap(),
            from_us: Timestamp::from_s(until_s - 60),
            until_us: Timestamp::from_s(until_s),
            energy_mj_gpus: vec![Some(Energy::from_mj(3_000)), None],
            energy_mj_host: Energy::from_mj(500),
            jobs: vec![job],
            unknown: Vec::new(),
        }
    }

    #[test]
    fn energy_of_a_repeated_entry_counts_once() {
        let metrics = Metrics::new("placer", &ClusterId::new("main").unwrap(), None);
        let placer = PlacerMetrics::new(&metrics);
        let intensity = Measures { intensity_g_per_kwh: Some(360.0), ..Measures::default() };
        placer.handled(1, Duration::from_millis(2), || intensity);
        for until_s in [120, 120, 180] {
            placer.metered(&entry(until_s));
        }
        let energy = |owner: &str| {
            value(&metrics, "wattle_cluster_energy_joules_total{", &format!("owner=\"{owner}\""))
        };
        let expected = [("jobs", 4.0), ("idle", 2.0), ("unknown", 0.0), ("hosts", 1.0)];
        for (owner, joules) in expected {
            assert!((energy(owner) - joules).abs() < 1e-9, "{owner}: {} J", energy(owner));
        }
        for (setting, joules) in [("measured", 2.0), ("default", 3.0)] {
            let label = format!("setting=\"{setting}\"");
            let found = value(&metrics, "wattle_cluster_compared_joules_total{", &label);
            assert!((found - joules).abs() < 1e-9, "{setting}: {found} J");
        }
        // 7 J at 360 g/kWh, which is 0.1 mg/J.
        let carbon = value(&metrics, "wattle_cluster_carbon_grams_total{", "");
        assert!((carbon - 0.000_7).abs() < 1e-12, "{carbon}");
        assert!((value(&metrics, "wattle_placer_round_seconds_count{", "") - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_value_without_a_budget_has_no_sample() {
        let metrics = Metrics::new("placer", &ClusterId::new("main").unwrap(), None);
        let placer = PlacerMetrics::new(&metrics);
        let window = WindowMeasures {
            energy_limit: Some(Energy::from_mj(10_000)),
            energy_spent_j: 4.0,
            carbon_limit_g: None,
            carbon_spent_g: None,
            left: Duration::from_secs(60),
        };
        placer.update(&Measures { window: Some(window), ..Measures::default() });
        let name = "wattle_placer_budget_energy_joules{";
        assert!((value(&metrics, name, "remaining") - 6.0).abs() < 1e-9);
        assert!(!metrics.text().contains("wattle_placer_budget_carbon_grams{"));
        placer.update(&Measures::default());
        assert!(!metrics.text().contains(name), "the budget was ended");
    }
}
