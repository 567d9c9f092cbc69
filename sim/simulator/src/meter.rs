//! Integrates what the cluster does over time: energy, carbon, active nodes, busy cards.

use std::time::Duration;

use wattle_common::Power;
use wattle_common::units::EnergyMeter;

use crate::carbon::CarbonSeries;
use crate::cards::Cards;

/// Nanojoules in a kilowatt-hour: 3.6 MJ.
const NJ_PER_KWH: f64 = 3.6e15;

/// What has been counted since the first submission.
#[derive(Clone)]
pub(crate) struct Meter<'a> {
    carbon: Option<&'a CarbonSeries>,
    at_us: u64,
    from_us: u64,
    energy: EnergyMeter,
    above_idle: EnergyMeter,
    /// Milliwatts x (mg per kWh) x microseconds.
    emitted: u128,
    active_node_us: u128,
    awake_node_us: u128,
    fragmented_us: u128,
    busy_ppm_us: u128,
}

impl<'a> Meter<'a> {
    pub(crate) fn starting(from_us: u64, carbon: Option<&'a CarbonSeries>) -> Self {
        Self {
            carbon,
            at_us: from_us,
            from_us,
            energy: EnergyMeter::default(),
            above_idle: EnergyMeter::default(),
            emitted: 0,
            active_node_us: 0,
            awake_node_us: 0,
            fragmented_us: 0,
            busy_ppm_us: 0,
        }
    }

    /// The cluster was as `cards` says until `now_us`.
    pub(crate) fn advance(&mut self, now_us: u64, cards: &Cards<'_>) {
        let span = now_us.saturating_sub(self.at_us);
        if span == 0 {
            return;
        }
        self.energy.add(Power::from_mw(cards.power_mw), Duration::from_micros(span));
        self.above_idle.add(Power::from_mw(cards.above_idle_mw), Duration::from_micros(span));
        self.awake_node_us += u128::from(cards.nodes_awake) * u128::from(span);
        self.fragmented_us += u128::from(cards.fragmented) * u128::from(span);
        self.active_node_us += u128::from(cards.nodes_active) * u128::from(span);
        self.busy_ppm_us += u128::from(cards.utilization_ppm) * u128::from(span);
        if let Some(series) = self.carbon {
            self.emitted += u128::from(cards.power_mw) * series.integral(self.at_us, now_us);
        }
        self.at_us = now_us;
    }

    /// Energy of whole nodes so far, joules.
    pub(crate) fn energy_j(&self) -> f64 {
        self.energy.total().as_j()
    }

    fn span_us(&self) -> u64 {
        self.at_us - self.from_us
    }

    pub(crate) fn energy_kwh(&self) -> f64 {
        tidy(self.energy.total().as_kwh())
    }

    /// What cards drew above their idle power.
    pub(crate) fn energy_kwh_above_idle(&self) -> f64 {
        tidy(self.above_idle.total().as_kwh())
    }

    pub(crate) fn awake_nodes_mean(&self) -> f64 {
        tidy(self.awake_node_us as f64 / self.span_us().max(1) as f64)
    }

    pub(crate) fn carbon_kg(&self) -> Option<f64> {
        // Nanojoules x mg/kWh over nJ/kWh are milligrams; a million of them a kilogram.
        self.carbon.map(|_| tidy(self.emitted as f64 / NJ_PER_KWH / 1e6))
    }

    pub(crate) fn active_nodes_mean(&self) -> f64 {
        tidy(self.active_node_us as f64 / self.span_us().max(1) as f64)
    }

    /// GPUs with no job on nodes that have one.
    pub(crate) fn fragmented_gpus_mean(&self) -> f64 {
        tidy(self.fragmented_us as f64 / self.span_us().max(1) as f64)
    }

    /// Busy share of `gpus` GPUs.
    pub(crate) fn utilization_mean(&self, gpus: usize) -> f64 {
        tidy(self.busy_ppm_us as f64 / 1e6 / (self.span_us().max(1) as f64 * gpus.max(1) as f64))
    }
}

/// To a millionth: what is printed is what was counted, without the noise of a last bit.
fn tidy(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
