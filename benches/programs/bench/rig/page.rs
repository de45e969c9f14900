//! An open page of the console: its requests, once a second.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::AbortHandle,
    time::sleep,
};

use super::candidate::CONSOLE;
use crate::Result;

/// The views that the page of passes asks for, the largest one.
const VIEWS: [&str; 2] = ["controllers", "passes"];

/// The open page. Dropping it closes it.
pub(crate) struct Page {
    task: AbortHandle,
    answers: Arc<AtomicUsize>,
}

impl Page {
    /// Opens the page of the console at `CONSOLE`, as soon as the process serves it.
    pub(crate) fn open() -> Self {
        let answers = Arc::<AtomicUsize>::default();
        let answered = answers.clone();
        let asks = async move {
            loop {
                for view in VIEWS {
                    // The process may not listen yet.
                    if let Ok(true) = ask(view).await {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        Self { task: tokio::spawn(asks).abort_handle(), answers }
    }

    /// Closes the page. Returns the number of answers that it has shown, or an error if there was none.
    pub(crate) fn close(self) -> Result<usize> {
        match self.answers.load(Ordering::Relaxed) {
            0 => Err("the console has given no answer to its page".into()),
            answers => Ok(answers),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns true if the console has answered with the view.
async fn ask(view: &str) -> io::Result<bool> {
    let mut stream = TcpStream::connect(CONSOLE).await?;
    let request =
        format!("GET /debug/reknit/v1/{view} HTTP/1.1\r\nHost: {CONSOLE}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200 "))
}
