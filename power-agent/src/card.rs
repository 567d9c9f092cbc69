//! One card: what it is, what it may be set to, what it is set to.
//!
//! Every value that is ever set on a card passes [`CardFacts::check_cap`] or
//! [`CardFacts::check_clock`] here, so this is the place that keeps caps inside the card's own
//! constraints. It does not know why a value is wanted.

use wattle_common::messages::DesiredGpu;
use wattle_common::{Frequency, Power, Timestamp};

use crate::config::Settings;

/// What a card says of itself and what no order changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardFacts {
    /// Its UUID.
    pub uuid: String,
    /// Its kind, as in `v100`.
    pub kind: String,
    /// Device memory in MiB.
    pub memory_mib: u64,
    /// The cap it has by itself.
    pub cap_default: Option<Power>,
    /// The lowest and the highest cap it takes; absent where it takes none.
    pub cap_range: Option<(Power, Power)>,
    /// The lowest and the highest SM clock it can be locked to; absent where it takes none.
    pub clock_range: Option<(Frequency, Frequency)>,
}

/// One reading of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardRead {
    /// What it is.
    pub facts: CardFacts,
    /// The cap that stands on it.
    pub cap: Option<Power>,
    /// Its SM clock at this moment.
    pub clock: Option<Frequency>,
}

/// Why the driver did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whether the card cannot do it at all, as against not now or not for us.
    pub unsupported: bool,
    /// The driver's words, with the remedy.
    pub error: String,
}

