//! Readings of measured runs, for uses other than the protocols. The same parsers serve both; everything
//! unusable is returned as [`Problem`]s.

use super::reader::{Context, Format, stages, throughputs};
use super::table::{self, Table};
use super::{Problem, Source, names};

/// Step rates of a model by global batch and number of GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRates {
    /// Model, from the file name.
    pub model: String,
    /// GPU type as in windows: `a100`.
    pub gpu_type: String,
    /// By batch and GPUs, ascending, each pair once.
    pub rates: Vec<Rate>,
}

/// Step rate of one configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Global batch size.
    pub batch: u32,
    /// Number of GPUs.
    pub gpus: u32,
    /// Steps/s.
    pub steps_per_s: f64,
}

/// Time and energy of a complete step of one model under each clock.
#[derive(Clone, Debug, PartialEq)]
pub struct ClockSweep {
    /// Model, from the file name.
    pub model: String,
    /// GPU type as in windows: `a100`.
    pub gpu_type: String,
    /// Ascending.
    pub clocks: Vec<AtClock>,
}

/// Totals over all stages and both directions at one clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtClock {
    /// Locked clock, MHz.
    pub mhz: u32,
    /// Time, s.
    pub time_s: f64,
    /// Energy, J.
    pub energy_j: f64,
}

/// Step rates by batch and GPUs; `None` for a file of another format.
#[must_use]
pub fn model_rates(source: &Source) -> Option<(ModelRates, Vec<Problem>)> {
    let columns = table::columns(&source.text);
    if Format::of(&columns) != Some(Format::Throughputs) {
        return None;
    }
    let mut table = Table::read(&source.file, &source.text);
    let context = Context { file: &source.file, place: &source.place };
    let read = throughputs::read(&mut table, &context, &columns);
    let rate = |r: &super::reader::Reading| Rate {
        batch: r.batch,
        gpus: r.gpus,
        steps_per_s: 1.0 / r.time_s,
    };
    let rates = read.readings.iter().map(rate).collect();
    let rates = ModelRates { model: read.model, gpu_type: read.file_gpu.gpu_type, rates };
    Some((rates, table.into_problems()))
}

/// Time and energy by clock; `None` for a file of another format. Clocks without a measurement of every
/// stage in both directions are left out.
#[must_use]
pub fn clock_sweep(source: &Source) -> Option<(ClockSweep, Vec<Problem>)> {
    if Format::of(&table::columns(&source.text)) != Some(Format::Stages) {
        return None;
    }
    let mut table = Table::read(&source.file, &source.text);
    let context = Context { file: &source.file, place: &source.place };
    let read = stages::read(&mut table, &context);
    let mut clocks: Vec<AtClock> = Vec::new();
    for at in read.jobs.first().map_or(&[][..], |job| &job.readings) {
        let there = |job: &stages::StageJob| job.readings.iter().find(|r| r.mhz == at.mhz).copied();
        let Some(all) = read.jobs.iter().map(there).collect::<Option<Vec<_>>>() else { continue };
        clocks.push(AtClock {
            mhz: at.mhz,
            time_s: all.iter().map(|r| r.time_s).sum(),
            energy_j: all.iter().map(|r| r.energy_j).sum(),
        });
    }
    let model = names::stem(context.place).split('+').next().unwrap_or_default().to_owned();
    Some((ClockSweep { model, gpu_type: read.file_gpu.gpu_type, clocks }, table.into_problems()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(place: &str, text: &str) -> Source {
        Source { file: place.to_owned(), place: place.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn rates_have_model_and_gpu_type() {
        let text = "global_batch_size,1,2\n64,4.0,\n32,8.0,10.0\n";
        let (rates, problems) = model_rates(&source("throughputs_A100/bert.csv", text)).unwrap();
        assert_eq!((rates.model.as_str(), rates.gpu_type.as_str()), ("bert", "a100"));
        let flat: Vec<_> = rates.rates.iter().map(|r| (r.batch, r.gpus, r.steps_per_s)).collect();
        assert_eq!(flat, [(32, 1, 8.0), (32, 2, 10.0), (64, 1, 4.0)]);
        assert!(problems.is_empty(), "{problems:?}");
        let (_, problems) =
            model_rates(&source("throughputs_A100/bert.csv", "global_batch_size,1\n64,-1\n"))
                .unwrap();
        assert_eq!(problems.len(), 1);
        assert!(model_rates(&source("x.csv", "a,b\n1,2\n")).is_none());
    }

    #[test]
    fn clock_sweep_adds_stages_and_leaves_out_incomplete_clocks() {
        let text = "stage,instruction,frequency,time,energy\n\
                    0,forward,1410,1,400\n0,backward,1410,2,800\n\
                    0,forward,1080,1.5,300\n0,backward,1080,2.5,600\n0,forward,870,2,350\n";
        let (sweep, _) = clock_sweep(&source("p/bloom+a100_sxm_bf16.csv", text)).unwrap();
        assert_eq!((sweep.model.as_str(), sweep.gpu_type.as_str()), ("bloom", "a100"));
        let flat: Vec<_> = sweep.clocks.iter().map(|c| (c.mhz, c.time_s, c.energy_j)).collect();
        assert_eq!(flat, [(1080, 4.0, 900.0), (1410, 3.0, 1200.0)]);
        assert!(clock_sweep(&source("x.csv", "global_batch_size,1\n64,1\n")).is_none());
    }
}
