//! The report of `wattle energy`: rows, verdict, table, CSV.

mod csv;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use wattle_common::duration::DurationUnit;
use wattle_common::messages::UnknownCause;
use wattle_common::{AdmissionId, Energy, Timestamp};

use super::By;
use crate::budget::tidy;
use crate::output::{Align, Table};
use crate::quantity::{EnergyUnit, energy, percent};
use wattle_view::emissions::Rates;
use wattle_view::energy::{Accounts, OwnerEnergy, Submission, Uses};

/// Energy by use, in both units of the report.
#[derive(Clone, Copy, Debug, Serialize)]
struct Amount {
    energy_mj: Energy,
    energy_kwh: f64,
}

impl From<Energy> for Amount {
    fn from(energy: Energy) -> Self {
        Self { energy_mj: energy, energy_kwh: energy.as_kwh() }
    }
}

/// One row.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// Job, user, project, node, day or cause; absent: the user is unknown, or the jobs have no project.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The submission of a job, if known: an id may have had several.
    #[serde(skip_serializing_if = "Option::is_none")]
    admission: Option<AdmissionId>,
    /// The user of a job, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// The project of a job, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<String>,
    /// Number of jobs of a user or a project.
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<usize>,
    /// Absent: none was measured.
    #[serde(flatten)]
    energy: Option<Amount>,
    /// Time of its GPUs without a meter, summed over GPUs, seconds: their energy is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    unmetered_gpu_s: Option<f64>,
    /// The uses of a node's or a day's energy.
    #[serde(skip_serializing_if = "Option::is_none")]
    uses: Option<Sums>,
    /// Energy that was not measured for a cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    unmeasured: Option<Unmeasured>,
}

/// Time without a complete measurement.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Unmeasured {
    /// Time of each GPU, summed over GPUs, seconds.
    gpu_s: f64,
    /// Estimate of its energy, where one exists; part of no sum.
    estimate_mj: Energy,
}

/// Energy by use.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sums {
    jobs: Amount,
    idle_gpus: Amount,
    unknown: Amount,
    hosts: Amount,
}

impl From<Uses> for Sums {
    fn from(uses: Uses) -> Self {
        Self {
            jobs: uses.jobs.into(),
            idle_gpus: uses.idle.into(),
            unknown: uses.unknown.into(),
            hosts: uses.hosts.into(),
        }
    }
}

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
    saving: Option<SavingRow>,
    /// Emissions, where a carbon intensity is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    emissions: Option<EmissionsRow>,
    /// Cost, where an electricity price is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<CostRow>,
}

/// Energy saved by caps and clocks, by prediction.
#[derive(Clone, Copy, Debug, Serialize)]
struct SavingRow {
    measured: Amount,
    default_setting: Amount,
    /// Saved share of the energy at the default setting; negative: more was used.
    share: f64,
    /// Share of the jobs' energy that is compared.
    compared_share: f64,
}

