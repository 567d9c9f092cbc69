//! The trade of energy for completion time among the jobs that are present, in words.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::messages::{TradeOff, WhatIf};

/// Age from which on the trade is of other jobs than those present: three times the interval of new ones.
const OLD: Duration = Duration::from_mins(15);
/// Shares by which jobs complete later, of which the sentence states the savings.
const LATER: [f64; 3] = [0.03, 0.05, 0.1];
/// A share that is stated as none.
const NONE: f64 = 0.0005;

/// The trade, if it is of about the present jobs.
#[must_use]
pub fn current(trade: Option<&WhatIf>, now: Timestamp) -> Option<&WhatIf> {
    trade.filter(|trade| trade.jobs > 0 && now.since(trade.at_us) < OLD)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share.abs())
}

/// What other settings save: `9.1 % less energy if they complete 3 % later on average, 12.0 % at 5 %`.
#[must_use]
pub fn sentence(trade: &WhatIf) -> String {
    let most = trade.most();
    if most.saved < NONE {
        return "no other setting saves energy".to_owned();
    }
    let within = LATER.iter().filter_map(|&later| Some((later, trade.saved_at(later)?)));
    let mut parts: Vec<String> = Vec::new();
    for (later, saved) in within {
        let saved = percent(saved);
        parts.push(if parts.is_empty() {
            format!("{saved} less energy if they complete {:.0} % later on average", 100.0 * later)
        } else {
            format!("{saved} at {:.0} %", 100.0 * later)
        });
    }
    // No setting saves more.
    let last = percent(most.saved);
    parts.push(if parts.is_empty() {
        format!("{last} less energy if they complete {} later on average", percent(most.later))
    } else {
        format!("{last} at {}", percent(most.later))
    });
    parts.join(", ")
}

/// What the plan's settings do: `2.1 % later and 8.0 % less energy than at the default settings`.
#[must_use]
pub fn of_plan(trade: &WhatIf) -> String {
    let TradeOff { later, saved } = trade.planned;
    let time = (later.abs() >= NONE)
        .then(|| format!("{} {}", percent(later), if later > 0.0 { "later" } else { "sooner" }));
    let energy = (saved.abs() >= NONE).then(|| {
        format!("{} {} energy", percent(saved), if saved > 0.0 { "less" } else { "more" })
    });
    let parts: Vec<String> = time.into_iter().chain(energy).collect();
    match parts[..] {
        [] => "as at the default settings".to_owned(),
        _ => format!("{} than at the default settings", parts.join(" and ")),
    }
}

/// For which jobs it holds: `12 jobs, 2 more are not predicted`.
#[must_use]
pub fn jobs(trade: &WhatIf) -> String {
    let counted = format!("{} job{}", trade.jobs, if trade.jobs == 1 { "" } else { "s" });
    match trade.not_counted {
        0 => counted,
        1 => format!("{counted}, 1 more is not predicted"),
        more => format!("{counted}, {more} more are not predicted"),
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::Energy;

    use super::*;

    fn trade(points: &[(f64, f64)]) -> WhatIf {
        let of = |&(later, saved): &(f64, f64)| TradeOff { later, saved };
        WhatIf {
            at_us: Timestamp::from_s(1_000),
            jobs: 12,
            not_counted: 2,
            completion_s: 3_600.0,
            energy_mj: Energy::from_j(1),
            planned: TradeOff { later: 0.021, saved: 0.08 },
            points: points.iter().map(of).collect(),
        }
    }

    #[test]
    fn the_trade_in_words() {
        let all = trade(&[(0.0, 0.0), (0.03, 0.09), (0.06, 0.12), (0.14, 0.21)]);
        assert_eq!(
            sentence(&all),
            "9.0 % less energy if they complete 3 % later on average, 11.0 % at 5 %, 16.5 % at 10 %, \
             21.0 % at 14.0 %"
        );
        assert_eq!(of_plan(&all), "2.1 % later and 8.0 % less energy than at the default settings");
        assert_eq!(jobs(&all), "12 jobs, 2 more are not predicted");
        let small = trade(&[(0.0, 0.0), (0.01, 0.04)]);
        assert_eq!(sentence(&small), "4.0 % less energy if they complete 1.0 % later on average");
        assert_eq!(sentence(&trade(&[(0.0, 0.0)])), "no other setting saves energy");
        let planned = TradeOff { later: -0.01, saved: 0.0 };
        assert_eq!(
            of_plan(&WhatIf { planned, ..small }),
            "1.0 % sooner than at the default settings"
        );
        let planned = TradeOff::default();
        assert_eq!(of_plan(&WhatIf { planned, ..all }), "as at the default settings");
    }

    #[test]
    fn an_old_trade_is_not_shown() {
        let of = trade(&[(0.0, 0.0)]);
        assert!(current(Some(&of), Timestamp::from_s(1_899)).is_some());
        assert!(current(Some(&of), Timestamp::from_s(1_900)).is_none());
        let without_jobs = WhatIf { jobs: 0, ..of };
        assert!(current(Some(&without_jobs), Timestamp::from_s(1_000)).is_none());
    }
}
