//! Formatting of generated code by rustfmt. Without rustfmt, the code stays as it is.

use std::{
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
};

/// Formats files of a folder.
pub(crate) fn format_files<'a>(folder: &Path, files: impl Iterator<Item = &'a str>) {
    // rustfmt reports files that it cannot parse; the compiler does so too.
    let _ = rustfmt(folder).args(["--config", "skip_children=true"]).args(files).output();
}

/// Formats a statement of a function, as it is without the indentation of the function.
pub(crate) fn format_statement(folder: &Path, statement: &str) -> String {
    let formatted = format_text(folder, &format!("fn f() {{\n    {statement}\n}}\n")).unwrap_or_default();
    let lines: Vec<&str> = formatted.lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    match &lines[..] {
        [_, inner @ .., _] if !inner.is_empty() => inner.join("\n"),
        _ => statement.into(),
    }
}

fn format_text(folder: &Path, text: &str) -> io::Result<String> {
    let mut child =
        rustfmt(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn rustfmt(folder: &Path) -> Command {
    let mut rustfmt = Command::new("rustfmt");
    rustfmt.args(["--edition", "2024"]).current_dir(folder);
    rustfmt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_statement_is_broken_as_in_a_function() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(format_statement(folder.path(), "let  a = b ;"), "let a = b;");
        let name = "x".repeat(90);
        let expected = format!("let a =\n    {name};");
        assert_eq!(format_statement(folder.path(), &format!("let a = {name};")), expected);
        assert_eq!(format_statement(folder.path(), "no statement"), "no statement");
    }
}
