//! What a decision changes, as a sentence.

use wattle_common::duration::span;
use wattle_common::messages::{Consequence, MovedJobs};

use crate::saved::kwh_text;

const J_PER_KWH: f64 = 3.6e6;
/// Shorter differences of times are none, s.
const SAME_S: f64 = 1.0;
/// Smaller differences of energies are none: half a watt-hour.
const SAME_J: f64 = 1_800.0;

/// The consequence of a decision for the job, then for others: `against 8 GPUs: it ends 40 min later and uses 210 Wh
/// less; 3 queued jobs start 2.0 h sooner on average`. `None`: it changes nothing that is known.
#[must_use]
pub fn sentence(of: &Consequence) -> Option<String> {
    let mut parts: Vec<String> = own(of).into_iter().collect();
    parts.extend(of.tenants_later.map(|moved| {
        let jobs = match moved.jobs {
            1 => "the job beside it ends".to_owned(),
            jobs => format!("the {jobs} jobs beside it end"),
        };
        by(&jobs, moved, "later")
    }));
    for (moved, direction) in [(of.queued_sooner, "sooner"), (of.queued_later, "later")] {
        parts.extend(moved.map(|moved| {
            let jobs = match moved.jobs {
                1 => "1 queued job starts".to_owned(),
                jobs => format!("{jobs} queued jobs start"),
            };
            by(&jobs, moved, direction)
        }));
    }
    (!parts.is_empty()).then(|| format!("against {}: {}", of.in_place_of, parts.join("; ")))
}

fn by(jobs: &str, moved: MovedJobs, direction: &str) -> String {
    let average = if moved.jobs == 1 { "" } else { " on average" };
    format!("{jobs} {} {direction}{average}", span(moved.by_s))
}

/// The job's own end and energy.
fn own(of: &Consequence) -> Option<String> {
    let end = of.end_later_s.map(|later_s| match later_s {
        same if same.abs() < SAME_S => "it ends at the same time".to_owned(),
        later if later > 0.0 => format!("it ends {} later", span(later)),
        sooner => format!("it ends {} sooner", span(-sooner)),
    });
    let energy = of.energy_more_j.filter(|more_j| more_j.abs() >= SAME_J).map(|more_j| {
        let direction = if more_j < 0.0 { "less" } else { "more" };
        format!("uses {} {direction}", kwh_text(more_j.abs() / J_PER_KWH))
    });
    match (end, energy) {
        (Some(end), Some(energy)) => Some(format!("{end} and {energy}")),
        (end, energy) => end.or(energy.map(|energy| format!("it {energy}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_end_and_energy_precede_those_of_others() {
        let smaller = Consequence {
            in_place_of: "8 GPUs".to_owned(),
            end_later_s: Some(2_400.0),
            energy_more_j: Some(-756_000.0),
            queued_sooner: Some(MovedJobs { jobs: 3, by_s: 7_200.0 }),
            queued_later: Some(MovedJobs { jobs: 1, by_s: 300.0 }),
            ..Consequence::default()
        };
        assert_eq!(
            sentence(&smaller).unwrap(),
            "against 8 GPUs: it ends 40 min later and uses 210 Wh less; 3 queued jobs start 2.0 h sooner on \
             average; 1 queued job starts 5 min later"
        );
        let shared = Consequence {
            in_place_of: "waiting for 1 GPU of its own".to_owned(),
            end_later_s: Some(-1_800.0),
            tenants_later: Some(MovedJobs { jobs: 1, by_s: 300.0 }),
            ..Consequence::default()
        };
        assert_eq!(
            sentence(&shared).unwrap(),
            "against waiting for 1 GPU of its own: it ends 30 min sooner; the job beside it ends 5 min later"
        );
    }

    #[test]
    fn nothing_known_is_no_sentence() {
        assert_eq!(sentence(&Consequence::default()), None);
    }
}
