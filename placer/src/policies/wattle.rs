//! Wattle's own policy: each job's work is worth what GPUs are expected to cost when it will be done.
//!
//! Completion times plus [`crate::PlanningLimits::price`] times energy are to be least in sum, so the price is in
//! seconds of completion time for a joule; 0: energy is free. With `nu(t)` the value of a GPU-second
//! at `t`, every job's input can be solved on its own, and a unit of its work is worth, now and for
//! as long as it runs, what it costs where the job ends (optimal control; the finish condition):
//!
//! ```text
//! p = c(nu(T)),   c(nu) = min over choices of (1 + price * watts + nu * gpus) / speed
//! ```
//!
//! A job gets the choice that is worth most, `p * speed - price * watts - nu(now) * gpus`; or none.
//! Short jobs end while GPUs are dear, so that their work is worth more: they go first, but only as
//! far as prices differ. `nu(now)` is the least at which no more GPUs are wanted than there are;
//! from there it is expected to return to its long-run value: `later + (nu - later) exp(-t / tau)`.
//! GPUs are then given out in whole numbers to be worth most in sum, and clocks follow.
//!
//! Where the grid's intensity is known, `watts` are charged at the intensity now over its mean, and
//! `c` goes on at the mean: in dirty hours work is slower, or waits where that is worth less than its
//! time, and in clean ones it is made up for.
//!
//! What is our own choice:
//! * `later` is 0.1 s a GPU-second: the price at which a job whose speed grows as the root of its
//!   GPUs takes ten. It does not depend on the size of a cluster, only on how widely jobs are spread
//!   over one; half or thrice of it changes little.
//! * `tau` is six times a job's mean duration: the mean size of past jobs at the speed at which work
//!   costs least in the long run. It begins at 100 h, with the weight of thirty jobs, since the first
//!   jobs that end are short ones.
//! * Four fifths of the time a job has been here are taken off the time it still needs when its work
//!   is priced (down to a fifth of that where past jobs tell what it needs), so that long jobs end in
//!   bounded time too. That gives up a third of the mean's gain over a rule without it where GPUs are
//!   short, and takes the slowest hundredth back.
//! * A change of size costs what the job would earn while it starts anew ([`crate::allocation::restart_cost`]), spread
//!   over an hour or what it has left.
//! * Who has waited for four times its own time alone and an hour gets its least size first, so nobody
//!   starves. A job that can still meet its deadline has the GPUs it takes to.
//! * Among more than 32 jobs everybody is weighed at most once in half a second for each, or in a
//!   minute; in between, what was shared out stands, and who comes is served from what is free
//!   (`stands`). So a plan carried out leaves nothing to do.
//! * Where nodes sleep, a GPU that is used is charged its share of what the node would save asleep,
//!   and so is one that nobody uses on a node that others keep awake: a few more GPUs for somebody may
//!   cost nothing, and a node for one job alone may cost more than its share ([`allot`]).
//! * What was started at this very instant stays as it is: nothing was learned since.
//! * Of several kinds of GPU each job bids for one, and each kind has its price ([`crate::policies::gpu_type_assignment`]).
//! * Where nobody knows how much is left, past jobs tell ([`crate::state::work_history`]), anew every half hour.
//! * Two jobs share GPUs where that saves more than the GPUs of either are worth at the present price
//!   (`pairs`): who is with whom, how many GPUs and which clock are one decision. No more are made
//!   than are worth it at the price that is left once they share (`together`). Pairs that run
//!   slower together than one after the other are never made. New pairs are observed for an epoch and
//!   undone where they turn out so, or break a deadline ([`crate::policies::colocation_trial`]).

mod allocation_cache;
mod bidders;
mod incremental;
mod knapsack;
mod market;
mod pair_selection;
mod pairing;
mod upper_envelope;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::job::GpuSetting;

