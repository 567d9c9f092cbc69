//! ElasticFlow's `throughputs_*/*.csv`: iterations/s by global batch (rows) and GPUs (columns).
//!
//! The first column is `global_batch_size`, the others are headed by numbers of GPUs; a node has eight. The
//! model is the file's name. An empty cell did not fit or was not measured.

use super::{Context, FileGpu, Reading, Readings};
use crate::names;
use crate::table::{RowError, Table, unique};

pub(crate) const FIRST: &str = "global_batch_size";
/// GPUs of one node in this data set.
const PER_NODE: u32 = 8;

pub(crate) fn is(columns: &[String]) -> bool {
    columns.first().is_some_and(|c| c == FIRST)
        && columns.len() > 1
        && columns[1..].iter().all(|c| c.parse::<u32>().is_ok_and(|n| n > 0))
}

pub(crate) fn read(table: &mut Table<'_>, context: &Context<'_>, columns: &[String]) -> Readings {
    let rows = table.rows(|row| {
        let batch = row.count(FIRST)?;
        let cells: Vec<(u32, Result<f64, RowError>)> = columns[1..]
            .iter()
            .filter(|c| !row.text(c).is_empty())
            .map(|c| (c.parse().expect("checked by the header"), row.positive(c)))
            .collect();
        Ok(Some((batch, cells)))
    });
    // An invalid cell is left out, and the rest of its row kept.
    let mut lines = Vec::new();
    for (line, (batch, cells)) in rows {
        let mut good = Vec::new();
        for (gpus, cell) in cells {
            match cell {
                Ok(rate) => good.push((gpus, rate)),
                Err(error) => table.complain(Some(line), error.to_string()),
            }
        }
        lines.push((line, (batch, good)));
    }
    let mut readings = Vec::new();
    for (batch, cells) in unique(table, lines, |(batch, _)| *batch) {
        for (gpus, rate) in cells {
            let nodes = gpus.div_ceil(PER_NODE);
            readings.push(Reading { gpus, nodes, batch, time_s: 1.0 / rate, shape: String::new() });
        }
    }
    readings.sort_by_key(|r| (r.batch, r.gpus));
    readings.dedup_by_key(|r| (r.batch, r.gpus));
    let model = names::stem(context.place).to_owned();
    let file_gpu: FileGpu = context.file_gpu();
    Readings { file_gpu, class: names::class(&[&model]), model, readings }
}
