//! Jobs as the market sees them: how much work is left, which sizes they may have, what a change of
//! size costs them.

use std::collections::BTreeMap;

use crate::plan::input::PlanningInput;
use crate::policies::elastic::ElasticJob;
use crate::policies::wattle::knapsack::{MUST, Moves, Opt, Wish};
use crate::policies::wattle::market::{Bid, Forecast, Lot, Market, WORK_STEP, age_of, age_step};
use crate::policies::wattle::upper_envelope::{Joule, Shape};
use crate::power::energy_cost::Charge;
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};
use crate::state::job_forecast::steps_done;
use crate::state::operating_points::OperatingPoints;

/// Work left is at least so much, s.
const WORK_MIN_S: f64 = 1.0;
/// Work of a job of which nothing is known while none has ended yet, s.
const FIRST_GUESS_S: f64 = 3_600.0;
/// Who has waited for so many times its own time alone, and for [`PATIENCE_S`] more, gets its least
/// size before others get more than theirs.
const PATIENCE: f64 = 4.0;
const PATIENCE_S: f64 = 3_600.0;
/// A size is taken to stay for so long, or until the job is done, s: what a change costs is spread
/// over that time.
const SIZE_STAYS_S: f64 = 3_600.0;
/// No change costs more than this share of what the job earns meanwhile.
const CHANGE_MAX: f64 = 0.5;

/// So much less of a job's age counts where nobody knows how long it is and past jobs tell. What it
/// has left is then guessed from its age, so that an old job already counts as one with much left:
/// counting all of its age besides would keep GPUs with those that are thought longest.
const GUESSED_AGE: f64 = 0.8;

/// One job.
pub(super) struct Trader<'a> {
    pub(super) key: JobKey,
    pub(super) job: &'a Job,
    pub(super) shape: usize,
    pub(super) lot: usize,
    /// Whether it is known how much work is left.
    pub(super) known: bool,
    /// Work left, rounded, s.
    pub(super) work: f64,
    /// Work left, in steps of the rounding.
    bucket: i32,
    /// How long it has been here, in steps of the rounding.
    age_step: i32,
    /// How long it has been here, s.
    age_s: f64,
    /// The whole of its work, done and left, seconds on one GPU.
    whole: f64,
    /// It runs and cannot stop: its size.
    pub(super) held: Option<u32>,
    /// It must have so many, for its deadline or since it has waited for long.
    pub(super) floor: u32,
    /// It must be so fast, for its deadline.
    pub(super) need: f64,
    /// It was started at this very instant and keeps its size: nothing was learned since.
    pub(super) fresh: Option<u32>,
    owed: bool,
}

impl Trader<'_> {
    pub(super) fn has_run(&self) -> bool {
        self.job.state != State::Queued || !self.job.attained.is_zero()
    }

    /// The sizes of its shape that it may have, by index.
    pub(super) fn may_have(&self, gpus: u32) -> bool {
        gpus >= self.floor && self.held.is_none_or(|held| held == gpus)
    }
}

/// Those of one kind of GPU, with their market.
pub(super) fn gather<'a>(
    input: PlanningInput<'_>,
    contenders: &[ElasticJob<'a>],
    charge: Charge,
    forecast: Forecast,
    room: u32,
    most: u32,
) -> (Vec<Trader<'a>>, Market<'a>) {
    let mut shapes: Vec<Shape<'a>> = Vec::new();
    // Looked up by address, and numbered by first appearance, so that addresses decide nothing.
    let mut known: BTreeMap<*const OperatingPoints, Option<usize>> = BTreeMap::new();
    let mut traders = Vec::with_capacity(contenders.len());
    for contender in contenders {
        let menu = contender.points;
        let shape = *known.entry(std::ptr::from_ref(menu)).or_insert_with(|| {
            let unit = menu.unit_rate()?;
            let most = most.max(contender.fixed_size.unwrap_or(0));
            shapes.push(Shape::new(menu, unit, charge, Joule::of(input), most)?);
            Some(shapes.len() - 1)
        });
        if let Some(shape) = shape {
            let trader = trader(input, contender, shape, &shapes[shape]);
            let held = trader.held;
            if held.is_none_or(|held| shapes[shape].sizes.iter().any(|size| size.gpus == held)) {
                traders.push(trader);
            }
        }
    }
    guess_ages(input, &mut traders);
    set_floors(&mut traders, &shapes, room);
    let mut lots: Vec<Lot> = Vec::new();
    let mut numbers: BTreeMap<(usize, i32, u32, u32, u64, i32), usize> = BTreeMap::new();
    for trader in &mut traders {
        let most = trader.held.unwrap_or(u32::MAX);
        let need = trader.need.to_bits();
        let key = (trader.shape, trader.bucket, trader.floor, most, need, trader.age_step);
        trader.lot = *numbers.entry(key).or_insert_with(|| {
            lots.push(lot_of(trader));
            lots.len() - 1
        });
        // Who holds what it has takes no part.
        lots[trader.lot].jobs += u32::from(trader.held.is_none());
    }
    (traders, Market { shapes, lots, forecast })
}

