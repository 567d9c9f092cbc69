//! The twins of the policies, beside the runs of the twins' policies.

use super::{Column, render};
use crate::outcome::{Outcome, PolicyOutcome};

impl Outcome {
    /// The figures of each policy's twin, and those of the run that the twin stands for; empty without twins.
    pub(super) fn twin_table(&self) -> String {
        let of = || self.policies.iter().filter_map(|policy| Some((policy, policy.twin.as_ref()?)));
        let Some((_, first)) = of().next() else { return String::new() };
        let run = self.policies.iter().find(|policy| policy.policy == first.policy);
        let saved = |policy: &PolicyOutcome| {
            let run = run?;
            let before = run.energy_kwh_above_idle;
            (before > 0.0).then(|| 1.0 - policy.energy_kwh_above_idle / before)
        };
        let share = |kwh: f64, before: f64| (before > 0.0).then(|| kwh / before);
        let [twin_mean, run_mean] = Column::times([
            ("mean JCT", of().map(|(_, twin)| twin.jct_s_mean).collect()),
            ("in a run", of().map(|_| run?.jct_s_mean).collect()),
        ]);
        let columns = [
            Column::text("twin of", of().map(|(policy, _)| policy.row_name())),
            twin_mean,
            run_mean,
            Column::percent(
                "saved",
                1,
                of().map(|(_, twin)| share(twin.saved_kwh_above_idle, twin.energy_kwh_above_idle)),
            ),
            Column::percent(
                "+-",
                1,
                of().map(|(_, twin)| share(twin.saved_kwh_error, twin.energy_kwh_above_idle)),
            ),
            Column::percent("in the runs", 1, of().map(|(policy, _)| saved(policy))),
            Column::percent("later", 1, of().map(|(_, twin)| twin.later)),
        ];
        format!(
            "\n{} as twin, from measured work and predictions; energy is above idle\n{}",
            first.policy,
            render(&columns)
        )
    }
}
