//! The log of the controllers that run within the test process.

use std::{io, sync::OnceLock};

use parking_lot::Mutex;
use tracing_subscriber::filter::LevelFilter;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records every log line of this process from the first call on.
pub(crate) fn record() {
    static RECORDING: OnceLock<()> = OnceLock::new();
    RECORDING.get_or_init(|| {
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(LevelFilter::INFO);
        subscriber.with_writer(|| LineWriter).init();
    });
}

/// The lines so far that contain this text in the message or in a field.
pub(crate) fn lines_with(text: &str) -> Vec<String> {
    LINES.lock().iter().filter(|line| line.contains(text)).cloned().collect()
}

/// Appends to [`LINES`]. The subscriber writes each line in one call.
struct LineWriter;

impl io::Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LINES.lock().push(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
