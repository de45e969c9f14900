//! The shell that runs the programs of a control plane, and outlives the test to end them.

use std::{
    fs,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use crate::{Error, eventually::until};

/// Longer than the shell gives all programs to end.
const LIMIT: Duration = Duration::from_secs(120);
const SCRIPT: &str = include_str!("guard.sh");

/// When this is dropped, or the process that has it ends in whatever way, the programs end and their folder goes.
#[derive(Debug)]
pub(super) struct Guard {
    folder: PathBuf,
    orders: ChildStdin,
    given: u32,
    /// Never waited for: it ends after this process does.
    _shell: Child,
}

impl Guard {
    /// Watches over the folder, which it owns from then on. Nothing runs yet.
    pub(super) fn over(folder: &Path, programs: &[&str]) -> Result<Self, Error> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "reknit-testing"])
            .arg(folder)
            .args(programs)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in a terminal ends the whole group of the test; this one has work to do after that.
            .process_group(0)
            .spawn()
            .map_err(Error::Guard)?;
        let orders = shell.stdin.take().ok_or_else(|| Error::Guard(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { folder: folder.to_owned(), orders, given: 0, _shell: shell })
    }

    /// Starts these programs. Whether they serve is for the caller to find out.
    pub(super) async fn start(&mut self, programs: &[&str]) -> Result<(), Error> {
        self.order(&format!("start {}", programs.join(" "))).await
    }

    /// Ends all programs, the last one first.
    pub(super) async fn stop(&mut self) -> Result<(), Error> {
        self.order("stop").await
    }

    /// The exit status of a program that ended.
    pub(super) fn ended(&self, program: &str) -> Option<String> {
        let status = fs::read_to_string(self.folder.join(format!("{program}.ended")));
        status.ok().map(|status| status.trim().to_owned())
    }

    /// Returns true if a program was started and has not ended.
    pub(super) fn is_running(&self, program: &str) -> bool {
        self.folder.join(format!("{program}.pid")).exists() && self.ended(program).is_none()
    }

    async fn order(&mut self, order: &str) -> Result<(), Error> {
        writeln!(self.orders, "{order}").and_then(|()| self.orders.flush()).map_err(Error::Guard)?;
        self.given += 1;
        let (given, done) = (self.given, self.folder.join("orders"));
        let obeyed = until(LIMIT, async || {
            fs::read_to_string(&done).is_ok_and(|done| done.trim().parse() == Ok(given))
        });
        obeyed.await.map_err(|_| Error::Guard(io::ErrorKind::TimedOut.into()))
    }
}
