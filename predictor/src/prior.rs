//! What is believed before anything was seen: data sheets, and curves measured on other cards.
//!
//! A simulated world serves measurements of some cards as truth, and a prior must not be the answer
//! it is later judged by. So what was measured on a kind of card is never believed of that kind:
//! the networks' power, from P100s, is not used on P100s ([`POWER_MEASURED_ON`]). Everything is
//! wide on purpose: the first windows overrule it.

use crate::statistics::regression::Gaussian;

/// Board power by data sheet, watts, each form factor of a kind, ascending.
const BOARD_POWER_W: &[(&str, &[f64])] = &[
    ("k80", &[300.0]),
    ("p100", &[250.0, 300.0]),
    ("v100", &[250.0, 300.0]),
    ("t4", &[70.0]),
    ("rtx6000", &[260.0]),
    ("a10", &[150.0]),
    ("a40", &[300.0]),
    ("a100", &[250.0, 300.0, 400.0]),
    ("rtx3090", &[350.0]),
    ("rtx4090", &[450.0]),
    ("l4", &[72.0]),
    ("l40", &[300.0]),
    ("l40s", &[350.0]),
    ("h100", &[350.0, 700.0]),
    ("h200", &[600.0, 700.0]),
    ("b200", &[1_000.0]),
];

/// Idle power as a share of the default cap: data sheets and reports give 0.10 (H100) to 0.17
/// (P100, V100).
pub const IDLE_SHARE: f64 = 0.14;

/// The kind of card that [`POWER_SHARE`] and the figure for all networks were measured on.
pub const POWER_MEASURED_ON: &str = "p100";

/// Power at the default cap, in shares of that cap, of kinds of network, by a word in the
/// workload's name: medians of the Zeus P100 traces (NSDI'23, ml-energy/zeus, Apache-2.0).
const POWER_SHARE: &[(&str, f64)] =
    &[("shufflenet", 0.42), ("resnet", 0.64), ("deepspeech", 0.49), ("bert", 0.67), ("ncf", 0.14)];
/// How far another batch size or input pipeline moves it, as a deviation of the logarithm: the
/// same traces spread by 0.1 to 0.35 within a network; doubled, for another card.
const POWER_SHARE_SD: f64 = 0.5;
/// All networks of those traces together.
const POWER_SHARE_ANY: f64 = 0.40;
const POWER_SHARE_ANY_SD: f64 = 0.7;
/// Where the figures above must not be used: half the cap, which says next to nothing.
const POWER_SHARE_UNKNOWN: f64 = 0.5;
const POWER_SHARE_UNKNOWN_SD: f64 = 0.8;

/// Busy share of a job of which nothing is known: between input-bound and saturated, anything.
pub const UTILIZATION: Gaussian = Gaussian { mean: 0.5, sd: 0.3 };

/// Where a card's default cap is known from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DefaultCap {
    /// Watts.
    pub watts: f64,
    /// Whether it was seen on a card or a data sheet names it; otherwise it is a guess.
    pub known: bool,
}

/// The default cap of a kind of card, from its data sheet and the highest cap seen on one.
///
/// Of several form factors it is the smallest that could have shown that cap.
#[must_use]
pub fn default_cap(kind: &str, seen_max_w: Option<f64>) -> DefaultCap {
    let sheet = BOARD_POWER_W.iter().find(|(name, _)| *name == kind).map(|(_, forms)| *forms);
    let seen = seen_max_w.filter(|w| w.is_finite() && *w > 0.0);
    let watts = match (sheet, seen) {
        (Some(forms), Some(seen)) => {
            Some(forms.iter().copied().find(|form| *form >= seen * 0.999).unwrap_or(seen))
        }
        (Some(forms), None) => forms.first().copied(),
        (None, seen) => seen,
    };
    match watts {
        Some(watts) => DefaultCap { watts, known: true },
        // A mid-sized training card.
        None => DefaultCap { watts: 300.0, known: false },
    }
}

/// The power of a job's card at the default cap, as a logarithm of its share of that cap, and the
/// kind of network it was taken from; `carried` says that the card is of another kind than the
/// networks were measured on.
#[must_use]
pub fn power_share(workload: Option<&str>, carried: bool) -> (Gaussian, Option<&'static str>) {
    if !carried {
        let belief = Gaussian { mean: POWER_SHARE_UNKNOWN.ln(), sd: POWER_SHARE_UNKNOWN_SD };
        return (belief, None);
    }
    let lower = workload.unwrap_or_default().to_ascii_lowercase();
    match POWER_SHARE.iter().find(|(word, _)| lower.contains(word)) {
        Some((word, share)) => (Gaussian { mean: share.ln(), sd: POWER_SHARE_SD }, Some(word)),
        None => (Gaussian { mean: POWER_SHARE_ANY.ln(), sd: POWER_SHARE_ANY_SD }, None),
    }
}

/// Power with no job, watts, of a card of this default cap that drew `lowest_w` at the least while
/// at work.
#[must_use]
pub fn idle(cap_default_w: f64, lowest_w: Option<f64>) -> f64 {
    let idle = IDLE_SHARE * cap_default_w;
    // A card at work draws more than an idle one.
    lowest_w.filter(|w| w.is_finite()).map_or(idle, |lowest| idle.min(0.95 * lowest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_factor_follows_from_the_caps_seen() {
        let watts = |kind, seen| default_cap(kind, seen).watts;
        assert!((watts("v100", None) - 250.0).abs() < 1e-9);
        assert!((watts("v100", Some(150.0)) - 250.0).abs() < 1e-9);
        assert!((watts("v100", Some(300.0)) - 300.0).abs() < 1e-9);
        assert!((watts("x1", Some(420.0)) - 420.0).abs() < 1e-9);
        assert!(!default_cap("x1", None).known && !default_cap("x1", Some(f64::NAN)).known);
    }

    #[test]
    fn a_kind_of_network_is_known_by_its_name() {
        assert_eq!(power_share(Some("imagenet-ResNet50-b256"), true).1, Some("resnet"));
        assert_eq!(power_share(Some("my-own"), true).1, None);
        assert!(power_share(None, true).0.sd > power_share(Some("bert"), true).0.sd);
    }

    #[test]
    fn what_was_measured_on_a_card_is_not_believed_of_it() {
        let any = power_share(None, false);
        for (word, _) in POWER_SHARE {
            assert_eq!(power_share(Some(word), false), any, "{word}");
        }
        assert_eq!(any.1, None);
    }
}
