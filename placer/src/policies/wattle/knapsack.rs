//! Whole GPUs for everybody: the numbers that are worth most together.
//!
//! Each item has options: a number of GPUs and what that is worth. Small problems are solved exactly,
//! large ones by taking the best gain per GPU first, over each item's concave hull, and then filling
//! what is left. What a change costs is in the worths already; who knows a plan to be as good as
//! another keeps the one it has, so that a plan carried out is not made anew.

use crate::allocation::capacity::NodeCounts;

/// Exact up to so many items times GPUs.
const EXACT_MAX: usize = 1 << 17;
/// Rounds in which what was allotted may still better itself.
const ROUNDS_MAX: usize = 8;
/// What an item that must have GPUs is out of pocket without them, for each second that a GPU-second
/// costs: more than anything is worth, little enough that the rest is not lost in rounding.
pub(super) const MUST: f64 = 1e6;

/// A number of GPUs and its worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Opt {
    pub(super) gpus: u32,
    pub(super) worth: f64,
}

/// One who gets GPUs: its options, ascending, the first of which is none at all.
pub(super) type Item = Vec<Opt>;

/// One who gets GPUs: what each number is worth, and what a change costs.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) item: Item,
    /// What it costs to come from how things are to each option.
    pub(super) from_now: Vec<f64>,
    /// The option that it has, or comes closest to.
    pub(super) stay: usize,
    /// For each job of it, what each option costs to come to.
    pub(super) moves: Vec<Moves>,
}

/// What changes cost one job.
#[derive(Clone, Debug)]
pub(super) struct Moves {
    /// By option; none at all is free.
    pub(super) cost: Vec<f64>,
    /// Whether it has ever run: the first start is free.
    pub(super) has_run: bool,
}

impl Moves {
    /// The cost of a change of options: the dearer end's. So no detour is cheaper than the direct
    /// way, and what was best is still the best once it is so.
    pub(super) fn between(&self, from: usize, to: usize) -> f64 {
        if from == to || (from == 0 && !self.has_run) {
            0.0
        } else {
            self.cost[from].max(self.cost[to])
        }
    }
}

/// Nodes come whole: what the GPUs cost that nobody uses on a node that is awake for others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WholeNodes {
    /// GPUs of a node.
    pub(super) gpus: u32,
    /// GPUs taken beside what is given out.
    pub(super) taken: u32,
    /// What an unused one costs, s/s: as much as a used one is charged for being used at all.
    pub(super) unused: f64,
}

impl WholeNodes {
    /// What is unused beside so many, on as few nodes as hold them, costs.
    fn cost(&self, used: u32) -> f64 {
        let used = self.taken + used;
        f64::from(used.next_multiple_of(self.gpus) - used) * self.unused
    }
}

/// Which option each item gets, with at most `room` GPUs in all; where nodes are paid for `whole`,
/// small problems leave as little of one unused as is worth it. In large ones one node is nothing.
pub(super) fn allot(
    wishes: &[Wish],
    room: u32,
    blocks: &NodeCounts,
    whole: Option<WholeNodes>,
) -> Vec<usize> {
    let mut stay: Vec<usize> = wishes.iter().map(|wish| wish.stay).collect();
    let mut has_run: Vec<bool> = vec![false; wishes.len()];
    let mut items: Vec<Item> = wishes.iter().map(|wish| wish.item.clone()).collect();
    for round in 0..ROUNDS_MAX {
        for (index, (item, wish)) in items.iter_mut().zip(wishes).enumerate() {
            let cost = |to: usize| match round {
                0 => wish.from_now[to],
                _ if stay[index] == to => 0.0,
                _ => (wish.moves.iter())
                    .filter(|moves| moves.has_run || stay[index] > 0 || has_run[index])
                    .map(|moves| moves.cost[stay[index]].max(moves.cost[to]))
                    .sum(),
            };
            for (to, option) in item.iter_mut().enumerate() {
                option.worth = wish.item[to].worth - cost(to);
            }
        }
        let exact = items.len() * (room as usize + 1) <= EXACT_MAX;
        let whole = whole.filter(|_| exact);
        let mut chosen = if exact { best(&items, room, whole) } else { good(&items, room) };
        let fitted = fit(&items, &mut chosen, blocks.clone());
        let worth = |options: &[usize]| -> f64 {
            let chosen = || items.iter().zip(options).map(|(item, &option)| item[option]);
            let unused = whole.map_or(0.0, |w| w.cost(chosen().map(|option| option.gpus).sum()));
            chosen().map(|option| option.worth).sum::<f64>() - unused
        };
        let possible = || {
            let gpus = items.iter().zip(&stay).map(|(item, &option)| u64::from(item[option].gpus));
            gpus.sum::<u64>() <= u64::from(room) && fit(&items, &mut stay.clone(), blocks.clone())
        };
        let (new, old) = (worth(&chosen), worth(&stay));
        if new <= old + 1e-9 * (1.0 + old.abs()) && possible() {
            return stay;
        }
        for (has_run, option) in has_run.iter_mut().zip(&chosen) {
            *has_run |= *option > 0;
        }
        stay = chosen;
        if exact && fitted {
            return stay;
        }
    }
    stay
}

