//! Shutdown of the program while calls are in progress.

use reknit::testing::eventually;

use super::ide::{Ide, cancel, client, result};
use crate::support::{
    process::{SendSignal, Signal},
    wait::TIMEOUT,
};

#[tokio::test(flavor = "multi_thread")]
async fn after_the_first_signal_open_calls_finish_and_new_ones_are_refused() {
    let mut ide = Ide::start().await;
    let (call, _) = ide.create_and_wait_for_pod("a").await;
    ide.program.signal(Signal::TERM);
    ide.program.wait_for_line("the shutdown", |line| line.to_string().contains("shutting down")).await;
    eventually("new calls fail", TIMEOUT, async || {
        client(&ide.address).get_pod_space_status(ide.query("a")).await.is_err()
    })
    .await;
    assert!(ide.program.is_running() && !call.is_finished(), "{}", ide.program.last_lines());
    ide.set_running("a").await;
    assert_eq!(result(call).await.expect("it runs").ip, "10.1.2.3");
    assert_eq!(ide.program.wait_for_exit().await.code(), Some(0), "{}", ide.program.last_lines());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_whose_last_call_is_cancelled_during_shutdown_is_deleted() {
    let mut ide = Ide::start().await;
    let (call, _) = ide.create_and_wait_for_pod("a").await;
    ide.program.signal(Signal::TERM);
    ide.program.wait_for_line("the shutdown", |line| line.to_string().contains("shutting down")).await;
    cancel(call).await;
    assert_eq!(ide.program.wait_for_exit().await.code(), Some(0), "{}", ide.program.last_lines());
    assert_eq!(ide.pod_names().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_signal_ends_the_program_at_once_with_status_1() {
    let mut ide = Ide::start().await;
    let (_call, _) = ide.create_and_wait_for_pod("a").await;
    ide.program.signal(Signal::TERM);
    ide.program.wait_for_line("the shutdown", |line| line.to_string().contains("shutting down")).await;
    ide.program.signal(Signal::INT);
    assert_eq!(ide.program.wait_for_exit().await.code(), Some(1), "{}", ide.program.last_lines());
}
