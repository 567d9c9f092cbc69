//! `wattle nodes --power`: the feeders as a tree with power against limits, and the grid event in force.

use std::time::Duration;

use wattle_common::duration::span;
use wattle_common::event::EventBook;
use wattle_common::messages::FeedersStatus;
use wattle_common::subject::{Bucket, EVENTS, FEEDERS_STATUS};
use wattle_common::{NodeId, Timestamp};
use wattle_runtime::bus::Bus;
use wattle_view::feeders::{Row, drawn, rows};
use wattle_view::node::Node;
use wattle_view::{event, power_margin};

use crate::output::{Align, Table, note, print, print_json};
use crate::quantity::watts;

/// Age from which the expected power is out of date: the placer stores it once per minute.
const STATUS_VALID: Duration = Duration::from_secs(180);

/// The feeders with the readings of these nodes.
fn rows_of(status: &FeedersStatus, nodes: &[Node]) -> Vec<Row> {
    rows(status, |id: &NodeId| {
        let node = nodes.iter().find(|node| node.node == *id);
        drawn(node, node.and_then(|node| node.summary.as_ref()))
    })
}

/// The table of feeders.
fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        ("FEEDER", Align::Left),
        ("LIMIT W", Align::Right),
        ("MEASURED W", Align::Right),
        ("EXPECTED W", Align::Right),
        ("WORST W", Align::Right),
        ("IF LOST", Align::Left),
        ("NODES", Align::Right),
    ]);
    for row in rows {
        let at_least = if row.is_partial { "≥ " } else { "" };
        table.row(vec![
            format!("{}{}", "  ".repeat(row.depth), row.feeder),
            watts(row.limit_mw),
            row.measured_mw.map(|power| format!("{at_least}{}", watts(power))).unwrap_or_default(),
            watts(row.expected_mw),
            watts(row.worst_mw),
            row.lost.as_ref().map(ToString::to_string).unwrap_or_default(),
            row.nodes.to_string(),
        ]);
    }
    table
}

/// What the table does not show, one line each.
fn notes(status: &FeedersStatus, rows: &[Row], nodes: &[Node], now: Timestamp) -> Vec<String> {
    let mut notes: Vec<String> = rows.iter().filter_map(Row::fault).collect();
    notes.extend(status.power_margin.as_ref().and_then(power_margin::correction));
    let age = now.since(status.at_us);
    if age > STATUS_VALID {
        notes.push(format!(
            "the expected power is {} old: check the placer (wattle services)",
            span(age.as_secs_f64())
        ));
    }
    let is_fed = |node: &&Node| {
        status.connections.iter().any(|connection| connection.nodes.contains(&node.node))
    };
    notes.extend(nodes.iter().filter(|node| !is_fed(node)).map(|node| {
        let id = &node.node;
        format!("{id} is on no feeder: add it to a table [[node]] of the placer's configuration")
    }));
    notes
}

