//! Metrics of a service in Prometheus's text format, and the endpoint that serves them.
//!
//! A service creates one [`Metrics`] and registers its families; the shell sets them from the actions and
//! values that its state machine returns. Names begin with `wattle_` and contain their unit; every sample has
//! the labels `service`, `cluster` and, on a node, `node`. A value without a reading has no sample.
//! Labels are nodes, GPUs, predictors and words of fixed lists, never jobs, so the number of samples is
//! bounded. [`endpoint`] has the HTTP server.

mod endpoint;

use std::collections::BTreeSet;
#[expect(clippy::disallowed_types, reason = "prometheus takes constant labels as a HashMap")]
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::core::Collector;
use prometheus::{CounterVec, Encoder as _, GaugeVec, HistogramOpts, Opts, Registry, TextEncoder};
use wattle_common::{ClusterId, NodeId};

use crate::bus::Bus;
use crate::{clock, log_count};

pub use wattle_common::config::MetricsConfig;

/// Most samples of one family; further ones are left out.
const SAMPLES_MAX: usize = 4_096;

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A value that rises and falls.
    Gauge,
    /// A sum that only rises, until the service restarts.
    Counter,
    /// A distribution.
    Histogram,
}

impl Kind {
    /// Prometheus's name of it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// A family of samples.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// Its labels, besides those of every sample.
    pub labels: Vec<&'static str>,
    /// Its meaning, one sentence without a full stop.
    pub help: &'static str,
}

/// The metrics of one process. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Registry,
    families: Mutex<Vec<Family>>,
    refreshes: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
    bus: Mutex<Option<Bus>>,
}

/// A lock; a panic of its holder leaves it usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A family of gauges with `N` labels.
#[derive(Clone)]
pub struct Gauges<const N: usize> {
    vec: GaugeVec,
    /// The labels of the last [`Self::replace`].
    present: Arc<Mutex<BTreeSet<[String; N]>>>,
}

/// A gauge without labels.
pub type Gauge = Gauges<0>;

/// A family of counters with `N` labels.
#[derive(Clone)]
pub struct Counters<const N: usize>(CounterVec);

/// A counter without labels.
pub type Counter = Counters<0>;

/// A distribution.
#[derive(Clone)]
pub struct Histogram(prometheus::Histogram);

