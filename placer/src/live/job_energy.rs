//! The energy of each job in its record, from the energy ledger.
//!
//! A record names the end of the last entry of each node that it counts, so an entry that arrives
//! again counts once.

use wattle_common::messages::LedgerEntry;

use crate::live::Placer;

impl Placer {
    /// Adds an entry to the records of its jobs, ended ones included.
    pub(super) fn count_job_energy(&mut self, entry: &LedgerEntry) {
        for part in &entry.jobs {
            let Some(tracked) = self.jobs.get_mut(&part.job) else { continue };
            let record = &mut tracked.record;
            let counted = record.energy_until_us.entry(entry.node.clone()).or_default();
            if entry.from_us < *counted {
                continue;
            }
            *counted = entry.until_us;
            *record.energy_mj.get_or_insert_default() += part.energy_mj;
            self.to_store.insert(part.job.clone());
        }
    }
}
