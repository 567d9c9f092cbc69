//! The target `openadr` of tests/fuzz for cargo-fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let target = wattle_fuzz::target("openadr").expect("a target of this name");
    (target.run)(data);
});
