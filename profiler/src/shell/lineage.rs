//! Which sessions a process and its ancestors belong to, from `/proc`.
//!
//! A job's processes share the session its launcher made, but a job may start workers in sessions
//! of their own, as torchrun does; those still descend from it. Process ids are the node's, so the
//! profiler runs in the node's own process namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest way up: shells and launchers within launchers, with room to spare.
const ANCESTORS_MAX: usize = 16;

/// Remembers the processes that are on a card.
#[derive(Default)]
pub(super) struct Lineages {
    known: BTreeMap<u32, Arc<[u32]>>,
}

impl Lineages {
    /// The sessions of `pid` and its ancestors; empty where it is gone or hidden.
    pub(super) fn of(&mut self, pid: u32) -> Arc<[u32]> {
        if let Some(sessions) = self.known.get(&pid) {
            return Arc::clone(sessions);
        }
        let sessions: Arc<[u32]> = read(pid).into();
        // What could not be read is asked again: a process may have been on its way in or out.
        if !sessions.is_empty() {
            self.known.insert(pid, Arc::clone(&sessions));
        }
        sessions
    }

    /// Forgets every process that is on no card any more, for its id may come round again.
    pub(super) fn retain(&mut self, alive: impl Fn(u32) -> bool) {
        self.known.retain(|pid, _| alive(*pid));
    }
}

fn read(pid: u32) -> Vec<u32> {
    let mut sessions = Vec::new();
    let mut at = pid;
    for _ in 0..ANCESTORS_MAX {
        if at <= 1 {
            break;
        }
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{at}/stat")) else { break };
        let Some((parent, session)) = parse(&stat) else { break };
        if !sessions.contains(&session) {
            sessions.push(session);
        }
        at = parent;
    }
    sessions
}

/// Parent and session: the second and the fourth field behind the command, which stands in
/// parentheses and may hold any character itself.
fn parse(stat: &str) -> Option<(u32, u32)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some((parent, session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_be_called_anything() {
        assert_eq!(parse("7 (a) b) (c) S 3 7 5 0 -1"), Some((3, 5)));
        assert_eq!(parse("7 (sh) S 3"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_very_process_has_a_lineage() {
        let mut lineages = Lineages::default();
        let own = std::process::id();
        let sessions = lineages.of(own);
        assert_eq!(sessions, lineages.of(own));
        assert!(read(u32::MAX).is_empty());
        lineages.retain(|_| false);
        assert!(lineages.known.is_empty());
    }
}