/// The best of all, exactly: over items, then over GPUs. What nodes cost as a whole decides about
/// sizes, and who runs besides, but nobody waits for it: sooner or later it needs a node all the same.
fn best(items: &[Item], room: u32, whole: Option<WholeNodes>) -> Vec<usize> {
    let plain = whole.map(|_| best(items, room, None));
    let runs = |index: usize| plain.as_ref().is_some_and(|plain| plain[index] > 0);
    let width = room as usize + 1;
    // What the items so far are worth with at most so many GPUs; with just so many, where it matters
    // how many are left.
    let mut worth = vec![if whole.is_some() { f64::NEG_INFINITY } else { 0.0 }; width];
    worth[0] = 0.0;
    let mut choices: Vec<u8> = Vec::with_capacity(items.len() * width);
    let mut next = vec![0.0; width];
    for (index, item) in items.iter().enumerate() {
        let first = usize::from(runs(index));
        for (gpus, next) in next.iter_mut().enumerate() {
            let (mut most, mut which) = (f64::NEG_INFINITY, 0);
            for (index, option) in item.iter().enumerate().skip(first) {
                let Some(left) = gpus.checked_sub(option.gpus as usize) else { break };
                let sum = worth[left] + option.worth;
                if sum > most {
                    (most, which) = (sum, index);
                }
            }
            *next = most;
            choices.push(which as u8);
        }
        std::mem::swap(&mut worth, &mut next);
    }
    let mut left = whole.map_or(width - 1, |whole| {
        let net = |used: &usize| worth[*used] - whole.cost(*used as u32);
        (0..width).max_by(|a, b| net(a).total_cmp(&net(b)).then(b.cmp(a))).unwrap_or(0)
    });
    let mut chosen = vec![0; items.len()];
    for (index, item) in items.iter().enumerate().rev() {
        chosen[index] = usize::from(choices[index * width + left]);
        left -= item[chosen[index]].gpus as usize;
    }
    chosen
}

/// One step of an item from an option to a larger one.
struct Step {
    gain: f64,
    item: u32,
    from: u8,
    to: u8,
}

/// The steps of an item's concave hull from `from` on.
fn hull(item: &[Opt], index: usize, from: usize, steps: &mut Vec<Step>) {
    let gain = |a: usize, b: usize| {
        (item[b].worth - item[a].worth) / f64::from(item[b].gpus - item[a].gpus)
    };
    let mut at = from;
    while let Some((to, best)) = (at + 1..item.len())
        .map(|to| (to, gain(at, to)))
        .reduce(|best, next| if next.1 >= best.1 { next } else { best })
        .filter(|(_, best)| *best > 0.0)
    {
        steps.push(Step { gain: best, item: index as u32, from: at as u8, to: to as u8 });
        at = to;
    }
}

