//! Knots: the settings that a job was seen under, with the random walk between them.

/// Largest number of caps, and of clocks, that are knots.
pub(super) const KNOTS_MAX: usize = 8;
/// Caps, or clocks, within this relative difference count as one.
const SAME: f64 = 0.005;

/// Distinct settings in descending order, thinned evenly if there are too many.
pub(super) fn knots(seen: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = seen.collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted.dedup_by(|a, b| *a >= *b * (1.0 - SAME));
    let last = sorted.len().saturating_sub(1);
    if last < KNOTS_MAX {
        return sorted;
    }
    (0..KNOTS_MAX).map(|i| sorted[i * last / (KNOTS_MAX - 1)]).collect()
}

/// Features of the walk's steps up to a position, and the variance between the knots around it. The walk
/// has variance `own` at the position and `at` at the knots, in ascending order.
pub(super) fn steps(place: usize, on: bool, own: f64, at: &[f64], out: &mut Vec<f64>) -> f64 {
    let low = if place == 0 { 0.0 } else { at[place - 1] };
    let own = own.max(low);
    let share = |i: usize| if i < place { 1.0 } else { 0.0 };
    let mut between = 0.0;
    let mut row: Vec<f64> = (0..at.len()).map(share).collect();
    if !on {
        match at.get(place) {
            Some(high) => {
                let part = ((own - low) / (high - low)).clamp(0.0, 1.0);
                row[place] = part;
                between = part * (1.0 - part) * (high - low);
            }
            None => between = own - low,
        }
    }
    out.append(&mut row);
    between
}

/// Variances made strictly increasing, so that every step has a variance of its own.
pub(super) fn rising(variances: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut last = 0.0;
    variances
        .map(|v| {
            last = f64::max(v, last + 1e-6);
            last
        })
        .collect()
}

/// Number of the descending `knots` above or on `at`, and whether `at` is one of them.
pub(super) fn place(knots: &[f64], at: f64) -> (usize, bool) {
    let count = knots.iter().filter(|k| **k >= at || near(**k, at)).count();
    (count, count > 0 && near(knots[count - 1], at))
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME * a.max(b)
}
