//! The least power limit at which a mean completion time is reached, from runs at several limits.

/// The least limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LeastLimit {
    /// No run reaches the time.
    None,
    /// Between two runs, interpolated.
    At(f64),
    /// Every run reaches it: at most the lowest limit that was run.
    AtMost(f64),
}

impl LeastLimit {
    /// The limit times a factor.
    pub(super) fn scaled(self, factor: f64) -> Self {
        match self {
            Self::None => Self::None,
            Self::At(limit) => Self::At(limit * factor),
            Self::AtMost(limit) => Self::AtMost(limit * factor),
        }
    }

    /// The limit, if any run reaches the time.
    pub(super) fn value(self) -> Option<f64> {
        match self {
            Self::None => None,
            Self::At(limit) | Self::AtMost(limit) => Some(limit),
        }
    }
}

/// The least limit of the runs `(limit, mean completion time)` with at most `time_s`. A schedule within a limit
/// is within every higher one, so the time at a limit is the least at it and at lower ones. Between two runs the
/// logarithms are interpolated. The time of a run with unfinished jobs is infinite.
pub(super) fn least_limit(runs: &[(f64, f64)], time_s: f64) -> LeastLimit {
    let mut ascending = runs.to_vec();
    ascending.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some(at) = ascending.iter().position(|run| run.1 <= time_s) else {
        return LeastLimit::None;
    };
    let (limit, reached_s) = ascending[at];
    let slower = ascending[..at].iter().min_by(|a, b| a.1.total_cmp(&b.1));
    match (at.checked_sub(1).map(|before| ascending[before]), slower) {
        (Some((low, _)), Some(&(_, low_s)))
            if low_s.is_finite() && low_s > reached_s && reached_s > 0.0 =>
        {
            let share = (low_s / time_s).ln() / (low_s / reached_s).ln();
            LeastLimit::At(low * (limit / low).powf(share))
        }
        (Some(_), _) => LeastLimit::At(limit),
        (None, _) => LeastLimit::AtMost(limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_lies_between_the_runs_on_both_sides_of_the_time() {
        let runs = [(40.0, 100.0), (10.0, 1_600.0), (20.0, 400.0)];
        let LeastLimit::At(limit) = least_limit(&runs, 200.0) else { panic!() };
        // The time halves twice from 20 to 40, so it is reached halfway.
        assert!((limit - 20.0 * 2.0_f64.sqrt()).abs() < 1e-9, "{limit}");
        assert_eq!(least_limit(&runs, 400.0), LeastLimit::At(20.0));
        assert_eq!(least_limit(&runs, 99.0), LeastLimit::None);
        assert_eq!(least_limit(&runs, 2_000.0), LeastLimit::AtMost(10.0));
        assert_eq!(least_limit(&[], 1.0), LeastLimit::None);
        // Below 20 some job cannot run.
        let runs = [(10.0, f64::INFINITY), (20.0, 400.0)];
        assert_eq!(least_limit(&runs, 800.0), LeastLimit::At(20.0));
    }

    #[test]
    fn a_run_that_is_slower_than_one_at_a_lower_limit_does_not_count() {
        // 300 s are reached at 20 first; the slower run at 30 changes nothing.
        let runs = [(10.0, 900.0), (20.0, 300.0), (30.0, 350.0), (40.0, 100.0)];
        assert_eq!(least_limit(&runs, 300.0), LeastLimit::At(20.0));
        let LeastLimit::At(limit) = least_limit(&runs, 200.0) else { panic!() };
        assert!(limit > 30.0 && limit < 40.0, "{limit}");
    }
}
