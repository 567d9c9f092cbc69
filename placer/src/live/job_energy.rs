//! The energy of each job in its record, from the energy ledger.
//!
//! A record names the end of the last entry of each node that it counts, so an entry that arrives
//! again counts once.

use wattle_common::AdmissionId;
use wattle_common::messages::LedgerEntry;

use crate::live::job_records::JobRecords;

impl JobRecords {
    /// Adds an entry to the records of its jobs, ended ones included.
    pub(super) fn count_energy(&mut self, entry: &LedgerEntry) {
        for part in &entry.jobs {
            let Some(record) = self.get(&part.job) else { continue };
            let (of, until) = (part.admission.as_ref(), entry.until_us);
            if !AdmissionId::has_run(record.admission.as_ref(), of, until) {
                continue;
            }
            let counted = record.energy_until_us.get(&entry.node);
            if counted.is_some_and(|until| entry.from_us < *until) {
                continue;
            }
            self.change(&part.job, |record| {
                record.energy_until_us.insert(entry.node.clone(), entry.until_us);
                *record.energy_mj.get_or_insert_default() += part.energy_mj;
            });
        }
    }
}
