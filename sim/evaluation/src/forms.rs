//! The chosen forms of the response of time to power caps, by GPU type.

use std::collections::BTreeMap;

use serde::Serialize;
use wattle_predictor::method::Method;
use wattle_predictor::model::cap_curve::NAMES;
use wattle_predictor::model::cap_forms::Basis;

use crate::trial::Trial;
use wattle_measurements::reader::FileGpu;

/// Shares of the forms in the time curve of a job with three known caps or more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forms {
    /// File, relative to the named folder.
    pub file: String,
    /// GPU as written in the file, if named.
    pub gpu: Option<String>,
    /// Network that was left out; `None` where all of the file are known.
    pub without: Option<String>,
    /// Source of the shares: `blend`, `equal`, `other_types` or `default`.
    pub basis: &'static str,
    /// Networks with four caps or more.
    pub networks: usize,
    /// Forms with a share above zero, with their shares.
    pub shares: BTreeMap<&'static str, f64>,
    /// Root mean square error of ln t over left-out networks, with equal shares; `None` with fewer than
    /// three networks.
    pub error_equal: Option<f64>,
    /// The same with shares from the other networks.
    pub error_blend: Option<f64>,
}

impl Forms {
    /// Choice of a predictor that does not know the network `without`; `None` for a method without forms.
    pub(crate) fn of(
        method: Method,
        file_gpu: &FileGpu,
        without: Option<&str>,
        trial: &Trial,
    ) -> Option<Self> {
        let choice = trial.cap_forms();
        let shares = NAMES.into_iter().zip(choice.shares).filter(|(_, share)| *share > 0.0);
        (method == Method::Physical).then(|| Self {
            file: file_gpu.file.clone(),
            gpu: file_gpu.gpu.clone(),
            without: without.map(str::to_owned),
            basis: match choice.basis {
                Basis::Default => "default",
                Basis::OtherTypes(_) => "other_types",
                Basis::Equal => "equal",
                Basis::Blend => "blend",
            },
            networks: choice.families,
            shares: shares.collect(),
            error_equal: choice.errors.map(|errors| errors.0),
            error_blend: choice.errors.map(|errors| errors.1),
        })
    }
}
