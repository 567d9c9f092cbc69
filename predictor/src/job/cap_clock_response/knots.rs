//! The settings a job was seen under, and the steps of its curves between them.

/// Caps, and clocks, that get a step of their own.
pub(super) const KNOTS_MAX: usize = 8;
/// Caps and clocks this close are one.
const SAME: f64 = 0.005;

/// The settings to give steps: distinct ones, descending, thinned evenly where there are too many.
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

/// The shares of each step that lie above a place, and the variance between the knots around it:
/// the place wanders `own`, the knots `at` (ascending in variance as they come).
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

/// Variances made to rise, so that each step has some of its own.
pub(super) fn rising(variances: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut last = 0.0;
    variances
        .map(|v| {
            last = f64::max(v, last + 1e-6);
            last
        })
        .collect()
}

/// How many of the descending `knots` lie above `at`, or on it; and whether it is one of them.
pub(super) fn place(knots: &[f64], at: f64) -> (usize, bool) {
    let count = knots.iter().filter(|k| **k >= at || near(**k, at)).count();
    (count, count > 0 && near(knots[count - 1], at))
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME * a.max(b)
}
