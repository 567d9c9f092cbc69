//! The surface of a job: which configurations it lists ([`crate::configurations`]), what the method
//! predicts for each (`points.rs`), and how wide the calibrated intervals are (`scoring.rs`).

use wattle_common::Timestamp;
use wattle_common::bounds::MEMORY_MIB_MAX;
use wattle_common::id::{JobId, WorkloadId};
use wattle_common::messages::Surface;
use wattle_common::messages::surface::{self, NEIGHBOUR_CLASSES_MAX};
use wattle_common::observation::unknown;

use super::Predictor;
use crate::configurations::{Axes, Configuration, Limits, configurations};
use crate::job::{Job, JobModel};
use crate::model::cap::GpuSpec;
use crate::prior;

impl Predictor {
    /// Predicted surface of `job` over all configurations that it could run in; `None` for an
    /// unknown job.
    #[must_use]
    pub fn surface(&self, now: Timestamp, job: &JobId) -> Option<Surface> {
        Some(self.surface_of(now, job, self.jobs.get(job)?))
    }

    /// The same, with surfaces for the other GPU types of the cluster.
    #[must_use]
    pub fn surface_on_all(&self, now: Timestamp, job: &JobId) -> Option<Surface> {
        let own = self.surface(now, job)?;
        let others = self.cluster_gpu_types.iter().filter(|gpu_type| **gpu_type != own.gpu_type);
        let others = others.filter_map(|gpu_type| self.surface_elsewhere(now, job, gpu_type));
        // The job's own type may no longer be in the cluster.
        let mut points = own.points.len();
        let has_room = |other: &Surface| {
            points += other.points.len();
            points <= surface::POINTS_MAX
        };
        let elsewhere = others.take(surface::GPU_TYPES_MAX - 1).take_while(has_room).collect();
        Some(Surface { other_gpu_types: elsewhere, ..own })
    }

    /// Predicted surface of `job` on another GPU type than its own. The job's own windows do not
    /// apply there; the prediction is that of its class.
    #[must_use]
    pub fn surface_elsewhere(
        &self,
        now: Timestamp,
        job: &JobId,
        gpu_type: &str,
    ) -> Option<Surface> {
        let known = self.jobs.get(job)?;
        let class = self.class_of(job, known);
        let twin = Job::new(now, class, known.gpus, Some(gpu_type.to_owned()));
        // An id that no job has, so that no model fitted to the job itself is used.
        let placeholder = JobId::new("--elsewhere--").ok()?;
        let admission = known.admission.clone();
        Some(Surface { job: job.clone(), admission, ..self.surface_of(now, &placeholder, &twin) })
    }

    /// The surface of `known`, which has the id `job`.
    pub(super) fn surface_of(&self, now: Timestamp, job: &JobId, known: &Job) -> Surface {
        let gpu_type = self.gpu_type_of(known);
        let gpu = self.gpu_types.spec(gpu_type);
        let on = (gpu_type, &gpu);
        let model = self.model_of(job, known, gpu_type, &gpu);
        let wanted = self.configurations_of(job, known, on, &model);
        let points = self.statistical_points((job, known), on, &wanted);
        let points =
            points.unwrap_or_else(|| self.physical_points(job, known, on, &model, &wanted));
        let points = self.calibrated(job, known, on, &wanted, points);
        Surface {
            job: job.clone(),
            admission: known.admission.clone(),
            predictor: self.config.name.clone(),
            at_us: now,
            gpu_type: gpu_type.to_owned(),
            windows: model.windows,
            basis: Some(self.basis(job, known, gpu_type, &model)),
            class: self.class_of(job, known),
            utilization_gpu_percent: model.busy_seen.then_some(100.0 * model.busy.mean),
            utilization_memory_percent: model.memory_busy.map(|m| 100.0 * m),
            memory_mib_max: model.memory_mib.map(|mib| mib.min(MEMORY_MIB_MAX)),
            points,
            other_gpu_types: Vec::new(),
        }
    }

