//! The name of a running process, unique over restarts and machines.

use crate::clock;

/// Machine, process and start of this process, for people.
#[must_use]
pub fn name() -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (pid, began) = (std::process::id(), clock::started_at().as_us());
    format!("{}, process {pid}, started {began}", machine.trim())
}

#[cfg(test)]
mod tests {
    #[test]
    fn name_of_a_process_does_not_change() {
        assert_eq!(super::name(), super::name());
    }
}
