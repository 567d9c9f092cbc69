//! What is wrong with the jobs, the budget and the aim of a cluster, in sentences.
//!
//! Pure functions of the stored values, so that `wattle jobs`, `top` and `doctor`, the web page, and the placer's
//! alarms and metrics agree on what is wrong and on its words. A breach of the aim may be chance: the screens state it
//! once the completion times of jobs show it ([`aim_breached`]), the alarm once it has lasted. What nodes and services report is added in
//! `wattle_view::verdict`.

use std::time::Duration;

use crate::aim::{Baseline, percent};
use crate::budget::Budget;
use crate::duration::span;
use crate::id::JobId;
use crate::job::JobPhase;
use crate::messages::job_record::WAITS;
use crate::messages::{
    AimStatus, BudgetRecord, BudgetStatus, JobRecord, Late, TwinRow, TwinStatus, TwinSums,
};
use crate::time::Timestamp;
use crate::units::Power;

/// Most late jobs that are named.
const LATE_NAMED_MAX: usize = 3;
/// By how much the estimated slowdown may exceed its bound, a share: the controller holds the bound to about this.
const SLOWDOWN_TOLERANCE: f64 = 0.01;
/// Age from which an estimate of the slowdown is out of date: the placer estimates it once a minute.
const AIM_VALID: Duration = Duration::from_secs(900);
/// Length of a day, microseconds.
const DAY_US: u64 = 86_400_000_000;
/// The stages of a planning round that hold jobs back within the limits of the budget.
const LIMITS: [&str; 2] = ["budget", "power limits"];

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something does not work.
    Fault,
    /// It works, and something needs attention.
    Warning,
}

/// Something that an operator should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How grave it is.
    pub level: Level,
    /// The part that it is about: `server`, `services`, `node`, `budget`, `aim`, `jobs`.
    pub about: &'static str,
    /// The service, node, GPU or job.
    pub of: String,
    /// What is wrong: a sentence that names its subject.
    pub text: String,
    /// What to do.
    pub remedy: String,
}

impl Finding {
    /// Something that does not work.
    pub fn fault(
        about: &'static str,
        of: impl ToString,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (of, text, remedy) = (of.to_string(), text.into(), remedy.into());
        Self { level: Level::Fault, about, of, text, remedy }
    }

    /// Something that needs attention.
    pub fn warning(
        about: &'static str,
        of: impl ToString,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, ..Self::fault(about, of, text, remedy) }
    }
}

/// The first finding in words, with the number of the others; `None` without findings. They are in order of
/// severity.
#[must_use]
pub fn headline(findings: &[Finding]) -> Option<String> {
    let (first, others) = findings.split_first()?;
    Some(match others.len() {
        0 => first.text.clone(),
        others => format!("{} (and {others} more)", first.text),
    })
}

/// Puts the gravest findings first; equal ones keep their order.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| finding.level);
}

/// What is stored of a cluster's jobs, budget and aim.
#[derive(Clone, Debug, Default)]
pub struct Stored<'a> {
    /// The jobs that have not ended.
    pub jobs: Vec<&'a JobRecord>,
    /// The budget in force.
    pub budget: Option<&'a BudgetRecord>,
    /// Its consumption.
    pub status: Option<&'a BudgetStatus>,
    /// The state of the energy aim.
    pub aim: Option<&'a AimStatus>,
    /// The sums of the twin.
    pub twin: Option<&'a TwinStatus>,
    /// The present.
    pub now: Timestamp,
}

impl Stored<'_> {
    /// What is wrong, the gravest first.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let budget = self.budget.map(|set| &set.budget);
        let impossible = budget.zip(self.status).and_then(|(b, status)| below_idle(b, status));
        findings.extend(impossible.or_else(|| held_back(&self.jobs)));
        let has_window = budget.is_some_and(Budget::has_window);
        let aim = self.aim.filter(|_| !has_window);
        findings.extend(aim.and_then(|aim| aim_breached(aim, self.twin, self.now)));
        let late = late(self.jobs.iter().copied(), self.now);
        let (named, others) = late.split_at(late.len().min(LATE_NAMED_MAX));
        findings.extend(named.iter().map(|(job, late)| late_finding(job, *late)));
        if !others.is_empty() {
            let jobs = if others.len() == 1 { "job is" } else { "jobs are" };
            findings.push(Finding::warning(
                "jobs",
                "jobs",
                format!("{} more {jobs} late by the deadline", others.len()),
                "`wattle jobs --wide` has the deadline of each job",
            ));
        }
        sort(&mut findings);
        findings
    }
}

