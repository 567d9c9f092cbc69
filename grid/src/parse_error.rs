//! Why a provider's answer or a file is refused.

/// Why a provider's answer or a file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not in the format.
    #[error("the answer is not {expected}: {cause}")]
    Format {
        /// The expected format.
        expected: &'static str,
        /// What is wrong.
        cause: String,
    },
    /// For another zone.
    #[error("the answer is for zone `{given}`, not `{wanted}`: correct `zone`")]
    Zone {
        /// The zone of the answer.
        given: String,
        /// The zone of the configuration.
        wanted: String,
    },
    /// In another unit.
    #[error("the unit is `{given}`, expected {expected}")]
    Unit {
        /// The unit of the answer.
        given: String,
        /// The expected ones.
        expected: &'static str,
    },
    /// Without a value.
    #[error("the answer has no value")]
    Empty,
    /// With more values than a series may have.
    #[error("the answer has more than {0} values")]
    TooMany(usize),
    /// A value that is out of range.
    #[error("`{given}` is out of range: {expected}")]
    Value {
        /// The value.
        given: String,
        /// The range.
        expected: &'static str,
    },
    /// A time that cannot be read.
    #[error("`{0}` is not a time with an offset, as 2026-01-31T15:00Z")]
    Time(String),
    /// Values of two series.
    #[error("the answer has two series, of `{0}` and of `{1}`: name a file or a zone with one")]
    TwoSeries(String, String),
    /// Two values for one time.
    #[error("two values for {0}")]
    Overlap(String),
}

impl ParseError {
    pub(crate) fn json(error: &serde_json::Error) -> Self {
        Self::Format { expected: "the provider's JSON", cause: error.to_string() }
    }
}
