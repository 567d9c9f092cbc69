//! The multiple-choice knapsack: one number of GPUs for each item, with the greatest sum of values.
//!
//! Small problems are solved exactly by dynamic programming, large ones greedily over the concave hull of
//! each item and then filled up. Values include the cost of changes. If the present choices are as good as
//! the new ones they are kept, so that a plan that was applied is not made again.

use crate::allocation::capacity::NodeCounts;

/// The largest product of items and GPUs that is solved exactly.
const EXACT_MAX: usize = 1 << 17;
/// Rounds in which a solution is improved from itself.
const ROUNDS_MAX: usize = 8;
/// The penalty of an item that must get GPUs and gets none, per unit of the GPU price: more than any value,
/// and small enough not to lose the other values in rounding.
pub(super) const UNSERVED_PENALTY: f64 = 1e6;

/// A number of GPUs and its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) gpus: u32,
    pub(super) value: f64,
}

/// The choices of one item, ascending; the first is no GPUs.
pub(super) type Choices = Vec<Choice>;

/// A job or a pair: the value of each number of GPUs and the cost of changes.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) choices: Choices,
    /// The cost of each choice from the present allocation.
    pub(super) cost_from_now: Vec<f64>,
    /// The present choice, or the one closest to it.
    pub(super) present: usize,
    /// The cost of changes of each of its jobs.
    pub(super) changes: Vec<ChangeCost>,
}

/// The cost of changes of one job.
#[derive(Clone, Debug)]
pub(super) struct ChangeCost {
    /// The cost of a start at each choice; 0 for no GPUs.
    pub(super) costs: Vec<f64>,
    /// Whether it has ever run: the first start is free.
    pub(super) has_run: bool,
}

impl ChangeCost {
    /// The cost of a change: that of the costlier end. So a detour never costs less than the direct change,
    /// and the best choice remains the best once it is made.
    pub(super) fn between(&self, from: usize, to: usize) -> f64 {
        if from == to || (from == 0 && !self.has_run) {
            0.0
        } else {
            self.costs[from].max(self.costs[to])
        }
    }
}

/// The cost of unused GPUs of nodes that other jobs keep awake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct UnusedGpuCost {
    /// GPUs of a node.
    pub(super) node_gpus: u32,
    /// GPUs that are used apart from those of the items.
    pub(super) taken: u32,
    /// The cost of one unused GPU, s/s: equal to the charge of a used one for keeping its node awake.
    pub(super) per_gpu: f64,
}

impl UnusedGpuCost {
    /// The cost of the unused GPUs if the items use this many on as few nodes as possible.
    fn cost(&self, used: u32) -> f64 {
        let used = self.taken + used;
        f64::from(used.next_multiple_of(self.node_gpus) - used) * self.per_gpu
    }
}

/// The choice of each item, with at most `gpus` in all that fit the nodes. Small problems also minimise the
/// cost of `unused` GPUs; in large ones a single node is negligible.
pub(super) fn solve(
    items: &[Item],
    gpus: u32,
    nodes: &NodeCounts,
    unused: Option<UnusedGpuCost>,
) -> Vec<usize> {
    let mut current: Vec<usize> = items.iter().map(|item| item.present).collect();
    let mut has_started: Vec<bool> = vec![false; items.len()];
    let mut net: Vec<Choices> = items.iter().map(|item| item.choices.clone()).collect();
    for round in 0..ROUNDS_MAX {
        for (index, (choices, item)) in net.iter_mut().zip(items).enumerate() {
            let cost = |to: usize| match round {
                0 => item.cost_from_now[to],
                _ if current[index] == to => 0.0,
                _ => (item.changes.iter())
                    .filter(|change| change.has_run || current[index] > 0 || has_started[index])
                    .map(|change| change.costs[current[index]].max(change.costs[to]))
                    .sum(),
            };
            for (to, choice) in choices.iter_mut().enumerate() {
                choice.value = item.choices[to].value - cost(to);
            }
        }
        let is_exact = net.len() * (gpus as usize + 1) <= EXACT_MAX;
        let unused = unused.filter(|_| is_exact);
        let mut chosen =
            if is_exact { solve_exact(&net, gpus, unused) } else { solve_greedy(&net, gpus) };
        let fitted = repair(&net, &mut chosen, nodes.clone());
        let value = |chosen: &[usize]| -> f64 {
            let choices = || net.iter().zip(chosen).map(|(choices, &choice)| choices[choice]);
            let used = || choices().map(|choice| choice.gpus).sum();
            let unused = unused.map_or(0.0, |unused| unused.cost(used()));
            choices().map(|choice| choice.value).sum::<f64>() - unused
        };
        let is_feasible = || {
            let used = net.iter().zip(&current).map(|(choices, &c)| u64::from(choices[c].gpus));
            used.sum::<u64>() <= u64::from(gpus)
                && repair(&net, &mut current.clone(), nodes.clone())
        };
        let (new, old) = (value(&chosen), value(&current));
        if new <= old + 1e-9 * (1.0 + old.abs()) && is_feasible() {
            return current;
        }
        for (has_started, choice) in has_started.iter_mut().zip(&chosen) {
            *has_started |= *choice > 0;
        }
        current = chosen;
        if is_exact && fitted {
            return current;
        }
    }
    current
}

