//! `wattle top`: power, nodes and jobs in the terminal, updated every second.
//!
//! It listens to the summaries of the profilers and watches the buckets. While the bus is away the last
//! figures remain with a message, and updates continue once it is back.

mod draw;
mod lower;
mod model;
mod selection;

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
use self::selection::Selection;
use crate::commands::jobs::filter::Filter;
use crate::commands::jobs::order::SortKey;
use crate::commands::jobs::require_known_node;
use crate::connection::{Connection, block_on};
use crate::job_records;
use crate::output::usage;

/// Interval of updates, wall time.
const UPDATE_EVERY: Duration = Duration::from_secs(1);
/// Jobs that a page key scrolls.
const PAGE: isize = 10;

/// Show power, nodes and jobs in the terminal, updated every second.
#[derive(Args)]
#[command(
    after_help = "Keys: q quits; up, down, page up, page down, home scroll the jobs; s selects the next order;\n\
        / filters the jobs by a text in their id, user, project, workload, phase or node, Esc removes it.\n\
        The first line is the verdict. Where the jobs leave room, GPUs and ended jobs follow: a bar shows the power\n\
        of a GPU, over the highest cap that it supports, with | at the cap in force.\n\
        NO_COLOR=1 shows the screen without colour.\n\n\
        Examples:\n  wattle top\n  wattle top --sort power\n  wattle top --user ada --phase queued"
)]
pub(crate) struct Top {
    #[command(flatten)]
    filter: Filter,
    /// Order of the jobs; those without the quantity are last
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    sort: SortKey,
    #[command(flatten)]
    connection: Connection,
}

/// What a key requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Quit,
    Scroll(isize),
    Select,
    None,
}

fn request(selection: &mut Selection, key: KeyEvent) -> Request {
    if key.kind == KeyEventKind::Release {
        return Request::None;
    }
    if selection.key(key) {
        return Request::Select;
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
async fn show(
    bus: &Bus,
    terminal: &mut ratatui::DefaultTerminal,
    selection: Selection,
) -> anyhow::Result<()> {
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
    let (cluster, url) = (bus.cluster().to_string(), bus.url().to_owned());
    let mut model = Model { cluster, url, selection, ..Model::default() };
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
                Some(Ok(Event::Key(key))) => match request(&mut model.selection, key) {
                    Request::Quit => return Ok(()),
                    Request::Scroll(by) => {
                        let view = model.view(Instant::now(), clock::now());
                        model.scroll(by, view.listed.len());
                        true
                    }
                    Request::Select => {
                        model.first_job = 0;
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
        require_known_node(&bus, &command.filter).await?;
        let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
        let (filter, order) = (command.filter.clone(), command.sort);
        let selection = Selection { filter, order, ..Selection::default() };
        let result = show(&bus, &mut terminal, selection).await;
        ratatui::restore();
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_quit_and_scroll() {
        let mut selection = Selection::default();
        let mut of = |code, modifiers| request(&mut selection, KeyEvent::new(code, modifiers));
        assert_eq!(of(KeyCode::Char('q'), KeyModifiers::NONE), Request::Quit);
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::CONTROL), Request::Quit);
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::NONE), Request::None);
        assert_eq!(of(KeyCode::Down, KeyModifiers::NONE), Request::Scroll(1));
        assert_eq!(of(KeyCode::Char('s'), KeyModifiers::NONE), Request::Select);
        assert_eq!(of(KeyCode::Char('/'), KeyModifiers::NONE), Request::Select);
        assert_eq!(of(KeyCode::Char('q'), KeyModifiers::NONE), Request::Select, "a letter");
        assert_eq!(of(KeyCode::Down, KeyModifiers::NONE), Request::Scroll(1));
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::CONTROL), Request::Quit);
        assert_eq!(of(KeyCode::Esc, KeyModifiers::NONE), Request::Select);
        assert_eq!(of(KeyCode::Esc, KeyModifiers::NONE), Request::Quit);
    }
}
