//! Pollux's `placements.csv`: step time by placement and local batch size.
//!
//! Columns: placement (the GPUs used on each node, as digits: `22` is two on each of two nodes), local_bsz
//! (samples in a step on one GPU), step_time (s); sync_time is not used. The model is the name of the
//! folder, or of the file if that does not begin with `placement`.

use super::{Context, Reading, Readings};
use crate::names;
use crate::table::{Table, invalid, unique};

pub(crate) const COLUMNS: &[&str] = &["placement", "local_bsz", "step_time"];

pub(crate) fn read(table: &mut Table<'_>, context: &Context<'_>) -> Readings {
    let rows = table.rows(|row| {
        let shape = row.name("placement")?;
        let digits: Option<Vec<u32>> = shape.chars().map(|c| c.to_digit(10)).collect();
        let on_nodes = digits.filter(|d| d.len() <= 64 && d.iter().all(|n| *n > 0));
        let Some(on_nodes) = on_nodes else {
            return Err(invalid("placement", shape, "a digit from 1 to 9 for each node"));
        };
        let local = row.count("local_bsz")?;
        let gpus: u32 = on_nodes.iter().sum();
        let Some(batch) = local.checked_mul(gpus) else {
            return Err(invalid("local_bsz", row.text("local_bsz"), "a possible batch size"));
        };
        let time_s = row.positive("step_time")?;
        let nodes = on_nodes.len() as u32;
        Ok(Some(Reading { gpus, nodes, batch, time_s, shape: shape.to_owned() }))
    });
    let mut readings = unique(table, rows, |r| (r.shape.clone(), r.batch));
    readings.sort_by(|a, b| {
        (a.gpus, a.nodes, &a.shape, a.batch).cmp(&(b.gpus, b.nodes, &b.shape, b.batch))
    });
    let stem = names::stem(context.place);
    let own = (!stem.to_ascii_lowercase().starts_with("placement")).then_some(stem);
    let model = own.or_else(|| names::folder(context.place)).unwrap_or(stem).to_owned();
    Readings { file_gpu: context.file_gpu(), class: names::class(&[&model]), model, readings }
}
