//! The rows of a report as CSV, in the format of docs/operating.md.

use super::{Amount, Report};

impl Report {
    /// The rows as CSV; energy that was not measured is an empty cell. Idle GPUs, unknown and hosts are rows of
    /// their own, so that the column `energy_mj` sums to the total; by cause, to the unknown energy.
    pub(crate) fn csv(&self) -> anyhow::Result<String> {
        let mut csv = ::csv::Writer::from_writer(Vec::new());
        let text = |amount: Amount| {
            [amount.energy_mj.as_mj().to_string(), format!("{:.6}", amount.energy_kwh)]
        };
        let cells = |amount: Option<Amount>| amount.map_or_else(Default::default, text);
        if matches!(self.by, "node" | "day") {
            csv.write_record([
                self.by,
                "jobs_mj",
                "idle_gpus_mj",
                "unknown_mj",
                "hosts_mj",
                "energy_mj",
                "energy_kwh",
            ])?;
            for row in &self.rows {
                let Some(uses) = row.uses else { continue };
                let uses = [uses.jobs, uses.idle_gpus, uses.unknown, uses.hosts]
                    .map(|amount| text(amount)[0].clone());
                let name = row.name.clone().unwrap_or_default();
                csv.write_record([name].into_iter().chain(uses).chain(cells(row.energy)))?;
            }
        } else if self.by == "cause" {
            csv.write_record([
                "cause",
                "energy_mj",
                "energy_kwh",
                "unmeasured_gpu_s",
                "estimate_mj",
            ])?;
            for row in &self.rows {
                let lost = row.unmeasured.unwrap_or_default();
                let lost = [format!("{:.3}", lost.gpu_s), lost.estimate_mj.as_mj().to_string()];
                let name = [row.name.clone().unwrap_or_default()];
                csv.write_record(name.into_iter().chain(cells(row.energy)).chain(lost))?;
            }
        } else {
            let by_job = self.by == "job";
            let mut head = vec!["use", self.by];
            head.extend(if by_job {
                ["admission", "user", "project"].as_slice()
            } else {
                &["jobs"]
            });
            head.extend(["energy_mj", "energy_kwh"]);
            csv.write_record(&head)?;
            for row in &self.rows {
                let mut named = vec!["job".to_owned(), row.name.clone().unwrap_or_default()];
                if by_job {
                    named.push(row.admission.as_ref().map(ToString::to_string).unwrap_or_default());
                    named.extend(
                        [&row.user, &row.project].map(|name| name.clone().unwrap_or_default()),
                    );
                } else {
                    named.push(row.jobs.map(|jobs| jobs.to_string()).unwrap_or_default());
                }
                csv.write_record(named.into_iter().chain(cells(row.energy)))?;
            }
            for (name, amount) in [
                ("idle-gpus", self.uses.idle_gpus),
                ("unknown", self.uses.unknown),
                ("hosts", self.uses.hosts),
            ] {
                let mut named = vec![name.to_owned()];
                named.resize(head.len() - 2, String::new());
                csv.write_record(named.into_iter().chain(text(amount)))?;
            }
        }
        Ok(String::from_utf8(csv.into_inner().map_err(::csv::IntoInnerError::into_error)?)?)
    }
}
