//! The answer on one screen of at most 80 columns, and its assumptions in words.

use std::fmt::{self, Write as _};

use wattle_common::duration::{DurationUnit, span};
use wattle_common::job::Sharing;
use wattle_simulator::text::{hang, pluralize};

use super::assumptions;
use super::study::Made;
use super::{SavingBound, SavingEstimate, Totals};
use crate::baseline::BaselineKind;
use crate::report::format;

impl SavingEstimate {
    /// The answer in lines of at most 80 columns: verdict, table, parts, assumptions, and a last line
    /// in plain words. `currency` names the unit of the cost.
    #[must_use]
    pub fn to_screen(&self, currency: &str) -> String {
        let mut text = String::new();
        let mut line = |words: &str| {
            text.push_str(&hang(words, 0));
            text.push('\n');
        };
        line(&self.verdict());
        if self.is_within {
            line(&self.interval());
            if let Some(worth) = self.worth(currency) {
                line(&worth);
            }
        }
        line("");
        if !self.curve.is_empty() {
            line(&self.curve_title());
            line(&curve_line(&self.curve_head()));
            for row in self.curve_rows(currency) {
                line(&curve_line(&row));
            }
            line("");
        }
        line(&format!(
            "{} on {}: {} jobs, {}",
            self.trace,
            self.cluster,
            grouped(self.jobs as f64),
            span(self.period_s)
        ));
        for row in self.table(currency) {
            line(&row);
        }
        if !self.is_within {
            line("Wattle: with free energy, its soonest completion");
        }
        line("");
        line("saved by, each switched off in turn at the same energy price:");
        for row in self.part_rows() {
            line(&row);
        }
        let unit = self.completion_unit();
        line("saved if these jobs may be stopped, moved and resized (--restartable):");
        for (name, end) in ["no job", "every job"].iter().zip(self.ends) {
            line(&format!(
                "  {name:<16}{:>14}{:>9}  mean completion {}",
                energy(end.energy_kwh),
                format!("{:.1} %", 100.0 * end.energy_share),
                unit.format(end.jct_s_mean)
            ));
        }
        line("");
        line("assumptions:");
        for assumption in &self.assumptions {
            text.push_str(&hang(&format!("* {assumption}"), 2));
            text.push('\n');
        }
        text.push('\n');
        text.push_str(&hang(&self.conclusion(), 0));
        text.push('\n');
        text
    }

    /// The unit of all completion times.
    fn completion_unit(&self) -> DurationUnit {
        let totals = [&self.baseline, &self.backfill, &self.wattle];
        let of_totals = totals.into_iter().flat_map(|of| [of.jct_s_mean, of.jct_s_p95]);
        DurationUnit::of_all(of_totals.chain(self.ends.map(|end| end.jct_s_mean)))
    }

    /// The table of both schedules.
    fn table(&self, currency: &str) -> Vec<String> {
        let (before, after) = (&self.baseline, &self.wattle);
        let head = ["", self.baseline_name(), "backfill", "Wattle", "change"];
        // Backfilling has a column of its own beside a recorded schedule.
        let beside = self.baseline_kind != BaselineKind::Backfill;
        let line = |[name, old, easy, new, change]: [&str; 5]| {
            let easy = if beside { format!("{easy:>14}") } else { String::new() };
            format!("{name:<24}{old:>14}{easy}{new:>14}{change:>12}")
        };
        let mut rows = vec![line(head)];
        let mut row = |name: &str, of: fn(&Totals) -> f64, show: &dyn Fn(f64) -> String| {
            let (old, new) = (of(before), of(after));
            let change = if old > 0.0 { signed_percent(new / old - 1.0) } else { "-".to_owned() };
            let easy = show(of(&self.backfill));
            rows.push(line([name, &show(old), &easy, &show(new), &change]));
        };
        row("energy", |totals| totals.energy_kwh, &energy);
        let unit = self.completion_unit();
        let completion = |seconds| unit.format(seconds);
        row("completion, mean", |totals| totals.jct_s_mean, &completion);
        row("completion, 95 % within", |totals| totals.jct_s_p95, &completion);
        let all = [before, &self.backfill, after];
        let waits = all.into_iter().flat_map(|of| [of.wait_s_mean, of.wait_s_p95]);
        let unit = DurationUnit::of_all(waits);
        let wait = |seconds| unit.format(seconds);
        row("wait, mean", |totals| totals.wait_s_mean, &wait);
        row("wait, 95 % within", |totals| totals.wait_s_p95, &wait);
        if before.carbon_kg.is_some() {
            row("CO2", |totals| totals.carbon_kg.unwrap_or(0.0), &mass);
        }
        if before.cost.is_some() {
            let money = |cost| money(cost, currency);
            row("cost", |totals| totals.cost.unwrap_or(0.0), &money);
        }
        rows
    }

