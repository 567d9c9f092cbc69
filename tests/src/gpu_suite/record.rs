//! The record: a page for readers, tables for the catalog, and all samples.
//!
//! Three files, `gpu-<name>-<date>.md`, `.toml` and `-samples.csv`. Units are those of
//! `sim/world/catalog`: watts, steps per second, shares of 1. `speed` is that of `family` co-located
//! with `neighbour`, relative to exclusive use. Existing files are never overwritten.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use wattle_common::Timestamp;
use wattle_gpu::{GpuInfo, GpuReading};

use super::Plan;
use super::run::{JobMeasurement, Run};

/// The measured machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Name of the GPU reported by NVML.
    pub gpu_name: String,
    /// GPU type.
    pub gpu_type: String,
    /// Default cap, watts.
    pub cap_default_w: Option<f64>,
    /// Driver version, if known.
    pub driver: Option<String>,
    /// CPU model, if known.
    pub processor: Option<String>,
}

impl Machine {
    pub(super) fn of(info: &GpuInfo) -> Self {
        let first = |path: &str, starts: &str| {
            let text = std::fs::read_to_string(path).ok()?;
            let line = text.lines().find(|line| line.starts_with(starts))?;
            Some(line.split_once(": ").map_or(line, |(_, value)| value).trim().to_owned())
        };
        Self {
            gpu_name: info.name.clone(),
            gpu_type: info.gpu_type.clone(),
            cap_default_w: info.cap_default.map(wattle_common::Power::as_w),
            driver: first("/proc/driver/nvidia/version", "NVRM"),
            processor: first("/proc/cpuinfo", "model name"),
        }
    }
}

/// Results of a plan.
#[derive(Clone, Debug)]
pub struct Record {
    /// The machine.
    pub machine: Machine,
    /// The training command.
    pub train: String,
    /// Mean idle power before the first run, watts.
    pub idle_w: Option<f64>,
    /// Other processes on the GPU at that time.
    pub other_processes: usize,
    /// All runs, exclusive ones first.
    pub runs: Vec<Run>,
}

/// The family of a workload: the part of its name before the batch size.
#[must_use]
pub fn family(model: &str) -> &str {
    let is_batch = |token: &str| {
        let digits = token.strip_prefix("bs").or_else(|| token.strip_prefix('b'));
        digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
    };
    let batch = model.split('-').rfind(|token| is_batch(token));
    let at = batch.and_then(|token| model.rfind(&format!("-{token}")));
    at.map_or(model, |at| &model[..at])
}