    /// The configurations of a job's surface. The sizes, clocks, batches and sets of co-tenants in which
    /// the job or its class ran are among them.
    fn configurations_of(
        &self,
        job: &JobId,
        known: &Job,
        (gpu_type, gpu): (&str, &GpuSpec),
        model: &JobModel,
    ) -> Vec<Configuration> {
        let class_id = self.class_of(job, known);
        let kept = self.class_seen(job, known, gpu_type, class_id.as_ref());
        let class = kept.as_deref();
        let mut sets: Vec<Vec<WorkloadId>> = Vec::new();
        let of_class = class.into_iter().flat_map(|c| &c.jobs).flat_map(|(_, s)| &s.shared);
        let own = self.models.get(job);
        for set in own.into_iter().flat_map(|m| &m.shared).chain(of_class) {
            if !sets.contains(&set.neighbours) {
                sets.push(set.neighbours.clone());
            }
        }
        let mut shapes: Vec<(u32, u32)> =
            known.windows().iter().rev().map(|w| (w.gpus, w.nodes)).collect();
        shapes.sort_unstable();
        shapes.dedup();
        let batches = known.other_batches(class);
        let axes = Axes { gpu, clocks_seen: model.response.clocks(), batches_seen: &batches };
        let max =
            Limits { points: self.config.points_max as usize, neighbours: self.neighbours_max };
        configurations(known.gpus, &shapes, &sets, &self.axis(), axes, max)
    }

    /// Neighbour classes on a surface: the most frequent ones and the unknown one, sorted.
    pub(super) fn axis(&self) -> Vec<WorkloadId> {
        let mut most: Vec<(&WorkloadId, &usize)> = self.classes.iter().collect();
        if most.len() > NEIGHBOUR_CLASSES_MAX {
            most.select_nth_unstable_by(NEIGHBOUR_CLASSES_MAX, |a, b| {
                b.1.cmp(a.1).then(a.0.cmp(b.0))
            });
            most.truncate(NEIGHBOUR_CLASSES_MAX);
        }
        let mut axis: Vec<WorkloadId> = most.into_iter().map(|(class, _)| class.clone()).collect();
        axis.push(unknown());
        axis.sort();
        axis.dedup();
        axis
    }

    /// Description of the evidence behind a prediction, for people.
    pub(super) fn basis(&self, id: &JobId, job: &Job, gpu_type: &str, model: &JobModel) -> String {
        let own = self.learner.basis(gpu_type, job, id);
        let own = own.unwrap_or_else(|| self.physical_basis(job, gpu_type, model));
        match self.match_of(id, job).filter(|like| like.confident) {
            Some(like) => {
                // Never certain: the similarity metric has its own error.
                let percent = (100.0 * like.probability).min(99.0);
                format!("{own}, like {} ({percent:.0} %)", like.class)
            }
            None => own,
        }
    }

    pub(super) fn physical_basis(&self, job: &Job, gpu_type: &str, model: &JobModel) -> String {
        let class = job.workload.as_ref();
        let jobs = class.and_then(|w| self.history.class(gpu_type, w)).map_or(0, |c| c.jobs.len());
        match (model.windows, class) {
            (1, _) => format!("1 window of this job on {gpu_type}"),
            (2.., _) => format!("{} windows of this job on {gpu_type}", model.windows),
            (0, Some(class)) if jobs > 0 => {
                format!("prior: {jobs} jobs of {class} seen on {gpu_type}")
            }
            (0, class) => {
                let carried = gpu_type != prior::POWER_MEASURED_ON;
                match prior::power_share(class.map(WorkloadId::as_str), carried).1 {
                    Some(word) => format!("prior: power as {word} on another GPU type"),
                    // The cap prior comes in part from this GPU type.
                    None if !carried => {
                        format!("prior: nothing like it was seen; cap curve partly from {gpu_type}")
                    }
                    None => "prior: nothing like it was seen".to_owned(),
                }
            }
        }
    }
}
