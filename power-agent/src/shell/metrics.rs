//! Metrics of the power agent: caps and clocks in force, the lease, the health of GPUs, and faults.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use wattle_common::messages::{AppliedGpu, PowerReport};
use wattle_common::{Power, Timestamp};
use wattle_runtime::clock;
use wattle_runtime::metrics::{Counter, Gauge, Gauges, Metrics};

use crate::machine::Action;
use crate::note::Note;

/// The metrics of one power agent. Clones share them.
#[derive(Clone)]
pub struct PowerMetrics {
    gpus: Arc<Vec<(Gauges<2>, Value)>>,
    conditions: Gauges<1>,
    generation: Gauge,
    advise_only: Gauge,
    /// End of the lease.
    lease_until: Arc<Mutex<Option<Timestamp>>>,
    caps_set: Counter,
    clocks_set: Counter,
    settings_failed: Counter,
    leases_ended: Counter,
    orders_refused: Counter,
}

/// A value of a GPU, if it is known.
type Value = fn(&AppliedGpu) -> Option<f64>;

/// Name, help and value of each gauge of a GPU.
const GPU_GAUGES: [(&str, &str, Value); 7] = [
    ("wattle_power_cap_watts", "Power cap in force, watts", |gpu| gpu.cap_mw.map(Power::as_w)),
    ("wattle_power_cap_default_watts", "Default power cap of the GPU, watts", |gpu| {
        gpu.cap_mw_default.map(Power::as_w)
    }),
    (
        "wattle_power_cap_advised_watts",
        "Power cap that an agent which only advises would set, watts",
        |gpu| gpu.cap_mw_advised.map(Power::as_w),
    ),
    (
        "wattle_power_clock_limit_hertz",
        "Upper limit of the locked SM clock, hertz; absent without a lock",
        |gpu| gpu.clock_mhz_max.map(|clock| f64::from(clock.as_mhz()) * 1e6),
    ),
    ("wattle_power_gpu_healthy", "Whether the GPU responds: 1 or 0", |gpu| {
        Some(f64::from(u8::from(gpu.healthy)))
    }),
    ("wattle_power_gpu_accepts_jobs", "Whether new jobs may be placed on the GPU: 1 or 0", |gpu| {
        Some(f64::from(u8::from(gpu.accepts_jobs())))
    }),
    (
        "wattle_power_ecc_errors_uncorrected",
        "Uncorrected memory errors since the driver was loaded or the GPU was reset",
        |gpu| gpu.health.as_ref()?.ecc_errors_uncorrected.map(|errors| errors as f64),
    ),
];

impl PowerMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        let gpus = GPU_GAUGES
            .map(|(name, help, value)| (metrics.gauges(name, help, ["gpu", "gpu_type"]), value));
        let lease_until: Arc<Mutex<Option<Timestamp>>> = Arc::default();
        let lease = metrics.gauge(
            "wattle_power_lease_remaining_seconds",
            "Time until the end of the lease on the caps, seconds; 0: safe caps are in force",
        );
        let until = Arc::clone(&lease_until);
        metrics.at_scrape(move || {
            let until = *until.lock().unwrap_or_else(PoisonError::into_inner);
            let left = until.map_or(0.0, |until| until.since(clock::now()).as_secs_f64());
            lease.set([], Some(left));
        });
        Self {
            gpus: Arc::new(gpus.into()),
            conditions: metrics.gauges(
                "wattle_power_gpus_with_condition",
                "Number of GPUs with a condition, such as lost or mig-enabled",
                ["condition"],
            ),
            generation: metrics
                .gauge("wattle_power_order_generation", "Generation of the desired state in force"),
            advise_only: metrics.gauge(
                "wattle_power_advise_only",
                "Whether caps and clocks are only computed and reported: 1 or 0",
            ),
            lease_until,
            caps_set: metrics
                .counter("wattle_power_caps_set_total", "Orders of a cap to the driver"),
            clocks_set: metrics
                .counter("wattle_power_clocks_set_total", "Orders of a clock to the driver"),
            settings_failed: metrics.counter(
                "wattle_power_settings_failed_total",
                "Caps and clocks that the driver did not apply",
            ),
            leases_ended: metrics.counter(
                "wattle_power_leases_ended_total",
                "Leases that ended without renewal: GPUs returned to their safe caps",
            ),
            orders_refused: metrics.counter(
                "wattle_power_orders_refused_total",
                "Desired states that were refused: outdated, expired or with an impossible number",
            ),
        }
    }

    /// The machine returned an action.
    pub(super) fn acted(&self, action: &Action) {
        match action {
            Action::Report(report) => self.reported(report),
            Action::SetCap { .. } => self.caps_set.increment([]),
            Action::SetClock { .. } => self.clocks_set.increment([]),
            Action::Log(note) => self.noted(note),
            Action::ReadGpus | Action::Sleep(_) | Action::StoreCaps(_) => {}
        }
    }

    fn noted(&self, note: &Note) {
        match note {
            Note::NotApplied { .. } => self.settings_failed.increment([]),
            Note::LeaseEnded { .. } => self.leases_ended.increment([]),
            Note::Refused(_) | Note::Expired { .. } | Note::WrongNode { .. } => {
                self.orders_refused.increment([]);
            }
            _ => {}
        }
    }

    fn reported(&self, report: &PowerReport) {
        for (gauges, value) in self.gpus.iter() {
            gauges.replace(report.gpus.iter().map(|gpu| {
                let labels = [gpu.gpu.to_string(), gpu.gpu_type.clone()];
                (labels, value(gpu))
            }));
        }
        let mut conditions: BTreeMap<&str, u32> = BTreeMap::new();
        let health = report.gpus.iter().filter_map(|gpu| gpu.health.as_ref());
        for condition in health.flat_map(|health| &health.conditions) {
            *conditions.entry(condition.condition.as_str()).or_default() += 1;
        }
        self.conditions.replace(
            conditions.into_iter().map(|(name, gpus)| ([name.to_owned()], Some(f64::from(gpus)))),
        );
        self.generation.set([], Some(report.observed_generation as f64));
        self.advise_only.set([], Some(f64::from(u8::from(report.advise_only))));
        let mut until = self.lease_until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = report.lease_until_us;
    }
}
