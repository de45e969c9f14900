//! What the controllers within this process log.

use std::{io, sync::OnceLock};

use parking_lot::Mutex;
use tracing_subscriber::filter::LevelFilter;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Takes down every log line of this process from the first call on.
pub(crate) fn record() {
    static RECORDING: OnceLock<()> = OnceLock::new();
    RECORDING.get_or_init(|| {
        let plain = tracing_subscriber::fmt().with_ansi(false).with_max_level(LevelFilter::INFO);
        plain.with_writer(|| Sink).init();
    });
}

/// The lines until now that hold this text anywhere, in a field of a span for example.
pub(crate) fn with(text: &str) -> Vec<String> {
    LINES.lock().iter().filter(|line| line.contains(text)).cloned().collect()
}

struct Sink;

impl io::Write for Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LINES.lock().push(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
