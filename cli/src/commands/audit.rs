//! `wattle audit`: the orders of people, and whether they were accepted.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use wattle_common::duration::parse_span;
use wattle_common::id::UserId;
use wattle_common::messages::OrderRecord;
use wattle_common::subject::{Rank, Requester, StreamName};
use wattle_common::{Timestamp, codec};
use wattle_runtime::clock;

use crate::connection::{Connection, block_on};
use crate::date::second;
use crate::job_records;
use crate::output::{Align, Table, note, print, print_json, terminal_width};

/// List the orders of people, and whether they were accepted.
///
/// Submissions, cancellations, budgets, grid events and promotions are recorded, also those that are refused. The
/// server keeps the records for 400 days, at most 64 MiB.
#[derive(Args)]
#[command(
    after_help = "no key: the person was connected without a key and only declared its name.\n\
        not proven: the NATS server has not proven the identity.\n\
        --json has every text in full.\n\n\
        Examples:\n  wattle audit\n  wattle audit --since 7d --json"
)]
pub(crate) struct Audit {
    /// Only orders of this last time: 90s, 45m, 12h, 7d [default: all]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    since: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
    /// Print the records as a JSON array
    #[arg(long)]
    json: bool,
}

/// Least columns of an order: a command and most of a job's id.
const ORDER_MIN: usize = 24;

/// Text without control characters: it may come from a stranger's request.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A person with its rank, if that is not a user's, and whether its identity is proven.
fn person(requester: &Requester, proven: bool) -> String {
    let Requester { rank, user } = requester;
    let name = if *user == UserId::of_local("") { "unknown user" } else { user.as_str() };
    let rank = match rank {
        // Without a key nothing is proven.
        Rank::Local => return format!("{name}, no key"),
        Rank::User => String::new(),
        Rank::Operator | Rank::Monitor => format!(", {}", rank.as_str()),
    };
    let proven = if proven { "" } else { ", not proven" };
    format!("{name}{rank}{proven}")
}

fn table(records: &[OrderRecord]) -> Table {
    let columns = [
        ("TIME", Align::Left),
        ("PERSON", Align::Left),
        ("ORDER", Align::Left),
        ("OUTCOME", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for record in records {
        let outcome = record.refused.as_ref().map(|error| format!("refused: {}", plain(error)));
        table.row(vec![
            second(record.at_us),
            person(&record.requester, record.proven),
            plain(&record.order.to_string()),
            outcome.unwrap_or_else(|| "accepted".to_owned()),
        ]);
    }
    table
}

/// The table within a width: the order is shortened first, and then the reason of a refusal.
fn shown(records: &[OrderRecord], width: usize) -> Table {
    table(records).fit_above(2, width, ORDER_MIN).fit(3, width)
}

/// Runs the command.
pub(crate) fn run(command: &Audit) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        job_records::require_storage(&bus, "audit")?;
        let from = command.since.map_or(Timestamp::EPOCH, |span| {
            let span = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
            Timestamp::from_us(clock::now().as_us().saturating_sub(span))
        });
        let (mut records, mut unreadable) = (Vec::new(), 0);
        let what = "the log of orders cannot be read";
        let mut replay = bus.replay(StreamName::Orders, None).await.context(what)?;
        while let Some(payload) = replay.next().await.context(what)? {
            match codec::decode_json::<OrderRecord>(&payload) {
                Ok(record) => records.extend(Some(record).filter(|record| record.at_us >= from)),
                Err(_) => unreadable += 1,
            }
        }
        if unreadable > 0 {
            note(&format!("warning: {unreadable} records cannot be read"));
        }
        if command.json {
            return print_json(&records);
        }
        let refused = records.iter().filter(|record| record.refused.is_some()).count();
        print(&format!("{} orders, {refused} refused", records.len()))?;
        if records.is_empty() {
            return Ok(());
        }
        shown(&records, terminal_width()).print()
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::messages::Order;

    use super::*;

    #[test]
    fn a_long_refusal_leaves_room_for_the_orders() {
        let record = |job: &str, refused: Option<&str>| OrderRecord {
            at_us: Timestamp::from_s(1_795_753_177),
            requester: Requester { rank: Rank::Local, user: UserId::of_local("ada") },
            proven: false,
            order: Order::Submit { job: wattle_testkit::job(job) },
            refused: refused.map(str::to_owned),
        };
        let refusal = "requests 9 GPUs; the cluster of 8 cannot provide them";
        let records = [record("train", None), record("wattle-simjob-6613aa6747568", Some(refusal))];
        expect_test::expect![[r#"
            TIME             PERSON       ORDER                     OUTCOME
            11-27 04:19:37Z  ada, no key  submit train              accepted
            11-27 04:19:37Z  ada, no key  submit wattle-simjob-66…  refused: requests 9 GPU…
        "#]]
        .assert_eq(&shown(&records, 80).render(false));
        let whole = shown(&records, 200).render(false);
        assert!(
            whole.contains(refusal) && whole.contains("wattle-simjob-6613aa6747568"),
            "{whole}"
        );
    }

    #[test]
    fn a_person_is_shown_with_its_rank_and_whether_it_is_proven() {
        let shown = |rank, user: &str, proven| {
            person(&Requester { rank, user: UserId::of_local(user) }, proven)
        };
        assert_eq!(shown(Rank::User, "ada", true), "ada");
        assert_eq!(shown(Rank::Operator, "ada", false), "ada, operator, not proven");
        assert_eq!(shown(Rank::Local, "ada", false), "ada, no key");
        assert_eq!(shown(Rank::Local, "", false), "unknown user, no key");
    }
}
