//! What can go wrong with a control plane.

use std::{error::Error as _, fmt, io, iter, path::PathBuf, time::Duration};

/// Why a [`ControlPlane`](crate::ControlPlane) could not do what a test asked of it.
///
/// `Debug` is the text with its causes, since that is what a test shows that fails by `?` or `unwrap`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `KUBEBUILDER_ASSETS` does not name a folder.
    #[error(
        "KUBEBUILDER_ASSETS names {}, which is no folder: unset it for the programs of reknit's hack/setup-envtest.sh",
        .path.display()
    )]
    NoFolder {
        /// What it names.
        path: PathBuf,
    },
    /// No folder that is looked in has the program.
    #[error(
        "found no {program}: run reknit's hack/setup-envtest.sh, or set KUBEBUILDER_ASSETS to a folder that holds it \
         (looked in {})",
        list(.looked_in)
    )]
    NoProgram {
        /// `etcd`, `kube-apiserver`, …
        program: &'static str,
        /// The folders looked in, in this order.
        looked_in: Vec<PathBuf>,
    },
    /// A program ended by itself, mostly for a flag it does not know.
    #[error("{program} ended with status {status} instead of serving; the end of its log:\n{log}")]
    Ended {
        /// `etcd`, `kube-apiserver`, …
        program: &'static str,
        /// Its exit status.
        status: String,
        /// The last lines it logged.
        log: String,
    },
    /// The API server did not become ready, or what was waited for did not happen in time.
    #[error("{what} did not happen within {} s: {last}", .limit.as_secs())]
    TooLate {
        /// What was waited for.
        what: String,
        /// How long it was waited for.
        limit: Duration,
        /// What was seen last.
        last: String,
    },
    /// The programs did not end when asked to.
    #[error("{program} did not end, though killed")]
    NotStopped {
        /// `etcd`, `kube-apiserver`, …
        program: &'static str,
    },
    /// A file of the control plane, or one to apply, could not be read or written.
    #[error("cannot {action} {}", .path.display())]
    File {
        /// `read`, `write`, …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The shell that watches over the programs could not be started or told.
    #[error("cannot reach the shell that watches over the control plane")]
    Guard(#[source] io::Error),
    /// No port on 127.0.0.1 is free.
    #[error("found no free port on 127.0.0.1 between {from} and {to}")]
    NoPort {
        /// The lowest port tried.
        from: u16,
        /// The highest port tried.
        to: u16,
    },
    /// The keys and tokens of the control plane could not be made, or its certificate not be read.
    #[error("cannot {0}")]
    Credentials(String),
    /// The API server, or etcd, refused.
    #[error("cannot {action}")]
    Api {
        /// What was asked, and of which object.
        action: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// What should be applied is no YAML of a Kubernetes object.
    #[error("{origin}: {problem}")]
    Yaml {
        /// The file, or `text`, and which document of it.
        origin: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        iter::successors(self.source(), |&cause| cause.source()).try_for_each(|cause| write!(f, ": {cause}"))
    }
}

impl Error {
    pub(super) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    pub(super) fn api(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Api { action, source: Box::new(source) }
    }
}

fn list(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_what_display_says_and_why() {
        let refused = io::Error::other("disk on fire");
        assert_eq!(format!("{:?}", Error::file("read", "/x")(refused)), "cannot read /x: disk on fire");
    }
}
