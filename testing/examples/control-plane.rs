//! A control plane for manual tests. It prints the path of its kubeconfig and runs until its input ends or it is
//! signalled.

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
    let (mut interrupted, mut terminated) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = end_of_input() => {}
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
    Ok(plane.stop().await?)
}

/// Reads the input in a thread of its own, because a blocking thread of tokio would keep the process from exiting.
fn end_of_input() -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        let _ = ended.send(());
    });
    end
}
