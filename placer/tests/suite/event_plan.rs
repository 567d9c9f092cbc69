//! Plans of grid events for a large site.

pub(crate) mod site;

use wattle_common::{Power, Timestamp};
use wattle_placer::power::event_plan::EventPlanning;
use wattle_placer::power::promises::EventPromises;

#[test]
fn a_plan_of_a_large_site_keeps_the_target_and_its_parts_add_up() {
    let controller = site::busy((125, 200));
    let book = site::book(&controller);
    let (promises, of) = (EventPromises::default(), site::of_first(&book));
    let planning = EventPlanning::of(&controller, &book, &promises, of, Timestamp::EPOCH);
    let plan = planning.plan();
    assert_eq!(plan, planning.plan(), "equal inputs give equal plans");
    assert!(plan.jobs.len() > 100 && plan.jobs_left_out == 0, "{}", plan.jobs.len());
    for span in plan.hours.iter().chain(&plan.at_target) {
        let target = span.target_mw.unwrap();
        let (drawn, less) = (span.drawn_mw, span.less_mw + span.breaks_mw + span.short_mw);
        // Means of a step with a ramp have some play.
        assert!(drawn.saturating_sub(less) <= target + Power::from_w(100), "{span:?}");
        assert!(span.less_mw_low <= span.less_mw && span.less_mw <= span.less_mw_high, "{span:?}");
        let parts = (span.caps_mw + span.gpus_mw + span.pauses_mw).as_w();
        assert!((parts - span.less_mw.as_w()).abs() < 1.0, "{span:?}");
    }
    for job in plan.jobs.iter().filter(|job| job.breaks.is_none()) {
        assert!(job.loss <= job.promise.unwrap().loss() + 0.01, "{job:?}");
    }
}