/// A job that nobody holds anything of, and a lot of it alone.
pub(super) fn alone<'a>(
    input: PlanningInput<'_>,
    contender: &ElasticJob<'a>,
    shape: &Shape<'_>,
) -> (Trader<'a>, Lot) {
    let trader = trader(input, contender, 0, shape);
    let lot = Lot { jobs: 1, ..lot_of(&trader) };
    (trader, lot)
}

/// The lot of those that are like it, with nobody in it yet.
fn lot_of(trader: &Trader<'_>) -> Lot {
    Lot {
        shape: trader.shape,
        work: trader.work,
        least: trader.floor,
        most: trader.held.unwrap_or(u32::MAX),
        may_wait: trader.floor == 0,
        need: trader.need,
        age_s: age_of(trader.age_step),
        jobs: 0,
        fades_to: 1.0,
    }
}

fn trader<'a>(
    input: PlanningInput<'_>,
    contender: &ElasticJob<'a>,
    shape: usize,
    laid_out: &Shape<'_>,
) -> Trader<'a> {
    let job = contender.job;
    let (left, whole, known) = work_left(input, job, laid_out.unit);
    let bucket = (left.ln() * WORK_STEP).round();
    let work = (bucket / WORK_STEP).exp();
    let least = f64::from(laid_out.sizes[0].gpus.max(1));
    let ran_s = job.gpu_time(input.now()).as_secs_f64() / least;
    let age_s = input.now().since(job.facts.submitted_at).as_secs_f64();
    let waited_s = age_s - ran_s;
    let owed = job.facts.priority > 0 || waited_s > PATIENCE * whole / least + PATIENCE_S;
    let need = job.facts.deadline.map_or(0.0, |deadline| {
        let window_s = deadline.since(input.now()).as_secs_f64();
        let fastest = laid_out
            .sizes
            .iter()
            .map(crate::policies::wattle::upper_envelope::Size::fastest)
            .fold(0.0, f64::max);
        let restart_s = laid_out.sizes.iter().map(|size| size.restart_s).fold(0.0, f64::max);
        // With time for one change of size, or just so, or not at all any more.
        let needs = [window_s - restart_s, window_s].map(|window_s| work / window_s.max(1e-9));
        let possible = |need: &f64| *need > 0.0 && window_s > restart_s && *need <= fastest;
        needs.into_iter().find(possible).unwrap_or(0.0)
    });
    let fresh = match &job.state {
        State::Running { on, since, .. } if *since == input.now() => Some(on.gpu_count()),
        _ => None,
    };
    let kept = fresh.and_then(|gpus| laid_out.sizes.iter().find(|size| size.gpus == gpus));
    let need = if kept.is_some_and(|size| size.fastest() < need) { 0.0 } else { need };
    Trader {
        key: contender.key,
        job,
        shape,
        lot: 0,
        known,
        work,
        bucket: bucket as i32,
        age_step: age_step(age_s),
        age_s,
        whole,
        held: contender.fixed_size,
        floor: contender.fixed_size.unwrap_or(0),
        need,
        fresh: kept.map(|size| size.gpus),
        owed,
    }
}

/// How much less of the age of jobs of unknown length counts. Past jobs are those that have ended, the
/// short ones first: they tell of those that are there as far as they were more work than these are.
fn guess_ages(input: PlanningInput<'_>, traders: &mut [Trader<'_>]) {
    let ended_s = input.state.work_history().len() as f64
        * input.state.work_history().mean_s().unwrap_or(0.0);
    let there_s: f64 = traders.iter().filter(|job| !job.known).map(|job| job.whole).sum();
    let counts = 1.0 - GUESSED_AGE * ended_s / (ended_s + there_s).max(1.0);
    for trader in traders.iter_mut().filter(|job| !job.known) {
        trader.age_step = age_step(trader.age_s * counts);
    }
}

