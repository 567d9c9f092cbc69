//! The output of jobs in the log folder, in reply to requests.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use wattle_common::messages::output::OUTPUT_LEN_MAX;
use wattle_common::messages::{OutputReply, ReadOutput};
use wattle_common::{AdmissionId, JobId, NodeId};

use crate::log::{file_name, parse_file_name};

/// Whose output is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// That of the submission in the job's record.
    Recorded(Option<AdmissionId>),
    /// That of the newest submission of the job's id on this node, because the job has no record.
    Newest,
}

/// The reply of `node` to a request. Ids contain no path separator, so only files of the log folder are
/// read.
#[must_use]
pub fn reply(log_dir: &Path, node: &NodeId, of: Of, request: &ReadOutput) -> OutputReply {
    let admission = match of {
        Of::Recorded(admission) => admission,
        Of::Newest => newest(log_dir, node, &request.job),
    };
    let path = log_dir.join(file_name(&request.job, admission.as_ref(), node));
    match part(&path, request.offset) {
        Ok((bytes, data)) => OutputReply::Output { bytes, data },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OutputReply::Output { bytes: 0, data: Vec::new() }
        }
        Err(error) => OutputReply::Refused { error: format!("{}: {error}", path.display()) },
    }
}

/// The newest submission of a job's id that has output on this node.
fn newest(log_dir: &Path, node: &NodeId, job: &JobId) -> Option<AdmissionId> {
    let entries = std::fs::read_dir(log_dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| parse_file_name(entry.file_name().to_str()?));
    names.filter(|(of, _, on)| of == job && on == node).filter_map(|(_, each, _)| each).max()
}

/// The length of a file, and its bytes from `offset`, at most [`OUTPUT_LEN_MAX`].
fn part(path: &Path, offset: u64) -> io::Result<(u64, Vec<u8>)> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(offset))?;
    let mut data = Vec::new();
    file.take(u64::from(OUTPUT_LEN_MAX)).read_to_end(&mut data)?;
    Ok((bytes, data))
}

#[cfg(test)]
mod tests {
    use wattle_common::Timestamp;

    use super::*;

    #[test]
    fn long_output_is_read_in_parts() {
        let folder = tempfile::tempdir().unwrap();
        let (job, node) = (JobId::new("a").unwrap(), NodeId::new("n0").unwrap());
        let text: Vec<u8> = (0..OUTPUT_LEN_MAX + 7).map(|i| i as u8).collect();
        std::fs::write(folder.path().join(file_name(&job, None, &node)), &text).unwrap();
        let mut read = Vec::new();
        loop {
            let request = ReadOutput { job: job.clone(), offset: read.len() as u64 };
            let reply = reply(folder.path(), &node, Of::Recorded(None), &request);
            let OutputReply::Output { bytes, data } = reply else { panic!("refused") };
            assert_eq!(bytes, text.len() as u64);
            if data.is_empty() {
                break;
            }
            assert!(data.len() <= OUTPUT_LEN_MAX as usize);
            read.extend(data);
        }
        assert_eq!(read, text);
    }

    #[test]
    fn missing_output_is_empty_and_unreadable_output_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (job, node) = (JobId::new("a").unwrap(), NodeId::new("n0").unwrap());
        let request = ReadOutput { job: job.clone(), offset: 3 };
        let nothing = OutputReply::Output { bytes: 0, data: Vec::new() };
        let read = || reply(folder.path(), &node, Of::Recorded(None), &request);
        assert_eq!(read(), nothing);
        std::fs::create_dir(folder.path().join(file_name(&job, None, &node))).unwrap();
        let OutputReply::Refused { error } = read() else { panic!("a folder is no output") };
        assert!(error.contains("a.n0.log"), "{error}");
    }

    /// A reused id never gives the output of another submission, which may be another person's.
    #[test]
    fn output_is_that_of_the_submission() {
        let folder = tempfile::tempdir().unwrap();
        let (job, node) = (JobId::new("a").unwrap(), NodeId::new("n0").unwrap());
        let admission = |s| Some(AdmissionId::accepted(Timestamp::from_s(s), 1));
        for (admission, text) in [(None, "oldest"), (admission(1), "old"), (admission(2), "new")] {
            let name = file_name(&job, admission.as_ref(), &node);
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let request = ReadOutput { job, offset: 0 };
        let read = |of| match reply(folder.path(), &node, of, &request) {
            OutputReply::Output { data, .. } => String::from_utf8(data).unwrap(),
            OutputReply::Refused { error } => panic!("{error}"),
        };
        assert_eq!(read(Of::Recorded(admission(1))), "old");
        assert_eq!(read(Of::Recorded(admission(3))), "", "it has not started");
        assert_eq!(read(Of::Recorded(None)), "oldest");
        assert_eq!(read(Of::Newest), "new");
    }
}
