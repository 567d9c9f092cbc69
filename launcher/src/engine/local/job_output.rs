//! The output of one job on this node, bounded in size.
//!
//! Processes write to a pipe; the supervisor copies it to the log file up to a limit and drops the rest.
//! A job is therefore neither stopped by a full disk nor able to fill one. What it writes into the file
//! itself counts, too: once per second the file is cut to the limit.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, Read as _, Write as _};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Every attempt may write this much, whatever earlier attempts wrote.
const ATTEMPT_BYTES_MIN: u64 = 1 << 20;
/// Longest wait for the rest of the output after the job's end: wall time. A process that hangs in the
/// kernel keeps the pipe open.
const REST_WAIT: Duration = Duration::from_secs(2);
/// Size of one copy.
const PIECE: usize = 1 << 16;

/// Interval at which the size of the file is compared with the limit: wall time.
const CUT_EVERY: Duration = Duration::from_secs(1);
/// Room beyond the limit for lines of the launcher.
const NOTES: u64 = 4 << 10;

/// A log file with a limit on its size.
pub(super) struct JobOutput {
    file: File,
    /// The size up to which this attempt may write.
    size_max: u64,
    limit: u64,
    /// Whether the line about dropped output is written.
    is_noted: bool,
}

impl JobOutput {
    /// Opens the log at `path`, which exists, and writes `header`, a line.
    pub(super) fn open(path: &Path, header: &str, limit: u64) -> io::Result<Self> {
        let mut file = OpenOptions::new().append(true).open(path)?;
        let used = file.metadata()?.len();
        // One write: a process of an earlier attempt may still append to the file.
        file.write_all(format!("{header}\n").as_bytes())?;
        let share = ATTEMPT_BYTES_MIN.min(limit);
        let size_max = limit.max(used.saturating_add(share));
        Ok(Self { file, size_max, limit, is_noted: false })
    }

    /// Copies from the pipe until it closes. An error if the system has no thread left.
    pub(super) fn copy_from(self, mut pipe: PipeReader) -> io::Result<Copying> {
        let output = Arc::new(Mutex::new(self));
        let (sender, ended) = mpsc::channel::<()>();
        let copied = Arc::clone(&output);
        thread::Builder::new().spawn(move || {
            let _sender = sender;
            let mut piece = vec![0; PIECE];
            loop {
                match pipe.read(&mut piece) {
                    Ok(0) => break,
                    Ok(count) => lock(&copied).write(&piece[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        })?;
        let (stop, stopped) = mpsc::channel::<()>();
        let cut = Arc::clone(&output);
        thread::Builder::new().spawn(move || {
            while stopped.recv_timeout(CUT_EVERY) == Err(RecvTimeoutError::Timeout) {
                lock(&cut).cut();
            }
        })?;
        Ok(Copying { output, ended, _stop: stop })
    }

    /// Writes what the limit permits. A failed write, as on a full disk, loses its bytes only.
    fn write(&mut self, bytes: &[u8]) {
        // The job may have written to the file, too.
        let used = self.file.metadata().map_or(self.size_max, |known| known.len());
        let left = self.size_max.saturating_sub(used);
        let kept = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let _ = self.file.write_all(&bytes[..kept]);
        if kept < bytes.len() {
            self.note();
        }
    }

    /// Cuts the file to its limit, if the job has written beyond it.
    fn cut(&mut self) {
        if self.file.metadata().is_ok_and(|known| known.len() > self.size_max + NOTES) {
            let _ = self.file.set_len(self.size_max);
            self.is_noted = false;
            self.note();
        }
    }

    fn note(&mut self) {
        if std::mem::replace(&mut self.is_noted, true) {
            return;
        }
        let mib = self.limit >> 20;
        let line = format!("\n--- output beyond {mib} MiB is dropped (log_mib_max) ---\n");
        let _ = self.file.write_all(line.as_bytes());
    }
}

fn lock(output: &Mutex<JobOutput>) -> MutexGuard<'_, JobOutput> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends a line to the log, whatever its size.
pub(super) fn append(path: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(format!("{line}\n").as_bytes())
}

/// A running copy of a job's output.
pub(super) struct Copying {
    output: Arc<Mutex<JobOutput>>,
    ended: mpsc::Receiver<()>,
    /// Ends the comparisons of size and limit when it is dropped.
    _stop: mpsc::Sender<()>,
}

impl Copying {
    /// Waits until the output is written, once no process of the job is left.
    pub(super) fn finish(self) {
        let _ = self.ended.recv_timeout(REST_WAIT);
        lock(&self.output).cut();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn run(path: &Path, limit: u64, bytes: usize) {
        let output = JobOutput::open(path, "--- start ---", limit).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let copying = output.copy_from(reader).unwrap();
        writer.write_all(&vec![b'x'; bytes]).unwrap();
        drop(writer);
        copying.finish();
    }

    #[test]
    fn what_a_job_writes_into_its_log_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.n0.log");
        File::create(&path).unwrap();
        let output = JobOutput::open(&path, "--- start ---", 2 * MIB).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let copying = output.copy_from(reader).unwrap();
        let mut direct = OpenOptions::new().append(true).open(&path).unwrap();
        direct.write_all(&vec![b'd'; 5_000_000]).unwrap();
        writer.write_all(&vec![b'x'; 100_000]).unwrap();
        drop(writer);
        copying.finish();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!((2 * MIB..2 * MIB + 200).contains(&(text.len() as u64)), "{}", text.len());
        assert!(!text.contains("xxx"), "output after the limit is dropped");
        assert!(text.ends_with("--- output beyond 2 MiB is dropped (log_mib_max) ---\n"));
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
