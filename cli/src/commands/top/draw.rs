//! The screen of `wattle top`: verdict, power against budget, nodes, jobs.
//!
//! Colour repeats what the text states, so the screen is complete without it.

use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Wrap};
use wattle_common::Power;
use wattle_common::duration::span;
use wattle_common::total::Total;

use super::lower;
use super::model::{Model, View};
use crate::budget::tidy;
use crate::commands::jobs;
use crate::output::{Align, Table};
use crate::quantity::{percent, power, shorten, watts};
use wattle_view::node::{Node, cap_when_read};
use wattle_view::verdict::{self, Finding, Stored};

/// Columns of a bar.
const BAR: usize = 24;
/// Smallest screen.
const COLUMNS_MIN: u16 = 60;
const LINES_MIN: u16 = 12;
/// Columns from which the jobs have further columns.
const COLUMNS_WIDE: usize = 160;

/// How serious a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    Warning,
    Fault,
}

/// What is wrong, the gravest first.
fn findings(model: &Model, view: &View) -> Vec<Finding> {
    if let Some(lost) = view.lost {
        return vec![verdict::server_away(&model.url, lost)];
    }
    let mut findings = Vec::new();
    if view.placer_away {
        findings.extend(verdict::service_away("placer"));
    }
    let limit = model.budget.as_ref().and_then(|record| record.budget.power_at(view.now));
    findings
        .extend(view.power().zip(limit).and_then(|(drawn, most)| verdict::over_limit(drawn, most)));
    let stored = Stored {
        jobs: view.jobs.iter().map(|job| &job.record).collect(),
        budget: model.budget.as_ref(),
        status: model.status.as_ref(),
        aim: model.aim.as_ref(),
        twin: model.twin.as_ref(),
        now: view.now,
    };
    findings.extend(stored.findings());
    for node in &view.nodes {
        if node.summary.is_none() && node.sleep.is_none() {
            findings.push(verdict::node_silent(&node.node, "profiler"));
        }
        findings.extend(verdict::fault(node));
        findings.extend(verdict::gpus(node));
    }
    verdict::sort(&mut findings);
    findings
}

/// The verdict: the gravest finding, else `OK`, with the jobs.
fn verdict(model: &Model, view: &View) -> (Level, String) {
    let findings = findings(model, view);
    if findings.is_empty() && view.nodes.is_empty() {
        return (Level::Warning, "WAITING: no node has reported".to_owned());
    }
    let (counts, [draw, _]) = jobs::verdict(&view.jobs);
    let jobs = [Some(counts), draw].into_iter().flatten().collect::<Vec<_>>().join(": ");
    let Some(headline) = verdict::headline(&findings) else {
        return (Level::Ok, format!("OK: {jobs}"));
    };
    match findings[0].level {
        verdict::Level::Fault => (Level::Fault, format!("FAULT: {headline}; {jobs}")),
        verdict::Level::Warning => (Level::Warning, format!("ATTENTION: {headline}; {jobs}")),
    }
}

/// A bar of `#`: `[######------]`.
fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR - full))
}

fn level(share: f64) -> Level {
    match share {
        share if share > 1.0 => Level::Fault,
        share if share > 0.9 => Level::Warning,
        _ => Level::Ok,
    }
}

