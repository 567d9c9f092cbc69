//! A workload class on one GPU type, and the profile that its jobs give the next one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wattle_common::Timestamp;
use wattle_common::id::JobId;
use wattle_common::numerics::mean;
use wattle_common::observation::JobShape;

use super::colocation::ColocationHistory;
use super::summary::{AtSetting, Summary};
use super::{JOBS_MAX, LEVELS_MAX, SETS_MAX, SETTINGS_MAX};
use crate::model::throughput;
use crate::statistics::regression::Gaussian;

/// Standard deviation of ln rate and ln power between two jobs of one class: single runs of one
/// configuration repeat within 1-3 %, two runs of one class may differ a little in their data.
const JOB_SD: f64 = 0.04;
/// The same of the busy share.
const BUSY_JOB_SD: f64 = 0.03;
/// The same of the effect of a setting, which differs little within a class.
const SETTING_JOB_SD: f64 = 0.015;

/// A workload class on one GPU type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Time of its last update.
    pub updated_at_us: Timestamp,
    /// Summaries of its last jobs, oldest first.
    pub jobs: Vec<(JobId, Summary)>,
    /// Slowdowns with single co-tenants.
    #[serde(default)]
    pub colocated: ColocationHistory,
}

/// Expected traits of the next job of a class.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Number of jobs it is based on.
    pub jobs: usize,
    /// Busy share on exclusive GPUs.
    pub busy: Option<Gaussian>,
    /// Memory traffic share on exclusive GPUs.
    pub memory_busy: Option<f64>,
    /// Peak device memory over its jobs, MiB.
    pub memory_mib: Option<u64>,
    /// ln of the power of one exclusive GPU at the default setting, watts.
    pub ln_power: Option<Gaussian>,
    /// The same by number of GPUs.
    pub powers: BTreeMap<u32, Gaussian>,
    /// Step rates by shape.
    pub levels: BTreeMap<JobShape, Gaussian>,
    /// Effects of caps and clocks.
    pub settings: Vec<AtSetting>,
}

/// Precision-weighted mean of the values of several jobs, with the predictive deviation of another one;
/// `between_sd` is the standard deviation between jobs.
fn pool(seen: impl Iterator<Item = Gaussian>, between_sd: f64) -> Option<Gaussian> {
    let (mut precision, mut weighted) = (0.0, 0.0);
    for stored in seen {
        let weight = 1.0 / (stored.sd * stored.sd + between_sd * between_sd);
        precision += weight;
        weighted += weight * stored.mean;
    }
    (precision > 0.0).then(|| Gaussian {
        mean: weighted / precision,
        sd: (1.0 / precision + between_sd * between_sd).sqrt(),
    })
}

/// Pools effects of caps and clocks by setting, rounded to 1 W and 1 MHz.
fn pool_settings<'a>(seen: impl Iterator<Item = &'a AtSetting>) -> Vec<AtSetting> {
    let rounded = |v: Option<f64>| v.map(|v| v.round() as u64);
    let mut groups: BTreeMap<_, Vec<&AtSetting>> = BTreeMap::new();
    for at in seen {
        let key = (rounded(at.setting.cap_w), rounded(at.setting.clock_mhz_max));
        groups.entry(key).or_default().push(at);
    }
    let pool = |group: &[&AtSetting], of: fn(&AtSetting) -> Option<Gaussian>| {
        pool(group.iter().filter_map(|at| of(at)), SETTING_JOB_SD)
    };
    groups
        .into_values()
        .map(|group| AtSetting {
            setting: group[0].setting,
            ln_power: mean(group.iter().filter_map(|at| at.ln_power)),
            slow: pool(&group, |at| at.slow),
            power: pool(&group, |at| at.power),
        })
        .collect()
}

impl Class {
    /// Expected traits of another job of the class, without the job `but`.
    #[must_use]
    pub fn profile(&self, but: Option<&JobId>) -> Profile {
        let jobs = || self.jobs.iter().filter(|(id, _)| Some(id) != but).map(|(_, s)| s);
        let mut by_level: BTreeMap<JobShape, Vec<Gaussian>> = BTreeMap::new();
        for level in jobs().flat_map(|s| &s.levels) {
            by_level.entry(level.shape()).or_default().push(level.ln_rate);
        }
        let levels = by_level
            .into_iter()
            .filter_map(|(at, seen)| Some((at, pool(seen.into_iter(), JOB_SD)?)))
            .collect();
        let mut by_count: BTreeMap<u32, Vec<Gaussian>> = BTreeMap::new();
        for power in jobs().flat_map(|s| &s.powers) {
            by_count.entry(power.gpus).or_default().push(power.ln_power);
        }
        let powers = by_count
            .into_iter()
            .filter_map(|(gpus, seen)| Some((gpus, pool(seen.into_iter(), JOB_SD)?)))
            .collect();
        Profile {
            jobs: jobs().count(),
            busy: pool(jobs().filter_map(|s| s.busy), BUSY_JOB_SD),
            memory_busy: mean(jobs().filter_map(|s| s.memory_busy)),
            memory_mib: jobs().filter_map(|s| s.memory_mib).max(),
            ln_power: pool(jobs().filter_map(|s| s.ln_power), JOB_SD),
            powers,
            levels,
            settings: pool_settings(jobs().flat_map(|s| &s.settings)),
        }
    }

    /// Whether values read from storage are valid.
    pub(super) fn is_sane(&self) -> bool {
        let fine = |s: &Gaussian| s.mean.is_finite() && s.sd.is_finite() && s.sd > 0.0;
        self.jobs.len() <= JOBS_MAX
            && self.colocated.is_sane()
            && self.jobs.iter().all(|(_, s)| {
                s.levels.len() <= LEVELS_MAX
                    && s.shared.len() <= SETS_MAX
                    && s.levels.iter().all(|l| l.gpus > 0 && l.nodes > 0 && fine(&l.ln_rate))
                    && s.busy.iter().chain(&s.ln_power).all(fine)
                    && s.powers.len() <= LEVELS_MAX
                    && s.powers.iter().all(|p| p.gpus > 0 && fine(&p.ln_power))
                    && s.scaling.iter().all(throughput::Constants::is_sane)
                    && s.memory_busy.is_none_or(f64::is_finite)
                    && s.settings.len() <= SETTINGS_MAX
                    && s.settings.iter().all(|at| {
                        let setting = at.setting.cap_w.iter().chain(&at.setting.clock_mhz_max);
                        setting.clone().count() == 1
                            && setting.into_iter().all(|v| v.is_finite() && *v > 1.0)
                            && at.ln_power.is_none_or(f64::is_finite)
                            && at.slow.iter().chain(&at.power).all(fine)
                    })
                    && s.shared.iter().all(|set| set.slow.iter().chain(&set.power).all(fine))
            })
    }
}
