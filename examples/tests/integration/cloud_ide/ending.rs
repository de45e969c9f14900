//! Shutdown of the program while calls are in progress.

use super::ide::{Ide, client, ended, hang_up};
use crate::support::process::Signal;

#[tokio::test(flavor = "multi_thread")]
async fn after_the_first_signal_calls_finish_and_no_more_are_taken() {
    let mut ide = Ide::start().await;
    let (call, _) = ide.waiting("a").await;
    ide.program.signal(Signal::TERM);
    ide.program.line("that it shuts down", |line| line.to_string().contains("shutting down")).await;
    reknit::testing::eventually("no more calls are taken", crate::support::wait::SOON, async || {
        client(&ide.address).get_pod_space_status(ide.query("a")).await.is_err()
    })
    .await;
    assert!(ide.program.is_running() && !call.is_finished(), "{}", ide.program.tail());
    ide.run("a").await;
    assert_eq!(ended(call).await.expect("it runs").ip, "10.1.2.3");
    assert_eq!(ide.program.ended().await.code(), Some(0), "{}", ide.program.tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_whose_last_waiter_hangs_up_while_the_program_ends_still_goes() {
    let mut ide = Ide::start().await;
    let (call, _) = ide.waiting("a").await;
    ide.program.signal(Signal::TERM);
    ide.program.line("that it shuts down", |line| line.to_string().contains("shutting down")).await;
    hang_up(call).await;
    assert_eq!(ide.program.ended().await.code(), Some(0), "{}", ide.program.tail());
    assert_eq!(ide.names().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_signal_ends_it_at_once_with_status_1() {
    let mut ide = Ide::start().await;
    let (_call, _) = ide.waiting("a").await;
    ide.program.signal(Signal::TERM);
    ide.program.line("that it shuts down", |line| line.to_string().contains("shutting down")).await;
    ide.program.signal(Signal::INT);
    assert_eq!(ide.program.ended().await.code(), Some(1), "{}", ide.program.tail());
}
