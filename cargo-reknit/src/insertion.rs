//! Insertion of lines at marker comments, as kubebuilder has them.

/// Lines to insert above the marker comment `reknit:scaffold:<marker>` of a file.
#[derive(Clone, Debug)]
pub(crate) struct Insertion {
    pub(crate) path: String,
    pub(crate) marker: &'static str,
    pub(crate) lines: String,
}

impl Insertion {
    pub(crate) fn new(path: impl Into<String>, marker: &'static str, lines: impl Into<String>) -> Self {
        Self { path: path.into(), marker, lines: lines.into() }
    }

    /// The marker comment, in the syntax of the file.
    pub(crate) fn comment(&self) -> String {
        let is_rust = self.path.ends_with(".rs");
        format!("{} reknit:scaffold:{}", if is_rust { "//" } else { "#" }, self.marker)
    }

    pub(crate) fn is_at_marker_of(&self, other: &Self) -> bool {
        (&self.path, self.marker) == (&other.path, other.marker)
    }

    /// Returns the text with the lines inserted, indented as the marker is. Everything else stays as it is. Returns
    /// `None` unless the text contains the marker exactly once.
    pub(crate) fn apply(&self, text: &str) -> Option<String> {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let [marker] = self.positions(&lines)[..] else { return None };
        let indent = &lines[marker][..lines[marker].len() - lines[marker].trim_start().len()];
        let newline = if lines[marker].ends_with("\r\n") { "\r\n" } else { "\n" };
        let indented = |line: &str| match line.is_empty() {
            true => newline.to_owned(),
            false => format!("{indent}{line}{newline}"),
        };
        let inserted: String = self.lines.lines().map(indented).collect();
        let position = self.sorted_position(&lines[..marker]);
        Some(lines[..position].concat() + &inserted + &lines[position..].concat())
    }

    /// The lines with the marker.
    fn positions(&self, lines: &[&str]) -> Vec<usize> {
        let comment = self.comment();
        (0..lines.len()).filter(|&i| lines[i].trim() == comment).collect()
    }

    /// The line before which to insert. Declarations of modules are kept in the order that rustfmt wants.
    fn sorted_position(&self, above: &[&str]) -> usize {
        let is_module = |line: &str| line.starts_with("mod ") || line.starts_with("pub mod ");
        let module = |line: &str| line.trim().trim_start_matches("pub ").to_owned();
        let mut position = above.len();
        if is_module(&self.lines) && self.lines.lines().count() == 1 {
            while position > 0
                && is_module(above[position - 1])
                && module(above[position - 1]) > module(&self.lines)
            {
                position -= 1;
            }
        }
        position
    }

    /// Explains why the lines cannot be inserted into the text, and where they belong.
    pub(crate) fn problem(&self, text: &str) -> String {
        let is_missing = self.positions(&text.lines().collect::<Vec<_>>()).is_empty();
        let found = if is_missing { "is missing from" } else { "occurs more than once in" };
        let lines: String = self.lines.lines().map(|line| format!("\n    {line}")).collect();
        format!(
            "the marker comment `{}` {found} {}. Put it below the place where these lines belong, and run the command \
             again:{lines}",
            self.comment(),
            self.path,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(lines: &str) -> Insertion {
        Insertion::new("src/lib.rs", "modules", lines)
    }

    #[test]
    fn lines_are_inserted_above_the_marker_with_its_indentation() {
        let insertion = Insertion::new("src/lib.rs", "controllers", ".controller(b)");
        let text =
            "fn x() {\n    y\n        .controller(a)\n        // reknit:scaffold:controllers\n}\n// the end";
        let expected = text.replace("        // r", "        .controller(b)\n        // r");
        assert_eq!(insertion.apply(text).unwrap(), expected);
    }

    #[test]
    fn everything_else_is_kept_byte_for_byte() {
        let text = "\u{feff}odd  \t\r\n\r\nmod a;\r\n// reknit:scaffold:modules\r\nno newline";
        let expected = text.replace("mod a;\r\n", "mod a;\r\nmod b;\r\n");
        assert_eq!(modules("mod b;").apply(text).unwrap(), expected);
    }

    #[test]
    fn modules_are_inserted_in_alphabetical_order() {
        let text = "mod b;\nmod d;\n// reknit:scaffold:modules\n";
        let inserted = |line: &str| modules(line).apply(text).unwrap();
        assert_eq!(inserted("mod a;"), "mod a;\nmod b;\nmod d;\n// reknit:scaffold:modules\n");
        assert_eq!(inserted("mod c;"), "mod b;\nmod c;\nmod d;\n// reknit:scaffold:modules\n");
        assert_eq!(inserted("mod e;"), "mod b;\nmod d;\nmod e;\n// reknit:scaffold:modules\n");
    }

    #[test]
    fn a_missing_marker_is_named_with_the_lines_that_belong_there() {
        let refusal = modules("mod b;").problem("mod a;\n");
        assert_eq!(modules("mod b;").apply("mod a;\n"), None);
        for part in ["`// reknit:scaffold:modules`", "is missing from src/lib.rs", "    mod b;"] {
            assert!(refusal.contains(part), "no {part} in {refusal}");
        }
    }

    #[test]
    fn a_marker_that_occurs_twice_is_refused() {
        let text = "// reknit:scaffold:modules\n// reknit:scaffold:modules\n";
        assert_eq!(modules("mod b;").apply(text), None);
        assert!(modules("mod b;").problem(text).contains("more than once"));
    }

    #[test]
    fn markers_in_yaml_are_yaml_comments() {
        let insertion = Insertion::new("config/Kustomization", "resources", "- b.yaml");
        let text = "resources:\n  - a.yaml\n  # reknit:scaffold:resources\n";
        let expected = "resources:\n  - a.yaml\n  - b.yaml\n  # reknit:scaffold:resources\n";
        assert_eq!(insertion.apply(text).unwrap(), expected);
    }
}