/// The best choices, by dynamic programming over items and GPUs. The cost of unused GPUs may change sizes
/// and add items, but no item that gets GPUs without that cost loses them: it would need a node sooner or
/// later.
fn solve_exact(items: &[Choices], gpus: u32, unused: Option<UnusedGpuCost>) -> Vec<usize> {
    let without_cost = unused.map(|_| solve_exact(items, gpus, None));
    let must_run = |index: usize| without_cost.as_ref().is_some_and(|chosen| chosen[index] > 0);
    let width = gpus as usize + 1;
    // The value of the items so far with at most this many GPUs; with exactly as many, if the number of
    // unused GPUs matters.
    let mut value = vec![if unused.is_some() { f64::NEG_INFINITY } else { 0.0 }; width];
    value[0] = 0.0;
    let mut decisions: Vec<u8> = Vec::with_capacity(items.len() * width);
    let mut next = vec![0.0; width];
    for (index, choices) in items.iter().enumerate() {
        let first = usize::from(must_run(index));
        for (gpus, next) in next.iter_mut().enumerate() {
            let (mut most, mut which) = (f64::NEG_INFINITY, 0);
            for (index, choice) in choices.iter().enumerate().skip(first) {
                let Some(left) = gpus.checked_sub(choice.gpus as usize) else { break };
                let sum = value[left] + choice.value;
                if sum > most {
                    (most, which) = (sum, index);
                }
            }
            *next = most;
            decisions.push(which as u8);
        }
        std::mem::swap(&mut value, &mut next);
    }
    let mut left = unused.map_or(width - 1, |unused| {
        let net = |used: &usize| value[*used] - unused.cost(*used as u32);
        (0..width).max_by(|a, b| net(a).total_cmp(&net(b)).then(b.cmp(a))).unwrap_or(0)
    });
    let mut chosen = vec![0; items.len()];
    for (index, choices) in items.iter().enumerate().rev() {
        chosen[index] = usize::from(decisions[index * width + left]);
        left -= choices[chosen[index]].gpus as usize;
    }
    chosen
}

/// A step of an item to a larger choice.
struct Step {
    gain: f64,
    item: u32,
    from: u8,
    to: u8,
}

/// Adds the steps of an item's concave hull from one choice on.
fn add_hull_steps(choices: &[Choice], item: usize, from: usize, steps: &mut Vec<Step>) {
    let gain = |a: usize, b: usize| {
        (choices[b].value - choices[a].value) / f64::from(choices[b].gpus - choices[a].gpus)
    };
    let mut at = from;
    while let Some((to, best)) = (at + 1..choices.len())
        .map(|to| (to, gain(at, to)))
        .reduce(|best, next| if next.1 >= best.1 { next } else { best })
        .filter(|(_, best)| *best > 0.0)
    {
        steps.push(Step { gain: best, item: item as u32, from: at as u8, to: to as u8 });
        at = to;
    }
}

