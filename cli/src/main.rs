//! The program `wattle`.

use std::process::ExitCode;

/// Planning allocates many small objects.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    wattle_cli::run()
}
