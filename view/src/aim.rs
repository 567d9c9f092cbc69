//! The state of the energy aim in words.

use wattle_common::messages::AimStatus;

/// Smaller prices are none: they are shown as 0.
const PRICE_LEAST: f64 = 0.0005;

/// Where the price is 0 and jobs are estimated to complete later than the bound permits: that no energy can be saved now.
/// The estimate is a mean over the last day, so that it does not exceed the bound for an instant. `None` otherwise.
#[must_use]
pub fn nothing_to_save(aim: &AimStatus) -> Option<&'static str> {
    let later = aim.slowdown()?;
    (aim.price < PRICE_LEAST && later > aim.max_slowdown).then_some(
        "no energy can be saved now by caps, clocks and sizes without jobs completing later than the bound permits",
    )
}

#[cfg(test)]
mod tests {
    use wattle_common::Timestamp;
    use wattle_common::aim::Baseline;

    use super::*;

    fn aim(delay_s: f64, price: f64) -> AimStatus {
        AimStatus {
            at_us: Timestamp::from_s(1),
            baseline: Some(Baseline::Backfill),
            max_slowdown: 0.03,
            present_s: 1_000.0,
            delay_s,
            price,
            policy_price: price,
            max_project_slowdown: None,
            projects: Vec::new(),
        }
    }

    #[test]
    fn nothing_can_be_saved_at_price_0_above_the_bound() {
        // 40 of 960 s are 4.2 %, 20 of 980 s 2.0 %.
        assert!(nothing_to_save(&aim(40.0, 0.0)).is_some());
        assert!(nothing_to_save(&aim(20.0, 0.0)).is_none(), "below the bound");
        assert!(nothing_to_save(&aim(40.0, 0.2)).is_none(), "the price falls");
        assert!(nothing_to_save(&AimStatus { present_s: 0.0, ..aim(0.0, 0.0) }).is_none());
    }
}
