//! A bound as a curve: the least mean completion time over energy, or over a power limit in watts.
//!
//! The curve is convex and decreasing, and stored as its corners. No schedule exists left of the
//! first corner; right of the last one the curve is constant.

/// A line `intercept + slope * kWh`, in seconds, below the mean completion time of every schedule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    /// Seconds per kWh, at most zero.
    pub(crate) slope: f64,
    /// Seconds.
    pub(crate) intercept: f64,
}

impl Line {
    pub(crate) fn at(self, kwh: f64) -> f64 {
        self.slope.mul_add(kwh, self.intercept)
    }

    /// The energy at which it crosses a flatter line.
    fn crosses(self, flatter: Self) -> f64 {
        (self.intercept - flatter.intercept) / (flatter.slope - self.slope)
    }
}

/// A lower bound on the mean completion time (seconds) over energy (kWh).
#[derive(Debug, Clone, PartialEq)]
pub struct BoundFrontier {
    points: Vec<(f64, f64)>,
}

impl BoundFrontier {
    /// From the corners of a convex decreasing curve.
    pub(crate) fn from_corners(points: Vec<(f64, f64)>) -> Self {
        debug_assert!(
            points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 >= pair[1].1)
        );
        Self { points }
    }

    /// The maximum of lines from an energy on. The flattest must be level, so that the curve has an
    /// end.
    pub(crate) fn from_lines(mut lines: Vec<Line>, least_kwh: f64) -> Self {
        debug_assert!(lines.iter().any(|line| line.slope >= 0.0));
        lines.sort_by(|a, b| a.slope.total_cmp(&b.slope).then(b.intercept.total_cmp(&a.intercept)));
        lines.dedup_by(|later, kept| later.slope <= kept.slope);
        let mut hull: Vec<Line> = Vec::new();
        for line in lines {
            // Remove a line that is below another one everywhere.
            while let Some(&last) = hull.last() {
                let starts = match hull.len() {
                    1 => least_kwh,
                    n => hull[n - 2].crosses(last),
                };
                if last.crosses(line) > starts {
                    break;
                }
                hull.pop();
            }
            hull.push(line);
        }
        let mut points = vec![(least_kwh, hull[0].at(least_kwh))];
        for pair in hull.windows(2) {
            let kwh = pair[0].crosses(pair[1]);
            // Not above the previous corner, despite rounding.
            let before = points.last().map_or(f64::INFINITY, |&(_, time)| time);
            points.push((kwh, pair[1].at(kwh).min(before)));
        }
        Self { points }
    }

    /// The corners, as (kWh, seconds), by ascending energy.
    #[must_use]
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// The corner of least energy.
    #[must_use]
    pub fn least_energy(&self) -> (f64, f64) {
        self.points[0]
    }

    /// The corner of least time.
    #[must_use]
    pub fn fastest(&self) -> (f64, f64) {
        self.points[self.points.len() - 1]
    }

    /// The least mean completion time within an energy, seconds; `None` below the least energy.
    #[must_use]
    pub fn jct_s_at(&self, energy_kwh: f64) -> Option<f64> {
        if energy_kwh.is_nan() || energy_kwh < self.points[0].0 {
            return None;
        }
        let next = self.points.partition_point(|&(kwh, _)| kwh <= energy_kwh);
        let (from_kwh, from_s) = self.points[next - 1];
        let Some(&(to_kwh, to_s)) = self.points.get(next) else { return Some(from_s) };
        Some(from_s + (to_s - from_s) * (energy_kwh - from_kwh) / (to_kwh - from_kwh))
    }

    /// Ratio of a policy's mean completion time to the bound at its energy: 1.04 is 4 % above.
    /// `None` below the least energy, or where the bound is zero.
    #[must_use]
    pub fn above(&self, energy_kwh: f64, jct_s: f64) -> Option<f64> {
        let bound = self.jct_s_at(energy_kwh)?;
        (bound > 0.0).then(|| jct_s / bound)
    }

    /// The curve in another unit, with `per_kwh` units per kilowatt-hour.
    #[must_use]
    pub fn scaled(&self, per_kwh: f64) -> Self {
        Self { points: self.points.iter().map(|&(kwh, time)| (kwh * per_kwh, time)).collect() }
    }

    /// The curve with energy, or power of a curve over limits, added that every schedule uses.
    #[must_use]
    pub fn shifted(&self, added: f64) -> Self {
        Self { points: self.points.iter().map(|&(total, time)| (total + added, time)).collect() }
    }
}
