//! The multiple-choice knapsack in two resources: a size and a setting for each item within GPUs and power.
//!
//! 1. **Dual prices.** Each item gets the choice of greatest net value at the prices that clear the market. With hulls
//!    of many small steps little is lost between these choices and the best ones.
//! 2. **Trim.** Nodes that are used in part draw power that the prices do not know of, and blocks must fit nodes:
//!    the steps down that lose least per priced resource are taken until everything fits.
//! 3. **Fill.** The steps up that gain most per priced resource are taken while they fit.
//! 4. **Settings.** With the sizes fixed only power is shared out: from the lowest setting of each item the steps
//!    that gain most per watt are taken while they fit.
//!
//! The present choices are kept where the new ones are no better, so that a plan that was applied is not made
//! again.

mod items;

use crate::allocation::capacity::NodeCounts;
use crate::policies::wattle::power_supply::PowerSupply;
use crate::policies::wattle::prices::Prices;

use items::Chosen;
pub(super) use items::{Choice, Item, Items};

/// Passes over all items in which steps are taken.
const PASSES_MAX: usize = 8;
/// Least prices in the rating of a step, so that a free resource still counts a little: s per GPU-second and
/// s/J.
const RATED_AT_LEAST: Prices = Prices { gpu: 1e-6, power: 1e-9 };

/// A change of one item's choice.
#[derive(Clone, Copy)]
struct Step {
    item: usize,
    to: Chosen,
    rating: f64,
}

/// The choices of all items while they are improved.
struct Allocation<'i> {
    items: &'i Items,
    supply: &'i PowerSupply,
    /// What the limits of feeders and nodes leave, watts.
    left_w: &'i [f64],
    gpus_max: u32,
    nodes: &'i NodeCounts,
    /// The prices at which steps are rated.
    prices: Prices,
    chosen: Vec<Chosen>,
    gpus: u32,
    watts: f64,
    /// The power that counts within each of these limits, watts.
    local_w: Vec<f64>,
}

impl<'i> Allocation<'i> {
    fn with(&self, chosen: Vec<Chosen>) -> Self {
        let used = || self.items.iter().zip(&chosen).map(|(item, &choice)| item.used(choice));
        let (gpus, watts) = (used().map(|used| used.0).sum(), used().map(|used| used.1).sum());
        let mut local_w = vec![0.0; self.left_w.len()];
        for (item, &choice) in self.items.iter().zip(&chosen) {
            let located_w = item.located_w(choice, self.supply.share_w());
            item.parts.of.iter().for_each(|&(limit, part)| local_w[limit] += part * located_w);
        }
        Self { chosen, gpus, watts, local_w, ..*self }
    }

    fn value(&self) -> f64 {
        self.items.iter().zip(&self.chosen).map(|(item, &choice)| item.value(choice)).sum()
    }

    /// The GPUs and the power with another choice of one item.
    fn after(&self, item: usize, to: Chosen) -> (u32, f64) {
        let (from, to) = (self.items[item].used(self.chosen[item]), self.items[item].used(to));
        (self.gpus - from.0 + to.0, self.watts - from.1 + to.1)
    }

    /// What another choice of an item adds within the limits of its present GPUs, watts.
    fn added_w(&self, item: usize, to: Chosen) -> f64 {
        let (known, share_w) = (&self.items[item], self.supply.share_w());
        known.located_w(to, share_w) - known.located_w(self.chosen[item], share_w)
    }

    /// Whether everything fits with another choice of one item.
    fn fits_with(&self, item: usize, to: Chosen) -> bool {
        let added_w = self.added_w(item, to);
        let fits = |&(limit, part): &(usize, f64)| {
            self.local_w[limit] + part * added_w <= self.left_w[limit] + 1e-6
        };
        self.fits_power(self.after(item, to))
            && (added_w <= 0.0 || self.items[item].parts.of.iter().all(fits))
    }

    fn is_exceeded(&self, limit: usize) -> bool {
        self.local_w[limit] > self.left_w[limit] + 1e-6
    }

    fn take(&mut self, step: Step) {
        let added_w = self.added_w(step.item, step.to);
        for &(limit, part) in &self.items[step.item].parts.of {
            self.local_w[limit] += part * added_w;
        }
        (self.gpus, self.watts) = self.after(step.item, step.to);
        self.chosen[step.item] = step.to;
    }

