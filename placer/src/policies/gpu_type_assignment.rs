//! Which kind of GPU each job gets, for elastic rules on clusters that have several.
//!
//! The published rules know one kind; all of this is our own choice. A rule says what a size on a
//! kind is worth to a job, on a scale where differences are relative gains (the logarithm of its
//! speed, less the price times that of its energy). Jobs are then spread over kinds so that this is
//! greatest in sum if the GPUs of each kind are shared alike by those on it: who gains more by the
//! fast cards gets them, and nobody crowds onto them while others stand idle.
//!
//! * A job that starts takes the kind where the sum gains most, in the order of arrival; then single
//!   jobs move and pairs swap as long as the sum gains.
//! * One that runs moves only where it gains more than a restart costs it ([`crate::allocation::restart_cost`]), spread
//!   over an hour or what it has left; one that cannot stop, that has just started, or that is on
//!   its way to a kind, never.
//! * Jobs that run keep their room for as long as others find some elsewhere.
//! * Who finds none goes to GPUs of a kind on which nothing is known of it yet, where there are
//!   some: it must run there to be known.
//!
//! How many GPUs of its kind a job then gets is the rule's own business.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use wattle_common::job::GpuSetting;

use crate::allocation::first_fit::suits_some;
use crate::allocation::restart_cost;
use crate::allocation::transition::Target;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::policies::elastic::{Contender, Contest};
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};
use crate::state::job_forecast::remaining_alone;
use crate::state::operating_points::OperatingPoints;

/// A kind is taken to stay for so long, or until the job is done, s: what a move costs is spread
/// over that time.
const STAYS_S: f64 = 3_600.0;
/// No move costs more than this share of what the job does meanwhile.
const COST_MAX: f64 = 0.5;
/// What a change must gain at least, so that rounding decides nothing.
const GAIN_LEAST: f64 = 1e-6;
/// Halvings by which the common share is found.
const HALVINGS: u32 = 24;

/// What the sizes of one menu are worth: log2 of GPUs, worth; ascending, never falling.
#[derive(Debug)]
struct Worths {
    least: u32,
    most: u32,
    points: Vec<(f64, f64)>,
}

impl Worths {
    fn of(
        menu: &OperatingPoints,
        sizes: impl Iterator<Item = u32>,
        worth: &dyn Fn(&OperatingPoints, u32) -> Option<f64>,
    ) -> Option<Self> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let (mut least, mut most) = (0, 0);
        for gpus in sizes.filter(|&gpus| gpus > 0) {
            let Some(here) = worth(menu, gpus).filter(|here| here.is_finite()) else { continue };
            // More than is of use is left to others.
            let here = points.last().map_or(here, |(_, before)| before.max(here));
            points.push((f64::from(gpus).log2(), here));
            (least, most) = (if least == 0 { gpus } else { least }, gpus);
        }
        (!points.is_empty()).then_some(Self { least, most, points })
    }

    /// The worth of a share of so many GPUs, which may lie between two sizes; less than the least
    /// is that for part of the time.
    fn at(&self, share: f64) -> f64 {
        let x = share.max(1e-9).log2();
        let next = self.points.partition_point(|point| point.0 <= x);
        match (next.checked_sub(1).map(|before| self.points[before]), self.points.get(next)) {
            (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0),
            (Some(last), None) => last.1,
            (None, Some(first)) => first.1 + (x - first.0) * std::f64::consts::LN_2,
            (None, None) => 0.0,
        }
    }
}

/// One job, and what each kind of the contest is worth to it.
struct Player {
    worths: Vec<Option<Rc<Worths>>>,
    /// Where it runs or is to go on, by index.
    home: Option<usize>,
    /// Whether it may leave its home, once it is placed.
    moves: bool,
    /// What leaving its home costs.
    cost: f64,
    at: Option<usize>,
}

impl Player {
    fn on(&self, kind: usize) -> Option<&Worths> {
        self.worths.get(kind)?.as_deref()
    }
    /// What being on `kind` costs it.
    fn fee(&self, kind: usize) -> f64 {
        if self.home.is_some_and(|home| home != kind) { self.cost } else { 0.0 }
    }
}