fn decimal(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn percent(of: Option<u8>) -> Option<f64> {
    of.map(f64::from)
}

impl Record {
    pub(super) fn new(machine: Machine, plan: &Plan, idle: &[(Timestamp, GpuReading)]) -> Self {
        let watts: Vec<f64> = idle.iter().filter_map(|(_, r)| Some(r.power?.as_w())).collect();
        Self {
            machine,
            train: plan.train.join(" "),
            idle_w: (!watts.is_empty()).then(|| watts.iter().sum::<f64>() / watts.len() as f64),
            other_processes: idle
                .last()
                .and_then(|(_, r)| Some(r.processes.as_ref()?.len()))
                .unwrap_or(0),
            runs: Vec::new(),
        }
    }

    fn exclusive(&self, model: &str) -> Option<&Run> {
        let mine = |run: &&Run| run.jobs.len() == 1 && run.jobs[0].model == model;
        self.runs.iter().find(mine).filter(|run| run.failed.is_none())
    }

    /// Speed of a co-located job relative to exclusive use.
    #[must_use]
    pub fn speed(&self, job: &JobMeasurement) -> Option<f64> {
        Some(job.rate?.per_s / self.exclusive(&job.model)?.jobs[0].rate?.per_s)
    }

    /// Energy of a pair relative to the same steps with exclusive use.
    #[must_use]
    pub fn energy_ratio(&self, run: &Run) -> Option<f64> {
        let one = |job: &JobMeasurement| {
            let exclusive = self.exclusive(&job.model)?;
            Some(job.rate?.per_s * exclusive.power_w()? / exclusive.jobs[0].rate?.per_s)
        };
        Some(run.power_w()? / run.jobs.iter().map(one).sum::<Option<f64>>()?)
    }

    fn page(&self, date: &str) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        let m = &self.machine;
        writeln!(out, "# {} ({}), {date}\n", m.gpu_name, m.gpu_type)?;
        writeln!(out, "Measured by `wattle-gpu-suite`, which changes no settings of the GPU.")?;
        writeln!(out, "Training command: `{}`.", self.train)?;
        let unknown = || "unknown".to_owned();
        writeln!(out, "Driver: {}.", m.driver.clone().unwrap_or_else(unknown))?;
        writeln!(out, "Processor: {}.", m.processor.clone().unwrap_or_else(unknown))?;
        writeln!(
            out,
            "Default cap {} W; idle {} W; other processes on the GPU at the start: {}.\n",
            decimal(m.cap_default_w, 0),
            decimal(self.idle_w, 1),
            self.other_processes
        )?;
        writeln!(out, "## Exclusive use\n")?;
        writeln!(
            out,
            "| model | steps/s | error | GPU W | J/step | busy % | memory busy % | MHz | MiB |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
        for run in self.runs.iter().filter(|run| run.jobs.len() == 1) {
            self.exclusive_row(&mut out, run)?;
        }
        writeln!(out, "\n## Sensors and profiler\n")?;
        writeln!(
            out,
            "counter/integral: energy by the GPU's counter over that by integration of its power readings. \
             % of a core: CPU time of the profiler, including the sampler and this suite. \
             inferred/reported: the rate inferred from power and utilisation over the reported rate \
             (1 if a detected iteration is a step).\n"
        )?;
        writeln!(
            out,
            "| run | samples | s | counter/integral | % of a core | inferred/reported |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|")?;
        for run in self.runs.iter().filter(|run| run.failed.is_none()) {
            let ratio = run.counted_j.zip(run.integrated_j).map(|(a, b)| a / b);
            let inferred = match (&run.period, run.jobs[0].rate) {
                (Some(Ok(period)), Some(rate)) => {
                    format!(
                        "{:.3} (period {:.3} s, error {:.1} %)",
                        1.0 / period.period_s / rate.per_s,
                        period.period_s,
                        100.0 * period.error
                    )
                }
                (Some(Err(refusal)), _) => format!("refused: {refusal}"),
                _ => "-".to_owned(),
            };
            writeln!(
                out,
                "| {} | {} | {:.1} | {} | {} | {inferred} |",
                name(run),
                run.samples.len(),
                run.span_s,
                decimal(ratio, 4),
                decimal(run.overhead.map(|share| 100.0 * share), 2)
            )?;
        }
        self.pairs(&mut out)?;
        let failed: Vec<&Run> = self.runs.iter().filter(|run| run.failed.is_some()).collect();
        if !failed.is_empty() {
            writeln!(out, "\n## Failed runs\n")?;
            for run in failed {
                let cause = run.failed.as_deref().unwrap_or_default();
                writeln!(out, "* {}: {}", name(run), cause.replace('\n', " "))?;
            }
        }
        Ok(out)
    }

    fn exclusive_row(&self, out: &mut String, run: &Run) -> std::fmt::Result {
        let job = &run.jobs[0];
        let rate = job.rate.map(|rate| rate.per_s);
        let mhz = run.mean(|r| Some(f64::from(r.clock?.as_mhz())));
        writeln!(
            out,
            "| {} | {} | {} % | {} | {} | {} | {} | {} | {} |",
            job.model,
            decimal(rate, 3),
            decimal(job.rate.map(|rate| 100.0 * rate.error), 1),
            decimal(run.power_w(), 1),
            decimal(run.power_w().zip(rate).map(|(watts, rate)| watts / rate), 3),
            decimal(run.mean(|r| percent(r.utilization_gpu_percent)), 1),
            decimal(run.mean(|r| percent(r.utilization_memory_percent)), 1),
            decimal(mhz, 0),
            job.memory_mib.map_or_else(|| "-".to_owned(), |mib| mib.to_string())
        )
    }

    fn pairs(&self, out: &mut String) -> std::fmt::Result {
        let mut pairs = self.runs.iter().filter(|run| run.jobs.len() == 2).peekable();
        if pairs.peek().is_none() {
            return Ok(());
        }
        writeln!(out, "\n## Co-located pairs\n")?;
        writeln!(
            out,
            "Speed is relative to exclusive use. J/step is based on the GPU power that the profiler \
             attributes to the job. Energy ratio: energy of both co-located over that of the same steps \
             with exclusive use.\n"
        )?;
        writeln!(
            out,
            "| first | second | speed | speed | sum | GPU W | busy % | J/step | J/step | energy ratio |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|---|")?;
        for run in pairs.filter(|run| run.failed.is_none()) {
            let [one, other] = [&run.jobs[0], &run.jobs[1]];
            let [fast, slow] = [self.speed(one), self.speed(other)];
            let step = |job: &JobMeasurement| Some(job.power_w? / job.rate?.per_s);
            writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                one.model,
                other.model,
                decimal(fast, 3),
                decimal(slow, 3),
                decimal(fast.zip(slow).map(|(a, b)| a + b), 3),
                decimal(run.power_w(), 1),
                decimal(run.mean(|r| percent(r.utilization_gpu_percent)), 1),
                decimal(step(one), 3),
                decimal(step(other), 3),
                decimal(self.energy_ratio(run), 3)
            )?;
        }
        Ok(())
    }

    /// The catalog tables.
    fn tables(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        let gpu = &self.machine.gpu_type;
        writeln!(out, "# GPU: {}; idle {} W.", self.machine.gpu_name, decimal(self.idle_w, 1))?;
        for run in self.runs.iter().filter(|run| run.failed.is_none()) {
            let (Some(watts), [one, rest @ ..]) = (run.power_w(), run.jobs.as_slice()) else {
                continue;
            };
            let Some(other) = rest.first() else {
                let Some(rate) = one.rate else { continue };
                writeln!(out, "\n[[exclusive]]\ngpu = {gpu:?}\nworkload = {:?}", one.model)?;
                writeln!(out, "steps_per_s = {:.4}\npower_w = {watts:.1}", rate.per_s)?;
                let shares = [
                    ("busy", run.mean(|r| percent(r.utilization_gpu_percent))),
                    ("memory_busy", run.mean(|r| percent(r.utilization_memory_percent))),
                ];
                for (key, share) in shares {
                    if let Some(share) = share {
                        writeln!(out, "{key} = {:.3}", share / 100.0)?;
                    }
                }
                if let Some(mib) = one.memory_mib {
                    writeln!(out, "memory_mib = {mib}")?;
                }
                if let Some(batch) = one.batch {
                    writeln!(out, "batch_size = {batch}")?;
                }
                continue;
            };
            for (mine, neighbour) in [(one, other), (other, one)] {
                let Some(speed) = self.speed(mine) else { continue };
                writeln!(out, "\n[[pair]]\ngpu = {gpu:?}\nfamily = {:?}", family(&mine.model))?;
                writeln!(out, "neighbour = {:?}\nspeed = {speed:.3}", family(&neighbour.model))?;
                writeln!(out, "workload = {:?}", mine.model)?;
                writeln!(
                    out,
                    "neighbour_workload = {:?}\ngpu_power_w = {watts:.1}",
                    neighbour.model
                )?;
            }
        }
        Ok(out)
    }

    /// All samples of all runs.
    fn samples(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::from(
            "run,at_s,power_mw,energy_mj_counter,utilization_gpu_percent,\
             utilization_memory_percent,clock_mhz,memory_used_mib\n",
        );
        fn cell<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(String::new, |value| value.to_string())
        }
        for run in &self.runs {
            let Some((first, _)) = run.samples.first() else { continue };
            for (at, reading) in &run.samples {
                writeln!(
                    out,
                    "{},{:.4},{},{},{},{},{},{}",
                    name(run),
                    at.since(*first).as_secs_f64(),
                    cell(reading.power.map(wattle_common::Power::as_mw)),
                    cell(reading.energy_total.map(wattle_common::units::Energy::as_mj)),
                    cell(reading.utilization_gpu_percent),
                    cell(reading.utilization_memory_percent),
                    cell(reading.clock.map(wattle_common::Frequency::as_mhz)),
                    cell(reading.memory_used_mib)
                )?;
            }
        }
        Ok(out)
    }
}

