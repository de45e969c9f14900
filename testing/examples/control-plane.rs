//! A control plane to try things on: prints the path of its kubeconfig, and stays until its input ends or it is told to
//! stop.

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

/// Read by a thread of its own: one of tokio's would keep the process from ending.
fn end_of_input() -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        let _ = ended.send(());
    });
    end
}
