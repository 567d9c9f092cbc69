//! The report in sentences: the total with its uses, causes, emissions and cost.

use wattle_common::Energy;

use super::Report;
use super::row::{Amount, Row, gpu_time_unit};
use crate::budget::tidy;
use crate::date::minute;
use crate::quantity::{EnergyUnit, energy, percent};

impl Report {
    /// Emissions and cost with their sources, one line each.
    fn rated(&self) -> String {
        let mut text = String::new();
        if let Some(emissions) = &self.emissions {
            let carbon = tidy(emissions.carbon_kg);
            text += &format!("\nCO2 {carbon} kg; intensity: {}", emissions.source);
            if emissions.static_share > 0.0 {
                text += &format!(
                    "\n  {} of the energy at the static value",
                    percent(emissions.static_share)
                );
            }
            if emissions.known_share < 0.995 {
                let unknown = percent(1.0 - emissions.known_share);
                text +=
                    &format!("\n  without {unknown} of the energy, whose intensity is not known");
            }
        }
        if let Some(cost) = &self.cost {
            text += &format!("\ncost {:.2} {}; price: {}", cost.amount, cost.currency, cost.source);
        }
        text
    }

    /// The total with its uses and the causes of unknown energy.
    pub(crate) fn verdict(&self) -> String {
        let (from, until) = (self.from_us.unwrap_or_default(), self.until_us.unwrap_or_default());
        let total = self.total.energy_mj;
        let unit = EnergyUnit::of(total);
        let part = |amount: Amount| {
            let share = percent(amount.energy_mj.ratio(total));
            format!("{} {} ({share})", unit.number(amount.energy_mj), unit.name())
        };
        let (at_least, missing) = match &self.missing {
            Some(missing) => ("at least ", format!(":\n{missing}")),
            None => ("", String::new()),
        };
        let mut text = format!(
            "{at_least}{} from {} to {} UTC{missing}\njobs {}, idle GPUs {}, hosts {}",
            energy(total),
            minute(from),
            minute(until),
            part(self.uses.jobs),
            part(self.uses.idle_gpus),
            part(self.uses.hosts),
        );
        if self.uses.unknown.energy_mj > Energy::ZERO {
            text += &format!("\nunknown {}, because:", part(self.uses.unknown));
        }
        let line = |cause: &Row, what: &str| {
            let cause = cause.cause().map(|cause| cause.to_string()).unwrap_or_default();
            format!("\n  {cause}: {what}")
        };
        let known = |row: &Row| row.energy.filter(|amount| amount.energy_mj > Energy::ZERO);
        for (cause, amount) in self.causes.iter().filter_map(|row| Some((row, known(row)?))) {
            text += &line(cause, &part(amount));
        }
        let unmeasured = self.causes.iter().filter_map(|row| Some((row, row.unmeasured?)));
        let unmeasured: Vec<_> = unmeasured.filter(|(_, lost)| lost.gpu_s > 0.0).collect();
        if !unmeasured.is_empty() {
            text += "\nnot measured completely, and at most partly in the sums:";
        }
        let unit = gpu_time_unit(&self.causes);
        for (cause, lost) in unmeasured {
            let estimate = if lost.estimate_mj > Energy::ZERO {
                format!(", estimated {}", energy(lost.estimate_mj))
            } else {
                String::new()
            };
            text += &line(cause, &format!("{} of GPU time{estimate}", unit.format(lost.gpu_s)));
        }
        text + &self.rated()
    }
}
