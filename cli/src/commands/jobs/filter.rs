//! Which jobs `wattle jobs` and `wattle top` list.

use std::collections::BTreeSet;

use clap::Args;
use wattle_common::NodeId;
use wattle_common::id::ProjectId;
use wattle_common::job::JobPhase;
use wattle_common::messages::JobRecord;

/// Conditions that each listed job meets.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only the jobs of this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Only the jobs of this project
    #[arg(long, value_name = "PROJECT")]
    project: Option<String>,
    /// Only jobs in this phase, also an ended one; may be repeated
    #[arg(long = "phase", visible_alias = "state", value_name = "PHASE", value_parser = phase)]
    phases: Vec<JobPhase>,
    /// Only jobs with GPUs on this node, or that had some there
    #[arg(long, value_name = "NODE")]
    node: Option<NodeId>,
}

fn phase(text: &str) -> Result<JobPhase, &'static str> {
    serde_json::from_value(text.into())
        .map_err(|_| "give queued, starting, running, stopping, finished, failed or cancelled")
}

impl Filter {
    /// Only the jobs of a user.
    pub(crate) fn of_user(user: &str) -> Self {
        Self { user: Some(user.to_owned()), ..Self::default() }
    }

    /// Whether it has a condition.
    pub(crate) const fn is_given(&self) -> bool {
        let is_of_owner = self.user.is_some() || self.project.is_some();
        is_of_owner || !self.phases.is_empty() || self.node.is_some()
    }

    /// Whether it names the phase of an ended job.
    pub(crate) fn names_ended(&self) -> bool {
        self.phases.iter().any(|phase| phase.is_final())
    }

    /// The node that it names.
    pub(crate) const fn node(&self) -> Option<&NodeId> {
        self.node.as_ref()
    }

    /// Whether a job meets every condition.
    pub(crate) fn keeps(&self, record: &JobRecord) -> bool {
        let is_users = |user: &String| record.spec.user.as_ref() == Some(user);
        let is_projects = |project: &String| {
            record.spec.project.as_ref().is_some_and(|of| of.as_str() == project)
        };
        let is_there = |node: &NodeId| record.output_nodes().contains(node);
        self.user.as_ref().is_none_or(is_users)
            && self.project.as_ref().is_none_or(is_projects)
            && (self.phases.is_empty() || self.phases.contains(&record.phase))
            && self.node.as_ref().is_none_or(is_there)
    }

    /// Of these jobs none is of the named user or project: the owners of some. `None`: another condition excludes them.
    pub(crate) fn owners<'r>(
        &self,
        records: impl Iterator<Item = &'r JobRecord> + Clone,
    ) -> Option<String> {
        let users = records.clone().filter_map(|record| record.spec.user.as_deref());
        let projects = records.filter_map(|record| record.spec.project.as_ref());
        let projects = projects.map(ProjectId::as_str);
        let unknown = |given: &Option<String>, known: BTreeSet<&str>| {
            let given = given.as_deref()?;
            (!known.contains(given) && !known.is_empty()).then(|| listed(known.into_iter()))
        };
        let users = unknown(&self.user, users.collect()).map(|known| format!("users: {known}"));
        let projects =
            || unknown(&self.project, projects.collect()).map(|known| format!("projects: {known}"));
        users.or_else(projects)
    }
}

/// Most names in a message.
const NAMES_MAX: usize = 12;

/// Names in a message: `n0, n1 and 14 more`.
pub(crate) fn listed(names: impl Iterator<Item = impl ToString>) -> String {
    let mut names: Vec<String> = names.map(|name| name.to_string()).collect();
    let more = names.len().saturating_sub(NAMES_MAX);
    names.truncate(NAMES_MAX);
    let text = names.join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use wattle_testkit as testkit;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        filter: Filter,
    }

    fn filter(words: &[&str]) -> Result<Filter, clap::Error> {
        Line::try_parse_from([&["jobs"], words].concat()).map(|line| line.filter)
    }

    #[test]
    fn a_job_meets_every_condition() {
        let mut record = testkit::job_record(testkit::job_spec("a", 1), JobPhase::Running);
        record.spec.user = Some("ada".to_owned());
        record.spec.project = ProjectId::new("vision").ok();
        record.placement = Some(testkit::placement([("n1", [0])]));
        record.ran_on = [testkit::node("n0")].into();
        let keeps = |words: &[&str]| filter(words).unwrap().keeps(&record);
        assert!(keeps(&[]) && keeps(&["--user", "ada"]) && !keeps(&["--user", "eve"]));
        assert!(keeps(&["--project", "vision"]) && !keeps(&["--project", "speech"]));
        assert!(keeps(&["--phase", "queued", "--phase", "running"]));
        assert!(keeps(&["--state", "running"]) && !keeps(&["--state", "queued"]));
        assert!(!keeps(&["--phase", "queued"]));
        assert!(keeps(&["--node", "n1"]) && keeps(&["--node", "n0"]) && !keeps(&["--node", "n2"]));
        assert!(!keeps(&["--node", "n1", "--user", "eve"]));
    }

    #[test]
    fn phases_are_named_in_the_error() {
        let error = filter(&["--phase", "runing"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let error = error.to_string();
        assert!(error.contains("'--phase <PHASE>': give queued, starting, running"), "{error}");
        let given = |words: &[&str]| {
            let filter = filter(words).unwrap();
            (filter.is_given(), filter.names_ended())
        };
        assert_eq!(given(&[]), (false, false));
        assert_eq!(given(&["--phase", "running"]), (true, false));
        assert_eq!(given(&["--phase", "failed"]), (true, true));
        assert_eq!(given(&["--project", "vision"]), (true, false));
    }

    #[test]
    fn an_unknown_owner_is_answered_with_the_known_ones() {
        let record = |user: &str| {
            let mut record = testkit::job_record(testkit::job_spec("a", 1), JobPhase::Running);
            record.spec.user = Some(user.to_owned());
            record
        };
        let records = [record("bob"), record("ada"), record("bob")];
        let owners = |words: &[&str]| filter(words).unwrap().owners(records.iter());
        assert_eq!(owners(&["--user", "eve"]).as_deref(), Some("users: ada, bob"));
        assert_eq!(owners(&["--user", "ada"]), None, "another condition excludes its jobs");
        assert_eq!(owners(&["--project", "vision"]), None, "no job names a project");
        assert_eq!(listed(0..14), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more");
    }
}
