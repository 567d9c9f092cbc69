//! The files that a simulation reads: plain or compressed with gzip, in UTF-8 or UTF-16, and bounded.
//!
//! Traces, series of carbon intensity and prices, and lists of jobs are all read here. The size is checked
//! while a file is read and unpacked, so a device without an end, or a small file that unpacks to a large
//! one, costs no more memory than the limit. A file that is no text is refused by what it is.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

/// Largest text of a trace, bytes: two million jobs of an `sacct` export.
pub const TRACE_BYTES_MAX: u64 = 512 << 20;

/// Largest text of a series or a list of jobs, bytes.
pub const SERIES_BYTES_MAX: u64 = 64 << 20;

/// Bytes read at once, and examined for what the file is.
const CHUNK: usize = 64 << 10;

/// Text beyond this is held in memory that is reserved up to the limit, so that growth copies nothing.
const RESERVE_FROM: usize = 16 << 20;

/// The magic number of gzip (RFC 1952).
const GZIP: &[u8] = &[0x1f, 0x8b];

/// What other files begin with, what they are, and what to do.
const MAGIC: &[(&[u8], &str, &str)] = &[
    (b"PK\x03\x04", "a zip archive or a spreadsheet", "unpack it, or export the sheet as CSV"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it with `zstd -d`"),
    (b"BZh", "compressed with bzip2", "unpack it with `bunzip2`"),
    (b"\xfd7zXZ\x00", "compressed with xz", "unpack it with `unxz`"),
    (b"7z\xbc\xaf", "a 7z archive", "unpack it, and name the file in it"),
    (b"\xff\xfe\0\0", "text in UTF-32", "save it as UTF-8"),
    (b"\0\0\xfe\xff", "text in UTF-32", "save it as UTF-8"),
    (b"PAR1", "a Parquet file", "export its table as CSV"),
    (b"%PDF", "a PDF", "give the table as text"),
    (b"SQLite format 3", "an SQLite database", "export the table as CSV"),
];

/// Where a tar archive has its magic number, and the number.
const TAR: (usize, &[u8]) = (257, b"ustar");

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The operating system's error, or one of the compression.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It has more text than the limit.
    #[error("it has more than {} MiB of text", .0 >> 20)]
    TooLarge(u64),
    /// It is no text.
    #[error("it looks like {what}; {remedy}")]
    NotText {
        /// What it looks like.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
}

/// The text of the file at `path`, as UTF-8 without a byte order mark. Bytes that are not UTF-8 are kept.
///
/// # Errors
/// [`InputError`] if it cannot be read, has more than `bytes_max` of text, or is no text.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, InputError> {
    let file = std::fs::File::open(path)?;
    text_of(BufReader::with_capacity(CHUNK, file), bytes_max)
}

/// The name of a file without its folder, for messages.
#[must_use]
pub fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The text that `source` has, as [`read`].
///
/// # Errors
/// As [`read`].
pub fn text_of(mut source: impl BufRead, bytes_max: u64) -> Result<Vec<u8>, InputError> {
    let packed = source.fill_buf()?.starts_with(GZIP);
    let bytes = if packed {
        bounded(MultiGzDecoder::new(source), bytes_max)?
    } else {
        bounded(source, bytes_max)?
    };
    Ok(decoded(bytes))
}

/// Everything that `source` has, up to the limit.
fn bounded(mut source: impl Read, bytes_max: u64) -> Result<Vec<u8>, InputError> {
    let limit = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    let mut bytes: Vec<u8> = Vec::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = match source.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        if bytes.is_empty() {
            refuse_binary(&chunk[..count])?;
        }
        if bytes.len() + count > limit {
            return Err(InputError::TooLarge(bytes_max));
        }
        if bytes.capacity() - bytes.len() < count && bytes.len() > RESERVE_FROM {
            // Reserved memory that is not written to costs nothing. Without it the text grows as usual.
            let _ = bytes.try_reserve_exact(limit - bytes.len());
        }
        bytes.extend_from_slice(&chunk[..count]);
    }
}

