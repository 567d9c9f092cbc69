//! Metrics of the profiler: the readings of each GPU, and what becomes of windows and ledger entries.
//!
//! The values are those of the last summary, once a second. On request each GPU also has the names and labels
//! of NVIDIA's dcgm-exporter, so that panels made for it work
//! (<https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv>).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use wattle_common::messages::{GpuSummary, Meter, NodeSummary};
use wattle_common::{GpuIndex, Power};
use wattle_gpu::GpuInfo;
use wattle_runtime::instance;
use wattle_runtime::metrics::{Counter, Counters, Gauge, Gauges, Metrics};

use crate::machine::Action;

const MIB: f64 = 1_048_576.0;

/// What became of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowResult {
    /// It is in the stream.
    Stored,
    /// It was lost: the bus was away for too long, or refused it.
    Dropped,
}

/// The metrics of one profiler. Clones share them.
#[derive(Clone)]
pub struct ProfilerMetrics {
    gpus: GpuGauges,
    dcgm: Option<DcgmGauges>,
    /// The constant properties of each GPU.
    info: Arc<Mutex<BTreeMap<GpuIndex, GpuInfo>>>,
    energy: Counters<2>,
    host_watts: Gauge,
    jobs: Gauge,
    samples: Counter,
    readings_failed: Counter,
    windows: Counters<1>,
    messages_dropped: Counter,
    ledger_entries: Counters<1>,
    ledger_joules: Counter,
    ledger_pending: Gauge,
}

/// A value of a GPU, if it was read.
type Value = fn(&GpuSummary) -> Option<f64>;

/// Name, help and value of each gauge of a GPU.
const GPU_GAUGES: [(&str, &str, Value); 9] = [
    ("wattle_gpu_power_watts", "Mean power of the GPU over the last second, watts", |gpu| {
        gpu.power_mw_mean.map(Power::as_w)
    }),
    ("wattle_gpu_cap_watts", "Power cap in force, watts", |gpu| gpu.cap_mw.map(Power::as_w)),
    ("wattle_gpu_utilization_ratio", "Share of time in which a kernel ran, 0 to 1", |gpu| {
        gpu.utilization_gpu_percent_mean.map(|percent| f64::from(percent) / 100.0)
    }),
    ("wattle_gpu_memory_used_bytes", "Device memory in use, bytes", |gpu| {
        gpu.memory_used_mib.map(|mib| mib as f64 * MIB)
    }),
    ("wattle_gpu_sm_clock_hertz", "SM clock, hertz", |gpu| {
        gpu.clock_mhz.map(|clock| f64::from(clock.as_mhz()) * 1e6)
    }),
    ("wattle_gpu_temperature_celsius", "Temperature of the GPU, degrees Celsius", |gpu| {
        gpu.temperature_c.map(f64::from)
    }),
    ("wattle_gpu_readable", "Whether the GPU can be read: 1 or 0", |gpu| {
        Some(f64::from(u8::from(gpu.error.is_none())))
    }),
    ("wattle_gpu_metered", "Whether the energy of the GPU is measured: 1 or 0", |gpu| {
        Some(f64::from(u8::from(gpu.meter? != Meter::None)))
    }),
    ("wattle_gpu_jobs", "Number of jobs on the GPU", |gpu| Some(gpu.jobs.len() as f64)),
];

/// As [`GPU_GAUGES`], under the names and in the units of dcgm-exporter.
const DCGM_GAUGES: [(&str, &str, Value); 9] = [
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W)", |gpu| gpu.power_mw_mean.map(Power::as_w)),
    // A gauge here: promtool requires the suffix _total of counters, and queries ignore the type.
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy since the start of the profiler (in mJ)",
        |gpu| gpu.energy_mj_total.map(|energy| energy.as_j() * 1e3),
    ),
    ("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz)", |gpu| {
        gpu.clock_mhz.map(|clock| f64::from(clock.as_mhz()))
    }),
    ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %)", |gpu| {
        gpu.utilization_gpu_percent_mean.map(f64::from)
    }),
    ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB)", |gpu| {
        gpu.memory_used_mib.map(|mib| mib as f64)
    }),
    // Without the driver's own memory, as NVIDIA's.
    ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB)", |gpu| {
        gpu.memory_free_mib.map(|mib| mib as f64)
    }),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Power cap that is set (in W)", |gpu| {
        gpu.cap_mw.map(Power::as_w)
    }),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "Power cap in force after all limits (in W)", |gpu| {
        gpu.cap_mw_enforced.map(Power::as_w)
    }),
    ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C)", |gpu| gpu.temperature_c.map(f64::from)),
];

