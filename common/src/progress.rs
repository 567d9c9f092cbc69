//! The line with which a training loop reports its progress.
//!
//! One datagram of `key=value` words to the Unix socket that `WATTLE_PROGRESS` names:
//!
//! ```text
//! job=resnet-1 step=1200 epoch=3 steps_per_epoch=400 steps_total=36000 global_batch=256
//! ```
//!
//! `job` and `step` are required, the other keys optional. Steps count from the job's beginning, over
//! restarts. Unknown keys are ignored, so the protocol can be extended.

use std::fmt;

use crate::id::{IdError, JobId};

/// Longest line accepted, in bytes.
pub const LINE_LEN_MAX: usize = 512;

/// A job's progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The job.
    pub job: JobId,
    /// Steps since the job's beginning.
    pub step: u64,
    /// Completed epochs.
    pub epoch: Option<u32>,
    /// Steps in one epoch.
    pub steps_per_epoch: Option<u64>,
    /// Total number of steps.
    pub steps_total: Option<u64>,
    /// Samples in one step over all the job's GPUs.
    pub global_batch: Option<u32>,
}

/// Why a line is not a progress line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgressError {
    /// Longer than [`LINE_LEN_MAX`].
    #[error("a progress line has at most {LINE_LEN_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// Not UTF-8.
    #[error("a progress line is UTF-8 text")]
    NotText,
    /// A word without `=`.
    #[error("`{0}` is not of the form key=value")]
    NoValue(String),
    /// A value that is not a number.
    #[error("{key}={value}: not a whole number")]
    NotANumber {
        /// The key.
        key: &'static str,
        /// The given value.
        value: String,
    },
    /// An invalid job id.
    #[error("job: {0}")]
    Job(#[from] IdError),
    /// `job` or `step` is missing.
    #[error("`{0}=` is missing")]
    Missing(&'static str),
}

impl Progress {
    /// Parses one line.
    ///
    /// # Errors
    /// [`ProgressError`] names the wrong word.
    pub fn parse(line: &[u8]) -> Result<Self, ProgressError> {
        if line.len() > LINE_LEN_MAX {
            return Err(ProgressError::TooLong(line.len()));
        }
        let line = std::str::from_utf8(line).map_err(|_| ProgressError::NotText)?;
        let (mut job, mut step) = (None, None);
        let (mut epoch, mut steps_per_epoch, mut steps_total) = (None, None, None);
        let mut global_batch = None;
        for word in line.split_ascii_whitespace() {
            let (key, value) =
                word.split_once('=').ok_or_else(|| ProgressError::NoValue(word.to_owned()))?;
            match key {
                "job" => job = Some(JobId::new(value)?),
                "step" => step = Some(number("step", value)?),
                "epoch" => epoch = Some(number("epoch", value)?),
                "steps_per_epoch" => steps_per_epoch = Some(number("steps_per_epoch", value)?),
                "steps_total" => steps_total = Some(number("steps_total", value)?),
                "global_batch" => global_batch = Some(number("global_batch", value)?),
                _ => {}
            }
        }
        Ok(Self {
            job: job.ok_or(ProgressError::Missing("job"))?,
            step: step.ok_or(ProgressError::Missing("step"))?,
            epoch,
            steps_per_epoch: steps_per_epoch.filter(|steps| *steps > 0),
            steps_total: steps_total.filter(|steps| *steps > 0),
            global_batch: global_batch.filter(|batch| *batch > 0),
        })
    }
}

fn number<T: std::str::FromStr>(key: &'static str, value: &str) -> Result<T, ProgressError> {
    value.parse().map_err(|_| ProgressError::NotANumber { key, value: value.to_owned() })
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job={} step={}", self.job, self.step)?;
        if let Some(epoch) = self.epoch {
            write!(f, " epoch={epoch}")?;
        }
        if let Some(steps) = self.steps_per_epoch {
            write!(f, " steps_per_epoch={steps}")?;
        }
        if let Some(steps) = self.steps_total {
            write!(f, " steps_total={steps}")?;
        }
        if let Some(batch) = self.global_batch {
            write!(f, " global_batch={batch}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_name_the_wrong_word() {
        let fails = |line: &str| Progress::parse(line.as_bytes()).unwrap_err().to_string();
        assert_eq!(fails("step=4"), "`job=` is missing");
        assert_eq!(fails("job=a"), "`step=` is missing");
        assert_eq!(fails("job=a step=many"), "step=many: not a whole number");
        assert_eq!(fails("job=a hello"), "`hello` is not of the form key=value");
        assert_eq!(Progress::parse(&[b'x'; 600]), Err(ProgressError::TooLong(600)));
        let ok = Progress::parse(b"job=a step=4 loss=0.3 steps_total=0\n").unwrap();
        assert_eq!((ok.step, ok.steps_total), (4, None));
    }

    proptest! {
        #[test]
        fn display_round_trips(step in any::<u64>(), epoch in prop::option::of(any::<u32>()), per in prop::option::of(1u64..), total in prop::option::of(1u64..), batch in prop::option::of(1u32..)) {
            let progress = Progress { job: JobId::new("j-1").unwrap(), step, epoch, steps_per_epoch: per, steps_total: total, global_batch: batch };
            prop_assert_eq!(Progress::parse(progress.to_string().as_bytes()), Ok(progress));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = Progress::parse(&bytes);
        }
    }
}
