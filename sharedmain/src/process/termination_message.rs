//! The termination message: a file whose contents the kubelet reports once the container has terminated.
//!
//! Its first line is the identity of the process, which proves to the other replicas that this process is dead. The error that
//! ends the process follows, for whoever looks at the Pod. Nothing is written outside of a container, where there is no such
//! file.

use std::{
    fs::OpenOptions,
    io::{self, ErrorKind, Write},
    path::Path,
};

use reknit_leadership::internal::Identity;

use super::failure::Failure;

/// The maximum length of the error in bytes. The kubelet reads the last 4,096 bytes of the file, which have to contain the
/// identity.
const MAX_FAILURE: usize = 3 << 10;

/// Replaces the file by the identity.
pub(crate) fn write_identity(path: &Path, identity: &Identity) {
    let written = OpenOptions::new().write(true).truncate(true).open(path);
    if let Err(error) = written.and_then(|mut file| writeln!(file, "{identity}"))
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(
            path = %path.display(), %error,
            "cannot write the termination message: if this process crashes, its leases are taken over once they expire"
        );
    }
}

/// Appends the error that ends the process. It is in the log too, so a file that cannot be written is no failure.
pub(super) fn append_failure(path: &Path, failure: &Failure) {
    let text = failure.to_string();
    let text = &text[..text.floor_char_boundary(MAX_FAILURE)];
    let append = || -> io::Result<()> { writeln!(OpenOptions::new().append(true).open(path)?, "{text}") };
    let _ = append();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_the_first_line_and_a_failure_the_next_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text =
            "the message of a process that ran here before, which is longer than an identity, and more";
        std::fs::write(file.path(), text).unwrap();
        let identity = Identity::on("web-0");
        write_identity(file.path(), &identity);
        append_failure(file.path(), &Failure::new("the task failed"));
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), format!("{identity}\nthe task failed\n"));
    }

    #[test]
    fn a_long_failure_leaves_the_identity_in_what_the_kubelet_reads() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let identity = Identity::on("web-0");
        write_identity(file.path(), &identity);
        append_failure(file.path(), &Failure::new("\u{e4}".repeat(10_000)));
        let message = std::fs::read_to_string(file.path()).unwrap();
        assert!(message.starts_with(&format!("{identity}\n")) && message.len() <= 4096, "{}", message.len());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_no_failure() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path(), &directory.path().join("missing")] {
            write_identity(path, &Identity::on("a"));
            append_failure(path, &Failure::new("no"));
        }
        assert!(!directory.path().join("missing").exists());
    }
}