/// Gives each job of the contest the menu of its kind. Who finds no room on any is named.
pub(crate) fn choose<'a>(
    input: PlanningInput<'a>,
    contest: &mut Contest<'a>,
    worth: &dyn Fn(&OperatingPoints, u32) -> Option<f64>,
) -> BTreeSet<JobKey> {
    let kinds = kinds_of(contest);
    if kinds.len() < 2 {
        return BTreeSet::new();
    }
    let mut spread = Spread::of(input, contest, &kinds, worth);
    spread.admit();
    spread.improve();
    settle(input, contest, &kinds, &spread)
}

/// The same for a rule under which everybody competes for GPUs and may have to wait: all of them are
/// spread, as if those of one kind took turns where it is short.
pub(crate) fn choose_for_all<'a>(
    input: PlanningInput<'a>,
    contest: &mut Contest<'a>,
    worth: &dyn Fn(&OperatingPoints, u32) -> Option<f64>,
) {
    let kinds = kinds_of(contest);
    if kinds.len() < 2 {
        return;
    }
    let mut spread = Spread::of(input, contest, &kinds, worth);
    spread.turns = true;
    spread.admit();
    spread.improve();
    // Who has no menu on any kind that is there keeps the one it has.
    let _ = settle(input, contest, &kinds, &spread);
}

fn kinds_of(contest: &Contest<'_>) -> Vec<(String, u32)> {
    contest.room.iter().map(|(kind, room)| ((*kind).to_owned(), *room)).collect()
}

impl Spread {
    fn of(
        input: PlanningInput<'_>,
        contest: &Contest<'_>,
        kinds: &[(String, u32)],
        worth: &dyn Fn(&OperatingPoints, u32) -> Option<f64>,
    ) -> Self {
        let mut known: BTreeMap<(*const OperatingPoints, Option<u32>), Option<Rc<Worths>>> =
            BTreeMap::new();
        let mut players = Vec::with_capacity(contest.jobs.len());
        for contender in &contest.jobs {
            let (job, held) = (contender.job, contender.held);
            let home = job.next_kind.as_deref().or_else(|| input.state.gpu_type_of(job));
            let home = home.and_then(|home| kinds.iter().position(|(kind, _)| kind == home));
            let worths = kinds.iter().enumerate().map(|(index, (kind, _))| {
                if !suits_some(input.state, job, kind) || held.is_some() && home != Some(index) {
                    return None;
                }
                let menu = job.menu_on(kind)?;
                let key = (std::ptr::from_ref(menu), held);
                let sizes = menu.sizes().filter(|gpus| held.is_none_or(|held| held == *gpus));
                known
                    .entry(key)
                    .or_insert_with(|| Worths::of(menu, sizes, worth).map(Rc::new))
                    .clone()
            });
            let (moves, cost) = moving(input, job);
            players.push(Player { worths: worths.collect(), home, moves, cost, at: None });
        }
        let rooms = kinds.iter().map(|(_, room)| *room).collect();
        Self { rooms, players, turns: false }
    }
}

/// Everybody's menu as it was spread. Who found no room goes where nothing is known of it yet, or
/// is named.
fn settle<'a>(
    input: PlanningInput<'a>,
    contest: &mut Contest<'a>,
    kinds: &[(String, u32)],
    spread: &Spread,
) -> BTreeSet<JobKey> {
    let mut spare = spread.spare();
    let mut used = vec![0; kinds.len()];
    let mut without = BTreeSet::new();
    let mut jobs = Vec::with_capacity(contest.jobs.len());
    for (mut contender, player) in
        std::mem::take(&mut contest.jobs).into_iter().zip(&spread.players)
    {
        let mut placed = false;
        if let Some((at, worths)) = player.at.and_then(|at| Some((at, player.on(at)?)))
            && let Some(menu) = contender.job.menu_on(&kinds[at].0)
        {
            contender.menu = menu;
            used[at] += worths.least;
            // Where all cannot run at once, those who came last may wait.
            placed = used[at] <= spread.rooms[at];
        }
        if placed {
            jobs.push(contender);
            continue;
        }
        let Contender { key, job, .. } = contender;
        let gpus = job.facts.request.min;
        let unknown = |index: usize| {
            player.worths[index].is_none()
                && spare[index] >= gpus
                && suits_some(input.state, job, &kinds[index].0)
        };
        let open = job.state == State::Queued && job.next_kind.is_none();
        match (0..kinds.len()).find(|&index| open && unknown(index)) {
            Some(index) => {
                let kind = kinds[index].0.clone();
                spare[index] -= gpus;
                if let Some(left) = contest.room.get_mut(kind.as_str()) {
                    *left -= gpus;
                }
                let (setting, reason) = (GpuSetting::DEFAULT, Reason::Share { gpus });
                contest.fixed.push(Target { jobs: vec![key], gpus, kind, setting, reason });
            }
            None => {
                if player.at.is_none() {
                    without.insert(key);
                }
                jobs.push(contender);
            }
        }
    }
    contest.jobs = jobs;
    without
}

