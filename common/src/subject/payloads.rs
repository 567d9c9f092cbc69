//! The payloads of requests and replies, as the services describe their endpoints.

use super::{ROOT, Topic};

impl Topic {
    /// The payloads of a request of this topic and of its reply, as in docs/messages.md; `None`: it is no
    /// request.
    #[must_use]
    pub const fn payloads(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::JobSubmitted => Some(("SubmitJob", "Reply")),
            Self::JobCancelled => Some(("CancelJob", "Reply")),
            Self::JobRequested => Some(("ReadJobs", "JobsReply")),
            Self::PredictorPromoted => Some(("PromotePredictor", "PromoteReply")),
            Self::BudgetSet => Some(("SetBudget", "BudgetReply")),
            Self::EventSet => Some(("EventRequest", "EventReply")),
            Self::EventPlanned => Some(("PlanEvent", "EventPlanReply")),
            Self::SummaryRequested => Some(("ReadSummary", "NodeSummary")),
            Self::OutputRequested => Some(("ReadOutput", "OutputReply")),
            Self::GpuSampled
            | Self::NodeSummarized
            | Self::WindowClosed
            | Self::JobProgressed
            | Self::EnergyMetered
            | Self::SiteMetered
            | Self::SurfaceProposed
            | Self::OrderRecorded => None,
        }
    }

    /// The topic of a subject or of a pattern of subjects.
    #[must_use]
    pub fn of_pattern(pattern: &str) -> Option<Self> {
        let (_, rest) = pattern.strip_prefix(ROOT)?.strip_prefix('.')?.split_once('.')?;
        Self::ALL.into_iter().find(|topic| {
            rest.strip_prefix(topic.token())
                .is_some_and(|ids| ids.is_empty() || ids.starts_with('.'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterId;

    #[test]
    fn payloads_are_those_of_the_page() {
        let page = include_str!("../../../docs/messages.md");
        let cluster = ClusterId::new("main").unwrap();
        for topic in Topic::ALL {
            let row = format!("| `{}` | ", topic.form());
            let row = page.lines().find_map(|line| line.strip_prefix(&row)).unwrap();
            let expected = topic
                .payloads()
                .map(|(request, reply)| format!("`{request}`, answered by `{reply}`"));
            match expected {
                Some(expected) => assert!(row.starts_with(&expected), "{row}"),
                None => assert!(!row.contains("answered by"), "{row}"),
            }
            assert_eq!(Topic::of_pattern(&topic.pattern(&cluster)), Some(topic));
        }
        for other in
            ["", "wattle.v1", "wattle.v1.main", "wattle.v1.main.job.unknown.x", "$SRV.PING"]
        {
            assert_eq!(Topic::of_pattern(other), None, "{other}");
        }
    }
}
