//! The fitted distributions of `catalog/generator.toml`.

use std::sync::OnceLock;

use serde::Deserialize;

/// Moments of the jobs to which the distributions were fitted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moments {
    /// Jobs a day.
    pub jobs_per_day: f64,
    /// GPUs of a job, mean.
    pub gpus_mean: f64,
    /// Share of the jobs on one GPU, 0 to 1.
    pub single_share: f64,
    /// GPUs times duration of a job, mean, in seconds.
    pub gpu_seconds_mean: f64,
    /// Coefficient of variation of the hourly number of jobs.
    pub hourly_variation: f64,
    /// Median duration in each class of GPU counts (1, 2, up to 4, up to 8, more), in seconds.
    pub duration_median_s: Vec<f64>,
    /// Mean duration in each class, in seconds.
    pub duration_mean_s: Vec<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arrivals {
    pub(super) per_day: f64,
    pub(super) hour: Vec<f64>,
    pub(super) weekday: Vec<f64>,
    pub(super) day_deviation: f64,
    pub(super) day_correlation: f64,
}

#[derive(Debug)]
pub(super) struct InCampaigns {
    pub(super) gap_s: Tabulated,
    /// Share of the variance of a duration's score that is common to a campaign.
    pub(super) alike: f64,
}

/// A class of GPU counts.
#[derive(Debug)]
pub(super) struct Class {
    gpus_max: u32,
    /// Number of jobs of a campaign.
    pub(super) length: Tabulated,
    /// Duration of a job.
    pub(super) seconds: Tabulated,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Users {
    pub(super) shares: Vec<f64>,
    pub(super) repeats: f64,
    pub(super) alike: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sizes {
    pub(super) gpus: Vec<u32>,
    pub(super) shares: Vec<f64>,
}

/// The whole file.
#[derive(Debug)]
pub(super) struct Fitted {
    pub(super) arrivals: Arrivals,
    pub(super) campaigns: InCampaigns,
    pub(super) users: Users,
    pub(super) sizes: Sizes,
    classes: Vec<Class>,
    pub(super) moments: Moments,
}

/// A distribution, tabulated at standard normal scores.
#[derive(Debug)]
pub(super) struct Tabulated {
    scores: Vec<f64>,
    /// ln(1 + value).
    logs: Vec<f64>,
}

impl Tabulated {
    /// The value at a score; constant beyond the table.
    pub(super) fn at(&self, score: f64) -> f64 {
        let above = self.scores.partition_point(|own| *own < score);
        let log = match (above.checked_sub(1), self.scores.get(above)) {
            (None, _) => self.logs[0],
            (Some(below), None) => self.logs[below],
            (Some(below), Some(next)) => {
                let share = (score - self.scores[below]) / (next - self.scores[below]);
                self.logs[below] * (1.0 - share) + self.logs[above] * share
            }
        };
        log.exp_m1()
    }
}

impl Fitted {
    /// The shipped ones.
    pub(super) fn get() -> &'static Self {
        static FITTED: OnceLock<Fitted> = OnceLock::new();
        FITTED.get_or_init(|| {
            let text = include_str!("../../catalog/generator.toml");
            Self::read(text).expect("a unit test reads the shipped file")
        })
    }

    fn read(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let scores = &file.scores;
        let table = |values: &[f64]| {
            if values.len() != scores.len() || !scores.is_sorted() || scores.len() < 2 {
                return Err(format!("{} values at {} scores", values.len(), scores.len()));
            }
            let logs = values.iter().map(|value| value.ln_1p()).collect();
            Ok(Tabulated { scores: scores.clone(), logs })
        };
        let gap_s = table(&file.campaigns.gap_s)?;
        let campaigns = InCampaigns { gap_s, alike: file.campaigns.alike };
        let class = |class: &ClassInFile| {
            let (length, seconds) = (table(&class.length)?, table(&class.seconds)?);
            Ok(Class { gpus_max: class.gpus_max, length, seconds })
        };
        let classes: Result<Vec<_>, String> = file.classes.iter().map(class).collect();
        let classes = classes?;
        let lacks = classes.is_empty()
            || file.sizes.gpus.len() != file.sizes.shares.len()
            || file.sizes.gpus.is_empty()
            || file.users.shares.is_empty()
            || (file.arrivals.hour.len(), file.arrivals.weekday.len()) != (24, 7);
        if lacks {
            return Err("a list is too short".to_owned());
        }
        let File { arrivals, users, sizes, moments, .. } = file;
        Ok(Self { arrivals, campaigns, users, sizes, classes, moments })
    }

    /// The class of a GPU count.
    pub(super) fn class(&self, gpus: u32) -> &Class {
        let class = self.classes.iter().find(|class| gpus <= class.gpus_max);
        class.or(self.classes.last()).expect("reading made sure that there is one")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    scores: Vec<f64>,
    arrivals: Arrivals,
    campaigns: CampaignsInFile,
    users: Users,
    sizes: Sizes,
    classes: Vec<ClassInFile>,
    moments: Moments,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CampaignsInFile {
    gap_s: Vec<f64>,
    alike: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassInFile {
    gpus_max: u32,
    length: Vec<f64>,
    seconds: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_is_valid_and_a_short_list_is_rejected() {
        let text = include_str!("../../catalog/generator.toml");
        let fitted = Fitted::read(text).unwrap();
        assert_eq!(fitted.classes.len(), fitted.moments.duration_mean_s.len());
        let error = Fitted::read(&text.replacen("gap_s = [0, ", "gap_s = [", 1)).unwrap_err();
        assert!(error.contains("21 values at 22 scores"), "{error}");
    }

    #[test]
    fn tables_interpolate_and_are_constant_beyond_their_ends() {
        let table = Tabulated { scores: vec![-1.0, 0.0, 2.0], logs: vec![0.0, 1.0, 3.0] };
        let log = |score| table.at(score).ln_1p();
        for (score, wanted) in
            [(-9.0, 0.0), (-1.0, 0.0), (-0.5, 0.5), (0.0, 1.0), (1.0, 2.0), (9.0, 3.0)]
        {
            assert!((log(score) - wanted).abs() < 1e-12, "{score}: {}", log(score));
        }
    }
}