    fn part_rows(&self) -> Vec<String> {
        let no_resizing = self.parts.sizes == 0.0;
        let packing = match self.options.share {
            Sharing::Never => "no job shares a GPU (--share)",
            Sharing::Consented => "traces contain no consent (--share)",
            Sharing::Any if no_resizing => "only restartable jobs share GPUs",
            Sharing::Any => "",
        };
        let rows = [
            ("caps and clocks", self.parts.settings, ""),
            (
                "sleeping nodes",
                self.parts.sleep,
                if self.options.sleep { "" } else { "--no-sleep" },
            ),
            ("packing", self.parts.packing, packing),
            (
                "sizes",
                self.parts.sizes,
                if no_resizing { "no job is resized (--restartable)" } else { "" },
            ),
        ];
        let row = |(name, kwh, note): (&str, f64, &str)| {
            let share = format!("{:.1} %", 100.0 * self.share(kwh));
            format!("  {name:<16}{:>14}{share:>9}  {note}", energy(kwh)).trim_end().to_owned()
        };
        rows.into_iter().map(row).collect()
    }
}

impl Made<'_> {
    /// What the estimate assumes, most important first.
    pub(super) fn assumptions(&self, estimate: &SavingEstimate) -> Vec<String> {
        let mut all = Vec::new();
        let kind = estimate.baseline_kind;
        let is_recorded = kind == BaselineKind::Recorded;
        all.push(assumptions::baseline(kind));
        all.extend(assumptions::suspended(self.trace).filter(|_| is_recorded));
        all.extend(estimate.options.load.map(assumptions::load));
        all.extend(self.time_limits.map(|from| assumptions::backfill(from, is_recorded)));
        all.extend(assumptions::drawn(self.scenario, estimate.jobs));
        all.push(assumptions::restarts(self.restartable, estimate.options.share));
        all.extend(estimate.options.sleep.then(assumptions::sleep));
        if let Some(sample) = self.sample {
            all.push(self.sampled(sample));
        }
        all.push(price(estimate));
        let totals = match self.simulated_seeds {
            1 => String::new(),
            seeds => format!(" Totals are means over {seeds} seeds."),
        };
        let by_seeds = if self.seeds > 1 {
            let sample = if self.sample.is_some() { " and samples" } else { "" };
            let spread = energy(self.by_seeds);
            format!("{} seeds of workloads{sample} (+-{spread}); ", self.seeds)
        } else {
            String::new()
        };
        let by_model = match self.error {
            Some(error) => format!(
                "power and speed at other settings as wrong as the predictions, {} (+-{})",
                percent(error),
                energy(self.by_model)
            ),
            None => {
                "without errors of power and speed at other settings, because no prediction was \
                     compared with a measurement"
                    .to_owned()
            }
        };
        all.push(format!("Interval: {by_seeds}{by_model}.{totals}"));
        all.push(
            "The schedule in the table is made on predictions; parts, seeds and the other \
             declarations of restartable jobs on exact ones."
                .to_owned(),
        );
        all.extend(self.series(estimate.period_s));
        all.push(assumptions::work());
        all
    }

    /// How prices and intensities over time lie on the period of `period_s`.
    fn series(&self, period_s: f64) -> Vec<String> {
        let lies = |what: &str, name: &str, series_s: f64, filled: usize| {
            let mut text = format!("{what} ({name}): the first value is at the start of the trace");
            if series_s < period_s {
                let _ = write!(text, ", and the series of {} repeats", span(series_s));
            }
            if filled > 0 {
                let have = if filled == 1 { "has" } else { "have" };
                let _ = write!(text, "; {} {have} the value before", pluralize(filled, "gap"));
            }
            text.push('.');
            text
        };
        let prices = self.scenario.prices.as_ref().map(|prices| {
            let what = format!("Electricity prices in {}", prices.currency);
            lies(&what, &prices.name, prices.period().as_secs_f64(), prices.gaps)
        });
        let carbon = self.scenario.carbon.as_ref().map(|carbon| {
            let series_s = carbon.period().as_secs_f64();
            lies("Carbon intensities", &carbon.name, series_s, carbon.cells_filled)
        });
        prices.into_iter().chain(carbon).collect()
    }

    fn sampled(&self, sample: &super::Sample) -> String {
        let mut text = assumptions::simulated_on(sample);
        text.push_str("; relative saving applied to all jobs, times are the sample's");
        if sample.too_large > 0 {
            let _ = write!(text, "; {} larger jobs left out", sample.too_large);
        }
        text.push('.');
        if sample.is_window {
            text.push_str(
                " Consecutive jobs begin and end on an emptier cluster than the trace's, which \
                 overstates the saving by sleeping nodes.",
            );
        }
        text
    }
}

