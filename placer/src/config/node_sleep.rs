//! Configuration of node sleep: the table `[sleep]` of `deploy/placer.toml`.
//!
//! Policies decide which nodes sleep and wake; `live/nodes/sleep.rs` carries that out.

use std::time::Duration;

use serde::Deserialize;
use wattle_common::Power;

use crate::plan::input::IDLE_BEFORE_SLEEP;
use crate::state::node::NodeWatts;

/// Configuration of node sleep. Seconds are of the system's clock.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SleepConfig {
    /// The command that wakes a node, with its arguments; `{node}` is replaced by the node's id. Absent:
    /// nodes do not sleep. It must be idempotent.
    pub wake_command: Option<Vec<String>>,
    /// Idle time before a node sleeps, at least.
    pub idle_before_sleep_s: u64,
    /// Usual wake time. A woken node stays awake for at least as long.
    pub wake_time_s: u64,
    /// Time after the sleep order within which a node must stop reporting.
    pub sleep_timeout_s: u64,
    /// Time after its wake command within which a node must report.
    pub wake_timeout_s: u64,
    /// Power of a node asleep, watts.
    pub asleep_w: Option<u64>,
    /// Power of an awake node without its GPUs, watts.
    pub host_w: Option<u64>,
    /// Power of one idle GPU, watts.
    pub gpu_idle_w: Option<u64>,
}

impl Default for SleepConfig {
    /// A wake time of three minutes and a timeout of ten: our own choice. The idle time is that of the
    /// policies ([`IDLE_BEFORE_SLEEP`]).
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
    /// Checks the values. `stale_after`: the age of a heartbeat above which a node gets no jobs.
    ///
    /// # Errors
    /// Names the key and the remedy.
    pub fn check(&self, stale_after: Duration) -> Result<(), String> {
        if self.wake_command.as_ref().is_some_and(Vec::is_empty) {
            return Err("sleep.wake_command is empty; write [\"PROGRAM\", \"{node}\"]".to_owned());
        }
        // Without sleep, the timeout keeps its default and has no effect.
        if self.is_on() && self.sleep_timeout() <= stale_after {
            return Err(format!(
                "sleep.sleep_timeout_s = {} is not above node_stale_after_ms = {}: no node would be \
                 silent long enough to count as asleep; raise sleep.sleep_timeout_s",
                self.sleep_timeout_s,
                stale_after.as_millis()
            ));
        }
        if self.wake_timeout_s < self.wake_time_s {
            return Err(format!(
                "sleep.wake_timeout_s = {} is below sleep.wake_time_s = {}: every wake would raise an alarm; \
                 raise sleep.wake_timeout_s",
                self.wake_timeout_s, self.wake_time_s
            ));
        }
        let watts = [self.asleep_w, self.host_w, self.gpu_idle_w];
        if watts.iter().any(Option::is_some) && watts.contains(&None) {
            return Err("sleep: set asleep_w, host_w and gpu_idle_w, or none of them".to_owned());
        }
        Ok(())
    }

    /// Whether nodes may sleep.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.wake_command.is_some()
    }
    /// Idle time before a node sleeps: at least its wake time.
    #[must_use]
    pub fn idle_before_sleep(&self) -> Duration {
        Duration::from_secs(self.idle_before_sleep_s.max(self.wake_time_s))
    }
    pub(crate) const fn wake_time(&self) -> Duration {
        Duration::from_secs(self.wake_time_s)
    }
    pub(crate) const fn sleep_timeout(&self) -> Duration {
        Duration::from_secs(self.sleep_timeout_s)
    }
    pub(crate) const fn wake_timeout(&self) -> Duration {
        Duration::from_secs(self.wake_timeout_s)
    }
    /// The power of a node, if configured.
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
    fn check_names_the_invalid_key() {
        let stale_after = Duration::from_secs(30);
        assert_eq!(SleepConfig::default().check(stale_after), Ok(()));
        let long = Duration::from_secs(3_600);
        assert_eq!(SleepConfig::default().check(long), Ok(()), "nodes do not sleep");
        let wrong = |change: fn(&mut SleepConfig)| {
            let wake_command = Some(vec!["wake".to_owned()]);
            let mut config = SleepConfig { wake_command, ..SleepConfig::default() };
            change(&mut config);
            config.check(stale_after).expect_err("invalid")
        };
        assert!(wrong(|c| c.wake_command = Some(vec![])).contains("sleep.wake_command is empty"));
        assert!(wrong(|c| c.sleep_timeout_s = 30).contains("sleep.sleep_timeout_s = 30"));
        assert!(wrong(|c| c.wake_timeout_s = 100).contains("sleep.wake_timeout_s = 100"));
        assert!(wrong(|c| c.host_w = Some(200)).contains("or none of them"));
        let mut config = SleepConfig { idle_before_sleep_s: 60, ..SleepConfig::default() };
        assert_eq!(config.idle_before_sleep().as_secs(), 180, "at least the wake time");
        assert_eq!(config.watts(), None);
        (config.asleep_w, config.host_w, config.gpu_idle_w) = (Some(30), Some(184), Some(50));
        let watts = config.watts().map(|watts| (watts.asleep, watts.host, watts.gpu_idle));
        assert_eq!(watts, Some((Power::from_w(30), Power::from_w(184), Power::from_w(50))));
    }
}
