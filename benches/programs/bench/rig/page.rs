//! An open page of the console: its requests, once a second.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::AbortHandle,
    time::sleep,
};

use super::candidate::CONSOLE;

/// The views that the page of passes asks for, the largest one.
const VIEWS: [&str; 2] = ["controllers", "passes"];

/// The open page. Dropping it closes it.
pub(crate) struct Page(AbortHandle);

impl Page {
    /// Opens the page of the console at `CONSOLE`, as soon as the process serves it.
    pub(crate) fn open() -> Self {
        let asks = async {
            loop {
                for view in VIEWS {
                    // The process may not listen yet.
                    let _ = ask(view).await;
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        Self(tokio::spawn(asks).abort_handle())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn ask(view: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(CONSOLE).await?;
    let request =
        format!("GET /debug/reknit/v1/{view} HTTP/1.1\r\nHost: {CONSOLE}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.read_to_end(&mut Vec::new()).await.map(drop)
}
