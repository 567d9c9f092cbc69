//! The correction of predicted power by measured power below a power limit, in words.

use wattle_common::messages::PowerMargin;

/// Measured against predicted power, both above idle, with its base and what plans count above it; `None` where plans
/// count every job with its prediction.
#[must_use]
pub fn correction(margin: &PowerMargin) -> Option<String> {
    let corrected = margin.jobs_below + margin.jobs_above;
    let measured = margin.measured_ratio.zip(margin.plan_margin).filter(|_| corrected > 0);
    let (ratio, plan) = measured?;
    let (percent, side) =
        (100.0 * (ratio - 1.0).abs(), if ratio < 1.0 { "below" } else { "above" });
    let jobs = if corrected == 1 { "1 job".to_owned() } else { format!("{corrected} jobs") };
    Some(format!(
        "measured power of {jobs} is {percent:.1} % {side} predicted over the last {:.0} s; the plan's margin is \
         {:.1} % of predicted power",
        PowerMargin::MEASURED_OVER_S,
        100.0 * plan
    ))
}

/// The share of the site's limit that was unused; `None` where it is not known.
#[must_use]
pub fn unused(margin: &PowerMargin) -> Option<String> {
    let share = margin.unused_share?;
    Some(format!(
        "{:.1} % of the limit was unused while jobs waited, over about the last hour",
        100.0 * share
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: PowerMargin = PowerMargin {
        correction: 1.0,
        jobs_below: 0,
        jobs_above: 0,
        jobs_measured: 0,
        measured_ratio: None,
        plan_margin: None,
        unused_share: None,
    };

    #[test]
    fn the_correction_is_stated_only_where_it_acts() {
        let measured = PowerMargin { jobs_measured: 3, ..NONE };
        assert_eq!([NONE, measured].map(|margin| correction(&margin)), [None, None]);
        let acts = PowerMargin {
            correction: 0.876,
            jobs_below: 1,
            measured_ratio: Some(0.8513),
            plan_margin: Some(0.02),
            ..measured
        };
        let text = "measured power of 1 job is 14.9 % below predicted over the last 10 s; the plan's margin is 2.0 % \
                    of predicted power";
        assert_eq!(correction(&acts).as_deref(), Some(text));
        let above = PowerMargin {
            jobs_above: 2,
            measured_ratio: Some(1.031),
            plan_margin: Some(0.0),
            ..acts
        };
        let text = "measured power of 3 jobs is 3.1 % above predicted over the last 10 s; the plan's margin is 0.0 % \
                    of predicted power";
        assert_eq!(correction(&above).as_deref(), Some(text));
    }

    #[test]
    fn the_unused_share_has_its_time() {
        let text = "1.4 % of the limit was unused while jobs waited, over about the last hour";
        let margin = PowerMargin { unused_share: Some(0.0142), ..NONE };
        assert_eq!(unused(&margin).as_deref(), Some(text));
        assert_eq!(unused(&NONE), None);
    }
}
