//! Gavel's `isolated.csv`: step rate of one job by batch, GPUs and consolidation.
//!
//! Columns: gpu, consolidated (1: the GPUs are on as few nodes as possible; 0: spread), model, batch_size
//! (of one GPU; may be empty), num_gpus, steps_per_s (steps of one GPU's batch, summed over GPUs). A step
//! of all GPUs takes num_gpus / steps_per_s. The nodes are not given: one GPU on each node is assumed for
//! spread GPUs, and eight for consolidated ones.

use std::collections::BTreeMap;

use super::{Context, FileGpu, Reading, Readings};
use crate::names;
use crate::table::{Table, invalid, unique};

pub(crate) const COLUMNS: &[&str] =
    &["gpu", "consolidated", "model", "batch_size", "num_gpus", "steps_per_s"];
/// Shapes.
pub const TOGETHER: &str = "together";
const SPREAD: &str = "spread";
const PER_NODE: u32 = 8;

pub(crate) fn read(table: &mut Table<'_>, context: &Context<'_>) -> Vec<Readings> {
    let rows = table.rows(|row| {
        let gpus = row.count("num_gpus")?;
        let (nodes, shape) = match row.text("consolidated") {
            "1" => (gpus.div_ceil(PER_NODE), TOGETHER),
            // The file contains one GPU both as consolidated and as spread.
            "0" if gpus == 1 => return Ok(None),
            "0" => (gpus, SPREAD),
            other => return Err(invalid("consolidated", other, "0 or 1")),
        };
        let batch = match row.text("batch_size") {
            "" => 1,
            _ => row.count("batch_size")?,
        };
        let Some(batch) = batch.checked_mul(gpus) else {
            return Err(invalid("batch_size", row.text("batch_size"), "a possible batch size"));
        };
        let model = row.name("model")?.to_owned();
        let time_s = f64::from(gpus) / row.positive("steps_per_s")?;
        let reading = Reading { gpus, nodes, batch, time_s, shape: shape.to_owned() };
        Ok(Some((row.text("gpu").to_owned(), model, reading)))
    });
    let key = |(gpu, model, r): &(String, String, Reading)| {
        (gpu.clone(), model.clone(), r.gpus, r.batch, r.shape.clone())
    };
    let mut models: BTreeMap<(String, String), Vec<Reading>> = BTreeMap::new();
    for (gpu, model, reading) in unique(table, rows, key) {
        models.entry((gpu, model)).or_default().push(reading);
    }
    let models = models.into_iter().map(|((gpu, model), mut readings)| {
        readings.sort_by_key(|r| (r.batch, r.gpus, r.nodes));
        let gpu = Some(gpu).filter(|g| !g.is_empty());
        let file_gpu =
            FileGpu { gpu_type: names::gpu_type(gpu.as_deref()), gpu, ..context.file_gpu() };
        Readings { file_gpu, class: names::class(&[&model]), model, readings }
    });
    models.collect()
}
