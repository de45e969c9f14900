//! What is said about a collector that does not take what it is sent: once a minute, and once when it does again.
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::collector::Refused;

const SAID_EVERY: Duration = Duration::from_secs(60);

pub(crate) struct Trouble {
    what: &'static str,
    whither: String,
    said: Mutex<Option<Instant>>,
}

impl Trouble {
    pub(crate) fn new(what: &'static str, whither: String) -> Self {
        Self { what, whither, said: Mutex::default() }
    }

    pub(crate) fn tell(&self, refused: &Refused) {
        if self.is_due() {
            let Self { what, whither, .. } = self;
            tracing::warn!(
                "{what} cannot be sent to {whither}: {refused}; trying on, and saying so once a minute"
            );
        }
    }

    pub(crate) fn over(&self) {
        if self.said.lock().take().is_some() {
            tracing::info!("{} are sent to {} again", self.what, self.whither);
        }
    }

    fn is_due(&self) -> bool {
        let mut said = self.said.lock();
        let due = said.is_none_or(|said| said.elapsed() >= SAID_EVERY);
        if due {
            *said = Some(Instant::now());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_said_at_once_then_once_a_minute_and_anew_after_it_was_over() {
        let trouble = Trouble::new("traces", "http://collector:4317".into());
        let mut said = 0;
        for _ in 0..180 {
            said += usize::from(trouble.is_due());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(said, 3);
        trouble.over();
        assert!(trouble.is_due());
    }
}