/// Refuses a file that begins as no text does.
fn refuse_binary(start: &[u8]) -> Result<(), InputError> {
    if let Some((_, what, remedy)) = MAGIC.iter().find(|(magic, ..)| start.starts_with(magic)) {
        return Err(InputError::NotText { what, remedy });
    }
    if start.get(TAR.0..).is_some_and(|rest| rest.starts_with(TAR.1)) {
        return Err(InputError::NotText {
            what: "a tar archive",
            remedy: "unpack it with `tar -xf`, and name the file in it",
        });
    }
    if utf16(start).is_none() && start.contains(&0) {
        return Err(InputError::NotText { what: "binary data", remedy: "name a file of text" });
    }
    Ok(())
}

/// The byte order of UTF-16.
#[derive(Clone, Copy)]
enum Endianness {
    Little,
    Big,
}

/// The byte order of a text in UTF-16 and the length of its mark; without a mark, a text whose first
/// characters are all of ASCII.
fn utf16(bytes: &[u8]) -> Option<(Endianness, usize)> {
    /// Characters that are examined.
    const FIRST: usize = 32;
    match bytes {
        [0xff, 0xfe, ..] => return Some((Endianness::Little, 2)),
        [0xfe, 0xff, ..] => return Some((Endianness::Big, 2)),
        _ => {}
    }
    let pairs = || bytes.chunks_exact(2).take(FIRST);
    if pairs().len() < 2 {
        return None;
    }
    if pairs().all(|pair| pair[0] != 0 && pair[1] == 0) {
        return Some((Endianness::Little, 0));
    }
    pairs().all(|pair| pair[0] == 0 && pair[1] != 0).then_some((Endianness::Big, 0))
}

/// The text as UTF-8 without a byte order mark.
fn decoded(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some((order, mark)) = utf16(&bytes) {
        let unit = |pair: &[u8]| match order {
            Endianness::Little => u16::from_le_bytes([pair[0], pair[1]]),
            Endianness::Big => u16::from_be_bytes([pair[0], pair[1]]),
        };
        let units = bytes[mark..].chunks_exact(2).map(unit);
        let chars = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER));
        return chars.collect::<String>().into_bytes();
    }
    if bytes.starts_with("\u{feff}".as_bytes()) {
        bytes.drain(.."\u{feff}".len());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_source_is_read_up_to_the_limit() {
        let error = text_of(BufReader::new(io::repeat(b'x')), 1 << 20).unwrap_err();
        assert!(matches!(error, InputError::TooLarge(limit) if limit == 1 << 20), "{error}");
        assert_eq!(error.to_string(), "it has more than 1 MiB of text");
        let whole = text_of(BufReader::new(io::repeat(b'x').take(1 << 20)), 1 << 20);
        assert_eq!(whole.unwrap().len(), 1 << 20);
    }

    #[test]
    fn a_small_file_that_unpacks_to_a_large_one_is_read_up_to_the_limit() {
        use std::io::Write as _;
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&[b'x'; 1 << 16]).unwrap();
        // Members of a file follow each other.
        let packed = gz.finish().unwrap().repeat(17);
        assert!(packed.len() < 1 << 14, "{}", packed.len());
        assert!(matches!(text_of(&packed[..], 1 << 20), Err(InputError::TooLarge(_))));
        assert_eq!(text_of(&packed[..], 17 << 16).unwrap().len(), 17 << 16);
    }

    #[test]
    fn other_files_are_refused_by_what_they_are() {
        let mut tar = vec![b'a'; 600];
        tar[257..262].copy_from_slice(b"ustar");
        for (bytes, what) in [
            (b"PK\x03\x04abc".to_vec(), "zip"),
            (b"PAR1abc".to_vec(), "Parquet"),
            (tar, "tar archive"),
            (vec![0; 9], "binary"),
            (b"\xff\xfe\0\0j\0\0\0".to_vec(), "UTF-32"),
            (b"job_id\0".to_vec(), "binary"),
        ] {
            let error = text_of(&bytes[..], 1 << 20).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("; "), "{error}");
        }
    }
}
