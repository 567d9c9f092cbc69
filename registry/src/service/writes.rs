//! Writes of the registry to the buckets: in order, repeated after an outage, only under its lease.

use wattle_common::id::{JobId, PredictorId};
use wattle_common::messages::{Champion, PredictorStatus, Surface};
use wattle_common::subject::PredictorKey;
use wattle_runtime::bus::{ExclusiveError, LeaseLost};

use super::RegistryService;
use crate::event::{Action, Notice};
use crate::score::Record;

/// A write to a bucket.
#[derive(Clone, Debug)]
pub(super) enum Write {
    Surface(Box<Surface>),
    RemoveSurface(JobId),
    Champion(Champion),
    Status(Box<PredictorStatus>),
    Scores(PredictorId, Box<Record>),
    RemovePredictor(PredictorId),
}

impl Write {
    /// Writes with the same key replace each other.
    fn key(&self) -> String {
        match self {
            Self::Surface(surface) => format!("surfaces.{}", surface.job),
            Self::RemoveSurface(job) => format!("surfaces.{job}"),
            Self::Champion(_) => PredictorKey::Champion.to_string(),
            Self::Status(status) => PredictorKey::Status(status.name.clone()).to_string(),
            Self::Scores(name, _) => PredictorKey::Scores(name.clone()).to_string(),
            Self::RemovePredictor(name) => format!("gone.{name}"),
        }
    }
}

impl RegistryService {
    /// Carries out the actions in order.
    pub(super) async fn carry_out(&mut self, actions: &mut Vec<Action>) -> Result<(), LeaseLost> {
        for action in actions.drain(..) {
            self.metrics.acted(&action);
            let write = match action {
                Action::WriteSurface(surface) => Write::Surface(surface),
                Action::RemoveSurface(job) => Write::RemoveSurface(job),
                Action::WriteChampion(champion) => Write::Champion(champion),
                Action::WriteStatus(status) => Write::Status(status),
                Action::WriteScores(name, record) => Write::Scores(name, record),
                Action::RemovePredictor(name) => Write::RemovePredictor(name),
                Action::Log(notice) => {
                    log(&notice);
                    continue;
                }
            };
            self.write(write).await?;
        }
        Ok(())
    }

    async fn write(&mut self, write: Write) -> Result<(), LeaseLost> {
        let written = match &write {
            Write::Surface(surface) => self.surfaces.try_put(surface.job.as_str(), surface).await,
            Write::RemoveSurface(job) => self.surfaces.try_delete(job.as_str()).await,
            Write::Champion(champion) => self.predictors.try_put(&write.key(), champion).await,
            Write::Status(status) => self.predictors.try_put(&write.key(), status).await,
            Write::Scores(_, record) => self.predictors.try_put(&write.key(), record).await,
            Write::RemovePredictor(name) => {
                let keys = [PredictorKey::Status(name.clone()), PredictorKey::Scores(name.clone())];
                let mut deleted = Ok(());
                for key in keys {
                    deleted = deleted.and(self.predictors.try_delete(&key.to_string()).await);
                }
                deleted
            }
        };
        let written = match written {
            Ok(()) => Ok(()),
            Err(ExclusiveError::Lost(lost)) => return Err(lost),
            Err(ExclusiveError::Bus { source, .. }) => Err(source),
        };
        self.pending.record(write.key(), write, written);
        Ok(())
    }

    /// Repeats pending writes until one fails.
    pub(super) async fn repeat_pending(&mut self) -> Result<(), LeaseLost> {
        while self.bus.is_connected()
            && let Some((key, write)) = self.pending.pop_first()
        {
            self.write(write).await?;
            if self.pending.contains(&key) {
                break;
            }
        }
        Ok(())
    }
}

fn log(notice: &Notice) {
    match notice {
        Notice::Refused { predictor, job, error, first: true } => {
            tracing::warn!(%predictor, %job, %error, "proposal refused");
        }
        Notice::Refused { predictor, job, error, first: false } => {
            tracing::debug!(%predictor, %job, %error, "proposal refused");
        }
        Notice::StateChanged { predictor, champion, state, trouble: Some(trouble) } => {
            tracing::warn!(%predictor, champion, ?state, trouble, "predictor in trouble");
        }
        Notice::StateChanged { predictor, champion, state, trouble: None } => {
            tracing::info!(%predictor, champion, ?state, "predictor healthy");
        }
        Notice::PriorsWritten { jobs, champion } => {
            tracing::warn!(jobs, %champion, "no surface from the champion: priors written");
        }
        Notice::TooManyPredictors(predictor) => {
            tracing::warn!(%predictor, "predictor ignored: as many as the registry lists are listed already");
        }
    }
}
