//! PowerFlow: give each job what it needs, step by step, to whoever wins most time per energy.
//!
//! The rule is PowerFlow's (arXiv 2304.06381), as far as it is known: every job starts at its least
//! size; the next step (more GPUs, or another clock) goes to the job with the greatest
//! `(JCT won / JCT) / (energy spent / energy)`, until GPUs or the energy allowance end. Both are
//! relative, so what a job has left does not count, and two jobs of one kind get the same. The
//! abstract and a third-party port (chikoneuru/hasagi-parallelism) tell that much; the paper's own
//! models and its step over clocks are not published, and the following is our choice:
//!
//! * Sizes are powers of two. A step doubles the GPUs, with any clock, or raises the clock.
//! * A job starts at its least size and, there, at the clock that spends least energy a step.
//! * The allowance is a price: [`crate::PlanningLimits::price`] is the least ratio of a step that is taken, so no
//!   job waits for energy. A step that spends no more energy is always taken.
//! * Energy is what the job is charged ([`crate::power::energy_cost`]).
//! * Where not everybody can have the least, those who came first do.
//! * Of several kinds of GPU a job gets the one where the same two relative gains, weighed by the
//!   price, are greatest for all together ([`crate::policies::gpu_type_assignment`]).

use std::collections::{BTreeMap, BinaryHeap};

use wattle_common::job::GpuSetting;

use crate::allocation::transition::Target;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Plan};
use crate::policies::elastic::{Contender, Contest};
use crate::policies::gpu_type_assignment::choose;
use crate::policies::{Policy, RELATIVE_PRICES, Reads};
use crate::power::budget::PriceRange;
use crate::power::energy_cost::Charge;
use crate::state::job::State;
use crate::state::operating_points::OperatingPoint;

/// Most time per energy, step by step.
#[derive(Clone, Copy, Debug, Default)]
pub struct PowerFlow;

/// Where a job stands, and the best step from there.
struct CurrentGrants<'a> {
    contender: Contender<'a>,
    charge: Charge,
    at: &'a OperatingPoint,
    /// Ratio of the last step taken.
    last: f64,
}

/// A step that a job could take next.
#[derive(Clone, Copy)]
struct Step<'a> {
    to: &'a OperatingPoint,
    /// Time won per energy spent, both relative; infinite where it spends none.
    ratio: f64,
    /// Time won, relative.
    won: f64,
}

/// A step in the order in which steps are taken: by ratio, then by time won, then by arrival.
struct Offer {
    ratio: f64,
    won: f64,
    job: usize,
    size: u32,
    setting: GpuSetting,
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Offer {}
impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Offer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let by_gain = self.ratio.total_cmp(&other.ratio).then(self.won.total_cmp(&other.won));
        by_gain.then(other.job.cmp(&self.job))
    }
}

impl<'a> CurrentGrants<'a> {
    /// At its least size, at the clock that spends least.
    fn least(contender: Contender<'a>, charge: Charge) -> Option<Self> {
        let size = contender.sizes().next()?;
        let joules = |choice: &OperatingPoint| charge.joules_a_step(choice);
        let choices = contender.with_gpus(size).iter();
        let at = choices.min_by(|a, b| joules(a).total_cmp(&joules(b)))?;
        Some(Self { contender, charge, at, last: f64::INFINITY })
    }

    /// The best step to twice the GPUs or a faster clock, if it uses at most `room` GPUs more.
    fn next(&self, room: u32) -> Option<Step<'a>> {
        let larger = self.contender.sizes().find(|&size| size > self.at.gpus);
        let sizes = [Some(self.at.gpus), larger.filter(|size| size - self.at.gpus <= room)];
        let (time, energy) = (1.0 / self.at.steps_per_s, self.charge.joules_a_step(self.at));
        let choices = sizes.into_iter().flatten().flat_map(|n| self.contender.with_gpus(n));
        choices
            .filter(|to| to.steps_per_s > self.at.steps_per_s)
            .map(|to| {
                let won = 1.0 - (1.0 / to.steps_per_s) / time;
                let spent = self.charge.joules_a_step(to) / energy - 1.0;
                let ratio = if spent > 0.0 { won / spent } else { f64::INFINITY };
                Step { to, ratio, won }
            })
            .max_by(|a, b| a.ratio.total_cmp(&b.ratio).then(a.won.total_cmp(&b.won)))
    }
}

