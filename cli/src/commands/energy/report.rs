//! The report of `wattle energy`: rows, verdict, table, CSV.

use serde::Serialize;
use wattle_common::{Energy, JobId, Timestamp};

use super::By;
use super::accounts::{Accounts, Uses};
use crate::output::{Align, Table};
use crate::quantity::{EnergyUnit, energy, percent};

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
    /// Job, user, node or day; absent: the user is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The user of a job, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// Number of jobs of a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<usize>,
    #[serde(flatten)]
    energy: Amount,
    /// The uses of a node's or a day's energy.
    #[serde(skip_serializing_if = "Option::is_none")]
    uses: Option<Sums>,
}

/// Energy by use.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sums {
    jobs: Amount,
    idle_gpus: Amount,
    hosts: Amount,
}

impl From<Uses> for Sums {
    fn from(uses: Uses) -> Self {
        Self { jobs: uses.jobs.into(), idle_gpus: uses.idle.into(), hosts: uses.hosts.into() }
    }
}

/// The report of `wattle energy`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    by: &'static str,
    from_us: Option<Timestamp>,
    until_us: Option<Timestamp>,
    total: Amount,
    uses: Sums,
    rows: Vec<Row>,
}

impl Report {
    /// The report by `by`; `user_of` completes the users of the ledger.
    pub(crate) fn new(
        by: By,
        accounts: &Accounts,
        user_of: impl Fn(&JobId) -> Option<String>,
    ) -> Self {
        let row = |name: Option<String>, energy: Energy| Row {
            name,
            user: None,
            jobs: None,
            energy: energy.into(),
            uses: None,
        };
        let with_uses = |name: String, uses: &Uses| Row {
            uses: Some((*uses).into()),
            ..row(Some(name), uses.total())
        };
        let (by, mut rows): (_, Vec<Row>) = match by {
            By::Job => {
                let user = |job: &JobId| accounts.users.get(job).cloned().or_else(|| user_of(job));
                let of = |(job, energy): (&JobId, &Energy)| Row {
                    user: user(job),
                    ..row(Some(job.to_string()), *energy)
                };
                ("job", accounts.jobs.iter().map(of).collect())
            }
            By::User => {
                let users = accounts.by_user(user_of).into_iter();
                let of = |(user, (energy, jobs))| Row { jobs: Some(jobs), ..row(user, energy) };
                ("user", users.map(of).collect())
            }
            By::Node => {
                let nodes = accounts.nodes.iter();
                ("node", nodes.map(|(node, uses)| with_uses(node.to_string(), uses)).collect())
            }
            By::Day => {
                let days = accounts.days.iter();
                ("day", days.map(|(day, uses)| with_uses(date(*day), uses)).collect())
            }
        };
        if matches!(by, "job" | "user") {
            rows.sort_by_key(|row| std::cmp::Reverse(row.energy.energy_mj));
        }
        Self {
            by,
            from_us: accounts.from,
            until_us: accounts.until,
            total: accounts.all.total().into(),
            uses: accounts.all.into(),
            rows,
        }
    }