/// Work that is left, the whole of it, in seconds on one GPU, and whether anybody knows.
fn work_left(input: PlanningInput<'_>, job: &Job, unit: f64) -> (f64, f64, bool) {
    let done = steps_done(input.now(), job).unwrap_or(0.0) / unit;
    let told = job.progress.and_then(|progress| progress.steps_total);
    if let Some(total) = told {
        let whole = total as f64 / unit;
        return ((whole - done).max(WORK_MIN_S), whole, true);
    }
    if let Some(alone) = job.facts.duration_alone {
        // An owner's guess that has run out is not at its end.
        let whole = alone.as_secs_f64() * f64::from(job.facts.request.min);
        return ((whole - done).max(0.05 * whole).max(WORK_MIN_S), whole, true);
    }
    let left =
        input.state.work_history().remaining_s(done).unwrap_or(FIRST_GUESS_S).max(WORK_MIN_S);
    (left, done + left, false)
}

/// Who must have GPUs gets its least number set, while there is room beside those that hold theirs:
/// deadlines, the earliest first, then those that have waited for too long.
fn set_floors(traders: &mut [Trader<'_>], shapes: &[Shape<'_>], room: u32) {
    let mut left = room.saturating_sub(held(traders));
    let mut first: Vec<usize> =
        (0..traders.len()).filter(|&i| traders[i].need > 0.0 || traders[i].owed).collect();
    first.sort_by_key(|&i| {
        let deadline = traders[i].job.facts.deadline.filter(|_| traders[i].need > 0.0);
        (deadline.is_none(), deadline, traders[i].job.arrival)
    });
    for index in first {
        let trader = &mut traders[index];
        let sizes = &shapes[trader.shape].sizes;
        let enough = sizes.iter().find(|size| size.fastest() >= trader.need);
        match enough.filter(|size| trader.held.is_none() && size.gpus <= left) {
            Some(size) => {
                left -= size.gpus;
                trader.floor = size.gpus;
            }
            // No room: it competes as everybody does.
            None if trader.held.is_none() => trader.need = 0.0,
            None => {
                let held = sizes.iter().find(|size| Some(size.gpus) == trader.held);
                if held.is_none_or(|size| size.fastest() < trader.need) {
                    trader.need = 0.0;
                }
            }
        }
    }
}

/// GPUs of those that cannot stop.
pub(super) fn held(traders: &[Trader<'_>]) -> u32 {
    traders.iter().filter_map(|trader| trader.held).sum()
}

/// What each number of GPUs is worth to a job at the price of its work, and what a change costs it.
pub(super) fn wish(trader: &Trader<'_>, shape: &Shape<'_>, bid: &Bid, price: f64) -> Wish {
    let none = if trader.floor > 0 { -MUST * (1.0 + price) } else { 0.0 };
    let options = 1 + shape.sizes.len();
    let (mut item, mut cost) = (Vec::with_capacity(options), Vec::with_capacity(options));
    item.push(Opt { gpus: 0, worth: none });
    cost.push(0.0);
    for size in shape.sizes.iter().filter(|size| trader.may_have(size.gpus)) {
        let Some(way) = size.way(bid.work_price, trader.need) else { continue };
        let worth = way.at(bid.work_price);
        item.push(Opt { gpus: size.gpus, worth });
        cost.push(change(worth, size.restart_s, bid.done_in_s));
    }
    let moves = Moves { cost, has_run: trader.has_run() };
    let meant = trader.job.gpus_meant().unwrap_or(0);
    let stay = item.iter().position(|option| option.gpus == meant).unwrap_or(0);
    let from_now = (0..item.len()).map(|to| moves.between(stay, to)).collect();
    Wish { item, from_now, stay, moves: vec![moves] }
}

/// What a start costs, as a share of what is earned while the size stays.
pub(super) fn change(worth: f64, restart_s: f64, done_in_s: f64) -> f64 {
    worth.max(0.0) * (restart_s / done_in_s.min(SIZE_STAYS_S)).min(CHANGE_MAX)
}
