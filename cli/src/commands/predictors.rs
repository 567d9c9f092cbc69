//! `wattle predictors`: the predictors with their errors, and the promotion of one to champion.
//!
//! The list is read from the bucket, so it is available without a running registry.

use std::time::Duration;

use clap::{Args, Subcommand};
use wattle_common::Timestamp;
use wattle_common::duration::span;
use wattle_common::id::PredictorId;
use wattle_common::messages::{
    PredictorState, PredictorStatus, PromotePredictor, PromoteReply, Score, Scores,
};
use wattle_common::subject::{Bucket, PredictorKey, RequestTopic};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;

use crate::connection::{Connection, block_on};
use crate::job_records;
use crate::output::{Align, Table, note, print, print_json, usage};
use crate::takeover;

/// A registry without an update for this long is considered absent, wall time. It writes every few
/// seconds.
const REGISTRY_SILENT: Duration = Duration::from_secs(15);

/// The line below the table.
const LEGEND: &str = "mean errors: PRIOR before any window of the job, NEW in a new configuration, \
    SAME in\na known one; LATENCY: median, 90th percentile; * champion";

/// List the predictors with their errors, or promote one.
#[derive(Args)]
#[command(
    after_help = "* marks the champion, whose predictions are used. The challengers are only scored.\n\
        Errors are means of |predicted - measured| / measured over the newest windows:\n  \
        PRIOR      before any window of the job\n  \
        NEW        new configuration: after windows of the job in others\n  \
        SAME       same configuration: after windows of the job in it\n\
        IN 90% is the share of windows within the predicted 90 % interval.\n\
        LATENCY is the time from the end of a window to the surface: median, 90th percentile.\n\n\
        Examples:\n  wattle predictors\n  wattle predictors --json\n  wattle predictors promote statistical"
)]
pub(crate) struct Predictors {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    connection: Connection,
    /// Print the predictors' statuses as a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Make a predictor the champion, without a restart.
    Promote(Promote),
}

/// Make a predictor the champion.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle predictors promote statistical")]
struct Promote {
    /// The predictor, as in `wattle predictors`
    predictor: PredictorId,
    #[command(flatten)]
    connection: Connection,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// The status of every predictor, the champion first, then by name.
pub(crate) async fn statuses(bus: &Bus) -> anyhow::Result<Vec<PredictorStatus>> {
    let bucket = bus.bucket(Bucket::Predictors).await?;
    let mut statuses: Vec<PredictorStatus> = Vec::new();
    for key in bucket.keys().await? {
        let Some(PredictorKey::Status(name)) = PredictorKey::parse(&key) else { continue };
        match bucket.get(&key).await {
            Ok(found) => statuses.extend(found.map(|(status, _)| status)),
            Err(error) => note(&format!("warning: {name} cannot be read: {error}")),
        }
    }
    statuses.sort_by(|a, b| (!a.champion, &a.name).cmp(&(!b.champion, &b.name)));
    Ok(statuses)
}

fn state(state: PredictorState) -> &'static str {
    match state {
        PredictorState::Champion => "champion",
        PredictorState::Challenger => "challenger",
        PredictorState::Silent => "silent",
        PredictorState::Failing => "failing",
    }
}

/// Formats an error: `4.5 %`, empty without a score.
fn error(score: Option<Score>) -> String {
    score.map(|score| format!("{:.1} %", score.mape_percent)).unwrap_or_default()
}

/// The share of all scored windows within their interval.
fn coverage(scores: &Scores) -> String {
    let all = [scores.prior, scores.new_config, scores.same_config];
    let windows: u64 = all.iter().flatten().map(|score| score.windows).sum();
    if windows == 0 {
        return String::new();
    }
    let inside = |score: &Score| score.windows as f64 * score.coverage90_percent;
    format!("{:.0} %", all.iter().flatten().map(inside).sum::<f64>() / windows as f64)
}

/// Formats milliseconds with one unit.
fn milliseconds(ms: u64) -> String {
    if ms < 1_000 { format!("{ms} ms") } else { span(ms as f64 / 1_000.0) }
}

/// The two rows of a predictor: speed and power.
fn rows(status: &PredictorStatus, now: Timestamp) -> [Vec<String>; 2] {
    let mark = if status.champion { "* " } else { "  " };
    let active = status
        .last_active_us
        .map_or("never".to_owned(), |at| format!("{} ago", span(now.since(at).as_secs_f64())));
    let latency = status.latency.map(|latency| {
        format!("{}, {}", milliseconds(latency.ms_p50), milliseconds(latency.ms_p90))
    });
    let errors = |of: &str, scores: &Scores| {
        [
            of.to_owned(),
            error(scores.prior),
            error(scores.new_config),
            error(scores.same_config),
            coverage(scores),
        ]
    };
    let mut first = vec![
        format!("{mark}{}", status.name),
        status.version.clone().unwrap_or_else(|| "?".to_owned()),
        state(status.state).to_owned(),
    ];
    first.extend(errors("speed", &status.speed));
    first.extend([latency.unwrap_or_default(), active]);
    let mut second = vec![String::new(); 3];
    second.extend(errors("power", &status.power));
    second.extend([String::new(), String::new()]);
    [first, second]
}

fn table(statuses: &[PredictorStatus], now: Timestamp) -> Table {
    let mut table = Table::new(&[
        ("  NAME", Align::Left),
        ("VERSION", Align::Left),
        ("STATE", Align::Left),
        ("ERROR", Align::Left),
        ("PRIOR", Align::Right),
        ("NEW", Align::Right),
        ("SAME", Align::Right),
        ("IN 90%", Align::Right),
        ("LATENCY", Align::Right),
        ("ACTIVE", Align::Right),
    ]);
    for status in statuses {
        rows(status, now).into_iter().for_each(|row| table.row(row));
    }
    table
}

