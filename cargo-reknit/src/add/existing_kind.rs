//! A Kind that the project has.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::{
    names::{Kind, Version},
    project::Project,
};

/// The beginning of the version in the attribute `kube`.
const VERSION: &str = "version = \"";

/// A Kind of the project, declared in `src/<module>/kind.rs`.
#[derive(Debug)]
pub(super) struct ExistingKind {
    pub(super) kind: Kind,
    pub(super) module: String,
    /// The content of `kind.rs`.
    source: String,
    /// True if the objects of the Kind are converted by the webhook.
    pub(super) is_converted: bool,
}

impl ExistingKind {
    /// Finds the Kind.
    ///
    /// # Errors
    ///
    /// Fails if there is no `src/<module>/kind.rs`, or if it declares another Kind.
    pub(super) fn find(project: &Project, kind: &Kind) -> Result<Self> {
        let (name, module) = (kind.as_str(), kind.module());
        let path = format!("src/{module}/kind.rs");
        let file = project.folder.join(&path);
        if !file.exists() && project.folder.join(format!("src/{module}")).exists() {
            bail!(
                "{path} does not exist: a webhook or a version can be added to a Kind that the project declares there"
            );
        }
        if !file.exists() {
            bail!(
                "the project has no Kind {name}: {path} does not exist; `cargo reknit add kind {name}` adds it"
            );
        }
        let source = fs::read_to_string(file).with_context(|| format!("cannot read {path}"))?;
        if !source.contains(&format!("kind = \"{name}\"")) {
            bail!("the project has no Kind {name}: {path} does not contain `kind = \"{name}\"`");
        }
        let definition = fs::read_to_string(project.folder.join(format!("src/{module}/mod.rs")));
        let is_converted = definition.is_ok_and(|text| text.contains("conversion::by_webhook("));
        Ok(Self { kind: kind.clone(), module, source, is_converted })
    }

    /// The path of the Kind's type in the crate.
    pub(super) fn type_path(&self) -> String {
        format!("crate::{}::{}", self.module, self.kind.as_str())
    }

    /// True if `kind!` has the part `defaults`.
    pub(super) fn declares_defaults(&self) -> bool {
        self.source.lines().any(|line| line.trim_start().starts_with("defaults:"))
    }

    /// Returns `kind.rs` for another version. The defaults that `defaults.rs` implements are left out, because only the
    /// hub has them.
    pub(super) fn source_of(&self, version: &Version) -> String {
        let (name, version) = (self.kind.as_str(), version.as_str());
        let defaults = format!("defaults: {name}::set_spec_defaults,");
        let is_copied = |line: &&str| ![&*defaults, "// reknit:scaffold:defaults"].contains(&line.trim());
        let copy: String = self.source.split_inclusive('\n').filter(is_copied).collect();
        let (before, rest) = copy.split_once(VERSION).unwrap_or((&*copy, ""));
        let after = rest.trim_start_matches(|letter| letter != '"');
        let title = format!("//! The version {version} of the Kind {name}.");
        format!("{before}{VERSION}{version}{after}").replacen(&format!("//! The Kind {name}."), &title, 1)
    }

    /// Returns the version in `kind.rs`.
    ///
    /// # Errors
    ///
    /// Fails unless the file has one `version = "…"` with a version of Kubernetes.
    pub(super) fn version(&self) -> Result<Version> {
        let mut versions = self.source.split(VERSION).skip(1);
        let version = match (versions.next(), versions.next()) {
            (Some(rest), None) => rest.split('"').next().and_then(|version| version.parse().ok()),
            _ => None,
        };
        version.with_context(|| {
            format!("cannot find the version of {}: src/{}/kind.rs has to contain `version = \"v1\"` or the like once",
                self.kind.as_str(), self.module)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_source(source: &str) -> ExistingKind {
        ExistingKind {
            kind: "Policy".parse().unwrap(),
            module: "policy".into(),
            source: source.into(),
            is_converted: false,
        }
    }

    #[test]
    fn the_version_is_that_of_the_attribute() {
        let version =
            with_source("#[kube(group = \"x.y\", version = \"v1beta2\", kind = \"Policy\")]").version();
        assert_eq!(version.unwrap().as_str(), "v1beta2");
    }

    #[test]
    fn another_version_is_a_copy_without_the_defaults_of_the_hub() {
        let source = "//! The Kind Policy.\n#[kube(version = \"v1\", kind = \"Policy\")]\nkind!(Policy {\n    \
                      defaults: Policy::set_spec_defaults,\n    // reknit:scaffold:defaults\n});\n";
        let expected = "//! The version v2 of the Kind Policy.\n#[kube(version = \"v2\", kind = \"Policy\")]\n\
                        kind!(Policy {\n});\n";
        assert_eq!(with_source(source).source_of(&"v2".parse().unwrap()), expected);
    }

    #[test]
    fn a_missing_or_second_version_is_refused() {
        for source in ["", "version = \"v1\" version = \"v2\"", "version = \"one\""] {
            let refusal = with_source(source).version().unwrap_err().to_string();
            assert!(refusal.contains("src/policy/kind.rs has to contain"), "{refusal}");
        }
    }
}