/// The power against the power limit, else against the caps; the budget's windows if there are any.
fn budget(model: &Model, view: &View) -> Vec<(Level, String)> {
    let mut lines = Vec::new();
    let limit = model.budget.as_ref().and_then(|record| record.budget.power_at(view.now));
    let (most, of) = match limit {
        Some(limit) => (Some(limit), "that the limit allows"),
        None => (view.power_max(), "allowed by caps"),
    };
    let missing = view.power_missing();
    let at_least = if missing.is_some() { "at least " } else { "" };
    let missing = missing.map(|missing| format!("; {missing}")).unwrap_or_default();
    match (view.power(), most) {
        (Some(drawn), Some(most)) if most > Power::ZERO => {
            let share = drawn.ratio(most);
            let text = format!(
                "power   {} {at_least}{} of {} {of} ({}){missing}",
                bar(share),
                power(drawn),
                power(most),
                percent(share)
            );
            // Only a limit makes high power a fault.
            let level = if limit.is_some() { level(share) } else { Level::Ok };
            lines.push((level, text));
        }
        (Some(drawn), _) => {
            lines.push((Level::Ok, format!("power   {at_least}{}{missing}", power(drawn))));
        }
        (None, _) => lines.push((Level::Warning, "power   no reading".to_owned())),
    }
    let (Some(record), Some(status)) = (&model.budget, &model.status) else { return lines };
    let left = span(status.window_until_us.since(view.now).as_secs_f64());
    let quantities = [
        ("energy", record.budget.energy_mj.map(|b| (status.energy_mj.as_kwh(), b.as_kwh(), "kWh"))),
        (
            "carbon",
            record
                .budget
                .carbon_ug
                .and_then(|b| Some((status.carbon_ug?.as_kg(), b.as_kg(), "kg"))),
        ),
    ];
    for (name, amounts) in quantities {
        let Some((spent, most, unit)) = amounts else { continue };
        let share = if most > 0.0 { spent / most } else { 0.0 };
        let text = format!(
            "{name}  {} {} of {} {unit}, {left} left; price {}",
            bar(share),
            tidy(spent),
            tidy(most),
            tidy(status.price)
        );
        lines.push((level(share), text));
    }
    lines
}

/// One row for each node.
fn nodes(nodes: &[Node]) -> Table {
    let mut table = Table::new(&[
        ("NODE", Align::Left),
        ("STATE", Align::Left),
        ("GPUS", Align::Right),
        ("POWER W", Align::Right),
        ("CAPS W", Align::Right),
        ("BUSY %", Align::Right),
        ("MEMORY GiB", Align::Right),
        ("MAX °C", Align::Right),
        ("JOBS", Align::Right),
    ]);
    for node in nodes {
        let gpus: Vec<_> = node.gpus().collect();
        let readings = || gpus.iter().filter_map(|(_, reading)| *reading);
        let drawn: Total<Power> =
            gpus.iter().map(|(_, reading)| reading.and_then(|read| read.power_mw_mean)).collect();
        let busy: Vec<f64> = readings()
            .filter_map(|reading| reading.utilization_gpu_percent_mean)
            .map(f64::from)
            .collect();
        let caps: Power = gpus.iter().filter_map(|(gpu, read)| cap_when_read(gpu, *read)).sum();
        let gib = |mib: u64| mib as f64 / 1_024.0;
        let used: Option<u64> =
            gpus.iter().map(|(_, reading)| reading.as_ref()?.memory_used_mib).sum();
        let total: Option<u64> = gpus.iter().map(|(gpu, _)| gpu.memory_mib).sum();
        let shown = |mib: Option<u64>| mib.map_or("?".to_owned(), |mib| format!("{:.0}", gib(mib)));
        let hottest = readings().filter_map(|reading| reading.temperature_c).max();
        let lost = gpus.iter().filter(|(gpu, _)| !gpu.healthy).count();
        let closed = gpus.iter().filter(|(gpu, _)| !node.accepts_jobs(gpu)).count();
        let state = match (node.sleep, node.summary.is_some()) {
            (Some(sleep), _) => sleep.state.label().to_owned(),
            (None, _) if lost > 0 => format!("{lost} lost"),
            (None, _) if closed > 0 => format!("{closed} closed"),
            (None, true) => "ok".to_owned(),
            (None, false) => "silent".to_owned(),
        };
        let mut jobs: Vec<_> = gpus.iter().flat_map(|(gpu, _)| node.jobs_on(gpu.gpu)).collect();
        jobs.sort_unstable();
        jobs.dedup();
        let mean = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
        table.row(vec![
            node.node.to_string(),
            state,
            gpus.len().to_string(),
            match drawn.known() {
                Some(sum) if drawn.is_complete() => watts(sum),
                Some(sum) => format!("≥ {}", watts(sum)),
                None => String::new(),
            },
            watts(caps),
            if busy.is_empty() { String::new() } else { format!("{mean:.0}") },
            if readings().next().is_some() {
                format!("{}/{}", shown(used), shown(total))
            } else {
                shown(total)
            },
            hottest.map(|c| c.to_string()).unwrap_or_default(),
            jobs.len().to_string(),
        ]);
    }
    table
}

