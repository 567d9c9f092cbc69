//! `wattle budget`: what the cluster may spend, what has been spent, what energy costs now.
//!
//! What is shown is read from the bucket, so it shows also while no placer runs; setting asks the
//! placer, which answers once it is stored.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::Serialize;
use wattle_common::messages::{
    BudgetRecord, BudgetReply, BudgetStatus, IntensitySeries, SetBudget,
};
use wattle_common::subject::{BUDGET_SET, BUDGET_STATUS, Bucket, RequestTopic, Subject};
use wattle_common::{Budget, Timestamp};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;
use wattle_simulator::CarbonSeries;

use super::simulate::usage_chain;
use crate::budget::{BudgetOptions, kw, limits, tidy};
use crate::connection::{Connection, block_on};
use crate::output::{note, print, print_json, span, usage};

/// Show what may be spent and what has been, or set it
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle budget set --energy-kwh 120 --window 24h\n  wattle budget set --carbon-kg 30 --carbon intensity.csv --power-kw 9.5\n  wattle budget show\n  wattle budget clear"
)]
pub(crate) struct BudgetCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Keep to this budget from now on, in windows that begin now.
    Set(Set),
    /// Show the budget, what has been spent of it, and the price.
    Show(Show),
    /// Let everything be spent again.
    #[command(after_help = "Example:\n  wattle budget clear")]
    Clear(Show),
}