impl SavingRow {
    fn of(accounts: &Accounts) -> Option<Self> {
        let compared = &accounts.compared;
        Some(Self {
            measured: compared.energy_mj.into(),
            default_setting: compared.energy_mj_default.into(),
            share: compared.saved_share()?,
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
            saving: SavingRow::of(accounts),
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

    /// Emissions and cost with their sources, one line each.
    fn rated(&self) -> String {
        let mut text = String::new();
        if let Some(emissions) = &self.emissions {
            let carbon = tidy(emissions.carbon_kg);
            text += &format!("\nCO2 {carbon} kg; intensity: {}", emissions.source);
            if emissions.static_share > 0.0 {
                text += &format!(
                    "\n  {} of the energy at the static value",
                    percent(emissions.static_share)
                );
            }
            if emissions.known_share < 0.995 {
                let unknown = percent(1.0 - emissions.known_share);
                text +=
                    &format!("\n  without {unknown} of the energy, whose intensity is not known");
            }
        }
        if let Some(cost) = &self.cost {
            text += &format!("\ncost {:.2} {}; price: {}", cost.amount, cost.currency, cost.source);
        }
        text
    }

    /// The total with its uses and the causes of unknown energy.
    pub(crate) fn verdict(&self) -> String {
        let (from, until) = (self.from_us.unwrap_or_default(), self.until_us.unwrap_or_default());
        let total = self.total.energy_mj;
        let unit = EnergyUnit::of(total);
        let part = |amount: Amount| {
            let share = percent(amount.energy_mj.ratio(total));
            format!("{} {} ({share})", unit.number(amount.energy_mj), unit.name())
        };
        let (at_least, missing) = match &self.missing {
            Some(missing) => ("at least ", format!(":\n{missing}")),
            None => ("", String::new()),
        };
        let mut text = format!(
            "{at_least}{} from {} to {} UTC{missing}\njobs {}, idle GPUs {}, hosts {}",
            energy(total),
            minute(from),
            minute(until),
            part(self.uses.jobs),
            part(self.uses.idle_gpus),
            part(self.uses.hosts),
        );
        if self.uses.unknown.energy_mj > Energy::ZERO {
            text += &format!("\nunknown {}, because:", part(self.uses.unknown));
        }
        let line = |cause: &Row, what: &str| {
            let cause = cause.cause().map(|cause| cause.to_string()).unwrap_or_default();
            format!("\n  {cause}: {what}")
        };
        let known = |row: &Row| row.energy.filter(|amount| amount.energy_mj > Energy::ZERO);
        for (cause, amount) in self.causes.iter().filter_map(|row| Some((row, known(row)?))) {
            text += &line(cause, &part(amount));
        }
        let unmeasured = self.causes.iter().filter_map(|row| Some((row, row.unmeasured?)));
        let unmeasured: Vec<_> = unmeasured.filter(|(_, lost)| lost.gpu_s > 0.0).collect();
        if !unmeasured.is_empty() {
            text += "\nnot measured completely, and at most partly in the sums:";
        }
        let unit = gpu_time_unit(&self.causes);
        for (cause, lost) in unmeasured {
            let estimate = if lost.estimate_mj > Energy::ZERO {
                format!(", estimated {}", energy(lost.estimate_mj))
            } else {
                String::new()
            };
            text += &line(cause, &format!("{} of GPU time{estimate}", unit.format(lost.gpu_s)));
        }
        text + &self.rated()
    }

    /// The table; the first column fits into `width`.
    pub(crate) fn table(&self, width: usize) -> Table {
        let unit = EnergyUnit::of(self.total.energy_mj);
        let number = |amount: Amount| unit.number(amount.energy_mj);
        let share =
            |amount: Amount| format!("{:.1}", 100.0 * amount.energy_mj.ratio(self.total.energy_mj));
        let is_kwh = unit.name() == "kWh";
        let pick = |kwh, wh| if is_kwh { kwh } else { wh };
        let total = pick("TOTAL kWh", "TOTAL Wh");
        if matches!(self.by, "node" | "day") {
            let first = if self.by == "node" { "NODE" } else { "DAY" };
            let mut table = Table::new(&[
                (first, Align::Left),
                (pick("JOBS kWh", "JOBS Wh"), Align::Right),
                (pick("IDLE kWh", "IDLE Wh"), Align::Right),
                (pick("UNKNOWN kWh", "UNKNOWN Wh"), Align::Right),
                (pick("HOSTS kWh", "HOSTS Wh"), Align::Right),
                (total, Align::Right),
                ("SHARE %", Align::Right),
            ]);
            let mut row = |name: &str, uses: Sums, sum: Amount| {
                table.row(vec![
                    name.to_owned(),
                    number(uses.jobs),
                    number(uses.idle_gpus),
                    number(uses.unknown),
                    number(uses.hosts),
                    number(sum),
                    share(sum),
                ]);
            };
            for one in &self.rows {
                let (Some(name), Some(uses)) = (&one.name, one.uses) else { continue };
                row(name, uses, uses.sum());
            }
            row("all", self.uses, self.total);
            return table.fit(0, width);
        }
        let by_job = self.by == "job";
        let energy = pick("ENERGY kWh", "ENERGY Wh");
        if self.by == "cause" {
            let mut table = Table::new(&[
                ("CAUSE", Align::Left),
                (energy, Align::Right),
                ("SHARE %", Align::Right),
                ("NOT MEASURED", Align::Right),
            ]);
            let unit = gpu_time_unit(&self.rows);
            for row in &self.rows {
                let name = row.cause().map(|cause| cause.to_string()).unwrap_or_default();
                let lost = unit.format(row.unmeasured.unwrap_or_default().gpu_s);
                let amount = row.energy.unwrap_or(Amount::from(Energy::ZERO));
                table.row(vec![name, number(amount), share(amount), lost]);
            }
            return table.fit(0, width);
        }
        let first = match self.by {
            "job" => "JOB",
            "user" => "USER",
            _ => "PROJECT",
        };
        let mut table = Table::new(&[
            (first, Align::Left),
            (if by_job { "USER" } else { "JOBS" }, if by_job { Align::Left } else { Align::Right }),
            (energy, Align::Right),
            ("SHARE %", Align::Right),
        ]);
        let mut names: BTreeMap<&Option<String>, usize> = BTreeMap::new();
        self.rows.iter().for_each(|row| *names.entry(&row.name).or_default() += 1);
        for row in &self.rows {
            let second = match row.jobs {
                Some(jobs) => jobs.to_string(),
                None => row.user.clone().unwrap_or_default(),
            };
            let name = match &row.name {
                Some(name) if names[&row.name] > 1 => format!("{name}, {}", row.submitted()),
                Some(name) => name.clone(),
                None if self.by == "project" => "(none)".to_owned(),
                None => "(not known)".to_owned(),
            };
            let (amount, part) = match (row.energy, row.unmetered_gpu_s) {
                (None, _) => ("not known".to_owned(), String::new()),
                (Some(amount), None) => (number(amount), share(amount)),
                (Some(amount), Some(_)) => (format!("≥ {}", number(amount)), share(amount)),
            };
            table.row(vec![name, second, amount, part]);
        }
        for (name, amount) in [
            ("(idle GPUs)", self.uses.idle_gpus),
            ("(unknown)", self.uses.unknown),
            ("(hosts)", self.uses.hosts),
            ("all", self.total),
        ] {
            table.row(vec![name.to_owned(), String::new(), number(amount), share(amount)]);
        }
        table.fit(0, width)
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

impl Sums {
    fn sum(self) -> Amount {
        let uses = [self.jobs, self.idle_gpus, self.unknown, self.hosts];
        uses.into_iter().map(|amount| amount.energy_mj).sum::<Energy>().into()
    }
}

/// GPU time without a meter in seconds; `None`: each GPU had one.
fn unmetered_s(ms: Option<&u64>) -> Option<f64> {
    ms.copied().filter(|ms| *ms > 0).map(|ms| ms as f64 / 1e3)
}

impl Row {
    /// The measured energy.
    fn known(&self) -> Option<Energy> {
        self.energy.map(|amount| amount.energy_mj)
    }

    /// When a job was submitted, to distinguish the submissions of one id.
    fn submitted(&self) -> String {
        let at = self.admission.as_ref().and_then(AdmissionId::accepted_at);
        at.map_or_else(|| "submission not known".to_owned(), |at| format!("of {}", minute(at)))
    }

    /// The cause of a row by cause.
    fn cause(&self) -> Option<UnknownCause> {
        UnknownCause::ALL.into_iter().find(|cause| Some(cause.name()) == self.name.as_deref())
    }
}

/// The rows by cause, the largest energy first.
fn causes(accounts: &Accounts) -> Vec<Row> {
    let unmeasured = accounts.unmeasured();
    let known = accounts.causes.keys().chain(unmeasured.keys()).collect::<BTreeSet<_>>();
    let row = |cause: &UnknownCause| Row {
        name: Some(cause.name().to_owned()),
        admission: None,
        user: None,
        project: None,
        jobs: None,
        // A cause of lost time only has no energy without an owner.
        energy: Some(accounts.causes.get(cause).copied().unwrap_or_default().into()),
        unmetered_gpu_s: None,
        uses: None,
        unmeasured: Some(unmeasured.get(cause).map_or(Unmeasured::default(), |lost| Unmeasured {
            gpu_s: lost.0.as_secs_f64(),
            estimate_mj: lost.1,
        })),
    };
    let mut rows: Vec<Row> = known.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.known()));
    rows
}

/// The unit of the GPU times of rows by cause.
fn gpu_time_unit(rows: &[Row]) -> DurationUnit {
    DurationUnit::of_all(rows.iter().filter_map(|row| Some(row.unmeasured?.gpu_s)))
}

/// The date of a day since the Unix epoch: `2026-11-23`.
fn date(day: u64) -> String {
    civil(day * 86_400).map_or_else(|| format!("day {day}"), |at| at.date().to_string())
}

/// An instant to the minute: `2026-11-23 09:41`.
fn minute(at: Timestamp) -> String {
    let at = civil(at.as_us() / 1_000_000);
    at.map_or_else(|| "?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M").to_string())
}

/// Seconds since the Unix epoch as a date and time in UTC.
fn civil(seconds: u64) -> Option<jiff::civil::DateTime> {
    let at = jiff::Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?;
    Some(at.to_zoned(jiff::tz::TimeZone::UTC).datetime())
}

#[cfg(test)]
mod tests;
