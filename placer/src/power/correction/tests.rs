//! The correction on virtual time, with jobs of known power.

use super::*;
use wattle_common::Power;
use wattle_common::rng::Stream;

const NODE: NodeKey = NodeKey(0);
/// The predicted power of each job above idle, W.
const PREDICTED_W: f64 = 200.0;

/// One job on one node, whose GPU obeys its cap: the prediction times the factor, where that is below 1.
struct Bench {
    correction: PowerCorrection,
    second: u64,
    setting: GpuSetting,
    nodes: usize,
    predicted_w: f64,
}

impl Bench {
    fn new() -> Self {
        Self {
            correction: PowerCorrection::default(),
            second: 0,
            setting: GpuSetting::DEFAULT,
            nodes: 1,
            predicted_w: PREDICTED_W,
        }
    }

    fn factor(&self) -> f64 {
        self.correction.factors().of(7)
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_s(self.second)
    }

    /// A reading as the profiler sends it; returns the power that the GPU drew.
    fn reads(&mut self, measured_w: f64, is_at_cap: bool) {
        let from = self.now();
        self.second += 1;
        self.correction.measured(&JobReading {
            arrival: 7,
            node: NODE,
            nodes: self.nodes,
            gpus: 1,
            setting: self.setting,
            span: ReadSpan::unchanged(from, self.now()),
            measured_w,
            predicted_w: self.predicted_w,
            is_correctable: true,
            is_at_cap,
            at_caps: None,
        });
        self.correction.look(self.now(), |_, _| true);
    }

    /// One second of a job that would draw this much; returns what it drew under its cap.
    fn runs(&mut self, wants_w: f64) -> f64 {
        let cap_w = self.predicted_w * self.factor().min(1.0);
        let drawn_w = wants_w.min(cap_w);
        self.reads(drawn_w, drawn_w >= 0.99 * cap_w);
        drawn_w
    }
}

#[test]
fn an_exact_model_is_not_corrected() {
    let mut bench = Bench::new();
    for off_w in [0.0, 1.0, -1.0, 0.5].into_iter().cycle().take(600) {
        bench.reads(PREDICTED_W + off_w, true);
        assert!(bench.correction.factors().is_empty(), "{}", bench.second);
        assert_eq!(bench.correction.changes_at(), None);
    }
}

#[test]
fn a_model_that_is_too_high_leaves_at_most_3_percent_after_ten_seconds() {
    let mut bench = Bench::new();
    let true_w = PREDICTED_W / 1.15;
    let first = (1..).find(|_| {
        bench.runs(true_w);
        bench.factor() < 1.0
    });
    assert_eq!(first, Some(10), "the settling time and the time of measurement");
    for _ in 0..3_600 {
        assert!(bench.runs(true_w) >= true_w, "the cap does not slow the job");
        let unused = 1.0 - true_w / (PREDICTED_W * bench.factor());
        assert!((0.0..0.03).contains(&unused), "{unused} at {} s", bench.second);
    }
}

#[test]
fn a_model_that_is_too_low_never_draws_above_its_plan() {
    let mut bench = Bench::new();
    for _ in 0..600 {
        let drawn_w = bench.runs(PREDICTED_W / 0.85);
        assert!(drawn_w <= PREDICTED_W, "the cap holds");
        assert!(bench.correction.factors().is_empty(), "a job at its cap proves nothing");
    }
}

/// Where its peaks are cut, a GPU draws less than its cap. Without this rule its cap would fall again and again.
#[test]
fn a_cap_that_cuts_peaks_is_not_lowered() {
    let mut bench = Bench::new();
    for _ in 0..600 {
        bench.reads(0.93 * PREDICTED_W * bench.factor(), true);
        assert!(bench.correction.factors().is_empty(), "{}", bench.second);
    }
}

#[test]
fn power_above_a_cap_counts_within_ten_seconds() {
    let mut bench = Bench::new();
    for _ in 0..10 {
        bench.reads(1.15 * PREDICTED_W, true);
    }
    assert!((bench.factor() - 1.15).abs() < 1e-9);
    for _ in 0..120 {
        bench.reads(2.0 * PREDICTED_W, true);
    }
    assert!((bench.factor() - FACTOR_MOST).abs() < 1e-9, "bounded");
}

