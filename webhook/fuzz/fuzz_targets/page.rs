//! Pages of lists, as a broken API server or proxy could send them.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| webhook_fuzz::check_page(input));