use crate::allocation::capacity::{FreeCapacity, NodeCounts, Scope};
use crate::allocation::transition::Target;
use crate::plan::input::{PlanningInput, PolicyCache};
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Plan};
use crate::policies::colocation_trial::Watched;
use crate::policies::elastic::{ElasticJob, Sizing};
use crate::policies::gpu_type_assignment::assign_types_by_turns;
use crate::policies::wattle::allocation_cache::{AllocationCache, Cleared, Given, Under};
use crate::policies::wattle::bidders::{Trader, gather, held, wish};
use crate::policies::wattle::incremental::{go_on, until};
use crate::policies::wattle::knapsack::{WholeNodes, allot};
use crate::policies::wattle::market::{Bid, Forecast, Market, clear};
use crate::policies::wattle::pairing::{Pair, Pairing};
use crate::policies::wattle::upper_envelope::Line;
use crate::policies::{Build, Capabilities, Policy, PolicyEntry, Reads};
use crate::power::budget::PriceRange;
use crate::power::energy_cost::Charge;
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::State;
use crate::state::operating_points::OperatingPoint;

/// What a GPU-second costs in the long run, s.
const LATER: f64 = 0.1;
/// For how many mean durations a price is remembered.
const DURATIONS: f64 = 6.0;
/// That time before any job has ended, s, and how many jobs it weighs as.
const TAU_FIRST_S: f64 = 100.0 * 3_600.0;
const TAU_FIRST_JOBS: f64 = 30.0;
/// Prices of a joule between which its answer changes, s/J: below, time alone counts; above,
/// everybody is at its thriftiest.
const TIME_PRICES: PriceRange = PriceRange { least: 1e-5, most: 1.0 };
/// When to look again where it is not known how much work is left, or somebody waits.
const LOOK_AGAIN: Duration = Duration::from_secs(1_800);
/// A clock is left as it is if the best is worth no more than this share more.
const CLOCK_STAYS: f64 = 0.001;

/// Each job's work at the price of GPUs when it will be done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wattle;

/// Its line in the table of policies.
pub(super) const ENTRY: PolicyEntry = PolicyEntry {
    name: "wattle",
    rule: "elastic: least completion time plus price times energy, by a market for GPUs; sizes, clocks and pairs together",
    source: "this project",
    build: Build::Plain(|| Box::new(Watched::new(Wattle))),
};

impl Policy for Wattle {
    fn name(&self) -> &str {
        ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reads: Reads::All,
            is_elastic: true,
            shares_gpus: true,
            sets_cards: true,
            prices: Some(TIME_PRICES),
            follows_grid: true,
            needs_exact_durations: false,
        }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        go_on(input).unwrap_or_else(|| weigh_everybody(input))
    }
}

/// Everybody is weighed, and GPUs are shared out anew.
fn weigh_everybody(input: PlanningInput<'_>) -> Plan {
    let mut contest = Sizing::of(input);
    contest.jobs.extend(stopped_to_wait(input));
    contest.jobs.sort_by_key(|contender| contender.job.arrival);
    spread_over_kinds(input, &mut contest);
    let contenders = std::mem::take(&mut contest.jobs);
    let mut by_gpu_type: BTreeMap<&str, Vec<ElasticJob<'_>>> = BTreeMap::new();
    for contender in contenders {
        by_gpu_type.entry(contender.gpu_type()).or_default().push(contender);
    }
    let mut targets = Vec::new();
    let mut look_again = false;
    let mut cleared = BTreeMap::new();
    let mut waiting: Vec<(u64, JobKey)> = Vec::new();
    for (kind, contenders) in &mut by_gpu_type {
        let supply = Supply::of(input, kind, &contest);
        let before = targets.len();
        let shared = settle(input, contenders, &supply, &mut targets);
        look_again |= shared.look_again;
        cleared.extend(shared.cleared.map(|market| ((*kind).to_owned(), market)));
        let chosen: BTreeSet<JobKey> =
            targets[before..].iter().flat_map(|target| &target.jobs).copied().collect();
        let queued = contenders.iter().filter(|c| c.job.state == State::Queued);
        let mut left = queued.filter(|c| !chosen.contains(&c.key));
        waiting.extend(left.next().map(|c| (c.job.arrival, c.key)));
    }
    let before = targets.len() as u32;
    let targets = contest.all_targets(input, targets);
    let rejected = contest.rejected.len();
    let mut plan = contest.plan_for(input, &targets, before);
    // Who has its GPUs and no place for them yet is named first.
    let outranked = |(_, job)| Blocked { job, reason: Reason::Outranked { before } };
    plan.blocked = plan.blocked.or_else(|| waiting.into_iter().min().map(outranked));
    if look_again || plan.blocked.is_some() {
        plan.again_at = Some(input.now() + LOOK_AGAIN);
    }
    let jobs = input.state.job_count() - rejected;
    let standing = AllocationCache {
        at: input.now(),
        until: until(input.now(), jobs),
        look_again,
        arrivals: input.state.arrivals(),
        jobs,
        under: Under::of(input),
        surface_revision: input.state.surface_revision(),
        given: vec![Given::new(input.state, targets)],
        cleared,
    };
    plan.cache = Some(PolicyCache::new(standing));
    plan
}

