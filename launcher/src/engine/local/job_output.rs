//! The output of one job on this node, bounded in size.
//!
//! Processes write to a pipe; the supervisor copies it to the log file up to a limit and drops the rest.
//! A job is therefore neither stopped by a full disk nor able to fill one.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, Read as _, Write as _};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Every attempt may write this much, whatever earlier attempts wrote.
const ATTEMPT_BYTES_MIN: u64 = 1 << 20;
/// Longest wait for the rest of the output after the job's end: wall time. A process that hangs in the
/// kernel keeps the pipe open.
const REST_WAIT: Duration = Duration::from_secs(2);
/// Size of one copy.
const PIECE: usize = 1 << 16;

/// A log file with a limit on its size.
pub(super) struct JobOutput {
    file: File,
    /// Bytes that may still be written.
    left: u64,
    limit: u64,
}

impl JobOutput {
    /// Opens the log at `path`, which exists, and writes `header`, a line.
    pub(super) fn open(path: &Path, header: &str, limit: u64) -> io::Result<Self> {
        let mut file = OpenOptions::new().append(true).open(path)?;
        let used = file.metadata()?.len();
        // One write: a process of an earlier attempt may still append to the file.
        file.write_all(format!("{header}\n").as_bytes())?;
        let left = limit.saturating_sub(used).max(ATTEMPT_BYTES_MIN.min(limit));
        Ok(Self { file, left, limit })
    }

    /// Copies from the pipe until it closes. The returned channel then closes.
    pub(super) fn copy_from(mut self, mut pipe: PipeReader) -> Copying {
        let (sender, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            let _sender = sender;
            let mut piece = vec![0; PIECE];
            loop {
                match pipe.read(&mut piece) {
                    Ok(0) => break,
                    Ok(count) => self.write(&piece[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        });
        Copying(ended)
    }

    /// Writes what the limit permits. A failed write, as on a full disk, loses its bytes only.
    fn write(&mut self, bytes: &[u8]) {
        if self.left == 0 {
            return;
        }
        let kept = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let _ = self.file.write_all(&bytes[..kept]);
        self.left -= kept as u64;
        if self.left == 0 {
            let mib = self.limit >> 20;
            let line = format!("\n--- output beyond {mib} MiB is dropped (log_mib_max) ---\n");
            let _ = self.file.write_all(line.as_bytes());
        }
    }
}

/// Appends a line to the log, whatever its size.
pub(super) fn append(path: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(format!("{line}\n").as_bytes())
}

/// A running copy of a job's output.
pub(super) struct Copying(mpsc::Receiver<()>);

impl Copying {
    /// Waits until the output is written, once no process of the job is left.
    pub(super) fn finish(self) {
        let _ = self.0.recv_timeout(REST_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn run(path: &Path, limit: u64, bytes: usize) {
        let output = JobOutput::open(path, "--- start ---", limit).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let copying = output.copy_from(reader);
        writer.write_all(&vec![b'x'; bytes]).unwrap();
        drop(writer);
        copying.finish();
    }

    #[test]
    fn output_beyond_the_limit_is_dropped_and_each_attempt_has_its_share() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.n0.log");
        File::create(&path).unwrap();
        run(&path, 2 * MIB, 5_000_000);
        let size = || std::fs::metadata(&path).unwrap().len();
        assert!((2 * MIB..2 * MIB + 200).contains(&size()), "{}", size());
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with("--- output beyond 2 MiB is dropped (log_mib_max) ---\n"));
        run(&path, 2 * MIB, 100);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with(&format!("--- start ---\n{}", "x".repeat(100))));
        run(&path, 2 * MIB, 5_000_000);
        assert!(size() < 3 * MIB + 1_000, "{}", size());
    }
}
