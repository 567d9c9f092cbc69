//! Programs that a test writes and then runs.
//!
//! Linux does not execute a file that a process has open for writing (`ETXTBSY`, "Text file busy"). A child
//! that another thread starts has every open file of its parent until it executes its own program, also files
//! that the parent has closed meanwhile. Another process therefore writes the file.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a shell script to `path`, which every user may execute.
///
/// # Panics
/// If the file cannot be written.
pub fn write_script(path: &Path, text: &str) {
    let mut install = install(Path::new("/dev/stdin"), path);
    let mut child = install.stdin(Stdio::piped()).spawn().expect("install runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).expect("install reads the script");
    drop(input);
    assert!(child.wait().expect("install ends").success(), "{} is written", path.display());
}

/// Copies a program to `path`, which every user may execute.
///
/// # Panics
/// If the program cannot be copied.
pub fn copy_program(program: &Path, path: &Path) {
    let ended = install(program, path).status().expect("install runs");
    assert!(ended.success(), "{} is copied to {}", program.display(), path.display());
}

fn install(source: &Path, path: &Path) -> Command {
    let mut install = Command::new("install");
    install.arg("-m755").arg(source).arg(path);
    install
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the other process, about one of 500 starts fails on two cores.
    #[test]
    fn scripts_run_while_other_threads_start_processes() {
        let folder = tempfile::tempdir().unwrap();
        let write_and_run = |thread: usize| {
            for number in 0..150 {
                let script = folder.path().join(format!("{thread}-{number}"));
                write_script(&script, &format!("exit {thread}"));
                assert_eq!(
                    Command::new(&script).status().unwrap().code(),
                    i32::try_from(thread).ok()
                );
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || write_and_run(thread));
            }
        });
    }
}
