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

/// Receives the stack on which a pass waits. `None` if the pass waits for nothing outside of its task.
pub type StackAnswer = oneshot::Sender<Option<Backtrace>>;

impl StackQuestion {
    /// Asks the pass, and returns the receiver of its answer. An earlier question that has no answer yet gets none.
    pub fn ask(&self) -> oneshot::Receiver<Option<Backtrace>> {
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
