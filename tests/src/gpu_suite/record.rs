//! The record: a page for people, tables for the catalog, and every sample as it was read.
//!
//! Three files, `gpu-<name>-<date>.md`, `.toml` and `-samples.csv`. Units are those of
//! `sim/world/catalog`: watts, steps a second, shares of 1; `speed` is that of `family` beside `beside`,
//! relative to alone. None is ever written over a file that is there.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use wattle_common::Timestamp;
use wattle_gpu::{GpuInfo, GpuReading};

use super::Plan;
use super::run::{JobSeen, Run};

/// What was measured on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The card's name, as NVML gives it.
    pub card: String,
    /// Its kind.
    pub kind: String,
    /// Its default cap, watts.
    pub cap_default_w: Option<f64>,
    /// The driver's word of its version, where the machine tells it.
    pub driver: Option<String>,
    /// The processor.
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
            card: info.name.clone(),
            kind: info.gpu_type.clone(),
            cap_default_w: info.cap_default.map(wattle_common::Power::as_w),
            driver: first("/proc/driver/nvidia/version", "NVRM"),
            processor: first("/proc/cpuinfo", "model name"),
        }
    }
}

/// What came of a plan.
#[derive(Clone, Debug)]
pub struct Record {
    /// Where.
    pub machine: Machine,
    /// The training command.
    pub train: String,
    /// Mean power of the card before anything ran, watts.
    pub idle_w: Option<f64>,
    /// Processes of others that were on the card then.
    pub strangers: usize,
    /// Every run, single ones first.
    pub runs: Vec<Run>,
}

/// The family of a workload's name: what stands before its batch.
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