/// Kilowatts, rounded to the watt.
fn kw(power: Power) -> f64 {
    power.as_w().round() / 1e3
}

/// No job can start: the idle cluster alone draws more than the budget allows.
#[must_use]
pub fn below_idle(budget: &Budget, status: &BudgetStatus) -> Option<Finding> {
    let idle = status.power_mw_baseline?;
    let limit = budget.power_at(status.at_us).map(|limit| (limit, "the limit is", ""));
    let mean = status.power_mw_budget_mean.filter(|_| budget.has_window());
    let mean = mean.map(|mean| (mean, "the budget allows", " on average"));
    let too_little = [limit, mean].into_iter().flatten().filter(|(power, ..)| *power < idle);
    let limits: Vec<String> =
        too_little.map(|(power, what, how)| format!("{what} {} kW{how}", kw(power))).collect();
    let limits = (!limits.is_empty()).then(|| limits.join(", "))?;
    let text = format!("no job can start: the idle cluster draws {} kW, but {limits}", kw(idle));
    let remedy = "raise the budget (`wattle budget set`), remove it (`wattle budget clear`), or let unused nodes \
                  sleep";
    Some(Finding::fault("budget", "budget", text, remedy))
}

/// No job runs, because the limits of the budget hold the queued jobs back.
fn held_back(jobs: &[&JobRecord]) -> Option<Finding> {
    let queued = jobs.iter().filter(|record| record.phase == JobPhase::Queued);
    if jobs.iter().any(|record| record.phase.has_gpus()) {
        return None;
    }
    let reasons: Vec<_> = queued.clone().filter_map(|record| record.reasons.last()).collect();
    let is_limit = |stage: &Option<String>| stage.as_deref().is_some_and(|s| LIMITS.contains(&s));
    // Of many jobs the placer keeps only the first one's numbers current; the others' may be of an earlier budget.
    let newest = reasons.iter().rev().max_by_key(|reason| reason.at_us)?;
    if !reasons.iter().all(|reason| reason.decision == WAITS && is_limit(&reason.stage)) {
        return None;
    }
    let jobs = match queued.count() {
        1 => "1 queued job".to_owned(),
        jobs => format!("{jobs} queued jobs"),
    };
    let text = format!("no job runs: the budget holds {jobs} back: {}", newest.reason);
    let remedy =
        "`wattle budget show` has the spending; wait for the next window, or raise the budget";
    Some(Finding::warning("budget", "budget", text, remedy))
}

/// As [`aim_exceeded`], where the completion times of the jobs of this and the last day show it: the estimate of few jobs
/// is chance. Relative to the time aim there are no such times, and the estimate alone decides.
#[must_use]
pub fn aim_breached(aim: &AimStatus, twin: Option<&TwinStatus>, now: Timestamp) -> Option<Finding> {
    let Some(baseline) = aim.baseline else { return aim_exceeded(aim, now) };
    let twin = twin.filter(|twin| twin.baseline == baseline)?;
    let today = now.as_us() / DAY_US;
    let is_shown = |exceeded: &Exceeded<'_>| {
        let is_of = |row: &&TwinRow| {
            let project = row.project.as_ref().or(row.user.as_ref());
            row.day + 1 >= today
                && exceeded.project.is_none_or(|of| project.is_some_and(|name| name == of))
        };
        let mut sums = TwinSums::default();
        twin.rows.iter().filter(is_of).for_each(|row| sums += row.sums);
        sums.is_later_than(exceeded.bound)
    };
    exceeded(aim, now).find(is_shown).map(|exceeded| exceeded.finding(aim))
}

/// The estimated slowdown of all jobs, or of those of a project, exceeds the bound of the energy aim.
#[must_use]
pub fn aim_exceeded(aim: &AimStatus, now: Timestamp) -> Option<Finding> {
    exceeded(aim, now).next().map(|exceeded| exceeded.finding(aim))
}

/// A bound of the energy aim that its estimate exceeds.
#[derive(Clone, Copy)]
struct Exceeded<'a> {
    /// The project whose bound it is; absent: that of all jobs.
    project: Option<&'a str>,
    slowdown: f64,
    bound: f64,
}

/// The exceeded bounds: that of all jobs first.
fn exceeded(aim: &AimStatus, now: Timestamp) -> impl Iterator<Item = Exceeded<'_>> {
    let all = aim.slowdown().map(|slowdown| Exceeded {
        project: None,
        slowdown,
        bound: aim.max_slowdown,
    });
    let projects = aim.projects.iter().filter_map(move |of| {
        let (slowdown, bound) = (of.slowdown()?, aim.max_project_slowdown?);
        Some(Exceeded { project: Some(of.project.as_str()), slowdown, bound })
    });
    let is_current = now.since(aim.at_us) <= AIM_VALID;
    all.into_iter().chain(projects).filter(move |exceeded| {
        is_current && exceeded.slowdown > exceeded.bound + SLOWDOWN_TOLERANCE
    })
}

