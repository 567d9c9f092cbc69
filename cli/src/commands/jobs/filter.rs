//! Which jobs `wattle jobs` lists.

use clap::Args;
use wattle_common::NodeId;
use wattle_common::job::JobPhase;
use wattle_common::messages::JobRecord;

/// Conditions that each listed job meets.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only the jobs of this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Only jobs in this phase, also an ended one; may be repeated
    #[arg(long = "phase", value_name = "PHASE", value_parser = phase)]
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
    /// Whether it has a condition.
    pub(crate) const fn is_given(&self) -> bool {
        self.user.is_some() || !self.phases.is_empty() || self.node.is_some()
    }

    /// Whether it names the phase of an ended job.
    pub(crate) fn names_ended(&self) -> bool {
        self.phases.iter().any(|phase| phase.is_final())
    }

    /// Whether a job meets every condition.
    pub(crate) fn keeps(&self, record: &JobRecord) -> bool {
        let is_users = |user: &String| record.spec.user.as_ref() == Some(user);
        let is_there = |node: &NodeId| record.output_nodes().contains(node);
        self.user.as_ref().is_none_or(is_users)
            && (self.phases.is_empty() || self.phases.contains(&record.phase))
            && self.node.as_ref().is_none_or(is_there)
    }
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
        record.placement = Some(testkit::placement([("n1", [0])]));
        record.ran_on = [testkit::node("n0")].into();
        let keeps = |words: &[&str]| filter(words).unwrap().keeps(&record);
        assert!(keeps(&[]) && keeps(&["--user", "ada"]) && !keeps(&["--user", "eve"]));
        assert!(keeps(&["--phase", "queued", "--phase", "running"]));
        assert!(!keeps(&["--phase", "queued"]));
        assert!(keeps(&["--node", "n1"]) && keeps(&["--node", "n0"]) && !keeps(&["--node", "n2"]));
        assert!(!keeps(&["--node", "n1", "--user", "eve"]));
    }

    #[test]
    fn phases_are_named_in_the_error() {
        let error = filter(&["--phase", "runing"]).unwrap_err().to_string();
        assert!(error.contains("'--phase <PHASE>': give queued, starting, running"), "{error}");
        let given = |words: &[&str]| {
            let filter = filter(words).unwrap();
            (filter.is_given(), filter.names_ended())
        };
        assert_eq!(given(&[]), (false, false));
        assert_eq!(given(&["--phase", "running"]), (true, false));
        assert_eq!(given(&["--phase", "failed"]), (true, true));
    }
}