/// The best gains per GPU first, while there is room.
fn good(items: &[Item], room: u32) -> Vec<usize> {
    let mut chosen = vec![0; items.len()];
    let mut left = room;
    // What did not fit is tried anew with smaller steps, until nothing fits.
    let mut steps = Vec::with_capacity(2 * items.len());
    while left > 0 {
        steps.clear();
        for (index, item) in items.iter().enumerate() {
            let at = chosen[index];
            let fits = |option: &&Opt| option.gpus - item[at].gpus <= left;
            let within = at + item[at..].iter().take_while(fits).count();
            if within > at + 1 {
                hull(&item[..within], index, at, &mut steps);
            }
        }
        steps.sort_unstable_by(|a, b| {
            b.gain.total_cmp(&a.gain).then((a.item, a.from).cmp(&(b.item, b.from)))
        });
        let before = left;
        for step in &steps {
            let item = &items[step.item as usize];
            let more = item[usize::from(step.to)].gpus - item[usize::from(step.from)].gpus;
            let at = &mut chosen[step.item as usize];
            if *at == usize::from(step.from) && more <= left {
                *at = usize::from(step.to);
                left -= more;
            }
        }
        if left == before {
            break;
        }
    }
    chosen
}

/// Whoever no node or set of nodes can hold beside the larger ones gets less. True where all fit.
fn fit(items: &[Item], chosen: &mut [usize], mut blocks: NodeCounts) -> bool {
    let largest = blocks.largest_in_node();
    let mut by_size: Vec<usize> = (0..items.len()).filter(|&i| chosen[i] > 0).collect();
    by_size.sort_by_key(|&i| std::cmp::Reverse(items[i][chosen[i]].gpus));
    let mut all_fit = true;
    for index in by_size {
        let item = &items[index];
        while chosen[index] > 0 && !blocks.take_set(item[chosen[index]].gpus, largest) {
            chosen[index] -= 1;
            all_fit = false;
        }
    }
    all_fit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(worths: &[f64]) -> Item {
        let sizes = [0, 1, 2, 4, 8, 16];
        worths.iter().zip(sizes).map(|(&worth, gpus)| Opt { gpus, worth }).collect()
    }

    fn total(items: &[Item], chosen: &[usize]) -> f64 {
        items.iter().zip(chosen).map(|(item, &option)| item[option].worth).sum()
    }

    fn brute(items: &[Item], room: u32) -> f64 {
        let Some((first, rest)) = items.split_first() else { return 0.0 };
        let options = first.iter().filter(|option| option.gpus <= room);
        options.map(|o| o.worth + brute(rest, room - o.gpus)).fold(f64::MIN, f64::max)
    }

    #[test]
    fn small_problems_are_solved_exactly_and_large_ones_nearly() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / f64::from(1 << 24)
        };
        for _ in 0..50 {
            // Not concave, as costs of changes make them.
            let made = |random: &mut dyn FnMut() -> f64| {
                let mut worths = vec![0.0];
                (0..4).for_each(|_| worths.push(worths[worths.len() - 1] + random() - 0.1));
                item(&worths)
            };
            let items: Vec<Item> = (0..5).map(|_| made(&mut random)).collect();
            for room in [0, 3, 7, 12, 40] {
                let exact = brute(&items, room);
                let best = best(&items, room, None);
                assert!((total(&items, &best) - exact).abs() < 1e-9);
                let good = good(&items, room);
                let gpus: u32 = items.iter().zip(&good).map(|(i, &o)| i[o].gpus).sum();
                assert!(gpus <= room);
                assert!(total(&items, &good) >= 0.75 * exact - 1e-9, "{items:?} {room}");
            }
        }
    }

    /// What is unused on nodes that are awake is paid for: the exact answer is the best by that, too.
    #[test]
    fn of_a_node_as_little_is_left_as_is_worth_it() {
        // The second GPU is not worth what it is charged; left unused it is charged all the same.
        let items = vec![item(&[0.0, 1.0, 0.8]); 3];
        let whole = |taken, unused| Some(WholeNodes { gpus: 8, taken, unused });
        assert_eq!(best(&items, 16, None), [1, 1, 1]);
        assert_eq!(best(&items, 16, whole(0, 0.3)), [2, 2, 2]);
        assert_eq!(best(&items, 16, whole(5, 0.3)), [1, 1, 1], "the node is full");
        assert_eq!(best(&items, 16, whole(0, 0.1)), [1, 1, 1], "it would win too little");
        // However much a node costs, who would run does.
        assert_eq!(best(&items, 16, whole(6, 2.0)), [2, 2, 2]);
        assert_eq!(best(&items, 16, whole(1, 2.0)), [2, 2, 2]);
        let mut random = 7_u64;
        for _ in 0..200 {
            let mut next = || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 40) as f64 / f64::from(1 << 24)
            };
            let items: Vec<Item> = (0..4).map(|_| item(&[0.0, next(), next(), next()])).collect();
            let whole = WholeNodes { gpus: 4, taken: 3, unused: 0.5 * next() };
            let net = |chosen: &[usize]| {
                let used = items.iter().zip(chosen).map(|(item, &option)| item[option].gpus).sum();
                total(&items, chosen) - whole.cost(used)
            };
            let found = net(&best(&items, 9, Some(whole)));
            let all = (0..256_usize).map(|n| [n % 4, n / 4 % 4, n / 16 % 4, n / 64]);
            let fits = |chosen: &[usize; 4]| {
                let gpus = items.iter().zip(chosen).map(|(item, &option)| item[option].gpus);
                gpus.sum::<u32>() <= 9
            };
            let plain = best(&items, 9, None);
            let run = |chosen: &[usize; 4]| (0..4).all(|i| plain[i] == 0 || chosen[i] > 0);
            let all = all.filter(fits).filter(run);
            let most = all.map(|chosen| net(&chosen)).fold(f64::MIN, f64::max);
            assert!((found - most).abs() < 1e-9, "{found} {most} {items:?} {whole:?}");
        }
    }

    #[test]
    fn who_must_have_gpus_has_them() {
        let must = item(&[-MUST, 0.1, 0.2]);
        let items = vec![item(&[0.0, 5.0, 11.0]), must, item(&[0.0, 5.0, 9.0])];
        assert_eq!(best(&items, 3, None), [2, 1, 0]);
        assert_eq!(good(&items, 3)[1], 1);
    }

    #[test]
    fn numbers_are_cut_to_what_nodes_can_hold() {
        let mut blocks = NodeCounts::default();
        for (gpus, healthy) in [(8, 8), (8, 8), (8, 3), (2, 2)] {
            blocks.add_node(gpus, healthy);
        }
        assert_eq!(blocks.largest_set(), 16);
        let items = vec![item(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]); 2];
        let mut chosen = vec![5, 4];
        // 16 take both whole nodes; of 8, 2 are left together.
        assert!(!fit(&items, &mut chosen, blocks.clone()));
        assert_eq!(chosen, [5, 2]);
        let mut chosen = vec![4, 4];
        assert!(fit(&items, &mut chosen, blocks));
    }

    #[test]
    fn what_is_as_good_stays() {
        let mut blocks = NodeCounts::default();
        blocks.add_node(8, 8);
        let wish = |stay: usize| {
            let cost = vec![0.0, 0.1, 0.1, 0.1];
            let moves = Moves { cost, has_run: stay > 0 };
            let from_now = (0..4).map(|to| moves.between(stay, to)).collect();
            Wish { item: item(&[0.0, 1.0, 2.0, 4.0]), from_now, stay, moves: vec![moves] }
        };
        let wishes = [0, 3, 0, 3].map(wish);
        assert_eq!(allot(&wishes, 8, &blocks, None), [0, 3, 0, 3]);
        // A change is made where it wins more than it costs.
        let mut wishes = wishes;
        wishes[0].item[3].worth = 4.3;
        let chosen = allot(&wishes, 8, &blocks, None);
        assert_eq!((chosen[0], chosen[1] + chosen[3]), (3, 3));
        wishes[0].item[3].worth = 4.05;
        assert_eq!(allot(&wishes, 8, &blocks, None), [0, 3, 0, 3]);
    }
}
