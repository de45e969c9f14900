//! Messages on standard error, with colours on a terminal.

use anstyle::{AnsiColor, Style};

use crate::names::{Group, Kind, Plural};

const STEP: Style = AnsiColor::Green.on_default().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const ADDED: Style = AnsiColor::Green.on_default();

/// Prints a step with its object, aligned as cargo does.
pub(crate) fn step(verb: &str, object: &str) {
    anstream::eprintln!("{STEP}{verb:>12}{STEP:#} {object}");
}

/// Prints the resource of a Kind, and the file that names it.
pub(crate) fn resource(plural: &Plural, group: &Group, kind: &Kind) {
    let name = format!("{}.{}", plural.as_str(), group.as_str());
    step("resource", &format!("{name}, named in src/{}/kind.rs", kind.module()));
}

/// Prints a line that would be inserted.
pub(crate) fn added(line: &str) {
    anstream::eprintln!("{:>12} {ADDED}+ {line}{ADDED:#}", "");
}

/// Prints an error with its causes, and what to do next to it.
pub(crate) fn error(error: &anyhow::Error) {
    anstream::eprintln!("{ERROR}error{ERROR:#}: {}", reason(error));
}

/// The error with its causes. Of an error of the API server it has only the message: kube's text of it contains the
/// whole status.
pub(crate) fn reason(error: &anyhow::Error) -> String {
    let mut causes = Vec::new();
    for cause in error.chain() {
        if let Some(kube::Error::Api(status)) = cause.downcast_ref() {
            causes.push(status.message.clone());
            break;
        }
        causes.push(cause.to_string());
    }
    causes.join(": ")
}

/// Prints the commands that come next.
pub(crate) fn next(commands: &[&str]) {
    anstream::eprintln!();
    anstream::eprintln!("next:");
    for command in commands {
        anstream::eprintln!("  {command}");
    }
}

/// Prints a warning.
pub(crate) fn warning(message: &str) {
    anstream::eprintln!("{WARNING}warning{WARNING:#}: {message}");
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn of_an_error_of_the_api_server_only_the_message_is_shown() {
        let refused = kube::Error::Api(Status::failure("too many members", "Invalid").boxed());
        let error =
            anyhow::Error::new(refused).context("cannot apply Team core").context("cannot apply config/");
        assert_eq!(reason(&error), "cannot apply config/: cannot apply Team core: too many members");
    }
}