/// Everybody bids for GPUs of one kind: jobs are spread by what a step costs them on each, time and
/// energy, relative to the others. Each kind then has its own price.
fn spread_over_kinds<'a>(input: PlanningInput<'a>, contest: &mut Sizing<'a>) {
    let charges: BTreeMap<String, Charge> = (contest.free.by_name().keys())
        .map(|kind| ((*kind).to_owned(), Charge::on(input, kind)))
        .collect();
    let joule = input.limits.price_now();
    assign_types_by_turns(input, contest, &|menu, gpus| {
        let charge = charges.get(&menu.gpu_type)?;
        let worth = |choice: &OperatingPoint| {
            choice.steps_per_s.ln() - (1.0 + joule * charge.watts(choice)).ln()
        };
        menu.with_gpus(gpus).iter().map(worth).reduce(f64::max)
    });
}

/// Jobs that are on their way back to the queue compete as if they were there: the price that sent
/// them must not fall because they have gone.
fn stopped_to_wait(input: PlanningInput<'_>) -> impl Iterator<Item = ElasticJob<'_>> {
    input.state.running().filter_map(|(key, job)| {
        let menu = job.menu.as_deref().filter(|menu| !menu.choices().is_empty())?;
        let stops = matches!(job.state, State::Stopping { .. }) && job.next_gpus.is_none();
        let there = input.state.nodes().iter().any(|node| node.facts.gpu_type == menu.gpu_type);
        (stops && there).then_some(ElasticJob { key, job, points: menu, fixed_size: None })
    })
}

/// The GPUs of one kind.
struct Supply<'a> {
    kind: &'a str,
    /// How many there are to share out.
    room: u32,
    blocks: NodeCounts,
    charge: Charge,
    /// Device memory of each, MiB.
    memory_mib: u64,
    /// GPUs whose jobs take no part.
    fixed: u32,
    /// What is paid for whole nodes, where they sleep and are all of one size.
    whole: Option<WholeNodes>,
}

impl<'a> Supply<'a> {
    fn of(input: PlanningInput<'_>, kind: &'a str, contest: &Sizing<'_>) -> Self {
        let nodes = || input.state.nodes().iter().filter(|node| node.facts.gpu_type == kind);
        let mut blocks = FreeCapacity::new(input.state, Scope::All).node_counts(kind);
        let fixed =
            || contest.fixed.iter().filter(|target| target.gpu_type == kind).map(|t| t.gpus);
        blocks.take_sets(fixed());
        let room = contest.free.of_type(kind);
        let memory_mib = nodes().map(|node| node.facts.memory_mib).min().unwrap_or(0);
        let charge = Charge::on(input, kind);
        let unused = input.limits.price_now() * charge.share_w();
        let gpus = nodes().map(|node| node.facts.gpus).reduce(|a, b| if a == b { a } else { 0 });
        let whole = gpus.filter(|&gpus| gpus > 0 && unused > 0.0);
        let whole = whole.map(|gpus| WholeNodes { gpus, taken: 0, unused });
        let fixed = fixed().sum();
        Self { kind, room, blocks, charge, memory_mib, fixed, whole }
    }
}

