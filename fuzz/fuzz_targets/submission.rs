//! The target `submission` of tests/fuzz for cargo-fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let target = wattle_fuzz::target("submission").expect("a target of this name");
    (target.run)(data);
});