impl Metrics {
    /// The metrics of `service` (`profiler`), with those that every service has.
    #[must_use]
    pub fn new(service: &str, cluster: &ClusterId, node: Option<&NodeId>) -> Self {
        #[expect(
            clippy::disallowed_types,
            reason = "prometheus takes constant labels as a HashMap"
        )]
        let mut labels = HashMap::from([
            ("service".to_owned(), service.to_owned()),
            ("cluster".to_owned(), cluster.to_string()),
        ]);
        if let Some(node) = node {
            labels.insert("node".to_owned(), node.to_string());
        }
        let registry = Registry::new_custom(None, Some(labels)).expect("labels without a prefix");
        let shared = Shared {
            registry,
            families: Mutex::default(),
            refreshes: Mutex::default(),
            bus: Mutex::default(),
        };
        let metrics = Self { shared: Arc::new(shared) };
        metrics.register_common();
        metrics
    }

    /// [`Self::new`], served in the background as `config` states. Requires a tokio runtime.
    #[must_use]
    pub fn start(
        config: &MetricsConfig,
        service: &str,
        cluster: &ClusterId,
        node: Option<&NodeId>,
    ) -> Self {
        let metrics = Self::new(service, cluster, node);
        if let Some(listen) = config.listen {
            let targets = config.targets_file.clone();
            tokio::spawn(endpoint::serve(metrics.clone(), listen, targets));
        }
        metrics
    }

    /// Reads the state of the connection from `bus` from now on.
    pub fn follow_bus(&self, bus: &Bus) {
        *lock(&self.shared.bus) = Some(bus.clone());
    }

    fn register_common(&self) {
        let info =
            self.gauges("wattle_build_info", "Always 1; the label has the version", ["version"]);
        info.set([env!("CARGO_PKG_VERSION")], Some(1.0));
        let start = self.gauge(
            "wattle_start_time_seconds",
            "When the service started, seconds since the Unix epoch, wall time",
        );
        start.set([], Some(clock::started_at().as_us() as f64 / 1e6));
        let connected =
            self.gauge("wattle_bus_connected", "Whether the NATS server is connected: 1 or 0");
        let connections = self.counter(
            "wattle_bus_connections_total",
            "Connections to the NATS server; each after the first is a reconnection",
        );
        let lines = self.counters(
            "wattle_log_lines_total",
            "Log lines of level error or warn, those of the limit on lines included",
            ["level"],
        );
        connected.set([], Some(0.0));
        // The closure is in what it reads, so the link back is weak.
        let shared = Arc::downgrade(&self.shared);
        self.at_scrape(move || {
            if let Some(bus) = shared.upgrade().and_then(|shared| lock(&shared.bus).clone()) {
                connected.set([], Some(f64::from(u8::from(bus.is_connected()))));
                connections.advance([], bus.connections() as f64);
            }
            let (errors, warnings) = log_count::lines();
            lines.advance(["error"], errors as f64);
            lines.advance(["warn"], warnings as f64);
        });
    }

    /// Calls `refresh` before every scrape.
    pub fn at_scrape(&self, refresh: impl Fn() + Send + Sync + 'static) {
        lock(&self.shared.refreshes).push(Box::new(refresh));
    }

    /// A new gauge without labels.
    ///
    /// # Panics
    /// If the name is invalid or registered.
    #[must_use]
    pub fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.gauges(name, help, [])
    }

    /// A new family of gauges.
    ///
    /// # Panics
    /// If a name is invalid or registered.
    #[must_use]
    pub fn gauges<const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Gauges<N> {
        let vec = GaugeVec::new(Opts::new(name, help), &labels).expect("a valid name");
        self.register(Family { name, kind: Kind::Gauge, labels: labels.into(), help }, &vec);
        Gauges { vec, present: Arc::default() }
    }

    /// A new counter without labels.
    ///
    /// # Panics
    /// If the name is invalid or registered.
    #[must_use]
    pub fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        let counter = self.counters(name, help, []);
        counter.add([], 0.0);
        counter
    }

    /// A new family of counters. [`Counters::begin`] creates those that are known beforehand.
    ///
    /// # Panics
    /// If a name is invalid or registered.
    #[must_use]
    pub fn counters<const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Counters<N> {
        let vec = CounterVec::new(Opts::new(name, help), &labels).expect("a valid name");
        self.register(Family { name, kind: Kind::Counter, labels: labels.into(), help }, &vec);
        Counters(vec)
    }

    /// A new distribution with these upper bounds of its buckets, ascending.
    ///
    /// # Panics
    /// If the name is invalid or registered.
    #[must_use]
    pub fn histogram(&self, name: &'static str, help: &'static str, bounds: &[f64]) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        let histogram = prometheus::Histogram::with_opts(options).expect("a valid name");
        let family = Family { name, kind: Kind::Histogram, labels: Vec::new(), help };
        self.register(family, &histogram);
        Histogram(histogram)
    }

    fn register(&self, family: Family, collector: &(impl Collector + Clone + 'static)) {
        let registered = self.shared.registry.register(Box::new(collector.clone()));
        registered.expect("a new name");
        lock(&self.shared.families).push(family);
    }

    /// All families by name, those without samples included.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let mut families = lock(&self.shared.families).clone();
        families.sort();
        families
    }

    /// All samples in Prometheus's text format.
    #[must_use]
    pub fn text(&self) -> String {
        for refresh in lock(&self.shared.refreshes).iter() {
            refresh();
        }
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.shared.registry.gather(), &mut text) {
            tracing::warn!(%error, "metrics not complete");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl<const N: usize> Gauges<N> {
    /// Sets a sample, or removes it if there is no value.
    pub fn set(&self, labels: [&str; N], value: Option<f64>) {
        match value {
            Some(value) => self.vec.with_label_values(&labels).set(value),
            // It may be absent already.
            None => drop(self.vec.remove_label_values(&labels)),
        }
    }

    /// Sets these samples and removes all others that an earlier call has set.
    pub fn replace(&self, samples: impl IntoIterator<Item = ([String; N], Option<f64>)>) {
        let mut present = BTreeSet::new();
        for (labels, value) in samples.into_iter().take(SAMPLES_MAX) {
            let Some(value) = value else { continue };
            self.vec.with_label_values(&labels).set(value);
            present.insert(labels);
        }
        let before = std::mem::replace(&mut *lock(&self.present), present.clone());
        for gone in before.difference(&present) {
            let _ = self.vec.remove_label_values(gone);
        }
    }
}

impl<const N: usize> Counters<N> {
    /// Creates these counters at 0, so that their first increase is visible.
    pub fn begin<'a>(&self, counters: impl IntoIterator<Item = [&'a str; N]>) {
        for labels in counters {
            self.add(labels, 0.0);
        }
    }

    /// Adds an amount that is not negative.
    pub fn add(&self, labels: [&str; N], amount: f64) {
        self.0.with_label_values(&labels).inc_by(amount.max(0.0));
    }

    /// Adds 1.
    pub fn increment(&self, labels: [&str; N]) {
        self.add(labels, 1.0);
    }

    /// Sets the counter to a sum that is counted elsewhere; a lower sum is a restart of that count.
    pub fn advance(&self, labels: [&str; N], sum: f64) {
        let counter = self.0.with_label_values(&labels);
        if sum < counter.get() {
            counter.reset();
        }
        counter.inc_by((sum - counter.get()).max(0.0));
    }

    /// Removes a counter, of a thing that is gone.
    pub fn remove(&self, labels: [&str; N]) {
        let _ = self.0.remove_label_values(&labels);
    }
}