/// The gauges of each GPU by index and type.
#[derive(Clone)]
struct GpuGauges(Arc<Vec<(Gauges<2>, Value)>>);

/// The gauges of each GPU under the names of dcgm-exporter.
#[derive(Clone)]
struct DcgmGauges(Arc<Vec<(Gauges<5>, Value)>>);

impl ProfilerMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn new(metrics: &Metrics, dcgm_names: bool) -> Self {
        let gpus = GPU_GAUGES
            .map(|(name, help, value)| (metrics.gauges(name, help, ["gpu", "gpu_type"]), value));
        let dcgm = dcgm_names.then(|| {
            let labels = ["gpu", "UUID", "device", "modelName", "Hostname"];
            let gauges =
                DCGM_GAUGES.map(|(name, help, value)| (metrics.gauges(name, help, labels), value));
            DcgmGauges(Arc::new(gauges.into()))
        });
        let windows = metrics.counters(
            "wattle_profiler_windows_total",
            "Closed windows, by what became of them: stored or dropped",
            ["result"],
        );
        let ledger_entries = metrics.counters(
            "wattle_profiler_ledger_entries_total",
            "Attempts to store an entry of the energy ledger: stored or failed; failed ones are repeated",
            ["result"],
        );
        windows.begin([["stored"], ["dropped"]]);
        ledger_entries.begin([["stored"], ["failed"]]);
        Self {
            gpus: GpuGauges(Arc::new(gpus.into())),
            dcgm,
            info: Arc::default(),
            energy: metrics.counters(
                "wattle_gpu_energy_joules_total",
                "Measured energy of the GPU since the start of the profiler, joules",
                ["gpu", "gpu_type"],
            ),
            host_watts: metrics.gauge(
                "wattle_node_host_power_watts",
                "Configured power of the node without its GPUs, watts",
            ),
            jobs: metrics.gauge("wattle_node_jobs", "Number of jobs with GPUs on the node"),
            samples: metrics
                .counter("wattle_profiler_samples_total", "Instants at which the GPUs were read"),
            readings_failed: metrics
                .counter("wattle_profiler_readings_failed_total", "Failed readings of GPUs"),
            windows,
            messages_dropped: metrics.counter(
                "wattle_profiler_messages_dropped_total",
                "Telemetry, summaries and progress reports that were not sent",
            ),
            ledger_entries,
            ledger_joules: metrics.counter(
                "wattle_profiler_ledger_joules_total",
                "Energy of the stored entries of the ledger: GPUs and host, joules",
            ),
            ledger_pending: metrics.gauge(
                "wattle_profiler_ledger_pending",
                "Whether an entry of the ledger waits to be stored: 1 or 0",
            ),
        }
    }

    /// A GPU was found.
    pub(super) fn gpu_found(&self, gpu: GpuIndex, info: &GpuInfo) {
        let mut known = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(gpu, info.clone());
    }

    /// A telemetry message, summary or progress report was not sent.
    pub(super) fn message_dropped(&self) {
        self.messages_dropped.increment([]);
    }

    /// A window was stored or lost.
    pub(super) fn window(&self, result: WindowResult) {
        self.windows.increment([match result {
            WindowResult::Stored => "stored",
            WindowResult::Dropped => "dropped",
        }]);
    }

    /// An attempt to store a ledger entry ended.
    pub(super) fn ledger_ended(&self, joules: f64, stored: bool) {
        self.ledger_entries.increment([if stored { "stored" } else { "failed" }]);
        if stored {
            self.ledger_joules.add([], joules);
            self.ledger_pending.set([], Some(0.0));
        }
    }

    /// The machine returned an action.
    pub(super) fn acted(&self, action: &Action) {
        match action {
            Action::PublishSummary(summary) => self.summarized(summary),
            Action::StoreLedger(_) => self.ledger_pending.set([], Some(1.0)),
            Action::PublishBatch(_)
            | Action::PublishProgress(_)
            | Action::StoreWindow(_)
            | Action::SaveState(_)
            | Action::Log(_) => {}
        }
    }

    fn summarized(&self, summary: &NodeSummary) {
        self.samples.add([], f64::from(summary.samples));
        self.readings_failed.add([], f64::from(summary.readings_failed));
        self.jobs.set([], Some(summary.jobs.len() as f64));
        self.host_watts.set([], summary.power_mw_host.map(Power::as_w));
        let info = self.info.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let type_of = |gpu: &GpuSummary| {
            info.get(&gpu.gpu).map(|info| info.gpu_type.clone()).unwrap_or_default()
        };
        for (gauges, value) in self.gpus.0.iter() {
            gauges.replace(
                summary.gpus.iter().map(|gpu| ([gpu.gpu.to_string(), type_of(gpu)], value(gpu))),
            );
        }
        for gpu in &summary.gpus {
            if let Some(energy) = gpu.energy_mj_total {
                self.energy.advance([&gpu.gpu.to_string(), &type_of(gpu)], energy.as_j());
            }
        }
        let Some(dcgm) = &self.dcgm else { return };
        let host = instance::machine();
        for (gauges, value) in dcgm.0.iter() {
            gauges.replace(summary.gpus.iter().filter_map(|gpu| {
                let known = info.get(&gpu.gpu)?;
                let (index, device) = (gpu.gpu.to_string(), format!("nvidia{}", gpu.gpu));
                let labels = [index, known.uuid.clone(), device, known.name.clone(), host.clone()];
                Some((labels, value(gpu)))
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::{ClusterId, Energy, NodeId, Timestamp};

    use super::*;

    fn summary(power: Option<Power>) -> NodeSummary {
        let gpu = GpuSummary {
            gpu: 0,
            power_mw_mean: power,
            energy_mj_total: Some(Energy::from_mj(5_000)),
            utilization_gpu_percent_mean: Some(75),
            meter: Some(Meter::Counter),
            memory_used_mib: Some(2),
            memory_free_mib: Some(5),
            clock_mhz: None,
            cap_mw: None,
            cap_mw_enforced: None,
            temperature_c: None,
            throttle_reasons: None,
            jobs: Vec::new(),
            error: None,
        };
        NodeSummary {
            node: NodeId::new("n0").unwrap(),
            at_us: Timestamp::EPOCH,
            span_ms: 1_000,
            observed_generation: 0,
            samples: 10,
            readings_failed: 0,
            gpus: vec![gpu],
            jobs: Vec::new(),
            power_mw_host: None,
            ledger_from_us: None,
        }
    }

    #[test]
    fn summaries_become_metrics_of_both_names() {
        let metrics = Metrics::new("profiler", &ClusterId::new("main").unwrap(), None);
        let profiler = ProfilerMetrics::new(&metrics, true);
        let info = GpuInfo {
            uuid: "GPU-1".to_owned(),
            name: "Tesla V100-SXM2-16GB".to_owned(),
            gpu_type: "v100".to_owned(),
            memory_mib: Some(16_384),
            cap_default: None,
            cap_min: None,
            cap_max: None,
            clocks: Vec::new(),
        };
        profiler.gpu_found(0, &info);
        profiler.acted(&Action::PublishSummary(summary(Some(Power::from_w(71)))));
        let text = metrics.text();
        let value = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")))?;
            Some((line.to_owned(), line.rsplit(' ').next()?.to_owned()))
        };
        assert_eq!(value("wattle_gpu_power_watts").unwrap().1, "71");
        assert_eq!(value("wattle_gpu_energy_joules_total").unwrap().1, "5");
        assert_eq!(value("wattle_gpu_utilization_ratio").unwrap().1, "0.75");
        assert_eq!(value("wattle_gpu_memory_used_bytes").unwrap().1, "2097152");
        assert!(value("wattle_gpu_sm_clock_hertz").is_none(), "no reading, no sample");
        let (line, energy) = value("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION").unwrap();
        assert_eq!(energy, "5000", "millijoules");
        for label in [
            r#"gpu="0""#,
            r#"UUID="GPU-1""#,
            r#"device="nvidia0""#,
            r#"modelName="Tesla V100-SXM2-16GB""#,
        ] {
            assert!(line.contains(label), "{line}");
        }
        profiler.acted(&Action::PublishSummary(summary(None)));
        assert!(!metrics.text().contains("wattle_gpu_power_watts{"), "the reading is absent");
        assert!(metrics.text().contains("wattle_gpu_readable{"));
    }
}
