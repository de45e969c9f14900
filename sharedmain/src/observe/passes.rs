//! The dump of the running passes at `/debug/passes`, as text.

use std::{fmt::Write, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use reknit_reconciler::{
    Health,
    internal::{ENDLESS, PassLog, WaitingPass},
};
use tokio::sync::Mutex;

/// The maximum number of paused keys of each controller in a dump.
const MAX_PAUSED: usize = 1000;

/// Dumps the running passes and the paused keys of a process.
#[derive(Clone)]
pub(crate) struct Passes(Arc<Inner>);

struct Inner {
    log: PassLog,
    controllers: Vec<Health>,
    /// Held by a dump, so that many clients together cause no more work than one.
    dump: Mutex<()>,
}

impl Passes {
    pub(crate) fn new(log: PassLog, controllers: Vec<Health>) -> Self {
        Self(Arc::new(Inner { log, controllers, dump: Mutex::default() }))
    }

    pub(crate) fn router(&self) -> Router {
        Router::new().route("/debug/passes", get(dump)).with_state(self.clone())
    }

    fn text(&self, passes: &[WaitingPass]) -> String {
        let mut text = format!("running passes: {}\n", passes.len());
        for pass in passes {
            text.push('\n');
            text.push_str(&pass_text(pass));
        }
        text.push_str("\npaused keys:\n");
        for controller in &self.0.controllers {
            for key in controller.paused(MAX_PAUSED) {
                let _ = writeln!(text, "  {} {key}", controller.name());
            }
        }
        text
    }
}

async fn dump(State(passes): State<Passes>) -> Response {
    let _one_dump = passes.0.dump.lock().await;
    let waiting = passes.0.log.waiting(|_| true).await;
    let passes = passes.clone();
    // On a blocking thread, because the names of functions are read from files.
    match tokio::task::spawn_blocking(move || passes.text(&waiting)).await {
        Ok(text) => text.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

fn pass_text(waiting: &WaitingPass) -> String {
    let pass = &waiting.pass;
    let mut lines = vec![
        format!(
            "{} {}, pass {}, for {:.1} s",
            pass.controller,
            pass.key,
            pass.number,
            pass.begun.elapsed().as_secs_f64()
        ),
        format!("  causes: {}", waiting.causes),
    ];
    lines.extend(waits_of(waiting).iter().map(|line| format!("  {line}")));
    lines.join("\n") + "\n"
}

/// Returns the lines about what a pass waits for: its requests and its stack. Reads the names on the stack, which may take a
/// second in a large program.
pub(crate) fn waits_of(waiting: &WaitingPass) -> Vec<String> {
    let waits = waiting.waits();
    let requests = waits.requests.iter().map(|request| format!("waits for the answer to {request}"));
    let mut lines: Vec<_> = requests.collect();
    match &waits.stack {
        Some(stack) => {
            lines.push(format!("waits for {}", stack.awaited));
            lines.extend(stack.program.iter().map(|frame| format!("  in {frame}")));
        }
        None if waits.may_be_endless => lines.push(format!("waits {ENDLESS}")),
        None if waiting.has_answered => {
            lines.push("no stack: the program has no symbols, or the pass goes on".into());
        }
        None if waits.requests.is_empty() => {
            lines.push("its code has not returned for a second: it computes, or blocks a thread".into());
        }
        None => {}
    }
    lines
}
