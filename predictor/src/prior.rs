//! Priors: what is assumed of a job before any window of it or of its class.
//!
//! A simulated world serves measurements of some GPU types as truth. To keep the evaluation
//! independent, no measurement of a GPU type is used as a prior for that type: the power of networks,
//! measured on P100s, is not used on P100s ([`POWER_MEASURED_ON`]). All priors are wide, so that the
//! first windows dominate them.

use crate::statistics::regression::Gaussian;

/// The GPU type on which `POWER_SHARE` and `POWER_SHARE_ANY` were measured.
pub const POWER_MEASURED_ON: &str = "p100";

/// Power at the default cap as a share of that cap, by a word in the workload's name: medians of the
/// Zeus P100 traces (NSDI'23, ml-energy/zeus, Apache-2.0).
const POWER_SHARE: &[(&str, f64)] =
    &[("shufflenet", 0.42), ("resnet", 0.64), ("deepspeech", 0.49), ("bert", 0.67), ("ncf", 0.14)];
/// Standard deviation of its logarithm over batch sizes and input pipelines: 0.1 to 0.35 within a
/// network of the same traces, doubled for another GPU type.
const POWER_SHARE_SD: f64 = 0.5;
/// Median over all networks of those traces.
const POWER_SHARE_ANY: f64 = 0.40;
const POWER_SHARE_ANY_SD: f64 = 0.7;
/// Where those figures must not be used: half the cap.
const POWER_SHARE_UNKNOWN: f64 = 0.5;
const POWER_SHARE_UNKNOWN_SD: f64 = 0.8;

/// Utilization of an unknown job: anything between input-bound and saturated.
pub const UTILIZATION: Gaussian = Gaussian { mean: 0.5, sd: 0.3 };

/// Logarithm of the power at the default cap as a share of that cap, and the network it was taken
/// from. `carried`: the GPU type is not the one on which networks were measured.
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
    fn network_is_recognized_in_the_workload_name() {
        assert_eq!(power_share(Some("imagenet-ResNet50-b256"), true).1, Some("resnet"));
        assert_eq!(power_share(Some("my-own"), true).1, None);
        assert!(power_share(None, true).0.sd > power_share(Some("bert"), true).0.sd);
    }

    #[test]
    fn measurements_of_a_gpu_type_are_not_its_prior() {
        let any = power_share(None, false);
        for (word, _) in POWER_SHARE {
            assert_eq!(power_share(Some(word), false), any, "{word}");
        }
        assert_eq!(any.1, None);
    }
}