    fn fits_power(&self, (gpus, watts): (u32, f64)) -> bool {
        gpus <= self.gpus_max && self.supply.fits(gpus, watts)
    }

    /// The nodes with all sets placed, and the items whose sets found no place.
    fn placed(&self) -> (NodeCounts, Vec<usize>) {
        let mut nodes = self.nodes.clone();
        let largest_in_node = nodes.largest_in_node();
        let gpus = |item: usize| self.items[item].used(self.chosen[item]).0;
        let mut by_size: Vec<usize> =
            (0..self.items.len()).filter(|&item| gpus(item) > 0).collect();
        by_size.sort_by_key(|&item| std::cmp::Reverse(gpus(item)));
        by_size.retain(|&item| !nodes.take_set(gpus(item), largest_in_node));
        (nodes, by_size)
    }

    fn fits(&self) -> bool {
        self.fits_power((self.gpus, self.watts))
            && !(0..self.left_w.len()).any(|limit| self.is_exceeded(limit))
            && self.placed().1.is_empty()
    }

    /// The priced resources of a change, s/s.
    fn priced(&self, item: usize, to: Chosen) -> f64 {
        let (from, to) = (self.items[item].used(self.chosen[item]), self.items[item].used(to));
        let gpus = f64::from(to.0) - f64::from(from.0);
        gpus * self.prices.gpu.max(RATED_AT_LEAST.gpu)
            + (to.1 - from.1) * self.prices.power.max(RATED_AT_LEAST.power)
    }

    /// The step of an item that loses least per resource, and uses no more of either.
    fn step_down(&self, item: usize) -> Option<Step> {
        let from = self.items[item].used(self.chosen[item]);
        let now = self.items[item].value(self.chosen[item]);
        let frees = |to: &Chosen| {
            let to = self.items[item].used(*to);
            to.0 <= from.0 && to.1 <= from.1 && to != from
        };
        let steps = self.items[item].all().filter(frees).map(|to| {
            let freed = -self.priced(item, to);
            Step { item, to, rating: (now - self.items[item].value(to)) / freed }
        });
        steps.reduce(|best, next| if next.rating < best.rating { next } else { best })
    }

    /// The step of an item that gains most per resource among those that fit.
    fn step_up(&self, item: usize) -> Option<Step> {
        let now = self.items[item].value(self.chosen[item]);
        let gain = |to: Chosen| self.items[item].value(to) - now;
        let fitting =
            self.items[item].all().filter(|&to| gain(to) > 1e-9 && self.fits_with(item, to));
        let steps = fitting.map(|to| {
            let priced = self.priced(item, to);
            let rating = if priced > 0.0 { gain(to) / priced } else { f64::INFINITY };
            Step { item, to, rating }
        });
        steps.reduce(|best, next| if next.rating > best.rating { next } else { best })
    }

    /// The best step up of each item. Those of one kind without GPUs have the same one.
    fn steps_up(&self) -> Vec<Step> {
        let mut of_kinds: Vec<Option<Option<Step>>> = vec![None; self.items.kinds.len()];
        let step = |item: usize| {
            if self.chosen[item].is_some() {
                return self.step_up(item);
            }
            let step = of_kinds[self.items.of[item]].get_or_insert_with(|| self.step_up(item));
            step.map(|step| Step { item, ..step })
        };
        (0..self.items.len()).filter_map(step).collect()
    }

    /// Takes steps down until everything fits, or no step is left.
    fn trim(&mut self) {
        while !self.fits_power((self.gpus, self.watts)) {
            let mut steps: Vec<Step> =
                (0..self.items.len()).filter_map(|item| self.step_down(item)).collect();
            steps.sort_by(|a, b| a.rating.total_cmp(&b.rating).then(a.item.cmp(&b.item)));
            if steps.is_empty() {
                break;
            }
            for step in steps {
                if self.fits_power((self.gpus, self.watts)) {
                    break;
                }
                self.take(step);
            }
        }
        for limit in 0..self.left_w.len() {
            self.trim_local(limit);
        }
        self.fit_nodes();
    }

