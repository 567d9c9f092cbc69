//! The explanation of a job as text.

use std::collections::BTreeSet;
use std::time::Duration;

use wattle_common::duration::span;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, Prediction, Surface};
use wattle_common::{AdmissionId, Timestamp};

use wattle_view::alternatives::Work;
use wattle_view::measured::Measured;

use super::{LimitEffects, alternatives, decisions, expected, measured};
use crate::job_end;
use crate::quantity::{clock, energy, percent, power};
use wattle_view::job::JobView;
use wattle_view::power_margin;

/// Why a queued job may have no reason.
const NO_REASON: &str =
    "no reason yet: the first queued job has one, and each that a limit holds back";

/// Explains a job: state, request, consumption, predictions, measurements, alternatives, decisions.
pub(super) fn describe(
    view: &JobView,
    surface: Option<&Surface>,
    all_measured: &[Measured],
    prediction: Option<&Prediction>,
    limit: &LimitEffects,
    with_details: bool,
    now: Timestamp,
) -> String {
    let record = &view.record;
    let mut lines = vec![state(record), consumption(view)];
    lines.extend(view.energy_missing().map(|missing| format!("energy not measured: {missing}")));
    lines.push(times(view, now));
    lines.extend(expected::lines(record, now));
    lines.extend(view.stops_unsaved());
    lines.push(request(record));
    lines.push(basis(record, surface, prediction));
    let cost = limit.cost.as_ref().filter(|_| !record.phase.is_final());
    lines.extend(cost.map(|cost| cost.replacen(": ", ":\n", 1)));
    let margin = limit.margin.as_ref().filter(|_| record.phase == JobPhase::Running);
    let correction = margin.and_then(power_margin::correction).unwrap_or_default();
    lines.extend(correction.split("; ").filter(|part| !part.is_empty()).map(str::to_owned));
    lines.extend(other_gpu_types(record, surface));
    lines.extend(restarts(record));
    if record.phase == JobPhase::Queued && record.reasons.is_empty() {
        lines.push(NO_REASON.to_owned());
    }
    if !all_measured.is_empty() {
        lines.push(String::new());
        lines.push("measured, and predicted at its placement:".to_owned());
        lines.extend(measured::words(all_measured));
        lines.push(measured::table(all_measured).fit(0, 80).render(false).trim_end().to_owned());
    } else if record.started_at_us.is_some() {
        lines.push("no complete measurement window of this job".to_owned());
        lines.extend(silence(record, now).map(str::to_owned));
    }
    if let Some(prediction) = prediction {
        let placed = if record.placement.is_some() {
            "its placement"
        } else if record.phase.is_final() {
            "its last placement"
        } else {
            "its request"
        };
        let work = Work::of(record);
        let section = alternatives::section(prediction, &work, placed);
        if !section.is_empty() {
            lines.push(String::new());
            lines.push(format!("alternatives, predicted for {}:", work.words));
            lines.push(section.trim_end().to_owned());
        }
    }
    let decisions = decisions::section(record, with_details);
    if !decisions.is_empty() {
        lines.push(String::new());
        lines.push("decisions:".to_owned());
        lines.extend(decisions);
    }
    let files = files(record);
    if !files.is_empty() {
        lines.push(String::new());
        lines.extend(files);
    }
    lines.retain(|line| line != "-");
    lines.join("\n")
}

/// Where its output and its checkpoints are, one line each.
fn files(record: &JobRecord) -> Vec<String> {
    let paths: BTreeSet<&String> = record.log_paths.iter().collect();
    let mut lines: Vec<String> = paths.into_iter().map(|path| format!("output: {path}")).collect();
    // Its launchers know the whole path, which is in the job's environment.
    if record.spec.checkpoint_signal.is_some() && record.attempt > 0 {
        let folder = AdmissionId::name_of(&record.spec.job, record.admission.as_ref());
        lines.push(format!("checkpoints: checkpoint_dir/{folder} (launcher.toml)"));
    }
    lines
}

/// The state and the placement.
fn state(record: &JobRecord) -> String {
    let mut text = job_end::phase(record);
    if let Some(placement) = record.placement.as_ref().filter(|p| !p.shares.is_empty()) {
        text.push_str(&format!(" on {placement}"));
        if !record.setting.is_default() {
            text.push_str(&format!(", set to {}", record.setting));
        }
    }
    if record.observing {
        text.push_str(", under observation: the placement may still be undone");
    }
    if let Some(error) = &record.error {
        text.push_str(&format!(": {error}"));
    }
    text
}