/// Whether a job may move to another kind, and what that costs it.
fn moving(input: PlanningInput<'_>, job: &Job) -> (bool, f64) {
    let State::Running { on, since, .. } = &job.state else {
        // On its way to a kind, or free to choose.
        return (job.next_kind.is_none(), 0.0);
    };
    if !job.facts.can_stop || *since == input.now() {
        return (false, 0.0);
    }
    let left = remaining_alone(input.now(), job, on.gpu_count(), on.node_count());
    let stays_s = left.map_or(STAYS_S, |left| left.as_secs_f64().clamp(1.0, STAYS_S));
    let share = (restart_cost::restart(on.gpu_count()).as_secs_f64() / stays_s).min(COST_MAX);
    (true, -(1.0 - share).ln())
}

/// Jobs spread over kinds.
struct Spread {
    /// GPUs of each kind.
    rooms: Vec<u32>,
    players: Vec<Player>,
    /// Whether a kind may have more jobs than GPUs, which then take turns.
    turns: bool,
}

/// What one kind comes to, and would with somebody more or less.
struct CurrentAssignment<'s> {
    /// Who is there, and how many alike.
    there: Vec<(&'s Worths, f64)>,
    room: u32,
    /// GPUs that all take at least.
    used: u32,
    turns: bool,
    share: f64,
    worth: f64,
}

impl<'s> CurrentAssignment<'s> {
    fn of(all: impl Iterator<Item = &'s Worths>, room: u32, turns: bool) -> Self {
        let mut used = 0;
        let mut there: Vec<(&Worths, f64)> = Vec::new();
        // Looked up by address, and kept in the order of appearance.
        let mut known: BTreeMap<*const Worths, usize> = BTreeMap::new();
        for worths in all {
            used += worths.least;
            let at = *known.entry(std::ptr::from_ref(worths)).or_insert(there.len());
            match there.get_mut(at) {
                Some((_, count)) => *count += 1.0,
                None => there.push((worths, 1.0)),
            }
        }
        let mut standing = Self { there, room, used, turns, share: 0.0, worth: 0.0 };
        (standing.share, standing.worth) = standing.settle(None, None);
        standing
    }

    /// The common share once somebody has come and gone, and the worth to all who are there then.
    fn settle(&self, come: Option<&Worths>, gone: Option<&Worths>) -> (f64, f64) {
        let sum = |of: &dyn Fn(&Worths) -> f64| {
            let all: f64 = self.there.iter().map(|(worths, count)| count * of(worths)).sum();
            all + come.map_or(0.0, of) - gone.map_or(0.0, of)
        };
        let room = f64::from(self.room);
        let (mut low, mut high) = (0.0, room);
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            if sum(&|worths| self.got(worths, middle)) > room {
                high = middle;
            } else {
                low = middle;
            }
        }
        (low, sum(&|worths| worths.at(self.got(worths, low))))
    }

    /// What a job gets of a common share.
    fn got(&self, worths: &Worths, share: f64) -> f64 {
        let least = if self.turns { 0.0 } else { f64::from(worths.least) };
        share.clamp(least, f64::from(worths.most))
    }

    /// Whether there is room for its least size; where jobs take turns, once the others are gone.
    fn takes(&self, worths: &Worths) -> bool {
        let used = if self.turns { 0 } else { self.used };
        used + worths.least <= self.room
    }

    /// What a job finds here if all share alike.
    fn worth_to(&self, worths: &Worths) -> f64 {
        worths.at(self.got(worths, self.share))
    }
}

