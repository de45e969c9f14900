//! Asks a running pass for the stack on which it waits.

use std::backtrace::Backtrace;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

/// Asks a pass for the stack on which it waits. The pass answers it while it waits.
#[derive(Debug, Default)]
pub struct StackQuestion {
    asked: Notify,
    answer: Mutex<Option<StackAnswer>>,
}

/// The place at which a pass waits.
#[derive(Debug, Default)]
pub enum WaitPlace {
    /// The stack on which the waker of the pass is held.
    Stack(Backtrace),
    /// Nothing holds the waker, so nothing may ever end the wait.
    Nowhere,
    /// The stack cannot be taken, or the pass goes on by itself.
    #[default]
    Unknown,
}

/// Receives the place at which a pass waits.
pub type StackAnswer = oneshot::Sender<WaitPlace>;

impl StackQuestion {
    /// Asks the pass, and returns the receiver of its answer. An earlier question that has no answer yet gets none.
    pub fn ask(&self) -> oneshot::Receiver<WaitPlace> {
        let (answer, receiver) = oneshot::channel();
        *self.answer.lock() = Some(answer);
        self.asked.notify_one();
        receiver
    }

    /// Waits for a question.
    pub async fn asked(&self) -> StackAnswer {
        loop {
            self.asked.notified().await;
            if let Some(answer) = self.answer.lock().take() {
                return answer;
            }
        }
    }
}
