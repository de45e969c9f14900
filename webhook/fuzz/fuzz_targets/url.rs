//! URLs and references that users write.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| webhook_fuzz::check_url(input));
