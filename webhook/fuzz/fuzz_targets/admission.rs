//! Bodies as an API server, or anybody else who reaches the webhook, could send them.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| webhook_fuzz::check(input));