    /// The total with its uses in one or two lines.
    pub(crate) fn verdict(&self) -> String {
        let (from, until) = (self.from_us.unwrap_or_default(), self.until_us.unwrap_or_default());
        let total = self.total.energy_mj;
        let unit = EnergyUnit::of(total);
        let part = |amount: Amount| {
            let share = percent(amount.energy_mj.ratio(total));
            format!("{} {} ({share})", unit.number(amount.energy_mj), unit.name())
        };
        format!(
            "{} from {} to {} UTC\njobs {}, idle GPUs {}, hosts {}",
            energy(total),
            minute(from),
            minute(until),
            part(self.uses.jobs),
            part(self.uses.idle_gpus),
            part(self.uses.hosts),
        )
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
                (pick("IDLE GPUS kWh", "IDLE GPUS Wh"), Align::Right),
                (pick("HOSTS kWh", "HOSTS Wh"), Align::Right),
                (total, Align::Right),
                ("SHARE %", Align::Right),
            ]);
            let mut row = |name: &str, uses: Sums, sum: Amount| {
                table.row(vec![
                    name.to_owned(),
                    number(uses.jobs),
                    number(uses.idle_gpus),
                    number(uses.hosts),
                    number(sum),
                    share(sum),
                ]);
            };
            for one in &self.rows {
                let (Some(name), Some(uses)) = (&one.name, one.uses) else { continue };
                row(name, uses, one.energy);
            }
            row("all", self.uses, self.total);
            return table.fit(0, width);
        }
        let by_job = self.by == "job";
        let energy = pick("ENERGY kWh", "ENERGY Wh");
        let mut table = Table::new(&[
            (if by_job { "JOB" } else { "USER" }, Align::Left),
            (if by_job { "USER" } else { "JOBS" }, if by_job { Align::Left } else { Align::Right }),
            (energy, Align::Right),
            ("SHARE %", Align::Right),
        ]);
        for row in &self.rows {
            let second = match row.jobs {
                Some(jobs) => jobs.to_string(),
                None => row.user.clone().unwrap_or_default(),
            };
            let name = row.name.clone().unwrap_or_else(|| "(not known)".to_owned());
            table.row(vec![name, second, number(row.energy), share(row.energy)]);
        }
        for (name, amount) in [
            ("(idle GPUs)", self.uses.idle_gpus),
            ("(hosts)", self.uses.hosts),
            ("all", self.total),
        ] {
            table.row(vec![name.to_owned(), String::new(), number(amount), share(amount)]);
        }
        table.fit(0, width)
    }

    /// The rows as CSV. Idle GPUs and hosts are rows of their own, so that the column `energy_mj` sums
    /// to the total.
    pub(crate) fn csv(&self) -> anyhow::Result<String> {
        let mut csv = csv::Writer::from_writer(Vec::new());
        let text = |amount: Amount| {
            [amount.energy_mj.as_mj().to_string(), format!("{:.6}", amount.energy_kwh)]
        };
        if matches!(self.by, "node" | "day") {
            csv.write_record([
                self.by,
                "jobs_mj",
                "idle_gpus_mj",
                "hosts_mj",
                "energy_mj",
                "energy_kwh",
            ])?;
            for row in &self.rows {
                let Some(uses) = row.uses else { continue };
                let uses =
                    [uses.jobs, uses.idle_gpus, uses.hosts].map(|amount| text(amount)[0].clone());
                let name = row.name.clone().unwrap_or_default();
                csv.write_record([name].into_iter().chain(uses).chain(text(row.energy)))?;
            }
        } else {
            let second = if self.by == "job" { "user" } else { "jobs" };
            csv.write_record(["use", self.by, second, "energy_mj", "energy_kwh"])?;
            for row in &self.rows {
                let jobs = row.jobs.map(|jobs| jobs.to_string());
                let second = jobs.or_else(|| row.user.clone()).unwrap_or_default();
                let cells = ["job".to_owned(), row.name.clone().unwrap_or_default(), second];
                csv.write_record(cells.into_iter().chain(text(row.energy)))?;
            }
            for (name, amount) in [("idle-gpus", self.uses.idle_gpus), ("hosts", self.uses.hosts)] {
                let cells = [name.to_owned(), String::new(), String::new()];
                csv.write_record(cells.into_iter().chain(text(amount)))?;
            }
        }
        Ok(String::from_utf8(csv.into_inner().map_err(csv::IntoInnerError::into_error)?)?)
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
                "warning: {} ledger entries cannot be decoded; their energy is not counted",
                accounts.unreadable
            ));
        }
        warnings
    }
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
mod tests {
    use expect_test::expect;
    use wattle_common::messages::{JobEnergy, LedgerEntry};
    use wattle_testkit as testkit;

    use super::*;