/// Targets for all jobs of one kind of GPU. Who cannot stop keeps for good what it is given, which
/// weighs on everybody's price; so what it is given is taken as given, and the rest shared out anew.
fn settle(
    input: PlanningInput<'_>,
    contenders: &mut [ElasticJob<'_>],
    supply: &Supply<'_>,
    targets: &mut Vec<Target>,
) -> Shared {
    let before = targets.len();
    let mut moved: BTreeSet<JobKey> = BTreeSet::new();
    loop {
        targets.truncate(before);
        let shared = share_out(input, contenders, supply, &moved, targets);
        let given: BTreeMap<JobKey, u32> = (targets[before..].iter())
            .flat_map(|target| target.jobs.iter().map(|&job| (job, target.gpus)))
            .collect();
        // Who is moved anyway may as well have another mate, and must not lose the one it has now
        // once it is on its way.
        let mut anew = false;
        for contender in contenders.iter() {
            if let State::Running { on, .. } = &contender.job.state
                && shares(input, on)
                && given.get(&contender.key) != Some(&on.gpu_count())
            {
                anew |= moved.insert(contender.key);
            }
        }
        for contender in contenders.iter_mut() {
            if !contender.job.facts.can_stop && contender.fixed_size.is_none() {
                contender.fixed_size = given.get(&contender.key).copied();
                anew |= contender.fixed_size.is_some();
            }
        }
        if !anew {
            return shared;
        }
    }
}

/// Whether more than one job is on them.
fn shares(input: PlanningInput<'_>, on: &GpuSet) -> bool {
    on.gpus().next().is_some_and(|(node, gpu)| input.state.node(node).tenants(gpu).len() > 1)
}

/// Targets for all jobs of one kind of GPU, at the prices that clear.
fn share_out(
    input: PlanningInput<'_>,
    contenders: &[ElasticJob<'_>],
    supply: &Supply<'_>,
    moved: &BTreeSet<JobKey>,
    targets: &mut Vec<Target>,
) -> Shared {
    let most = supply.blocks.largest_set();
    let first = Forecast { later: LATER, tau_s: TAU_FIRST_S };
    let (traders, mut market) = gather(input, contenders, supply.charge, first, supply.room, most);
    if traders.is_empty() {
        return Shared { look_again: false, cleared: None };
    }
    let speeds = traders.iter().map(|t| market.shapes[t.shape].thrifty_speed(LATER));
    let speed = speeds.sum::<f64>() / traders.len() as f64;
    market.remember_for(tau_s(input, speed));

    let room = supply.room.saturating_sub(held(&traders));
    let lots = market.lots.len();
    let alone = clear(room, lots, |lot, price| market.wanted(lot, price));
    let bids_at = |price: f64, market: &Market<'_>| -> Vec<Bid> {
        market.lots.iter().map(|lot| market.bid(lot, price)).collect()
    };
    let bids = bids_at(alone, &market);
    let mut pairing = Pairing::of(input, supply, &market, &traders, moved, &bids, alone);
    let (price, bids) = if pairing.pairs.is_empty() {
        (alone, bids)
    } else {
        let price = pairing.settle(&mut market, &traders, room);
        (price, bids_at(price, &market))
    };
    let table =
        Table { supply, traders: &traders, market: &market, pairing: &pairing, bids: &bids, price };
    let mut dealt = table.deal(false);
    // Who was started at this very instant is not moved.
    if dealt.moves_fresh(&traders, &pairing.pairs) {
        dealt = table.deal(true);
    }

    let worth = |gpus: u32, value: f64| Reason::Worth { gpus, value, gpu_price: price };
    for &(index, gpus) in &dealt.singles {
        let trader = &traders[index];
        let shape = &market.shapes[trader.shape];
        let Some(size) = shape.sizes.iter().find(|size| size.gpus == gpus) else { continue };
        let work_price = bids[trader.lot].work_price;
        let Some(best) = size.way(work_price, trader.need) else { continue };
        let setting = kept(&size.ways, best, work_price, trader);
        let reason = worth(gpus, best.at(work_price));
        let (jobs, kind) = (vec![trader.key], supply.kind.to_owned());
        targets.push(Target { jobs, gpus, gpu_type: kind, setting, reason });
    }
    for &(index, gpus) in &dealt.pairs {
        let pair = &pairing.pairs[index];
        let Some((setting, value)) = pairing.setting(pair, &traders, &bids, gpus) else { continue };
        let (jobs, kind) = (vec![traders[pair.a].key, traders[pair.b].key], supply.kind.to_owned());
        targets.push(Target { jobs, gpus, gpu_type: kind, setting, reason: worth(gpus, value) });
    }
    Shared {
        look_again: traders.iter().any(|trader| !trader.known),
        cleared: Some(Cleared { price, tau_s: market.forecast.tau_s, most }),
    }
}

/// What came of sharing out.
#[derive(Clone, Copy)]
struct Shared {
    /// Whether it should be looked at again, since nobody knows how much work somebody has left.
    look_again: bool,
    /// The prices it was shared out at.
    cleared: Option<Cleared>,
}

/// All that GPUs are given out by.
struct Table<'t, 'a> {
    supply: &'t Supply<'a>,
    traders: &'t [Trader<'a>],
    market: &'t Market<'a>,
    pairing: &'t Pairing,
    bids: &'t [Bid],
    price: f64,
}