/// The energy price of the schedule, and how the bound was held at it.
fn price(estimate: &SavingEstimate) -> String {
    let mean = signed_percent(estimate.slowdown);
    let held = match estimate.options.bound {
        SavingBound::Later(share) => {
            format!("{mean} against the baseline (allowed {})", exact_percent(share))
        }
        SavingBound::MaxSlowdown(share) => format!(
            "{mean} against Wattle's own with free energy (bound {}), whatever the baseline's",
            percent(share)
        ),
    };
    format!("Energy price {:.2e} s/J: mean completion {held}.", estimate.price)
}

/// A row of the curve.
fn curve_line(cells: &[impl fmt::Display]) -> String {
    const WIDTHS: [usize; 8] = [7, 8, 12, 13, 7, 14, 11, 8];
    let cells = cells.iter().zip(WIDTHS);
    let cells = cells.map(|(cell, width)| format!("{:>width$}", cell.to_string()));
    cells.collect::<String>().trim_end().to_owned()
}

/// A whole number with commas between thousands.
pub(super) fn grouped(value: f64) -> String {
    match format!("{value:.0}").as_str() {
        "-0" => "0".to_owned(),
        digits => format::grouped(digits),
    }
}

/// Energy with a unit of its size.
pub(super) fn energy(kwh: f64) -> String {
    match kwh.abs() {
        size if size >= 99_999.5 => format!("{} MWh", grouped(kwh / 1e3)),
        size if size >= 99.95 => format!("{} kWh", grouped(kwh)),
        size if size >= 9.995 => format!("{kwh:.1} kWh"),
        size if size < 0.005 => "0 kWh".to_owned(),
        _ => format!("{kwh:.2} kWh"),
    }
}

/// Mass with a unit of its size.
pub(super) fn mass(kg: f64) -> String {
    match kg.abs() {
        size if size >= 9_999.5 => format!("{:.1} t", kg / 1e3),
        size if size >= 99.95 => format!("{} kg", grouped(kg)),
        _ => format!("{kg:.1} kg"),
    }
}

pub(super) fn money(cost: f64, currency: &str) -> String {
    if cost.abs() >= 9_999.5 {
        format!("{currency} {}", grouped(cost))
    } else {
        format!("{currency} {cost:.2}")
    }
}

/// A share in per cent: one decimal below ten.
pub(super) fn percent(share: f64) -> String {
    let value = 100.0 * share;
    if value.abs() >= 9.95 { format!("{value:.0} %") } else { format!("{value:.1} %") }
}

/// A share that an option states, in per cent: `0 %`, `2.5 %`.
pub(super) fn exact_percent(share: f64) -> String {
    format!("{} %", (share * 1e4).round() / 1e2)
}

/// A relative change in per cent, from tenfold on as a factor.
pub(super) fn signed_percent(change: f64) -> String {
    if change >= 9.0 {
        return format!("{} times", grouped(1.0 + change));
    }
    match format!("{:+.1} %", 100.0 * change) {
        zero if zero == "-0.0 %" || zero == "+0.0 %" => "0.0 %".to_owned(),
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_of_their_size() {
        let energies = [0.0, 1.234, 12.34, 1_234.5, 1_234_567.0, -250.0].map(energy);
        assert_eq!(
            energies,
            ["0 kWh", "1.23 kWh", "12.3 kWh", "1,234 kWh", "1,235 MWh", "-250 kWh"]
        );
        assert_eq!([0.012, 0.165, -0.02].map(percent), ["1.2 %", "16 %", "-2.0 %"]);
        assert_eq!([-0.0001, 0.123, 997.5].map(signed_percent), ["0.0 %", "+12.3 %", "998 times"]);
    }
}
