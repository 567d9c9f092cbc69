//! Integrals over time: energy, carbon, cost, active nodes, utilization.

use std::time::Duration;

use wattle_common::Power;
use wattle_common::units::EnergyMeter;

use crate::carbon::CarbonSeries;
use crate::gpus::Gpus;
use crate::price::PriceSeries;
use crate::scenario::Scenario;

/// Nanojoules in a kilowatt-hour: 3.6 MJ.
const NJ_PER_KWH: f64 = 3.6e15;

/// Integrals since the first submission.
#[derive(Clone)]
pub(crate) struct Meter<'a> {
    carbon: Option<&'a CarbonSeries>,
    prices: Option<&'a PriceSeries>,
    at_us: u64,
    from_us: u64,
    energy: EnergyMeter,
    above_idle: EnergyMeter,
    /// In mW * (mg/kWh) * microseconds.
    emitted: u128,
    /// In mW * (millionths of the currency/kWh) * microseconds.
    spent: i128,
    active_node_us: u128,
    awake_node_us: u128,
    fragmented_us: u128,
    busy_ppm_us: u128,
}

impl<'a> Meter<'a> {
    /// From a time on, with the scenario's carbon intensities and prices.
    pub(crate) fn starting(from_us: u64, scenario: &'a Scenario) -> Self {
        Self {
            carbon: scenario.carbon.as_ref(),
            prices: scenario.prices.as_ref(),
            at_us: from_us,
            from_us,
            energy: EnergyMeter::default(),
            above_idle: EnergyMeter::default(),
            emitted: 0,
            spent: 0,
            active_node_us: 0,
            awake_node_us: 0,
            fragmented_us: 0,
            busy_ppm_us: 0,
        }
    }

    /// Adds the interval up to `now_us`, in which the state of the GPUs was constant.
    pub(crate) fn advance(&mut self, now_us: u64, gpus: &Gpus<'_>) {
        let span = now_us.saturating_sub(self.at_us);
        if span == 0 {
            return;
        }
        self.energy.add(Power::from_mw(gpus.power_mw), Duration::from_micros(span));
        self.above_idle.add(Power::from_mw(gpus.above_idle_mw), Duration::from_micros(span));
        self.awake_node_us += u128::from(gpus.nodes_awake) * u128::from(span);
        self.fragmented_us += u128::from(gpus.fragmented) * u128::from(span);
        self.active_node_us += u128::from(gpus.nodes_active) * u128::from(span);
        self.busy_ppm_us += u128::from(gpus.utilization_ppm) * u128::from(span);
        if let Some(series) = self.carbon {
            self.emitted += u128::from(gpus.power_mw) * series.integral(self.at_us, now_us);
        }
        if let Some(series) = self.prices {
            self.spent += i128::from(gpus.power_mw) * series.integral(self.at_us, now_us);
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
        rounded(self.energy.total().as_kwh())
    }

    /// Energy of the GPUs above idle power.
    pub(crate) fn energy_kwh_above_idle(&self) -> f64 {
        rounded(self.above_idle.total().as_kwh())
    }

    pub(crate) fn awake_nodes_mean(&self) -> f64 {
        rounded(self.awake_node_us as f64 / self.span_us().max(1) as f64)
    }

    pub(crate) fn carbon_kg(&self) -> Option<f64> {
        // nJ * (mg/kWh) / (nJ/kWh) = mg; 1e6 mg = 1 kg.
        self.carbon.map(|_| rounded(self.emitted as f64 / NJ_PER_KWH / 1e6))
    }

    /// Cost in the currency of the prices.
    pub(crate) fn cost(&self) -> Option<f64> {
        // nJ * (millionths/kWh) / (nJ/kWh) = millionths.
        self.prices.map(|_| rounded(self.spent as f64 / NJ_PER_KWH / 1e6))
    }

    pub(crate) fn active_nodes_mean(&self) -> f64 {
        rounded(self.active_node_us as f64 / self.span_us().max(1) as f64)
    }

    /// Mean number of free GPUs on nodes with a job.
    pub(crate) fn fragmented_gpus_mean(&self) -> f64 {
        rounded(self.fragmented_us as f64 / self.span_us().max(1) as f64)
    }

    /// Mean utilization of `gpus` GPUs.
    pub(crate) fn utilization_mean(&self, gpus: usize) -> f64 {
        rounded(self.busy_ppm_us as f64 / 1e6 / (self.span_us().max(1) as f64 * gpus.max(1) as f64))
    }
}

/// Rounds to a millionth, which removes rounding errors from the output.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
