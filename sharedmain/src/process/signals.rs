//! Signal handling: the first SIGTERM or Ctrl-C starts a graceful shutdown, the second ends the process.
use std::{io, thread};

use tokio::runtime::Builder;

use super::failure::Failure;

/// Calls `on_first` on the first signal, and ends the process with status 1 on the second. A separate thread waits for
/// signals, so that they work while user code blocks all other threads.
pub(super) fn handle(on_first: impl FnOnce(&'static str) + Send + 'static) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::new(format!("failed to install signal handlers: {e}"));
    let runtime = Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let mut signals = {
        let _entered = runtime.enter();
        Signals::new().map_err(failed)?
    };
    let wait = async move {
        on_first(signals.next().await);
        let second = signals.next().await;
        tracing::warn!("received {second} while shutting down: ending at once");
        std::process::exit(1)
    };
    thread::Builder::new().name("signals".into()).spawn(move || runtime.block_on(wait)).map_err(failed)?;
    Ok(())
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}
