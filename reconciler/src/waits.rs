//! The things that a pass waits for: answers of the API server, or the code of the reconciler.

use std::fmt;

use reknit_injection::internal::{CurrentPass, PassRequest, WaitPlace};

use crate::stack::Stack;

/// The maximum number of requests that a text names.
const MAX_NAMED: usize = 3;

/// The text for a pass whose waker nothing holds.
pub const ENDLESS: &str = "for something that keeps no waker, such as future::pending, and may never end";

/// The requests whose answer a pass waits for, and the stack on which it waits. Formats as
/// `for the answer to get pods shop/web (58 s) in lamps::probe at src/probe.rs:41`, and as nothing if neither is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The requests, with their ages.
    pub requests: Vec<String>,
    /// The stack. `None` if it cannot be taken.
    pub stack: Option<Stack>,
    /// True if nothing holds the waker of the pass, and no request is pending.
    pub may_be_endless: bool,
}

impl Waits {
    /// Reads the names on a stack of the pass, which may take a second in a large program.
    pub(crate) fn of(pass: Option<&CurrentPass>, place: &WaitPlace) -> Self {
        let age = |request: &PassRequest| format!("{request} ({} s)", request.begun.elapsed().as_secs());
        let requests = |pass: &CurrentPass| pass.requests.lock().pending().map(age).collect();
        let requests = pass.map_or_else(Vec::new, requests);
        let may_be_endless = matches!(place, WaitPlace::Nowhere) && requests.is_empty();
        let stack = match place {
            WaitPlace::Stack(stack) => Stack::resolve(stack),
            WaitPlace::Nowhere | WaitPlace::Unknown => None,
        };
        Self { requests, stack, may_be_endless }
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
        match &self.stack {
            Some(stack) => write!(f, "{space}in {stack}"),
            None if self.may_be_endless => f.write_str(ENDLESS),
            None => Ok(()),
        }
    }
}
