//! Which jobs `wattle top` lists, and in which order: the options of the command, and keys.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use wattle_common::WorkloadId;
use wattle_common::id::ProjectId;
use wattle_view::job::JobView;

use crate::commands::jobs::filter::Filter;
use crate::commands::jobs::order::SortKey;

/// Most characters of the typed text.
const TEXT_MAX: usize = 60;

/// The listed jobs and their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// The conditions of the command's options.
    pub(crate) filter: Filter,
    /// The order.
    pub(crate) order: SortKey,
    /// A text that each listed job has: in its id, owner, workload, phase or a node.
    pub(crate) text: String,
    /// Whether keys change the text.
    pub(crate) is_typing: bool,
}

impl Selection {
    /// Whether a job is listed.
    pub(crate) fn keeps(&self, view: &JobView) -> bool {
        self.filter.keeps(&view.record) && self.has_text(view)
    }

    fn has_text(&self, view: &JobView) -> bool {
        let spec = &view.record.spec;
        let owner = [spec.user.as_deref(), spec.project.as_ref().map(ProjectId::as_str)];
        let workload = spec.workload.as_ref().map(WorkloadId::as_str);
        let words = [Some(spec.job.as_str()), workload].into_iter().chain(owner).flatten();
        let mut words = words
            .map(str::to_owned)
            .chain([view.phase()])
            .chain(view.record.output_nodes().into_iter().map(|node| node.to_string()));
        let text = self.text.to_lowercase();
        text.is_empty() || words.any(|word| word.to_lowercase().contains(&text))
    }

    /// Applies a key; `false`: it has no meaning here.
    pub(crate) fn key(&mut self, key: KeyEvent) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if is_control => return false,
            KeyCode::Enter if self.is_typing => self.is_typing = false,
            KeyCode::Esc if self.is_typing || !self.text.is_empty() => {
                self.is_typing = false;
                self.text.clear();
            }
            KeyCode::Backspace if self.is_typing => drop(self.text.pop()),
            KeyCode::Char(c) if self.is_typing => {
                if self.text.chars().count() < TEXT_MAX {
                    self.text.push(c);
                }
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => self.order = self.order.next(),
            _ => return false,
        }
        true
    }

    /// The keys of the last line.
    pub(crate) fn footer(&self) -> String {
        if self.is_typing {
            return format!("filter: {}_   Enter keeps it, Esc removes it", self.text);
        }
        let filter = match self.text.as_str() {
            "" => "/ filter".to_owned(),
            text => format!("/ filter: {text}, Esc removes it"),
        };
        format!("q quit, up/down scroll, s sort: {}, {filter}", self.order.name())
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::Timestamp;
    use wattle_view::Summaries;

    use super::*;
    use crate::commands::jobs::tests::records;

    fn typed(selection: &mut Selection, keys: &str) -> bool {
        let key = |c| match c {
            '\n' => KeyCode::Enter,
            '\u{8}' => KeyCode::Backspace,
            '\u{1b}' => KeyCode::Esc,
            c => KeyCode::Char(c),
        };
        keys.chars().all(|c| selection.key(KeyEvent::new(key(c), KeyModifiers::NONE)))
    }

    /// The first letter of each listed job: a running one on `n0`, an observed one on `n1`, a queued and a failed one.
    fn listed(selection: &Selection) -> String {
        let views = records().into_iter().map(|mut record| {
            record.spec.user = Some("Ada".to_owned());
            JobView::new(record, &Summaries::new(), Timestamp::from_s(4_200))
        });
        let kept = views.filter(|view| selection.keeps(view));
        kept.map(|view| view.record.spec.job.to_string().chars().next().unwrap()).collect()
    }

    #[test]
    fn a_typed_text_filters_until_it_is_removed() {
        let mut selection = Selection::default();
        assert_eq!(listed(&selection), "ptat");
        assert!(typed(&mut selection, "/n1") && selection.is_typing);
        assert_eq!(listed(&selection), "t");
        assert!(selection.footer().starts_with("filter: n1_   Enter"), "{}", selection.footer());
        assert!(typed(&mut selection, "\u{8}\u{8}QUEUED\n") && !selection.is_typing);
        assert_eq!(listed(&selection), "a");
        assert!(selection.footer().ends_with("/ filter: QUEUED, Esc removes it"));
        assert!(typed(&mut selection, "\u{1b}/ada\n"));
        assert_eq!(listed(&selection), "ptat", "the user");
        assert!(typed(&mut selection, "\u{1b}/bert\n"));
        assert_eq!(listed(&selection), "t", "the workload");
        assert!(typed(&mut selection, "\u{1b}") && selection.text.is_empty());
        assert!(!typed(&mut selection, "\u{1b}"), "nothing is left to remove: the key quits");
    }

    #[test]
    fn letters_are_text_while_typing_and_keys_otherwise() {
        let mut selection = Selection::default();
        assert!(typed(&mut selection, "s") && selection.order == SortKey::Job);
        assert!(!typed(&mut selection, "q"));
        assert!(typed(&mut selection, "/sq") && selection.order == SortKey::Job);
        assert_eq!(selection.text, "sq");
        let quit = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(!selection.key(quit), "Ctrl-C quits also while typing");
        assert!(typed(&mut selection, &"x".repeat(100)) && selection.text.len() == TEXT_MAX);
    }
}
