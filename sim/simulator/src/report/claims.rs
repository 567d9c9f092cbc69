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
    /// Whether it is of a large cluster, where that was told apart.
    large: Option<bool>,
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
/// 2412.08294, section 6, on 28 nodes of 8 V100 (over-subscribed) and on 64 (ample).
const CLAIMS: [Claim; 12] = [
    Claim {
        policy: "powerflow",
        source: "arXiv 2304.06381, abstract",
        claimed: "at equal energy, jobs complete 1.57 to 3.39 times sooner, at most, than under its \
                  baselines",
        measured: Measured::EqualEnergy,
        differs: "the abstract names neither baselines nor jobs; its models here are our own design",
        large: None,
    },
    Claim {
        policy: "greenflow",
        source: "IEEE TPDS 36(2), 2025, abstract",
        claimed: "at equal carbon, jobs complete up to 2.15 times sooner than under its baselines",
        measured: Measured::EqualCarbon,
        differs: "the abstract names neither baselines nor jobs; its control law here is our own \
                  design",
        large: None,
    },
    eaco("energy 39 % less than FIFO", false, Measured::Energy("fifo")),
    eaco("energy 24.5 % less than FIFO-packed", false, Measured::Energy("fifo-packed")),
    eaco("energy 8.3 % less than Gandiva", false, Measured::Energy("gandiva")),
    eaco("jobs run at most 3.23 % longer on average", false, Measured::Runtime("fifo")),
    eaco("30 % fewer active nodes than FIFO", false, Measured::ActiveNodes("fifo")),
    eaco("energy 39 % less than FIFO", true, Measured::Energy("fifo")),
    eaco("energy 39 % less than FIFO-packed", true, Measured::Energy("fifo-packed")),
    eaco("energy 39 % less than Gandiva", true, Measured::Energy("gandiva")),
    eaco("jobs run at most 3.23 % longer on average", true, Measured::Runtime("fifo")),
    eaco("47 % fewer active nodes than FIFO", true, Measured::ActiveNodes("fifo")),
];

const fn eaco(claimed: &'static str, large: bool, measured: Measured) -> Claim {
    let differs = if large {
        "claimed for 64 nodes of 8 V100, ample, and input-bound jobs of an unnamed trace"
    } else {
        "claimed for 28 nodes of 8 V100, over-subscribed, and input-bound jobs of an unnamed trace"
    };
    let source = "arXiv 2412.08294, section 6";
    Claim { policy: "eaco", source, claimed, measured, differs, large: Some(large) }
}

/// What was measured, as far as claims ask for it.
#[derive(Default)]
pub(super) struct Evidence<'a> {
    /// Whether the cluster is rather like EaCO's large one.
    pub(super) large: bool,
    /// Policies with cards as the site sets them.
    pub(super) plain: Vec<Plain<'a>>,
    /// At equal energy: policy, baseline, ratios of completion times.
    pub(super) equal_energy: Vec<(&'a str, &'a str, Spread)>,
    /// At equal carbon.
    pub(super) equal_carbon: Vec<(&'a str, &'a str, Spread)>,
}

/// A policy with cards as the site sets them, and what came of it in each order of jobs.
pub(super) struct Plain<'a> {
    pub(super) policy: &'a str,
    /// What was spent, counted alike for everybody; empty where that is not whole nodes.
    pub(super) energy_kwh: Vec<f64>,
    pub(super) outcomes: Vec<&'a PolicyOutcome>,
}

/// The table; empty where no claim is spoken to.
pub(super) fn draw(evidence: &Evidence<'_>) -> String {
    let mut table = Table::of_cards(&["policy", "claimed", "measured here", "what differs"]);
    let mut any = false;
    for claim in CLAIMS.iter().filter(|claim| claim.large.is_none_or(|l| l == evidence.large)) {
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
        let against = |baseline: &str, of: fn(&Plain<'_>) -> Vec<f64>| {
            let find = |name: &str| self.plain.iter().find(|plain| plain.policy == name);
            let (ours, theirs) = (of(find(claim.policy)?), of(find(baseline)?));
            Some(format!("{} against {baseline}", changes(&ours, &theirs)?))
        };
        match claim.measured {
            Measured::EqualEnergy => ratios(claim.policy, &self.equal_energy),
            Measured::EqualCarbon => ratios(claim.policy, &self.equal_carbon),
            Measured::Energy(baseline) => against(baseline, |plain| plain.energy_kwh.clone()),
            Measured::Runtime(baseline) => against(baseline, |plain| {
                plain.outcomes.iter().filter_map(|run| run.runtime_s_mean).collect()
            }),
            Measured::ActiveNodes(baseline) => against(baseline, |plain| {
                plain.outcomes.iter().map(|run| run.active_nodes_mean).collect()
            }),
        }
    }
}

/// The mean relative change over orders, with its least and greatest where there are several.
fn changes(ours: &[f64], theirs: &[f64]) -> Option<String> {
    if ours.is_empty() || ours.len() != theirs.len() || theirs.iter().any(|old| *old <= 0.0) {
        return None;
    }
    let all: Vec<f64> = ours.iter().zip(theirs).map(|(new, old)| new / old).collect();
    let mean = change(all.iter().sum::<f64>() / all.len() as f64, 1.0)?;
    if all.len() == 1 {
        return Some(mean);
    }
    let least = change(all.iter().copied().fold(f64::INFINITY, f64::min), 1.0)?;
    let most = change(all.iter().copied().fold(0.0, f64::max), 1.0)?;
    Some(format!("{mean} <small>({least} to {most})</small>"))
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

    #[test]
    fn changes_are_means_with_their_range() {
        let said = changes(&[9.0, 22.0], &[10.0, 20.0]).unwrap().replace('\u{a0}', " ");
        assert_eq!(said, "0.0 % <small>(-10.0 % to +10.0 %)</small>");
        assert_eq!(changes(&[9.0], &[]), None);
        assert_eq!(changes(&[], &[]), None);
    }
}
