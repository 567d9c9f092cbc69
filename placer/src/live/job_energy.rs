//! The energy of each job in its record, from the energy ledger.
//!
//! A record names the end of the last entry of each node that it counts, so an entry that arrives
//! again counts once.

use std::collections::BTreeSet;

use wattle_common::JobId;
use wattle_common::messages::LedgerEntry;

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
            self.change(job, |record| {
                record.energy_until_us.insert(entry.node.clone(), entry.until_us);
                for part in entry.jobs.iter().filter(|part| part.job == *job) {
                    *record.energy_mj.get_or_insert_default() += part.energy_mj;
                    if let Some(compared) = part.compared {
                        record.compared.get_or_insert_default().add(compared);
                    }
                }
                record.unmetered_ms = record.unmetered_ms.saturating_add(entry.unmetered_ms(job));
            });
        }
    }
}
