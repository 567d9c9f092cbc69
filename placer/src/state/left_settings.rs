//! The settings that the GPUs of a job left lately.
//!
//! A setting that was changed lasts for [`SETTING_LASTS`] ([`crate::allocation::settling`]), also where others came
//! between: below a budget with a short window a cap would otherwise go from 150 to 175 to 200 W and back to 150 W
//! within a minute.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;

/// How long a setting that was left is not chosen again: our own choice. A cap that swings by the minute between
/// neighbouring values saves nothing over any of them.
pub const SETTING_LASTS: Duration = Duration::from_secs(600);
/// Settings kept for each job; the oldest are dropped. A round every 38 s that changes the setting fills them.
const KEPT_MAX: usize = 16;

/// The settings that a job left within [`SETTING_LASTS`], each with the last time, the last one at the end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeftSettings(Vec<(GpuSetting, Timestamp)>);

impl LeftSettings {
    /// None.
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// The job has left this setting now.
    pub(crate) fn add(&mut self, setting: GpuSetting, now: Timestamp) {
        self.0.retain(|(left, at)| *left != setting && *at + SETTING_LASTS > now);
        if self.0.len() == KEPT_MAX {
            self.0.remove(0);
        }
        self.0.push((setting, now));
    }

    /// Until when this setting is not chosen again; `None` if it may be chosen.
    #[must_use]
    pub fn avoided_until(&self, setting: GpuSetting, now: Timestamp) -> Option<Timestamp> {
        let (_, at) = self.0.iter().find(|(left, _)| *left == setting)?;
        Some(*at + SETTING_LASTS).filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::Power;

    fn cap(watts: u64) -> GpuSetting {
        GpuSetting { cap_mw: Some(Power::from_w(watts)), ..GpuSetting::DEFAULT }
    }

    #[test]
    fn every_setting_that_was_left_is_avoided_for_ten_minutes() {
        let at = Timestamp::from_s;
        let mut left = LeftSettings::new();
        for (watts, s) in [(150, 0), (175, 20), (200, 40)] {
            left.add(cap(watts), at(s));
        }
        let until = |left: &LeftSettings, watts, s| left.avoided_until(cap(watts), at(s));
        assert_eq!(until(&left, 150, 60), Some(at(600)));
        assert_eq!(until(&left, 175, 60), Some(at(620)));
        assert_eq!(until(&left, 225, 60), None);
        assert_eq!(until(&left, 150, 600), None);
        // The last time counts.
        left.add(cap(175), at(300));
        assert_eq!(until(&left, 175, 620), Some(at(900)));
    }

    #[test]
    fn a_bounded_number_is_kept() {
        let mut left = LeftSettings::new();
        for s in 0..40 {
            left.add(cap(100 + s), Timestamp::from_s(s));
        }
        assert_eq!(left.0.len(), KEPT_MAX);
        let now = Timestamp::from_s(40);
        assert_eq!(left.avoided_until(cap(139), now), Some(Timestamp::from_s(639)));
        assert_eq!(left.avoided_until(cap(100), now), None);
        // What was left more than ten minutes ago is dropped.
        left.add(cap(99), Timestamp::from_s(1_000));
        assert_eq!(left.0.len(), 1);
    }
}
