//! `wattle top`: power, nodes and jobs in the terminal, updated every second.
//!
//! It listens to the summaries of the profilers and watches the buckets. While the bus is away the last
//! figures remain with a message, and updates continue once it is back.

mod draw;
mod model;

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_util::StreamExt as _;
use tokio::time::Instant;
use wattle_common::subject::{Bucket, Topic};
use wattle_runtime::bus::{Bus, Change};
use wattle_runtime::clock;
use wattle_runtime::shell::Shutdown;

use self::model::Model;
use crate::connection::{Connection, block_on};
use crate::job_records;
use crate::output::usage;

/// Interval of updates, wall time.
const UPDATE_EVERY: Duration = Duration::from_secs(1);
/// Jobs that a page key scrolls.
const PAGE: isize = 10;

/// Show power, nodes and jobs in the terminal, updated every second.
#[derive(Args)]
#[command(after_help = "Keys: q quits; up, down, page up, page down, home scroll the jobs.\n\
        The first line is the verdict. NO_COLOR=1 shows it without colour.\n\n\
        Example:\n  wattle top")]
pub(crate) struct Top {
    #[command(flatten)]
    connection: Connection,
}

/// What a key requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Quit,
    Scroll(isize),
    None,
}

fn request(key: KeyEvent) -> Request {
    if key.kind == KeyEventKind::Release {
        return Request::None;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Request::Quit,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Request::Quit,
        KeyCode::Up | KeyCode::Char('k') => Request::Scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => Request::Scroll(1),
        KeyCode::PageUp => Request::Scroll(-PAGE),
        KeyCode::PageDown | KeyCode::Char(' ') => Request::Scroll(PAGE),
        KeyCode::Home => Request::Scroll(isize::MIN),
        _ => Request::None,
    }
}

/// Receives messages and keys, and draws, until the user quits.
async fn show(bus: &Bus, terminal: &mut ratatui::DefaultTerminal) -> anyhow::Result<()> {
    let watch = async |bucket| anyhow::Ok(bus.bucket(bucket).await?.watch().await?);
    let mut jobs = watch(Bucket::Jobs).await?;
    let mut actual = watch(Bucket::Actual).await?;
    let mut desired = watch(Bucket::Desired).await?;
    let mut budget = watch(Bucket::Budget).await?;
    let mut leases = watch(Bucket::Leases).await?;
    let mut summaries = bus.subscribe(&Topic::NodeSummarized.pattern(bus.cluster())).await?;
    let shutdown = Shutdown::listen().context("cannot listen for signals")?;
    let mut keys = EventStream::new();
    let mut tick = tokio::time::interval(UPDATE_EVERY);
    let colour = std::env::var_os("NO_COLOR").is_none();
    let mut model =
        Model { cluster: bus.cluster().to_string(), url: bus.url().to_owned(), ..Model::default() };
    // The first screen is complete.
    let all = |changes: Vec<Change>, apply: &mut dyn FnMut(&str, Option<&[u8]>)| {
        changes.iter().for_each(|change| apply(&change.key, change.value.as_deref()));
    };
    all(jobs.initial().await, &mut |key, value| model.record(key, value));
    all(actual.initial().await, &mut |key, value| model.reported(key, value));
    all(desired.initial().await, &mut |key, value| model.desired(key, value));
    all(budget.initial().await, &mut |key, value| model.budgeted(key, value));
    model.placer = Some((Instant::now(), None));
    all(leases.initial().await, &mut |key, value| model.leased(key, value, Instant::now()));
    for (_, summary) in crate::summaries::of_all_nodes(bus).await? {
        model.summarized(&serde_json::to_vec(&summary)?, Instant::now());
    }
    loop {
        let redraw = tokio::select! {
            () = shutdown.wait() => return Ok(()),
            event = keys.next() => match event {
                Some(Ok(Event::Key(key))) => match request(key) {
                    Request::Quit => return Ok(()),
                    Request::Scroll(by) => {
                        let view = model.view(Instant::now(), clock::now());
                        model.scroll(by, view.jobs.len());
                        true
                    }
                    Request::None => false,
                },
                Some(Ok(Event::Resize(..))) => true,
                Some(Ok(_)) => false,
                Some(Err(error)) => return Err(error).context("the terminal cannot be read"),
                // The terminal is gone.
                None => return Ok(()),
            },
            Some(change) = jobs.next() => {
                model.record(&change.key, change.value.as_deref());
                false
            }
            Some(change) = actual.next() => {
                model.reported(&change.key, change.value.as_deref());
                false
            }
            Some(change) = desired.next() => {
                model.desired(&change.key, change.value.as_deref());
                false
            }
            Some(change) = budget.next() => {
                model.budgeted(&change.key, change.value.as_deref());
                false
            }
            Some(change) = leases.next() => {
                model.leased(&change.key, change.value.as_deref(), Instant::now());
                false
            }
            Some(delivery) = summaries.next() => {
                model.summarized(&delivery.payload, Instant::now());
                false
            }
            _ = tick.tick() => true,
        };
        if redraw {
            let at = Instant::now();
            model.connected(bus.is_connected(), at);
            let view = model.view(at, clock::now());
            terminal
                .draw(|frame| draw::draw(frame, &model, &view, colour))
                .context("the terminal cannot be written")?;
        }
    }
}

/// Runs the command.
pub(crate) fn run(command: &Top) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(usage(
            "`wattle top` needs a terminal; `wattle nodes` and `wattle jobs` print tables",
        ));
    }
    block_on(async {
        let bus = command.connection.open().await?;
        job_records::require_storage(&bus, "top")?;
        let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
        let result = show(&bus, &mut terminal).await;
        ratatui::restore();
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_quit_and_scroll() {
        let of = |code, modifiers| request(KeyEvent::new(code, modifiers));
        assert_eq!(of(KeyCode::Char('q'), KeyModifiers::NONE), Request::Quit);
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::CONTROL), Request::Quit);
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::NONE), Request::None);
        assert_eq!(of(KeyCode::Down, KeyModifiers::NONE), Request::Scroll(1));
    }
}
