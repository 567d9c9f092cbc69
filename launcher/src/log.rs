//! The output files of jobs: `JOB.ADMISSION.NODE.log`, one for each submission and node.
//!
//! Each attempt begins with a header line. Ids contain no dot, so that the name is unambiguous. A submission
//! that an earlier version accepted has `JOB.NODE.log`.

use wattle_common::{AdmissionId, GpuIndex, JobId, NodeId};

const EXTENSION: &str = "log";
const MARK: &str = "---";

/// The name of the file with the output of a submission of `job` on `node`.
///
/// Each node has its own file, so that the output of several nodes never mixes in a log folder that
/// they share.
#[must_use]
pub fn file_name(job: &JobId, admission: Option<&AdmissionId>, node: &NodeId) -> String {
    format!("{}.{node}.{EXTENSION}", AdmissionId::name_of(job, admission))
}

/// The job, the submission and the node of a file name; `None` for other files.
#[must_use]
pub fn parse_file_name(name: &str) -> Option<(JobId, Option<AdmissionId>, NodeId)> {
    let parts: Vec<&str> = name.split('.').collect();
    let (job, admission, node) = match *parts.as_slice() {
        [job, node, EXTENSION] => (job, None, node),
        [job, admission, node, EXTENSION] => (job, Some(admission), node),
        _ => return None,
    };
    let admission = admission.map(AdmissionId::new).transpose().ok()?;
    Some((JobId::new(job).ok()?, admission, NodeId::new(node).ok()?))
}

/// The line that begins an attempt: `--- JOB attempt 2 on NODE GPU 0,1 at TIME ---`.
#[must_use]
pub fn header(job: &JobId, attempt: u32, node: &NodeId, gpus: &[GpuIndex], time: &str) -> String {
    let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    let gpus = gpus.join(",");
    format!("{MARK} {job} attempt {attempt} on {node} GPU {gpus} at {time} {MARK}")
}

/// A line of the launcher about the job.
#[must_use]
pub fn note(text: &impl std::fmt::Display) -> String {
    format!("{MARK} {text} {MARK}")
}

/// The attempt that a line of the output of `job` on `node` begins; `None` for a line of the job.
#[must_use]
pub fn attempt_of(line: &str, job: &JobId, node: &NodeId) -> Option<u32> {
    let rest = line.strip_prefix(MARK)?.strip_suffix(MARK)?.trim().strip_prefix(job.as_str())?;
    let (attempt, rest) = rest.strip_prefix(" attempt ")?.split_once(" on ")?;
    rest.strip_prefix(node.as_str())?.strip_prefix(" GPU ")?;
    attempt.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_headers_are_parsed_back() {
        let (job, node) = (JobId::new("train-7").unwrap(), NodeId::new("n0").unwrap());
        let name = file_name(&job, None, &node);
        assert_eq!(name, "train-7.n0.log");
        assert_eq!(parse_file_name(&name), Some((job.clone(), None, node.clone())));
        let admission = Some(AdmissionId::accepted(wattle_common::Timestamp::from_s(1), 2));
        let name = file_name(&job, admission.as_ref(), &node);
        assert_eq!(parse_file_name(&name), Some((job.clone(), admission, node.clone())));
        for other in ["train-7.log", "a.b.c.d.log", "a..n0.log", "a.b.txt", ".n0.log", ""] {
            assert_eq!(parse_file_name(other), None, "{other}");
        }
        let line = header(&job, 2, &node, &[0, 1], "2026-05-03T09:15:00Z");
        assert_eq!(line, "--- train-7 attempt 2 on n0 GPU 0,1 at 2026-05-03T09:15:00Z ---");
        assert_eq!(attempt_of(&line, &job, &node), Some(2));
        let other = JobId::new("train").unwrap();
        assert_eq!(attempt_of(&line, &other, &node), None);
        assert_eq!(attempt_of("--- epoch 3 ---", &job, &node), None);
    }
}
