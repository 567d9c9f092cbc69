//! What was published beside what these runs measured.
//!
//! A published figure is a claim: it holds for its authors' jobs, cluster and baselines, which are
//! not these. A row stands here only where policy and baseline both ran, and it says what differs.
//! Nothing here judges whether a claim is reproduced: that takes the claim's own set-up.

use super::markup::{change, escaped};
use super::table::Table;
use crate::frontier::Spread;
use crate::outcome::PolicyOutcome;

/// A published figure.
struct Claim {
    policy: &'static str,
    /// Where it stands.
    source: &'static str,
    claimed: &'static str,
    measured: Measured,
    /// What keeps the two from being the same question.
    differs: &'static str,
}

/// Which of our figures speaks to it.
enum Measured {
    /// Completion times at equal energy, over every other policy.
    EqualEnergy,
    /// Completion times at equal carbon, over every other policy.
    EqualCarbon,
    /// Change of the energy against a baseline, cards as the site sets them.
    Energy(&'static str),
    /// Change of the mean time on GPUs against a baseline, likewise.
    Runtime(&'static str),
    /// Change of the mean number of nodes with a job against a baseline, likewise.
    ActiveNodes(&'static str),
}

/// PowerFlow: arXiv 2304.06381, abstract. GreenFlow: IEEE TPDS 36(2), 2025, abstract. EaCO: arXiv
/// 2412.08294, section 6, 28 nodes of 8 V100 (over-subscribed).
const CLAIMS: [Claim; 7] = [
    Claim {
        policy: "powerflow",
        source: "arXiv 2304.06381, abstract",
        claimed: "at equal energy, jobs complete 1.57 to 3.39 times sooner, at most, than under its \
                  baselines",
        measured: Measured::EqualEnergy,
        differs: "the abstract names neither baselines nor jobs; its models here are our own design",
    },
    Claim {
        policy: "greenflow",
        source: "IEEE TPDS 36(2), 2025, abstract",
        claimed: "at equal carbon, jobs complete up to 2.15 times sooner than under its baselines",
        measured: Measured::EqualCarbon,
        differs: "the abstract names neither baselines nor jobs; its control law here is our own \
                  design",
    },
    eaco("energy 39 % less than FIFO", Measured::Energy("fifo")),
    eaco("energy 24.5 % less than FIFO-packed", Measured::Energy("fifo-packed")),
    eaco("energy 8.3 % less than Gandiva", Measured::Energy("gandiva")),
    eaco("jobs run at most 3.23 % longer on average", Measured::Runtime("fifo")),
    eaco("30 % fewer active nodes than FIFO", Measured::ActiveNodes("fifo")),
];

const fn eaco(claimed: &'static str, measured: Measured) -> Claim {
    Claim {
        policy: "eaco",
        source: "arXiv 2412.08294, section 6",
        claimed,
        measured,
        differs: "claimed for 28 nodes of 8 V100, over-subscribed, and input-bound jobs of an unnamed \
                  trace",
    }
}

/// What was measured, as far as claims ask for it.
#[derive(Default)]
pub(super) struct Evidence<'a> {
    /// Policies with cards as the site sets them, and what came of them.
    pub(super) plain: Vec<(&'a str, &'a PolicyOutcome)>,
    /// At equal energy: policy, baseline, ratios of completion times.
    pub(super) equal_energy: Vec<(&'a str, &'a str, Spread)>,
    /// At equal carbon.
    pub(super) equal_carbon: Vec<(&'a str, &'a str, Spread)>,
}

/// The table; empty where no claim is spoken to.
pub(super) fn draw(evidence: &Evidence<'_>) -> String {
    let mut table = Table::of_cards(&["policy", "claimed", "measured here", "what differs"]);
    let mut any = false;
    for claim in &CLAIMS {
        let Some(measured) = evidence.of(claim) else { continue };
        any = true;
        table.row(&[
            escaped(claim.policy),
            format!("{} <small>({})</small>", escaped(claim.claimed), escaped(claim.source)),
            measured,
            escaped(claim.differs),
        ]);
    }
    if any { table.done() } else { String::new() }
}

impl Evidence<'_> {
    fn of(&self, claim: &Claim) -> Option<String> {
        let outcome = |name: &str| {
            self.plain.iter().find(|(known, _)| *known == name).map(|(_, outcome)| *outcome)
        };
        let against = |baseline: &str, of: fn(&PolicyOutcome) -> Option<f64>| {
            let (ours, theirs) = (outcome(claim.policy)?, outcome(baseline)?);
            Some(format!("{} against {baseline}", change(of(ours)?, of(theirs)?)?))
        };
        match claim.measured {
            Measured::EqualEnergy => ratios(claim.policy, &self.equal_energy),
            Measured::EqualCarbon => ratios(claim.policy, &self.equal_carbon),
            Measured::Energy(baseline) => against(baseline, |run| Some(run.energy_kwh)),
            Measured::Runtime(baseline) => against(baseline, |run| run.runtime_s_mean),
            Measured::ActiveNodes(baseline) => against(baseline, |run| Some(run.active_nodes_mean)),
        }
    }
}

/// `2.14 times over fifo (at most 2.25)`, for every baseline.
fn ratios(policy: &str, all: &[(&str, &str, Spread)]) -> Option<String> {
    let said: Vec<String> = all
        .iter()
        .filter(|(ours, ..)| *ours == policy)
        .map(|(_, baseline, spread)| {
            format!(
                "<li>{:.2} times over {}, at most {:.2}</li>",
                spread.geometric_mean,
                escaped(baseline),
                spread.largest
            )
        })
        .collect();
    (!said.is_empty()).then(|| format!("<ul>{}</ul>", said.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_stands_only_beside_what_was_measured() {
        assert_eq!(draw(&Evidence::default()), "");
        let spread = Spread { smallest: 1.0, largest: 2.25, geometric_mean: 2.14 };
        let evidence =
            Evidence { equal_energy: vec![("powerflow", "fifo", spread)], ..Evidence::default() };
        let table = draw(&evidence);
        assert!(table.contains("2.14 times over fifo, at most 2.25"), "{table}");
        assert!(!table.contains("eaco") && !table.contains("greenflow"), "{table}");
    }
}