impl CardFacts {
    /// Whether `cap` is one the card takes.
    ///
    /// # Errors
    /// In words for the report, if it is not.
    pub fn check_cap(&self, cap: Power) -> Result<(), String> {
        match self.cap_range {
            None => Err(format!("cap of {cap}: this card takes no power cap")),
            Some((min, max)) if cap < min || cap > max => {
                Err(format!("cap of {cap}: this card takes {min} to {max}"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Whether `clock` is one the card can be locked to.
    ///
    /// # Errors
    /// In words for the report, if it is not.
    pub fn check_clock(&self, clock: Frequency) -> Result<(), String> {
        match self.clock_range {
            None => Err(format!("clock of {clock}: this card's clock cannot be locked")),
            Some((min, max)) if clock < min || clock > max => {
                Err(format!("clock of {clock}: this card takes {min} to {max}"))
            }
            Some(_) => Ok(()),
        }
    }

    /// The cap this card is left with when nobody holds a lease on it: the configured one moved
    /// inside the card's constraints, or the card's default. `None` where it takes no cap.
    #[must_use]
    pub fn safe_cap(&self, configured: Option<Power>) -> Option<Power> {
        let (min, max) = self.cap_range?;
        let wanted = configured.or(self.cap_default).unwrap_or(max);
        // min <= max is not taken on trust from a driver: `clamp` would panic.
        Some(wanted.min(max).max(min)).filter(|cap| self.check_cap(*cap).is_ok())
    }
}

/// What a card shall be set to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Goal {
    /// The cap; `None` where the card takes none.
    pub(crate) cap: Option<Power>,
    /// The highest clock; `None`: not locked.
    pub(crate) clock: Option<Frequency>,
}

/// A card as the machine knows it.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) facts: CardFacts,
    pub(crate) healthy: bool,
    /// The cap that stands, as last read or set.
    pub(crate) cap: Option<Power>,
    /// The lock that stands, as last set: unknown, none, or at a clock. No driver call tells.
    pub(crate) clock: Option<Option<Frequency>>,
    /// Whether somebody else may have changed the lock since.
    pub(crate) clock_doubted: bool,
    pub(crate) goal: Goal,
    /// Why the last order was not accepted.
    pub(crate) order_refused: Option<String>,
    /// Why the driver did not set the cap, until it does.
    pub(crate) cap_refused: Option<String>,
    /// Why the driver did not set the clock, until it does.
    pub(crate) clock_refused: Option<String>,
    /// Whether a cap has been sent to the driver and not been answered yet.
    pub(crate) cap_pending: bool,
    /// Whether a clock has been sent to the driver and not been answered yet.
    pub(crate) clock_pending: bool,
    /// Whether the driver refused the cap, so that it is not asked again before the next reading.
    pub(crate) cap_blocked: bool,
    /// The same for the clock.
    pub(crate) clock_blocked: bool,
    /// When the ramp may take its next step.
    pub(crate) step_at: Timestamp,
}

impl Card {
    pub(crate) fn new(facts: CardFacts, settings: &Settings) -> Self {
        let cap = facts.safe_cap(settings.safe_cap);
        Self {
            facts,
            healthy: true,
            cap: None,
            clock: None,
            clock_doubted: false,
            goal: Goal { cap, clock: None },
            order_refused: None,
            cap_refused: None,
            clock_refused: None,
            cap_pending: false,
            clock_pending: false,
            cap_blocked: false,
            clock_blocked: false,
            step_at: Timestamp::EPOCH,
        }
    }

    /// The safe state becomes the goal.
    pub(crate) fn aim_safe(&mut self, settings: &Settings) {
        self.goal = Goal { cap: self.facts.safe_cap(settings.safe_cap), clock: None };
        self.order_refused = None;
    }

    /// An order becomes the goal, as far as the card takes it; what it does not take leaves the
    /// previous goal standing and is remembered for the report.
    pub(crate) fn aim(&mut self, order: Option<&DesiredGpu>) {
        let mut refused = Vec::new();
        match order.and_then(|o| o.cap_mw) {
            Some(cap) => match self.facts.check_cap(cap) {
                Ok(()) => self.goal.cap = Some(cap),
                Err(error) => refused.push(error),
            },
            // No cap ordered means the card's default. One that names none keeps what it has.
            None => {
                if let Some(cap) = self.facts.cap_default
                    && self.facts.check_cap(cap).is_ok()
                {
                    self.goal.cap = Some(cap);
                }
            }
        }
        match order.and_then(|o| o.clock_mhz_max) {
            Some(clock) => match self.facts.check_clock(clock) {
                Ok(()) => self.goal.clock = Some(clock),
                Err(error) => refused.push(error),
            },
            None => self.goal.clock = None,
        }
        self.order_refused = (!refused.is_empty()).then(|| refused.join("; "));
    }

    /// Whether card and goal agree, as far as is known.
    pub(crate) fn settled(&self) -> bool {
        (self.goal.cap.is_none() || self.cap == self.goal.cap)
            && self.clock == Some(self.goal.clock)
    }

    /// The cap to set next on the way to the goal: at most `step` away from where it stands, or
    /// the goal itself with no ramp (`step` zero) or from an unknown cap.
    pub(crate) fn next_cap(&self, step: Power) -> Option<Power> {
        let goal = self.goal.cap?;
        let Some(cap) = self.cap else { return Some(goal) };
        if cap == goal {
            return None;
        }
        let next = if step == Power::ZERO {
            goal
        } else if cap < goal {
            (cap + step).min(goal)
        } else {
            cap.saturating_sub(step).max(goal)
        };
        // A foreign hand may have left the cap anywhere; the way back is inside the constraints.
        Some(if self.facts.check_cap(next).is_ok() { next } else { goal })
    }

    /// Everything refused on it, for the report.
    pub(crate) fn last_error(&self) -> Option<String> {
        let all: Vec<&str> = [&self.order_refused, &self.cap_refused, &self.clock_refused]
            .into_iter()
            .filter_map(|text| text.as_deref())
            .collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

#[cfg(test)]
pub(crate) fn v100() -> CardFacts {
    CardFacts {
        uuid: "GPU-0".into(),
        kind: "v100".into(),
        memory_mib: 16_384,
        cap_default: Some(Power::from_w(300)),
        cap_range: Some((Power::from_w(100), Power::from_w(300))),
        clock_range: Some((Frequency::from_mhz(135), Frequency::from_mhz(1_530))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_safe_cap_lies_inside_the_constraints() {
        let card = v100();
        let w = Power::from_w;
        assert_eq!(card.safe_cap(None), Some(w(300)));
        assert_eq!(card.safe_cap(Some(w(180))), Some(w(180)));
        assert_eq!(card.safe_cap(Some(w(50))), Some(w(100)));
        assert_eq!(card.safe_cap(Some(w(500))), Some(w(300)));
        assert_eq!(CardFacts { cap_range: None, ..card.clone() }.safe_cap(None), None);
        let nonsense = Some((w(300), w(100)));
        assert_eq!(CardFacts { cap_range: nonsense, ..card }.safe_cap(Some(w(200))), None);
    }

    #[test]
    fn the_ramp_ends_at_the_goal() {
        let w = Power::from_w;
        let mut card = Card::new(v100(), &Settings::default());
        card.goal.cap = Some(w(100));
        card.cap = Some(w(300));
        let mut way = Vec::new();
        while let Some(next) = card.next_cap(w(80)) {
            way.push(next);
            card.cap = Some(next);
        }
        assert_eq!(way, [w(220), w(140), w(100)]);
        card.cap = Some(w(20)); // as a foreign hand on other firmware might leave it
        assert_eq!(card.next_cap(w(50)), Some(w(100)));
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let error = v100().check_cap(Power::from_w(350)).unwrap_err();
        assert_eq!(error, "cap of 350 W: this card takes 100 W to 300 W");
        let error = v100().check_clock(Frequency::from_mhz(2_000)).unwrap_err();
        assert_eq!(error, "clock of 2000 MHz: this card takes 135 MHz to 1530 MHz");
    }
}
