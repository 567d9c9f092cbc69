//! The energy of each job in its record, from the energy ledger.
//!
//! A record names the end of the last entry of each node that it counts, so an entry that arrives
//! again counts once.

use std::collections::BTreeSet;

use wattle_common::messages::{LedgerEntry, UnknownEnergy};
use wattle_common::{AdmissionId, JobId};

use crate::live::job_records::JobRecords;

impl JobRecords {
    /// Adds an entry to the records of its jobs, ended ones included.
    pub(super) fn count_energy(&mut self, entry: &LedgerEntry) {
        let measured = entry.jobs.iter().map(|part| &part.job);
        let unmetered = entry.unknown.iter().flat_map(|unknown| &unknown.jobs);
        let jobs: BTreeSet<&JobId> = measured.chain(unmetered).collect();
        for job in jobs {
            let Some(record) = self.get(job) else { continue };
            let counted = record.energy_until_us.get(&entry.node);
            if counted.is_some_and(|until| entry.from_us < *until) {
                continue;
            }
            let is_its = |of: Option<&AdmissionId>, until| {
                AdmissionId::has_run(record.admission.as_ref(), of, until)
            };
            let parts = entry.jobs.iter().filter(|part| part.job == *job);
            let parts = parts.filter(|part| is_its(part.admission.as_ref(), entry.until_us));
            let parts: Vec<_> = parts.collect();
            let compared: Vec<_> = parts.iter().filter_map(|part| part.compared).collect();
            let energy = parts.iter().map(|part| part.energy_mj).reduce(|all, energy| all + energy);
            let of_job = |unknown: &&UnknownEnergy| {
                let mut submissions = unknown.submissions().filter(|(known, _)| *known == job);
                submissions.any(|(_, of)| is_its(of, unknown.until_us))
            };
            let unmetered = entry.unknown.iter().filter(of_job);
            let unmetered = unmetered.map(UnknownEnergy::length_ms).reduce(u64::saturating_add);
            if energy.is_none() && unmetered.is_none() {
                continue;
            }
            self.change(job, |record| {
                record.energy_until_us.insert(entry.node.clone(), entry.until_us);
                if let Some(energy) = energy {
                    *record.energy_mj.get_or_insert_default() += energy;
                }
                for compared in &compared {
                    record.compared.get_or_insert_default().add(*compared);
                }
                let unmetered = unmetered.unwrap_or_default();
                record.unmetered_ms = record.unmetered_ms.saturating_add(unmetered);
            });
        }
    }
}
