//! The options of a cluster's aim, shared by several commands.

use std::fmt;

use clap::Args;
use wattle_common::Aim;
use wattle_common::aim::{AimBound, Baseline, parse_slowdown};
use wattle_saving::baseline::BaselineKind;
use wattle_saving::lateness::Allowed;

use crate::output::usage;

/// The options of the aim.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct AimOptions {
    /// Aim of policies with an energy price: time (energy is free), energy (the least energy within
    /// --max-slowdown), budget (the least completion time within a budget) [default: budget where a budget
    /// with a window is given, otherwise energy]
    #[arg(long, value_name = "AIM")]
    aim: Option<Aim>,
    /// Bound of the energy aim: how much longer jobs may take on average than under the time aim, in place of
    /// --no-later-than
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

    /// Whether the aim is that of energy.
    pub(crate) fn is_energy(&self, has_window: bool) -> anyhow::Result<bool> {
        Ok(self.aim(has_window)? == Aim::Energy)
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

/// The options of a live cluster's bound that relates to the site's former scheduler.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct FormerOptions {
    /// Bound of the energy aim: jobs complete on average no later than under this scheduler, which the placer runs
    /// in a model beside the cluster: backfill, fifo
    #[arg(long, value_name = "backfill|fifo", conflicts_with = "max_slowdown")]
    no_later_than: Option<Baseline>,
    /// Share by which jobs may complete later on average than under --no-later-than [default: 0%, backfill]
    #[arg(long, value_name = "SHARE", conflicts_with = "max_slowdown", value_parser = parse_slowdown)]
    by: Option<f64>,
    /// Share by which the jobs of each project (or user, for jobs without a project) may complete later on average than
    /// under --no-later-than [default: no bound]
    #[arg(long, value_name = "SHARE", conflicts_with = "max_slowdown", value_parser = parse_slowdown)]
    no_project_later_than: Option<f64>,
}

impl FormerOptions {
    /// The bound of a live cluster; `None` under another aim than that of energy.
    pub(crate) fn bound(
        &self,
        aim: &AimOptions,
        has_window: bool,
    ) -> anyhow::Result<Option<AimBound>> {
        let is_energy = aim.is_energy(has_window)?;
        let by_default = self.by.or(self.no_project_later_than).map(|_| Baseline::default());
        let Some(baseline) = self.no_later_than.or(by_default) else {
            let own = aim.max_slowdown.map(|share| AimBound::mean(None, share));
            return Ok(is_energy.then(|| own.unwrap_or(AimBound::DEFAULT)));
        };
        if !is_energy {
            return Err(usage(format!(
                "--no-later-than {baseline} is a bound of the energy aim; the aim is {}",
                aim.aim(has_window)?
            )));
        }
        let (share, project) = (self.by.unwrap_or(0.0), self.no_project_later_than);
        Ok(Some(AimBound { baseline: Some(baseline), share, project }))
    }
}

/// The bound of the energy aim in a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SimulationBound {
    /// How much longer jobs may take on average than under the time aim of the same policy.
    MaxSlowdown(f64),
    /// How much later jobs may complete on average, and those of each project, than under another schedule.
    NoLaterThan(BaselineKind, Allowed),
}

/// The bound where no option states one: that of a live cluster, [`AimBound::DEFAULT`].
const SIMULATION_BOUND_DEFAULT: SimulationBound =
    SimulationBound::NoLaterThan(BaselineKind::Backfill, Allowed::mean(AimBound::DEFAULT.share));

/// The options of a bound that relates to the schedule of the site.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct NoLaterOptions {
    /// Least energy while jobs complete on average no later than under this schedule of the same jobs: backfill or
    /// fifo at default caps on nodes that stay awake, or as recorded in the trace
    #[arg(
        long,
        value_name = "backfill|fifo|recorded",
        conflicts_with_all = ["max_slowdown", "price"]
    )]
    no_later_than: Option<BaselineKind>,
    /// Share by which jobs may complete later on average than under --no-later-than [default: 0%, backfill]
    #[arg(long, value_name = "SHARE", conflicts_with = "max_slowdown", value_parser = parse_slowdown)]
    by: Option<f64>,
    /// Share by which the jobs of each project (account, or user where the trace has no accounts) may complete
    /// later on average than under --no-later-than [default: no bound]
    #[arg(long, value_name = "SHARE", conflicts_with = "max_slowdown", value_parser = parse_slowdown)]
    no_project_later_than: Option<f64>,
}

impl NoLaterOptions {
    /// Whether the bound was given.
    pub(crate) const fn is_given(&self) -> bool {
        self.kind().is_some()
    }

    /// The schedule, if an option of the bound was given.
    const fn kind(&self) -> Option<BaselineKind> {
        match self.no_later_than {
            None if self.by.is_some() || self.no_project_later_than.is_some() => {
                Some(BaselineKind::Backfill)
            }
            kind => kind,
        }
    }

    /// Whether the bound relates to the recorded schedule.
    pub(crate) fn is_recorded(&self) -> bool {
        self.no_later_than == Some(BaselineKind::Recorded)
    }

    /// Whether projects are bounded.
    pub(crate) const fn bounds_projects(&self) -> bool {
        self.no_project_later_than.is_some()
    }

