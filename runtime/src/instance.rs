//! The name of a running process, unique over restarts and machines.

use crate::clock;

/// The name of this machine.
#[must_use]
pub fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Machine, process and start of this process, for people.
#[must_use]
pub fn name() -> String {
    let (pid, began) = (std::process::id(), clock::started_at().as_us());
    format!("{}, process {pid}, started {began}", machine())
}

#[cfg(test)]
mod tests {
    #[test]
    fn name_of_a_process_does_not_change() {
        assert_eq!(super::name(), super::name());
    }
}