/// Prints the feeders.
pub(super) async fn show(
    bus: &Bus,
    nodes: &[Node],
    now: Timestamp,
    json: bool,
) -> anyhow::Result<()> {
    let bucket = bus.bucket(Bucket::Budget).await?;
    if !json && let Some((events, _)) = bucket.get::<EventBook>(EVENTS).await? {
        event::all_in_force(&events, now).iter().try_for_each(|event| print(event))?;
    }
    let Some((status, _)) = bucket.get::<FeedersStatus>(FEEDERS_STATUS).await? else {
        if json {
            return print_json(&Vec::<Row>::new());
        }
        note(
            "no feeder is known: the placer's configuration has no [[feeder]], or the draw of the nodes is not \
             metered yet, about a minute after the start",
        );
        return Ok(());
    };
    let rows = rows_of(&status, nodes);
    if json {
        return print_json(&rows);
    }
    table(&rows).print()?;
    notes(&status, &rows, nodes, now).iter().for_each(|line| note(line));
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use wattle_common::Power;
    use wattle_common::feeders::Feeder;
    use wattle_common::messages::FeederStatus;
    use wattle_placer::config::feeders::Feeders;
    use wattle_testkit as testkit;

    use super::*;

    /// The output of docs/feeders.md is that of its configuration with these readings and plans, watts.
    #[test]
    fn the_page_has_this_output() {
        let page = include_str!("../../../../docs/feeders.md");
        let after = |from: &str| page.split_once(from).unwrap().1.split("```").next().unwrap();
        let config: Feeders = toml::from_str(after("```toml\n")).unwrap();
        let example: Feeders =
            toml::from_str(include_str!("../../../../deploy/demo/feeders.toml")).unwrap();
        let tree = config.tree().unwrap();
        assert_eq!(example.tree().unwrap(), tree, "deploy/demo/feeders.toml");
        let planned = |id: &NodeId| if id.as_str() == "n0" { 810.0 } else { 690.0 };
        let status = |(at, feeder): (usize, &Feeder)| {
            let whole_w = tree.whole(at).unwrap().power_w(planned);
            let limits = tree.limits().into_iter().filter(|limit| limit.feeder == feeder.name);
            let worst = limits.max_by(|a, b| a.power_w(planned).total_cmp(&b.power_w(planned)));
            let worst = worst.unwrap();
            FeederStatus {
                feeder: feeder.clone(),
                power_mw_expected: Power::from_w_f64(whole_w),
                power_mw_worst: Power::from_w_f64(worst.power_w(planned)),
                lost: worst.lost,
            }
        };
        let status = FeedersStatus {
            at_us: Timestamp::from_s(90),
            feeders: tree.feeders().iter().enumerate().map(status).collect(),
            connections: tree.connections().to_vec(),
            power_margin: None,
        };
        let node = |name: &str, watts: [Option<u64>; 4]| {
            let mut node = Node::new(testkit::node(name));
            let gpus = [0, 1, 2, 3].map(|gpu| testkit::applied_gpu(gpu, "v100"));
            node.power = Some(testkit::power_report(name, Timestamp::from_s(1), gpus));
            let host = Some(Power::from_w(108));
            let readings = watts.map(|watts| watts.map(Power::from_w));
            node.summary = Some(testkit::node_summary(name, readings, host));
            node
        };
        let nodes = [
            node("n0", [Some(176), Some(171), Some(174), Some(169)]),
            node("n1", [Some(139), Some(142), None, Some(141)]),
        ];
        let shown = table(&rows_of(&status, &nodes)).render(false);
        assert_eq!(after("$ wattle nodes --power\n"), shown);
    }

    #[test]
    fn feeders_are_a_tree_with_watts_against_limits() {
        let node = |name: &str, reading| {
            let mut node = Node::new(testkit::node(name));
            let gpus = [testkit::applied_gpu(0, "v100")];
            node.power = Some(testkit::power_report(name, Timestamp::from_s(1), gpus));
            let host = Some(Power::from_w(100));
            node.summary = Some(testkit::node_summary(name, [reading], host));
            node
        };
        let nodes = [node("n0", Some(Power::from_w(200))), node("n1", None), node("n2", None)];
        let status = testkit::feeders_status();
        let rows = rows_of(&status, &nodes);
        let shown = table(&rows).render(false);
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        expect![[r#"
            FEEDER   LIMIT W  MEASURED W  EXPECTED W  WORST W  IF LOST  NODES
            board-a     2000       ≥ 300         525      525               2
              pdu-a     1500       ≥ 250         475      475               2
            board-b     2000         150         475      475               1
              pdu-b      900         150         475      950  board-a      1
        "#]]
        .assert_eq(&shown);
        let lines = notes(&status, &rows, &nodes, Timestamp::from_s(100));
        assert_eq!(
            lines,
            [
                "feeder pdu-b would draw 950 W if board-a were lost, above its limit of 900 W",
                "n2 is on no feeder: add it to a table [[node]] of the placer's configuration",
            ]
        );
        let late = notes(&status, &rows, &nodes[..2], Timestamp::from_s(690));
        assert_eq!(late[1], "the expected power is 10 min old: check the placer (wattle services)");
        let margin = testkit::power_margin();
        let corrected = FeedersStatus { power_margin: Some(margin), ..status };
        let lines = notes(&corrected, &rows, &nodes[..2], Timestamp::from_s(100));
        assert_eq!(lines[1..], [power_margin::correction(&margin).unwrap()]);
    }
}
