//! The report of `wattle energy`: rows, verdict, table, CSV.

mod csv;
mod row;
mod table;
mod verdict;

use serde::Serialize;
use wattle_common::{Energy, Timestamp};

use self::row::{Amount, Row, Sums, causes, unmetered_s};
use super::By;
use crate::date::date;
use wattle_view::emissions::Rates;
use wattle_view::energy::{Accounts, OwnerEnergy, Submission, Uses};

/// The report of `wattle energy`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    by: &'static str,
    from_us: Option<Timestamp>,
    until_us: Option<Timestamp>,
    total: Amount,
    /// The GPUs without a meter, whose energy no sum has.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
    uses: Sums,
    rows: Vec<Row>,
    /// Energy without a known owner, and energy that was not measured.
    causes: Vec<Row>,
    /// The jobs' energy that is compared with the default caps and clocks, and what these would have used;
    /// absent: none is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    below_default: Option<BelowDefault>,
    /// Emissions, where a carbon intensity is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    emissions: Option<EmissionsRow>,
    /// Cost, where an electricity price is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<CostRow>,
}

/// Energy of jobs below that at the default cap and clock on the same GPUs, by prediction. What was saved against the
/// former scheduler is another figure (`wattle saved`).
#[derive(Clone, Copy, Debug, Serialize)]
struct BelowDefault {
    measured: Amount,
    default_setting: Amount,
    /// The share of the energy at the default setting; negative: more was used.
    share: f64,
    /// The run time of the same work relative to that at the default setting, minus 1.
    longer: Option<f64>,
    /// Share of the jobs' energy that is compared.
    compared_share: f64,
}

impl BelowDefault {
    fn of(accounts: &Accounts) -> Option<Self> {
        let compared = &accounts.compared;
        Some(Self {
            measured: compared.energy_mj.into(),
            default_setting: compared.energy_mj_default.into(),
            share: compared.saved_share()?,
            longer: compared.slowdown(),
            compared_share: compared.energy_mj.ratio(accounts.all.jobs),
        })
    }
}

/// Emissions of the report's energy.
#[derive(Clone, Debug, Serialize)]
struct EmissionsRow {
    carbon_kg: f64,
    /// The source of the intensity now.
    source: String,
    /// Share of the energy with the static value, because no provider had one.
    static_share: f64,
    /// Share of the energy whose intensity is known.
    known_share: f64,
}

/// Cost of the report's energy.
#[derive(Clone, Debug, Serialize)]
struct CostRow {
    amount: f64,
    currency: String,
    /// The source of the price now.
    source: String,
}

impl Report {
    /// The report by `by`; `owner_of` is the user and the project in the record of a submission, which complete
    /// those of the ledger.
    pub(crate) fn new(
        by: By,
        accounts: &Accounts,
        owner_of: impl Fn(&Submission) -> (Option<String>, Option<String>),
    ) -> Self {
        let user = |job: &Submission| accounts.users.get(job).cloned().or_else(|| owner_of(job).0);
        let project =
            |job: &Submission| accounts.projects.get(job).cloned().or_else(|| owner_of(job).1);
        let row = |name: Option<String>, energy: Energy| Row {
            name,
            admission: None,
            user: None,
            project: None,
            jobs: None,
            energy: Some(energy.into()),
            unmetered_gpu_s: None,
            uses: None,
            unmeasured: None,
        };
        let with_uses = |name: String, uses: &Uses| Row {
            uses: Some((*uses).into()),
            ..row(Some(name), uses.total())
        };
        let (by, mut rows): (_, Vec<Row>) = match by {
            By::Job => {
                let of = |job: &Submission| Row {
                    admission: job.1.clone(),
                    user: user(job),
                    project: project(job),
                    energy: accounts.jobs.get(job).copied().map(Amount::from),
                    unmetered_gpu_s: unmetered_s(accounts.unmetered_ms.get(job)),
                    ..row(Some(job.0.to_string()), Energy::ZERO)
                };
                ("job", accounts.submissions().into_iter().map(of).collect())
            }
            By::User | By::Project => {
                let is_user = by == By::User;
                let owners =
                    if is_user { accounts.by_owner(user) } else { accounts.by_owner(project) };
                let of = |(owner, sum): (Option<String>, OwnerEnergy)| Row {
                    jobs: Some(sum.jobs),
                    energy: sum.energy.map(Amount::from),
                    unmetered_gpu_s: unmetered_s(Some(&sum.unmetered_ms)),
                    ..row(owner, Energy::ZERO)
                };
                (if is_user { "user" } else { "project" }, owners.into_iter().map(of).collect())
            }
            By::Cause => ("cause", causes(accounts)),
            By::Node => {
                let nodes = accounts.nodes.iter();
                ("node", nodes.map(|(node, uses)| with_uses(node.to_string(), uses)).collect())
            }
            By::Day => {
                let days = accounts.days.iter();
                ("day", days.map(|(day, uses)| with_uses(date(*day), uses)).collect())
            }
        };
        if matches!(by, "job" | "user" | "project") {
            rows.sort_by_key(|row| std::cmp::Reverse(row.known()));
        }
        Self {
            by,
            from_us: accounts.from,
            until_us: accounts.until,
            total: accounts.all.total().into(),
            missing: accounts.missing_gpus(),
            uses: accounts.all.into(),
            rows,
            causes: causes(accounts),
            below_default: BelowDefault::of(accounts),
            emissions: None,
            cost: None,
        }
    }

    /// The report with emissions and cost.
    pub(crate) fn with_rates(mut self, accounts: &Accounts, rates: &Rates) -> Self {
        let sums = &accounts.emissions;
        let total = accounts.all.total();
        self.emissions =
            sums.carbon.zip(rates.intensity.as_ref()).map(|(carbon, series)| EmissionsRow {
                carbon_kg: carbon.as_kg(),
                source: series.name.clone(),
                static_share: sums.static_share(),
                known_share: sums.carbon_energy.ratio(total),
            });
        self.cost = sums.cost.zip(rates.prices.as_ref()).map(|(amount, prices)| CostRow {
            amount,
            currency: prices.currency.clone(),
            source: rates.price_source.clone().unwrap_or_default(),
        });
        self
    }

    /// Why the sums may be incomplete.
    pub(crate) fn warnings(&self, accounts: &Accounts) -> Vec<String> {
        let mut warnings = Vec::new();
        if accounts.incomplete > 0 {
            warnings.push(format!(
                "warning: {} ledger entries lack the reading of a GPU; its energy is not counted",
                accounts.incomplete
            ));
        }
        if accounts.excessive > 0 {
            warnings.push(format!(
                "warning: {} ledger entries attribute more energy to jobs than their GPUs consumed",
                accounts.excessive
            ));
        }
        if accounts.unreadable > 0 {
            warnings.push(format!(
                "warning: {} ledger entries are unreadable or implausible; their energy is not counted",
                accounts.unreadable
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests;
