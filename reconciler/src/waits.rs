//! The things that a pass waits for: answers of the API server, or the code of the reconciler.

use std::{backtrace::Backtrace, fmt};

use reknit_injection::internal::{CurrentPass, PassRequest};

use crate::stack::Stack;

/// The maximum number of requests that a text names.
const MAX_NAMED: usize = 3;

/// The requests whose answer a pass waits for, and the stack on which it waits. Formats as
/// `for the answer to get pods shop/web (58 s) in lamps::probe at src/probe.rs:41`, and as nothing if neither is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The requests, with their ages.
    pub requests: Vec<String>,
    /// The stack. `None` if it cannot be taken.
    pub stack: Option<Stack>,
}

impl Waits {
    /// Reads the names on a stack of the pass, which may take a second in a large program.
    pub(crate) fn of(pass: Option<&CurrentPass>, stack: Option<&Backtrace>) -> Self {
        let age = |request: &PassRequest| format!("{request} ({} s)", request.begun.elapsed().as_secs());
        let requests = |pass: &CurrentPass| pass.requests.lock().pending().map(age).collect();
        Self { requests: pass.map_or_else(Vec::new, requests), stack: stack.and_then(Stack::resolve) }
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = &self.requests[..self.requests.len().min(MAX_NAMED)];
        let mut space = "";
        if !named.is_empty() {
            write!(f, "for the answer to {}", named.join(", "))?;
            space = " ";
        }
        if self.requests.len() > named.len() {
            write!(f, " and to {} more requests", self.requests.len() - named.len())?;
        }
        self.stack.as_ref().map_or(Ok(()), |stack| write!(f, "{space}in {stack}"))
    }
}