impl Histogram {
    /// Adds a value.
    pub fn observe(&self, value: f64) {
        self.0.observe(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        let node = NodeId::new("n0").unwrap();
        Metrics::new("example", &ClusterId::new("main").unwrap(), Some(&node))
    }

    #[test]
    fn a_value_without_a_reading_has_no_sample() {
        let metrics = metrics();
        let watts = metrics.gauges("wattle_example_watts", "Power", ["gpu"]);
        watts.replace([(["0".to_owned()], Some(71.5)), (["1".to_owned()], None)]);
        let text = metrics.text();
        let sample = text.lines().find(|line| line.starts_with("wattle_example_watts{"));
        let sample = sample.unwrap_or_else(|| panic!("{text}"));
        assert!(sample.ends_with("} 71.5"), "{sample}");
        for label in [r#"gpu="0""#, r#"cluster="main""#, r#"node="n0""#, r#"service="example""#] {
            assert!(sample.contains(label), "{sample}");
        }
        assert!(!text.contains(r#"gpu="1""#), "{text}");
        watts.replace([(["1".to_owned()], Some(3.0))]);
        let text = metrics.text();
        assert!(!text.contains(r#"gpu="0""#), "the GPU is gone: {text}");
        assert!(text.contains("# HELP wattle_example_watts Power\n"), "{text}");
    }

    #[test]
    fn counters_follow_a_sum_and_its_restart() {
        let metrics = metrics();
        let sum = metrics.counter("wattle_example_total", "Sum");
        let value = || {
            let text = metrics.text();
            let line = text.lines().find(|line| line.starts_with("wattle_example_total")).unwrap();
            line.rsplit(' ').next().unwrap().to_owned()
        };
        assert_eq!(value(), "0");
        sum.advance([], 7.0);
        sum.advance([], 9.0);
        assert_eq!(value(), "9");
        sum.advance([], 2.0);
        assert_eq!(value(), "2");
        sum.add([], -1.0);
        assert_eq!(value(), "2", "a counter does not fall");
    }

    #[test]
    fn families_without_samples_are_listed() {
        let metrics = metrics();
        let _ = metrics.gauges("wattle_example_watts", "Power", ["gpu"]);
        let families = metrics.families();
        let family = families.iter().find(|f| f.name == "wattle_example_watts").unwrap();
        assert_eq!((family.kind, &family.labels), (Kind::Gauge, &vec!["gpu"]));
        assert!(!metrics.text().contains("wattle_example_watts"));
    }
}
