//! A process under test: its command, its output and its exit status.
use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use crate::scenarios;

/// A timeout that only a failing test reaches.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The command of a process, with a minimal environment, an empty home and free ports.
pub(crate) struct TestCommand {
    command: Command,
    home: tempfile::TempDir,
}

impl TestCommand {
    pub(crate) fn new() -> Self {
        Self::with_scenario("none")
    }

    /// Selects one of the scenarios in `scenarios.rs`.
    pub(crate) fn with_scenario(scenario: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env_clear().envs([scenarios::scenario_variable(scenario)]).env("HOME", home.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let ports = ["KNATIVE_HEALTH_PROBES_PORT", "METRICS_PROMETHEUS_PORT", "PROFILING_PORT"];
        command.envs(ports.map(|port| (port, "0")));
        command.args(["--bind-address", "127.0.0.1"]);
        Self { command, home }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<const N: usize>(mut self, args: [&str; N]) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts the process with another limit of open files, as in `ulimit -Sn 64`.
    pub(crate) fn open_files(mut self, limit: &str) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]);
        shell.arg(self.command.get_program()).args(self.command.get_args()).env_clear();
        shell.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        self.command = shell;
        self
    }

    /// Writes a file into the home of the process.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn spawn(mut self) -> Child {
        let mut child = self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = Arc::new(Output::default());
        let (stderr, stdout) = (child.stderr.take().unwrap(), child.stdout.take().unwrap());
        let readers = vec![output.clone().read(stderr), output.clone().read(stdout)];
        Child { child, output, readers, _home: self.home }
    }

    /// Runs the process to its end. Returns the exit status and all lines.
    pub(crate) fn run(self) -> (i32, Vec<String>) {
        self.spawn().wait()
    }
}

/// The lines that a process has written to standard error and standard output.
#[derive(Default)]
struct Output {
    lines: Mutex<Vec<String>>,
    line_added: Condvar,
}

impl Output {
    fn read(self: Arc<Self>, pipe: impl std::io::Read + Send + 'static) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                self.lines.lock().unwrap().push(line);
                self.line_added.notify_all();
            }
        })
    }
}

/// A running process. It is killed on drop.
pub(crate) struct Child {
    child: std::process::Child,
    output: Arc<Output>,
    readers: Vec<thread::JoinHandle<()>>,
    _home: tempfile::TempDir,
}

impl Child {
    /// Waits for a line that contains the text, and returns the first one.
    pub(crate) fn wait_for_line(&self, text: &str) -> String {
        let lines = self.output.lines.lock().unwrap();
        let is_missing = |lines: &mut Vec<String>| !lines.iter().any(|line| line.contains(text));
        let (lines, _) = self.output.line_added.wait_timeout_while(lines, TIMEOUT, is_missing).unwrap();
        let found = lines.iter().find(|line| line.contains(text)).cloned();
        found.unwrap_or_else(|| panic!("no line with {text:?} in {lines:#?}"))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.output.lines.lock().unwrap().clone()
    }

    /// Waits until the process listens for this purpose, and returns the address.
    pub(crate) fn wait_for_address(&self, purpose: &str) -> String {
        let line = self.wait_for_line(&format!("listening for {purpose}"));
        parse_line(&line)["address"].as_str().unwrap().to_owned()
    }

    /// Returns the resident memory of the process in MiB.
    pub(crate) fn resident_mib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Waits for the end of the process. Returns the exit status and all lines.
    pub(crate) fn wait(mut self) -> (i32, Vec<String>) {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if start.elapsed() < TIMEOUT => thread::sleep(Duration::from_millis(5)),
                None => panic!("the process does not end: {:#?}", self.lines()),
            }
        };
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        (status.code().unwrap_or(-1), self.lines())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn parse_line(line: &str) -> serde_json::Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))
}

/// Checks that the process ended with status 1 and one error after lines of severity INFO. Returns the error's message.
#[track_caller]
pub(crate) fn failed_with_one_line((status, lines): (i32, Vec<String>)) -> String {
    assert_eq!(status, 1, "{lines:#?}");
    let (last, before) = lines.split_last().expect("no output");
    let last = parse_line(last);
    assert_eq!(last["severity"], "EMERGENCY", "{lines:#?}");
    assert!(before.iter().all(|line| parse_line(line)["severity"] == "INFO"), "{lines:#?}");
    last["message"].as_str().unwrap().to_owned()
}

/// Checks that the process ended with status 1 and one error, without any other line. Returns the error's message.
#[track_caller]
pub(crate) fn failed_at_once_with_one_line((status, lines): (i32, Vec<String>)) -> String {
    assert_eq!(lines.len(), 1, "{lines:#?}");
    failed_with_one_line((status, lines))
}
