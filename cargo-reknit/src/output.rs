//! Messages on standard error, with colours on a terminal.

use anstyle::{AnsiColor, Style};

const STEP: Style = AnsiColor::Green.on_default().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const ADDED: Style = AnsiColor::Green.on_default();

/// Prints a step with its object, aligned as cargo does.
pub(crate) fn step(verb: &str, object: &str) {
    anstream::eprintln!("{STEP}{verb:>12}{STEP:#} {object}");
}

/// Prints a line that would be inserted.
pub(crate) fn added(line: &str) {
    anstream::eprintln!("{:>12} {ADDED}+ {line}{ADDED:#}", "");
}

/// Prints an error with its causes, and what to do next to it.
pub(crate) fn error(error: &anyhow::Error) {
    anstream::eprintln!("{ERROR}error{ERROR:#}: {error:#}");
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
