//! A project outside the workspace that shares the target folder of the workspace.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::cargo::{emptied_folder, reuse_build_cache};

/// Held by the one test that uses the target folder: programs of different projects have the same names, such as `crd`.
static TARGET: Mutex<()> = Mutex::new(());

/// A project that is removed at the end of the test.
pub(crate) struct Project {
    parent: PathBuf,
    pub(crate) folder: PathBuf,
    _target: MutexGuard<'static, ()>,
}

impl Project {
    /// Creates the project by `cargo reknit new` with these arguments, with a dependency on this checkout. Its path is
    /// the same in each run, so that cargo reuses what it built for it.
    pub(crate) fn new(name: &str, args: &[&str]) -> Self {
        let target = TARGET.lock().unwrap_or_else(PoisonError::into_inner);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let parent = emptied_folder("cargo-reknit");
        let project = Self { folder: parent.join(name), parent, _target: target };
        let mut new = project.command(&["reknit", "new", name]);
        new.args(args).arg("--path").arg(root).current_dir(&project.parent);
        succeed(&mut new);
        project
    }

    /// A command of this checkout's `cargo-reknit` in the project.
    pub(crate) fn reknit(&self, args: &[&str]) -> Command {
        self.with_environment(Command::new(env!("CARGO_BIN_EXE_cargo-reknit")), args)
    }

    /// A cargo command in the project. It finds the `cargo-reknit` of this checkout.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.with_environment(Command::new(env!("CARGO")), args)
    }

    fn with_environment(&self, mut command: Command, args: &[&str]) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_cargo-reknit"));
        let path =
            format!("{}:{}", program.parent().unwrap().display(), env::var("PATH").unwrap_or_default());
        reuse_build_cache(&mut command).args(args).env("PATH", path).env("CARGO_TARGET_DIR", target_folder());
        if self.folder.exists() {
            command.current_dir(&self.folder);
        }
        command
    }

    /// Runs a cargo command that has to succeed, and returns its output.
    pub(crate) fn cargo(&self, args: &[&str]) -> String {
        succeed(&mut self.command(args))
    }

    /// The path of a program of the project, which has to be built.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        target_folder().join("debug").join(name)
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.folder.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Replaces a text that occurs once in a file, as a user edits it.
    pub(crate) fn edit(&self, path: &str, old: &str, new: &str) {
        let text = self.read(path);
        assert_eq!(text.matches(old).count(), 1, "{path} has to contain {old:?} once:\n{text}");
        fs::write(self.folder.join(path), text.replace(old, new)).unwrap();
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn target_folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

/// Runs a command that has to succeed, and returns what it printed.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {text}");
    text
}
