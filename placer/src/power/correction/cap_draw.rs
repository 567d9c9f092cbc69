//! The share of its cap that a slowed GPU draws, as measured: by node, by job and by cap.
//!
//! The share falls as caps rise: towards the power that the job draws without one. So a share that was measured at a cap
//! is an upper bound at higher ones, and at lower ones gets a margin until it is measured there.

use std::time::Duration;

use wattle_common::Timestamp;

use super::FADES_IN_S;

/// The least share that counts.
pub const DRAWN_LEAST: f64 = 0.9;
/// Time for which it must be measured before it falls.
const MEASURED_MIN: Duration = Duration::from_secs(3);
/// Time for which it does not fall after the limit was exceeded.
const HELD_FOR: Duration = Duration::from_secs(10);
/// The margin above the measured share, and that of noise, standard deviations of the readings of a second.
const MARGIN: f64 = 0.0005;
const NOISE_DEVIATIONS: f64 = 1.0;
/// Least change up and down, and in standard deviations, so that noise leads to no plan.
const STEP_UP: f64 = 0.0005;
const STEP_DOWN: f64 = 0.0015;
const STEP_UP_DEVIATIONS: f64 = 0.5;
const STEP_DOWN_DEVIATIONS: f64 = 1.0;
/// What is added to a share for a lower cap than any at which it was measured, by the relative difference of the caps.
const BELOW_MEASURED: f64 = 0.2;
/// Shares at caps closer than this are one, watts.
const CAP_STEP_W: f64 = 2.5;
/// Most caps of a job of which the shares are kept.
const CAPS_MAX: usize = 16;
/// Steps to the cap for a power: each is closer, and none too high.
const CAP_ITERATIONS: usize = 4;

/// The shares of its caps that each GPU of a job draws, by cap, watts, ascending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrawnShares(Vec<(f64, f64)>);

impl DrawnShares {
    /// The share at a cap, at most 1.
    #[must_use]
    pub fn at(&self, cap_w: f64) -> f64 {
        let lower = self.0.partition_point(|(cap, _)| *cap <= cap_w + CAP_STEP_W);
        match (lower.checked_sub(1).map(|at| self.0[at]), self.0.first()) {
            (Some((_, share)), _) => share,
            (None, Some((cap, share))) => (share + BELOW_MEASURED * (1.0 - cap_w / cap)).min(1.0),
            (None, None) => 1.0,
        }
    }

    /// The cap at which a GPU draws this power, watts.
    #[must_use]
    pub fn cap_w(&self, watts: f64) -> f64 {
        (0..CAP_ITERATIONS).fold(watts, |cap_w, _| watts / self.at(cap_w))
    }

    /// Whether whole caps count.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same with shares of at least this.
    pub(super) fn at_least(&self, least: f64) -> Self {
        Self(self.0.iter().map(|(cap, share)| (*cap, share.max(least))).collect())
    }

    fn add(&mut self, cap_w: f64, share: f64) {
        self.0.retain(|(cap, _)| (cap - cap_w).abs() > CAP_STEP_W);
        let at = self.0.partition_point(|(cap, _)| *cap < cap_w);
        self.0[..at].iter_mut().for_each(|lower| lower.1 = lower.1.max(share));
        self.0.insert(at, (cap_w, share));
        if self.0.len() > CAPS_MAX {
            let farthest = if at > CAPS_MAX / 2 { 0 } else { self.0.len() - 1 };
            self.0.remove(farthest);
        }
    }
}

/// What the GPUs of a job on one node, all at their caps, draw of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapReading {
    /// Their power over the sum of their caps.
    pub share: f64,
    /// Their mean cap, watts.
    pub cap_w: f64,
}

/// The readings of one node under its present conditions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeDraw {
    measured_for: Duration,
    mean: f64,
    variance: f64,
    cap_w: f64,
}

