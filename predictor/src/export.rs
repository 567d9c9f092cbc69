//! Export of the history as CSV, for spreadsheets and other programs.
//!
//! One row for each job and observed configuration: a shape (GPUs, nodes, batch) on exclusive GPUs at
//! the default setting, a cap or a clock, or a set of neighbours. Values of the job are repeated in each
//! of its rows. An empty field is unknown. Ids contain no commas or quotation marks, so no field is
//! quoted.
//!
//! Bounded like the history: [`crate::history::JOBS_MAX`] jobs of a class, each with at most
//! [`crate::history::LEVELS_MAX`] shapes, [`crate::history::SETTINGS_MAX`] caps and clocks and
//! [`crate::history::SETS_MAX`] sets of neighbours.

use std::fmt::Write as _;

use wattle_common::id::{PredictorId, WorkloadId};

use crate::history::{AtSetting, Class, Level, SharedSet, Summary};
use crate::statistics::regression::Gaussian;

/// A column with a value of the job: name and value.
type Column = (&'static str, fn(&Summary) -> Field);
/// Value of a field.
type Field = Option<f64>;

/// Standard deviation of a logarithm, as a relative one in per cent.
fn percent(of: Option<Gaussian>) -> Field {
    of.map(|stored| 100.0 * stored.sd)
}

fn natural(of: Option<Gaussian>) -> Field {
    of.map(|stored| stored.mean.exp())
}

/// Columns with values of the job.
const JOB_COLUMNS: [Column; 6] = [
    ("gpu_power_w", |s| natural(s.ln_power)),
    ("gpu_power_sd_percent", |s| percent(s.ln_power)),
    ("utilization_gpu_percent", |s| s.busy.map(|busy| 100.0 * busy.mean)),
    ("utilization_gpu_percent_sd", |s| s.busy.map(|busy| 100.0 * busy.sd)),
    ("utilization_memory_percent", |s| s.memory_busy.map(|busy| 100.0 * busy)),
    ("memory_mib_max", |s| s.memory_mib.map(|mib| mib as f64)),
];

/// Columns that identify the job and the configuration.
const KEY_COLUMNS: &str = "predictor,gpu_type,class,job,updated_at_us,gpus,nodes,global_batch,cap_w,clock_mhz_max,neighbours";
/// Measured columns, each followed by its relative standard deviation.
const MEASURED_COLUMNS: [&str; 4] =
    ["steps_per_s", "slowdown", "power_ratio_to_default", "power_ratio_to_tenants"];

/// Measurements in one configuration, in the order of [`MEASURED_COLUMNS`].
type Measured = [Option<Gaussian>; 4];

/// Header line: column names with units. Neighbours are joined by `+`. `slowdown` is the speed on
/// exclusive GPUs at the default setting over the measured speed. `power_ratio_to_default` is the power
/// over that at the default setting. `power_ratio_to_tenants` is a shared GPU's power above idle over
/// the sum of its tenants' exclusive power above idle.
#[must_use]
pub fn header() -> String {
    let mut line = KEY_COLUMNS.to_owned();
    for name in MEASURED_COLUMNS {
        let _ = write!(line, ",{name},{name}_sd_percent");
    }
    for (name, _) in JOB_COLUMNS {
        let _ = write!(line, ",{name}");
    }
    line
}

/// Predictor, GPU type and class of a key of the bucket `knowledge`; `None` unless it is of a class.
#[must_use]
pub fn parse_key(key: &str) -> Option<(PredictorId, &str, WorkloadId)> {
    let mut words = key.split('.');
    let predictor = PredictorId::new(words.next()?).ok()?;
    let (Some("class"), Some(gpu_type), Some(class), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return None;
    };
    Some((predictor, gpu_type, WorkloadId::new(class).ok()?))
}

/// Rows of a class.
#[must_use]
pub fn rows(
    predictor: &PredictorId,
    gpu_type: &str,
    class: &WorkloadId,
    kept: &Class,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (job, summary) in &kept.jobs {
        let updated_at = kept.updated_at_us.as_us();
        let mut push = |(at, seen): (String, Measured)| {
            let mut line = format!("{predictor},{gpu_type},{class},{job},{updated_at},{at}");
            for stored in seen {
                put(&mut line, natural(stored));
                put(&mut line, percent(stored));
            }
            for (_, of) in JOB_COLUMNS {
                put(&mut line, of(summary));
            }
            lines.push(line);
        };
        summary.levels.iter().map(level_fields).for_each(&mut push);
        summary.settings.iter().map(setting_fields).for_each(&mut push);
        summary.shared.iter().map(colocation_fields).for_each(&mut push);
        if summary.levels.len() + summary.settings.len() + summary.shared.len() == 0 {
            push((",,,,,".to_owned(), [None; 4]));
        }
    }
    lines
}

fn level_fields(level: &Level) -> (String, Measured) {
    let batch = level.global_batch.map(|batch| batch.to_string()).unwrap_or_default();
    (format!("{},{},{batch},,,", level.gpus, level.nodes), [Some(level.ln_rate), None, None, None])
}

fn setting_fields(at: &AtSetting) -> (String, Measured) {
    let mut text = ",,".to_owned();
    put(&mut text, at.setting.cap_w);
    put(&mut text, at.setting.clock_mhz_max);
    text.push(',');
    (text, [None, at.slow, at.power, None])
}

fn colocation_fields(set: &SharedSet) -> (String, Measured) {
    let names: Vec<&str> = set.neighbours.iter().map(WorkloadId::as_str).collect();
    (format!(",,,,,{}", names.join("+")), [None, set.slow, None, set.power])
}

/// Appends a comma and the value to six significant digits.
fn put(line: &mut String, field: Field) {
    line.push(',');
    let Some(value) = field.filter(|value| value.is_finite()) else { return };
    let digits = if value.abs() > 1e-12 { 5 - value.abs().log10().floor() as i32 } else { 0 };
    let _ = write!(line, "{:.*}", usize::try_from(digits.clamp(0, 12)).unwrap_or(0), value);
    if digits > 0 {
        while line.ends_with('0') {
            line.pop();
        }
        if line.ends_with('.') {
            line.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::colocation::{ColocationHistory, PARTNERS_MAX};
    use crate::history::{JOBS_MAX, LEVELS_MAX, PowerLevel, SETS_MAX, SETTINGS_MAX};
    use crate::model::throughput::{Constants, FormError, POOLED};
    use wattle_common::Timestamp;
    use wattle_common::id::JobId;
    use wattle_common::observation::Setting;

    fn stored(mean: f64, sd: f64) -> Option<Gaussian> {
        Some(Gaussian { mean, sd })
    }

    fn id(text: &str) -> WorkloadId {
        WorkloadId::new(text).unwrap()
    }

    fn class(jobs: Vec<Summary>) -> Class {
        let id = |i| JobId::new(&format!("j{i}")).unwrap();
        let jobs = jobs.into_iter().enumerate().map(|(i, s)| (id(i), s)).collect();
        Class { updated_at_us: Timestamp::from_s(7), jobs, ..Class::default() }
    }

    fn lines(kept: &Class) -> Vec<Vec<String>> {
        let name = PredictorId::new("physical").unwrap();
        let rows = rows(&name, "v100", &id("a"), kept);
        rows.iter().map(|r| r.split(',').map(str::to_owned).collect()).collect()
    }

    #[test]
    fn each_configuration_is_a_row() {
        let ten = Gaussian { mean: 10f64.ln(), sd: 0.02 };
        let summary = Summary {
            levels: vec![Level { gpus: 2, nodes: 1, global_batch: Some(512), ln_rate: ten }],
            busy: stored(0.5, 0.03),
            memory_mib: Some(9_000),
            ln_power: stored(200f64.ln(), 0.04),
            shared: vec![SharedSet {
                neighbours: vec![id("b"), id("c")],
                slow: stored(1.25f64.ln(), 0.05),
                power: None,
            }],
            settings: vec![AtSetting {
                setting: Setting { cap_w: Some(150.0), clock_mhz_max: None },
                ln_power: None,
                slow: stored(1.1f64.ln(), 0.02),
                power: stored(0.75f64.ln(), 0.01),
            }],
            ..Summary::default()
        };
        let names: Vec<String> = header().split(',').map(str::to_owned).collect();
        let lines = lines(&class(vec![summary, Summary::default()]));
        assert_eq!(lines.len(), 4);
        let field = |line: usize, name: &str| {
            let at = names.iter().position(|n| n == name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(lines[line].len(), names.len(), "{:?}", lines[line]);
            lines[line][at].clone()
        };
        for (line, name, value) in [
            (0, "class", "a"),
            (0, "updated_at_us", "7000000"),
            (0, "gpus", "2"),
            (0, "global_batch", "512"),
            (0, "neighbours", ""),
            (0, "steps_per_s", "10"),
            (0, "steps_per_s_sd_percent", "2"),
            (0, "gpu_power_w", "200"),
            (0, "gpu_power_sd_percent", "4"),
            (0, "utilization_gpu_percent", "50"),
            (0, "memory_mib_max", "9000"),
            (0, "cap_w", ""),
            (1, "gpus", ""),
            (1, "global_batch", ""),
            (1, "cap_w", "150"),
            (1, "clock_mhz_max", ""),
            (1, "slowdown", "1.1"),
            (1, "power_ratio_to_default", "0.75"),
            (1, "power_ratio_to_default_sd_percent", "1"),
            (2, "gpus", ""),
            (2, "neighbours", "b+c"),
            (2, "steps_per_s", ""),
            (2, "slowdown", "1.25"),
            (2, "slowdown_sd_percent", "5"),
            (2, "power_ratio_to_tenants", ""),
            (2, "gpu_power_w", "200"),
            (3, "job", "j1"),
            (3, "gpus", ""),
            (3, "gpu_power_w", ""),
        ] {
            assert_eq!(field(line, name), value, "row {line}, {name}");
        }
    }

    #[test]
    fn only_keys_of_classes_are_parsed() {
        let (predictor, gpu_type, class) = parse_key("physical.class.v100.bert-b8").unwrap();
        assert_eq!((predictor.as_str(), gpu_type, class.as_str()), ("physical", "v100", "bert-b8"));
        for other in ["physical.job.j1", "physical.class.v100", "a.class.v100.b.c", ".class.v.b"] {
            assert_eq!(parse_key(other), None, "{other}");
        }
    }

    /// Storage and rows of the largest possible class.
    #[test]
    fn largest_class_is_bounded() {
        let one = Gaussian { mean: -1.234_567_890_123_456_7, sd: 0.012_345_678_901_234_567 };
        let long = id(&"n".repeat(wattle_common::id::ID_LEN_MAX));
        let sets = (0..SETS_MAX).map(|_| SharedSet {
            neighbours: vec![long.clone(); 16],
            slow: Some(one),
            power: Some(one),
        });
        let levels = (0..LEVELS_MAX).map(|i| Level {
            gpus: i as u32 + 1,
            nodes: 1,
            global_batch: Some(65_536),
            ln_rate: one,
        });
        let summary = Summary {
            levels: levels.collect(),
            busy: Some(one),
            memory_busy: Some(0.123_456_789),
            memory_mib: Some(80_000),
            ln_power: Some(one),
            powers: (0..LEVELS_MAX)
                .map(|i| PowerLevel { gpus: i as u32 + 1, ln_power: one })
                .collect(),
            settings: (0..SETTINGS_MAX)
                .map(|i| AtSetting {
                    setting: Setting { cap_w: Some(100.123 + i as f64), clock_mhz_max: None },
                    ln_power: Some(one.mean),
                    slow: Some(one),
                    power: Some(one),
                })
                .collect(),
            shared: sets.collect(),
            scaling: Some(Constants {
                values: [one; POOLED],
                flat_off: Some(one.sd),
                off: [FormError { square: one.sd, readings: 48 }; 2],
            }),
            ..Summary::default()
        };
        let mut kept = class(vec![summary; JOBS_MAX]);
        let pad = |i: usize, len: usize| format!("{i:0len$}");
        let pairs = |kept: &mut Class, len: usize| {
            kept.colocated = ColocationHistory::default();
            for job in 0..4 {
                let singles = (0..PARTNERS_MAX).map(|i| (id(&pad(i, len)), one));
                let job = JobId::new(&pad(job, len)).unwrap();
                kept.colocated.update(Timestamp::from_s(7), &job, singles);
            }
        };
        pairs(&mut kept, wattle_common::id::ID_LEN_MAX);
        let stored = serde_json::to_vec(&kept).unwrap().len();
        // 16 neighbours with names of the maximum length; a NATS message is at most 1 MiB.
        assert!(stored < 320 * 1_024, "{stored} bytes");
        assert_eq!(lines(&kept).len(), JOBS_MAX * (LEVELS_MAX + SETTINGS_MAX + SETS_MAX));
        // A GPU has at most three co-tenants in practice; names of 24 letters.
        let mut usual = kept;
        for set in usual.jobs.iter_mut().flat_map(|(_, s)| &mut s.shared) {
            set.neighbours = vec![id(&"n".repeat(24)); 3];
        }
        pairs(&mut usual, 24);
        let stored = serde_json::to_vec(&usual).unwrap().len();
        assert!(stored < 104 * 1_024, "{stored} bytes");
    }
}
