//! Changes of the project's files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher, event::ModifyKind};
use tokio::{
    sync::{Mutex, Notify},
    time::timeout,
};

/// Editors write a file in several steps. A build starts after this time without a change.
const DEBOUNCE: Duration = Duration::from_millis(300);

const FOLDERS: [&str; 2] = ["src", "config"];
/// A build that changes `Cargo.lock` is followed by one that does not.
const FILES: [&str; 4] = ["Cargo.toml", "Cargo.lock", "build.rs", "rust-toolchain.toml"];

/// A watch of the files from which a project is built and deployed.
pub(crate) struct Sources {
    root: PathBuf,
    changed: Arc<Notify>,
    watcher: Mutex<RecommendedWatcher>,
}

impl Sources {
    /// Watches `src/`, `config/`, and the files beside them that a build reads.
    ///
    /// The folder of the project is watched for those files: a watch of a file itself ends when an editor replaces it.
    pub(crate) fn watch(folder: &Path) -> Result<Self> {
        let changed = Arc::new(Notify::new());
        let (notify, root) = (Arc::clone(&changed), folder.to_owned());
        let report = move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| {
                is_change(event.kind) && event.paths.iter().any(|path| is_source(&root, path))
            }) {
                notify.notify_one();
            }
        };
        let mut watcher = notify::recommended_watcher(report).context("cannot watch files")?;
        let cannot_watch = || format!("cannot watch {}", folder.display());
        watcher.watch(folder, RecursiveMode::NonRecursive).with_context(cannot_watch)?;
        watch_folders(&mut watcher, folder).with_context(cannot_watch)?;
        Ok(Self { root: folder.to_owned(), changed, watcher: Mutex::new(watcher) })
    }

    /// Waits for a change, and until nothing has changed for a while. Changes since the last call count once.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
        while timeout(DEBOUNCE, self.changed.notified()).await.is_ok() {}
        // A watch stays with a folder that was moved away, and another one may have its name now. If there is none, its
        // creation is the next change.
        let _ = watch_folders(&mut *self.watcher.lock().await, &self.root);
    }
}

fn watch_folders(watcher: &mut RecommendedWatcher, root: &Path) -> notify::Result<()> {
    FOLDERS.iter().try_for_each(|folder| watcher.watch(&root.join(folder), RecursiveMode::Recursive))
}

/// Tells whether a build or `config/` depends on this file of the project.
fn is_source(root: &Path, path: &Path) -> bool {
    let Ok(path) = path.strip_prefix(root) else { return false };
    FOLDERS.iter().any(|folder| path.starts_with(folder)) || FILES.iter().any(|file| path == Path::new(file))
}

/// Tells whether a file was written, created, renamed or removed. A build only reads its sources, which is reported as
/// access.
fn is_change(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Access(_) | EventKind::Modify(ModifyKind::Metadata(_)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A project with a source file.
    fn project() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("src/greeting/kind.rs");
        fs::create_dir_all(folder.path().join("src/greeting")).unwrap();
        fs::create_dir(folder.path().join("config")).unwrap();
        fs::write(folder.path().join("Cargo.toml"), "").unwrap();
        fs::write(&file, "first").unwrap();
        (folder, file)
    }

    #[tokio::test]
    async fn a_file_that_an_editor_replaces_is_still_watched() {
        let (folder, _) = project();
        let sources = Sources::watch(folder.path()).unwrap();
        for content in ["second", "third"] {
            fs::write(folder.path().join(".Cargo.toml.new"), content).unwrap();
            fs::rename(folder.path().join(".Cargo.toml.new"), folder.path().join("Cargo.toml")).unwrap();
            timeout(LIMIT, sources.changed()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_folder_that_is_replaced_is_still_watched() {
        let (folder, _) = project();
        let (config, moved) = (folder.path().join("config"), folder.path().join("moved"));
        let sources = Sources::watch(folder.path()).unwrap();
        fs::rename(&config, &moved).unwrap();
        timeout(LIMIT, sources.changed()).await.unwrap();
        fs::create_dir(&config).unwrap();
        timeout(LIMIT, sources.changed()).await.unwrap();
        fs::write(config.join("a.yaml"), "text").unwrap();
        timeout(LIMIT, sources.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn other_files_of_the_project_are_not_sources() {
        let (folder, _) = project();
        let sources = Sources::watch(folder.path()).unwrap();
        fs::create_dir(folder.path().join("target")).unwrap();
        fs::write(folder.path().join("README.md"), "text").unwrap();
        timeout(2 * DEBOUNCE, sources.changed()).await.unwrap_err();
    }

    #[tokio::test]
    async fn writes_are_changes_and_reads_are_not() {
        let (folder, file) = project();
        let sources = Sources::watch(folder.path()).unwrap();
        fs::read(&file).unwrap();
        timeout(2 * DEBOUNCE, sources.changed()).await.unwrap_err();
        fs::write(&file, "second").unwrap();
        timeout(LIMIT, sources.changed()).await.unwrap();
    }
}
