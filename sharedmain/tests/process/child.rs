//! A process under test: how it is started, what it said, and how it ended.
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

use crate::faulty;

/// No process under test takes as long, unless something is wrong with it.
const LONG: Duration = Duration::from_secs(30);

/// What is to be started: an empty environment but for what a test adds, an empty home, and free ports.
pub(crate) struct Start {
    command: Command,
    home: tempfile::TempDir,
}

impl Start {
    pub(crate) fn new() -> Self {
        Self::with_fault("none")
    }

    pub(crate) fn with_fault(fault: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env_clear().envs([faulty::variable(fault)]).env("HOME", home.path());
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

    /// A file in the home of the process.
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
        let said = Arc::new(Said::default());
        let (stderr, stdout) = (child.stderr.take().unwrap(), child.stdout.take().unwrap());
        let readers = vec![said.clone().read(stderr), said.clone().read(stdout)];
        Child { child, said, readers, _home: self.home }
    }

    /// Runs it to its end; the exit status and all lines.
    pub(crate) fn end(self) -> (i32, Vec<String>) {
        self.spawn().end()
    }
}

#[derive(Default)]
struct Said {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

impl Said {
    fn read(self: Arc<Self>, pipe: impl std::io::Read + Send + 'static) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                self.lines.lock().unwrap().push(line);
                self.more.notify_all();
            }
        })
    }
}

pub(crate) struct Child {
    child: std::process::Child,
    said: Arc<Said>,
    readers: Vec<thread::JoinHandle<()>>,
    _home: tempfile::TempDir,
}

impl Child {
    /// The first line that holds the text, once there is one.
    pub(crate) fn line(&self, text: &str) -> String {
        let lines = self.said.lines.lock().unwrap();
        let is_there = |lines: &mut Vec<String>| !lines.iter().any(|line| line.contains(text));
        let (lines, _) = self.said.more.wait_timeout_while(lines, LONG, is_there).unwrap();
        let found = lines.iter().find(|line| line.contains(text)).cloned();
        found.unwrap_or_else(|| panic!("it never said {text:?}, only {lines:#?}"))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.said.lines.lock().unwrap().clone()
    }

    /// Where it listens for this.
    pub(crate) fn address(&self, what: &str) -> String {
        let line = self.line(&format!("listening for {what}"));
        json(&line)["address"].as_str().unwrap().to_owned()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Waits for its end; the exit status and all lines.
    pub(crate) fn end(mut self) -> (i32, Vec<String>) {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if start.elapsed() < LONG => thread::sleep(Duration::from_millis(5)),
                None => panic!("it does not end, and said {:#?}", self.lines()),
            }
        };
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        (status.code().unwrap_or(-1), self.lines())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn json(line: &str) -> serde_json::Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))
}

/// The process said exactly this one thing of this severity, and ended with status 1.
#[track_caller]
pub(crate) fn failed_with_one_line((status, lines): (i32, Vec<String>)) -> String {
    assert_eq!(status, 1, "{lines:#?}");
    let (last, before) = lines.split_last().expect("it said nothing");
    let last = json(last);
    assert_eq!(last["severity"], "EMERGENCY", "{lines:#?}");
    assert!(before.iter().all(|line| json(line)["severity"] == "INFO"), "{lines:#?}");
    last["message"].as_str().unwrap().to_owned()
}

/// The same of a failure that needs nothing but what is on this machine: not a line stands before it.
#[track_caller]
pub(crate) fn failed_at_once_with_one_line(ended: (i32, Vec<String>)) -> String {
    assert_eq!(ended.1.len(), 1, "{:#?}", ended.1);
    failed_with_one_line(ended)
}
