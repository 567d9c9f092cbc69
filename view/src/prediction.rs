//! The prediction that explains a job now.

use wattle_common::messages::{JobRecord, Prediction, Surface};
use wattle_placer::prediction::{Configuration, prediction};

/// The prediction that explains a job now: of the current surface while it has one, else the last one
/// of its record.
#[must_use]
pub fn current(record: &JobRecord, surface: Option<&Surface>) -> Option<Prediction> {
    let last = record.prediction_last.as_deref().or(record.prediction_placed.as_deref());
    let surface = surface.filter(|one| !record.phase.is_final() && record.has_surface(one));
    let Some(surface) = surface else { return last.cloned() };
    let placed = record.prediction_placed.as_deref().filter(|_| record.placement.is_some());
    // The surface of the GPU type that it holds.
    let surface = placed
        .and_then(|placed| {
            let mut all = std::iter::once(surface).chain(&surface.other_gpu_types);
            all.find(|surface| surface.gpu_type == placed.gpu_type)
        })
        .unwrap_or(surface);
    let (gpus, nodes) = match &record.placement {
        Some(placement) => (placement.gpu_count(), placement.node_count()),
        None => {
            let gpus = record.spec.gpus.min;
            let of_size = surface.points.iter().filter(|point| point.gpus == gpus);
            (gpus, of_size.map(|point| point.nodes).min().unwrap_or(1))
        }
    };
    let neighbours = placed.and_then(|p| p.placed.as_ref()).map(|point| point.neighbours.clone());
    let here = Configuration {
        gpus,
        nodes,
        setting: record.setting,
        neighbours: neighbours.unwrap_or_default(),
    };
    Some(prediction(surface, record.spec.gpus, &here, surface.at_us))
}
