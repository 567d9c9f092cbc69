//! `wattle budget`: shows and sets the budget of the cluster, its spending and the energy price.
//!
//! The status is read from the bucket, so it is available without a running placer. A new budget is
//! sent to the placer, which replies after storing it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::duration::{parse_span, span};
use wattle_common::event::{EventBook, EventRecord};
use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetReply, BudgetStatus, GridStatus, IntensitySeries, SetBudget,
    SignalStatus, WhatIf,
};
use wattle_common::subject::{
    AIM_STATUS, BUDGET_SET, BUDGET_STATUS, Bucket, EVENTS, GRID_STATUS, RequestTopic, WHAT_IF,
};
use wattle_common::verdict::below_idle;
use wattle_common::{Budget, Power, Timestamp};
use wattle_runtime::bus::{Bus, BusError};
use wattle_runtime::clock;
use wattle_runtime::shell::chain;
use wattle_simulator::CarbonSeries;
use wattle_view::aim::nothing_to_save;
use wattle_view::emissions::Rates;
use wattle_view::{event, power_margin, what_if};

use crate::aim::percent;
use crate::budget::{BudgetOptions, kw, limits, tidy};
use crate::connection::{Connection, block_on};
use crate::date::minute;
use crate::job_records;
use crate::output::{note, print, print_json, usage, usage_chain};
use crate::takeover;
use crate::wait::Wait;

/// Show or set the energy, carbon and power budget.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle budget set --energy-kwh 120 --window 24h\n  wattle budget set --carbon-kg 30 --carbon intensity.csv --power-kw 9.5\n  wattle budget set --wait --power-kw 9.5\n  wattle budget set --power-series limits.csv\n  wattle budget show\n  wattle budget clear"
)]
pub(crate) struct BudgetCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Set the budget; its windows start now.
    Set(Set),
    /// Show the budget, its spending and the energy price.
    Show(Show),
    /// Remove the budget.
    Clear(Clear),
}

