//! A project on disk, and the command.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

pub(crate) fn cargo_reknit(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cargo-reknit")).args(args).current_dir(folder).output().unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the command, and asserts that it is refused with this status and a message that contains each of the parts.
pub(crate) fn assert_refused(folder: &Path, args: &[&str], status: i32, parts: &[&str]) {
    let output = cargo_reknit(folder, args);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {message}");
    for part in parts {
        assert!(message.contains(part), "{args:?}: no {part:?} in {message}");
    }
}

/// A project of the Kind Greeting, which is removed when this value is dropped.
pub(crate) struct Project {
    pub(crate) folder: PathBuf,
    _parent: tempfile::TempDir,
}

/// The paths of files, and their contents.
pub(crate) type Files = Vec<(String, Vec<u8>)>;

/// Creates a project.
pub(crate) fn project() -> Project {
    project_with(&[])
}

/// Creates a project with further arguments.
pub(crate) fn project_with(further: &[&str]) -> Project {
    let parent = tempfile::tempdir().unwrap();
    let args = [&["new", "greetings", "--group", "example.com", "--kind", "Greeting"], further].concat();
    let output = cargo_reknit(parent.path(), &args);
    assert!(output.status.success(), "{}", stderr(&output));
    Project { folder: parent.path().join("greetings"), _parent: parent }
}

/// The paths of all files in a folder, and their contents.
pub(crate) fn files(folder: &Path) -> Files {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push((path.display().to_string(), fs::read(&path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

/// Asserts that each name of the template is replaced in all files of the project.
pub(crate) fn assert_no_name_of_the_template(project: &Path) {
    for (path, content) in files(project).iter().filter(|(path, _)| !path.ends_with("Cargo.lock")) {
        let text = format!("{path}\n{}", String::from_utf8_lossy(content));
        for name in [
            "hello-world",
            "hello_world",
            "hello.example.com",
            "WarmGreeting",
            "warm_greeting",
            "warmgreeting",
            "v9alpha1",
        ] {
            assert!(!text.contains(name), "{name} in {text}");
        }
    }
}
