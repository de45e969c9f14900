//! The shell that runs the programs of a control plane, and outlives the test to end them.

use std::{
    fs,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use super::Error;

const SCRIPT: &str = include_str!("guard.sh");

/// When this is dropped, or the process that has it ends in whatever way, the programs end and their folder goes.
#[derive(Debug)]
pub(super) struct Guard {
    folder: PathBuf,
    orders: ChildStdin,
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
        Ok(Self { folder: folder.to_owned(), orders, _shell: shell })
    }

    /// Starts the programs. Whether they serve is for the caller to find out.
    pub(super) fn start(&mut self, programs: &[&str]) -> Result<(), Error> {
        for program in programs {
            forget(&self.ended_path(program))?;
        }
        self.order("start")
    }

    /// Asks the programs to end, the last one started first.
    pub(super) fn stop(&mut self) -> Result<(), Error> {
        self.order("stop")
    }

    /// The exit status of a program that ended.
    pub(super) fn ended(&self, program: &str) -> Option<String> {
        fs::read_to_string(self.ended_path(program)).ok().map(|status| status.trim().to_owned())
    }

    fn ended_path(&self, program: &str) -> PathBuf {
        self.folder.join(format!("{program}.ended"))
    }

    fn order(&mut self, order: &str) -> Result<(), Error> {
        writeln!(self.orders, "{order}").and_then(|()| self.orders.flush()).map_err(Error::Guard)
    }
}

fn forget(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    }
}
