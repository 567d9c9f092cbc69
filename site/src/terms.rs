//! The owner's terms of a job, from a comment that begins with [`PREFIX`].
//!
//! ```
//! use wattle_site::Terms;
//! let terms = Terms::parse("wattle: gpus=1..4 signal=USR1 exit=85 slack=4h", 0).unwrap();
//! assert_eq!(terms.checkpoint_signal, Some("SIGUSR1"));
//! assert_eq!(terms.slack_ms, Some(14_400_000));
//! ```

use wattle_common::id::ProjectId;
use wattle_common::job::{Flexibility, GpuRequest, check_signal};
use wattle_common::{Timestamp, WorkloadId};

/// The first word of a comment that is meant for Wattle.
pub const PREFIX: &str = "wattle:";

/// What the owner of a job declares about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Numbers of GPUs that the whole job can use.
    pub gpus: Option<GpuRequest>,
    /// The signal that requests a checkpoint, with `SIG`: the consent that the job is stopped and started
    /// again.
    pub checkpoint_signal: Option<&'static str>,
    /// The exit code after a checkpoint, from 1 to 255.
    pub checkpoint_exit: Option<i32>,
    /// Its workload.
    pub workload: Option<WorkloadId>,
    /// Its project.
    pub project: Option<ProjectId>,
    /// Its deadline.
    pub deadline: Option<Timestamp>,
    /// Total time that it may be deferred, milliseconds.
    pub slack_ms: Option<u64>,
    /// Whether other jobs may share its GPUs.
    pub share: bool,
    /// Whether no job may share its GPUs, whatever the site's rule.
    pub exclusive: bool,
    /// How much slower it may run, per mille.
    pub max_slowdown_permille: Option<u32>,
    /// What it gives up during a grid event.
    pub flexibility: Option<Flexibility>,
}

/// Why a comment is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// A key that does not exist.
    #[error(
        "unknown comment key `{0}`: expected gpus, signal, exit, workload, project, deadline, slack, share, exclusive, max-slowdown, flexibility, event-pause or event-resize"
    )]
    Key(String),
    /// A key that is given twice.
    #[error("comment key `{0}` is given twice")]
    Twice(String),
    /// A value that its key does not accept.
    #[error("comment key `{key}`: invalid value `{value}`; expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The accepted form.
        expected: &'static str,
    },
    /// Two keys that contradict each other.
    #[error("comment keys `{0}` and `{1}` exclude each other")]
    Contradiction(&'static str, &'static str),
    /// A key that needs another one.
    #[error("comment key `{0}` needs `{1}`")]
    Needs(&'static str, &'static str),
}

