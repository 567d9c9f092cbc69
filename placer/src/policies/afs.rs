//! AFS: elastic shares, each GPU to whoever gains most by it.
//!
//! Apathetic future share (Hwang et al., Elastic resource sharing for distributed deep learning, NSDI
//! 2021) shares GPUs out one by one, comparing what a further GPU adds to a job's speed relative to
//! the speed it has; it assumes nothing of the future, and knows no energy. The rule here: everybody
//! gets the least it asks for, in the order of arrival; then sizes are doubled, one job at a time,
//! always the one whose speed gains most, relative to what it is, per GPU that is added.
//!
//! Our own choices: sizes are powers of two, so that they lie in blocks; jobs' lengths, which the
//! paper's first form weighs, are not used; and a doubling is only made if it gains at least
//! [`Afs::floor`] of the speed (1 would be perfect scaling), 0 by default. With that floor, GPUs that
//! gain little stay free, which saves energy: it is the knob by which this baseline is tuned. Where
//! there are several kinds of GPU, [`crate::policies::gpu_type_assignment`] spreads jobs over them by the same relative gain.

use std::collections::{BTreeMap, BinaryHeap};

use wattle_common::job::GpuSetting;

use crate::allocation::transition::Target;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Plan};
use crate::policies::elastic::{Contender, Contest};
use crate::policies::gpu_type_assignment::choose;
use crate::policies::{Policy, Reads};
use crate::state::job::State;
use crate::state::operating_points::OperatingPoint;

/// Elastic shares by relative gain per GPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Afs {
    /// What a doubling must gain at least, relative to the speed before it.
    pub floor: f64,
}

struct Share<'a> {
    contender: Contender<'a>,
    at: &'a OperatingPoint,
}

/// A job's next size, ordered by its gain per GPU, then by arrival.
struct Offer<'a> {
    gain: f64,
    index: usize,
    to: &'a OperatingPoint,
}

impl PartialEq for Offer<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Offer<'_> {}
impl PartialOrd for Offer<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Offer<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.gain.total_cmp(&other.gain).then(other.index.cmp(&self.index))
    }
}

/// What a job does with so many GPUs as the site sets them.
fn choice<'a>(contender: &Contender<'a>, gpus: u32) -> Option<&'a OperatingPoint> {
    as_set(contender.with_gpus(gpus))
}

fn as_set(choices: &[OperatingPoint]) -> Option<&OperatingPoint> {
    choices.iter().find(|choice| choice.setting == GpuSetting::DEFAULT).or(choices.first())
}

impl<'a> Share<'a> {
    fn next(&self, index: usize, floor: f64) -> Option<Offer<'a>> {
        let size = self.contender.sizes().find(|&size| size > self.at.gpus)?;
        let to = choice(&self.contender, size)?;
        let more = f64::from(size - self.at.gpus);
        let gain = to.steps_per_s / self.at.steps_per_s - 1.0;
        // The last size of a range may be less than twice the one before.
        let of_a_doubling = gain * f64::from(self.at.gpus) / more;
        let enough = gain > 0.0 && of_a_doubling >= floor;
        enough.then_some(Offer { gain: gain / more, index, to })
    }
}

impl Policy for Afs {
    fn name(&self) -> &'static str {
        "afs"
    }

    fn reads(&self) -> Reads {
        Reads::All
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut contest = Contest::of(input);
        // The gain this rule compares is that of the logarithm of speed.
        let without = choose(input, &mut contest, &|menu, gpus| {
            as_set(menu.with_gpus(gpus)).map(|choice| choice.steps_per_s.ln())
        });
        let mut shares: Vec<Share<'_>> = Vec::new();
        let mut first_waiting = None;
        for contender in std::mem::take(&mut contest.jobs) {
            let least = contender.sizes().next().and_then(|size| choice(&contender, size));
            let Some(at) = least else { continue };
            match contest.room.get_mut(contender.menu.gpu_type.as_str()) {
                Some(left) if *left >= at.gpus && !without.contains(&contender.key) => {
                    *left -= at.gpus;
                    shares.push(Share { contender, at });
                }
                _ if contender.job.state == State::Queued => {
                    let before = shares.len() as u32;
                    let reason = Reason::Outranked { before };
                    first_waiting.get_or_insert(Blocked { job: contender.key, reason });
                }
                _ => {}
            }
        }
        share_out(&mut shares, &mut contest.room, self.floor);
        let targets = shares.iter().map(|share| Target {
            jobs: vec![share.contender.key],
            gpus: share.at.gpus,
            kind: share.contender.menu.gpu_type.clone(),
            setting: GpuSetting::DEFAULT,
            reason: Reason::Share { gpus: share.at.gpus },
        });
        let targets = targets.collect();
        let mut plan = contest.plan(input, targets, shares.len() as u32);
        plan.blocked = plan.blocked.or(first_waiting);
        plan
    }
}

fn share_out(shares: &mut [Share<'_>], room: &mut BTreeMap<&str, u32>, floor: f64) {
    let offers = shares.iter().enumerate().filter_map(|(index, share)| share.next(index, floor));
    let mut offers: BinaryHeap<Offer<'_>> = offers.collect();
    while let Some(best) = offers.pop() {
        let share = &mut shares[best.index];
        let more = best.to.gpus - share.at.gpus;
        match room.get_mut(share.contender.menu.gpu_type.as_str()) {
            Some(left) if *left >= more => *left -= more,
            // Smaller steps of others may still fit.
            _ => continue,
        }
        share.at = best.to;
        offers.extend(share.next(best.index, floor));
    }
}