impl Policy for PowerFlow {
    fn name(&self) -> &str {
        "powerflow"
    }

    fn reads(&self) -> Reads {
        Reads::All
    }

    fn sets_cards(&self) -> bool {
        true
    }

    fn prices(&self) -> Option<PriceRange> {
        Some(RELATIVE_PRICES)
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        plan_at(input, input.limits.price)
    }
}

/// The plan where a step must win at least `price` of time per energy.
pub(super) fn plan_at(input: PlanningInput<'_>, price: f64) -> Plan {
    let mut contest = Contest::of(input);
    let charges: BTreeMap<&str, Charge> =
        contest.room.keys().map(|&kind| (kind, Charge::on(input, kind))).collect();
    // A step is taken where it wins `price` of time for its energy, both relative: so much is the
    // logarithm of the one worth in that of the other.
    let without = choose(input, &mut contest, &|menu, gpus| {
        let charge = charges.get(menu.gpu_type.as_str())?;
        let worth = |choice: &OperatingPoint| {
            choice.steps_per_s.ln() - price * charge.joules_a_step(choice).ln()
        };
        menu.with_gpus(gpus).iter().map(worth).reduce(f64::max)
    });
    let mut standing: Vec<CurrentGrants<'_>> = Vec::new();
    let mut first_waiting = None;
    for contender in std::mem::take(&mut contest.jobs) {
        let kind = contender.menu.gpu_type.as_str();
        let (key, job) = (contender.key, contender.job);
        let charge = charges.get(kind).copied().unwrap_or_default();
        let Some(least) = CurrentGrants::least(contender, charge) else { continue };
        match contest.room.get_mut(kind) {
            Some(left) if *left >= least.at.gpus && !without.contains(&key) => {
                *left -= least.at.gpus;
                standing.push(least);
            }
            // Whoever still runs is stopped, and waits from then on.
            left if job.state == State::Queued => {
                let free = left.map_or(0, |left| *left);
                let (asked, kind) = (job.facts.request.min, job.facts.gpu_type.clone());
                let reason =
                    Reason::NoRoom { asked, kind, free, free_on_one_node: free, alone: None };
                first_waiting.get_or_insert(Blocked { job: key, reason });
            }
            _ => {}
        }
    }
    share_out(&mut standing, &mut contest.room, price);
    let targets = standing
        .iter()
        .map(|job| Target {
            jobs: vec![job.contender.key],
            gpus: job.at.gpus,
            kind: job.contender.menu.gpu_type.clone(),
            setting: job.at.setting,
            reason: Reason::Bargain { gpus: job.at.gpus, ratio: job.last, price },
        })
        .collect();
    let before = standing.len() as u32;
    let mut plan = contest.plan(input, targets, before);
    plan.blocked = plan.blocked.or(first_waiting);
    plan
}

/// Takes the best step of all, again and again, while its ratio is at least `price`.
fn share_out(standing: &mut [CurrentGrants<'_>], room: &mut BTreeMap<&str, u32>, price: f64) {
    let mut offers = BinaryHeap::new();
    let offer = |job: usize, standing: &CurrentGrants<'_>, room: u32| {
        let step = standing.next(room)?;
        let OperatingPoint { gpus: size, setting, .. } = *step.to;
        Some(Offer { ratio: step.ratio, won: step.won, job, size, setting })
    };
    let left = |standing: &CurrentGrants<'_>, room: &BTreeMap<&str, u32>| {
        room.get(standing.contender.menu.gpu_type.as_str()).copied().unwrap_or(0)
    };
    for (index, job) in standing.iter().enumerate() {
        offers.extend(offer(index, job, left(job, room)));
    }
    while let Some(best) = offers.pop() {
        if best.ratio < price {
            break;
        }
        let job = &mut standing[best.job];
        let more = best.size - job.at.gpus;
        if more <= left(job, room) {
            let choices = job.contender.with_gpus(best.size);
            if let Some(to) = choices.iter().find(|to| to.setting == best.setting) {
                (job.at, job.last) = (to, best.ratio);
                if let Some(left) = room.get_mut(job.contender.menu.gpu_type.as_str()) {
                    *left -= more;
                }
            }
        }
        let job = &standing[best.job];
        // An offer made when there was more room may be gone; the next best is looked for.
        offers.extend(offer(best.job, job, left(job, room)));
    }
}