/// How long a running job without any progress report may be starting up.
const STARTS_WITHIN: Duration = Duration::from_secs(120);

/// A hint on a running job that reports no progress.
fn silence(record: &JobRecord, now: Timestamp) -> Option<&'static str> {
    let since = record.started_at_us.filter(|_| record.phase == JobPhase::Running)?;
    let is_silent = record.step.is_none() && now.since(since) > STARTS_WITHIN;
    is_silent.then_some(
        "it reports no steps, so its speed is not measured and its end not predicted\n\
         (docs/training.md shows how a job reports them)",
    )
}

/// Power, energy, progress and rest; `-` if nothing is known.
fn consumption(view: &JobView) -> String {
    let record = &view.record;
    let mut parts = Vec::new();
    if let Some(drawn) = view.power_mw {
        parts.push(format!("draws {}", power(drawn)));
    }
    if let Some(used) = view.energy_stated(energy) {
        let so_far = if record.phase.is_final() { "" } else { " so far" };
        let is_known = view.energy_mj_total.is_some();
        parts.push(if is_known {
            format!("used {used}{so_far}")
        } else {
            format!("energy {used}")
        });
    }
    if let (Some(done), false) = (view.done, record.phase.is_final()) {
        parts.push(format!("{} done", percent(done)));
    }
    if let Some(rest) = view.rest().filter(|_| view.is_running()) {
        let by = if record.steps_per_s.is_some() { "measured" } else { "predicted" };
        parts.push(format!("{} left at its {by} speed", clock(rest)));
    }
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// Run time and waits over all starts, and the deadline.
fn times(view: &JobView, now: Timestamp) -> String {
    let mut parts = Vec::new();
    parts.extend(view.ran().map(|ran| format!("ran {}", clock(ran))));
    parts.extend(view.waited().map(|waited| format!("waited {}", clock(waited))));
    if view.record.start_count() > 1 {
        parts.push(format!("started {} times", view.record.start_count()));
    }
    parts.extend(view.deadline(now, clock).map(|left| format!("deadline: {left}")));
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// The request.
fn request(record: &JobRecord) -> String {
    let spec = &record.spec;
    let mut text =
        format!("requests {} GPU{}", spec.gpus, if spec.gpus.max == 1 { "" } else { "s" });
    if let Some(gpu_type) = &spec.gpu_type {
        text.push_str(&format!(" of type {gpu_type}"));
    }
    if spec.exclusive {
        text.push_str(", exclusively");
    }
    if spec.priority > 0 {
        text.push_str(&format!(", at priority {}", spec.priority));
    }
    if let Some(deadline) = spec.deadline_at_us {
        let allowed = deadline.since(spec.submitted_at_us).as_secs_f64();
        text.push_str(&format!(", deadline {} after submission", span(allowed)));
    }
    text
}

/// The predictor and its data.
fn basis(record: &JobRecord, surface: Option<&Surface>, prediction: Option<&Prediction>) -> String {
    let own = surface.filter(|_| !record.phase.is_final());
    let found = own
        .map(|s| (&s.predictor, s.windows, &s.basis))
        .or_else(|| prediction.map(|p| (&p.predictor, p.windows, &p.basis)));
    match found {
        Some((predictor, _, Some(basis))) => format!("predicted by {predictor}: {basis}"),
        Some((predictor, windows, None)) if windows > 0 => {
            format!("predicted by {predictor} from {windows} windows of this job")
        }
        Some((predictor, ..)) => {
            format!("predicted by {predictor} from its workload class; no window of this job")
        }
        None if record.phase.is_final() => "it ended without a prediction".to_owned(),
        None => "no prediction yet".to_owned(),
    }
}

/// Its restarts, the stops before it had settled, and the predicted cost of the next restart.
fn restarts(record: &JobRecord) -> Option<String> {
    let cost_s = record.restart_cost_ms.filter(|_| record.attempt > 0)? as f64 / 1e3;
    let mut text = format!("restarts: {}", record.restart_count());
    if record.early_stops > 0 {
        text.push_str(&format!(", {} before it had settled", record.early_stops));
    }
    if let Some(last) = record.restarts.last() {
        text.push_str(&format!("; the last one cost {}", span(last.cost_ms as f64 / 1e3)));
    }
    text.push_str(&format!("; predicted cost of the next: {}", span(cost_s)));
    Some(text)
}

/// The data of the surfaces on other GPU types.
fn other_gpu_types(record: &JobRecord, surface: Option<&Surface>) -> Vec<String> {
    let others = surface.iter().flat_map(|surface| &surface.other_gpu_types);
    others
        .filter(|other| record.spec.gpu_type.is_none() || other.windows > 0)
        .map(|other| {
            let basis = other.basis.as_deref().unwrap_or("no details");
            format!("on {}: {basis}", other.gpu_type)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use wattle_common::messages::{Consequence, JobWindow, RecordedReason, SurfacePoint};
    use wattle_common::{Energy, Power};
    use wattle_testkit as testkit;

    use super::*;
    use wattle_common::messages::LimitCost;
    use wattle_view::Summaries;
    use wattle_view::measured::measured;
    use wattle_view::prediction::current;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_s(s)
    }

    fn surface() -> Surface {
        let capped = |watts, rate| SurfacePoint {
            cap_mw: Some(Power::from_w(watts)),
            gpu_power_w: testkit::estimate(watts as f64 - 4.0, 0.03),
            steps_per_s: Some(testkit::estimate(rate, 0.08)),
            ..testkit::point(2, rate, watts as f64)
        };
        let free = |gpus, rate, watts| SurfacePoint {
            gpu_power_w: testkit::estimate(watts, 0.05),
            steps_per_s: Some(testkit::estimate(rate, 0.1)),
            ..testkit::point(gpus, rate, watts)
        };
        let shared =
            SurfacePoint { neighbours: vec![testkit::workload("bert-b8")], ..free(2, 8.2, 246.0) };
        let points = [
            free(1, 5.6, 208.0),
            free(2, 10.2, 190.0),
            free(4, 17.0, 171.0),
            capped(150, 9.4),
            capped(200, 10.2),
            shared,
        ];
        Surface {
            basis: Some("12 windows of this job".to_owned()),
            ..testkit::surface("t-9", "v100", points)
        }
    }

    fn record(phase: JobPhase) -> JobRecord {
        let mut spec = testkit::job_spec("t-9", 2);
        spec.gpus.max = 4;
        let mut record = JobRecord {
            started_at_us: Some(at(60)),
            step: Some(5_500),
            steps_total: Some(10_000),
            step_at_us: Some(at(600)),
            steps_per_s: Some(10.4),
            energy_mj: Some(Energy::from_j(210_000)),
            log_paths: vec!["/var/log/wattle/jobs/t-9.n0.log".to_owned()],
            reasons: vec![RecordedReason::new(
                at(58),
                "eaco",
                "placed on n0:0,1".to_owned(),
                "free GPUs: its workload has no measurement yet".to_owned(),
            )],
            placement: Some(testkit::placement([("n0", [0, 1])])),
            ..testkit::job_record(spec, phase)
        };
        record.phase = JobPhase::Running;
        record.prediction_placed = current(&record, Some(&surface())).map(Box::new);
        record.phase = phase;
        record
    }

    #[test]
    fn energy_without_a_meter_is_not_known() {
        let record =
            JobRecord { energy_mj: None, unmetered_ms: 60_000, ..record(JobPhase::Running) };
        let text = shown(record, None);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("energy not known, "), "{text}");
        assert_eq!(lines[2], "energy not measured: power and energy are not supported");
        let partly = JobRecord { unmetered_ms: 60_000, ..super::tests::record(JobPhase::Running) };
        let text = shown(partly, None);
        assert!(text.contains("used at least 58.3 Wh so far"), "{text}");
        assert!(text.contains("not supported by some of its GPUs"), "{text}");
    }

    fn window(from: u64) -> JobWindow {
        JobWindow {
            from_us: at(from),
            until_us: at(from + 60),
            gpus: vec![0, 1],
            gpus_total: 2,
            nodes_total: 1,
            cap_mw: Some(Power::from_w(250)),
            clock_mhz_max: None,
            neighbours: Vec::new(),
            steps_per_s: Some(10.6),
            steps_inferred: false,
            power_mw_gpus: Some(Power::from_w(371)),
            ..testkit::job_window("t-9", at(from), at(from + 60))
        }
    }

    fn shown(record: JobRecord, surface: Option<&Surface>) -> String {
        let windows = [window(60), window(120)];
        let all = measured(&windows, record.prediction_placed.as_deref());
        let prediction = current(&record, surface);
        let view = JobView::new(record, &Summaries::new(), at(600));
        let text = describe(
            &view,
            surface,
            &all,
            prediction.as_ref(),
            &LimitEffects::default(),
            false,
            at(600),
        );
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        text
    }

    #[test]
    fn a_job_has_what_a_limit_costs_and_a_running_one_the_correction_of_power() {
        let margin = testkit::power_margin();
        let cost = LimitCost { price_s_per_kwh: 9.0, saved_s_per_kw: Some(240.0) };
        let cost = cost.sentence(Power::from_w(28_000));
        let limit = LimitEffects { margin: Some(margin), cost: Some(cost) };
        let stated = |phase| {
            let view = JobView::new(record(phase), &Summaries::new(), at(600));
            describe(&view, None, &[], None, &limit, false, at(600))
        };
        let sentence = power_margin::correction(&margin).unwrap().replace("; ", "\n");
        assert!(stated(JobPhase::Running).contains(&sentence), "{}", stated(JobPhase::Running));
        let cost =
            "the power limit binds:\n1 kW more would complete jobs about 4 min sooner on average";
        assert!(!stated(JobPhase::Queued).contains("measured power"));
        assert!(
            [JobPhase::Queued, JobPhase::Running]
                .into_iter()
                .all(|phase| stated(phase).contains(cost))
        );
        assert!(!stated(JobPhase::Finished).contains("power limit"));
    }

    #[test]
    fn a_running_job_without_progress_is_named() {
        let silent = |step, now| {
            let record = JobRecord { step, ..record(JobPhase::Running) };
            let view = JobView::new(record, &Summaries::new(), now);
            describe(&view, None, &[], None, &LimitEffects::default(), false, now)
                .contains("it reports no steps")
        };
        assert!(silent(None, at(600)));
        assert!(!silent(None, at(100)) && !silent(Some(1), at(600)));
    }

    #[test]
    fn running_job_is_explained_from_its_surface() {
        expect![[r#"
            t-9 is running on n0:0,1
            used 58.3 Wh so far, 55 % done, 7:12 left at its measured speed
            ran 10:00, waited 0:00
            requests 2..4 GPUs
            predicted by test: 12 windows of this job

            measured, and predicted at its placement:
            speed: 4 % above the prediction, within its 90 % interval
            power: 2 % below the prediction, within its 90 % interval
            CONFIGURATION    TIME  STEPS/s   PREDICTED  W/GPU  PREDICTED
            2 GPUs at 250 W  2:00     10.6  10.2 ±10 %    186   190 ±5 %

            alternatives, predicted for the 4500 steps that remain:
            least energy: at 150 W: 38 s later, -17 % energy
            fastest: 4 GPUs: 3 min sooner, +8 % energy
            CONFIGURATION  STEPS/s  W/GPU  TIME     Wh  AGAINST
            2 GPUs            10.2    190  7:21  46.57  its placement
            4 GPUs            17.0    171  4:24  50.29  3 min sooner, +8 % energy
            at 150 W          9.40    146  7:58  38.83  38 s later, -17 % energy
            at 200 W          10.2    196  7:21  48.04  as fast, +3 % energy
            with bert-b8      8.20    246  9:08         2 min later

            decisions:
            +58 s     placed on n0:0,1
                eaco: free GPUs: its workload has no measurement yet

            output: /var/log/wattle/jobs/t-9.n0.log"#]]
        .assert_eq(&shown(record(JobPhase::Running), Some(&surface())));
    }

    #[test]
    fn a_stop_without_a_checkpoint_is_named() {
        let text = shown(JobRecord { stops_unsaved: 2, ..record(JobPhase::Running) }, None);
        let line = "2 stops without a checkpoint: its work since the checkpoint before was lost";
        assert!(text.lines().any(|one| one == line), "{text}");
    }

    #[test]
    fn the_folder_of_checkpoints_is_that_of_the_submission() {
        let mut record = record(JobPhase::Finished);
        record.spec.checkpoint_signal = Some("SIGUSR1".to_owned());
        let admission = AdmissionId::accepted(at(0), 7);
        let line = format!("\ncheckpoints: checkpoint_dir/t-9.{admission} (launcher.toml)");
        (record.admission, record.attempt) = (Some(admission), 0);
        assert!(!shown(record.clone(), None).contains("checkpoints"), "it has not started");
        record.attempt = 1;
        assert!(shown(record.clone(), None).contains(&line), "{}", shown(record, None));
        record.log_paths.clear();
        let text = shown(record, None);
        assert!(
            text.contains(&format!("\n{line}")),
            "below an empty line, also without output: {text}"
        );
    }

    #[test]
    fn ended_job_is_explained_from_its_record() {
        let mut ended = record(JobPhase::Finished);
        ended.prediction_last = ended.prediction_placed.clone();
        ended.placement = None;
        ended.ended_at_us = Some(at(1_100));
        let text = shown(ended, None);
        assert!(!text.contains("no prediction"), "{text}");
        expect![[r#"
            t-9 has finished
            used 58.3 Wh
            requests 2..4 GPUs
            predicted by test: 12 windows of this job

            measured, and predicted at its placement:
            speed: 4 % above the prediction, within its 90 % interval
            power: 2 % below the prediction, within its 90 % interval
            CONFIGURATION    TIME  STEPS/s   PREDICTED  W/GPU  PREDICTED
            2 GPUs at 250 W  2:00     10.6  10.2 ±10 %    186   190 ±5 %

            alternatives, predicted for its 10000 steps:
            least energy: at 150 W: 83 s later, -17 % energy
            fastest: 4 GPUs: 7 min sooner, +8 % energy
            CONFIGURATION  STEPS/s  W/GPU   TIME     Wh  AGAINST
            2 GPUs            10.2    190  16:20  103.5  its last placement
            4 GPUs            17.0    171   9:48  111.8  7 min sooner, +8 % energy
            at 150 W          9.40    146  17:43   86.3  83 s later, -17 % energy
            at 200 W          10.2    196  16:20  106.8  as fast, +3 % energy
            with bert-b8      8.20    246  20:19         4 min later

            decisions:
            +58 s     placed on n0:0,1
                eaco: free GPUs: its workload has no measurement yet

            output: /var/log/wattle/jobs/t-9.n0.log"#]]
        .assert_eq(&text);
    }

    #[test]
    fn a_stage_that_decided_is_named_in_place_of_the_policy() {
        let limit = "not enough power within the limit of 3.00 kW".to_owned();
        let waits = RecordedReason {
            stage: Some("power limits".to_owned()),
            ..RecordedReason::new(at(300), "eaco", "waits".to_owned(), limit)
        };
        let mut queued = testkit::job_record(testkit::job_spec("t-9", 2), JobPhase::Queued);
        queued.reasons.push(waits);
        let view = JobView::new(queued, &Summaries::new(), at(600));
        let text = describe(&view, None, &[], None, &LimitEffects::default(), false, at(600));
        let decisions = text.split_once("decisions:\n").unwrap().1;
        assert_eq!(
            decisions,
            "+5 min    waits\n    power limits: not enough power within the limit of 3.00 kW"
        );
    }

    #[test]
    fn a_decision_has_its_consequence_and_on_request_its_prices() {
        let mut queued = testkit::job_record(testkit::job_spec("t-9", 2), JobPhase::Queued);
        let (decision, sentence) = ("placed on n0:0".to_owned(), "1 GPU: its share".to_owned());
        queued.reasons.push(RecordedReason {
            consequence: Some(Consequence {
                in_place_of: "2 GPUs".to_owned(),
                end_later_s: Some(600.0),
                ..Consequence::default()
            }),
            details: Some("GPU price 0".to_owned()),
            ..RecordedReason::new(at(300), "wattle", decision, sentence)
        });
        let shown = |with_details| decisions::section(&queued, with_details);
        let sentences = [
            "+5 min    placed on n0:0",
            "    wattle: 1 GPU: its share",
            "    against 2 GPUs: it ends 10 min later",
        ];
        assert_eq!(shown(false), sentences);
        assert_eq!(shown(true), [&sentences[..], &["    details: GPU price 0"]].concat());
    }

    #[test]
    fn queued_job_without_prediction_is_explained() {
        let queued = testkit::job_record(testkit::job_spec("t-9", 2), JobPhase::Queued);
        let view = JobView::new(queued, &Summaries::new(), at(600));
        let text = describe(&view, None, &[], None, &LimitEffects::default(), false, at(600));
        let expected = "t-9 is queued\nwaited 10:00\nrequests 2 GPUs\nno prediction yet\n";
        assert_eq!(text, format!("{expected}{NO_REASON}"));
    }
}
