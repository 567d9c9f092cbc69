//! Gavel's `pairs.csv`: step rates of two jobs, exclusive and packed on one GPU.
//!
//! Columns: gpu, then for each of two tenants model_, bs_ (may be empty), gpus_, iso_ (exclusive steps/s)
//! and packed_ (shared steps/s). The column norm_ is packed / iso and is computed here. A pair may occur in
//! both orders; zero steps/s mean that the pair did not fit or was not measured.

use std::collections::BTreeMap;

use super::{Context, FileGpu};
use crate::names;
use crate::table::{Cells, RowError, Table, invalid};
use wattle_common::id::WorkloadId;

pub(crate) const COLUMNS: &[&str] =
    &["gpu", "model_a", "bs_a", "model_b", "bs_b", "iso_a", "iso_b", "packed_a", "packed_b"];

/// Relative tolerance between the two orders of a pair: rounding.
const SAME: f64 = 1e-3;

/// Contents of one file for one GPU.
#[derive(Debug)]
pub struct Pairs {
    /// The file and the GPU type.
    pub file_gpu: FileGpu,
    /// The jobs.
    pub jobs: Vec<PairJob>,
    /// Relative speed of job `.0` beside job `.1`, by their indices in `jobs`.
    pub cells: BTreeMap<(usize, usize), f64>,
}

/// One tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct PairJob {
    /// The model.
    pub family: String,
    /// Batch size.
    pub batch: Option<u32>,
    /// Its class as in windows.
    pub class: WorkloadId,
    /// Exclusive steps/s.
    pub alone: f64,
}

struct Tenant {
    family: String,
    batch: Option<u32>,
    alone: f64,
    packed: f64,
}

fn tenant(row: &Cells<'_>, side: &str) -> Result<Option<Tenant>, RowError> {
    let of = |column: &str| format!("{column}_{side}");
    let family = row.name(&of("model"))?.to_owned();
    let batch = match row.text(&of("bs")) {
        "" => None,
        _ => Some(row.count(&of("bs"))?),
    };
    if !matches!(row.text(&of("gpus")), "" | "1") {
        let column = of("gpus");
        return Err(invalid(&column, row.text(&column), "1 (pairs on one GPU)"));
    }
    if row.text(&of("packed")).parse::<f64>() == Ok(0.0) {
        return Ok(None);
    }
    let (alone, packed) = (row.positive(&of("iso"))?, row.positive(&of("packed"))?);
    if packed > 10.0 * alone {
        return Err(RowError::Implausible(of("packed"), of("iso")));
    }
    Ok(Some(Tenant { family, batch, alone, packed }))
}

pub(crate) fn read(table: &mut Table<'_>, context: &Context<'_>) -> Vec<Pairs> {
    let rows = table.rows(|row| {
        let both = tenant(row, "a")?.zip(tenant(row, "b")?);
        Ok(both.map(|(a, b)| (row.text("gpu").to_owned(), a, b)))
    });
    let mut by_gpu: BTreeMap<String, Builder> = BTreeMap::new();
    for (line, (gpu, a, b)) in rows {
        let builder = by_gpu.entry(gpu).or_default();
        let (i, j) = match (builder.job(&a), builder.job(&b)) {
            (Ok(i), Ok(j)) => (i, j),
            (Err(error), _) | (_, Err(error)) => {
                table.complain(Some(line), error.to_string());
                continue;
            }
        };
        for (key, tenant) in [((i, j), &a), ((j, i), &b)] {
            let norm = tenant.packed / tenant.alone;
            let first = *builder.cells.entry(key).or_insert(norm);
            if (first / norm - 1.0).abs() > SAME {
                let what = format!("measures {} again, otherwise; the first counts", tenant.family);
                table.complain(Some(line), what);
            }
        }
    }
    by_gpu
        .into_iter()
        .map(|(gpu, builder)| {
            let gpu = Some(gpu).filter(|g| !g.is_empty());
            let file_gpu =
                FileGpu { gpu_type: names::gpu_type(gpu.as_deref()), gpu, ..context.file_gpu() };
            Pairs { file_gpu, jobs: builder.jobs, cells: builder.cells }
        })
        .collect()
}

#[derive(Default)]
struct Builder {
    jobs: Vec<PairJob>,
    cells: BTreeMap<(usize, usize), f64>,
}

impl Builder {
    /// Index of a tenant among the jobs.
    fn job(&mut self, tenant: &Tenant) -> Result<usize, RowError> {
        let same = |j: &PairJob| j.family == tenant.family && j.batch == tenant.batch;
        if let Some(i) = self.jobs.iter().position(same) {
            let known = self.jobs[i].alone;
            return if (known / tenant.alone - 1.0).abs() > SAME {
                Err(RowError::Contradiction {
                    job: self.jobs[i].class.to_string(),
                    here: tenant.alone,
                    before: known,
                })
            } else {
                Ok(i)
            };
        }
        let size = tenant.batch.map(|b| format!("b{b}")).unwrap_or_default();
        self.jobs.push(PairJob {
            family: tenant.family.clone(),
            batch: tenant.batch,
            class: names::class(&[&tenant.family, &size]),
            alone: tenant.alone,
        });
        Ok(self.jobs.len() - 1)
    }
}