impl Spread {
    fn standing(&self, kind: usize) -> CurrentAssignment<'_> {
        let there = self.players.iter().filter(|player| player.at == Some(kind));
        let there = there.filter_map(|player| player.on(kind));
        CurrentAssignment::of(there, self.rooms[kind], self.turns)
    }

    fn standings(&self) -> Vec<CurrentAssignment<'_>> {
        (0..self.rooms.len()).map(|kind| self.standing(kind)).collect()
    }

    /// Everybody on a kind with room for its least size, in the order of the contest.
    fn admit(&mut self) {
        let kinds = 0..self.rooms.len();
        let mut left = self.rooms.clone();
        let mut kept = vec![0; self.rooms.len()];
        let at_home = |player: &Player| Some((player.home?, player.on(player.home?)?.least));
        for (home, least) in self.players.iter().filter_map(at_home) {
            kept[home] += least;
        }
        for index in 0..self.players.len() {
            let player = &self.players[index];
            if let Some((home, least)) = at_home(player) {
                kept[home] -= least.min(kept[home]);
            }
            let fits = |kind: usize, aside: u32| {
                let room = if self.turns { self.rooms[kind] } else { left[kind] };
                let aside = if self.turns { 0 } else { aside };
                player.on(kind).is_some_and(|worths| worths.least + aside <= room)
            };
            let chosen = player.home.filter(|&home| fits(home, 0)).or_else(|| {
                let free: Vec<usize> = kinds.clone().filter(|&k| fits(k, kept[k])).collect();
                let any = || kinds.clone().filter(|&k| fits(k, 0)).collect();
                let open: Vec<usize> = if free.is_empty() { any() } else { free };
                let gain = |&kind: &usize| {
                    let standing = self.standing(kind);
                    let (_, with) = standing.settle(player.on(kind), None);
                    // Only differences between kinds count, so its own worth is among them.
                    with - standing.worth
                };
                let gains = open.iter().map(|kind| (gain(kind), *kind));
                // Of equals the first.
                gains.reduce(|a, b| if b.0 > a.0 { b } else { a }).map(|(_, kind)| kind)
            });
            let least = chosen.and_then(|kind| player.on(kind)).map_or(0, |worths| worths.least);
            if let Some(kind) = chosen {
                left[kind] = left[kind].saturating_sub(least);
            }
            self.players[index].at = chosen;
        }
    }

    /// GPUs of each kind beside the least that everybody there takes.
    fn spare(&self) -> Vec<u32> {
        let left = |standing: CurrentAssignment<'_>| standing.room.saturating_sub(standing.used);
        self.standings().into_iter().map(left).collect()
    }

    /// Moves and swaps as long as the sum gains.
    fn improve(&mut self) {
        for _ in 0..2 * self.players.len() {
            match self.best_change() {
                Some(Change::Move { player, to }) => self.players[player].at = Some(to),
                Some(Change::Swap { a, b }) => {
                    let (at, other) = (self.players[a].at, self.players[b].at);
                    (self.players[a].at, self.players[b].at) = (other, at);
                }
                None => return,
            }
        }
    }

    fn best_change(&self) -> Option<Change> {
        let standings = self.standings();
        let mut best: Option<(f64, Change)> = None;
        let mut offer = |gain: f64, change: Change| {
            if gain > GAIN_LEAST && best.as_ref().is_none_or(|(most, _)| gain > *most) {
                best = Some((gain, change));
            }
        };
        // What it comes to without and with jobs of the same worths is the same.
        let mut settled: BTreeMap<(usize, *const Worths, bool), f64> = BTreeMap::new();
        // By pair of kinds: the job that gains most by going over, at shares as they are.
        let mut over: BTreeMap<(usize, usize, u32), (f64, usize)> = BTreeMap::new();
        for (index, player) in self.players.iter().enumerate().filter(|(_, player)| player.moves) {
            let Some(from) = player.at else { continue };
            let Some(here) = player.on(from) else { continue };
            for to in (0..self.rooms.len()).filter(|&to| to != from) {
                let Some(there) = player.on(to) else { continue };
                let fee = player.fee(to) - player.fee(from);
                let (a, b) = (&standings[from], &standings[to]);
                if b.takes(there) {
                    let leaving = *settled
                        .entry((from, std::ptr::from_ref(here), false))
                        .or_insert_with(|| a.settle(None, Some(here)).1 - a.worth);
                    let coming = *settled
                        .entry((to, std::ptr::from_ref(there), true))
                        .or_insert_with(|| b.settle(Some(there), None).1 - b.worth);
                    offer(leaving + coming - fee, Change::Move { player: index, to });
                }
                if here.least == there.least {
                    let gain = b.worth_to(there) - a.worth_to(here) - fee;
                    let most = over.entry((from, to, here.least)).or_insert((gain, index));
                    if gain > most.0 {
                        *most = (gain, index);
                    }
                }
            }
        }
        for (&(from, to, least), &(gain, a)) in &over {
            if from < to
                && let Some(&(back, b)) = over.get(&(to, from, least))
            {
                offer(gain + back, Change::Swap { a, b });
            }
        }
        best.map(|(_, change)| change)
    }
}

