//! The jobs and pairs of the knapsack, with their choices.

use std::ops::Index;

use wattle_common::job::GpuSetting;

use crate::policies::wattle::local_limits::Parts;
use crate::policies::wattle::prices::Prices;

/// A number of GPUs at a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::policies::wattle) struct Choice {
    pub(in crate::policies::wattle) gpus: u32,
    /// The charge that counts within the limit, watts.
    pub(in crate::policies::wattle) watts: f64,
    /// The value of its work less that of energy and of the change to it, s/s.
    pub(in crate::policies::wattle) value: f64,
    pub(in crate::policies::wattle) setting: GpuSetting,
}

/// A job or a pair.
#[derive(Clone, Debug, Default)]
pub(in crate::policies::wattle) struct Item {
    /// Its choices, ascending by GPUs and then by power.
    pub(in crate::policies::wattle) choices: Vec<Choice>,
    /// The value of getting no GPUs; absent: it keeps some.
    pub(in crate::policies::wattle) none: Option<f64>,
    /// Its present choice; absent: no GPUs.
    pub(in crate::policies::wattle) present: Option<usize>,
    /// The limits within which it counts with its present GPUs.
    pub(in crate::policies::wattle) parts: Parts,
}

/// The choice of an item; absent: no GPUs.
pub(super) type Chosen = Option<usize>;

impl Item {
    pub(super) fn value(&self, chosen: Chosen) -> f64 {
        match chosen {
            Some(choice) => self.choices[choice].value,
            None => self.none.unwrap_or(f64::NEG_INFINITY),
        }
    }

    pub(super) fn used(&self, chosen: Chosen) -> (u32, f64) {
        chosen.map_or((0, 0.0), |choice| (self.choices[choice].gpus, self.choices[choice].watts))
    }

    /// The power above idle that counts within the limits of its present GPUs, watts.
    pub(super) fn located_w(&self, chosen: Chosen, share_w: f64) -> f64 {
        let kept = chosen.map(|choice| self.choices[choice]);
        kept.filter(|choice| choice.gpus == self.parts.gpus)
            .map_or(0.0, |choice| choice.watts - f64::from(choice.gpus) * share_w)
    }

    /// The choice of greatest net value at these prices. One that must have GPUs has its cheapest at any price.
    pub(super) fn best(&self, prices: Prices) -> Chosen {
        let mut best = (None, self.none.unwrap_or(f64::NEG_INFINITY));
        for (at, choice) in self.choices.iter().enumerate() {
            let net =
                choice.value - prices.power * choice.watts - prices.gpu * f64::from(choice.gpus);
            if net > best.1 {
                best = (Some(at), net);
            }
        }
        best.0
    }

    /// All choices, with none if that is one.
    pub(super) fn all(&self) -> impl Iterator<Item = Chosen> {
        self.none.map(|_| None).into_iter().chain((0..self.choices.len()).map(Some))
    }
}

/// Jobs and pairs, of which those with the same choices are of one kind.
#[derive(Default)]
pub(in crate::policies::wattle) struct Items {
    pub(super) kinds: Vec<Item>,
    pub(super) of: Vec<usize>,
}

impl Items {
    /// Adds an item of a new kind. Returns the kind.
    pub(in crate::policies::wattle) fn add(&mut self, item: Item) -> usize {
        self.kinds.push(item);
        self.add_another(self.kinds.len() - 1)
    }

    /// Adds an item of a known kind. Returns the kind.
    pub(in crate::policies::wattle) fn add_another(&mut self, kind: usize) -> usize {
        self.of.push(kind);
        kind
    }

    pub(in crate::policies::wattle) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.of.iter().map(|&kind| &self.kinds[kind])
    }

    pub(super) fn len(&self) -> usize {
        self.of.len()
    }
}

impl Index<usize> for Items {
    type Output = Item;

    fn index(&self, item: usize) -> &Item {
        &self.kinds[self.of[item]]
    }
}
