//! The search for the programs of a control plane.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use semver::Version;

use crate::Error;

/// The folders that are searched for programs, in this order.
#[derive(Debug)]
pub(super) struct Programs(Vec<PathBuf>);

impl Programs {
    /// Lists the folder that `KUBEBUILDER_ASSETS` names, which must exist, and then the cache of hack/setup-envtest.sh,
    /// newest version first.
    pub(super) fn search() -> Result<Self, Error> {
        let assets = env_path("KUBEBUILDER_ASSETS");
        if let Some(path) = assets.as_ref().filter(|path| !path.is_dir()) {
            return Err(Error::new(format!(
                "KUBEBUILDER_ASSETS names {}, which is not a folder: unset it to use the programs of reknit's \
                 hack/setup-envtest.sh",
                path.display()
            )));
        }
        let cached = cache_folder().map(|cache| version_folders(&cache)).unwrap_or_default();
        Ok(Self(assets.into_iter().chain(cached).collect()))
    }

    /// Returns the path of a program, or of the folder `kwok-stages` beside kwok.
    pub(super) fn find(&self, program: &str) -> Result<PathBuf, Error> {
        let mut paths = self.0.iter().map(|folder| folder.join(program));
        let found = paths.find(|path| path.exists());
        found.ok_or_else(|| {
            let folders: Vec<_> = self.0.iter().map(|folder| folder.display().to_string()).collect();
            Error::new(format!(
                "found no {program}: run reknit's hack/setup-envtest.sh, or set KUBEBUILDER_ASSETS to a folder that \
                 contains it (looked in {})",
                folders.join(", ")
            ))
        })
    }
}

/// The path in an environment variable, unless it is unset or empty.
fn env_path(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn cache_folder() -> Option<PathBuf> {
    let cache = env_path("XDG_CACHE_HOME").or_else(|| Some(env_path("HOME")?.join(".cache")))?;
    Some(cache.join("reknit/envtest"))
}

/// Returns the folders in the cache for this platform, newest version first. If there is none, returns the cache
/// itself, so that an error can name it.
fn version_folders(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<(Version, String)> =
        names.filter_map(|name| Some((parse_version(&name)?, name))).collect();
    found.sort();
    match found.is_empty() {
        true => vec![cache.to_owned()],
        false => found.into_iter().rev().map(|(_, name)| cache.join(name)).collect(),
    }
}

/// Parses the version in `v1.36.3-linux-amd64` or `v1.36.3-linux-amd64-control-plane`, if it is for this platform.
fn parse_version(folder: &str) -> Option<Version> {
    let version = Version::parse(folder.strip_prefix('v')?).ok()?;
    let platform = version.pre.strip_suffix("-control-plane").unwrap_or(&version.pre);
    (platform == this_platform()).then_some(version)
}

fn this_platform() -> String {
    let os = if env::consts::OS == "macos" { "darwin" } else { env::consts::OS };
    let arch = match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{os}-{arch}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(parent: &Path, name: &str, programs: &[&str]) -> PathBuf {
        let folder = parent.join(name);
        fs::create_dir_all(&folder).unwrap();
        for program in programs {
            fs::write(folder.join(program), "").unwrap();
        }
        folder
    }

    #[test]
    fn the_newest_version_for_this_platform_comes_first() {
        let cache = tempfile::tempdir().unwrap();
        let platform = this_platform();
        for name in ["v1.9.0", "v1.36.10", "v1.36.9"] {
            folder_with(cache.path(), &format!("{name}-{platform}"), &[]);
        }
        for name in ["v1.99.0-plan9-mips", "v1.99.0", "build", ".new.x"] {
            folder_with(cache.path(), name, &[]);
        }
        folder_with(cache.path(), &format!("v1.99.0-{platform}-with-1"), &[]);
        let names =
            ["v1.36.10", "v1.36.9", "v1.9.0"].map(|name| cache.path().join(format!("{name}-{platform}")));
        assert_eq!(version_folders(cache.path()), names);
    }

    #[test]
    fn programs_missing_in_one_folder_come_from_the_next() {
        let parent = tempfile::tempdir().unwrap();
        let first = folder_with(parent.path(), "first", &["etcd"]);
        let second = folder_with(parent.path(), "second", &["etcd", "kube-apiserver"]);
        let programs = Programs(vec![first.clone(), second.clone()]);
        assert_eq!(programs.find("etcd").unwrap(), first.join("etcd"));
        assert_eq!(programs.find("kube-apiserver").unwrap(), second.join("kube-apiserver"));
    }

    #[test]
    fn a_missing_program_is_named_with_the_script_and_the_variable() {
        let error = Programs(vec![PathBuf::from("/nowhere")]).find("etcd").unwrap_err().to_string();
        for part in ["found no etcd", "hack/setup-envtest.sh", "KUBEBUILDER_ASSETS", "/nowhere"] {
            assert!(error.contains(part), "no {part} in {error}");
        }
    }
}
