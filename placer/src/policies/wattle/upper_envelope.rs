//! A job's menu at the present price of energy, laid out so that its best choice at any price of
//! work or of GPUs is found by one search.
//!
//! Choices are charged what energy costs now; what a unit of work is worth where the job ends goes by
//! what energy costs in the mean. With both fixed, every choice is a straight line: of what it earns by the price of
//! work, and of what a unit of work costs by the price of a GPU-second. Of all lines only those are
//! kept that are best somewhere. Work is counted in seconds on one GPU ([`crate::Job::unit_rate`]),
//! earnings in seconds of completion time a second.

use wattle_common::job::GpuSetting;

use crate::allocation::restart_cost;
use crate::plan::input::PlanningInput;
use crate::power::energy_cost::Charge;
use crate::state::operating_points::OperatingPoints;

/// A line `slope * x - cost`, and from which `x` on it is the highest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<T> {
    pub(super) slope: f64,
    pub(super) cost: f64,
    from: f64,
    pub(super) what: T,
}

impl<T> Line<T> {
    pub(super) fn new(slope: f64, cost: f64, what: T) -> Self {
        Self { slope, cost, from: 0.0, what }
    }

    pub(super) fn at(&self, x: f64) -> f64 {
        self.slope * x - self.cost
    }

    /// The same line of something else.
    fn with<U>(&self, what: U) -> Line<U> {
        Line { slope: self.slope, cost: self.cost, from: self.from, what }
    }
}

/// The lines that are highest somewhere at `x >= 0`, by slope. Of equal lines the first stays.
pub(super) fn envelope<T>(mut lines: Vec<Line<T>>) -> Vec<Line<T>> {
    lines.sort_by(|a, b| a.slope.total_cmp(&b.slope).then(a.cost.total_cmp(&b.cost)));
    lines.dedup_by(|next, kept| next.slope <= kept.slope);
    let mut kept: Vec<Line<T>> = Vec::with_capacity(lines.len());
    for mut line in lines {
        line.from = 0.0;
        while let Some(last) = kept.last() {
            let crossing = (line.cost - last.cost) / (line.slope - last.slope);
            if crossing > last.from {
                line.from = crossing;
                break;
            }
            kept.pop();
        }
        kept.push(line);
    }
    kept
}

/// Which of an envelope's lines is the highest at `x >= 0`.
pub(super) fn highest<T>(envelope: &[Line<T>], x: f64) -> usize {
    envelope.partition_point(|line| line.from <= x).saturating_sub(1)
}

/// All that is worth doing with so many GPUs.
#[derive(Clone, Debug)]
pub(super) struct Size {
    pub(super) gpus: u32,
    /// Seconds without progress after a start on them.
    pub(super) restart_s: f64,
    /// By the price of work: slope is speed, cost the energy's.
    pub(super) ways: Vec<Line<GpuSetting>>,
}

impl Size {
    /// The best way at a price of work, among those at least so fast.
    pub(super) fn way(&self, price: f64, need: f64) -> Option<&Line<GpuSetting>> {
        let best = highest(&self.ways, price);
        if self.ways.get(best)?.slope >= need {
            return self.ways.get(best);
        }
        self.ways.get(self.ways.partition_point(|way| way.slope < need))
    }

    /// Speed at its fastest.
    pub(super) fn fastest(&self) -> f64 {
        self.ways.last().map_or(0.0, |way| way.slope)
    }
}

/// What a joule is worth, seconds of completion time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joule {
    /// At the grid's present intensity.
    pub(super) now: f64,
    /// At its mean.
    pub(super) usual: f64,
}

impl Joule {
    /// As the budget has it.
    pub(super) fn of(input: PlanningInput<'_>) -> Self {
        Self { now: input.limits.price_now(), usual: input.limits.price }
    }
}

/// A menu at the present price of energy.
#[derive(Clone, Debug)]
pub(super) struct Shape<'a> {
    pub(super) menu: &'a OperatingPoints,
    /// Steps in a unit of work.
    pub(super) unit: f64,
    /// Ascending, never empty.
    pub(super) sizes: Vec<Size>,
    /// What a unit of work costs, negative, by the price of a GPU-second; with the speed.
    cheapest: Vec<Line<f64>>,
}

impl<'a> Shape<'a> {
    /// `None` where no size of the menu is at most `most`.
    pub(super) fn new(
        menu: &'a OperatingPoints,
        unit: f64,
        charge: Charge,
        joule: Joule,
        most: u32,
    ) -> Option<Self> {
        let mut sizes = Vec::with_capacity(menu.sizes().count());
        let mut costs = Vec::with_capacity(menu.choices().len());
        for choices in menu.choices().chunk_by(|a, b| a.gpus == b.gpus) {
            let gpus = choices[0].gpus;
            if gpus > most || gpus == 0 {
                continue;
            }
            let lines = choices.iter().map(|choice| {
                let watts = charge.watts(choice);
                Line::new(choice.steps_per_s / unit, joule.now * watts, (choice.setting, watts))
            });
            let mut ways = envelope(lines.collect());
            // What is never worth it at any price of work is no cheapest way to do it either, as
            // long as a joule is worth anything at both times or at neither.
            let alike = (joule.now > 0.0) == (joule.usual > 0.0);
            let mut costs_of = |speed: f64, watts: f64| {
                let cost = (1.0 + joule.usual * watts) / speed;
                costs.push(Line::new(-f64::from(gpus) / speed, cost, speed));
            };
            if alike {
                ways.iter().for_each(|way| costs_of(way.slope, way.what.1));
            } else {
                choices.iter().for_each(|c| costs_of(c.steps_per_s / unit, charge.watts(c)));
            }
            let ways = ways.drain(..).map(|way| way.with(way.what.0)).collect();
            let restart_s = restart_cost::restart(gpus).as_secs_f64();
            sizes.push(Size { gpus, restart_s, ways });
        }
        let sound = unit.is_finite() && unit > 0.0 && !sizes.is_empty();
        sound.then(|| Self { menu, unit, sizes, cheapest: envelope(costs) })
    }

    /// What a unit of work costs at its cheapest, where a GPU-second costs so much.
    pub(super) fn cost(&self, gpu_price: f64) -> f64 {
        -self.cheapest[highest(&self.cheapest, gpu_price)].at(gpu_price)
    }

    /// How fast it goes where a unit of work costs least.
    pub(super) fn thrifty_speed(&self, gpu_price: f64) -> f64 {
        self.cheapest[highest(&self.cheapest, gpu_price)].what
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_is_the_highest_line_everywhere() {
        let all = [(1.0, 0.0), (2.0, 1.0), (3.0, 5.0), (2.5, 3.5), (1.5, 2.0), (2.0, 0.9)];
        let lines = || all.iter().map(|&(slope, cost)| Line::new(slope, cost, ())).collect();
        let kept = envelope(lines());
        assert_eq!(kept.len(), 3);
        for step in 0..100 {
            let x = f64::from(step) * 0.1;
            let best = all.iter().map(|(slope, cost)| slope * x - cost).fold(f64::MIN, f64::max);
            let found = kept[highest(&kept, x)].at(x);
            assert!((found - best).abs() < 1e-9, "{found} {best} at {x}");
        }
        // What costs nothing is decided by speed alone, and of equals the first stays.
        let free = vec![Line::new(1.0, 0.0, 1), Line::new(2.0, 0.0, 2), Line::new(2.0, 0.0, 3)];
        let free = envelope(free);
        assert_eq!((free.len(), free[0].what), (1, 2));
    }
}