enum Change {
    Move { player: usize, to: usize },
    Swap { a: usize, b: usize },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worths(points: &[(u32, f64)]) -> Rc<Worths> {
        let points: Vec<(f64, f64)> =
            points.iter().map(|(gpus, speed)| (f64::from(*gpus).log2(), speed.ln())).collect();
        let size = |point: Option<&(f64, f64)>| point.map_or(0, |p| p.0.exp2().round() as u32);
        Rc::new(Worths { least: size(points.first()), most: size(points.last()), points })
    }

    fn spread(rooms: &[u32], players: Vec<(Vec<Rc<Worths>>, Option<usize>, f64)>) -> Vec<usize> {
        let player = |(worths, home, cost): (Vec<Rc<Worths>>, Option<usize>, f64)| {
            let worths = worths.into_iter().map(Some).collect();
            Player { worths, home, moves: true, cost, at: None }
        };
        let mut spread = Spread {
            rooms: rooms.to_vec(),
            players: players.into_iter().map(player).collect(),
            turns: false,
        };
        spread.admit();
        spread.improve();
        spread.players.iter().map(|player| player.at.unwrap_or(usize::MAX)).collect()
    }

    #[test]
    fn who_gains_most_by_the_fast_cards_gets_them_unless_moving_costs_more() {
        let one = |speed: f64| worths(&[(1, speed)]);
        let slight = || vec![one(1.2), one(1.0)];
        let much = || vec![one(4.0), one(1.0)];
        let placed = spread(&[1, 1], vec![(slight(), None, 0.0), (much(), None, 0.0)]);
        assert_eq!(placed, [1, 0]);
        // The one that runs there leaves for a gain of 4 / 1.2, if a restart costs less than that.
        let cheap = spread(&[1, 1], vec![(slight(), Some(0), 0.1), (much(), None, 0.0)]);
        assert_eq!(cheap, [1, 0]);
        let dear = spread(&[1, 1], vec![(slight(), Some(0), 1.3), (much(), None, 0.0)]);
        assert_eq!(dear, [0, 1]);
        // Where jobs take turns, nobody goes where it could never have one.
        let wide = || vec![worths(&[(4, 1.0)]), worths(&[(4, 9.0)])];
        let mut turns = Spread {
            rooms: vec![4, 2],
            players: vec![Player {
                worths: wide().into_iter().map(Some).collect(),
                home: None,
                moves: true,
                cost: 0.0,
                at: None,
            }],
            turns: true,
        };
        turns.admit();
        turns.improve();
        assert_eq!(turns.players[0].at, Some(0));
        // Who finds no room waits, and it is not the one that came first.
        let full = spread(&[1, 0], vec![(slight(), None, 0.0), (much(), None, 0.0)]);
        assert_eq!(full, [0, usize::MAX]);
    }

    #[test]
    fn who_takes_turns_is_spread_by_how_short_each_kind_is() {
        let one = |speed: f64| Some(worths(&[(1, speed)]));
        let player = || {
            let worths = vec![one(3.0), one(1.0)];
            Player { worths, home: None, moves: true, cost: 0.0, at: None }
        };
        let players = (0..8).map(|_| player()).collect();
        let mut spread = Spread { rooms: vec![1, 1], players, turns: true };
        spread.admit();
        spread.improve();
        // However much faster one is, two lanes serve the queue better than one.
        let fast = spread.players.iter().filter(|player| player.at == Some(0)).count();
        assert!((4..8).contains(&fast), "{fast}");
    }

    #[test]
    fn nobody_crowds_onto_fast_cards_while_others_are_idle() {
        let scales = |speed: f64| worths(&[(1, speed), (2, 1.9 * speed), (4, 3.6 * speed)]);
        let job = || (vec![scales(1.5), scales(1.0)], None, 0.0);
        let placed = spread(&[4, 4], vec![job(), job(), job()]);
        assert_eq!(placed.iter().filter(|&&kind| kind == 0).count(), 2, "{placed:?}");
        // What does not scale has no use for more than one.
        let flat = |speed: f64| worths(&[(1, speed)]);
        let job = || (vec![flat(1.5), flat(1.0)], None, 0.0);
        assert_eq!(spread(&[4, 4], vec![job(), job(), job()]), [0, 0, 0]);
    }
}
