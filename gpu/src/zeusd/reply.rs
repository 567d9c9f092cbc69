//! What a response of zeusd states: done, refused, not supported, or a failure.
//!
//! zeusd answers 200 without a body, or with an error: as text, as `{"error": TEXT}`, or as
//! `{"errors": {INDEX: TEXT}}`. The status is 400 for a refused value, 401 and 403 for missing rights, 404
//! for a group of verbs that is switched off, 500 for other errors of NVML. NVML's own errors are
//! recognised by their texts, which have no code.

use std::collections::BTreeMap;
use std::io;

use serde::Deserialize;

/// Most header lines of a response.
const HEADERS_MAX: usize = 64;
/// Most characters of an error's text that are reported.
const TEXT_LEN_MAX: usize = 300;

/// NVML's text for an operation that the GPU does not support.
const NOT_SUPPORTED: &str = "not available on the target device";
/// NVML's text for a lost GPU.
const LOST: &str = "fell off the bus";

/// A response.
#[derive(Debug)]
pub(super) struct Reply {
    status: u16,
    /// The error's text, and whether zeusd itself wrote it.
    text: String,
    is_json: bool,
}

/// What a response states.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    Unsupported,
    Lost,
    Refused(String),
    Failed(String),
}

/// The JSON form of an error.
#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    errors: BTreeMap<String, String>,
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

impl Reply {
    /// Reads a response from the bytes received so far; `None`: it is not complete.
    ///
    /// # Errors
    /// `InvalidData` if it is not HTTP, or has ended early.
    pub(super) fn read(received: &[u8], ended: bool) -> io::Result<Option<Self>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let head = match response.parse(received) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) if ended => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(invalid(&format!("the response is not HTTP: {error}"))),
        };
        let status = response.code.ok_or_else(|| invalid("the response has no status"))?;
        let len = response.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
        let len = len.and_then(|h| str::from_utf8(h.value).ok()?.trim().parse::<usize>().ok());
        let body = received.get(head..).unwrap_or_default();
        let body = match len {
            Some(len) if body.len() < len && !ended => return Ok(None),
            None if !ended => return Ok(None),
            Some(len) => body.get(..len).unwrap_or(body),
            None => body,
        };
        let json = serde_json::from_slice::<ErrorBody>(body).ok();
        let is_json = json.is_some();
        let text = match json {
            Some(ErrorBody { error, errors }) => {
                error.into_iter().chain(errors.into_values()).collect::<Vec<_>>().join("; ")
            }
            None => String::from_utf8_lossy(body).into_owned(),
        };
        Ok(Some(Self { status, text, is_json }))
    }

    /// Whether zeusd does not know the path. A group of verbs that is switched off is answered in JSON.
    pub(super) fn is_unknown_route(&self) -> bool {
        self.status == 404 && !self.is_json
    }

    /// The error's text in one line of limited length.
    fn text(&self) -> String {
        let text: String = self
            .text
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .chars()
            .filter(|c| !c.is_control())
            .take(TEXT_LEN_MAX)
            .collect();
        if text.is_empty() { format!("HTTP status {}", self.status) } else { text }
    }

    pub(super) fn verdict(&self) -> Verdict {
        let text = self.text();
        match self.status {
            200..=299 => Verdict::Done,
            _ if self.text.contains(NOT_SUPPORTED) => Verdict::Unsupported,
            _ if self.text.contains(LOST) => Verdict::Lost,
            401 => Verdict::Refused(format!(
                "{text}; issue a token with the scope gpu-control (zeusd token issue) and name its file in \
                 zeusd_token_file"
            )),
            403 => Verdict::Refused(format!(
                "{text}; run zeusd as root with CAP_SYS_ADMIN, or issue a token with the scope gpu-control"
            )),
            404 => Verdict::Refused(format!("{text}; start zeusd with --enable gpu-control")),
            400..=499 => Verdict::Refused(text),
            _ => Verdict::Failed(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(response: &str) -> Reply {
        Reply::read(response.as_bytes(), true).unwrap().unwrap()
    }

    #[test]
    fn a_response_is_complete_with_its_length_or_the_end() {
        let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab";
        for len in 0..response.len() {
            assert!(Reply::read(&response[..len], false).unwrap().is_none(), "{len}");
        }
        assert_eq!(Reply::read(response, false).unwrap().unwrap().verdict(), Verdict::Done);
        let unbounded = b"HTTP/1.1 500 Internal Server Error\r\n\r\nab";
        assert!(Reply::read(unbounded, false).unwrap().is_none());
        let failed = Reply::read(unbounded, true).unwrap().unwrap().verdict();
        assert_eq!(failed, Verdict::Failed("ab".to_owned()));
        assert_eq!(
            Reply::read(b"HTTP/1.1 2", true).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(
            Reply::read(b"SSH-2.0-x\r\n", false).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    fn errors_are_distinguished_by_status_and_text() {
        let with = |status: &str, body: &str| {
            read(&format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
        };
        let unsupported =
            "NVML error: the requested operation is not available on the target device";
        assert_eq!(with("400 Bad Request", unsupported).verdict(), Verdict::Unsupported);
        let lost = r#"{"errors":{"3":"NVML error: device fell off the bus or has otherwise become inacessible"}}"#;
        assert_eq!(with("500 Internal Server Error", lost).verdict(), Verdict::Lost);
        let refused = r#"{"errors":{"0":"NVML error: a supplied argument was invalid"}}"#;
        assert_eq!(
            with("400 Bad Request", refused).verdict(),
            Verdict::Refused("NVML error: a supplied argument was invalid".to_owned())
        );
        let off = r#"{"error":"API group 'gpu-control' is not enabled on this server."}"#;
        let off = with("404 Not Found", off);
        assert!(!off.is_unknown_route());
        let Verdict::Refused(text) = off.verdict() else { panic!("{off:?}") };
        assert!(text.ends_with("start zeusd with --enable gpu-control"), "{text}");
        assert!(with("404 Not Found", "").is_unknown_route());
        let Verdict::Failed(text) = with("502 Bad Gateway", &"x\n".repeat(900)).verdict() else {
            panic!("not failed")
        };
        assert!(text.len() <= TEXT_LEN_MAX && !text.contains('\n'));
    }
}
