//! A control plane for manual tests. It prints the path of its kubeconfig and runs until its standard input ends or it
//! gets SIGINT or SIGTERM.

use std::{
    error::Error,
    io::{self, Read},
};

use reknit_testing::ControlPlane;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let plane = ControlPlane::start().await?;
    println!("{}", plane.kubeconfig().display());
    let (mut sigint, mut sigterm) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = end_of_input() => {}
        _ = sigint.recv() => {}
        _ = sigterm.recv() => {}
    }
    Ok(plane.stop().await?)
}

/// Reads standard input in a separate thread, because a blocking thread of tokio would keep the process from exiting.
fn end_of_input() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        let _ = sender.send(());
    });
    receiver
}
