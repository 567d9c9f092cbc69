//! The lower part of the screen of `wattle top`, where the jobs leave room: the GPUs with their power as a bar, and the
//! jobs that ended last.

use wattle_common::Power;
use wattle_common::job::JobPhase;
use wattle_view::job::JobView;
use wattle_view::node::{Node, cap_when_read};

use super::model::View;
use crate::date;
use crate::output::{Align, Table};
use crate::quantity::{EnergyUnit, clock, watts};

/// Columns of a bar on a screen of each width.
const BARS: [(usize, usize); 3] = [(160, 40), (100, 24), (0, 16)];
/// Columns from which the GPUs have further columns.
const COLUMNS_MORE: usize = 110;
/// Fewest lines of a table, with its heading and a blank line before it.
const LINES_MIN: usize = 4;

/// The lines of the two tables within `room` lines: first the GPUs, then the jobs that ended.
pub(super) fn shares(gpus: usize, ended: usize, room: usize) -> (usize, usize) {
    let wanted = |rows: usize| if rows > 0 { rows + 2 } else { 0 };
    let (gpus, ended) = (wanted(gpus), wanted(ended));
    let for_ended = ended.min(room.saturating_sub(gpus).max(room / 3));
    let for_gpus = gpus.min(room - for_ended);
    let is_enough = |lines: usize, wanted: usize| lines > 0 && lines >= LINES_MIN.min(wanted);
    match (is_enough(for_gpus, gpus), is_enough(for_ended, ended)) {
        (true, true) => (for_gpus, for_ended),
        (true, false) => (gpus.min(room), 0),
        (false, true) => (0, ended.min(room)),
        (false, false) => (0, 0),
    }
}

/// The power of a GPU as a bar over the highest cap that it supports, with a mark at the cap in force:
/// `[#######----|    ]`.
fn bar(drawn: Option<Power>, cap: Option<Power>, most: Power, columns: usize) -> String {
    let columns_of = |power: Power| {
        let share = power.ratio(most).clamp(0.0, 1.0);
        ((share * columns as f64).round() as usize).min(columns)
    };
    let full = drawn.map_or(0, columns_of);
    let allowed = cap.map_or(columns, columns_of);
    let cell = |column: usize| match column {
        column if allowed < columns && column == allowed => '|',
        column if column < full => '#',
        column if column < allowed => '-',
        _ => ' ',
    };
    format!("[{}]", (0..columns).map(cell).collect::<String>())
}

/// One row for each GPU.
pub(super) fn gpus(nodes: &[Node], width: usize) -> Table {
    let columns_of_bar = BARS.iter().find(|(from, _)| width >= *from).map_or(16, |(_, bar)| *bar);
    let has_more = width >= COLUMNS_MORE;
    let mut columns = vec![
        ("NODE", Align::Left),
        ("GPU", Align::Right),
        ("STATE", Align::Left),
        ("POWER OF LIMIT", Align::Left),
        ("POWER W", Align::Right),
        ("CAP W", Align::Right),
    ];
    if has_more {
        columns.extend([("LIMIT W", Align::Right), ("TEMP °C", Align::Right)]);
    }
    columns.extend([("BUSY %", Align::Right), ("JOBS", Align::Left)]);
    let jobs = columns.len() - 1;
    let mut table = Table::new(&columns);
    for node in nodes {
        for (gpu, reading) in node.gpus() {
            let drawn = reading.and_then(|reading| reading.power_mw_mean);
            let cap = cap_when_read(gpu, reading);
            let limit = gpu.cap_mw_max.or(gpu.cap_mw_default).filter(|limit| *limit > Power::ZERO);
            let number = |value: Option<u64>| value.map(|v| v.to_string()).unwrap_or_default();
            let mut row = vec![
                node.node.to_string(),
                gpu.gpu.to_string(),
                node.state(gpu).to_owned(),
                limit.map(|most| bar(drawn, cap, most, columns_of_bar)).unwrap_or_default(),
                drawn.map(watts).unwrap_or_default(),
                cap.map_or("?".to_owned(), watts),
            ];
            if has_more {
                let temperature = reading.and_then(|reading| reading.temperature_c);
                row.push(limit.map(watts).unwrap_or_default());
                row.push(number(temperature.map(u64::from)));
            }
            let busy = reading.and_then(|reading| reading.utilization_gpu_percent_mean);
            row.push(number(busy.map(u64::from)));
            let on: Vec<&str> =
                node.jobs_on(gpu.gpu).into_iter().map(wattle_common::JobId::as_str).collect();
            row.push(on.join(" "));
            table.row(row);
        }
    }
    table.fit(jobs, width)
}

/// The jobs that ended last, with the cause of a failure.
pub(super) fn ended(view: &View, width: usize) -> Table {
    let spent = view.ended.iter().filter_map(|job| job.energy_mj_total).max();
    let unit = EnergyUnit::of(spent.unwrap_or_default());
    let heading = if unit.name() == "kWh" { "ENERGY kWh" } else { "ENERGY Wh" };
    let mut table = Table::new(&[
        ("ENDED", Align::Left),
        ("PHASE", Align::Left),
        ("AT UTC", Align::Left),
        ("RAN", Align::Right),
        ("WAITED", Align::Right),
        (heading, Align::Right),
        ("CAUSE", Align::Left),
    ]);
    for job in &view.ended {
        let record = &job.record;
        let cause = || record.error.clone().unwrap_or_default().replace('\n', " ");
        table.row(vec![
            record.spec.job.to_string(),
            job.phase(),
            record.ended_at_us.map(|at| date::near(at, view.now)).unwrap_or_default(),
            job.ran().map(clock).unwrap_or_default(),
            job.waited().map(clock).unwrap_or_default(),
            energy(job, unit),
            if record.phase == JobPhase::Failed { cause() } else { String::new() },
        ]);
    }
    table.fit(6, width)
}

fn energy(job: &JobView, unit: EnergyUnit) -> String {
    let number = job.energy_mj_total.map(|energy| unit.number(energy));
    match job.unmetered_ms_total {
        0 => number.unwrap_or_default(),
        _ => number.map_or_else(|| "not known".to_owned(), |number| format!("≥ {number}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_the_power_and_a_mark_at_the_cap() {
        let w = |watts| Some(Power::from_w(watts));
        let of = |drawn, cap| bar(drawn, cap, Power::from_w(100), 10);
        assert_eq!(of(w(40), w(70)), "[####---|  ]");
        assert_eq!(of(w(70), w(70)), "[#######|  ]");
        assert_eq!(of(w(40), w(100)), "[####------]");
        assert_eq!(of(w(120), w(100)), "[##########]", "above the limit");
        assert_eq!(of(w(90), w(70)), "[#######|# ]", "above the cap");
        assert_eq!(of(None, w(70)), "[-------|  ]", "no reading");
        assert_eq!(of(w(40), None), "[####------]", "no cap");
    }

    #[test]
    fn room_is_shared_and_a_table_without_room_is_left_out() {
        assert_eq!(shares(8, 5, 40), (10, 7));
        assert_eq!(shares(128, 20, 30), (20, 10));
        assert_eq!(shares(128, 0, 30), (30, 0));
        assert_eq!(shares(128, 20, 9), (9, 0), "three lines are too few for a table");
        assert_eq!(shares(0, 20, 9), (0, 9));
        assert_eq!(shares(8, 5, 3), (0, 0));
        assert_eq!(shares(1, 1, 6), (3, 3), "whole tables");
    }
}
