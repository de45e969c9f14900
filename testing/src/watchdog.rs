//! The end of child processes together with this process.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

/// Reads from the pipe until it is closed, and stops the process $1: by SIGTERM, and by SIGKILL after five seconds.
const SCRIPT: &str = r#"read -r _; kill "$1" && sleep 5 && kill -KILL "$1""#;

/// Stops a child process once this process has ended for whatever reason, also by SIGKILL or because its terminal was
/// closed: a shell reads from a pipe that only this process holds open.
#[derive(Debug)]
pub struct Watchdog {
    shell: Child,
}

impl Watchdog {
    /// Watches over the child process with this id. Drop the value when the child has ended, since its id may then
    /// belong to another process.
    ///
    /// # Errors
    ///
    /// Fails if no shell can be run.
    pub fn of(process_id: u32) -> io::Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "reknit-watchdog", &process_id.to_string()]);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A terminal signals the whole process group, which the shell has to survive.
        Ok(Self { shell: shell.process_group(0).spawn()? })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // It has exited already if this fails.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::Path, time::Duration};

    use super::*;
    use crate::eventually;

    const LIMIT: Duration = Duration::from_secs(30);
    /// The environment variable with the file to which [`hold_a_child_until_the_process_ends`] writes the child's id.
    const FILE: &str = "REKNIT_TESTING_HOLD_A_CHILD";

    fn is_alive(process_id: &str) -> bool {
        Path::new("/proc").join(process_id).join("exe").exists()
    }

    #[test]
    fn hold_a_child_until_the_process_ends() {
        let Some(file) = env::var_os(FILE) else { return };
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let _watchdog = Watchdog::of(child.id()).unwrap();
        fs::write(file, format!("{}\n", child.id())).unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_child_ends_after_its_parent_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("id");
        let mut parent = Command::new(env::current_exe().unwrap());
        parent.args(["--exact", "watchdog::tests::hold_a_child_until_the_process_ends"]).env(FILE, &file);
        let mut parent = parent.stdout(Stdio::null()).spawn().unwrap();
        let started = eventually("the child of another process", LIMIT, async || {
            fs::read_to_string(&file).ok().filter(|id| id.ends_with('\n')).ok_or("it has not started")
        });
        let child = started.await.trim().to_owned();
        assert!(is_alive(&child));
        parent.kill().unwrap();
        parent.wait().unwrap();
        eventually(
            "the end of the child",
            LIMIT,
            async || if is_alive(&child) { Err("it runs") } else { Ok(()) },
        )
        .await;
    }

    #[test]
    fn a_dropped_watchdog_leaves_the_process_alone() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        drop(Watchdog::of(child.id()).unwrap());
        assert!(matches!(child.try_wait(), Ok(None)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