/// Keep to a budget from now on.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle budget set --energy-kwh 120 --power-kw 9.5")]
struct Set {
    #[command(flatten)]
    budget: BudgetOptions,
    /// The grid's carbon intensity: at_s,g_per_kwh (or EIA's or WattTime's columns); its first row
    /// holds from now on, and it begins anew at its end. Alone it leaves the limits as they are
    #[arg(long, value_name = "FILE")]
    carbon: Option<PathBuf>,
    #[command(flatten)]
    connection: Connection,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Show the budget, or end it.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle budget show --json")]
struct Show {
    #[command(flatten)]
    connection: Connection,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The intensity of a file as the placer takes it, from `now` on.
pub(crate) fn intensities(path: &Path, now: Timestamp) -> anyhow::Result<IntensitySeries> {
    let series = CarbonSeries::read(path).map_err(usage_chain)?;
    Ok(series.to_message(now))
}

/// What stands in the bucket.
async fn standing(bus: &Bus) -> anyhow::Result<Option<BudgetRecord>> {
    Ok(bus.bucket(Bucket::Budget).await?.get(BUDGET_SET).await?.map(|(set, _)| set))
}

/// Asks the placer to keep to a budget, or to the one that stands where only the grid is told; what it
/// refuses is the user's to mend.
pub(crate) async fn set(
    bus: &Bus,
    budget: Option<Budget>,
    intensity: Option<IntensitySeries>,
) -> anyhow::Result<BudgetReply> {
    let budget = match budget {
        Some(budget) => budget,
        None => standing(bus).await?.map(|record| record.budget).unwrap_or_default(),
    };
    let subject = Subject::request(bus.cluster().clone(), RequestTopic::BudgetSet);
    let reply: BudgetReply = bus
        .request(&subject, &SetBudget { budget, intensity })
        .await
        .context("the placer did not answer; is wattle-placer running?")?;
    match reply {
        BudgetReply::Refused { error } => Err(usage(error)),
        BudgetReply::Stored { .. } => Ok(reply),
    }
}

/// The price in words: `0.32 of 1, where all are at their thriftiest`.
fn price(status: &BudgetStatus) -> String {
    if status.price <= 0.0 {
        return "none: so far less is drawn than may be".to_owned();
    }
    let own = status.policy_price;
    format!(
        "{} of 1, where all are at their thriftiest; {own:.2e} in the policy's unit",
        tidy(status.price)
    )
}

/// Why no job will start under this budget, where the cluster draws more than that without any.
fn starved(budget: &Budget, status: &BudgetStatus) -> Option<String> {
    let empty = status.power_mw_baseline?;
    let limit = budget.power_mw.map(|limit| (limit, "the limit is", ""));
    let fed = status.power_mw_budget_mean.map(|fed| (fed, "the budget feeds", " in the mean"));
    let too_little = [limit, fed].into_iter().flatten().filter(|(power, ..)| *power < empty);
    let said: Vec<String> =
        too_little.map(|(power, what, how)| format!("{what} {} kW{how}", kw(power))).collect();
    (!said.is_empty()).then(|| {
        format!(
            "without any job the cluster draws {} kW, and {}: no job will start",
            kw(empty),
            said.join(", ")
        )
    })
}

#[derive(Serialize)]
struct Shown {
    set: Option<BudgetRecord>,
    status: Option<BudgetStatus>,
}

async fn show(command: Show) -> anyhow::Result<()> {
    let bus = command.connection.open().await?;
    let bucket = bus.bucket(Bucket::Budget).await?;
    let set: Option<BudgetRecord> = bucket.get(BUDGET_SET).await?.map(|(set, _)| set);
    let status: Option<BudgetStatus> = bucket.get(BUDGET_STATUS).await?.map(|(status, _)| status);
    if command.json {
        return print_json(&Shown { set, status });
    }
    let Some(set) = set.filter(|set| !set.budget.is_none() || set.intensity.is_some()) else {
        return print("no budget is set; set one with `wattle budget set --energy-kwh KWH`");
    };
    print(&format!("budget   {}", limits(&set.budget)))?;
    let Some(status) = status else { return Ok(()) };
    let now = clock::now();
    if set.budget.has_window() {
        let left = span(status.window_until_us.since(now).as_secs_f64());
        let carbon = status.carbon_ug.map(|carbon| format!(", {} kg", tidy(carbon.as_kg())));
        let energy = tidy(status.energy_mj.as_kwh());
        let carbon = carbon.unwrap_or_default();
        print(&format!("spent    {energy} kWh{carbon}; {left} of the window are left"))?;
        print(&format!("price    {}", price(&status)))?;
        if let Some(overrun) = status.overrun_previous {
            print(&format!("before   {:.2} % beyond in the window before", 100.0 * overrun))?;
        }
    }
    print(&format!("drawn    {} kW are expected", kw(status.power_mw_expected)))?;
    if let Some(empty) = status.power_mw_baseline {
        print(&format!("empty    {} kW are drawn without any job", kw(empty)))?;
    }
    if let Some(intensity) = status.intensity_mg_per_kwh {
        let name = set.intensity.map(|intensity| format!(", as {} has it", intensity.name));
        let name = name.unwrap_or_default();
        print(&format!("grid     {} g/kWh{name}", tidy(intensity.as_g_per_kwh())))?;
    }
    if let Some(starved) = starved(&set.budget, &status) {
        note(&format!("note: {starved}"));
    }
    Ok(())
}

/// Whether windows begin with this answer, where those from before began at `before`.
fn begins_anew(before: Option<Timestamp>, after: &BudgetRecord) -> bool {
    after.budget.has_window() && before != Some(after.since_us)
}

async fn change(
    connection: Connection,
    json: bool,
    budget: Option<Budget>,
    carbon: Option<&Path>,
) -> anyhow::Result<()> {
    let bus = connection.open().await?;
    // The system's clock is known once the bus is open.
    let intensity = carbon.map(|path| intensities(path, clock::now())).transpose()?;
    let before = standing(&bus).await?.map(|record| record.since_us);
    let reply = set(&bus, budget, intensity).await?;
    if standing(&bus).await?.is_some_and(|after| begins_anew(before, &after)) {
        note("windows begin now; what was spent before does not count");
    }
    let BudgetReply::Stored { budget } = &reply else { return Ok(()) };
    let status = bus.bucket(Bucket::Budget).await?.get::<BudgetStatus>(BUDGET_STATUS).await?;
    if let Some(starved) = status.and_then(|(status, _)| starved(budget, &status)) {
        note(&format!("note: {starved}"));
    }
    if json {
        return print_json(&reply);
    }
    print(&limits(budget))
}

/// Runs the command.
pub(crate) fn run(command: BudgetCommand) -> anyhow::Result<()> {
    match command.action {
        Action::Show(inner) => block_on(show(inner)),
        Action::Clear(inner) => {
            block_on(change(inner.connection, inner.json, Some(Budget::default()), None))
        }
        Action::Set(inner) => {
            let budget = inner.budget.budget()?;
            if budget.is_none() && inner.carbon.is_none() {
                return Err(usage(
                    "nothing to keep to; give --energy-kwh, --carbon-kg or --power-kw, or --carbon for \
                     the grid alone, or end the budget that stands with `wattle budget clear`",
                ));
            }
            let carbon = inner.carbon.as_deref();
            block_on(change(inner.connection, inner.json, budget, carbon))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use wattle_common::{Energy, Power};

    use super::*;

    fn budget(energy_kwh: Option<f64>, power_kw: Option<f64>) -> Budget {
        Budget::from_human(energy_kwh, None, power_kw, None).unwrap()
    }

    #[test]
    fn only_another_budget_over_a_window_begins_anew() {
        let at = Timestamp::from_s;
        let since =
            |budget, seconds| BudgetRecord { budget, since_us: at(seconds), intensity: None };
        let energy = since(budget(Some(5.0), None), 60);
        assert!(begins_anew(None, &energy), "there was none");
        assert!(begins_anew(Some(at(20)), &energy), "there was another");
        assert!(!begins_anew(Some(at(60)), &energy), "the same goes on");
        assert!(!begins_anew(None, &since(budget(None, Some(9.0)), 60)), "it has no window");
    }

    #[test]
    fn a_budget_that_the_empty_cluster_exceeds_is_told() {
        let status = |empty: Option<u64>, fed: Option<u64>| BudgetStatus {
            at_us: Timestamp::EPOCH,
            window_from_us: Timestamp::EPOCH,
            window_until_us: Timestamp::EPOCH,
            energy_mj: Energy::ZERO,
            carbon_ug: None,
            overrun_previous: None,
            price: 0.0,
            policy_price: 0.0,
            power_mw_expected: Power::ZERO,
            power_mw_baseline: empty.map(Power::from_w),
            power_mw_budget_mean: fed.map(Power::from_w),
            intensity_mg_per_kwh: None,
            counted_until_us: BTreeMap::new(),
        };
        let both = budget(Some(5.0), Some(0.1));
        let said =
            |budget: &Budget, empty, fed| starved(budget, &status(empty, fed)).unwrap_or_default();
        assert_eq!(
            said(&both, Some(450), Some(207)),
            "without any job the cluster draws 0.45 kW, and the limit is 0.1 kW, the budget feeds \
             0.207 kW in the mean: no job will start"
        );
        assert_eq!(
            said(&budget(Some(5.0), None), Some(450), Some(207)),
            "without any job the cluster draws 0.45 kW, and the budget feeds 0.207 kW in the mean: no \
             job will start"
        );
        assert_eq!(said(&both, None, Some(207)), "", "nobody knows yet");
        assert_eq!(said(&budget(Some(50.0), Some(9.0)), Some(450), Some(2_073)), "");
    }
}
