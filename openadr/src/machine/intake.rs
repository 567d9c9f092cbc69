//! A list of events as it is read: which events are followed, and which cannot be used.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::Timestamp;
use wattle_grid::instant;

use super::records::Records;
use super::{Action, Followed, Listing, REFUSED_AGAIN, VenMachine};
use crate::report;
use crate::translate::{self, id_prefix};
use crate::wire::{self, Program, Refused};

/// Most kinds of payloads and reports whose names are remembered.
const IGNORED_MAX: usize = 100;
/// Most intervals of all events.
const INTERVALS_MAX: usize = 10_000;

impl VenMachine {
    /// A list of events was read.
    pub(super) fn polled(&mut self, now: Timestamp, listing: Listing, out: &mut Vec<Action>) {
        for name in &listing.missing {
            let text = format!(
                "the server lists no program `{name}` for this client that can be used; what was announced of its \
                 events continues"
            );
            self.warn(&format!("program {name}"), text, out);
        }
        for reason in &listing.refused {
            self.warn("listed programs", format!("a listed program cannot be used: {reason}"), out);
        }
        self.lacks_programs = !listing.missing.is_empty();
        let mut followed = BTreeMap::new();
        let mut unusable = BTreeMap::new();
        self.is_complete = true;
        let mut intervals = 0;
        for read in listing.events {
            match read {
                Ok(event) => {
                    let id = event.id.clone();
                    if followed.contains_key(&id)
                        || !translate::is_addressed(&event, &self.settings.site)
                    {
                        continue;
                    }
                    let Some(program) = listing.programs.get(&event.program_id) else { continue };
                    intervals += event.intervals.as_deref().map_or(0, <[_]>::len);
                    if intervals > INTERVALS_MAX {
                        unusable.insert(
                            id,
                            format!("all events have more than {INTERVALS_MAX} intervals"),
                        );
                        continue;
                    }
                    match self.understand(event, program, now) {
                        Ok(understood) => drop(followed.insert(id, understood)),
                        Err(reason) => drop(unusable.insert(id, reason)),
                    }
                }
                Err(Refused { id: Some(id), reason }) => drop(unusable.insert(id, reason)),
                Err(Refused { id: None, reason }) => {
                    self.is_complete = false;
                    let text = format!("an event cannot be used, so none is cancelled: {reason}");
                    self.warn("an event without an id", text, out);
                }
            }
        }
        for (id, reason) in &unusable {
            self.warn(id, format!("event {id} cannot be used: {reason}"), out);
            // What was announced before continues.
            if let Some(before) = self.followed.remove(id) {
                followed.entry(id.clone()).or_insert(before);
            }
        }
        let listed: BTreeSet<String> = followed.keys().cloned().collect();
        let before = std::mem::take(&mut self.followed);
        for (id, event) in before.into_iter().filter(|(id, _)| !listed.contains(id)) {
            let has_program = listing.programs.contains_key(&event.event.program_id);
            if has_program || !self.lacks_programs {
                self.removed.insert(id_prefix(&id));
            } else {
                followed.insert(id, event);
            }
        }
        // Those that are listed again, or whose records are closed, are not cancelled any more.
        let open: BTreeSet<String> =
            Records::of(&self.book).open(now).map(|(prefix, ..)| prefix).collect();
        let again: BTreeSet<String> = listed.iter().map(|id| id_prefix(id)).collect();
        self.removed.retain(|prefix| open.contains(prefix) && !again.contains(prefix));
        let is_listed = |id: &String| followed.contains_key(id);
        self.reports.retain(|id, _| is_listed(id));
        self.first_read.retain(|id, _| is_listed(id));
        let is_kept = |subject: &String| {
            followed.contains_key(subject)
                || unusable.contains_key(subject)
                || subject.contains(' ')
                || self.refused.keys().any(|event| event.as_str() == subject)
        };
        self.logged.retain(|subject, _| is_kept(subject));
        (self.followed, self.unusable) = (followed, unusable);
        self.name_ignored(out);
        self.refused.retain(|event, (_, again)| {
            *again + 2 * REFUSED_AGAIN > now || self.outstanding.contains(event)
        });
    }

    /// An event with its intervals. One that is older than the known one, as a server of several may send it, changes
    /// nothing.
    fn understand(
        &mut self,
        event: wire::Event,
        program: &Program,
        now: Timestamp,
    ) -> Result<Followed, String> {
        let changed = |event: &wire::Event| {
            event.modification_date_time.as_deref().and_then(|text| instant::parse(text).ok())
        };
        if let Some(known) = self.followed.get(&event.id)
            && let (Some(given), Some(before)) = (changed(&event), changed(&known.event))
            && given < before
        {
            return Ok(known.clone());
        }
        let site = &self.settings.site;
        let first = self.first_read.get(&event.id).copied();
        let of = |now| translate::understood(&event, program, site, now);
        let mut understood = of(first.unwrap_or(now))?;
        if understood.starts_now && first.is_none() {
            // Before a restart it was read earlier: its record has the start.
            let records = Records::of(&self.book);
            let began = records.first_read(&event.id, &understood.slots, now).unwrap_or(now);
            if began != now {
                understood = of(began)?;
            }
            self.first_read.insert(event.id.clone(), began);
        }
        Ok(Followed { source: translate::source(program), event, understood })
    }

    /// Names the kinds of payloads and reports that are ignored, each once.
    fn name_ignored(&mut self, out: &mut Vec<Action>) {
        let mut found = BTreeSet::new();
        for Followed { event, understood, .. } in self.followed.values() {
            let payloads =
                understood.ignored.iter().map(|kind| format!("payload {kind} is ignored"));
            let reports = event.report_descriptors.iter().flatten();
            found.extend(payloads.chain(reports.filter_map(|report| report::check(report).err())));
        }
        for text in found {
            if self.ignored.len() < IGNORED_MAX && self.ignored.insert(text.clone()) {
                out.push(Action::Warn(text));
            }
        }
    }
}