/// Notes for the operator below the table.
fn remarks(statuses: &[PredictorStatus], now: Timestamp) -> Vec<String> {
    let mut remarks = Vec::new();
    for status in statuses {
        let Some(trouble) = &status.error else { continue };
        let serves = if status.champion {
            " (champion; its last surfaces stay in use, then priors)"
        } else {
            ""
        };
        remarks.push(format!("{} is {}{serves}: {trouble}", status.name, state(status.state)));
    }
    let newest = statuses.iter().map(|status| status.at_us).max();
    if let Some(age) = newest.map(|newest| now.since(newest))
        && clock::scale().wall_span(age) > REGISTRY_SILENT
    {
        let age = span(age.as_secs_f64());
        remarks.push(format!("the newest status is {age} old; is wattle-registry running?"));
    }
    remarks
}

async fn list(connection: &Connection, json: bool) -> anyhow::Result<()> {
    let bus = connection.open().await?;
    job_records::require_storage(&bus, "predictors")?;
    let statuses = statuses(&bus).await?;
    if json {
        return print_json(&statuses);
    }
    let now = clock::now();
    table(&statuses, now).print()?;
    if !statuses.is_empty() {
        print(LEGEND)?;
    }
    remarks(&statuses, now).iter().for_each(|remark| note(remark));
    if statuses.is_empty() {
        note(&format!(
            "no predictor of cluster {} has reported; start wattle-registry and wattle-predictor, \
             or name another cluster with --cluster",
            bus.cluster()
        ));
    }
    Ok(())
}

async fn promote(command: Promote) -> anyhow::Result<()> {
    let bus = command.connection.open().await?;
    let request = PromotePredictor { predictor: command.predictor };
    let topic = RequestTopic::PredictorPromoted;
    let reply: PromoteReply = takeover::request(&bus, topic, "registry", &request).await?;
    match &reply {
        PromoteReply::Refused { error } => Err(usage(error.clone())),
        PromoteReply::Promoted { .. } if command.json => print_json(&reply),
        PromoteReply::Promoted { predictor, previous, warning, .. } => {
            if let Some(warning) = warning {
                note(&format!("warning: {warning}"));
            }
            if predictor == previous {
                return print(&format!("{predictor} is already the champion"));
            }
            print(&format!("{predictor} is now the champion; it replaced {previous}"))
        }
    }
}

/// Runs the command.
pub(crate) fn run(command: Predictors) -> anyhow::Result<()> {
    block_on(async {
        match command.action {
            Some(Action::Promote(inner)) => {
                let connection = inner.connection.or(command.connection);
                promote(Promote { connection, json: inner.json || command.json, ..inner }).await
            }
            None => list(&command.connection, command.json).await,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn status(name: &str, champion: bool) -> PredictorStatus {
        let golden = include_str!("../../../common/tests/golden/v1/predictor-status.json");
        let mut status: PredictorStatus = serde_json::from_str(golden).unwrap();
        (status.name, status.champion) = (PredictorId::new(name).unwrap(), champion);
        status
    }

    /// An option after `promote` overrides the same option before it.
    #[test]
    fn options_may_precede_or_follow_the_subcommand() {
        use clap::Parser;
        #[derive(Parser)]
        struct Alone {
            #[command(flatten)]
            predictors: Predictors,
        }
        for (words, url) in [
            ("x --nats nats://a:1 --json promote physical", "nats://a:1"),
            ("x promote physical --nats nats://a:1 --json", "nats://a:1"),
            ("x --nats nats://b:1 promote --json physical --nats nats://a:1", "nats://a:1"),
        ] {
            let parsed = Alone::try_parse_from(words.split(' '));
            let Predictors { action, connection, json } =
                parsed.unwrap_or_else(|error| panic!("{words}: {error}")).predictors;
            let Some(Action::Promote(inner)) = action else { panic!("{words}: no promotion") };
            assert!(inner.json || json, "{words}");
            assert_eq!(inner.connection.or(connection).url().as_deref(), Some(url), "{words}");
        }
    }

    #[test]
    fn table_fits_a_terminal() {
        let mut physical = status("physical", true);
        (physical.state, physical.error) = (PredictorState::Champion, None);
        let mut new = status("python-mean", false);
        (new.state, new.version, new.latency) = (PredictorState::Challenger, None, None);
        (new.speed, new.power, new.error) = (Scores::default(), Scores::default(), None);
        let statuses = [physical, new, status("statistical", false)];
        let now = statuses[0].at_us;
        let text = table(&statuses, now).render(false);
        expect![[r#"
              NAME         VERSION  STATE       ERROR   PRIOR    NEW   SAME  IN 90%      LATENCY   ACTIVE
            * physical     0.1.0    champion    speed          4.5 %  1.2 %    92 %  12 ms, 10 s  9 s ago
                                                power  18.0 %                  92 %
              python-mean  ?        challenger  speed                                             9 s ago
                                                power
              statistical  0.1.0    silent      speed          4.5 %  1.2 %    92 %  12 ms, 10 s  9 s ago
                                                power  18.0 %                  92 %
        "#]].assert_eq(&text);
        assert!(text.lines().all(|line| line.chars().count() <= 100));
        let remarks = remarks(&statuses, now).join("\n");
        assert_eq!(remarks, "statistical is silent: its service is gone");
        let late = now + Duration::from_secs(600);
        let remarks = super::remarks(&statuses[..1], late).join("\n");
        assert_eq!(remarks, "the newest status is 10 min old; is wattle-registry running?");
    }
}
