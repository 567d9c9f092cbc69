//! `wattle-web`.

fn main() {}