impl Exceeded<'_> {
    fn finding(self, aim: &AimStatus) -> Finding {
        let (slowdown, bound) = (percent(self.slowdown), percent(self.bound));
        let reference = aim.baseline.map_or("the time aim", Baseline::name);
        let (jobs, limit) = match self.project {
            Some(project) => (format!("jobs of {project}"), "the bound on each project"),
            None => ("jobs".to_owned(), "the bound"),
        };
        let text = format!(
            "{jobs} complete {slowdown} % later on average than under {reference}, by estimate, and {limit} is \
             {bound} %"
        );
        let remedy = "`wattle budget show` has the price, which falls until the bound holds; at price 0 the placer \
                  cannot do more: raise the bound or lower the load";
        Finding::warning("aim", "aim", text, remedy)
    }
}

/// The late jobs that have not ended: those past their deadline first, and the latest of them first.
#[must_use]
pub fn late<'r>(
    records: impl IntoIterator<Item = &'r JobRecord>,
    now: Timestamp,
) -> Vec<(&'r JobId, Late)> {
    let open = records.into_iter().filter(|record| !record.phase.is_final());
    let mut late: Vec<(&JobId, Late)> =
        open.filter_map(|record| Some((&record.spec.job, record.late(now)?))).collect();
    late.sort_by(|(a, late_a), (b, late_b)| late_b.cmp(late_a).then_with(|| a.cmp(b)));
    late
}