/// Who gets how many GPUs: traders, and pairs, by index.
struct Dealt {
    singles: Vec<(usize, u32)>,
    pairs: Vec<(usize, u32)>,
}

impl Dealt {
    /// Whether somebody gets other than what it was started on at this very instant.
    fn moves_fresh(&self, traders: &[Trader<'_>], pairs: &[Pair]) -> bool {
        let moves = |fresh: Option<u32>, gpus: u32| fresh.is_some_and(|fresh| fresh != gpus);
        self.singles.iter().any(|&(index, gpus)| moves(traders[index].fresh, gpus))
            || self.pairs.iter().any(|&(index, gpus)| moves(pairs[index].fresh(traders), gpus))
    }
}

impl Table<'_, '_> {
    /// Whole GPUs for everybody. Who cannot stop keeps what it has; with `freeze`, so does who was
    /// started at this very instant.
    fn deal(&self, freeze: bool) -> Dealt {
        let Self { traders, pairing, bids, price, .. } = *self;
        let mut taken = vec![false; traders.len()];
        pairing.paired().for_each(|index| taken[index] = true);
        let mut dealt = Dealt { singles: Vec::new(), pairs: Vec::new() };
        let mut wishes = Vec::with_capacity(traders.len());
        let mut open = Vec::with_capacity(traders.len());
        for index in (0..traders.len()).filter(|&index| !taken[index]) {
            let trader = &traders[index];
            match trader.held.or(trader.fresh.filter(|_| freeze)) {
                Some(gpus) => dealt.singles.push((index, gpus)),
                None => {
                    let shape = &self.market.shapes[trader.shape];
                    wishes.push(wish(trader, shape, &bids[trader.lot], price));
                    open.push(index);
                }
            }
        }
        let mut open_pairs = Vec::new();
        for (index, pair) in pairing.pairs.iter().enumerate() {
            match pair.fresh(traders).filter(|_| freeze) {
                Some(gpus) => dealt.pairs.push((index, gpus)),
                None => {
                    wishes.push(pairing.wish(pair, traders, bids, price));
                    open_pairs.push(index);
                }
            }
        }
        let stands = || dealt.singles.iter().chain(&dealt.pairs).map(|(_, gpus)| *gpus);
        let mut blocks = self.supply.blocks.clone();
        blocks.take_sets(stands());
        let room = self.supply.room.saturating_sub(stands().sum());
        let taken = self.supply.fixed + stands().sum::<u32>();
        let whole = self.supply.whole.map(|whole| WholeNodes { taken, ..whole });
        let chosen = allot(&wishes, room, &blocks, whole);
        let mut given = wishes.iter().zip(&chosen).map(|(wish, &option)| wish.item[option].gpus);
        dealt.singles.extend(open.into_iter().zip(given.by_ref()));
        dealt.pairs.extend(open_pairs.into_iter().zip(given));
        dealt
    }
}

/// The setting a job has, where the best is hardly better.
fn kept(
    ways: &[Line<GpuSetting>],
    best: &Line<GpuSetting>,
    work_price: f64,
    trader: &Trader<'_>,
) -> GpuSetting {
    let State::Running { setting, .. } = &trader.job.state else { return best.what };
    let has = ways.iter().find(|way| way.what == *setting && way.slope >= trader.need);
    match has {
        Some(has)
            if best.at(work_price) - has.at(work_price)
                <= CLOCK_STAYS * best.at(work_price).abs() =>
        {
            has.what
        }
        _ => best.what,
    }
}

/// How long a price is remembered, where jobs go at that many times the speed of one GPU.
fn tau_s(input: PlanningInput<'_>, speed: f64) -> f64 {
    let ended = input.state.work_history().len() as f64;
    let duration_s = input.state.work_history().mean_s().unwrap_or(0.0) / speed.max(1e-9);
    let known = ended * DURATIONS * duration_s;
    (TAU_FIRST_JOBS * TAU_FIRST_S + known) / (TAU_FIRST_JOBS + ended)
}
