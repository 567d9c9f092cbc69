//! The report as a table: uses of nodes and days, causes, or the energy of jobs and their owners.

use std::collections::BTreeMap;

use wattle_common::Energy;

use super::Report;
use super::row::{Amount, Sums, gpu_time_unit};
use crate::output::{Align, Table};
use crate::quantity::EnergyUnit;

impl Report {
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
}