#[test]
fn noise_widens_the_margin_and_releases_no_job() {
    let mut bench = Bench::new();
    let mut noise = Stream::new(1, "power");
    let (mut changes, mut last, mut unused) = (0, 1.0, 0.0);
    for _ in 0..3_600 {
        bench.runs(0.8 * PREDICTED_W * (1.0 + 0.01 * noise.normal()));
        changes += i32::from((bench.factor() - last).abs() > 0.0);
        last = bench.factor();
        if bench.second > 60 {
            assert!(bench.factor() < 1.0, "released at {} s", bench.second);
            unused += 1.0 - 0.8 / bench.factor();
        }
    }
    assert!(unused / 3_540.0 < 0.06, "{unused}");
    assert!(changes < 40, "{changes} changes in an hour");
}

#[test]
fn a_job_before_its_training_is_bounded_and_released_when_it_begins() {
    let mut bench = Bench::new();
    for _ in 0..60 {
        bench.runs(0.1 * PREDICTED_W);
    }
    assert!((bench.factor() - FACTOR_LEAST).abs() < 1e-9);
    let began = bench.second;
    while bench.factor() < 1.0 {
        let drawn_w = bench.runs(PREDICTED_W);
        assert!(drawn_w <= FACTOR_LEAST * PREDICTED_W + 1e-9, "the lowered cap holds until then");
        assert!(bench.second - began <= 3);
    }
    // It rests again, and its factor does not fall at once.
    let released = bench.second;
    while bench.second < released + HELD_FOR.as_secs() - 1 {
        bench.runs(0.1 * PREDICTED_W);
        assert!(bench.correction.factors().is_empty(), "held at {} s", bench.second);
    }
    bench.runs(0.1 * PREDICTED_W);
    assert!(bench.factor() < 1.0);
}

#[test]
fn a_silent_profiler_returns_the_factor_to_the_prediction() {
    let mut bench = Bench::new();
    for _ in 0..20 {
        bench.runs(0.8 * PREDICTED_W);
    }
    assert!(bench.factor() < 1.0);
    let at = |seconds: u64| Timestamp::from_s(20 + seconds);
    bench.correction.look(at(5), |_, _| true);
    assert!(bench.factor() < 1.0);
    bench.correction.look(at(6), |_, _| true);
    assert!(bench.correction.factors().is_empty());
    // It reports again: measured again.
    bench.second = 60;
    for _ in 0..9 {
        bench.runs(0.8 * PREDICTED_W);
        assert!(bench.correction.factors().is_empty());
    }
    bench.runs(0.8 * PREDICTED_W);
    assert!(bench.factor() < 1.0);
}

#[test]
fn one_silent_node_of_two_is_enough() {
    let mut bench = Bench::new();
    bench.nodes = 2;
    for _ in 0..60 {
        bench.runs(0.8 * PREDICTED_W);
        assert!(bench.correction.factors().is_empty(), "the other node was never measured");
    }
}

#[test]
fn the_node_with_the_highest_power_counts() {
    let mut correction = PowerCorrection::default();
    for second in 0..30 {
        for (node, measured_w) in [(NodeKey(0), 140.0), (NodeKey(1), 180.0)] {
            correction.measured(&JobReading {
                arrival: 1,
                node,
                nodes: 2,
                gpus: 4,
                setting: GpuSetting::DEFAULT,
                span: ReadSpan::unchanged(Timestamp::from_s(second), Timestamp::from_s(second + 1)),
                measured_w,
                predicted_w: 200.0,
                is_correctable: true,
                is_at_cap: false,
                at_caps: None,
            });
        }
    }
    assert!((correction.factors().of(1) - 0.92).abs() < 1e-9);
}

#[test]
fn an_ended_job_and_a_lost_node_leave_nothing() {
    let mut bench = Bench::new();
    for _ in 0..20 {
        bench.runs(0.8 * PREDICTED_W);
    }
    let now = bench.now();
    bench.correction.look(now, |_, node| node != NODE);
    assert!(bench.correction.factors().is_empty());
    assert_eq!(bench.correction.measured_jobs(), 0);
}

#[test]
fn a_cap_that_was_just_lowered_is_no_error() {
    let mut bench = Bench::new();
    for _ in 0..30 {
        bench.runs(PREDICTED_W);
    }
    bench.setting.cap_mw = Some(Power::from_w(150));
    bench.predicted_w = 0.6 * PREDICTED_W;
    for _ in 0..2 {
        bench.reads(PREDICTED_W, true);
    }
    for _ in 0..60 {
        bench.runs(PREDICTED_W);
        assert!(bench.correction.factors().is_empty(), "{}", bench.factor());
    }
}