    /// The step of an item to a lower setting that loses least per resource.
    fn lower_setting(&self, item: usize) -> Option<Step> {
        let (gpus, watts) = self.items[item].used(self.chosen[item]);
        let now = self.items[item].value(self.chosen[item]);
        let choices = self.items[item].choices.iter().enumerate();
        let lower = choices.filter(|(_, choice)| choice.gpus == gpus && choice.watts < watts);
        let steps = lower.map(|(to, choice)| Step {
            item,
            to: Some(to),
            rating: (now - choice.value) / (watts - choice.watts),
        });
        steps.reduce(|best, next| if next.rating < best.rating { next } else { best })
    }

    /// Lowers settings of the items that count within a limit until it holds, or none is left to lower. No job is
    /// stopped for it: the next round would start it again elsewhere.
    fn trim_local(&mut self, limit: usize) {
        while self.is_exceeded(limit) {
            let counts = |item: &usize| {
                self.items[*item].parts.of.iter().any(|part| part.0 == limit)
                    && self.items[*item].located_w(self.chosen[*item], self.supply.share_w()) > 0.0
            };
            let mut steps: Vec<Step> = (0..self.items.len())
                .filter(counts)
                .filter_map(|item| self.lower_setting(item))
                .collect();
            steps.sort_by(|a, b| a.rating.total_cmp(&b.rating).then(a.item.cmp(&b.item)));
            if steps.is_empty() {
                return;
            }
            for step in steps {
                if !self.is_exceeded(limit) {
                    return;
                }
                self.take(step);
            }
        }
    }

    /// The step of an item to the best one of its smaller sizes.
    fn smaller(&self, item: usize) -> Option<Step> {
        let gpus = self.items[item].used(self.chosen[item]).0;
        let smaller = self.items[item].all().filter(|&to| self.items[item].used(to).0 < gpus);
        let net = |to: Chosen| self.items[item].value(to) - self.priced(item, to);
        let steps = smaller.map(|to| Step { item, to, rating: net(to) });
        steps.reduce(|best, next| if next.rating > best.rating { next } else { best })
    }

    /// Reduces the sizes that find no place in the nodes after the larger ones.
    fn fit_nodes(&mut self) {
        loop {
            // One that keeps its size has its GPUs already, and no smaller size.
            let unplaced = self.placed().1;
            let reduced: Vec<Step> =
                unplaced.into_iter().filter_map(|item| self.smaller(item)).collect();
            if reduced.is_empty() {
                return;
            }
            reduced.into_iter().for_each(|step| self.take(step));
        }
    }

    /// Takes steps up while they fit.
    fn fill(&mut self) {
        for _ in 0..PASSES_MAX {
            let mut steps = self.steps_up();
            steps.sort_by(|a, b| b.rating.total_cmp(&a.rating).then(a.item.cmp(&b.item)));
            let (mut nodes, _) = self.placed();
            let largest_in_node = self.nodes.largest_in_node();
            let mut is_changed = false;
            for step in steps {
                let (from, to) = (
                    self.items[step.item].used(self.chosen[step.item]).0,
                    self.items[step.item].used(step.to).0,
                );
                if !self.fits_with(step.item, step.to) {
                    continue;
                }
                // The GPUs that it has now are not free for it before the next pass.
                if to > from && !nodes.take_set(to, largest_in_node) {
                    continue;
                }
                self.take(step);
                is_changed = true;
            }
            if !is_changed {
                return;
            }
        }
    }

    /// Shares the power out among the chosen sizes from scratch.
    fn share_power(&self) -> Self {
        let same_size = |item: usize| {
            let gpus = self.items[item].used(self.chosen[item]).0;
            let choices = self.items[item].choices.iter().enumerate();
            choices.filter(move |(_, choice)| choice.gpus == gpus)
        };
        let lowest = |item: usize| {
            self.chosen[item].and_then(|_| {
                let by_power =
                    |a: &(usize, &Choice), b: &(usize, &Choice)| a.1.watts.total_cmp(&b.1.watts);
                same_size(item).min_by(by_power).map(|(at, _)| at)
            })
        };
        let mut next = self.with((0..self.items.len()).map(lowest).collect());
        let mut steps: Vec<Step> = Vec::new();
        for (item, start) in next.chosen.iter().enumerate() {
            let mut at = *start;
            while let Some(from) = at {
                let from = self.items[item].choices[from];
                // The steepest step, which is the next one of the concave hull.
                let rated =
                    same_size(item).filter(|(_, to)| to.watts > from.watts).map(|(to, choice)| {
                        let rating = (choice.value - from.value) / (choice.watts - from.watts);
                        Step { item, to: Some(to), rating }
                    });
                let steepest =
                    rated.reduce(|best, next| if next.rating >= best.rating { next } else { best });
                let steepest = steepest.filter(|step| step.rating > 0.0);
                steps.extend(steepest);
                at = steepest.and_then(|step| step.to);
            }
        }
        steps.sort_by(|a, b| b.rating.total_cmp(&a.rating).then(a.item.cmp(&b.item)));
        for step in steps {
            if next.fits_with(step.item, step.to) {
                next.take(step);
            }
        }
        next
    }
}