/// Steps in the order of their gain per GPU, while GPUs are left. Items whose steps did not fit are tried
/// again with smaller ones.
fn solve_greedy(items: &[Choices], gpus: u32) -> Vec<usize> {
    let mut chosen = vec![0; items.len()];
    let mut left = gpus;
    let mut steps = Vec::with_capacity(2 * items.len());
    while left > 0 {
        steps.clear();
        for (index, choices) in items.iter().enumerate() {
            let at = chosen[index];
            let fits = |choice: &&Choice| choice.gpus - choices[at].gpus <= left;
            let within = at + choices[at..].iter().take_while(fits).count();
            if within > at + 1 {
                add_hull_steps(&choices[..within], index, at, &mut steps);
            }
        }
        steps.sort_unstable_by(|a, b| {
            b.gain.total_cmp(&a.gain).then((a.item, a.from).cmp(&(b.item, b.from)))
        });
        let before = left;
        for step in &steps {
            let choices = &items[step.item as usize];
            let added = choices[usize::from(step.to)].gpus - choices[usize::from(step.from)].gpus;
            let at = &mut chosen[step.item as usize];
            if *at == usize::from(step.from) && added <= left {
                *at = usize::from(step.to);
                left -= added;
            }
        }
        if left == before {
            break;
        }
    }
    chosen
}