impl NodeDraw {
    /// Adds a reading over settled time; absent: some GPU was not at its cap.
    pub(super) fn add(&mut self, reading: Option<CapReading>, span: Duration) {
        let Some(reading) = reading else {
            *self = Self::default();
            return;
        };
        if self.measured_for.is_zero() {
            (self.mean, self.variance) = (reading.share, 0.0);
        }
        let weight = 1.0 - (-span.as_secs_f64() / FADES_IN_S).exp();
        let off = reading.share - self.mean;
        self.mean += weight * off;
        self.variance = (1.0 - weight) * (self.variance + weight * off * off);
        self.measured_for = self.measured_for.saturating_add(span);
        self.cap_w = reading.cap_w;
    }

    fn share(&self, margin: f64) -> f64 {
        let noise = NOISE_DEVIATIONS * self.deviation();
        (self.mean + MARGIN + margin + noise).clamp(DRAWN_LEAST, 1.0)
    }

    fn deviation(&self) -> f64 {
        self.variance.sqrt()
    }

    fn awaits(&self) -> Duration {
        MEASURED_MIN.saturating_sub(self.measured_for)
    }
}

/// The shares by which the power of a job under caps counts.
#[derive(Clone, Debug)]
pub(super) struct JobDraw {
    pub(super) shares: DrawnShares,
    held_until: Timestamp,
}

impl Default for JobDraw {
    fn default() -> Self {
        Self { shares: DrawnShares::default(), held_until: Timestamp::EPOCH }
    }
}

impl JobDraw {
    /// Counts with whole caps.
    pub(super) fn forget(&mut self) {
        self.shares = DrawnShares::default();
    }

    /// Counts with whole caps for a while.
    pub(super) fn release(&mut self, now: Timestamp) {
        self.forget();
        self.held_until = now + HELD_FOR;
    }

    /// Adopts the highest share of these nodes, of all nodes of the job.
    pub(super) fn adopt<'n>(
        &mut self,
        now: Timestamp,
        margin: f64,
        nodes: impl Iterator<Item = &'n NodeDraw> + Clone,
    ) {
        if !nodes.clone().all(|node| node.awaits().is_zero()) {
            return;
        }
        let next = Highest::of(margin, nodes);
        if self.takes(&next, now) {
            self.shares.add(next.cap_w, next.share);
        }
    }

    fn takes(&self, next: &Highest, now: Timestamp) -> bool {
        let known = self.shares.at(next.cap_w);
        let up = STEP_UP.max(STEP_UP_DEVIATIONS * next.deviation);
        let down = STEP_DOWN.max(STEP_DOWN_DEVIATIONS * next.deviation);
        next.share > known + up || (next.share < known - down && now >= self.held_until)
    }

    /// When it changes next if each power stays as it is; of each node its readings and their settled end.
    pub(super) fn changes_at<'n>(
        &self,
        margin: f64,
        nodes: impl Iterator<Item = (&'n NodeDraw, Timestamp)> + Clone,
    ) -> Option<Timestamp> {
        if !nodes.clone().all(|(node, _)| node.cap_w > 0.0) {
            return None;
        }
        let next = Highest::of(margin, nodes.clone().map(|(node, _)| node));
        let at = nodes.map(|(node, until)| until + node.awaits()).max()?;
        let falls = next.share < self.shares.at(next.cap_w);
        let at = if falls { at.max(self.held_until) } else { at };
        self.takes(&next, at).then_some(at)
    }
}

/// The highest cap, share and deviation of the nodes of a job.
struct Highest {
    cap_w: f64,
    share: f64,
    deviation: f64,
}

impl Highest {
    fn of<'n>(margin: f64, nodes: impl Iterator<Item = &'n NodeDraw>) -> Self {
        let none = Self { cap_w: 0.0, share: DRAWN_LEAST, deviation: 0.0 };
        nodes.fold(none, |highest, node| Self {
            cap_w: node.cap_w.max(highest.cap_w),
            share: node.share(margin).max(highest.share),
            deviation: node.deviation().max(highest.deviation),
        })
    }
}