/// The choices of all items within `gpus` GPUs that fit the nodes, within the power, and within what the limits of
/// feeders and nodes leave (`left_w`). `prices`: those that clear the market.
pub(super) fn solve(
    items: &Items,
    gpus: u32,
    nodes: &NodeCounts,
    (supply, left_w): (&PowerSupply, &[f64]),
    prices: Prices,
) -> Vec<Chosen> {
    let empty = Allocation {
        items,
        supply,
        left_w,
        gpus_max: gpus,
        nodes,
        prices,
        chosen: Vec::new(),
        gpus: 0,
        watts: 0.0,
        local_w: Vec::new(),
    };
    let mut found = empty.with(items.iter().map(|item| item.best(prices)).collect());
    found.trim();
    found.fill();
    let shared = found.share_power();
    if shared.fits() && shared.value() >= found.value() {
        found = shared;
    }
    let present = empty.with(items.iter().map(|item| item.present).collect());
    let (new, old) = (found.value(), present.value());
    if new <= old + 1e-9 * (1.0 + old.abs()) && present.fits() {
        present.chosen
    } else {
        found.chosen
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::job::GpuSetting;

    use super::*;
    use crate::policies::wattle::clearing::clear;
    use crate::policies::wattle::local_limits::Parts;
    use crate::policies::wattle::market::{Demand, MarketSupply};
    use crate::power::energy_cost::Charge;

    fn nodes(count: u32) -> NodeCounts {
        let mut nodes = NodeCounts::default();
        (0..count).for_each(|_| nodes.add_node(8, 8));
        nodes
    }

    fn supply(limit_w: f64) -> PowerSupply {
        PowerSupply::new(std::iter::empty(), Charge::default(), limit_w, (0, 0.0))
    }

    /// Sizes of 1, 2 and 4 GPUs, each at three settings.
    fn item(seed: u64) -> Item {
        let uniform = |k: u64| {
            let x = (seed * 31 + k).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 40) as f64 / f64::from(1 << 24)
        };
        let mut choices = Vec::new();
        for (k, gpus) in [1_u32, 2, 4].into_iter().enumerate() {
            for (s, watts) in [100.0, 160.0, 250.0].into_iter().enumerate() {
                let speed = f64::from(gpus).powf(0.5 + 0.4 * uniform(k as u64));
                let value = speed * (0.5 + 0.3 * s as f64 - 0.05 * (s * s) as f64);
                let (watts, setting) = (watts * f64::from(gpus), GpuSetting::DEFAULT);
                choices.push(Choice { gpus, watts, value: value * (0.5 + uniform(9)), setting });
            }
        }
        Item { choices, none: Some(0.0), ..Item::default() }
    }

    fn all(items: &[Item]) -> Items {
        let mut all = Items::default();
        items.iter().for_each(|item| {
            all.add(item.clone());
        });
        all
    }

    /// The choices at the prices that clear them.
    fn solve_cleared(items: &[Item], gpus: u32, nodes: &NodeCounts, watts: f64) -> Vec<Chosen> {
        let demand = |item: usize, prices: Prices| {
            let item: &Item = &items[item];
            let (gpus, watts) = item.used(item.best(prices));
            Demand { gpus: gpus.into(), watts }
        };
        let market = MarketSupply { gpus, watts: Some(watts) };
        let prices = clear(market, Prices::default(), items.len(), demand);
        solve(&all(items), gpus, nodes, (&supply(watts), &[]), prices)
    }

    fn best_by_search(items: &[Item], gpus: u32, watts: f64) -> f64 {
        let Some((first, rest)) = items.split_first() else { return 0.0 };
        let fitting = first.all().filter(|&to| {
            let used = first.used(to);
            used.0 <= gpus && used.1 <= watts + 1e-6
        });
        fitting
            .map(|to| {
                let used = first.used(to);
                first.value(to) + best_by_search(rest, gpus - used.0, watts - used.1)
            })
            .fold(f64::MIN, f64::max)
    }

    #[test]
    fn choices_are_within_both_supplies_and_nearly_the_best() {
        let mut ratios = 0.0;
        let (mut cases, nodes) = (0, nodes(1));
        for seed in 0..12 {
            let items: Vec<Item> = (0..4).map(|k| item(seed * 10 + k)).collect();
            for (gpus, watts) in [(8, 2_000.0), (8, 900.0), (4, 5_000.0), (8, 350.0), (8, 99.0)] {
                let chosen = solve_cleared(&items, gpus, &nodes, watts);
                let used = || items.iter().zip(&chosen).map(|(item, &choice)| item.used(choice));
                assert!(used().map(|used| used.0).sum::<u32>() <= gpus);
                assert!(used().map(|used| used.1).sum::<f64>() <= watts + 1e-6);
                let value: f64 =
                    items.iter().zip(&chosen).map(|(item, &choice)| item.value(choice)).sum();
                let best = best_by_search(&items, gpus, watts);
                assert!(value >= 0.85 * best, "{value} {best} {gpus} {watts}");
                ratios += if best > 0.0 { value / best } else { 1.0 };
                cases += 1;
            }
        }
        assert!(ratios / f64::from(cases) > 0.98, "{}", ratios / f64::from(cases));
    }

    #[test]
    fn items_stay_within_the_limits_of_the_gpus_that_they_have() {
        let mut items: Vec<Item> = (0..4).map(item).collect();
        // Two items run on two GPUs each within the first limit, and half of the second one within the other.
        let of: [Vec<(usize, f64)>; 2] = [vec![(0, 1.0)], vec![(0, 1.0), (1, 0.5)]];
        for (item, of) in items.iter_mut().zip(of) {
            item.choices.retain(|choice| choice.gpus == 2);
            (item.present, item.none) = (Some(0), None);
            item.parts = Parts { gpus: 2, of };
        }
        let (supply, nodes) = (supply(4_000.0), nodes(1));
        for (left_w, sum_w, second_w_max) in [
            ([2_000.0, 2_000.0], 1_000.0..=1_000.0, 500.0),
            ([720.0, 2_000.0], 640.0..=720.0, 500.0),
            ([2_000.0, 110.0], 700.0..=700.0, 200.0),
            // They keep their GPUs at the lowest setting.
            ([10.0, 10.0], 400.0..=400.0, 200.0),
        ] {
            let chosen = solve(&all(&items), 8, &nodes, (&supply, &left_w), Prices::default());
            let watts = |item: usize| items[item].used(chosen[item]).1;
            assert!(sum_w.contains(&(watts(0) + watts(1))), "{chosen:?} {left_w:?}");
            assert!(watts(1) <= second_w_max, "{chosen:?} {left_w:?}");
            // The others do not count there.
            assert!(watts(2) > 0.0 && watts(3) > 0.0, "{chosen:?}");
        }
    }

    #[test]
    fn one_that_keeps_its_gpus_keeps_them_below_any_limit() {
        let mut kept = item(1);
        (kept.none, kept.present) = (None, Some(0));
        kept.choices.truncate(3);
        let items = [item(2), kept, item(3)];
        let chosen = solve(&all(&items), 8, &nodes(1), (&supply(150.0), &[]), Prices::default());
        assert_eq!(chosen, [None, Some(0), None]);
    }

    #[test]
    fn the_present_choices_are_kept_where_others_are_no_better() {
        let mut items: Vec<Item> = (0..4).map(item).collect();
        let chosen = solve_cleared(&items, 8, &nodes(1), 1_000.0);
        for (item, &choice) in items.iter_mut().zip(&chosen) {
            item.present = choice;
        }
        let again = solve(
            &all(&items),
            8,
            &nodes(1),
            (&supply(1_000.0), &[]),
            Prices { gpu: 0.0, power: 1e-3 },
        );
        assert_eq!(again, chosen);
    }
}
