//! Shell.

fn main() {}
