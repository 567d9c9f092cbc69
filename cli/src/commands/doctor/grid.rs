//! The grid's providers, from the placer's own report: reachable, credential accepted, age of the values.

use wattle_common::Timestamp;
use wattle_common::duration::span;
use wattle_common::messages::{GridStatus, InUse, SignalStatus};

use super::report::{Finding, Kind};

/// Age of the last successful read above which there is advice though values are still valid, seconds.
const AGE_ADVICE_S: f64 = 7_200.0;

/// The findings, and a line for each signal.
pub(super) fn check(status: &GridStatus, now: Timestamp) -> (Vec<Finding>, Vec<String>) {
    let (mut findings, mut checked) = (Vec::new(), Vec::new());
    for (what, signal) in
        [("carbon intensity", &status.carbon), ("electricity price", &status.price)]
    {
        let Some(signal) = signal else { continue };
        let age_s = signal.read_at_us.map(|at| now.since(at).as_secs_f64());
        let read =
            age_s.map_or_else(|| "never read".to_owned(), |age| format!("read {} ago", span(age)));
        checked.push(format!("{what}: {}; {read}", signal.source()));
        findings.extend(finding(what, signal, age_s));
    }
    (findings, checked)
}

fn finding(what: &str, signal: &SignalStatus, age_s: Option<f64>) -> Option<Finding> {
    let is_old = age_s.is_some_and(|age| age > AGE_ADVICE_S) && signal.read_at_us.is_some();
    if !signal.is_fallback() && !is_old {
        return None;
    }
    let kind = if signal.in_use == InUse::Static { Kind::Problem } else { Kind::Advice };
    let cause = signal.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
    Some(Finding {
        kind,
        about: "grid",
        finding: format!("{what}: {}{cause}", signal.source()),
        remedy: "check [grid] in placer.toml, the credential, and the way from the placer's host to the provider \
                 (docs/grid.md); planning continues meanwhile"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::messages::Origin;

    use super::*;

    #[test]
    fn a_fallback_is_a_finding_with_its_cause() {
        let at = Timestamp::from_s;
        let mut carbon = SignalStatus {
            provider: "watttime PJM".into(),
            accounting: None,
            in_use: InUse::Live,
            since_us: at(0),
            origin: Origin::Forecast,
            read_at_us: Some(at(100)),
            valid_until_us: None,
            error: None,
        };
        let look = |carbon: &SignalStatus, now| {
            let status = GridStatus {
                at_us: at(0),
                observed_generation: 1,
                carbon: Some(carbon.clone()),
                price: None,
                prices: None,
            };
            check(&status, at(now))
        };
        let (findings, checked) = look(&carbon, 400);
        assert_eq!(findings, []);
        assert_eq!(checked, ["carbon intensity: watttime PJM, forecast; read 5 min ago"]);
        assert_eq!(look(&carbon, 90_000).0[0].kind, Kind::Advice, "old");
        carbon.error = Some("https://x refuses the credential (401): renew credential_file".into());
        carbon.in_use = InUse::LastKnown;
        assert_eq!(look(&carbon, 400).0[0].kind, Kind::Advice);
        carbon.in_use = InUse::Static;
        let finding = &look(&carbon, 400).0[0];
        assert_eq!(finding.kind, Kind::Problem);
        assert!(
            finding.finding.contains("static value") && finding.finding.contains("(401)"),
            "{finding:?}"
        );
    }
}