fn name(run: &Run) -> String {
    run.jobs.iter().map(|job| job.model.as_str()).collect::<Vec<_>>().join(" + ")
}

/// The record's files, created before the measurements.
#[derive(Debug)]
pub(super) struct Files {
    date: String,
    page: (PathBuf, File),
    tables: (PathBuf, File),
    samples: (PathBuf, File),
}

impl Files {
    /// Creates empty files.
    pub(super) fn create(out: &Path, name: &str, now: Timestamp) -> Result<Self> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(fits) {
            bail!("invalid --name {name}: expected letters, digits, `-`, `_` and `.`");
        }
        std::fs::create_dir_all(out)
            .with_context(|| format!("cannot create the directory {}", out.display()))?;
        let at = jiff::Timestamp::from_microsecond(i64::try_from(now.as_us())?)?;
        let date = at.strftime("%Y-%m-%d").to_string();
        let paths = [".md", ".toml", "-samples.csv"]
            .map(|ending| out.join(format!("gpu-{name}-{date}{ending}")));
        if let Some(existing) = paths.iter().find(|path| path.exists()) {
            bail!(
                "{} exists, and records are never overwritten; choose another --name or --out",
                existing.display()
            );
        }
        let create = |path: PathBuf| -> Result<(PathBuf, File)> {
            let file = File::create_new(&path);
            let file = file.with_context(|| format!("cannot create {}", path.display()))?;
            Ok((path, file))
        };
        let [page, tables, samples] = paths;
        Ok(Self { date, page: create(page)?, tables: create(tables)?, samples: create(samples)? })
    }

    pub(super) fn write(self, record: &Record) -> Result<Vec<PathBuf>> {
        let texts = [record.page(&self.date)?, record.tables()?, record.samples()?];
        let mut written = Vec::new();
        for ((path, mut file), text) in
            [self.page, self.tables, self.samples].into_iter().zip(texts)
        {
            file.write_all(text.as_bytes())
                .with_context(|| format!("cannot write {}", path.display()))?;
            written.push(path);
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_is_the_name_before_the_batch_size() {
        assert_eq!(family("ResNet-18-b16"), "ResNet-18");
        assert_eq!(family("cifar100-shufflenetv2-b1024-adadelta"), "cifar100-shufflenetv2");
        assert_eq!(family("lm-bs20"), "lm");
        assert_eq!(family("A3C"), "A3C");
        assert_eq!(family("eaco-base"), "eaco-base");
    }

    #[test]
    fn existing_records_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::from_s(1_790_000_000);
        let files = Files::create(folder.path(), "h200", now).unwrap();
        assert!(files.page.0.ends_with("gpu-h200-2026-09-21.md"), "{:?}", files.page.0);
        let error = Files::create(folder.path(), "h200", now).unwrap_err().to_string();
        assert!(error.contains("never overwritten"), "{error}");
        assert!(Files::create(folder.path(), "../x", now).is_err());
    }
}
