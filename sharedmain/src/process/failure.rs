//! Why a process cannot go on: one line for its user, and the exit status.
use std::{fmt, process::ExitCode};

/// Ends the process. Its text is one line that says what is wrong and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    message: String,
    usage: bool,
}

impl Failure {
    /// Something the process met: exit status 1.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self { message: one_line(&message.to_string()), usage: false }
    }

    /// Something wrong on the command line: exit status 2.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self { usage: true, ..Self::new(message) }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(if self.usage { 2 } else { 1 })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Messages of libraries may hold line ends (a parser that shows the place, a plugin's output).
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
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