impl Terms {
    /// The terms in a comment; none in a comment that is not meant for Wattle. `offset_s`: seconds by
    /// which the site's local time is ahead of UTC, for a deadline without a zone.
    ///
    /// # Errors
    /// The key and the accepted form.
    pub fn parse(comment: &str, offset_s: i64) -> Result<Self, TermsError> {
        let mut terms = Self::default();
        let Some(text) = comment.trim_start().strip_prefix(PREFIX) else { return Ok(terms) };
        let mut seen: Vec<&str> = Vec::new();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            if seen.contains(&key) {
                return Err(TermsError::Twice(key.to_owned()));
            }
            seen.push(key);
            terms.set(key, value, word.contains('='), offset_s)?;
        }
        if terms.share && terms.exclusive {
            return Err(TermsError::Contradiction("share", "exclusive"));
        }
        for key in ["event-pause", "event-resize"] {
            if seen.contains(&key) && !seen.contains(&"flexibility") {
                return Err(TermsError::Needs(key, "flexibility"));
            }
        }
        if terms.checkpoint_exit.is_some() && terms.checkpoint_signal.is_none() {
            return Err(TermsError::Needs("exit", "signal"));
        }
        Ok(terms)
    }

    fn set(
        &mut self,
        key: &str,
        value: &str,
        has_value: bool,
        offset_s: i64,
    ) -> Result<(), TermsError> {
        let wrong =
            |expected| TermsError::Value { key: key.to_owned(), value: value.to_owned(), expected };
        let form = |key| match key {
            "gpus" => "N or N..M, as gpus=1..4",
            "signal" => "TERM, USR1, USR2, INT, HUP or CONT",
            "exit" => "an exit code from 1 to 255, as exit=85",
            "workload" | "project" => "1 to 64 letters, digits, - and _",
            "deadline" => "a time as 2026-12-01T08:00, 2026-12-01T08:00Z or 2026-12-01T08:00+01:00",
            "slack" => "a number with s, m, h or d, as slack=4h",
            "max-slowdown" => "a percentage from 0 to 100, as max-slowdown=5%",
            "flexibility" => "a percentage from 0 to 100, as flexibility=25%",
            _ => "no value",
        };
        let wrong = || wrong(form(key));
        match key {
            "gpus" => self.gpus = Some(value.parse().map_err(|_| wrong())?),
            "signal" => self.checkpoint_signal = Some(check_signal(value).map_err(|_| wrong())?),
            "exit" => {
                let code = value.parse().ok().filter(|code| (1..=255).contains(code));
                self.checkpoint_exit = Some(code.ok_or_else(wrong)?);
            }
            "workload" => self.workload = Some(value.parse().map_err(|_| wrong())?),
            "project" => self.project = Some(value.parse().map_err(|_| wrong())?),
            "deadline" => self.deadline = Some(instant(value, offset_s).ok_or_else(wrong)?),
            "slack" => self.slack_ms = Some(milliseconds(value).ok_or_else(wrong)?),
            "max-slowdown" => self.max_slowdown_permille = Some(permille(value).ok_or_else(wrong)?),
            "flexibility" => {
                self.promise().loss_permille = permille(value).ok_or_else(wrong)?;
            }
            "share" | "exclusive" | "event-pause" | "event-resize" if has_value => {
                return Err(wrong());
            }
            "event-pause" => self.promise().may_pause = true,
            "event-resize" => self.promise().may_resize = true,
            "share" => self.share = true,
            "exclusive" => self.exclusive = true,
            _ => return Err(TermsError::Key(key.to_owned())),
        }
        Ok(())
    }

    /// The promise of which a key states a part.
    fn promise(&mut self) -> &mut Flexibility {
        self.flexibility.get_or_insert_default()
    }
}

/// `4h`, `1.5d`: milliseconds.
fn milliseconds(text: &str) -> Option<u64> {
    let unit_s = match text.chars().last()? {
        's' => 1.0,
        'm' => 60.0,
        'h' => 3_600.0,
        'd' => 86_400.0,
        _ => return None,
    };
    let number = decimal(&text[..text.len() - 1])?;
    let span = wattle_common::time::span_s(number * unit_s);
    u64::try_from(span.as_millis()).ok().filter(|ms| *ms > 0)
}

/// `5%`, at most 100 %.
fn permille(text: &str) -> Option<u32> {
    let percent = decimal(text.strip_suffix('%')?)?;
    (percent <= 100.0).then_some((percent * 10.0).round() as u32)
}

/// A decimal number without sign and exponent.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain && text.len() <= 12)
}

