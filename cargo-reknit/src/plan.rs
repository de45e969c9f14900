//! The files that a command creates and changes. A command computes all of them before it writes the first.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{insertion::Insertion, output, rustfmt, template::File, template_names::Names};

/// The flags that decide whether a plan is carried out or only printed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct PlanFlags {
    /// Prints what the command would create and insert, and changes nothing
    #[arg(long)]
    dry_run: bool,
}

impl PlanFlags {
    pub(crate) fn is_dry_run(self) -> bool {
        self.dry_run
    }
}

/// New files and insertions in a project.
#[derive(Debug)]
pub(crate) struct Plan {
    folder: PathBuf,
    created: BTreeMap<String, String>,
    insertions: Vec<Insertion>,
}

impl Plan {
    pub(crate) fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), created: BTreeMap::new(), insertions: Vec::new() }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// True if the project has a file of this path. The plan itself does not count.
    pub(crate) fn is_in_project(&self, path: &str) -> bool {
        self.folder.join(path).exists()
    }

    /// Creates a file.
    pub(crate) fn create(&mut self, path: impl Into<String>, content: impl Into<String>) {
        self.created.insert(path.into(), content.into());
    }

    /// Creates the files of a template, with these names in their paths and contents.
    pub(crate) fn create_all(&mut self, files: &[File], names: &Names) {
        for (path, content) in files {
            let path = if *path == "Cargo.toml.in" { "Cargo.toml" } else { path };
            self.create(names.apply(path), names.apply(content));
        }
    }

    /// Replaces a text in a file that is to be created.
    pub(crate) fn replace(&mut self, path: &str, old: &str, new: &str) {
        self.edit(path, |content| content.replace(old, new));
    }

    /// Changes the content of a file that is to be created.
    pub(crate) fn edit(&mut self, path: &str, change: impl FnOnce(&str) -> String) {
        if let Some(content) = self.created.get_mut(path) {
            *content = change(content);
        }
    }

    /// Inserts lines at a marker of a file, which may also be created by the plan.
    pub(crate) fn insert(&mut self, path: impl Into<String>, marker: &'static str, lines: impl Into<String>) {
        self.insertions.push(Insertion::new(path, marker, lines));
    }

    /// Writes the files, or only prints them.
    ///
    /// # Errors
    ///
    /// Fails before anything is written if a file to create exists, if a file to change has uncommitted changes and
    /// `allow_dirty` is false, or if a marker is missing. Uncommitted changes do not matter to a dry run.
    pub(crate) fn execute(self, flags: PlanFlags, allow_dirty: bool) -> Result<()> {
        self.check_absent()?;
        if !allow_dirty && !flags.dry_run {
            self.check_committed()?;
        }
        let changed = self.changed()?;
        if flags.dry_run {
            self.print();
            return Ok(());
        }
        for (path, content) in &self.created {
            self.write(path, changed.get(&**path).unwrap_or(content))?;
            output::step("created", path);
        }
        for (path, content) in changed.iter().filter(|(path, _)| !self.created.contains_key(**path)) {
            self.write(path, content)?;
            output::step("changed", path);
        }
        self.format();
        Ok(())
    }

    fn check_absent(&self) -> Result<()> {
        match self.created.keys().find(|path| self.folder.join(path).exists()) {
            Some(path) => bail!("{path} exists already; choose another name, or remove the file"),
            None => Ok(()),
        }
    }

    /// Fails if git reports uncommitted changes of a file that would change. Without git, nothing is checked.
    fn check_committed(&self) -> Result<()> {
        let changes = self.insertions_in_project();
        let paths: Vec<&str> = changes.map(|insertion| &*insertion.path).collect();
        if paths.is_empty() {
            return Ok(());
        }
        let mut git = Command::new("git");
        git.args(["status", "--porcelain", "--untracked-files=all", "--"])
            .args(paths)
            .current_dir(&self.folder);
        let Ok(status) = git.output() else { return Ok(()) };
        let listed = String::from_utf8_lossy(&status.stdout);
        let dirty: Vec<&str> = listed.lines().filter_map(|line| line.get(3..)).collect();
        if status.status.success() && !dirty.is_empty() {
            bail!(
                "these files would change and have uncommitted changes: {}; commit them, or pass --allow-dirty",
                dirty.join(", ")
            );
        }
        Ok(())
    }

    fn insertions_in_project(&self) -> impl Iterator<Item = &Insertion> {
        self.insertions.iter().filter(|insertion| !self.created.contains_key(&insertion.path))
    }

    /// The new contents of the files with insertions. The error names all markers that are missing.
    fn changed(&self) -> Result<BTreeMap<&str, String>> {
        let mut changed = BTreeMap::new();
        let mut refused: Vec<Insertion> = Vec::new();
        for insertion in &self.insertions {
            let path = &*insertion.path;
            let text = match changed.remove(path).or_else(|| self.created.get(path).cloned()) {
                Some(text) => text,
                None => fs::read_to_string(self.folder.join(path))
                    .with_context(|| format!("cannot read {path}"))?,
            };
            let inserted = insertion.apply(&text);
            if inserted.is_none() {
                match refused.iter_mut().find(|other| other.is_at_marker_of(insertion)) {
                    Some(other) => other.lines += &format!("\n{}", insertion.lines),
                    None => refused.push(insertion.clone()),
                }
            }
            changed.insert(path, inserted.unwrap_or(text));
        }
        let problems: Vec<String> =
            refused.iter().map(|insertion| insertion.problem(&changed[&*insertion.path])).collect();
        if problems.is_empty() { Ok(changed) } else { bail!("{}", problems.join("\n")) }
    }

    fn print(&self) {
        for path in self.created.keys() {
            output::step("would create", path);
        }
        for insertion in self.insertions_in_project() {
            output::step("would change", &format!("{} above `{}`", insertion.path, insertion.comment()));
            for line in insertion.lines.lines() {
                output::added(line);
            }
        }
    }

    fn write(&self, path: &str, content: &str) -> Result<()> {
        let file = self.folder.join(path);
        file.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .with_context(|| format!("cannot create the folder of {path}"))?;
        fs::write(&file, content).with_context(|| format!("cannot write {path}"))
    }

    /// Formats the created files, because names change the lengths and the order of lines.
    fn format(&self) {
        let is_rust = |path: &&String| Path::new(path).extension().is_some_and(|extension| extension == "rs");
        let files = self.created.keys().filter(is_rust);
        rustfmt::format_files(&self.folder, files.map(String::as_str));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: PlanFlags = PlanFlags { dry_run: false };

    /// A folder with src/lib.rs, which has the marker `modules`.
    fn project() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("src/lib.rs"), "mod a;\n// reknit:scaffold:modules\n").unwrap();
        folder
    }

    fn git(folder: &Path, args: &[&str]) {
        let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
        let git = Command::new("git").args(identity).args(args).current_dir(folder).output().unwrap();
        assert!(git.status.success(), "{git:?}");
    }

    fn lib(folder: &Path) -> String {
        fs::read_to_string(folder.join("src/lib.rs")).unwrap()
    }

    /// Creates src/b.rs and declares it.
    fn plan(folder: &Path) -> Plan {
        let mut plan = Plan::new(folder);
        plan.create("src/b.rs", "fn b() {}\n");
        plan.insert("src/lib.rs", "modules", "mod b;");
        plan
    }

    #[test]
    fn files_are_created_and_lines_are_inserted() {
        let folder = project();
        plan(folder.path()).execute(WRITE, false).unwrap();
        assert_eq!(lib(folder.path()), "mod a;\nmod b;\n// reknit:scaffold:modules\n");
        assert_eq!(fs::read_to_string(folder.path().join("src/b.rs")).unwrap(), "fn b() {}\n");
    }

    #[test]
    fn a_dry_run_changes_nothing() {
        let folder = project();
        let before = lib(folder.path());
        plan(folder.path()).execute(PlanFlags { dry_run: true }, false).unwrap();
        assert_eq!(lib(folder.path()), before);
        assert!(!folder.path().join("src/b.rs").exists());
    }

    #[test]
    fn an_existing_file_is_not_overwritten_and_nothing_else_is_changed() {
        let folder = project();
        let before = lib(folder.path());
        fs::write(folder.path().join("src/b.rs"), "mine").unwrap();
        let refusal = plan(folder.path()).execute(WRITE, true).unwrap_err().to_string();
        assert!(refusal.starts_with("src/b.rs exists already"), "{refusal}");
        assert_eq!(fs::read_to_string(folder.path().join("src/b.rs")).unwrap(), "mine");
        assert_eq!(lib(folder.path()), before);
    }

    #[test]
    fn a_missing_marker_leaves_everything_as_it_is() {
        let folder = project();
        fs::write(folder.path().join("src/lib.rs"), "mod a;\n").unwrap();
        plan(folder.path()).execute(WRITE, false).unwrap_err();
        assert!(!folder.path().join("src/b.rs").exists());
    }

    #[test]
    fn all_missing_markers_are_named_with_their_lines() {
        let folder = project();
        let mut plan = plan(folder.path());
        plan.insert("src/lib.rs", "controllers", ".controller(b)");
        plan.insert("src/lib.rs", "definitions", "b()?,");
        plan.insert("src/lib.rs", "definitions", "c()?,");
        let refusal = plan.execute(WRITE, true).unwrap_err().to_string();
        assert_eq!(refusal.matches("the marker comment").count(), 2, "{refusal}");
        assert!(refusal.contains("\n    .controller(b)\n"), "{refusal}");
        assert!(refusal.ends_with("\n    b()?,\n    c()?,"), "{refusal}");
    }

    #[test]
    fn lines_are_inserted_into_a_file_of_the_plan() {
        let folder = project();
        let mut plan = Plan::new(folder.path());
        plan.create("src/b.rs", "// reknit:scaffold:modules\n");
        plan.insert("src/b.rs", "modules", "mod c;");
        plan.execute(WRITE, false).unwrap();
        let created = fs::read_to_string(folder.path().join("src/b.rs")).unwrap();
        assert_eq!(created, "mod c;\n// reknit:scaffold:modules\n");
    }

    #[test]
    fn a_file_with_uncommitted_changes_is_changed_only_if_allowed() {
        let folder = project();
        git(folder.path(), &["init", "--quiet"]);
        let refusal = plan(folder.path()).execute(WRITE, false).unwrap_err().to_string();
        assert!(refusal.contains("src/lib.rs") && refusal.contains("--allow-dirty"), "{refusal}");
        git(folder.path(), &["add", "--all"]);
        git(folder.path(), &["commit", "--quiet", "--message", "first"]);
        fs::write(folder.path().join("other"), "uncommitted, but not to be changed").unwrap();
        plan(folder.path()).execute(WRITE, false).unwrap();
        let mut second = Plan::new(folder.path());
        second.insert("src/lib.rs", "modules", "mod c;");
        second.execute(WRITE, true).unwrap();
        assert_eq!(lib(folder.path()), "mod a;\nmod b;\nmod c;\n// reknit:scaffold:modules\n");
    }
}
