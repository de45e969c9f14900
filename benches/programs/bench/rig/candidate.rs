//! The programs to measure.

use std::path::{Path, PathBuf};

/// A program to measure, with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) arguments: &'static [&'static str],
}

pub(crate) const REKNIT: &str = "reknit";
/// The lower bound of the work: a bare client without a controller.
const FLOOR: &str = "floor";
/// The address of the console of the candidate whose page is open.
pub(crate) const CONSOLE: &str = "127.0.0.1:8009";
const WITH_CONSOLE: &str = "--console-bind-address=127.0.0.1:8009";
const TUNED: &str = "tuned";
const WATCH: &str = "--watch";

/// Name, program and arguments of each candidate.
const ALL: [(&str, &str, &[&str]); 8] = [
    (REKNIT, "bench-reknit", &["--disable-ha", "--bind-address", "127.0.0.1"]),
    ("reknit-console", "bench-reknit", &["--disable-ha", "--bind-address", "127.0.0.1", WITH_CONSOLE]),
    ("kube-runtime", "bench-kube-runtime", &[]),
    ("kube-runtime-tuned", "bench-kube-runtime", &[TUNED]),
    ("controller-runtime", "bench-controller-runtime", &[]),
    ("controller-runtime-tuned", "bench-controller-runtime", &[TUNED]),
    (FLOOR, "bench-floor", &[]),
    ("watching-floor", "bench-floor", &[WATCH]),
];

/// The names of all candidates.
pub(crate) fn names() -> [&'static str; 8] {
    ALL.map(|(name, ..)| name)
}

impl Candidate {
    /// Returns the candidates whose program is in the folder, and prints the others.
    pub(crate) fn all(folder: &Path) -> Vec<Self> {
        let candidates =
            ALL.map(|(name, program, arguments)| Self { name, program: folder.join(program), arguments });
        let (present, missing): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|candidate| candidate.program.is_file());
        for candidate in missing {
            eprintln!("{} is left out: there is no {}", candidate.name, candidate.program.display());
        }
        present
    }

    /// Returns true for reknit with an open page of its console, which is measured only by name.
    pub(crate) fn has_page(&self) -> bool {
        self.arguments.contains(&WITH_CONSOLE)
    }

    pub(crate) fn is_floor(&self) -> bool {
        is_floor(self.name)
    }

    /// Returns true if the program follows its framework's documentation on optimization.
    pub(crate) fn is_tuned(&self) -> bool {
        self.arguments == [TUNED]
    }

    /// Returns true for the floor that also reads watches. It does not use their events, but every controller has this
    /// cost.
    pub(crate) fn is_watching_floor(&self) -> bool {
        self.arguments == [WATCH]
    }
}

/// Returns true if the candidate of this name is a bare client instead of a controller.
pub(crate) fn is_floor(name: &str) -> bool {
    name.ends_with(FLOOR)
}