/// Reduces the choices that fit no node or set of nodes after the larger ones. True if all fit.
fn repair(items: &[Choices], chosen: &mut [usize], mut nodes: NodeCounts) -> bool {
    let largest_in_node = nodes.largest_in_node();
    let mut by_size: Vec<usize> = (0..items.len()).filter(|&i| chosen[i] > 0).collect();
    by_size.sort_by_key(|&i| std::cmp::Reverse(items[i][chosen[i]].gpus));
    let mut all_fit = true;
    for index in by_size {
        let choices = &items[index];
        while chosen[index] > 0 && !nodes.take_set(choices[chosen[index]].gpus, largest_in_node) {
            chosen[index] -= 1;
            all_fit = false;
        }
    }
    all_fit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(values: &[f64]) -> Choices {
        let sizes = [0, 1, 2, 4, 8, 16];
        values.iter().zip(sizes).map(|(&value, gpus)| Choice { gpus, value }).collect()
    }

    fn total(items: &[Choices], chosen: &[usize]) -> f64 {
        items.iter().zip(chosen).map(|(choices, &choice)| choices[choice].value).sum()
    }

    fn brute_force(items: &[Choices], gpus: u32) -> f64 {
        let Some((first, rest)) = items.split_first() else { return 0.0 };
        let fitting = first.iter().filter(|choice| choice.gpus <= gpus);
        fitting.map(|c| c.value + brute_force(rest, gpus - c.gpus)).fold(f64::MIN, f64::max)
    }

    /// Uniform numbers from 0 to 1.
    fn uniform(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 40) as f64 / f64::from(1 << 24)
    }

    #[test]
    fn small_problems_are_solved_exactly_and_large_ones_nearly() {
        let mut state = 7_u64;
        for _ in 0..50 {
            // Not concave, like values less the cost of changes.
            let items: Vec<Choices> = (0..5)
                .map(|_| {
                    let mut values = vec![0.0];
                    (0..4).for_each(|i| values.push(values[i] + uniform(&mut state) - 0.1));
                    choices(&values)
                })
                .collect();
            for gpus in [0, 3, 7, 12, 40] {
                let best = brute_force(&items, gpus);
                let exact = solve_exact(&items, gpus, None);
                assert!((total(&items, &exact) - best).abs() < 1e-9);
                let greedy = solve_greedy(&items, gpus);
                let used: u32 = items.iter().zip(&greedy).map(|(i, &c)| i[c].gpus).sum();
                assert!(used <= gpus);
                assert!(total(&items, &greedy) >= 0.75 * best - 1e-9, "{items:?} {gpus}");
            }
        }
    }

    #[test]
    fn the_cost_of_unused_gpus_is_part_of_the_exact_optimum() {
        // The value of the second GPU is below its charge; unused it is charged as well.
        let items = vec![choices(&[0.0, 1.0, 0.8]); 3];
        let unused = |taken, per_gpu| Some(UnusedGpuCost { node_gpus: 8, taken, per_gpu });
        assert_eq!(solve_exact(&items, 16, None), [1, 1, 1]);
        assert_eq!(solve_exact(&items, 16, unused(0, 0.3)), [2, 2, 2]);
        assert_eq!(solve_exact(&items, 16, unused(5, 0.3)), [1, 1, 1], "the node is full");
        assert_eq!(solve_exact(&items, 16, unused(0, 0.1)), [1, 1, 1], "it would gain too little");
        // An item that runs without that cost runs at any cost.
        assert_eq!(solve_exact(&items, 16, unused(6, 2.0)), [2, 2, 2]);
        assert_eq!(solve_exact(&items, 16, unused(1, 2.0)), [2, 2, 2]);
        let mut state = 7_u64;
        for _ in 0..200 {
            let mut next = || uniform(&mut state);
            let items: Vec<Choices> =
                (0..4).map(|_| choices(&[0.0, next(), next(), next()])).collect();
            let unused = UnusedGpuCost { node_gpus: 4, taken: 3, per_gpu: 0.5 * next() };
            let used = |chosen: &[usize]| -> u32 {
                items.iter().zip(chosen).map(|(choices, &choice)| choices[choice].gpus).sum()
            };
            let net = |chosen: &[usize]| total(&items, chosen) - unused.cost(used(chosen));
            let found = net(&solve_exact(&items, 9, Some(unused)));
            let plain = solve_exact(&items, 9, None);
            let all = (0..256_usize).map(|n| [n % 4, n / 4 % 4, n / 16 % 4, n / 64]);
            let all = all.filter(|chosen| used(chosen) <= 9);
            let all = all.filter(|chosen| (0..4).all(|i| plain[i] == 0 || chosen[i] > 0));
            let most = all.map(|chosen| net(&chosen)).fold(f64::MIN, f64::max);
            assert!((found - most).abs() < 1e-9, "{found} {most} {items:?} {unused:?}");
        }
    }

    #[test]
    fn an_item_that_must_be_served_is_served() {
        let must = choices(&[-UNSERVED_PENALTY, 0.1, 0.2]);
        let items = vec![choices(&[0.0, 5.0, 11.0]), must, choices(&[0.0, 5.0, 9.0])];
        assert_eq!(solve_exact(&items, 3, None), [2, 1, 0]);
        assert_eq!(solve_greedy(&items, 3)[1], 1);
    }

    #[test]
    fn choices_are_reduced_to_what_nodes_can_hold() {
        let mut nodes = NodeCounts::default();
        for (gpus, healthy) in [(8, 8), (8, 8), (8, 3), (2, 2)] {
            nodes.add_node(gpus, healthy);
        }
        assert_eq!(nodes.largest_set(), 16);
        let items = vec![choices(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]); 2];
        let mut chosen = vec![5, 4];
        // 16 use both entire nodes; for 8 only 2 are left together.
        assert!(!repair(&items, &mut chosen, nodes.clone()));
        assert_eq!(chosen, [5, 2]);
        let mut chosen = vec![4, 4];
        assert!(repair(&items, &mut chosen, nodes));
    }

    #[test]
    fn the_present_choice_is_kept_unless_a_change_gains_more_than_it_costs() {
        let mut nodes = NodeCounts::default();
        nodes.add_node(8, 8);
        let item = |present: usize| {
            let changes = ChangeCost { costs: vec![0.0, 0.1, 0.1, 0.1], has_run: present > 0 };
            let cost_from_now = (0..4).map(|to| changes.between(present, to)).collect();
            let choices = choices(&[0.0, 1.0, 2.0, 4.0]);
            Item { choices, cost_from_now, present, changes: vec![changes] }
        };
        let mut items = [0, 3, 0, 3].map(item);
        assert_eq!(solve(&items, 8, &nodes, None), [0, 3, 0, 3]);
        items[0].choices[3].value = 4.3;
        let chosen = solve(&items, 8, &nodes, None);
        assert_eq!((chosen[0], chosen[1] + chosen[3]), (3, 3));
        items[0].choices[3].value = 4.05;
        assert_eq!(solve(&items, 8, &nodes, None), [0, 3, 0, 3]);
    }
}
