//! Metrics of grid events: how many there are, and the target with the power that is measured beside it.

use wattle_common::Power;
use wattle_runtime::metrics::{Gauges, Metrics};

use crate::live::measures::EventMeasures;

/// The gauges of the events.
#[derive(Clone)]
pub(super) struct EventGauges {
    events: Gauges<1>,
    power: Gauges<2>,
}

impl EventGauges {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            events: metrics.gauges(
                "wattle_placer_grid_events",
                "Number of grid events that are planned or under-way",
                ["state"],
            ),
            power: metrics.gauges(
                "wattle_placer_grid_event_power_watts",
                "Power of the site, or of the named feeder, under a grid event: target now, reduction (target below the \
                 power before), or measured, watts",
                ["quantity", "feeder"],
            ),
        }
    }

    pub(super) fn set(&self, measures: &EventMeasures) {
        self.events.set(["planned"], Some(measures.planned as f64));
        self.events.set(["under-way"], Some(measures.under_way as f64));
        self.power.replace(measures.power.iter().flat_map(|power| {
            let feeder = power.feeder.as_ref().map(ToString::to_string).unwrap_or_default();
            let quantities = [
                ("target", Some(power.target)),
                ("reduction", power.reduction),
                ("measured", power.measured),
            ];
            quantities.map(|(quantity, power)| {
                ([quantity.to_owned(), feeder.clone()], power.map(Power::as_w))
            })
        }));
    }
}
