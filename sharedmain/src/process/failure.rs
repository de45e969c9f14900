//! The error that ends a process: one line, and the exit status.
use std::{fmt, process::ExitCode};

/// An error that ends the process. Its text is one line with the problem and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    message: String,
    is_usage_error: bool,
}

impl Failure {
    /// A failure at run time: exit status 1.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        // Messages of libraries may contain newlines, such as a parser's or a plugin's output.
        let message = message.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        Self { message, is_usage_error: false }
    }

    /// An invalid command line: exit status 2.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self { is_usage_error: true, ..Self::new(message) }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(if self.is_usage_error { 2 } else { 1 })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(Failure::new("a\n  b\t\tc\n").to_string(), "a b c");
    }

    #[test]
    fn a_usage_error_exits_with_2() {
        assert_eq!(format!("{:?}", Failure::usage("x").exit_code()), format!("{:?}", ExitCode::from(2)));
        assert_eq!(format!("{:?}", Failure::new("x").exit_code()), format!("{:?}", ExitCode::from(1)));
    }
}
