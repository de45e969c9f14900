//! The errors of a control plane.

use std::{error::Error as _, fmt, io, iter, path::PathBuf, time::Duration};

/// An error of a [`ControlPlane`](crate::ControlPlane).
///
/// `Debug` prints the message and its causes, because a test that fails by `?` or `unwrap` shows this output.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `KUBEBUILDER_ASSETS` does not name a folder.
    #[error(
        "KUBEBUILDER_ASSETS names {}, which is not a folder: unset it to use the programs of reknit's \
         hack/setup-envtest.sh",
        .path.display()
    )]
    NoFolder {
        /// The value of the variable.
        path: PathBuf,
    },
    /// None of the searched folders contains the program.
    #[error(
        "found no {program}: run reknit's hack/setup-envtest.sh, or set KUBEBUILDER_ASSETS to a folder that contains \
         it (looked in {})",
        join_paths(.looked_in)
    )]
    NoProgram {
        /// `etcd`, `kube-apiserver`, …
        program: &'static str,
        /// The searched folders, in this order.
        looked_in: Vec<PathBuf>,
    },
    /// A program exited, usually because it does not know a flag.
    #[error("{program} exited with status {status} instead of serving; the end of its log:\n{log}")]
    Ended {
        /// `etcd`, `kube-apiserver`, …
        program: &'static str,
        /// Its exit status.
        status: String,
        /// The last lines it logged.
        log: String,
    },
    /// The API server did not become ready, or another condition did not become true in time.
    #[error("{what} did not happen within {} s: {last}", .limit.as_secs())]
    Timeout {
        /// The awaited condition.
        what: String,
        /// The time limit.
        limit: Duration,
        /// The last observation.
        last: String,
    },
    /// The programs did not exit when they were stopped.
    #[error("{program} did not exit after SIGKILL")]
    NotStopped {
        /// `etcd`, `kube-apiserver`, …
        program: &'static str,
    },
    /// A file of the control plane, or a file to apply, could not be read or written.
    #[error("cannot {action} {}", .path.display())]
    File {
        /// `read`, `write`, …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The shell that runs the programs could not be started, or did not respond.
    #[error("cannot reach the shell that runs the programs of the control plane")]
    Guard(#[source] io::Error),
    /// No port on 127.0.0.1 is free.
    #[error("found no free port on 127.0.0.1 between {from} and {to}")]
    NoPort {
        /// The lowest port tried.
        from: u16,
        /// The highest port tried.
        to: u16,
    },
    /// The keys of the control plane could not be generated, or a token could not be requested.
    #[error("cannot {0}")]
    Credentials(String),
    /// The API server or etcd refused a request.
    #[error("cannot {action}")]
    Api {
        /// The attempted action and its object.
        action: String,
        /// The response.
        source: Box<kube::Error>,
    },
    /// A document to apply is not the YAML of a Kubernetes object.
    #[error("{origin}: {problem}")]
    Yaml {
        /// The file, or `text`, and the number of the document.
        origin: String,
        /// The cause.
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

fn join_paths(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_the_message_and_its_causes() {
        let error = Error::file("read", "/x")(io::Error::other("disk failure"));
        assert_eq!(format!("{error:?}"), "cannot read /x: disk failure");
    }
}
