//! A record of the placer, reduced to what decisions about a job of the site's scheduler depend on.

use wattle_common::id::UserId;
use wattle_common::job::{JobPhase, Placement};
use wattle_common::messages::JobRecord;
use wattle_common::units::Energy;
use wattle_common::{AdmissionId, Timestamp};

/// The digest of a record.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its submission; absent: an earlier version accepted it.
    pub admission: Option<AdmissionId>,
    /// Its owner.
    pub user: Option<String>,
    /// Whether it is a job of the site's scheduler at all.
    pub is_site: bool,
    /// Whether the site's scheduler places it.
    pub placed_by_site: bool,
    /// The signal that requests a checkpoint; absent: its owner does not consent to a stop.
    pub checkpoint_signal: Option<String>,
    /// Its phase.
    pub phase: JobPhase,
    /// Its phase after a stop.
    pub next_phase: Option<JobPhase>,
    /// Its newest attempt.
    pub attempt: u32,
    /// The nodes and GPUs of the attempt.
    pub placement: Option<Placement>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Its energy.
    pub energy: Option<Energy>,
    /// Until when the ledger of each of its nodes is counted; the earliest.
    pub energy_until: Option<Timestamp>,
}

impl Known {
    /// The digest of a record.
    #[must_use]
    pub fn of(record: &JobRecord) -> Self {
        let site = record.spec.site.as_ref();
        Self {
            admission: record.admission.clone(),
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
    #[must_use]
    pub const fn has_gpus(&self) -> bool {
        matches!(self.phase, JobPhase::Starting | JobPhase::Running | JobPhase::Stopping)
    }

    /// Whether the placer has seen its attempt run.
    #[must_use]
    pub const fn has_run(&self) -> bool {
        matches!(self.phase, JobPhase::Running)
    }

    /// Whether the placer stops it, and its phase after that.
    #[must_use]
    pub const fn stops_for(&self) -> Option<JobPhase> {
        match (self.phase, self.next_phase) {
            (JobPhase::Stopping, Some(next)) => Some(next),
            _ => None,
        }
    }

    /// Whether its owner is this user.
    #[must_use]
    pub fn is_of(&self, user: &UserId) -> bool {
        self.user.as_deref() == Some(user.as_str())
    }
}