/// Lines of a table with its heading, from row `first` on; the last line counts the rows that do not
/// fit.
fn rows(table: Table, first: usize, lines: usize, width: usize, what: &str) -> Vec<String> {
    let text = table.fit(0, width).render(false);
    let mut all = text.lines().map(|line| shorten(line, width));
    let heading = all.next().unwrap_or_default();
    let body: Vec<String> = all.collect();
    let first = first.min(body.len().saturating_sub(1));
    let room = lines.saturating_sub(1);
    let mut shown: Vec<String> = vec![heading];
    let rest = &body[first.min(body.len())..];
    if rest.len() <= room && first == 0 {
        shown.extend(rest.iter().cloned());
        return shown;
    }
    let kept = rest.len().min(room.saturating_sub(1));
    shown.extend(rest[..kept].iter().cloned());
    let (above, below) = (first, rest.len() - kept);
    shown.push(format!("... {what}: {above} above, {below} below"));
    shown
}

/// Adds a table whose first line is its heading.
fn section(lines: &mut Vec<(Level, String, bool)>, rows: Vec<String>) {
    let row = |(index, text): (usize, String)| (Level::Ok, text, index == 0);
    lines.extend(rows.into_iter().enumerate().map(row));
}

/// The lines of the screen.
fn screen(model: &Model, view: &View, width: usize, height: usize) -> Vec<(Level, String, bool)> {
    let (level, text) = verdict(model, view);
    let title = format!("wattle top, cluster {}", model.cluster);
    let mut lines = vec![(level, text, true)];
    lines.extend(budget(model, view).into_iter().map(|(level, text)| (level, text, false)));
    let plain = |text: String| (Level::Ok, text, false);
    lines.push(plain(String::new()));
    let footer = match &model.fault {
        Some(fault) => (Level::Warning, fault.clone(), false),
        None => plain(format!("{}   {title}", model.selection.footer())),
    };
    // Nodes get at most half of the rest.
    let left = height.saturating_sub(lines.len() + 3);
    let for_nodes = (view.nodes.len() + 1).min((left / 2).max(2));
    section(&mut lines, rows(nodes(&view.nodes), 0, for_nodes, width, "nodes"));
    lines.push(plain(String::new()));
    let for_jobs = height.saturating_sub(lines.len() + 1);
    if view.jobs.is_empty() {
        lines.push(plain(format!("no running or queued job; {} ended", view.ended_count)));
    } else if view.listed.is_empty() {
        lines.push(plain(format!("no running or queued job of {} matches", view.jobs.len())));
    } else {
        let table = if width >= COLUMNS_WIDE {
            jobs::table_within(&view.listed, view.now, width)
        } else {
            jobs::table(&view.listed, view.now, false, width)
        };
        section(&mut lines, rows(table, model.first_job, for_jobs, width, "jobs"));
    }
    let gpus = view.nodes.iter().map(|node| node.gpus().count()).sum();
    let room = height.saturating_sub(lines.len() + 1);
    let (for_gpus, for_ended) = lower::shares(gpus, view.ended.len(), room);
    if for_gpus > 0 {
        lines.push(plain(String::new()));
        let table = lower::gpus(&view.nodes, width);
        section(&mut lines, rows(table, 0, for_gpus - 1, width, "GPUs"));
    }
    if for_ended > 0 {
        lines.push(plain(String::new()));
        section(&mut lines, rows(lower::ended(view, width), 0, for_ended - 1, width, "ended jobs"));
    }
    while lines.len() + 1 < height {
        lines.push(plain(String::new()));
    }
    lines.truncate(height.saturating_sub(1));
    lines.push(footer);
    lines
}

