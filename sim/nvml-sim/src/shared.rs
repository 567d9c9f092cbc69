//! The mapped file: two copies of the state, one of which is always whole.
//!
//! A writer takes the file's lock, writes the copy that is not valid, and makes it valid with one
//! atomic store. Killed at any instant it leaves the old state or the new one, never a mixture, and
//! the kernel frees its lock. A reader takes no lock: it copies the valid words and looks whether
//! the sequence moved meanwhile. A writer that is stopped (`SIGSTOP`) holds other writers up, never
//! readers. Whoever truncates the file under a running system kills it with SIGBUS, as with any
//! mapping.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};

use crate::layout::{HEAD_WORDS, SEQUENCE, file_words, state_words};

/// The file and its mapping.
#[derive(Debug)]
pub(crate) struct Shared {
    file: File,
    map: MmapRaw,
    writable: bool,
}

impl Shared {
    /// Maps a file; only for reading where writing is not permitted.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let (file, writable) = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => (file, true),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                (File::open(path)?, false)
            }
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() < (HEAD_WORDS * 8) as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too short for a node's state"));
        }
        let map = if writable {
            MmapRaw::map_raw(&file)?
        } else {
            MmapOptions::new().map_raw_read_only(&file)?
        };
        Ok(Self { file, map, writable })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// All words, as what several processes may touch at once.
    fn words(&self) -> &[AtomicU64] {
        let start = self.map.as_mut_ptr().cast::<AtomicU64>();
        // SAFETY: the mapping is page-aligned and lives as long as `self`; the length is cut to
        // whole words inside it. Every process, this one included, touches the words only through
        // atomics, and atomic loads are all that a read-only mapping sees (`put` checks).
        unsafe { std::slice::from_raw_parts(start, self.map.len() / 8) }
    }

    pub(crate) fn head(&self) -> Vec<u64> {
        self.words()[..HEAD_WORDS].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Whether the file is as long as the state of so many cards.
    pub(crate) fn fits(&self, gpus: usize) -> bool {
        self.words().len() >= file_words(gpus)
    }

    /// How often the state has changed.
    pub(crate) fn sequence(&self) -> u64 {
        self.words()[SEQUENCE].load(Ordering::Acquire)
    }

    /// The valid copy and its sequence.
    pub(crate) fn get(&self, gpus: usize) -> (u64, Vec<u64>) {
        let words = self.words();
        loop {
            let sequence = words[SEQUENCE].load(Ordering::Acquire);
            let copied = copy_of(words, sequence, gpus)
                .iter()
                .map(|word| word.load(Ordering::Relaxed))
                .collect();
            // The copy is only written again after the sequence has moved on, so an unmoved
            // sequence says that these words are of one piece.
            fence(Ordering::Acquire);
            if words[SEQUENCE].load(Ordering::Relaxed) == sequence {
                return (sequence, copied);
            }
        }
    }

    /// Takes the writers' lock, until the guard is dropped or the process dies.
    pub(crate) fn lock(&self) -> io::Result<WriteGuard<'_>> {
        if !self.writable {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        self.file.lock()?;
        Ok(WriteGuard(self))
    }
}

fn copy_of(words: &[AtomicU64], sequence: u64, gpus: usize) -> &[AtomicU64] {
    let start = HEAD_WORDS + (sequence % 2) as usize * state_words(gpus);
    &words[start..start + state_words(gpus)]
}

/// The right to change the state.
#[derive(Debug)]
pub(crate) struct WriteGuard<'a>(&'a Shared);

impl WriteGuard<'_> {
    /// Writes the other copy and makes it the valid one.
    pub(crate) fn put(&self, gpus: usize, state: &[u64]) {
        self.write_invalid(gpus, state);
        let sequence = &self.0.words()[SEQUENCE];
        sequence.store(sequence.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Writes the copy that nobody reads.
    pub(crate) fn write_invalid(&self, gpus: usize, state: &[u64]) {
        let words = self.0.words();
        let next = words[SEQUENCE].load(Ordering::Relaxed) + 1;
        // A reader that sees one of these words also sees that the sequence had moved before.
        fence(Ordering::Release);
        for (word, value) in copy_of(words, next, gpus).iter().zip(state) {
            word.store(*value, Ordering::Relaxed);
        }
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        // Closing the file would free it as well; a failure here has no remedy.
        let _ = self.0.file.unlock();
    }
}
