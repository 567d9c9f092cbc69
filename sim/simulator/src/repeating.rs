//! Step functions that repeat, carbon intensity and electricity price over time: their files and integrals.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Largest file of a series, bytes.
const BYTES_MAX: u64 = 1 << 28;

/// The name and the bytes of a series' file.
pub(crate) fn read_file(path: &Path) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::other("larger than any series of carbon intensity or prices"));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok((name, bytes))
}

/// Integral over time, in the unit of `value` times microseconds. `steps` has the start of each step in
/// microseconds, ascending from 0; the function repeats after `period_us`.
pub(crate) fn integral<T>(
    steps: &[(u64, T)],
    period_us: u64,
    value: impl Fn(&T) -> i128,
    from_us: u64,
    until_us: u64,
) -> i128 {
    let of_steps = |from_us: u64, until_us: u64| {
        let mut sum = 0i128;
        let mut at = from_us;
        while at < until_us {
            let in_period = at % period_us;
            let i = steps.partition_point(|(from, _)| *from <= in_period) - 1;
            let step_end = steps.get(i + 1).map_or(period_us, |(from, _)| *from);
            let end = until_us.min(at - in_period + step_end);
            sum += value(&steps[i].1) * i128::from(end - at);
            at = end;
        }
        sum
    };
    // Full periods are multiplied, so that a long run over a short series stays cheap.
    let whole = until_us.saturating_sub(from_us) / period_us;
    let mut sum = 0i128;
    if whole > 0 {
        sum = i128::from(whole) * of_steps(0, period_us);
    }
    sum + of_steps(from_us + whole * period_us, until_us)
}
