//! Metrics of the grid's signals: source in use, age, reads, and the electricity price.

use wattle_common::messages::{InUse, SignalStatus};
use wattle_grid::Signal;
use wattle_grid::poller::Read;
use wattle_runtime::metrics::{Counters, Gauges, Metrics};

use crate::live::measures::Measures;

const SOURCES: [InUse; 3] = [InUse::Live, InUse::LastKnown, InUse::Static];

/// The metrics. Clones share them.
#[derive(Clone)]
pub(super) struct GridMetrics {
    source: Gauges<2>,
    age: Gauges<1>,
    reads: Counters<2>,
    price: Gauges<1>,
}

const fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::Carbon => "carbon",
        Signal::Price => "price",
    }
}

impl GridMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            source: metrics.gauges(
                "wattle_grid_source",
                "Source in use of a configured signal of the grid, carbon or price: 1 for live, last-known or \
                 static, 0 for the others",
                ["signal", "source"],
            ),
            age: metrics.gauges(
                "wattle_grid_read_age_seconds",
                "Time since the last successful read of the signal, seconds of system time",
                ["signal"],
            ),
            reads: metrics.counters(
                "wattle_grid_reads_total",
                "Reads of a signal's provider or file by result: ok or failed",
                ["signal", "result"],
            ),
            price: metrics.gauges(
                "wattle_grid_price_per_kwh",
                "Electricity price in use, the currency per kWh",
                ["currency"],
            ),
        }
    }

    pub(super) fn ended(&self, read: &Read) {
        let result = if read.result.is_ok() { "ok" } else { "failed" };
        self.reads.increment([name(read.signal), result]);
    }

    pub(super) fn update(&self, measures: &Measures) {
        let grid = &measures.grid;
        let set = |signal: Signal, status: &Option<SignalStatus>| {
            for source in SOURCES {
                let value = status.as_ref().map(|s| f64::from(u8::from(s.in_use == source)));
                self.source.set([name(signal), source.name()], value);
            }
            let read_at = status.as_ref().and_then(|status| status.read_at_us);
            let age = read_at.map(|at| measures.at.since(at).as_secs_f64());
            self.age.set([name(signal)], age);
        };
        set(Signal::Carbon, &grid.carbon);
        set(Signal::Price, &grid.price);
        if let Some((price, currency)) = &grid.per_kwh {
            self.price.set([currency], Some(*price));
        }
    }
}
