//! What a budget allows, before it is set: the same figures as the placer states afterwards.

use wattle_common::messages::{BudgetStatus, IntensitySeries};
use wattle_common::verdict::below_idle;
use wattle_common::{Budget, Power, Timestamp};
use wattle_placer::power::budget::{BudgetController, ForecastSource, Grid, Series};

/// What a budget that is set now allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// The constant power draw that its first window sustains; `None`: neither energy nor carbon is limited, or this
    /// depends on a provider's forecast of the intensity.
    pub mean: Option<Power>,
    /// The power limit now; `None`: power is not limited.
    pub limit: Option<Power>,
    /// Why no job could start; `None`: it allows more than the idle draw, or this is not known.
    pub below_idle: Option<String>,
    /// Whether the placer refuses it, because carbon is limited and no intensity is known.
    pub lacks_intensity: bool,
}

impl Allowance {
    /// That of a budget whose windows begin now. `status` has the idle draw.
    #[must_use]
    pub fn of(
        budget: &Budget,
        intensity: Option<&IntensitySeries>,
        status: Option<&BudgetStatus>,
        now: Timestamp,
    ) -> Self {
        let lacks_intensity = budget.carbon_ug.is_some() && intensity.is_none();
        let mean = (!lacks_intensity).then(|| mean(budget, intensity, now)).flatten();
        let status = status.map(|status| BudgetStatus {
            at_us: now,
            power_mw_budget_mean: mean,
            ..status.clone()
        });
        let finding = status.and_then(|status| below_idle(budget, &status));
        Self {
            mean,
            limit: budget.power_at(now),
            below_idle: finding.map(|finding| finding.text),
            lacks_intensity,
        }
    }
}

/// The mean power that the placer's controller computes for the budget.
fn mean(budget: &Budget, intensity: Option<&IntensitySeries>, now: Timestamp) -> Option<Power> {
    let grid = match intensity.filter(|_| budget.carbon_ug.is_some()) {
        Some(series) => Some(grid(series)?),
        None => None,
    };
    let mean = BudgetController::new(budget.clone(), grid, now).mean_w(now);
    mean.is_finite().then(|| Power::from_w_f64(mean))
}

/// The grid of a series without a provider's forecast.
fn grid(series: &IntensitySeries) -> Option<Grid> {
    let us = |s: u64| s.saturating_mul(1_000_000);
    let steps = series.steps.iter().filter(|_| series.origins.is_empty());
    let steps = steps.map(|(at, mean)| (us(*at), mean.as_g_per_kwh())).collect();
    let series = Series::new(series.starts_at_us, steps, us(series.period_s)).ok()?;
    let from = series.starts_at();
    Some(Grid::new(series, ForecastSource::Persistence, from))
}

#[cfg(test)]
mod tests {
    use wattle_common::CarbonIntensity;
    use wattle_testkit as testkit;

    use super::*;

    const NOW: Timestamp = Timestamp::from_s(1_000);

    fn allowance(
        energy_kwh: Option<f64>,
        carbon_kg: Option<f64>,
        power_kw: Option<f64>,
        intensity: Option<&IntensitySeries>,
    ) -> Allowance {
        let budget = Budget::from_human(energy_kwh, carbon_kg, power_kw, None).unwrap();
        let status = BudgetStatus {
            power_mw_baseline: Some(Power::from_w(450)),
            ..testkit::budget_status(NOW)
        };
        Allowance::of(&budget, intensity, Some(&status), NOW)
    }

    fn series() -> IntensitySeries {
        IntensitySeries {
            name: "grid".to_owned(),
            starts_at_us: NOW,
            steps: vec![(0, CarbonIntensity::from_g_per_kwh(500.0))],
            period_s: 3_600,
            origins: Vec::new(),
        }
    }

    #[test]
    fn a_window_sustains_its_budget_less_the_reserve() {
        // 24 kWh in a day are 1 kW.
        let allows = allowance(Some(24.0), None, None, None);
        assert_eq!(allows.mean.map(Power::as_mw), Some(995_000));
        assert_eq!((allows.limit, allows.below_idle, allows.lacks_intensity), (None, None, false));
        let low = allowance(Some(5.0), None, None, None);
        let text = "no job can start: the idle cluster draws 0.45 kW, but the budget allows 0.207 kW on average";
        assert_eq!(low.below_idle.as_deref(), Some(text));
    }

    #[test]
    fn a_power_limit_holds_at_once() {
        let allows = allowance(None, None, Some(0.4), None);
        assert_eq!((allows.mean, allows.limit), (None, Some(Power::from_w(400))));
        let text = "no job can start: the idle cluster draws 0.45 kW, but the limit is 0.4 kW";
        assert_eq!(allows.below_idle.as_deref(), Some(text));
    }

    #[test]
    fn a_carbon_budget_needs_the_intensity() {
        let lacks = allowance(None, Some(12.0), None, None);
        assert_eq!((lacks.mean, lacks.lacks_intensity), (None, true));
        // 12 kg at 500 g/kWh are 24 kWh.
        let allows = allowance(None, Some(12.0), None, Some(&series()));
        assert_eq!(allows.mean.map(Power::as_mw), Some(995_000));
        let lower = allowance(Some(12.0), Some(12.0), None, Some(&series()));
        assert_eq!(lower.mean.map(Power::as_mw), Some(497_500));
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let origins = vec![(0, wattle_common::messages::Origin::Forecast)];
        let provided = IntensitySeries { origins, ..series() };
        assert_eq!(allowance(None, Some(12.0), None, Some(&provided)).mean, None);
        let budget = Budget::from_human(Some(0.01), None, None, None).unwrap();
        assert_eq!(Allowance::of(&budget, None, None, NOW).below_idle, None, "no idle draw");
    }
}
