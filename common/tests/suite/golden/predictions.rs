//! Predicted surfaces, and the predictors behind them.

use super::*;

#[test]
fn surfaces() {
    let estimate = |mean: f64| Estimate { mean, low: mean * 0.9, high: mean * 1.1 };
    let surface = Surface {
        job: job("train-7"),
        admission: None,
        predictor: PredictorId::new("physical").unwrap(),
        at_us: at(121),
        gpu_type: "v100".into(),
        windows: 2,
        basis: None,
        class: Some(workload()),
        utilization_gpu_percent: Some(50.0),
        utilization_memory_percent: Some(33.0),
        memory_mib_max: Some(9_000),
        other_gpu_types: Vec::new(),
        points: vec![SurfacePoint {
            gpus: 2,
            nodes: 1,
            cap_mw: Some(Power::from_w(200)),
            clock_mhz_max: None,
            global_batch: None,
            neighbours: vec![WorkloadId::new("unknown").unwrap()],
            steps_per_s: Some(estimate(10.0)),
            relative_speed: estimate(0.5),
            gpu_power_w: estimate(190.0),
        }],
    };
    check("surface", &surface);
    check_read("surface-probed", &surface);
    check("surface-admission", &Surface { admission: admission(), ..surface.clone() });
    let basis = Some("prior: 3 jobs of resnet50 seen on p100".into());
    let there = Surface { gpu_type: "p100".into(), windows: 0, basis, ..surface.clone() };
    check("surface-gpu-types", &Surface { other_gpu_types: vec![there], ..surface });
}

#[test]
fn predictors() {
    let physical = PredictorId::new("physical").unwrap();
    let champion = Champion { predictor: physical.clone(), since_us: at(9), generation: 0 };
    check("champion", &champion);
    check("champion-generation", &Champion { generation: 2, ..champion });
    let score = |mape_percent| Score { windows: 12, mape_percent, coverage90_percent: 91.5 };
    let status = PredictorStatus {
        name: physical.clone(),
        version: Some("0.1.0".into()),
        at_us: at(130),
        observed_generation: 0,
        state: PredictorState::Silent,
        champion: true,
        error: Some("its service is gone".into()),
        last_active_us: Some(at(121)),
        proposals: 40,
        refused: 1,
        windows_uncovered: 2,
        speed: Scores { prior: None, new_config: Some(score(4.5)), same_config: Some(score(1.25)) },
        power: Scores { prior: Some(score(18.0)), ..Scores::default() },
        latency: Some(Latency { proposals: 39, ms_p50: 12, ms_p90: 9_800 }),
    };
    check("predictor-status", &status);
    let observed = PredictorStatus { observed_generation: 2, ..status };
    check("predictor-status-generation", &observed);
    check("promote-predictor", &PromotePredictor { predictor: physical.clone() });
    let previous = PredictorId::new("python-mean").unwrap();
    let warning = Some("it is silent: its service is gone".into());
    let promoted = |generation| PromoteReply::Promoted {
        predictor: physical.clone(),
        previous: previous.clone(),
        generation,
        warning: warning.clone(),
    };
    check("promote-reply-promoted", &promoted(0));
    check("promote-reply-generation", &promoted(2));
    let error = "no predictor `physicl`; there are: physical, python-mean".into();
    check("promote-reply-refused", &PromoteReply::Refused { error });
}