/// A job that is late.
#[must_use]
pub fn late_finding(job: &JobId, late: Late) -> Finding {
    let text = match late {
        Late::Passed(by) => format!("{job} is {} past its deadline", span(by.as_secs_f64())),
        Late::Predicted(by) => {
            format!("{job} will miss its deadline by {}, by prediction", span(by.as_secs_f64()))
        }
    };
    let remedy = format!(
        "`wattle explain {job}` shows what holds it back; submit it again with a later deadline, a higher \
         priority or more GPUs"
    );
    Finding::warning("jobs", job, text, remedy)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::job::JobOptions;
    use crate::job::options::tests::options;
    use crate::messages::{AimProject, RecordedReason};
    use crate::units::Energy;

    const NOW: Timestamp = Timestamp::from_s(36_000);

    fn record(job: &str, deadline_s: Option<u64>) -> JobRecord {
        let (job, deadline) = (JobId::new(job).ok(), deadline_s.map(Duration::from_secs));
        let options = JobOptions { job, deadline, ..options(&["a"]) };
        let at = Timestamp::EPOCH;
        JobRecord::queued(options.spec(None, 1, at).unwrap(), at)
    }

    fn budget(energy_kwh: Option<f64>, power_kw: Option<f64>) -> Budget {
        Budget::from_human(energy_kwh, None, power_kw, None).unwrap()
    }

    fn status(idle: Option<u64>, mean: Option<u64>) -> BudgetStatus {
        BudgetStatus {
            at_us: Timestamp::EPOCH,
            observed_generation: 0,
            window_from_us: Timestamp::EPOCH,
            window_until_us: Timestamp::EPOCH,
            energy_mj: Energy::ZERO,
            carbon_ug: None,
            overrun_previous: None,
            price: 0.0,
            price_integral: None,
            policy_price: 0.0,
            power_mw_expected: Power::ZERO,
            power_mw_baseline: idle.map(Power::from_w),
            power_mw_budget_mean: mean.map(Power::from_w),
            intensity_mg_per_kwh: None,
            limit_cost: None,
            power_margin: None,
            counted_until_us: BTreeMap::new(),
        }
    }

    fn aim(slowdown: f64) -> AimStatus {
        let delay_s = 1_000.0 * slowdown / (1.0 + slowdown);
        let (at_us, max_slowdown) = (NOW, 0.05);
        AimStatus {
            at_us,
            baseline: Some(Baseline::Backfill),
            max_slowdown,
            present_s: 1_000.0,
            delay_s,
            price: 0.0,
            policy_price: 0.0,
            max_project_slowdown: None,
            projects: Vec::new(),
        }
    }

    /// A twin with this number of jobs, each this share later than its 1000 s there.
    fn twin(day: u64, jobs: u64, later: f64) -> TwinStatus {
        let (all, delay_s) = (jobs as f64, 1_000.0 * later);
        let sums = TwinSums {
            jobs,
            completion_s: all * (1_000.0 + delay_s),
            completion_s_twin: all * 1_000.0,
            delay_square_s2: all * delay_s * delay_s,
            ..TwinSums::default()
        };
        TwinStatus {
            at_us: NOW,
            since_us: Timestamp::EPOCH,
            baseline: Baseline::Backfill,
            waiting: 0,
            running: 0,
            rows: vec![TwinRow { day, user: None, project: None, sums }],
            ahead: Vec::new(),
            corrected_late: 0,
            absences: Vec::new(),
            replayed_at_us: None,
        }
    }

    fn texts(stored: &Stored<'_>) -> Vec<String> {
        stored.findings().into_iter().map(|f| f.text).collect()
    }

    #[test]
    fn a_budget_below_the_idle_draw_is_named() {
        let text = |budget: &Budget, idle, mean| {
            below_idle(budget, &status(idle, mean)).map(|f| f.text).unwrap_or_default()
        };
        let both = budget(Some(5.0), Some(0.1));
        assert_eq!(
            text(&both, Some(450), Some(207)),
            "no job can start: the idle cluster draws 0.45 kW, but the limit is 0.1 kW, the budget allows \
             0.207 kW on average"
        );
        assert_eq!(
            text(&budget(Some(5.0), None), Some(450), Some(207)),
            "no job can start: the idle cluster draws 0.45 kW, but the budget allows 0.207 kW on average"
        );
        assert_eq!(text(&both, None, Some(207)), "", "idle draw not measured yet");
        assert_eq!(text(&budget(Some(50.0), Some(9.0)), Some(450), Some(2_073)), "");
        let limit = budget(None, Some(9.0));
        assert_eq!(text(&limit, Some(450), Some(207)), "", "the mean is of an earlier budget");
    }

    #[test]
    fn jobs_that_a_limit_holds_back_are_named_unless_one_runs() {
        let reason = |stage: &str| RecordedReason {
            stage: Some(stage.to_owned()),
            ..RecordedReason::new(
                NOW,
                "wattle",
                WAITS.to_owned(),
                "the window's budget is spent".to_owned(),
            )
        };
        let mut waiting = record("a", None);
        waiting.reasons.push(reason("budget"));
        let mut other = record("b", None);
        let all = |jobs: &[&JobRecord]| texts(&Stored { jobs: jobs.to_vec(), ..Stored::default() });
        let expected =
            ["no job runs: the budget holds 2 queued jobs back: the window's budget is spent"];
        assert_eq!(all(&[&waiting, &other]), expected);
        let before = NOW - Duration::from_secs(60);
        let old = "with it the site would draw 0.7 kW; at most 0.1 kW is permitted".to_owned();
        other.reasons.push(RecordedReason { at_us: before, reason: old, ..reason("budget") });
        assert_eq!(all(&[&other, &waiting]), expected, "an earlier reason is not the present one");
        let mut running = record("c", None);
        running.enter(JobPhase::Running, NOW);
        assert_eq!(all(&[&waiting, &running]), [""; 0]);
        let mut by_share = record("d", None);
        by_share.reasons.push(reason("quotas and fair shares"));
        assert_eq!(all(&[&waiting, &by_share]), [""; 0], "another cause");
        assert_eq!(all(&[]), [""; 0]);
    }

    #[test]
    fn a_breach_of_the_aim_is_named_while_the_estimate_is_current() {
        let found = |slowdown, now| aim_exceeded(&aim(slowdown), now).map(|f| f.text);
        let expected = "jobs complete 11.05 % later on average than under backfill, by estimate, and the bound is 5 %";
        assert_eq!(found(0.1105, NOW).as_deref(), Some(expected));
        assert_eq!(
            found(0.0599, NOW),
            None,
            "the controller holds the bound to a percentage point"
        );
        assert_eq!(found(0.1105, NOW + Duration::from_secs(1_000)), None, "out of date");
        let (breached, set) = (aim(0.2), budget(Some(500.0), None));
        let (generation, since_us) = (1, Timestamp::EPOCH);
        let set = BudgetRecord { generation, budget: set, since_us, intensity: None };
        let late = twin(0, 20, 0.2);
        let (aim, twin) = (Some(&breached), Some(&late));
        let stored = Stored { aim, twin, now: NOW, ..Stored::default() };
        assert_eq!(texts(&stored).len(), 1);
        let stored = Stored { budget: Some(&set), ..stored };
        assert_eq!(texts(&stored).len(), 0, "the budget takes precedence");
    }

    #[test]
    fn an_estimate_that_completed_jobs_do_not_show_is_not_stated() {
        let aim = aim(0.2);
        let now = NOW + Duration::from_hours(24 * 9);
        let aim = AimStatus { at_us: now, ..aim };
        let stated = |twin: Option<&TwinStatus>| aim_breached(&aim, twin, now).is_some();
        assert!(!stated(None) && !stated(Some(&twin(9, 3, 0.2))), "too few jobs");
        assert!(stated(Some(&twin(9, 20, 0.2))) && stated(Some(&twin(8, 20, 0.2))));
        assert!(!stated(Some(&twin(7, 20, 0.2))), "jobs of earlier days");
        assert!(!stated(Some(&twin(9, 20, 0.04))), "within the bound");
        let other = TwinStatus { baseline: Baseline::Fifo, ..twin(9, 20, 0.2) };
        assert!(!stated(Some(&other)), "the twin of another scheduler");
        let of_time = AimStatus { baseline: None, ..aim };
        assert!(aim_breached(&of_time, None, now).is_some(), "the time aim has no twin");
    }

    #[test]
    fn a_breach_of_a_projects_bound_names_the_project() {
        let of = |project: &str, slowdown: f64| AimProject {
            project: project.to_owned(),
            present_s: 1_000.0 * (1.0 + slowdown),
            delay_s: 1_000.0 * slowdown,
            price: 0.0,
        };
        let projects = vec![of("text", 0.05), of("vision", 0.2)];
        let mut aim = AimStatus { max_project_slowdown: Some(0.1), projects, ..aim(0.0) };
        let stated =
            |aim: &AimStatus, twin: &TwinStatus| aim_breached(aim, Some(twin), NOW).map(|f| f.text);
        let mut completed = twin(0, 20, 0.2);
        assert_eq!(stated(&aim, &completed), None, "the jobs are not of the project");
        completed.rows[0].project = Some("vision".to_owned());
        let expected = "jobs of vision complete 20 % later on average than under backfill, by estimate, and the \
                        bound on each project is 10 %";
        assert_eq!(stated(&aim, &completed).as_deref(), Some(expected));
        (completed.rows[0].project, completed.rows[0].user) = (None, Some("vision".to_owned()));
        assert_eq!(stated(&aim, &completed).as_deref(), Some(expected), "a user without a project");
        assert_eq!(aim.latest_project(), Some(("vision", 0.2)));
        aim.max_project_slowdown = Some(0.3);
        assert_eq!(stated(&aim, &completed), None);
    }

    #[test]
    fn the_latest_jobs_are_named_and_the_others_are_counted() {
        let mut predicted = record("z", Some(40_000));
        predicted.spec.duration_ms_estimate = Some(20_000_000);
        let jobs: Vec<JobRecord> =
            (1..=4).map(|h| record(&format!("j{h}"), Some(36_000 - h * 3_600))).collect();
        let mut ended = record("e", Some(600));
        ended.enter(JobPhase::Finished, NOW);
        let jobs: Vec<&JobRecord> = jobs.iter().chain([&predicted, &ended]).collect();
        let findings = Stored { jobs, now: NOW, ..Stored::default() }.findings();
        let texts: Vec<&str> = findings.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "j4 is 4.0 h past its deadline",
                "j3 is 3.0 h past its deadline",
                "j2 is 2.0 h past its deadline",
                "2 more jobs are late by the deadline",
            ]
        );
        assert_eq!(
            headline(&findings).as_deref(),
            Some("j4 is 4.0 h past its deadline (and 3 more)")
        );
        let alone = Stored { jobs: vec![&predicted], now: NOW, ..Stored::default() };
        let text = "z will miss its deadline by 4.4 h, by prediction";
        assert_eq!(headline(&alone.findings()).as_deref(), Some(text));
        assert_eq!(headline(&[]), None);
    }

    #[test]
    fn the_gravest_finding_is_first() {
        let late = record("a", Some(600));
        let (set, status) = (budget(None, Some(0.1)), status(Some(450), None));
        let (generation, since_us) = (1, Timestamp::EPOCH);
        let set = BudgetRecord { generation, budget: set, since_us, intensity: None };
        let (jobs, aim) = (vec![&late], aim(0.3));
        let stored = Stored {
            jobs,
            budget: Some(&set),
            status: Some(&status),
            aim: Some(&aim),
            twin: Some(&twin(0, 20, 0.3)),
            now: NOW,
        };
        let abouts: Vec<&str> = stored.findings().iter().map(|finding| finding.about).collect();
        assert_eq!(abouts, ["budget", "aim", "jobs"]);
    }
}
