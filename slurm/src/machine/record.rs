//! What the machine needs of the placer's records.

use wattle_common::Timestamp;
use wattle_common::job::{JobPhase, Placement};
use wattle_common::messages::JobRecord;
use wattle_common::units::Energy;

use super::SlurmMachine;
use crate::intake;

/// A record, reduced to what decisions depend on.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) user: Option<String>,
    /// Whether it is a job of the site's scheduler at all.
    pub(super) is_site: bool,
    pub(super) placed_by_site: bool,
    pub(super) checkpoint_signal: Option<String>,
    pub(super) phase: JobPhase,
    pub(super) next_phase: Option<JobPhase>,
    pub(super) attempt: u32,
    pub(super) placement: Option<Placement>,
    pub(super) ended_at: Option<Timestamp>,
    pub(super) energy: Option<Energy>,
    /// Until when the ledger of each of its nodes is counted; the earliest.
    pub(super) energy_until: Option<Timestamp>,
}

impl Known {
    fn of(record: &JobRecord) -> Self {
        let site = record.spec.site.as_ref();
        Self {
            user: record.spec.user.clone(),
            is_site: site.is_some(),
            placed_by_site: site.is_some_and(|site| site.placed_by_site),
            checkpoint_signal: record.spec.checkpoint_signal.clone(),
            phase: record.phase,
            next_phase: record.next_phase,
            attempt: record.attempt,
            placement: record.placement.clone(),
            ended_at: record.ended_at_us,
            energy: record.energy_mj,
            energy_until: record.energy_until_us.values().min().copied(),
        }
    }

    /// Whether the placer has assigned GPUs to its attempt.
    pub(super) const fn has_gpus(&self) -> bool {
        matches!(self.phase, JobPhase::Starting | JobPhase::Running | JobPhase::Stopping)
    }

    /// Whether the placer has seen its attempt run.
    pub(super) const fn has_run(&self) -> bool {
        matches!(self.phase, JobPhase::Running)
    }

    /// Whether the placer stops it, and its phase after that.
    pub(super) const fn stops_for(&self) -> Option<JobPhase> {
        match (self.phase, self.next_phase) {
            (JobPhase::Stopping, Some(next)) => Some(next),
            _ => None,
        }
    }
}

impl SlurmMachine {
    /// Keeps the records of Slurm's jobs, and of others whose orders must be refused.
    pub(super) fn record_changed(&mut self, record: &JobRecord) {
        let job = &record.spec.job;
        let is_slurms = intake::slurm_id(job).is_some();
        if record.phase.is_final() && !is_slurms {
            self.records.remove(job);
        } else {
            self.records.insert(job.clone(), Known::of(record));
        }
    }
}
