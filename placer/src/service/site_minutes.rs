//! The stream of the site's power by minute: what the placer continues from, and its writes.
//!
//! Each record names the entry of the ledger from which on later minutes are summed, also those that were acknowledged. So
//! the next placer sums each later minute from the same entries, and stores it once.

use std::collections::VecDeque;

use wattle_common::Timestamp;
use wattle_common::bounds::plausible_ledger_entry;
use wattle_common::messages::{LedgerEntry, SiteMinute};
use wattle_common::subject::{StreamName, Subject};
use wattle_runtime::bus::{Appender, Bus, BusError, Stored};
use wattle_runtime::clock;
use wattle_runtime::shell::{Shutdown, chain};

use super::RETRY;
use crate::power::site_minutes::SITE_WITHIN;

/// Records that are stored again if the server loses them.
const KEPT: usize = 60;
/// Most entries of the ledger that are read at the start, those of 20 minutes of 5,000 nodes; later ones are delivered again.
const ENTRIES_MAX: usize = 100_000;

/// The writer of the stream.
pub(super) struct SiteLog {
    appender: Appender<SiteMinute>,
    /// The sequence number and the end of each entry that later minutes need.
    needed: VecDeque<(u64, Timestamp)>,
    last: u64,
}

impl SiteLog {
    /// The writer, with the last minute and the entries that later ones need.
    pub(super) async fn open(
        bus: &Bus,
    ) -> Result<(Self, (Option<SiteMinute>, Vec<LedgerEntry>)), BusError> {
        let mut log = Self { appender: Appender::new(KEPT), needed: VecDeque::new(), last: 0 };
        let (end, now) = (bus.last_sequence(StreamName::Site).await?, clock::now());
        let mut last = None;
        let mut minutes = bus.replay_from(StreamName::Site, end).await?;
        while let Some(payload) = minutes.next().await? {
            last = SiteMinute::plausible(&payload, now).or(last);
        }
        let mut entries = Vec::new();
        if let Some(last) = &last {
            let mut sequence = last.ledger_from;
            let mut ledger = bus.replay_from(StreamName::Ledger, sequence).await?;
            while entries.len() < ENTRIES_MAX
                && let Some(message) = ledger.next_message().await?
            {
                if let Some(entry) = plausible_ledger_entry(&message.subject, &message.payload, now)
                {
                    log.delivered(sequence, &entry);
                    entries.push(entry);
                }
                // The stream has no gaps after its first message, and a lower number than the entry's repeats more.
                sequence += 1;
            }
        }
        Ok((log, (last, entries)))
    }

    /// An entry of the ledger arrived.
    pub(super) fn delivered(&mut self, sequence: u64, entry: &LedgerEntry) {
        if sequence > self.last {
            self.last = sequence;
            self.needed.push_back((sequence, entry.until_us));
        }
    }

    /// Stores a minute, also after an absence of the server.
    pub(super) async fn store(
        &mut self,
        bus: &Bus,
        minute: SiteMinute,
        shutdown: &Shutdown,
    ) -> Stored {
        let since = minute.until() - SITE_WITHIN;
        while self.needed.front().is_some_and(|(_, until)| *until <= since) {
            self.needed.pop_front();
        }
        let ledger_from = self.needed.front().map_or(self.last + 1, |(sequence, _)| *sequence);
        let minute = SiteMinute { ledger_from, ..minute };
        let subject = Subject::of_site(bus.cluster().clone());
        let id = format!("site-{}", minute.minute_us.as_us());
        let mut stored = Stored::Immediately;
        loop {
            match self.appender.append(bus, &subject, &id, minute.clone()).await {
                Ok(()) => return stored,
                Err(error) if error.is_transient() => {
                    let error = chain(&error);
                    tracing::debug!(%error, minute = %minute.minute_us, "minute not stored; retrying");
                }
                Err(error) => {
                    let error = chain(&error);
                    tracing::error!(%error, minute = %minute.minute_us, "the power of the site in this minute is not stored");
                    return stored;
                }
            }
            stored = Stored::AfterRetry;
            if shutdown.requested() {
                return Stored::Interrupted;
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}
