//! The rows of a report, and the energy in them.

use std::collections::BTreeSet;

use serde::Serialize;
use wattle_common::duration::DurationUnit;
use wattle_common::messages::UnknownCause;
use wattle_common::{AdmissionId, Energy};
use wattle_view::energy::{Accounts, Uses};

use crate::date::minute;

/// Energy by use, in both units of the report.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Amount {
    pub(super) energy_mj: Energy,
    pub(super) energy_kwh: f64,
}

impl From<Energy> for Amount {
    fn from(energy: Energy) -> Self {
        Self { energy_mj: energy, energy_kwh: energy.as_kwh() }
    }
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// Job, user, project, node, day or cause; absent: the user is unknown, or the jobs have no project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// The submission of a job, if known: an id may have had several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) admission: Option<AdmissionId>,
    /// The user of a job, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    /// The project of a job, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) project: Option<String>,
    /// Number of jobs of a user or a project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) jobs: Option<usize>,
    /// Absent: none was measured.
    #[serde(flatten)]
    pub(super) energy: Option<Amount>,
    /// Time of its GPUs without a meter, summed over GPUs, seconds: their energy is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unmetered_gpu_s: Option<f64>,
    /// The uses of a node's or a day's energy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) uses: Option<Sums>,
    /// Energy that was not measured for a cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unmeasured: Option<Unmeasured>,
}

/// Time without a complete measurement.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Unmeasured {
    /// Time of each GPU, summed over GPUs, seconds.
    pub(super) gpu_s: f64,
    /// Estimate of its energy, where one exists; part of no sum.
    pub(super) estimate_mj: Energy,
}

/// Energy by use.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sums {
    pub(super) jobs: Amount,
    pub(super) idle_gpus: Amount,
    pub(super) unknown: Amount,
    pub(super) hosts: Amount,
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

impl Sums {
    pub(super) fn sum(self) -> Amount {
        let uses = [self.jobs, self.idle_gpus, self.unknown, self.hosts];
        uses.into_iter().map(|amount| amount.energy_mj).sum::<Energy>().into()
    }
}

/// GPU time without a meter in seconds; `None`: each GPU had one.
pub(super) fn unmetered_s(ms: Option<&u64>) -> Option<f64> {
    ms.copied().filter(|ms| *ms > 0).map(|ms| ms as f64 / 1e3)
}

impl Row {
    /// The measured energy.
    pub(super) fn known(&self) -> Option<Energy> {
        self.energy.map(|amount| amount.energy_mj)
    }

    /// When a job was submitted, to distinguish the submissions of one id.
    pub(super) fn submitted(&self) -> String {
        let at = self.admission.as_ref().and_then(AdmissionId::accepted_at);
        at.map_or_else(|| "submission not known".to_owned(), |at| format!("of {}", minute(at)))
    }

    /// The cause of a row by cause.
    pub(super) fn cause(&self) -> Option<UnknownCause> {
        UnknownCause::ALL.into_iter().find(|cause| Some(cause.name()) == self.name.as_deref())
    }
}

/// The rows by cause, the largest energy first.
pub(super) fn causes(accounts: &Accounts) -> Vec<Row> {
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
pub(super) fn gpu_time_unit(rows: &[Row]) -> DurationUnit {
    DurationUnit::of_all(rows.iter().filter_map(|row| Some(row.unmeasured?.gpu_s)))
}
