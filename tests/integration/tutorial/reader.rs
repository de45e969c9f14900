//! A reader who follows a tutorial.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::blocks::Step;
use crate::support::cargo::{stable_folder, without_test_variables};

type Done = Result<(), Box<dyn Error>>;

const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// The reader's environment: a home with a kubeconfig, a checkout of reknit, and the current folder of a terminal.
pub(crate) struct Reader {
    home: PathBuf,
    folder: PathBuf,
    running: Option<Child>,
}

impl Reader {
    pub(crate) fn new(kubeconfig: &Path) -> Result<Self, Box<dyn Error>> {
        // Outside the workspace, because cargo would take the project for a member.
        let home = stable_folder("tutorial");
        fs::create_dir_all(home.join(".kube"))?;
        fs::copy(kubeconfig, home.join(".kube/config"))?;
        std::os::unix::fs::symlink(super::ROOT, home.join("reknit"))?;
        // The workspace's profile for dependencies, so that they are not built again.
        fs::create_dir_all(home.join(".cargo"))?;
        fs::write(home.join(".cargo/config.toml"), "[profile.dev.package.\"*\"]\ndebug = false\n")?;
        Ok(Self { folder: home.clone(), home, running: None })
    }

    pub(crate) fn write(&self, path: &str, text: &str) -> Done {
        println!("writes {path}");
        assert!(self.folder.join(path).exists(), "{path} does not exist; write() only replaces files");
        Ok(fs::write(self.folder.join(path), text)?)
    }

    /// Applies a diff: lines with a minus are removed, lines with a plus are added, and other lines are context.
    pub(crate) fn change(&self, path: &str, diff: &str) -> Done {
        println!("changes {path}");
        let lines_without = |marker: char| -> String {
            let lines = diff.lines().filter(|line| !line.starts_with(marker));
            lines.map(|line| format!("{}\n", line.get(1..).unwrap_or_default())).collect()
        };
        let (old, new, before) =
            (lines_without('+'), lines_without('-'), fs::read_to_string(self.folder.join(path))?);
        assert_eq!(before.matches(&old).count(), 1, "{path} has these lines once:\n{old}\n{before}");
        Ok(fs::write(self.folder.join(path), before.replace(&old, &new))?)
    }

    pub(crate) fn run(&mut self, step: &Step) -> Done {
        println!("$ {}", step.command);
        if let Some(folder) = step.command.strip_prefix("cd ") {
            self.folder = self.folder.join(folder);
            return Ok(());
        }
        let answer = self.shell(&format!("({}) 2>&1", step.command)).output()?;
        let said = String::from_utf8_lossy(&answer.stdout);
        println!("{said}");
        assert!(answer.status.success(), "{}: {}\n{said}", step.command, answer.status);
        if !step.prints.is_empty() {
            assert!(
                is_printed(&step.prints, &said),
                "{} prints\n{said}\nand not\n{:?}",
                step.command,
                step.prints
            );
        }
        Ok(())
    }

    /// Builds the program, and leaves it running.
    pub(crate) fn start(&mut self, steps: &[Step]) -> Done {
        let [step] = steps else { return Err("expected exactly one command to leave running".into()) };
        println!("$ {} (left running)", step.command);
        assert!(self.shell("cargo build").status()?.success());
        self.running = Some(self.shell(&format!("exec {}", step.command)).spawn()?);
        Ok(())
    }

    /// Runs the built program locally, with the service account and the namespace that its Deployment would have.
    pub(crate) fn start_deployed(&mut self, kubeconfig: &Path, namespace: &str) -> Done {
        let program = target().join("debug/greeting-controller");
        let mut command = Command::new(program);
        command.arg("--kubeconfig").arg(kubeconfig).args(["--bind-address", "127.0.0.1"]);
        self.running = Some(self.as_reader(&mut command).env("SYSTEM_NAMESPACE", namespace).spawn()?);
        Ok(())
    }

    /// Stops the program by Ctrl-C.
    pub(crate) fn stop(&mut self) -> Done {
        println!("^C");
        let mut running = self.running.take().ok_or("nothing runs")?;
        kill_process(Pid::from_child(&running), Signal::INT)?;
        let until = Instant::now() + ENDS_WITHIN;
        while Instant::now() < until {
            if let Some(status) = running.try_wait()? {
                assert!(status.success(), "it ended with {status}");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        running.kill()?;
        Err("it did not end".into())
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", line]);
        self.as_reader(&mut command);
        command
    }

    fn as_reader<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let real_folder = |name: &str, folder: &str| env::var_os(name).unwrap_or(home.join(folder).into());
        let assets = env::var("KUBEBUILDER_ASSETS").unwrap_or_default();
        let path = format!("{assets}:{}", env::var("PATH").unwrap_or_default());
        without_test_variables(command)
            .current_dir(&self.folder)
            .env_remove("KUBECONFIG")
            .env("PATH", path)
            .env("HOME", &self.home)
            .env("CARGO_HOME", real_folder("CARGO_HOME", ".cargo"))
            .env("RUSTUP_HOME", real_folder("RUSTUP_HOME", ".rustup"))
            .env("CARGO_TARGET_DIR", target())
            // Port 0 selects free ports.
            .env("KNATIVE_HEALTH_PROBES_PORT", "0")
            .env("METRICS_PROMETHEUS_PORT", "0")
            .stdin(Stdio::null())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.kill();
            let _ = running.wait();
        }
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// The target folder of the workspace, so that a fresh project builds in seconds.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().map(Into::into).unwrap_or_default()
}

/// Returns true if the output is exactly these lines. A line of `…` matches any number of lines, and `…` within a line
/// matches any text.
fn is_printed(wanted: &[String], said: &str) -> bool {
    let mut lines = said.lines().peekable();
    let mut anywhere = false;
    for want in wanted {
        if want == "…" {
            anywhere = true;
        } else if anywhere {
            if !lines.any(|line| is_like(want, line)) {
                return false;
            }
            anywhere = false;
        } else if !lines.next().is_some_and(|line| is_like(want, line)) {
            return false;
        }
    }
    anywhere || lines.next().is_none()
}

fn is_like(want: &str, line: &str) -> bool {
    let mut parts = want.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    for part in parts {
        match rest.split_once(part) {
            // The line ends in `…`.
            _ if part.is_empty() => rest = "",
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.is_empty()
}
