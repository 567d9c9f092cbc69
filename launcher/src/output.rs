//! The output of jobs in the log folder, in reply to requests.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use wattle_common::NodeId;
use wattle_common::messages::output::OUTPUT_LEN_MAX;
use wattle_common::messages::{OutputReply, ReadOutput};

use crate::log::file_name;

/// The reply of `node` to a request. Ids contain no path separator, so only files of the log folder are
/// read.
#[must_use]
pub fn reply(log_dir: &Path, node: &NodeId, request: &ReadOutput) -> OutputReply {
    let path = log_dir.join(file_name(&request.job, node));
    match part(&path, request.offset) {
        Ok((bytes, data)) => OutputReply::Output { bytes, data },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OutputReply::Output { bytes: 0, data: Vec::new() }
        }
        Err(error) => OutputReply::Refused { error: format!("{}: {error}", path.display()) },
    }
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
    use wattle_common::JobId;

    use super::*;

    #[test]
    fn long_output_is_read_in_parts() {
        let folder = tempfile::tempdir().unwrap();
        let (job, node) = (JobId::new("a").unwrap(), NodeId::new("n0").unwrap());
        let text: Vec<u8> = (0..OUTPUT_LEN_MAX + 7).map(|i| i as u8).collect();
        std::fs::write(folder.path().join(file_name(&job, &node)), &text).unwrap();
        let mut read = Vec::new();
        loop {
            let request = ReadOutput { job: job.clone(), offset: read.len() as u64 };
            let OutputReply::Output { bytes, data } = reply(folder.path(), &node, &request) else {
                panic!("refused")
            };
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
        assert_eq!(reply(folder.path(), &node, &request), nothing);
        std::fs::create_dir(folder.path().join(file_name(&job, &node))).unwrap();
        let OutputReply::Refused { error } = reply(folder.path(), &node, &request) else {
            panic!("a folder is no output")
        };
        assert!(error.contains("a.n0.log"), "{error}");
    }
}
