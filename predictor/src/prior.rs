//! What is believed before anything was seen: data sheets, and curves measured on other cards.
//!
//! A simulated world serves measurements of some cards as truth, and a prior must not be the answer
//! it is later judged by. So what was measured on a kind of card is never believed of that kind:
//! the networks' power, from P100s, is not used on P100s ([`POWER_MEASURED_ON`]). Everything is
//! wide on purpose: the first windows overrule it.

use crate::statistics::regression::Gaussian;

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

#[cfg(test)]
mod tests {
    use super::*;

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
