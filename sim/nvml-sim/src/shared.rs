//! The memory-mapped state file: two copies of the state, one of which is always valid.
//!
//! A writer locks the file, writes the invalid copy, and makes it the valid one with an atomic
//! store. If it is killed at any instant, the file holds the old state or the new one, and the
//! kernel releases the lock. Readers take no lock: they copy the valid words and retry if the
//! sequence number has changed. A stopped writer (`SIGSTOP`) blocks other writers but not readers.
//! Truncating the file while it is mapped kills its users with SIGBUS, as for any mapping.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};

use wattle_common::time::grant::Grant;

use crate::layout::{BOOT, BOOTED, GRANT, HEAD_WORDS, SEQUENCE, file_words, state_words};

/// The file and its mapping.
#[derive(Debug)]
pub(crate) struct Shared {
    file: File,
    map: MmapRaw,
    writable: bool,
}

impl Shared {
    /// Maps a file; read-only if writing is not permitted.
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
            return Err(io::Error::new(io::ErrorKind::InvalidData, "shorter than a node's state"));
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

    /// All words, as atomics shared between processes.
    fn words(&self) -> &[AtomicU64] {
        let start = self.map.as_mut_ptr().cast::<AtomicU64>();
        // SAFETY: the mapping is page-aligned and lives as long as `self`; the length is rounded
        // down to complete words. Every process accesses the words through atomics only, and a
        // read-only mapping is only loaded from: stores require a `WriteGuard`, which `lock`
        // refuses without write access.
        unsafe { std::slice::from_raw_parts(start, self.map.len() / 8) }
    }

    pub(crate) fn head(&self) -> Vec<u64> {
        self.words()[..HEAD_WORDS].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Whether the file is long enough for this number of GPUs.
    pub(crate) fn fits(&self, gpus: usize) -> bool {
        self.words().len() >= file_words(gpus)
    }

    /// Sequence number: the number of state changes.
    pub(crate) fn sequence(&self) -> u64 {
        self.words()[SEQUENCE].load(Ordering::Acquire)
    }

    /// Sequence number and words of the valid copy.
    pub(crate) fn get(&self, gpus: usize) -> (u64, Vec<u64>) {
        let words = self.words();
        loop {
            let sequence = words[SEQUENCE].load(Ordering::Acquire);
            let copied = copy_of(words, sequence, gpus)
                .iter()
                .map(|word| word.load(Ordering::Relaxed))
                .collect();
            // This copy is overwritten only after the sequence number has advanced, so an
            // unchanged number means that the words are consistent.
            fence(Ordering::Acquire);
            if words[SEQUENCE].load(Ordering::Relaxed) == sequence {
                return (sequence, copied);
            }
        }
    }

    /// Wall time at reading zero of the boot-time clock, microseconds, as it was first read in this boot of the
    /// machine: a rate would multiply the difference of two readings. `boot` identifies the boot.
    pub(crate) fn booted_us(&self, boot: u64, read: impl Fn() -> u64) -> io::Result<u64> {
        let words = self.words();
        let stored = || {
            (words[BOOT].load(Ordering::Acquire) == boot)
                .then(|| words[BOOTED].load(Ordering::Relaxed))
        };
        if let Some(booted_us) = stored() {
            return Ok(booted_us);
        }
        if !self.writable {
            return Ok(read());
        }
        let _guard = self.lock()?;
        if let Some(booted_us) = stored() {
            return Ok(booted_us);
        }
        let booted_us = read();
        words[BOOTED].store(booted_us, Ordering::Relaxed);
        words[BOOT].store(boot, Ordering::Release);
        Ok(booted_us)
    }

    /// The grant of the clock.
    pub(crate) fn grant(&self) -> Grant {
        let words = &self.words()[GRANT..GRANT + Grant::WORDS];
        loop {
            let sequence = words[0].load(Ordering::Acquire);
            let copied = std::array::from_fn(|index| {
                if index == 0 { sequence } else { words[index].load(Ordering::Relaxed) }
            });
            // As for the state: the valid copy is overwritten only after the sequence number has advanced.
            fence(Ordering::Acquire);
            if words[0].load(Ordering::Relaxed) == sequence {
                return Grant::from_words(copied);
            }
        }
    }

    /// Changes the grant. Only one process grants time, so it takes no lock.
    pub(crate) fn set_grant(&self, grant: Grant) -> io::Result<()> {
        if !self.writable {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        let words = &self.words()[GRANT..GRANT + Grant::WORDS];
        let next = words[0].load(Ordering::Relaxed).wrapping_add(1);
        fence(Ordering::Release);
        for (word, value) in words[Grant::copy_of(next)..].iter().zip(grant.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        words[0].store(next, Ordering::Release);
        Ok(())
    }

    /// Acquires the write lock until the guard is dropped or the process dies.
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

/// Exclusive right to change the state.
#[derive(Debug)]
pub(crate) struct WriteGuard<'a>(&'a Shared);

impl WriteGuard<'_> {
    /// Writes the invalid copy and makes it valid.
    pub(crate) fn put(&self, gpus: usize, state: &[u64]) {
        self.write_invalid(gpus, state);
        let sequence = &self.0.words()[SEQUENCE];
        sequence.store(sequence.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Writes the invalid copy.
    pub(crate) fn write_invalid(&self, gpus: usize, state: &[u64]) {
        let words = self.0.words();
        let next = words[SEQUENCE].load(Ordering::Relaxed) + 1;
        // A reader that sees one of these stores also sees the previous sequence number advance.
        fence(Ordering::Release);
        for (word, value) in copy_of(words, next, gpus).iter().zip(state) {
            word.store(*value, Ordering::Relaxed);
        }
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        // Closing the file also releases the lock, so an error needs no handling.
        let _ = self.0.file.unlock();
    }
}
