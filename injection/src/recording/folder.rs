//! The folder of recorded passes: at most twenty files, which only their owner can read.

use std::{
    collections::VecDeque,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::{PassFacts, RecordedPass};

/// The maximum number of files.
const MAX_FILES: usize = 20;

/// The maximum length of the controller, the namespace and the name in the name of a file.
const MAX_PART: usize = 63;

/// The file that is written before it is renamed.
const UNFINISHED: &str = ".unfinished";

/// Creates the contents of a file.
type Contents = Box<dyn FnOnce() -> RecordedPass + Send>;

#[derive(derive_more::Debug)]
#[debug("Folder({path:?})")]
pub(super) struct Folder {
    path: PathBuf,
    pending: Mutex<Pending>,
    /// True if the last write failed.
    has_failed: AtomicBool,
}

/// The passes to write, at most as many as there are files.
#[derive(Default)]
struct Pending {
    passes: VecDeque<(String, Contents)>,
    is_writing: bool,
}

/// Returns the name of a file. The order of the names is that of the times.
pub(super) fn file_name(PassFacts { controller, key, time, .. }: &PassFacts) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let part = |text: &str| {
        text.chars().map(|c| if is_safe(c) { c } else { '-' }).take(MAX_PART).collect::<String>()
    };
    let time = time.strftime("%Y-%m-%dT%H-%M-%S.%6fZ");
    let namespace = key.namespace.as_deref().unwrap_or_default();
    format!("{time}_{}_{}_{}.json", part(controller), part(namespace), part(&key.name))
}

impl Folder {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.into(), pending: Mutex::default(), has_failed: AtomicBool::new(false) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file on a thread for blocking work. If more passes wait than there are files, the oldest is dropped.
    pub(super) fn write(self: Arc<Self>, name: String, contents: Contents) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut pending = self.pending.lock();
        if pending.passes.len() == MAX_FILES {
            pending.passes.pop_front();
        }
        pending.passes.push_back((name, contents));
        if !std::mem::replace(&mut pending.is_writing, true) {
            drop(pending);
            runtime.spawn_blocking(move || self.write_pending());
        }
    }

    fn write_pending(&self) {
        loop {
            let next = {
                let mut pending = self.pending.lock();
                let next = pending.passes.pop_front();
                pending.is_writing = next.is_some();
                next
            };
            let Some((name, contents)) = next else { return };
            let result = self.write_file(&name, &mut contents());
            let (has_failed, folder) = (result.is_err(), self.path.display());
            match result {
                Err(error) if !self.has_failed.load(Ordering::Relaxed) => {
                    tracing::warn!(%folder, %error, "failed to record a failed pass");
                }
                Err(_) => {}
                Ok(()) => tracing::debug!(%folder, name, "recorded a failed pass"),
            }
            self.has_failed.store(has_failed, Ordering::Relaxed);
        }
    }

    /// Writes a file and then renames it, so that no reader finds a part of it, and removes the oldest ones.
    fn write_file(&self, name: &str, pass: &mut RecordedPass) -> io::Result<()> {
        let (unfinished, text) = (self.path.join(UNFINISHED), pass.text()?);
        if !self.path.is_dir() {
            private_folder().create(&self.path)?;
        }
        // The remains of a process that was killed. A new file has the right mode, and is not a link.
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = private_file().open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, self.path.join(name))?;
        self.remove_oldest()
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let names = fs::read_dir(&self.path)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter(|name| is_recorded_pass(name)).collect();
        names.sort_unstable();
        for name in names.iter().take(names.len().saturating_sub(MAX_FILES)) {
            fs::remove_file(self.path.join(name))?;
        }
        Ok(())
    }
}

/// Returns true for a [`file_name`], so that no other file is removed.
fn is_recorded_pass(name: &str) -> bool {
    let parts: Vec<_> = name.split('_').collect();
    let is_time = |text: &str| text.len() == "2026-11-25T10-00-00.000000Z".len() && text.ends_with('Z');
    parts.len() == 4 && is_time(parts[0]) && parts[3].ends_with(".json")
}

#[cfg_attr(not(unix), expect(unused_mut, reason = "only unix has modes"))]
fn private_folder() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

#[cfg_attr(not(unix), expect(unused_mut, reason = "only unix has modes"))]
fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::jiff::Timestamp;
    use reknit_apis::Key;
    use serde_json::json;

    use super::*;
    use crate::testing::Log;

    fn facts(second: i64) -> PassFacts {
        PassFacts {
            controller: "webs.example.com".into(),
            key: Key::new("shop", "../a:b").into(),
            is_following: false,
            time: Timestamp::from_second(second).unwrap(),
        }
    }

    /// Waits until nothing is left to write.
    async fn written(folder: &Folder) {
        while folder.pending.lock().is_writing {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn names(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn the_newest_twenty_files_stay_and_only_their_owner_can_read_them() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        let folder = Arc::new(Folder::new(&path));
        for second in 0..=20 {
            folder.clone().write(file_name(&facts(second)), Box::new(RecordedPass::default));
            written(&folder).await;
            fs::write(path.join("notes.json"), "another file").unwrap();
        }
        let names = names(&path);
        assert_eq!((names.len(), names[20].as_str()), (MAX_FILES + 1, "notes.json"));
        assert_eq!(names[0], "1970-01-01T00-00-01.000000Z_webs.example.com_shop_..-a-b.json");
        #[cfg(unix)]
        for (path, mode) in
            [(path.clone(), 0o700), (parent.path().join("a"), 0o700), (path.join(&names[0]), 0o600)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
        }
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_written_is_warned_of_once() {
        let log = Log::start();
        let file = tempfile::NamedTempFile::new().unwrap();
        let folder = Arc::new(Folder::new(&file.path().join("passes")));
        for second in 0..3 {
            let (name, folder) = (file_name(&facts(second)), folder.clone());
            folder.pending.lock().passes.push_back((name, Box::new(RecordedPass::default)));
            folder.write_pending();
        }
        assert_eq!(log.lines("failed to record a failed pass").len(), 1);
        assert!(folder.has_failed.load(Ordering::Relaxed));
    }

    #[test]
    fn a_file_that_is_too_large_is_cut_and_says_so() {
        let object = json!({"data": "x".repeat(10_000)});
        let mut pass = RecordedPass { objects: vec![object; 150], ..RecordedPass::default() };
        let text = pass.text().unwrap();
        assert!(text.len() <= 1 << 20, "{}", text.len());
        assert!(pass.objects.len() > 50 && !pass.left_out.is_empty(), "{:?}", pass.left_out);
    }
}
