//! Published results next to the results of these runs.
//!
//! A published result holds for its authors' jobs, cluster and baselines, which differ from these.
//! A row appears only where the policy and the baseline both ran, and states the differences. The
//! table does not decide whether a claim is reproduced; that needs the claim's own set-up.

use maud::{Markup, Render, html};

use super::format::change;
use super::table::{Table, cell};
use crate::spread::RatioSpread;
use wattle_simulator::PolicyOutcome;

/// A published result.
struct Claim {
    policy: &'static str,
    /// Where it was published.
    source: &'static str,
    claimed: &'static str,
    measured: Measured,
    /// How its set-up differs from this one.
    differs: &'static str,
    /// Whether it is of a large cluster, where the paper distinguishes.
    large: Option<bool>,
}

/// The corresponding measurement.
enum Measured {
    /// Completion times at equal energy, against every other policy.
    EqualEnergy,
    /// Completion times at equal carbon, against every other policy.
    EqualCarbon,
    /// Change of the energy against a baseline, at the default GPU settings.
    Energy(&'static str),
    /// Change of the mean time on GPUs against a baseline, at the default GPU settings.
    Runtime(&'static str),
    /// Change of the mean number of nodes with a job against a baseline, at the default GPU
    /// settings.
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

/// The measurements that claims are compared with.
#[derive(Default)]
pub struct Evidence<'a> {
    /// Whether the cluster is closer to EaCO's large one than to its small one.
    pub large: bool,
    /// Policies at the default GPU settings.
    pub untuned: Vec<UntunedRuns<'a>>,
    /// At equal energy: policy, baseline, ratios of completion times.
    pub equal_energy: Vec<(&'a str, &'a str, RatioSpread)>,
    /// At equal carbon: policy, baseline, ratios of completion times.
    pub equal_carbon: Vec<(&'a str, &'a str, RatioSpread)>,
}

/// A policy's runs at the default GPU settings, one per order of the jobs.
pub struct UntunedRuns<'a> {
    /// The policy.
    pub policy: &'a str,
    /// Energy of whole nodes; empty where another energy is counted.
    pub energy_kwh: Vec<f64>,
    /// The outcomes, in the same order.
    pub outcomes: Vec<&'a PolicyOutcome>,
}

/// The table of claims; empty where none has a measurement.
pub fn draw(evidence: &Evidence<'_>) -> Markup {
    let mut table = Table::new(&["policy", "claimed", "measured here", "differences"]);
    for claim in CLAIMS.iter().filter(|claim| claim.large.is_none_or(|l| l == evidence.large)) {
        let Some(measured) = evidence.of(claim) else { continue };
        table.row(vec![
            claim.policy.render(),
            html! { (claim.claimed) " " small { "(" (claim.source) ")" } },
            measured,
            claim.differs.render(),
        ]);
    }
    if table.is_empty() {
        html! {}
    } else {
        table.render()
    }
}

impl Evidence<'_> {
    fn of(&self, claim: &Claim) -> Option<Markup> {
        let against = |baseline: &str, of: fn(&UntunedRuns<'_>) -> Vec<f64>| {
            let find = |name: &str| self.untuned.iter().find(|runs| runs.policy == name);
            let (policy, base) = (of(find(claim.policy)?), of(find(baseline)?));
            Some(html! { (changes(&policy, &base)?) " against " (baseline) })
        };
        match claim.measured {
            Measured::EqualEnergy => ratios(claim.policy, &self.equal_energy),
            Measured::EqualCarbon => ratios(claim.policy, &self.equal_carbon),
            Measured::Energy(baseline) => against(baseline, |runs| runs.energy_kwh.clone()),
            Measured::Runtime(baseline) => against(baseline, |runs| {
                runs.outcomes.iter().filter_map(|run| run.runtime_s_mean).collect()
            }),
            Measured::ActiveNodes(baseline) => against(baseline, |runs| {
                runs.outcomes.iter().map(|run| run.active_nodes_mean).collect()
            }),
        }
    }
}

/// The mean relative change over orders, with its range where there are several orders.
fn changes(new: &[f64], old: &[f64]) -> Option<Markup> {
    if new.is_empty() || new.len() != old.len() || old.iter().any(|old| *old <= 0.0) {
        return None;
    }
    let all: Vec<f64> = new.iter().zip(old).map(|(new, old)| new / old).collect();
    let mean = change(all.iter().sum::<f64>() / all.len() as f64, 1.0)?;
    if all.len() == 1 {
        return Some(cell(mean));
    }
    let least = change(all.iter().copied().fold(f64::INFINITY, f64::min), 1.0)?;
    let most = change(all.iter().copied().fold(0.0, f64::max), 1.0)?;
    Some(html! { (mean) " " small { "(" (least) " to " (most) ")" } })
}

/// `2.14 times over fifo, at most 2.25`, for every baseline.
fn ratios(policy: &str, all: &[(&str, &str, RatioSpread)]) -> Option<Markup> {
    let own = || all.iter().filter(|(name, ..)| *name == policy);
    own().next()?;
    Some(html! {
        ul {
            @for (_, baseline, spread) in own() {
                li {
                    (format!("{:.2}", spread.geometric_mean)) " times over " (baseline)
                    (format!(", at most {:.2}", spread.largest))
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_measured_claims_are_listed() {
        assert_eq!(draw(&Evidence::default()).0, "");
        let spread = RatioSpread { smallest: 1.0, largest: 2.25, geometric_mean: 2.14 };
        let evidence =
            Evidence { equal_energy: vec![("powerflow", "fifo", spread)], ..Evidence::default() };
        let table = draw(&evidence).0;
        assert!(table.contains("2.14 times over fifo, at most 2.25"), "{table}");
        assert!(!table.contains("eaco") && !table.contains("greenflow"), "{table}");
    }

    #[test]
    fn changes_are_means_with_their_range() {
        let text = changes(&[9.0, 22.0], &[10.0, 20.0]).unwrap().0.replace('\u{a0}', " ");
        assert_eq!(text, "0.0 % <small>(-10.0 % to +10.0 %)</small>");
        assert!(changes(&[9.0], &[]).is_none() && changes(&[], &[]).is_none());
    }
}