/// Draws the screen.
pub(crate) fn draw(frame: &mut Frame<'_>, model: &Model, view: &View, colour: bool) {
    let area = frame.area();
    if area.width < COLUMNS_MIN || area.height < LINES_MIN {
        let text = format!(
            "the terminal has {}x{}; `wattle top` needs {COLUMNS_MIN}x{LINES_MIN}",
            area.width, area.height
        );
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let lines: Vec<Line<'_>> = screen(model, view, width, height)
        .into_iter()
        .map(|(level, text, strong)| {
            let mut style = Style::new();
            if strong {
                style = style.add_modifier(Modifier::BOLD);
            }
            if colour {
                style = match level {
                    Level::Ok => style,
                    Level::Warning => style.fg(Color::Yellow),
                    Level::Fault => style.fg(Color::Red),
                };
            }
            Line::styled(shorten(&text, width), style)
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expect_test::expect;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tokio::time::Instant;
    use wattle_common::messages::{BudgetRecord, BudgetStatus, LeaseHolder, ServiceLease};
    use wattle_common::{Budget, Energy, Timestamp};

    use super::*;
    use crate::commands::jobs::tests::{last_summaries, records};
    use crate::commands::nodes::tests::two_nodes;

    fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
        serde_json::to_vec(value).unwrap()
    }

    fn model(at: Instant) -> Model {
        let mut model = Model {
            cluster: "local".to_owned(),
            url: "nats://127.0.0.1:4222".to_owned(),
            ..Model::default()
        };
        for record in records() {
            model.record(record.spec.job.as_str(), Some(&json(&record)));
        }
        for node in two_nodes() {
            let mut summary = node.summary.clone();
            if let Some(summary) = &mut summary {
                summary.jobs = last_summaries()[&node.node].jobs.clone();
                model.summarized(&json(summary), at);
            }
            let node = Node { summary: None, ..node };
            model.nodes.insert(node.node.clone(), node);
        }
        model
    }

    fn status() -> BudgetStatus {
        BudgetStatus {
            energy_mj: Energy::from_j(150_000_000),
            price: 0.25,
            power_mw_expected: Power::from_w(700),
            ..wattle_testkit::budget_status(Timestamp::EPOCH)
        }
    }

    fn shown(model: &Model, at: Instant, columns: u16, lines: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
        let view = model.view(at, Timestamp::from_s(4_200));
        terminal.draw(|frame| draw(frame, model, &view, false)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cells: Vec<&str> = buffer.content().iter().map(ratatui::buffer::Cell::symbol).collect();
        let rows = cells.chunks(usize::from(columns)).map(|row| row.concat().trim_end().to_owned());
        rows.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn screen_of_80_by_24() {
        let at = Instant::now();
        expect![[r#"
            FAULT: GPU 2 of n0 does not respond, or responds again only since a moment ago;…
            power   [#######-----------------] 272 W of 1000 W allowed by caps (27 %)

            NODE  STATE   GPUS  POWER W  CAPS W  BUSY %  MEMORY GiB  MAX °C  JOBS
            n0    1 lost     3      272     750      32       27/96      61     2
            n1    asleep     1              250                  32             0

            JOB                       PHASE          GPUS  POWER W  ENERGY Wh  DONE     REST
            python3-660bb7234354a     running           2      371      450.0  45 %  1:13:20
            t-2                       observed          1
            a-job-with-a-name-of-th…  queued    4..8 p100

            NODE  GPU  STATE   POWER OF LIMIT      POWER W  CAP W  BUSY %  JOBS
            n0      0  ok      [############-|  ]      231    250      97  python3-660bb723…
            n0      1  ok      [##-----------|  ]       41    250       0
            n0      2  lost    [-------------|  ]        0    250       0
            n1      0  asleep  [-------------|  ]             250

            ENDED  PHASE         AT UTC  RAN  WAITED  ENERGY Wh  CAUSE
            t-4    failed (137)  00:06                    3.333



            q quit, up/down scroll, s sort: phase, / filter   wattle top, cluster local"#]]
        .assert_eq(&shown(&model(at), at, 80, 24));
    }

    #[test]
    fn budget_is_shown_and_an_exceeded_limit_is_the_verdict() {
        let at = Instant::now();
        let mut model = model(at);
        model.nodes.retain(|_, node| node.power.as_ref().is_some_and(|p| p.gpus.len() > 1));
        let budget = Budget::from_human(Some(120.0), None, Some(0.2), None).unwrap();
        model.budget = Some(BudgetRecord {
            generation: 1,
            budget,
            since_us: Timestamp::EPOCH,
            intensity: None,
        });
        model.status = Some(status());
        let text = shown(&model, at, 80, 24);
        let head: Vec<&str> = text.lines().take(3).collect();
        expect![[r#"
            FAULT: the power limit is exceeded: 272 W of 200 W (and 1 more); 2 running, 1 q…
            power   [########################] 272 W of 200 W that the limit allows (136 %)
            energy  [########----------------] 41.667 of 120 kWh, 22.8 h left; price 0.25"#]]
        .assert_eq(&head.join("\n"));
    }

    #[test]
    fn lost_bus_is_the_verdict_and_the_last_readings_remain() {
        let at = Instant::now();
        let mut model = model(at);
        model.connected(false, at);
        let later = at + Duration::from_secs(42);
        model.connected(false, later);
        let text = shown(&model, later, 80, 24);
        let first = text.lines().next().unwrap();
        assert_eq!(
            first,
            "FAULT: the NATS server at nats://127.0.0.1:4222 has not answered for 42 s: the …"
        );
        assert!(text.contains("231") || text.contains("272"), "last readings: {text}");
        model.connected(true, later);
        let text = shown(&model, later, 80, 24);
        assert!(
            !text.contains("not answered") && !text.contains("272"),
            "old readings end: {text}"
        );
    }

    #[test]
    fn a_wide_screen_shows_whole_names_of_jobs() {
        let at = Instant::now();
        let mut model = model(at);
        let many = records();
        for mut record in many.into_iter().filter(|record| !record.phase.is_final()) {
            record.spec.user = Some("a-user-with-a-long-name".to_owned());
            record.spec.workload = Some(wattle_testkit::workload("imagenet-resnet152-b256"));
            model.record(record.spec.job.as_str(), Some(&json(&record)));
        }
        let longest = "a-job-with-a-name-of-the-greatest-length-that-an-id-can-have-001";
        let text = shown(&model, at, 160, 45);
        assert!(text.contains(longest) && text.contains("  REST"), "{text}");
    }

    #[test]
    fn a_budget_below_the_idle_draw_is_the_verdict() {
        let at = Instant::now();
        let mut model = model(at);
        model.nodes.retain(|_, node| node.power.as_ref().is_some_and(|p| p.gpus.len() > 1));
        model.nodes.values_mut().for_each(|node| {
            node.power.iter_mut().flat_map(|p| &mut p.gpus).for_each(|gpu| gpu.healthy = true);
        });
        let budget = Budget::from_human(Some(5.0), None, None, None).unwrap();
        let (since_us, generation) = (Timestamp::EPOCH, 1);
        model.budget = Some(BudgetRecord { generation, budget, since_us, intensity: None });
        let status = BudgetStatus {
            observed_generation: 1,
            power_mw_baseline: Some(Power::from_w(450)),
            power_mw_budget_mean: Some(Power::from_w(207)),
            ..status()
        };
        model.status = Some(status);
        let text = shown(&model, at, 160, 24);
        let first = text.lines().next().unwrap();
        let expected = "FAULT: no job can start: the idle cluster draws 0.45 kW, but the budget allows \
                        0.207 kW on average";
        assert!(first.starts_with(expected), "{first}");
    }

    #[test]
    fn a_placer_that_does_not_renew_its_lease_is_the_verdict() {
        let at = Instant::now();
        let mut model = model(at);
        let holder =
            LeaseHolder { instance: "host-1".to_owned(), boot: None, pid_namespace: None, pid: 1 };
        let (length_ms, since_us) = (5_000, Timestamp::from_s(1));
        let lease = ServiceLease { holder, length_ms, since_us, released: false };
        model.leased("placer", Some(&json(&lease)), at);
        let first = |seconds| {
            let text = shown(&model, at + Duration::from_secs(seconds), 160, 24);
            text.lines().next().unwrap().to_owned()
        };
        let expected = "FAULT: no placer is active: no job starts";
        assert!(!first(10).contains("no placer"), "{}", first(10));
        assert!(first(11).starts_with(expected), "{}", first(11));
    }

    #[test]
    fn every_size_is_drawn() {
        let at = Instant::now();
        let mut model = model(at);
        let many = records();
        for i in 0..300 {
            let mut record = many[1].clone();
            record.spec.job = wattle_testkit::job(&format!("many-{i}"));
            model.record(record.spec.job.as_str(), Some(&json(&record)));
        }
        for (columns, lines) in [(80, 24), (60, 12), (200, 60), (20, 5), (81, 25), (500, 12)] {
            for first in [0, 5, 299, 1_000] {
                model.first_job = first;
                let text = shown(&model, at, columns, lines);
                assert!(columns < 60 || text.lines().last().unwrap().contains("q quit"), "{text}");
            }
        }
        assert!(shown(&model, at, 20, 5).contains("needs"), "a small terminal is named");
    }
}