/// `2026-12-01T08:00[:00][Z|+01:00]`; without a zone it is in the site's local time, `offset_s` east of UTC.
fn instant(text: &str, offset_s: i64) -> Option<Timestamp> {
    let local = || {
        let offset = jiff::tz::Offset::from_seconds(i32::try_from(offset_s).ok()?).ok()?;
        offset.to_timestamp(text.parse().ok()?).ok()
    };
    // A date without a time is not a deadline.
    let at: jiff::Timestamp = text.contains('T').then(|| text.parse().ok().or_else(local))??;
    u64::try_from(at.as_second()).ok().map(Timestamp::from_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Terms {
        Terms::parse(text, 3_600).unwrap()
    }

    #[test]
    fn every_key_is_read() {
        let terms = parsed(
            "wattle: gpus=2..8 signal=TERM exit=85 workload=resnet50 project=vision \
             deadline=2026-12-01T08:00Z slack=90m exclusive max-slowdown=2.5% event-pause \
             flexibility=12.5%",
        );
        assert_eq!(
            terms,
            Terms {
                gpus: Some(GpuRequest { min: 2, max: 8 }),
                checkpoint_signal: Some("SIGTERM"),
                checkpoint_exit: Some(85),
                workload: Some("resnet50".parse().unwrap()),
                project: Some("vision".parse().unwrap()),
                deadline: Some(Timestamp::from_s(1_796_112_000)),
                slack_ms: Some(5_400_000),
                share: false,
                exclusive: true,
                max_slowdown_permille: Some(25),
                flexibility: Some(Flexibility {
                    loss_permille: 125,
                    may_pause: true,
                    may_resize: false
                }),
            }
        );
        assert!(parsed("wattle: share").share);
        assert_eq!(parsed("a note: gpus=9"), Terms::default());
        assert_eq!(parsed(""), Terms::default());
    }

    #[test]
    fn deadlines_have_a_zone_or_are_local() {
        let at = |text: &str| parsed(&format!("wattle: deadline={text}")).deadline.unwrap();
        assert_eq!(at("2026-12-01T08:00:05Z"), Timestamp::from_s(1_796_112_005));
        assert_eq!(at("2026-12-01T08:00"), Timestamp::from_s(1_796_108_400));
        assert_eq!(at("2026-12-01T08:00-05:30"), Timestamp::from_s(1_796_131_800));
        assert_eq!(at("2000-02-29T00:00Z"), Timestamp::from_s(951_782_400));
    }

    #[test]
    fn spans_have_a_unit() {
        let slack = |text: &str| parsed(&format!("wattle: slack={text}")).slack_ms;
        for (text, seconds) in [("45s", 45), ("90m", 5_400), ("4h", 14_400), ("1.5d", 129_600)] {
            assert_eq!(slack(text), Some(seconds * 1_000), "{text}");
        }
    }

    #[test]
    fn wrong_terms_are_refused_with_the_accepted_form() {
        for (text, expected) in [
            ("gpu=1", "unknown comment key `gpu`"),
            ("gpus=4..1", "gpus=1..4"),
            ("signal=KILL", "USR2"),
            ("signal=TERM exit=0", "from 1 to 255"),
            ("exit=85", "needs `signal`"),
            ("workload=a.b", "letters"),
            ("deadline=2026-02-30T08:00", "2026-12-01T08:00Z"),
            ("deadline=2026-02-20", "2026-12-01T08:00Z"),
            ("deadline=2026-02-20T24:00", "2026-12-01T08:00Z"),
            ("deadline=2026-02-20T08:60Z", "2026-12-01T08:00Z"),
            ("deadline=1969-12-31T08:00Z", "2026-12-01T08:00Z"),
            ("deadline=2026-02-20T08:00+0a:00", "2026-12-01T08:00Z"),
            ("slack=4", "slack=4h"),
            ("slack=0h", "slack=4h"),
            ("slack=1e9d", "slack=4h"),
            ("slack=h", "slack=4h"),
            ("max-slowdown=5", "5%"),
            ("flexibility=101%", "a percentage from 0 to 100"),
            ("flexibility=0.2", "as flexibility=25%"),
            ("event-resize", "needs `flexibility`"),
            ("flexibility=5% event-pause=no", "no value"),
            ("share=yes", "no value"),
            ("share exclusive", "exclude each other"),
            ("share share", "twice"),
        ] {
            let error = Terms::parse(&format!("wattle: {text}"), 0).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