    fn accounts() -> Accounts {
        let at = |s: u64| Timestamp::from_s(1_790_000_000 + s);
        let j = Energy::from_j;
        let part = |job: &str, joules, user: Option<&str>| JobEnergy {
            job: testkit::job(job),
            energy_mj: j(joules),
            user: user.map(str::to_owned),
        };
        let entry = |node: &str, from, gpus: [Energy; 2], jobs| LedgerEntry {
            energy_mj_gpus: gpus.map(Some).to_vec(),
            jobs,
            ..testkit::ledger_entry(node, at(from), at(from + 36_000), j(5_400_000))
        };
        let mut accounts = Accounts::default();
        let jobs =
            vec![part("python3-660bb7234354a", 7_100_000, Some("ada")), part("t-2", 810_000, None)];
        accounts.count(&entry("n0", 0, [j(7_200_000), j(1_080_000)], jobs), Timestamp::EPOCH);
        let jobs = vec![part("t-3", 3_600_000, Some("a user, with a comma"))];
        accounts.count(&entry("n1", 36_000, [j(3_600_000), j(1_440_000)], jobs), Timestamp::EPOCH);
        accounts
    }

    fn shown(by: By) -> String {
        let report = Report::new(by, &accounts(), |_| None);
        let text = report.table(80).render(false);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        text
    }

    #[test]
    fn verdict_has_total_and_uses() {
        let report = Report::new(By::Job, &accounts(), |_| None);
        assert!(report.verdict().lines().all(|line| line.chars().count() <= 80));
        expect![[r#"
            6.70 kWh from 2026-09-21 14:13 to 2026-09-22 10:13 UTC
            jobs 3.197 kWh (48 %), idle GPUs 0.503 kWh (8 %), hosts 3.000 kWh (45 %)"#]]
        .assert_eq(&report.verdict());
    }

    #[test]
    fn table_by_job() {
        expect![[r#"
            JOB                    USER                  ENERGY kWh  SHARE %
            python3-660bb7234354a  ada                        1.972     29.4
            t-3                    a user, with a comma       1.000     14.9
            t-2                                               0.225      3.4
            (idle GPUs)                                       0.503      7.5
            (hosts)                                           3.000     44.8
            all                                               6.700    100.0
        "#]]
        .assert_eq(&shown(By::Job));
    }

    #[test]
    fn table_by_user() {
        expect![[r#"
            USER                  JOBS  ENERGY kWh  SHARE %
            ada                      1       1.972     29.4
            a user, with a comma     1       1.000     14.9
            (not known)              1       0.225      3.4
            (idle GPUs)                      0.503      7.5
            (hosts)                          3.000     44.8
            all                              6.700    100.0
        "#]]
        .assert_eq(&shown(By::User));
    }

    #[test]
    fn table_by_node() {
        expect![[r#"
            NODE  JOBS kWh  IDLE GPUS kWh  HOSTS kWh  TOTAL kWh  SHARE %
            n0       2.197          0.103      1.500      3.800     56.7
            n1       1.000          0.400      1.500      2.900     43.3
            all      3.197          0.503      3.000      6.700    100.0
        "#]]
        .assert_eq(&shown(By::Node));
    }

    #[test]
    fn table_by_day() {
        expect![[r#"
            DAY         JOBS kWh  IDLE GPUS kWh  HOSTS kWh  TOTAL kWh  SHARE %
            2026-09-21     2.148          0.100      1.467      3.716     55.5
            2026-09-22     1.049          0.402      1.533      2.984     44.5
            all            3.197          0.503      3.000      6.700    100.0
        "#]]
        .assert_eq(&shown(By::Day));
    }

    #[test]
    fn csv_sums_to_the_total() {
        for by in [By::Job, By::User, By::Node, By::Day] {
            let report = Report::new(by, &accounts(), |_| None);
            let text = report.csv().unwrap();
            let mut csv = csv::Reader::from_reader(text.as_bytes());
            let at = csv.headers().unwrap().iter().position(|name| name == "energy_mj").unwrap();
            let sum: u64 = csv.records().map(|row| row.unwrap()[at].parse::<u64>().unwrap()).sum();
            assert_eq!(sum, report.total.energy_mj.as_mj(), "{text}");
        }
        let report = Report::new(By::User, &accounts(), |_| None);
        expect![[r#"
            use,user,jobs,energy_mj,energy_kwh
            job,ada,1,7100000000,1.972222
            job,"a user, with a comma",1,3600000000,1.000000
            job,,1,810000000,0.225000
            idle-gpus,,,1810000000,0.502778
            hosts,,,10800000000,3.000000
        "#]]
        .assert_eq(&report.csv().unwrap());
    }
}