#[test]
fn a_factor_lasts_until_the_power_of_new_settings_is_measured() {
    let mut bench = Bench::new();
    for _ in 0..30 {
        bench.runs(0.8 * PREDICTED_W);
    }
    let before = bench.factor();
    bench.setting.cap_mw = Some(Power::from_w(150));
    for _ in 0..9 {
        bench.reads(0.9 * PREDICTED_W, false);
        assert!((bench.factor() - before).abs() < 1e-9);
    }
    bench.reads(0.9 * PREDICTED_W, false);
    assert!((bench.factor() - 0.92).abs() < 1e-9);
}

#[test]
fn a_new_prediction_takes_effect_with_the_next_reading() {
    let mut bench = Bench::new();
    for _ in 0..30 {
        bench.runs(0.8 * PREDICTED_W);
    }
    bench.predicted_w = 0.8 * PREDICTED_W;
    bench.reads(0.8 * PREDICTED_W, false);
    assert!(bench.correction.factors().is_empty());
}

#[test]
fn an_exceeded_limit_releases_its_jobs_at_once() {
    let mut bench = Bench::new();
    for _ in 0..30 {
        bench.runs(0.8 * PREDICTED_W);
    }
    let now = bench.now();
    bench.correction.exceeded(now, 0.01, |node| node == NodeKey(1));
    assert!(bench.factor() < 1.0, "a limit of other nodes");
    bench.correction.exceeded(now, 0.01, |node| node == NODE);
    assert!(bench.correction.factors().is_empty());
}

#[test]
fn one_reading_of_constant_power_states_when_the_factor_changes() {
    let mut bench = Bench::new();
    let reading = |from: u64, until: u64| JobReading {
        arrival: 7,
        node: NODE,
        nodes: 1,
        gpus: 1,
        setting: GpuSetting::DEFAULT,
        span: ReadSpan::unchanged(Timestamp::from_s(from), Timestamp::from_s(until)),
        measured_w: 0.8 * PREDICTED_W,
        predicted_w: PREDICTED_W,
        is_correctable: true,
        is_at_cap: false,
        at_caps: None,
    };
    bench.correction.measured(&reading(100, 100));
    assert_eq!(bench.correction.changes_at(), Some(Timestamp::from_s(110)));
    bench.correction.measured(&reading(100, 110));
    assert!((bench.factor() - 0.82).abs() < 1e-9);
    assert_eq!(bench.correction.changes_at(), None);
}

#[test]
fn readings_of_any_interval_correct_and_fade_after_two_of_them() {
    for interval_s in [1, 2, 6, 100] {
        let mut correction = PowerCorrection::default();
        let mut now = Timestamp::from_s(1_000);
        let silent = silent_after(Duration::from_secs(interval_s));
        assert_eq!(silent.as_secs(), (2 * interval_s).max(5));
        let mut readings = 0;
        while correction.factors().is_empty() {
            let from = now;
            now = now + Duration::from_secs(interval_s);
            // Before the last second of the first reading the job had not started.
            let holds_from = now - Duration::from_secs(1);
            let span = ReadSpan { from, until: now, holds_from };
            let measured_w = if readings == 0 { 0.0 } else { 0.8 * PREDICTED_W };
            correction.measured(&JobReading {
                arrival: 7,
                node: NODE,
                nodes: 1,
                gpus: 1,
                setting: GpuSetting::DEFAULT,
                span,
                measured_w,
                predicted_w: PREDICTED_W,
                is_correctable: true,
                is_at_cap: false,
                at_caps: None,
            });
            correction.look(now, |_, _| true);
            readings += 1;
            assert!(readings < 20, "every {interval_s} s");
        }
        let (ratio, margin) = correction.measured_ratio().unwrap();
        assert!((ratio - 0.8).abs() < 1e-9 && (margin - 0.02).abs() < 1e-9, "{ratio} {margin}");
        correction.look(now + silent, |_, _| true);
        assert!(!correction.factors().is_empty(), "the next reading is due");
        correction.look(now + silent + INSTANT, |_, _| true);
        assert!(correction.factors().is_empty(), "every {interval_s} s");
    }
}

/// A GPU of one job that its cap slows, and draws this share of it.
struct Capped {
    bench: Bench,
    cap_w: f64,
}

impl Capped {
    fn new() -> Self {
        Self { bench: Bench::new(), cap_w: PREDICTED_W }
    }

    fn drawn_at(&self, cap_w: f64) -> f64 {
        self.bench.correction.factors().drawn(7).map_or(1.0, |shares| shares.at(cap_w))
    }

    fn drawn(&self) -> f64 {
        self.drawn_at(self.cap_w)
    }

