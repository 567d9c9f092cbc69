//! What an operator sets for nodes that sleep: the table `[sleep]` of `deploy/placer.toml`.
//!
//! Who sleeps and wakes is a policy's to decide, what comes of it is `machine/sleeping.rs`'s.

use std::time::Duration;

use serde::Deserialize;
use wattle_common::Power;

use crate::plan::input::IDLE_BEFORE_SLEEP;
use crate::state::node::NodeWatts;

/// What an operator sets for nodes that sleep. Seconds are of the system's time.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SleepConfig {
    /// The program, with its arguments, that wakes a node; `{node}` stands for its id. Absent: no
    /// node is put to sleep. It must do no harm when it is run twice.
    pub wake_command: Option<Vec<String>>,
    /// How long nobody must have been on a node before it sleeps, at least.
    pub idle_before_sleep_s: u64,
    /// How long waking usually takes; a node that has woken stays for at least as long.
    pub wake_time_s: u64,
    /// How long a node may go on talking after it was ordered to sleep.
    pub sleep_timeout_s: u64,
    /// How long after its wake command it may be silent.
    pub wake_timeout_s: u64,
    /// What a node draws asleep, watts.
    pub asleep_w: Option<u64>,
    /// What a node draws awake beside its cards, watts.
    pub host_w: Option<u64>,
    /// What one idle card draws, watts.
    pub gpu_idle_w: Option<u64>,
}

impl Default for SleepConfig {
    /// A boot takes three minutes, and an ill one is given up after ten: our own choice. The stay is
    /// the policies' ([`IDLE_BEFORE_SLEEP`]).
    fn default() -> Self {
        Self {
            wake_command: None,
            idle_before_sleep_s: IDLE_BEFORE_SLEEP.as_secs(),
            wake_time_s: 180,
            sleep_timeout_s: 180,
            wake_timeout_s: 600,
            asleep_w: None,
            host_w: None,
            gpu_idle_w: None,
        }
    }
}

impl SleepConfig {
    /// What cannot be. `patience`: how long a node is silent before it gets no job any more.
    ///
    /// # Errors
    /// Names the key and the remedy.
    pub fn check(&self, patience: Duration) -> Result<(), String> {
        if self.wake_command.as_ref().is_some_and(Vec::is_empty) {
            return Err("sleep.wake_command is empty; write [\"PROGRAM\", \"{node}\"]".to_owned());
        }
        // Where nobody sleeps it stands at its default, whatever the patience is.
        if self.is_on() && self.sleep_timeout() <= patience {
            return Err(format!(
                "sleep.sleep_timeout_s = {} is not above node_stale_after_ms = {}: nobody would be silent long \
                 enough to be asleep; raise the first",
                self.sleep_timeout_s,
                patience.as_millis()
            ));
        }
        if self.wake_timeout_s < self.wake_time_s {
            return Err(format!(
                "sleep.wake_timeout_s = {} is below sleep.wake_time_s = {}: every waking would be an alarm; \
                 raise the first",
                self.wake_timeout_s, self.wake_time_s
            ));
        }
        let watts = [self.asleep_w, self.host_w, self.gpu_idle_w];
        if watts.iter().any(Option::is_some) && watts.contains(&None) {
            return Err("sleep: set asleep_w, host_w and gpu_idle_w, or none of them".to_owned());
        }
        Ok(())
    }

    /// Whether nodes may sleep at all.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.wake_command.is_some()
    }
    /// How long nobody must have been on a node before it sleeps.
    #[must_use]
    pub fn idle_before_sleep(&self) -> Duration {
        Duration::from_secs(self.idle_before_sleep_s.max(self.wake_time_s))
    }
    pub(crate) const fn sleep_timeout(&self) -> Duration {
        Duration::from_secs(self.sleep_timeout_s)
    }
    pub(crate) const fn wake_timeout(&self) -> Duration {
        Duration::from_secs(self.wake_timeout_s)
    }
    /// What a node draws, where it is said.
    pub(crate) fn watts(&self) -> Option<NodeWatts> {
        let power = |w: u64| Power::from_mw(w.saturating_mul(1_000));
        Some(NodeWatts {
            gpu_idle: power(self.gpu_idle_w?),
            host: power(self.host_w?),
            asleep: power(self.asleep_w?),
            wakes_in: Duration::from_secs(self.wake_time_s),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_named() {
        let patience = Duration::from_secs(30);
        assert_eq!(SleepConfig::default().check(patience), Ok(()));
        let long = Duration::from_secs(3_600);
        assert_eq!(SleepConfig::default().check(long), Ok(()), "nobody sleeps");
        let wrong = |change: fn(&mut SleepConfig)| {
            let wake_command = Some(vec!["wake".to_owned()]);
            let mut config = SleepConfig { wake_command, ..SleepConfig::default() };
            change(&mut config);
            config.check(patience).expect_err("it is wrong")
        };
        assert!(wrong(|c| c.wake_command = Some(vec![])).contains("sleep.wake_command is empty"));
        assert!(wrong(|c| c.sleep_timeout_s = 30).contains("sleep.sleep_timeout_s = 30"));
        assert!(wrong(|c| c.wake_timeout_s = 100).contains("sleep.wake_timeout_s = 100"));
        assert!(wrong(|c| c.host_w = Some(200)).contains("or none of them"));
        let mut config = SleepConfig { idle_before_sleep_s: 60, ..SleepConfig::default() };
        assert_eq!(config.idle_before_sleep().as_secs(), 180, "waking must have been worth it");
        assert_eq!(config.watts(), None);
        (config.asleep_w, config.host_w, config.gpu_idle_w) = (Some(30), Some(184), Some(50));
        let watts = config.watts().map(|watts| (watts.asleep, watts.host, watts.gpu_idle));
        assert_eq!(watts, Some((Power::from_w(30), Power::from_w(184), Power::from_w(50))));
    }
}
