//! The shell process that runs the programs of a control plane. It outlives the test process, to stop the programs.

use std::{
    fs,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use crate::{Error, eventually::until};

/// The time limit of one order: longer than the shell waits for all programs to exit.
const LIMIT: Duration = Duration::from_secs(120);
/// The action that fails if the shell does not answer.
const SHELL: &str = "reach the shell that runs the programs of the control plane";
const SCRIPT: &str = include_str!("guard.sh");

/// A handle on the shell. When it is dropped, or the test process exits for whatever reason, the shell stops the
/// programs and removes their folder.
#[derive(Debug)]
pub(super) struct Guard {
    folder: PathBuf,
    orders: ChildStdin,
    orders_sent: u32,
    /// Never waited for, because the shell exits only after this handle is dropped, possibly after this process.
    _shell: Child,
}

impl Guard {
    /// Starts the shell, which owns the folder from then on. No program runs yet.
    pub(super) fn spawn(folder: &Path, programs: &[&str]) -> Result<Self, Error> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "reknit-testing"])
            .arg(folder)
            .args(programs)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in a terminal signals the whole process group of the test. The shell must survive it to clean up.
            .process_group(0)
            .spawn()
            .map_err(Error::cannot(SHELL))?;
        let orders = shell
            .stdin
            .take()
            .ok_or(io::Error::from(io::ErrorKind::BrokenPipe))
            .map_err(Error::cannot(SHELL))?;
        Ok(Self { folder: folder.to_owned(), orders, orders_sent: 0, _shell: shell })
    }

    /// Starts these programs. The caller has to wait until they are ready.
    pub(super) async fn start(&mut self, programs: &[&str]) -> Result<(), Error> {
        self.send_order(&format!("start {}", programs.join(" "))).await
    }

    /// Stops all programs, the last one first.
    pub(super) async fn stop(&mut self) -> Result<(), Error> {
        self.send_order("stop").await
    }

    /// Returns the exit status of a program that has exited.
    pub(super) fn exit_status(&self, program: &str) -> Option<String> {
        let status = fs::read_to_string(self.folder.join(format!("{program}.ended")));
        status.ok().map(|status| status.trim().to_owned())
    }

    /// Returns true if a program was started and has not exited.
    pub(super) fn is_running(&self, program: &str) -> bool {
        self.folder.join(format!("{program}.pid")).exists() && self.exit_status(program).is_none()
    }

    /// Sends an order and waits until the shell has carried it out.
    async fn send_order(&mut self, order: &str) -> Result<(), Error> {
        writeln!(self.orders, "{order}").and_then(|()| self.orders.flush()).map_err(Error::cannot(SHELL))?;
        self.orders_sent += 1;
        let (orders_sent, count_file) = (self.orders_sent, self.folder.join("orders"));
        let completed = until(LIMIT, async || {
            fs::read_to_string(&count_file).is_ok_and(|count| count.trim().parse() == Ok(orders_sent))
        });
        completed.await.map_err(Error::cannot(SHELL))
    }
}
