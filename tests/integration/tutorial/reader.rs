//! Executes the steps of a tutorial as its reader would.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use regex::Regex;
use rustix::process::{Pid, Signal, kill_process};

use super::blocks::Step;
use crate::support::cargo::{emptied_folder, reuse_build_cache};

type TestResult = Result<(), Box<dyn Error>>;

const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// A reader's environment: a home folder with a kubeconfig and a checkout of reknit, the current folder, and the
/// program that runs in the background.
pub(crate) struct Reader {
    home: PathBuf,
    folder: PathBuf,
    running: Option<Child>,
}

impl Reader {
    pub(crate) fn new(kubeconfig: &Path) -> Result<Self, Box<dyn Error>> {
        // Outside the workspace, because cargo rejects a project inside a workspace of which it is not a member.
        let home = emptied_folder("tutorial");
        fs::create_dir_all(home.join(".kube"))?;
        fs::copy(kubeconfig, home.join(".kube/config"))?;
        std::os::unix::fs::symlink(super::ROOT, home.join("reknit"))?;
        // The same profile for dependencies as in the workspace, so that cargo reuses them.
        fs::create_dir_all(home.join(".cargo"))?;
        fs::write(home.join(".cargo/config.toml"), "[profile.dev.package.\"*\"]\ndebug = false\n")?;
        Ok(Self { folder: home.clone(), home, running: None })
    }

    pub(crate) fn write(&self, path: &str, text: &str) -> TestResult {
        println!("writing {path}");
        assert!(self.folder.join(path).exists(), "{path} does not exist: the tutorial only replaces files");
        Ok(fs::write(self.folder.join(path), text)?)
    }

    /// Applies a diff: lines with a minus are removed, lines with a plus are added, and other lines are context.
    pub(crate) fn change(&self, path: &str, diff: &str) -> TestResult {
        println!("changing {path}");
        let lines_without = |marker: char| -> String {
            let lines = diff.lines().filter(|line| !line.starts_with(marker));
            lines.map(|line| format!("{}\n", line.get(1..).unwrap_or_default())).collect()
        };
        let (old, new) = (lines_without('+'), lines_without('-'));
        let text = fs::read_to_string(self.folder.join(path))?;
        assert_eq!(text.matches(&old).count(), 1, "{path} has to contain these lines once:\n{old}\n{text}");
        Ok(fs::write(self.folder.join(path), text.replace(&old, &new))?)
    }

    pub(crate) fn run(&mut self, step: &Step) -> TestResult {
        println!("$ {}", step.command);
        if let Some(folder) = step.command.strip_prefix("cd ") {
            self.folder = self.folder.join(folder);
            return Ok(());
        }
        let result = self.shell(&format!("({}) 2>&1", step.command)).output()?;
        let output = String::from_utf8_lossy(&result.stdout);
        // Indented, because a failed test of the reader's project is not a failed test of this one.
        output.lines().for_each(|line| println!("    {line}"));
        assert!(result.status.success(), "{}: {}\n{output}", step.command, result.status);
        if !step.output.is_empty() {
            assert!(
                matches_output(&step.output, &output)?,
                "{} printed\n{output}\ninstead of\n{:?}",
                step.command,
                step.output
            );
        }
        Ok(())
    }

    /// Builds the program, and starts it in the background.
    pub(crate) fn start(&mut self, steps: &[Step]) -> TestResult {
        let [step] = steps else { return Err("a background block needs exactly one command".into()) };
        println!("$ {} (in the background)", step.command);
        assert!(self.shell("cargo build").status()?.success());
        self.running = Some(self.shell(&format!("exec {}", step.command)).spawn()?);
        Ok(())
    }

    /// Starts the program that was built last as it would run in a cluster: with the kubeconfig of a service account
    /// and with leader election in `namespace`.
    pub(crate) fn start_as_service_account(&mut self, kubeconfig: &Path, namespace: &str) -> TestResult {
        let mut command = Command::new(target_folder().join("debug/greetings"));
        command.arg("--kubeconfig").arg(kubeconfig).args(["--bind-address", "127.0.0.1"]);
        self.running =
            Some(self.with_reader_environment(&mut command).env("SYSTEM_NAMESPACE", namespace).spawn()?);
        Ok(())
    }

    /// Sends SIGINT to the background program, as Ctrl-C does, and waits until it has exited.
    pub(crate) fn stop(&mut self) -> TestResult {
        println!("^C");
        let mut running = self.running.take().ok_or("no program is running")?;
        kill_process(Pid::from_child(&running), Signal::INT)?;
        let deadline = Instant::now() + EXIT_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = running.try_wait()? {
                assert!(status.success(), "the program exited with {status}");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        running.kill()?;
        Err(format!("the program did not exit within {EXIT_TIMEOUT:?}").into())
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", line]);
        self.with_reader_environment(&mut command);
        command
    }

    fn with_reader_environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        // The toolchain and the crates of the user, not of the reader's home folder.
        let users_folder = |name: &str, folder: &str| env::var_os(name).unwrap_or(home.join(folder).into());
        let assets = env::var("KUBEBUILDER_ASSETS").unwrap_or_default();
        // `cargo-reknit` is in the target folder.
        let programs = target_folder().join("debug");
        let path = format!("{assets}:{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
        reuse_build_cache(command)
            .current_dir(&self.folder)
            .env_remove("KUBECONFIG")
            .env("PATH", path)
            .env("HOME", &self.home)
            .env("CARGO_HOME", users_folder("CARGO_HOME", ".cargo"))
            .env("RUSTUP_HOME", users_folder("RUSTUP_HOME", ".rustup"))
            .env("CARGO_TARGET_DIR", target_folder())
            // Port 0: a free port.
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
fn target_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().map(Into::into).unwrap_or_default()
}

/// Returns true if the output consists of the expected lines. The line `…` matches any number of lines, and `…` within
/// a line matches any text.
fn matches_output(expected: &[String], output: &str) -> Result<bool, regex::Error> {
    let pattern = |line: &String| match line.as_str() {
        "…" => "(.*\n)*".to_owned(),
        line => regex::escape(line).replace('…', ".*") + "\n",
    };
    let patterns: String = expected.iter().map(pattern).collect();
    let output: String = output.lines().map(|line| format!("{line}\n")).collect();
    Ok(Regex::new(&format!("^{patterns}$"))?.is_match(&output))
}