/// The options of a change.
#[derive(Args)]
struct Change {
    /// Wait until a planning round was made for the budget and its orders are stored
    #[arg(long)]
    wait: bool,
    /// Longest wait, then exit code 124; the budget stays in force: 90s, 45m
    #[arg(long, value_name = "SPAN", value_parser = parse_span, requires = "wait")]
    timeout: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Set the budget.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle budget set --energy-kwh 120 --power-kw 9.5")]
struct Set {
    #[command(flatten)]
    budget: BudgetOptions,
    /// Carbon intensity series: at_s,g_per_kwh (or EIA's or WattTime's columns). Its first row
    /// applies from now on; it repeats at its end. Without limits it leaves the budget unchanged
    #[arg(long, value_name = "FILE")]
    carbon: Option<PathBuf>,
    #[command(flatten)]
    change: Change,
}

/// Remove the budget.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle budget clear")]
struct Clear {
    #[command(flatten)]
    change: Change,
}

/// Show the budget.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle budget show --json")]
struct Show {
    #[command(flatten)]
    connection: Connection,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads an intensity series as a message that starts at `now`.
pub(crate) fn intensities(path: &Path, now: Timestamp) -> anyhow::Result<IntensitySeries> {
    let series = CarbonSeries::read(path).map_err(usage_chain)?;
    Ok(series.to_message(now))
}

/// A value of the bucket `budget`. One that cannot be decoded is ignored with a note: the placer ignores
/// it too, and replaces it.
pub(crate) async fn read<T: DeserializeOwned>(bus: &Bus, key: &str) -> anyhow::Result<Option<T>> {
    match bus.bucket(Bucket::Budget).await?.get(key).await {
        Ok(value) => Ok(value.map(|(value, _)| value)),
        Err(BusError::Codec(error)) => {
            let error = chain(&error);
            note(&format!(
                "note: the value of key `{key}` in bucket budget is ignored: {error}; `wattle budget \
                 set` and `wattle budget clear` replace it"
            ));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The stored budget.
async fn stored(bus: &Bus) -> anyhow::Result<Option<BudgetRecord>> {
    read(bus, BUDGET_SET).await
}

/// Carbon intensity and electricity price, from the budget and the placer's report.
pub(crate) async fn rates(bus: &Bus) -> anyhow::Result<Rates> {
    let intensity = stored(bus).await?.and_then(|record| record.intensity);
    Ok(Rates::new(intensity, read(bus, GRID_STATUS).await?))
}

/// A signal that does not have its provider's value now, with the cause.
fn fallback(what: &str, signal: Option<&SignalStatus>) -> Option<String> {
    let signal = signal.filter(|signal| signal.is_fallback())?;
    let cause = signal.error.as_deref().unwrap_or("the provider has not been read yet");
    Some(format!("{what}: {}; {cause}", signal.source()))
}

/// Requests a budget from the placer. Without `budget` the limits stay and only the intensity
/// changes. A refusal is a usage error.
pub(crate) async fn set(
    bus: &Bus,
    budget: Option<Budget>,
    intensity: Option<IntensitySeries>,
) -> anyhow::Result<BudgetReply> {
    let budget = match budget {
        Some(budget) => budget,
        None => stored(bus).await?.map(|record| record.budget).unwrap_or_default(),
    };
    let request = SetBudget { budget, intensity };
    let reply = takeover::request(bus, RequestTopic::BudgetSet, "placer", &request).await?;
    match reply {
        BudgetReply::Refused { error } => Err(usage(error)),
        BudgetReply::Stored { .. } => Ok(reply),
    }
}

/// Formats the price: `0.32 of 1 (1: all jobs at their lowest energy)`.
fn price(status: &BudgetStatus) -> String {
    if status.price <= 0.0 {
        return "0: spending is below the budget".to_owned();
    }
    format!("{} of 1 (1: all jobs at their lowest energy)", tidy(status.price))
}

/// A change of mean completion time: `3.1 % later`, `2 % earlier`.
fn later(share: f64) -> String {
    let word = if share < 0.0 { "earlier" } else { "later" };
    format!("{} {word}", percent(share.abs()))
}

/// Formats the state of the energy aim.
fn energy_aim(aim: &AimStatus) -> String {
    let slowdown = aim.slowdown().map_or_else(
        || "no job has run yet".to_owned(),
        |slowdown| format!("estimated {} over the last day", later(slowdown)),
    );
    let latest = aim.latest_project().map_or_else(String::new, |(project, slowdown)| {
        format!("\n         latest project: {project}, estimated {}", later(slowdown))
    });
    let (bound, price) = (aim.bound(), tidy(aim.price));
    let nothing =
        nothing_to_save(aim).map_or_else(String::new, |text| format!("\n         {text}"));
    format!("aim      energy: {bound}\n         {slowdown}; price {price} of 1{latest}{nothing}")
}

#[derive(Serialize)]
struct Shown {
    set: Option<BudgetRecord>,
    status: Option<BudgetStatus>,
    aim: Option<AimStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grid: Option<GridStatus>,
    /// The grid event in force, and its limit at this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<EventInForce>,
    /// What the present jobs would use and when they would complete at other settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    what_if: Option<WhatIf>,
}

#[derive(Serialize)]
struct EventInForce {
    limit_mw: Power,
    record: EventRecord,
}

async fn show(command: Show) -> anyhow::Result<()> {
    let bus = command.connection.open().await?;
    job_records::require_storage(&bus, "budget")?;
    let set = stored(&bus).await?;
    let status: Option<BudgetStatus> = read(&bus, BUDGET_STATUS).await?;
    let aim: Option<AimStatus> = read(&bus, AIM_STATUS).await?;
    let grid: Option<GridStatus> = read(&bus, GRID_STATUS).await?;
    let trade: Option<WhatIf> = read(&bus, WHAT_IF).await?;
    let (events, now): (Option<EventBook>, _) = (read(&bus, EVENTS).await?, clock::now());
    if command.json {
        let in_force = events.as_ref().and_then(|events| events.in_force(now, None));
        let event =
            in_force.map(|(record, limit_mw)| EventInForce { limit_mw, record: record.clone() });
        let what_if = what_if::current(trade.as_ref(), now).cloned();
        return print_json(&Shown { set, status, aim, grid, event, what_if });
    }
    if let Some(event) = events.as_ref().and_then(|events| event::in_force(events, None, now)) {
        print(&format!("event    {event}"))?;
    }
    let has_window = set.as_ref().is_some_and(|set| set.budget.has_window());
    if has_window {
        // A budget with a window takes precedence over the energy aim.
        print("aim      budget: least mean completion time within the budget")?;
    } else if let Some(aim) = &aim {
        print(&energy_aim(aim))?;
    }
    if let Some(trade) = what_if::current(trade.as_ref(), now) {
        print(&format!("what if  {}: {}", what_if::jobs(trade), what_if::sentence(trade)))?;
        print(&format!("plan     {}", what_if::of_plan(trade)))?;
    }
    let Some(set) = set.filter(|set| !set.budget.is_none() || set.intensity.is_some()) else {
        return print("no budget is set; set one with `wattle budget set --energy-kwh KWH`");
    };
    print(&format!("budget   {}", limits(&set.budget)))?;
    let Some(status) = status else { return Ok(()) };
    if status.observed_generation < set.generation {
        note(
            "note: the figures do not reflect the budget yet: the placer's next planning round uses it",
        );
    }
    if set.budget.has_window() {
        let left = span(status.window_until_us.since(now).as_secs_f64());
        let carbon = status.carbon_ug.map(|carbon| format!(", {} kg", tidy(carbon.as_kg())));
        let energy = tidy(status.energy_mj.as_kwh());
        let carbon = carbon.unwrap_or_default();
        print(&format!("spent    {energy} kWh{carbon}; {left} left in the window"))?;
        print(&format!("price    {}", price(&status)))?;
        if let Some(overrun) = status.overrun_previous {
            print(&format!("overrun  {:.2} % in the previous window", 100.0 * overrun))?;
        }
    }
    if let Some(series) = &set.budget.power_series {
        let next = series.changes_after(now);
        let kw_at = |at| set.budget.power_at(at).map_or(0.0, kw);
        let from = minute(next);
        print(&format!("limit    {} kW; {} kW from {from} UTC on", kw_at(now), kw_at(next)))?;
    }
    if let Some((cost, limit)) = status.limit_cost.zip(set.budget.power_at(now)) {
        print(&format!("limit    {}", cost.sentence(limit)))?;
    }
    if let Some(margin) = &status.power_margin {
        if let Some(correction) = power_margin::correction(margin) {
            print(&format!("margin   {correction}"))?;
        }
        if let Some(unused) = power_margin::unused(margin) {
            print(&format!("unused   {unused}"))?;
        }
    }
    print(&format!("draw     {} kW expected", kw(status.power_mw_expected)))?;
    if let Some(empty) = status.power_mw_baseline {
        print(&format!("idle     {} kW without jobs", kw(empty)))?;
    }
    if let Some(intensity) = status.intensity_mg_per_kwh {
        let name = set.intensity.map(|intensity| format!(" ({})", intensity.name));
        let name = name.unwrap_or_default();
        print(&format!("grid     {} g/kWh{name}", tidy(intensity.as_g_per_kwh())))?;
    }
    if let Some(grid) = &grid {
        let prices = grid.prices.as_ref().and_then(|prices| Some((prices, prices.at(now)?)));
        if let Some((prices, price)) = prices {
            let source = grid.price.as_ref().map(SignalStatus::source).unwrap_or_default();
            print(&format!("tariff   {} {}/kWh ({source})", tidy(price), prices.currency))?;
        }
        let carbon = fallback("carbon intensity", grid.carbon.as_ref());
        let price = fallback("electricity price", grid.price.as_ref());
        carbon.iter().chain(&price).for_each(|text| note(&format!("note: {text}")));
    }
    if let Some(finding) = below_idle(&set.budget, &status) {
        note(&format!("note: {}", finding.text));
    }
    Ok(())
}

/// Whether new windows start with this budget; the previous ones started at `before`.
fn starts_windows(before: Option<Timestamp>, after: &BudgetRecord) -> bool {
    after.budget.has_window() && before != Some(after.since_us)
}

/// Waits until the status reflects the budget of this generation.
async fn until_reflected(
    bus: &Bus,
    generation: u64,
    timeout: Option<Duration>,
) -> anyhow::Result<()> {
    if generation == 0 {
        anyhow::bail!(
            "the budget is stored, but the placer is of an earlier version that does not state which budget \
             its status reflects: omit --wait, or upgrade the placer"
        );
    }
    let wait = Wait {
        timeout,
        otherwise: "the budget is stored, and the placer's next planning round uses it",
        slow: Some("still waiting for a planning round of the placer; `wattle doctor` checks it"),
    };
    let bucket = bus.bucket(Bucket::Budget).await?;
    wait.until(async || {
        let status = bucket.get::<BudgetStatus>(BUDGET_STATUS).await?;
        let observed = status.map_or(0, |(status, _)| status.observed_generation);
        Ok((observed >= generation).then_some(()))
    })
    .await
}

async fn change(
    change: Change,
    options: Option<BudgetOptions>,
    carbon: Option<&Path>,
) -> anyhow::Result<()> {
    let bus = change.connection.open().await?;
    job_records::require_storage(&bus, "budget")?;
    // The system's clock is known once the bus is open.
    let budget = options.map(|options| options.budget(clock::now())).transpose()?;
    let budget = budget.map(Option::unwrap_or_default);
    let intensity = carbon.map(|path| intensities(path, clock::now())).transpose()?;
    let before = stored(&bus).await?.map(|record| record.since_us);
    let reply = set(&bus, budget, intensity).await?;
    if stored(&bus).await?.is_some_and(|after| starts_windows(before, &after)) {
        note("windows start now; earlier spending does not count");
    }
    let BudgetReply::Stored { budget, generation } = &reply else { return Ok(()) };
    if change.json {
        print_json(&reply)?;
    } else {
        print(&limits(budget))?;
    }
    if change.wait {
        until_reflected(&bus, *generation, change.timeout).await?;
    }
    let status: Option<BudgetStatus> = read(&bus, BUDGET_STATUS).await?;
    if let Some(finding) = status.and_then(|status| below_idle(budget, &status)) {
        note(&format!("note: {}", finding.text));
    }
    Ok(())
}

/// Runs the command.
pub(crate) fn run(command: BudgetCommand) -> anyhow::Result<()> {
    match command.action {
        Action::Show(inner) => block_on(show(inner)),
        Action::Clear(inner) => {
            block_on(change(inner.change, Some(BudgetOptions::default()), None))
        }
        Action::Set(inner) => {
            // Invalid options are refused before the connection; the system's clock is known behind it.
            let budget = inner.budget.budget(clock::wall_now())?;
            if budget.is_none() && inner.carbon.is_none() {
                return Err(usage(
                    "no limit given: give --energy-kwh, --carbon-kg, --power-kw or --power-series, or --carbon \
                     for the intensity alone; `wattle budget clear` removes the budget",
                ));
            }
            let carbon = inner.carbon.as_deref();
            let options = budget.is_some().then_some(inner.budget);
            block_on(change(inner.change, options, carbon))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(energy_kwh: Option<f64>, power_kw: Option<f64>) -> Budget {
        Budget::from_human(energy_kwh, None, power_kw, None).unwrap()
    }

    #[test]
    fn only_a_different_windowed_budget_starts_windows() {
        let at = Timestamp::from_s;
        let since = |budget, seconds| BudgetRecord {
            generation: 1,
            budget,
            since_us: at(seconds),
            intensity: None,
        };
        let energy = since(budget(Some(5.0), None), 60);
        assert!(starts_windows(None, &energy), "no previous budget");
        assert!(starts_windows(Some(at(20)), &energy), "a different budget");
        assert!(!starts_windows(Some(at(60)), &energy), "the same budget");
        assert!(
            !starts_windows(None, &since(budget(None, Some(9.0)), 60)),
            "a budget without windows"
        );
    }

    #[test]
    fn garbage_in_the_stored_budget_is_ignored() {
        let read = block_on(async {
            let server = wattle_runtime::testing::NatsServer::start().await;
            let config = wattle_runtime::bus::BusConfig::at(&server.url());
            let cluster = wattle_common::ClusterId::new("local").unwrap();
            let bus = Bus::connect(&config, cluster, "test").await?;
            bus.bucket(Bucket::Budget).await?.put(BUDGET_SET, &"garbage").await?;
            stored(&bus).await
        });
        assert_eq!(read.unwrap(), None);
    }
}
