//! The power limit of a node: the largest sum of the caps of its GPUs.
//!
//! Every GPU keeps its requested cap, but at most a common level: the highest number of entire watts at
//! which the sum of all caps is within the limit. No cap falls below the lowest that its GPU supports.
//! A GPU whose cap cannot be changed counts with the highest cap that it may have.

use wattle_common::Power;

/// The cap of one GPU under the node's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CapRequest {
    /// It can be set: the requested cap, and the lowest that the GPU supports.
    Settable { requested: Power, lowest: Power },
    /// It cannot be set and is at most this.
    Fixed(Power),
}

impl CapRequest {
    /// The cap at this common level.
    pub(crate) fn at(self, level: Power) -> Power {
        match self {
            Self::Settable { requested, lowest } => requested.min(level.max(lowest)),
            Self::Fixed(cap) => cap,
        }
    }
}

/// The highest common level at which the sum of the caps is within the limit.
///
/// # Errors
/// The sum of the lowest possible caps, if it exceeds the limit.
pub(crate) fn common_level(caps: &[CapRequest], limit: Power) -> Result<Power, Power> {
    let sum_at = |level: Power| caps.iter().map(|cap| cap.at(level)).sum::<Power>();
    let highest = caps.iter().map(|cap| cap.at(limit)).max().unwrap_or_default().max(limit);
    if sum_at(highest) <= limit {
        return Ok(highest);
    }
    let lowest = sum_at(Power::ZERO);
    if lowest > limit {
        return Err(lowest);
    }
    // `below` fits, `above` does not.
    let (mut below, mut above) = (0, highest.as_mw() / 1_000 + 1);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if sum_at(Power::from_w(middle)) <= limit {
            below = middle;
        } else {
            above = middle;
        }
    }
    Ok(Power::from_w(below))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn w(watts: u64) -> Power {
        Power::from_w(watts)
    }

    fn caps(requested: &[u64]) -> Vec<CapRequest> {
        let settable = |cap: &u64| CapRequest::Settable { requested: w(*cap), lowest: w(100) };
        requested.iter().map(settable).collect()
    }

    fn at_level(caps: &[CapRequest], limit: u64) -> Vec<u64> {
        let level = common_level(caps, w(limit)).unwrap();
        caps.iter().map(|cap| cap.at(level).as_mw() / 1_000).collect()
    }

    #[test]
    fn higher_caps_are_lowered_to_a_common_level() {
        assert_eq!(at_level(&caps(&[300, 150, 250]), 700), [300, 150, 250]);
        assert_eq!(at_level(&caps(&[300, 150, 250]), 600), [225, 150, 225]);
        assert_eq!(at_level(&caps(&[300, 150, 250]), 400), [133, 133, 133]);
        assert_eq!(at_level(&caps(&[300, 100, 250]), 300), [100, 100, 100]);
        assert_eq!(common_level(&caps(&[300, 150, 250]), w(299)), Err(w(300)));
        assert_eq!(at_level(&[], 10), [0; 0]);
    }

    #[test]
    fn a_cap_that_cannot_be_set_reduces_the_others() {
        let caps = [caps(&[300, 300]), vec![CapRequest::Fixed(w(280))]].concat();
        assert_eq!(at_level(&caps, 600), [160, 160, 280]);
        assert_eq!(common_level(&caps, w(400)), Err(w(480)));
    }

    proptest! {
        /// The caps are within the limit, and no level above would be.
        #[test]
        fn level_is_the_highest_that_fits(
            requested in prop::collection::vec((1u64..1_000, 1u64..300, any::<bool>()), 0..9),
            limit in 0u64..5_000,
        ) {
            let cap = |(requested, lowest, settable): &(u64, u64, bool)| if *settable {
                CapRequest::Settable { requested: w(*requested.max(lowest)), lowest: w(*lowest) }
            } else {
                CapRequest::Fixed(w(*requested))
            };
            let caps: Vec<CapRequest> = requested.iter().map(cap).collect();
            let sum = |level| caps.iter().map(|cap| cap.at(level)).sum::<Power>();
            match common_level(&caps, w(limit)) {
                Ok(level) => {
                    prop_assert!(sum(level) <= w(limit));
                    let above = sum(level + w(1));
                    prop_assert!(above > w(limit) || above == sum(level));
                }
                Err(lowest) => prop_assert!(lowest == sum(Power::ZERO) && lowest > w(limit)),
            }
        }
    }
}
