//! The errors of expected starts and ends.

use super::{Column, render};
use crate::outcome::{ExpectedErrors, Outcome};

impl Outcome {
    /// The errors by policy and forecast; empty where no forecasts were made.
    pub(super) fn expected_table(&self) -> String {
        let of =
            || self.policies.iter().filter_map(|policy| Some((policy, policy.expected.as_ref()?)));
        let rows: Vec<(String, &str, &ExpectedErrors)> = of()
            .flat_map(|(policy, expected)| {
                expected.rows().map(|(name, errors)| (policy.row_name(), name, errors))
            })
            .filter(|(_, _, errors)| errors.forecasts > 0)
            .collect();
        if rows.is_empty() {
            return String::new();
        }
        let [median, p90] = Column::times([
            ("median error", rows.iter().map(|(.., errors)| errors.error_s_median).collect()),
            ("90 % within", rows.iter().map(|(.., errors)| errors.error_s_p90).collect()),
        ]);
        let columns = [
            Column::text("expected", rows.iter().map(|(policy, ..)| policy.clone())),
            Column::text("forecast", rows.iter().map(|(_, name, _)| (*name).to_owned())),
            Column::text("number", rows.iter().map(|(.., errors)| errors.forecasts.to_string())),
            median,
            p90,
            Column::percent("coverage", 0, rows.iter().map(|(.., errors)| errors.coverage)),
        ];
        format!(
            "\nexpected starts of jobs that wait, and ends; coverage is of the 90 % intervals, and by time limits of the \
             instants that are not too early\n{}",
            render(&columns)
        )
    }
}
