//! Changes of the project's files.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher, event::ModifyKind};
use tokio::{sync::Notify, time::timeout};

/// Editors write a file in several steps. A build starts after this time without a change.
const DEBOUNCE: Duration = Duration::from_millis(300);

/// A watch of the files from which a project is built and deployed.
pub(crate) struct Sources {
    changed: Arc<Notify>,
    _watcher: RecommendedWatcher,
}

impl Sources {
    /// Watches `src/`, `config/` and `Cargo.toml`.
    pub(crate) fn watch(folder: &Path) -> Result<Self> {
        let changed = Arc::new(Notify::new());
        let notify = Arc::clone(&changed);
        let report = move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| is_change(event.kind)) {
                notify.notify_one();
            }
        };
        let mut watcher = notify::recommended_watcher(report).context("cannot watch files")?;
        for (path, mode) in [
            ("src", RecursiveMode::Recursive),
            ("config", RecursiveMode::Recursive),
            ("Cargo.toml", RecursiveMode::NonRecursive),
        ] {
            watcher.watch(&folder.join(path), mode).with_context(|| format!("cannot watch {path}"))?;
        }
        Ok(Self { changed, _watcher: watcher })
    }

    /// Waits for a change, and until nothing has changed for a while. Changes since the last call count once.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
        while timeout(DEBOUNCE, self.changed.notified()).await.is_ok() {}
    }
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

    #[tokio::test]
    async fn writes_are_changes_and_reads_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("src/greeting/kind.rs");
        fs::create_dir_all(folder.path().join("src/greeting")).unwrap();
        fs::create_dir(folder.path().join("config")).unwrap();
        fs::write(folder.path().join("Cargo.toml"), "").unwrap();
        fs::write(&file, "first").unwrap();
        let sources = Sources::watch(folder.path()).unwrap();
        fs::read(&file).unwrap();
        timeout(2 * DEBOUNCE, sources.changed()).await.unwrap_err();
        fs::write(&file, "second").unwrap();
        timeout(Duration::from_secs(60), sources.changed()).await.unwrap();
    }
}
