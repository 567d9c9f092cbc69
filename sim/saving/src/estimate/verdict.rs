//! The verdict of a saving in sentences, and the curve of its points.

use super::screen::{energy, exact_percent, mass, money, percent, signed_percent};
use super::{Parts, SavingBound, SavingEstimate, SavingPoint};
use crate::baseline::BaselineKind;

/// Changes of the mean completion time below this share count as none in sentences.
const SAME: f64 = 0.0005;

/// A change of the mean completion time in words.
fn later(change: f64) -> String {
    match change {
        change if change < -SAME => format!("{} sooner", percent(-change)),
        change if change > SAME => format!("{} later", percent(change)),
        _ => "as soon".to_owned(),
    }
}

impl SavingEstimate {
    /// The name of the baseline as a heading.
    #[must_use]
    pub const fn baseline_name(&self) -> &'static str {
        match self.baseline_kind {
            BaselineKind::Recorded => "as recorded",
            BaselineKind::Backfill => "backfill",
            BaselineKind::Fifo => "FIFO",
        }
    }

    /// The mean completion time relative to the baseline's, minus 1.
    fn change(&self) -> f64 {
        if self.baseline.jct_s_mean > 0.0 {
            self.wattle.jct_s_mean / self.baseline.jct_s_mean - 1.0
        } else {
            0.0
        }
    }

    /// Saved energy, and when jobs complete, in a sentence.
    #[must_use]
    pub fn verdict(&self) -> String {
        let than = self.baseline_kind.words();
        let jobs = match self.options.bound {
            SavingBound::Later(share) if !self.is_within => {
                let without = if share > 0.0 {
                    format!("with jobs completing at most {} later", exact_percent(share))
                } else {
                    "without waiting".to_owned()
                };
                let jobs = later(self.change());
                return format!(
                    "No saving is possible {without}: even with free energy, jobs complete {jobs} on average \
                     than {than}.{}{}",
                    self.first_possible(),
                    self.if_restartable(share)
                );
            }
            SavingBound::Later(share) if share > 0.0 => {
                format!("at most {} later on average than {than}", exact_percent(share))
            }
            SavingBound::Later(_) => format!("no later on average than {than}"),
            SavingBound::MaxSlowdown(_) => {
                format!("{} on average than {than}", later(self.change()))
                    .replace("as soon on average than", "as soon on average as")
            }
        };
        let saved = self.saved.energy_kwh;
        let (verb, more) = if saved >= 0.0 { ("saved", "") } else { ("spent", " more") };
        let share = percent(self.share(saved).abs());
        let saved = energy(saved.abs());
        format!(
            "Wattle would have {verb} {share}{more} of the energy, {saved}, with jobs completing {jobs}."
        )
    }

    /// The first point of the curve that is possible, as a further sentence.
    fn first_possible(&self) -> String {
        let possible = |point: &&SavingPoint| point.is_within && point.energy_share > 0.0;
        self.curve.iter().find(possible).map_or(String::new(), |point| {
            format!(
                " With jobs completing at most {} later it would have saved {} of the energy, {}.",
                exact_percent(point.allowed),
                percent(point.energy_share),
                energy(point.saved.energy_kwh)
            )
        })
    }

    /// What would have been saved within the bound if every job may be stopped, as a further sentence.
    fn if_restartable(&self, share: f64) -> String {
        let [own, every] = self.ends;
        let is_within = every.jct_s_mean <= (1.0 + share) * self.baseline.jct_s_mean;
        if !is_within || every.energy_share <= 0.0 || every == own {
            return String::new();
        }
        format!(
            " If every job may be stopped, moved and resized (--restartable all), {} of the energy could be saved \
             within that time.",
            percent(every.energy_share)
        )
    }

    /// Its interval.
    #[must_use]
    pub fn interval(&self) -> String {
        let (low, high) = (self.saved.energy_kwh_low, self.saved.energy_kwh_high);
        format!(
            "90 % interval: {} to {}, {}",
            energy(low),
            energy(high),
            shares(self.share(low), self.share(high))
        )
    }

    /// Cost and emissions of the saved energy; `None` without either.
    #[must_use]
    pub fn worth(&self, currency: &str) -> Option<String> {
        let cost = self.saved.cost.map(|cost| money(cost, currency));
        let carbon = self.saved.carbon_kg.map(|kg| format!("{} of CO2", mass(kg)));
        let parts: Vec<String> = cost.into_iter().chain(carbon).collect();
        (!parts.is_empty()).then(|| format!("saved cost and emissions: {}", parts.join(", ")))
    }

    /// What the columns of the curve relate to.
    #[must_use]
    pub fn curve_title(&self) -> String {
        format!(
            "saved where jobs may complete later on average than {}:",
            self.baseline_kind.words()
        )
    }

    /// The headings of the curve.
    #[must_use]
    pub fn curve_head(&self) -> Vec<&'static str> {
        let has = |of: fn(&SavingPoint) -> bool| self.curve.iter().any(of);
        let (has_cost, has_carbon) =
            (has(|point| point.saved.cost.is_some()), has(|point| point.saved.carbon_kg.is_some()));
        let mut head = vec!["at most", "mean", "95 % within", "saved", "share", "90 % interval"];
        head.extend(has_cost.then_some("cost"));
        head.extend(has_carbon.then_some("CO2"));
        head
    }

    /// The rows of the curve, one for each point.
    #[must_use]
    pub fn curve_rows(&self, currency: &str) -> Vec<Vec<String>> {
        let row = |point: &SavingPoint| {
            let baseline_kwh = point.baseline.energy_kwh.max(f64::MIN_POSITIVE);
            let [low, high] = [point.saved.energy_kwh_low, point.saved.energy_kwh_high]
                .map(|kwh| kwh / baseline_kwh);
            let times = [point.jct_mean_change, point.jct_p95_change].map(signed_percent);
            let mut cells = vec![exact_percent(point.allowed)];
            cells.extend(times);
            if !point.is_within {
                // The times are those with free energy.
                cells.push("not possible".to_owned());
                return cells;
            }
            cells.push(energy(point.saved.energy_kwh));
            cells.push(format!("{:.1} %", 100.0 * point.energy_share));
            cells.push(shares(low, high));
            cells.extend(point.saved.cost.map(|cost| money(cost, currency)));
            cells.extend(point.saved.carbon_kg.map(mass));
            cells
        };
        self.curve.iter().map(row).collect()
    }

    /// Whether it is worth it, in plain words.
    #[must_use]
    pub fn conclusion(&self) -> String {
        let share = self.share(self.saved.energy_kwh);
        let low = self.share(self.saved.energy_kwh_low);
        let change = self.change();
        let jobs = match change {
            c if c < -0.005 => format!("jobs complete {} sooner on average", percent(-c)),
            c if c > 0.005 => format!("jobs complete {} later on average", percent(c)),
            _ => "jobs complete as soon as before".to_owned(),
        };
        // Parts interact: each of two may be more than half of the saving.
        let Parts { settings, packing, sizes, sleep } = self.parts;
        let parts: f64 = [settings, packing, sizes, sleep].iter().map(|kwh| kwh.max(0.0)).sum();
        let mostly_sleep = sleep > 0.5 * self.saved.energy_kwh && sleep > 0.6 * parts;
        let sleep = if self.saved.energy_kwh > 0.0 && mostly_sleep {
            " Most of it comes from sleeping nodes; Slurm can suspend unused nodes too."
        } else {
            ""
        };
        let (bound, is_within) = match self.options.bound {
            SavingBound::Later(bound) => (bound, self.is_within),
            SavingBound::MaxSlowdown(bound) => (bound, change <= bound),
        };
        if !self.is_within {
            let less = percent(share.abs());
            let which = if share > 0.0 { "less" } else { "more" };
            format!(
                "Not without waiting: with free energy {jobs}, for about {less} {which} energy.{sleep}"
            )
        } else if low > 0.0 && is_within {
            format!("Worth it: about {} less energy, and {jobs}.{sleep}", percent(share))
        } else if low > 0.0 {
            format!(
                "A trade: about {} less energy, but {jobs}, more than the bound of {}.{sleep}",
                percent(share),
                percent(bound)
            )
        } else if share > 0.0 {
            format!("Not certain: the interval includes no saving, and {jobs}.{sleep}")
        } else {
            format!("Not worth it for energy: nothing is saved, and {jobs}.")
        }
    }
}

/// An interval of shares in per cent.
fn shares(low: f64, high: f64) -> String {
    let [from, to] = [low, high].map(|share| 100.0 * share);
    // The ends differ in the last digit.
    let digits = usize::from(to - from < 2.0);
    format!("{from:.digits$} to {to:.digits$} %")
}
