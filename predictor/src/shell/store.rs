//! Proposes surfaces and stores jobs, classes and scores.
//!
//! Surfaces are proposed on the predictor's subject. Keys of the bucket `knowledge`:
//! `<predictor>.job.<job>` contains a job's description and windows, `<predictor>.class.<gpu type>.<class>`
//! the history of a workload class, `<predictor>.scores.<gpu type>.<quantity>` prediction errors. An
//! entry that cannot be read, or that another version wrote, is skipped and counted; it is replaced
//! by the next write.

use wattle_common::bounds::DATE_TOLERANCE;
use wattle_common::codec;
use wattle_common::id::{JobId, PredictorId, WorkloadId};
use wattle_common::messages::Surface;
use wattle_common::subject::{Bucket, Subject};
use wattle_runtime::bus::{Bus, BusError, KvBucket};
use wattle_runtime::clock;

use crate::calibration::Scores;
use crate::history::Class;
use crate::job::Job;
use crate::predictor::Predictor;

/// Numbers of entries restored.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restored {
    pub(super) jobs: usize,
    pub(super) classes: usize,
    pub(super) unreadable: usize,
}

pub(super) struct Store {
    bus: Bus,
    knowledge: KvBucket,
    predictor: PredictorId,
}

impl Store {
    pub(super) async fn open(bus: &Bus, predictor: &PredictorId) -> Result<Self, BusError> {
        Ok(Self {
            bus: bus.clone(),
            knowledge: bus.bucket(Bucket::Knowledge).await?,
            predictor: predictor.clone(),
        })
    }

    pub(super) async fn restore(&self, predictor: &mut Predictor) -> Result<Restored, BusError> {
        let mut restored = Restored::default();
        // A value from the future would be the newest for as long.
        let latest = clock::now() + DATE_TOLERANCE;
        let prefix = format!("{}.", self.predictor);
        for entry in self.knowledge.watch_keys(&format!("{prefix}>")).await?.initial().await {
            let (Some(key), Some(value)) = (entry.key.strip_prefix(&prefix), &entry.value) else {
                continue;
            };
            let mut words = key.split('.');
            let fine = match (words.next(), words.next(), words.next()) {
                (Some("job"), Some(job), None) => {
                    let stored = JobId::new(job).ok().zip(codec::decode_json::<Job>(value).ok());
                    let stored = stored.filter(|(_, stored)| stored.newest() <= latest);
                    let fine =
                        stored.is_some_and(|(job, stored)| predictor.restore_job(job, stored));
                    restored.jobs += usize::from(fine);
                    fine
                }
                (Some("class"), Some(gpu_type), Some(class)) => {
                    let stored =
                        WorkloadId::new(class).ok().zip(codec::decode_json::<Class>(value).ok());
                    let stored = stored.filter(|(_, stored)| stored.updated_at_us <= latest);
                    let fine = stored.is_some_and(|(class, stored)| {
                        predictor.restore_class(gpu_type, class, stored)
                    });
                    restored.classes += usize::from(fine);
                    fine
                }
                (Some("scores"), Some(gpu_type), Some(name)) => codec::decode_json::<Scores>(value)
                    .is_ok_and(|stored| predictor.restore_scores(gpu_type, name, stored)),
                _ => false,
            };
            restored.unreadable += usize::from(!fine);
        }
        Ok(restored)
    }

    pub(super) async fn propose(
        &self,
        surface: &Surface,
        knowledge: Option<&Job>,
    ) -> Result<(), BusError> {
        let (cluster, job) = (self.bus.cluster().clone(), surface.job.clone());
        let subject = Subject::of_proposal(cluster, self.predictor.clone(), job);
        self.bus.publish(&subject, surface).await?;
        if let Some(job) = knowledge {
            self.knowledge.put(&self.job_key(&surface.job), job).await?;
        }
        Ok(())
    }

    pub(super) async fn remove(&self, job: &JobId) -> Result<(), BusError> {
        self.knowledge.delete(&self.job_key(job)).await
    }

    pub(super) async fn put_classes(
        &self,
        classes: Vec<(String, WorkloadId, Class)>,
    ) -> Result<(), BusError> {
        for (gpu_type, class, kept) in classes {
            let key = format!("{}.class.{gpu_type}.{class}", self.predictor);
            self.knowledge.put(&key, &kept).await?;
        }
        Ok(())
    }

    pub(super) async fn put_scores(
        &self,
        scores: Vec<(String, String, Scores)>,
    ) -> Result<(), BusError> {
        for (gpu_type, name, kept) in scores {
            let key = format!("{}.scores.{gpu_type}.{name}", self.predictor);
            self.knowledge.put(&key, &kept).await?;
        }
        Ok(())
    }

    fn job_key(&self, job: &JobId) -> String {
        format!("{}.job.{job}", self.predictor)
    }
}