    /// The bound of a simulation; `None` under another aim than that of energy.
    pub(crate) fn bound(
        &self,
        aim: &AimOptions,
        has_window: bool,
    ) -> anyhow::Result<Option<SimulationBound>> {
        if !aim.is_energy(has_window)? {
            return match self.kind() {
                None => Ok(None),
                Some(kind) => Err(usage(format!(
                    "--no-later-than {kind} is a bound of the energy aim; the aim is {}",
                    aim.aim(has_window)?
                ))),
            };
        }
        Ok(Some(match self.kind() {
            Some(kind) => {
                let (mean, project) = (self.by.unwrap_or(0.0), self.no_project_later_than);
                SimulationBound::NoLaterThan(kind, Allowed { mean, project })
            }
            None => aim.max_slowdown.map_or(SIMULATION_BOUND_DEFAULT, SimulationBound::MaxSlowdown),
        }))
    }
}

impl SimulationBound {
    /// The name of the schedule to which it relates, as in the outcome.
    pub(crate) fn reference(self) -> String {
        match self {
            Self::MaxSlowdown(_) => "own".to_owned(),
            Self::NoLaterThan(kind, _) => kind.to_string(),
        }
    }

    /// The bound for the controller of a live placer, which has no recorded schedule.
    pub(crate) fn of_controller(self) -> anyhow::Result<AimBound> {
        let baseline = match self {
            Self::MaxSlowdown(share) => return Ok(AimBound::mean(None, share)),
            Self::NoLaterThan(BaselineKind::Backfill, _) => Baseline::Backfill,
            Self::NoLaterThan(BaselineKind::Fifo, _) => Baseline::Fifo,
            Self::NoLaterThan(BaselineKind::Recorded, _) => {
                return Err(usage(
                    "--aim-by-controller compares with backfill or fifo, which a live placer can run beside the \
                     cluster; omit --aim-by-controller for --no-later-than recorded",
                ));
            }
        };
        let Allowed { mean: share, project } = self.allowed();
        Ok(AimBound { baseline: Some(baseline), share, project })
    }

    /// The permitted lateness.
    pub(crate) const fn allowed(self) -> Allowed {
        match self {
            Self::MaxSlowdown(share) => Allowed::mean(share),
            Self::NoLaterThan(_, allowed) => allowed,
        }
    }
}

impl fmt::Display for SimulationBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MaxSlowdown(share) => write!(
                f,
                "least energy within {} of the time aim's mean completion time",
                percent(*share)
            ),
            Self::NoLaterThan(kind, allowed) => {
                let words = kind.words();
                f.write_str("least energy with jobs completing on average ")?;
                if allowed.mean > 0.0 {
                    write!(f, "at most {} later than {words}", percent(allowed.mean))?;
                } else {
                    write!(f, "no later than {words}")?;
                }
                let project = |share: f64| format!(", no project's over {} later", percent(share));
                f.write_str(&allowed.project.map_or(String::new(), project))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_of_a_simulation_relates_to_one_schedule() {
        let (aim, none) = (AimOptions::default(), NoLaterOptions::default());
        assert_eq!(none.bound(&aim, false).unwrap(), Some(SIMULATION_BOUND_DEFAULT));
        assert_eq!(none.bound(&aim, true).unwrap(), None);
        let own = AimOptions { aim: None, max_slowdown: Some(0.1) };
        let bound = none.bound(&own, false).unwrap().unwrap();
        assert_eq!(bound, SimulationBound::MaxSlowdown(0.1));
        let site = NoLaterOptions { no_later_than: Some(BaselineKind::Backfill), ..none };
        let bound = site.bound(&aim, false).unwrap().unwrap();
        assert_eq!(bound.allowed(), Allowed::mean(0.0));
        let words = "least energy with jobs completing on average no later than under backfill";
        assert_eq!(bound.to_string(), words);
        let later = NoLaterOptions { by: Some(0.03), no_project_later_than: Some(0.1), ..site };
        let words = later.bound(&aim, false).unwrap().unwrap().to_string();
        assert!(
            words.ends_with("at most 3 % later than under backfill, no project's over 10 % later")
        );
        // A budget has its own aim.
        let error = site.bound(&aim, true).unwrap_err().to_string();
        assert!(error.contains("--no-later-than backfill") && error.contains("budget"), "{error}");
    }

    #[test]
    fn a_budget_decides_where_no_aim_is_given() {
        let none = AimOptions::default();
        assert_eq!(none.aim(true).unwrap(), Aim::Budget);
        assert!(!none.is_energy(true).unwrap() && none.is_energy(false).unwrap());
        let time = AimOptions { aim: Some(Aim::Time), max_slowdown: None };
        assert!(!time.is_energy(false).unwrap());
        assert!(time.aim(true).unwrap_err().to_string().contains("--aim time contradicts"));
        let bounded = AimOptions { aim: Some(Aim::Time), max_slowdown: Some(0.1) };
        assert!(bounded.aim(false).unwrap_err().to_string().contains("--max-slowdown"));
        let budget = AimOptions { aim: Some(Aim::Budget), max_slowdown: None };
        assert!(budget.aim(false).unwrap_err().to_string().contains("--energy-kwh"));
    }
}
