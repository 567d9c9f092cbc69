//! The options of a cluster's aim, shared by several commands.

use clap::Args;
use wattle_common::Aim;
use wattle_common::aim::{MAX_SLOWDOWN_DEFAULT, parse_slowdown};

use wattle_placer::Policy;
use wattle_saving::aim_run::run_with_energy_aim;
use wattle_simulator::{RunOptions, Scenario};
use wattle_world::World;

use crate::output::{usage, usage_chain};
use crate::progress::Progress;

/// The options of the aim.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct AimOptions {
    /// Aim of policies with an energy price: time (energy is free), energy (the least energy within
    /// --max-slowdown), budget (the least completion time within a budget) [default: budget where a budget
    /// with a window is given, otherwise energy]
    #[arg(long, value_name = "AIM")]
    aim: Option<Aim>,
    /// Bound of the energy aim: how much longer jobs may take on average than under the time aim
    /// [default: 5%]
    #[arg(long, value_name = "SHARE", value_parser = parse_slowdown)]
    max_slowdown: Option<f64>,
}

impl AimOptions {
    /// The aim beside a budget with a window or without one.
    pub(crate) fn aim(&self, has_window: bool) -> anyhow::Result<Aim> {
        let aim = match self.aim {
            None if has_window => Aim::Budget,
            None => Aim::Energy,
            Some(Aim::Budget) if !has_window => {
                return Err(usage("--aim budget needs a budget: give --energy-kwh or --carbon-kg"));
            }
            Some(aim @ (Aim::Time | Aim::Energy)) if has_window => {
                return Err(usage(format!(
                    "--aim {aim} contradicts the budget: omit --aim, or --energy-kwh and --carbon-kg"
                )));
            }
            Some(aim) => aim,
        };
        if self.max_slowdown.is_some() && aim != Aim::Energy {
            return Err(usage(format!(
                "--max-slowdown is a bound of the energy aim; the aim is {aim}"
            )));
        }
        Ok(aim)
    }

    /// The bound of the energy aim; `None` under another aim.
    pub(crate) fn max_slowdown(&self, has_window: bool) -> anyhow::Result<Option<f64>> {
        let bound = self.max_slowdown.unwrap_or(MAX_SLOWDOWN_DEFAULT);
        Ok((self.aim(has_window)? == Aim::Energy).then_some(bound))
    }

    /// Whether an option was given.
    pub(crate) const fn is_given(&self) -> bool {
        self.aim.is_some() || self.max_slowdown.is_some()
    }
}

/// A share as a percentage: `5 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{} %", (share * 1e4).round() / 1e2)
}

/// The price of the energy aim for a policy; 0 for one that reads no price.
pub(crate) fn aim_price(
    world: &World,
    scenario: &Scenario,
    policy: &dyn Policy,
    options: &RunOptions,
    max_slowdown: f64,
    number: &str,
) -> anyhow::Result<f64> {
    let mut shown: Option<(usize, Progress)> = None;
    let mut progress = |run: usize, ended: usize, of: usize| {
        if shown.as_ref().is_none_or(|(last, _)| *last != run) {
            let label = format!("{}, {number}: price {run}", policy.name());
            shown = Some((run, Progress::start(label, "jobs have ended")));
        }
        if let Some((_, progress)) = &mut shown {
            progress.update(ended, of);
        }
    };
    let found = run_with_energy_aim(world, scenario, policy, options, max_slowdown, &mut progress)
        .map_err(usage_chain)?;
    Ok(found.map_or(0.0, |aim| aim.price()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_decides_where_no_aim_is_given() {
        let none = AimOptions::default();
        assert_eq!(none.aim(true).unwrap(), Aim::Budget);
        assert_eq!(none.max_slowdown(true).unwrap(), None);
        assert_eq!(none.max_slowdown(false).unwrap(), Some(MAX_SLOWDOWN_DEFAULT));
        let time = AimOptions { aim: Some(Aim::Time), max_slowdown: None };
        assert_eq!(time.max_slowdown(false).unwrap(), None);
        assert!(time.aim(true).unwrap_err().to_string().contains("--aim time contradicts"));
        let bounded = AimOptions { aim: Some(Aim::Time), max_slowdown: Some(0.1) };
        assert!(bounded.aim(false).unwrap_err().to_string().contains("--max-slowdown"));
        let budget = AimOptions { aim: Some(Aim::Budget), max_slowdown: None };
        assert!(budget.aim(false).unwrap_err().to_string().contains("--energy-kwh"));
    }
}