    fn reads(&mut self, seconds: u64, share: Option<f64>) {
        for _ in 0..seconds {
            let from = self.bench.now();
            self.bench.second += 1;
            let at_caps = share.map(|share| CapReading { share, cap_w: self.cap_w });
            self.bench.correction.measured(&JobReading {
                arrival: 7,
                node: NODE,
                nodes: 1,
                gpus: 1,
                setting: self.bench.setting,
                span: ReadSpan::unchanged(from, self.bench.now()),
                measured_w: share.unwrap_or(0.9) * self.cap_w,
                predicted_w: PREDICTED_W,
                is_correctable: true,
                is_at_cap: share.is_some(),
                at_caps,
            });
            self.bench.correction.look(self.bench.now(), |_, _| true);
        }
    }
}

#[test]
fn a_gpu_at_its_cap_counts_with_the_share_that_it_draws() {
    let mut capped = Capped::new();
    capped.reads(5, Some(0.97));
    assert!((capped.drawn() - 1.0).abs() < 1e-9, "three seconds settle, three are measured");
    let at = capped.bench.correction.changes_at();
    assert_eq!(at, Some(Timestamp::from_s(6)));
    capped.reads(1, Some(0.97));
    assert!((capped.drawn() - 0.9705).abs() < 1e-9, "{}", capped.drawn());
    assert!(capped.bench.correction.factors().is_empty(), "its prediction counts");
    // No noise below the least change leads to a plan, and no share is below the least.
    capped.reads(60, Some(0.9695));
    assert!((capped.drawn() - 0.9705).abs() < 1e-9, "{}", capped.drawn());
    capped.reads(60, Some(0.7));
    assert!((capped.drawn() - DRAWN_LEAST).abs() < 1e-9, "{}", capped.drawn());
    // It rises within seconds.
    capped.reads(10, Some(1.0));
    assert!(capped.drawn() > 0.97, "{}", capped.drawn());
}

#[test]
fn a_share_holds_for_higher_caps_and_with_a_margin_for_lower_ones() {
    let mut capped = Capped::new();
    capped.reads(10, Some(0.97));
    for (cap_w, expected) in [(250.0, 0.9705), (190.0, 0.9805), (160.0, 1.0)] {
        assert!((capped.drawn_at(cap_w) - expected).abs() < 1e-9, "{cap_w}");
    }
    capped.cap_w = 160.0;
    capped.bench.setting = GpuSetting { cap_mw: Some(Power::from_w(160)), clock_mhz_max: None };
    capped.reads(10, Some(0.98));
    let shares = [160.0, 190.0, 200.0].map(|cap_w| capped.drawn_at(cap_w));
    assert!((shares[0] - 0.9805).abs() < 1e-9 && (shares[1] - 0.9805).abs() < 1e-9, "{shares:?}");
    assert!((shares[2] - 0.9705).abs() < 1e-9, "what was measured there stays: {shares:?}");
    // No cap draws more than the power that it is for.
    let factors = capped.bench.correction.factors();
    for watts in 100..300 {
        let watts = f64::from(watts);
        let cap_w = factors.drawn(7).unwrap().cap_w(watts);
        let drawn_w = cap_w * capped.drawn_at(cap_w);
        assert!(drawn_w <= watts + 1e-9 && drawn_w > 0.98 * watts, "{watts}: {drawn_w}");
    }
}

#[test]
fn an_excess_takes_the_shares_back_at_once_and_widens_their_margin_for_minutes() {
    let mut capped = Capped::new();
    capped.reads(10, Some(0.96));
    let now = capped.bench.now();
    capped.bench.correction.exceeded(now, 0.01, |_| true);
    assert!((capped.drawn() - 1.0).abs() < 1e-9);
    capped.reads(9, Some(0.96));
    assert!((capped.drawn() - 1.0).abs() < 1e-9);
    capped.reads(2, Some(0.96));
    let wider = capped.drawn();
    assert!((wider - 0.972).abs() < 1e-3, "{wider}");
    capped.reads(1_800, Some(0.96));
    assert!(capped.drawn() < wider - 0.007, "{}", capped.drawn());
}

#[test]
fn a_silent_node_and_one_that_is_not_at_its_caps_count_with_whole_caps() {
    let mut capped = Capped::new();
    capped.reads(10, None);
    assert!((capped.drawn() - 1.0).abs() < 1e-9);
    capped.reads(10, Some(0.96));
    assert!(capped.drawn() < 1.0);
    let silent = capped.bench.now() + SILENT_AFTER_MIN + SETTLING;
    capped.bench.correction.look(silent, |_, _| true);
    assert!((capped.drawn() - 1.0).abs() < 1e-9);
}
