//! The programs that are measured.

use std::path::{Path, PathBuf};

/// A program, and how it is told to do the same as the others.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) arguments: &'static [&'static str],
}

pub(crate) const REKNIT: &str = "reknit";
const FLOOR: &str = "floor";
const TUNED: &str = "tuned";
const WATCHING: &str = "watching";

const ALL: [(&str, &str, &[&str]); 7] = [
    (REKNIT, "bench-reknit", &["--disable-ha", "--bind-address", "127.0.0.1"]),
    ("kube-runtime", "bench-kube-runtime", &[]),
    ("kube-runtime-tuned", "bench-kube-runtime", &[TUNED]),
    ("controller-runtime", "bench-controller-runtime", &[]),
    ("controller-runtime-tuned", "bench-controller-runtime", &[TUNED]),
    (FLOOR, "bench-floor", &[]),
    ("floor-watching", "bench-floor", &[WATCHING]),
];

/// Of all that there may be.
pub(crate) fn names() -> [&'static str; 7] {
    ALL.map(|(name, ..)| name)
}

impl Candidate {
    /// Those whose program is in the folder; the others are named and left out.
    pub(crate) fn all(folder: &Path) -> Vec<Self> {
        let candidates =
            ALL.map(|(name, program, arguments)| Self { name, program: folder.join(program), arguments });
        let (there, missing): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|candidate| candidate.program.is_file());
        for candidate in missing {
            eprintln!("{} is left out: there is no {}", candidate.name, candidate.program.display());
        }
        there
    }

    pub(crate) fn is_floor(&self) -> bool {
        is_floor(self.name)
    }

    /// Returns true if it does what the documentation of its framework advises on memory.
    pub(crate) fn is_tuned(&self) -> bool {
        self.arguments == [TUNED]
    }

    /// Returns true if it opens watches that it has no use for: their cost is one that no controller avoids.
    pub(crate) fn also_watches(&self) -> bool {
        self.arguments == [WATCHING]
    }
}

/// Returns true if this is the name of one that is told what to write.
pub(crate) fn is_floor(name: &str) -> bool {
    name.starts_with(FLOOR)
}
