//! Request bodies that any client could send to the webhook.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| webhook_fuzz::check(input));