fn shown(value: Option<f64>, digits: usize) -> String {
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
            strangers: idle
                .last()
                .and_then(|(_, r)| Some(r.processes.as_ref()?.len()))
                .unwrap_or(0),
            runs: Vec::new(),
        }
    }

    fn alone(&self, model: &str) -> Option<&Run> {
        let mine = |run: &&Run| run.jobs.len() == 1 && run.jobs[0].model == model;
        self.runs.iter().find(mine).filter(|run| run.failed.is_none())
    }

    /// Speed of a job of a pair, relative to alone.
    #[must_use]
    pub fn speed(&self, job: &JobSeen) -> Option<f64> {
        Some(job.rate?.per_s / self.alone(&job.model)?.jobs[0].rate?.per_s)
    }

    /// Energy of a pair by that of the same steps one after the other.
    #[must_use]
    pub fn energy_ratio(&self, run: &Run) -> Option<f64> {
        let one = |job: &JobSeen| {
            let alone = self.alone(&job.model)?;
            Some(job.rate?.per_s * alone.power_w()? / alone.jobs[0].rate?.per_s)
        };
        Some(run.power_w()? / run.jobs.iter().map(one).sum::<Option<f64>>()?)
    }

    fn page(&self, date: &str) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        let m = &self.machine;
        writeln!(out, "# {} ({}), {date}\n", m.card, m.kind)?;
        writeln!(out, "Measured by `wattle-gpu-suite`, which only reads the card.")?;
        writeln!(out, "Training command: `{}`.", self.train)?;
        let unknown = || "not told".to_owned();
        writeln!(out, "Driver: {}.", m.driver.clone().unwrap_or_else(unknown))?;
        writeln!(out, "Processor: {}.", m.processor.clone().unwrap_or_else(unknown))?;
        writeln!(
            out,
            "Default cap {} W; idle {} W; processes of others on the card at the start: {}.\n",
            shown(m.cap_default_w, 0),
            shown(self.idle_w, 1),
            self.strangers
        )?;
        writeln!(out, "## Each alone\n")?;
        writeln!(
            out,
            "| model | steps/s | its error | card W | J a step | busy % | memory busy % | MHz | MiB |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
        for run in self.runs.iter().filter(|run| run.jobs.len() == 1) {
            self.line_alone(&mut out, run)?;
        }
        writeln!(out, "\n## The sensors, and the profiler\n")?;
        writeln!(
            out,
            "Energy by the card's counter over that by integrating its power readings; processor time of \
             the profiler, sampler and this suite included; the rate inferred from power and utilisation \
             over the reported one (1 where an iteration seen is a step).\n"
        )?;
        writeln!(
            out,
            "| run | samples | s | counter/integral | % of a core | inferred/reported |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|")?;
        for run in self.runs.iter().filter(|run| run.failed.is_none()) {
            let ratio = run.counted_j.zip(run.integrated_j).map(|(a, b)| a / b);
            let inferred = match (&run.rhythm, run.jobs[0].rate) {
                (Some(Ok(rhythm)), Some(rate)) => {
                    format!(
                        "{:.3} (period {:.3} s, error {:.1} %)",
                        1.0 / rhythm.period_s / rate.per_s,
                        rhythm.period_s,
                        100.0 * rhythm.error
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
                shown(ratio, 4),
                shown(run.overhead.map(|share| 100.0 * share), 2)
            )?;
        }
        self.pairs(&mut out)?;
        let failed: Vec<&Run> = self.runs.iter().filter(|run| run.failed.is_some()).collect();
        if !failed.is_empty() {
            writeln!(out, "\n## What did not run\n")?;
            for run in failed {
                let why = run.failed.as_deref().unwrap_or_default();
                writeln!(out, "* {}: {}", name(run), why.replace('\n', " "))?;
            }
        }
        Ok(out)
    }

    fn line_alone(&self, out: &mut String, run: &Run) -> std::fmt::Result {
        let job = &run.jobs[0];
        let rate = job.rate.map(|rate| rate.per_s);
        let mhz = run.mean(|r| Some(f64::from(r.clock?.as_mhz())));
        writeln!(
            out,
            "| {} | {} | {} % | {} | {} | {} | {} | {} | {} |",
            job.model,
            shown(rate, 3),
            shown(job.rate.map(|rate| 100.0 * rate.error), 1),
            shown(run.power_w(), 1),
            shown(run.power_w().zip(rate).map(|(watts, rate)| watts / rate), 3),
            shown(run.mean(|r| percent(r.utilization_gpu_percent)), 1),
            shown(run.mean(|r| percent(r.utilization_memory_percent)), 1),
            shown(mhz, 0),
            job.memory_mib.map_or_else(|| "-".to_owned(), |mib| mib.to_string())
        )
    }

    fn pairs(&self, out: &mut String) -> std::fmt::Result {
        let mut pairs = self.runs.iter().filter(|run| run.jobs.len() == 2).peekable();
        if pairs.peek().is_none() {
            return Ok(());
        }
        writeln!(out, "\n## Two on the card\n")?;
        writeln!(
            out,
            "Speed is relative to alone. J a step is of the part of the card's power that the profiler \
             gives the job. Energy ratio: that of both together by that of the same steps one after the \
             other.\n"
        )?;
        writeln!(
            out,
            "| one | other | speed | speed | sum | card W | busy % | J a step | J a step | energy ratio |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|---|")?;
        for run in pairs.filter(|run| run.failed.is_none()) {
            let [one, other] = [&run.jobs[0], &run.jobs[1]];
            let [fast, slow] = [self.speed(one), self.speed(other)];
            let step = |job: &JobSeen| Some(job.power_w? / job.rate?.per_s);
            writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                one.model,
                other.model,
                shown(fast, 3),
                shown(slow, 3),
                shown(fast.zip(slow).map(|(a, b)| a + b), 3),
                shown(run.power_w(), 1),
                shown(run.mean(|r| percent(r.utilization_gpu_percent)), 1),
                shown(step(one), 3),
                shown(step(other), 3),
                shown(self.energy_ratio(run), 3)
            )?;
        }
        Ok(())
    }

    /// The same for the catalog.
    fn tables(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        let gpu = &self.machine.kind;
        writeln!(out, "# Card: {}; idle {} W.", self.machine.card, shown(self.idle_w, 1))?;
        for run in self.runs.iter().filter(|run| run.failed.is_none()) {
            let (Some(watts), [one, rest @ ..]) = (run.power_w(), run.jobs.as_slice()) else {
                continue;
            };
            let Some(other) = rest.first() else {
                let Some(rate) = one.rate else { continue };
                writeln!(out, "\n[[solo]]\ngpu = {gpu:?}\nworkload = {:?}", one.model)?;
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
            for (mine, beside) in [(one, other), (other, one)] {
                let Some(speed) = self.speed(mine) else { continue };
                writeln!(out, "\n[[pair]]\ngpu = {gpu:?}\nfamily = {:?}", family(&mine.model))?;
                writeln!(out, "beside = {:?}\nspeed = {speed:.3}", family(&beside.model))?;
                writeln!(out, "workload = {:?}", mine.model)?;
                writeln!(out, "workload_beside = {:?}\ncard_power_w = {watts:.1}", beside.model)?;
            }
        }
        Ok(out)
    }

    /// Every sample of every run.
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

/// The record's files, kept free from the beginning.
#[derive(Debug)]
pub(super) struct Files {
    date: String,
    page: (PathBuf, File),
    tables: (PathBuf, File),
    samples: (PathBuf, File),
}

impl Files {
    /// Makes them, empty.
    pub(super) fn claim(out: &Path, name: &str, now: Timestamp) -> Result<Self> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(fits) {
            bail!(
                "--name {name}: letters, digits, `-`, `_` and `.` only; it becomes a file's name"
            );
        }
        std::fs::create_dir_all(out)
            .with_context(|| format!("cannot make the folder {}", out.display()))?;
        let at = jiff::Timestamp::from_microsecond(i64::try_from(now.as_us())?)?;
        let date = at.strftime("%Y-%m-%d").to_string();
        let paths = [".md", ".toml", "-samples.csv"]
            .map(|ending| out.join(format!("gpu-{name}-{date}{ending}")));
        if let Some(there) = paths.iter().find(|path| path.exists()) {
            bail!(
                "{} is there already, and a record is never written over; name this one otherwise \
                 (--name), or another folder (--out)",
                there.display()
            );
        }
        let make = |path: PathBuf| -> Result<(PathBuf, File)> {
            let file = File::create_new(&path);
            let file = file.with_context(|| format!("cannot make {}", path.display()))?;
            Ok((path, file))
        };
        let [page, tables, samples] = paths;
        Ok(Self { date, page: make(page)?, tables: make(tables)?, samples: make(samples)? })
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
    fn a_family_is_what_stands_before_the_batch() {
        assert_eq!(family("ResNet-18-b16"), "ResNet-18");
        assert_eq!(family("cifar100-shufflenetv2-b1024-adadelta"), "cifar100-shufflenetv2");
        assert_eq!(family("lm-bs20"), "lm");
        assert_eq!(family("A3C"), "A3C");
        assert_eq!(family("eaco-base"), "eaco-base");
    }

    #[test]
    fn a_record_that_is_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::from_s(1_790_000_000);
        let files = Files::claim(folder.path(), "h200", now).unwrap();
        assert!(files.page.0.ends_with("gpu-h200-2026-09-21.md"), "{:?}", files.page.0);
        let error = Files::claim(folder.path(), "h200", now).unwrap_err().to_string();
        assert!(error.contains("never written over"), "{error}");
        assert!(Files::claim(folder.path(), "../x", now).is_err());
    }
}
