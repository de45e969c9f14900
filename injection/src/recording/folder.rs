//! The folder of recorded passes: at most twenty files, which only their owner can read.

use std::{
    collections::{BTreeSet, VecDeque},
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use reknit_apis::internal::now;
use tokio::runtime::Handle;

use super::{PassFacts, RecordedPass};

/// The maximum number of files.
const MAX_FILES: usize = 20;

/// The maximum length of the controller, the namespace and the name in the name of a file.
const MAX_PART: usize = 63;

/// The beginning of the name of a file until it is complete and is renamed.
const UNFINISHED: &str = ".unfinished-";
/// The age at which an unfinished file is taken for the remains of a process that was killed.
const MAX_UNFINISHED: Duration = Duration::from_secs(600);
/// The time for which a reader of the folder waits for another one.
const MAX_WAIT: Duration = Duration::from_millis(200);

/// Creates the contents of a file.
type Contents = Box<dyn FnOnce() -> RecordedPass + Send>;

#[derive(derive_more::Debug)]
#[debug("Folder({path:?})")]
pub(super) struct Folder {
    path: PathBuf,
    pending: Mutex<Pending>,
    /// The last passes that were written, at most as many as there are files.
    written: Mutex<VecDeque<PassFacts>>,
    /// Held while the folder is read for the console.
    reading: Mutex<()>,
    /// True if the last write failed.
    has_failed: AtomicBool,
}

/// The passes to write, at most as many as there are files.
#[derive(Default)]
struct Pending {
    passes: VecDeque<(PassFacts, Contents)>,
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
        let (path, has_failed) = (path.into(), AtomicBool::new(false));
        let (pending, written, reading) = Default::default();
        Self { path, pending, written, reading, has_failed }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of the files of these passes that this process has written and that still exist. Reads the folder.
    /// A volume that does not answer, such as one of a network, delays one reader; others get no names.
    pub(super) fn files(&self, is_wanted: impl Fn(&PassFacts) -> bool) -> BTreeSet<String> {
        let names: Vec<_> =
            self.written.lock().iter().filter(|facts| is_wanted(facts)).map(file_name).collect();
        let Some(_reading) = self.reading.try_lock_for(MAX_WAIT) else { return BTreeSet::new() };
        names.into_iter().filter(|name| self.path.join(name).is_file()).collect()
    }

    fn add_written(&self, facts: PassFacts) {
        let mut written = self.written.lock();
        if written.len() == MAX_FILES {
            written.pop_front();
        }
        written.push_back(facts);
    }

    /// Writes a file on a thread for blocking work. If more passes wait than there are files, the oldest is dropped.
    pub(super) fn write(self: Arc<Self>, facts: PassFacts, contents: Contents) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut pending = self.pending.lock();
        if pending.passes.len() == MAX_FILES {
            pending.passes.pop_front();
        }
        pending.passes.push_back((facts, contents));
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
            let Some((facts, contents)) = next else { return };
            let name = file_name(&facts);
            let result = self.write_file(&name, &mut contents());
            let (has_failed, folder) = (result.is_err(), self.path.display());
            match result {
                Err(error) if !self.has_failed.load(Ordering::Relaxed) => {
                    tracing::warn!(%folder, %error, "failed to record a failed pass");
                }
                Err(_) => {}
                Ok(()) => {
                    tracing::debug!(%folder, name, "recorded a failed pass");
                    self.add_written(facts);
                }
            }
            self.has_failed.store(has_failed, Ordering::Relaxed);
        }
    }

    /// Writes a file and then renames it, so that no reader finds a part of it, and removes the oldest ones. Other processes
    /// may write to the same folder.
    fn write_file(&self, name: &str, pass: &mut RecordedPass) -> io::Result<()> {
        let text = pass.text()?;
        if !self.path.is_dir() {
            private_folder().create(&self.path)?;
        }
        self.remove_remains()?;
        let unfinished = self.path.join(unfinished_name());
        let written = write_private(&unfinished, &text);
        let written = written.and_then(|()| fs::rename(&unfinished, self.path.join(name)));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written?;
        self.remove_oldest()
    }

    /// Removes the unfinished files of processes that were killed.
    fn remove_remains(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)?.filter_map(Result::ok) {
            let is_unfinished = entry.file_name().to_string_lossy().starts_with(UNFINISHED);
            let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
            if is_unfinished && age().is_some_and(|age| age > MAX_UNFINISHED) {
                let _ = fs::remove_file(entry.path()); // or another process has
            }
        }
        Ok(())
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let names = recorded_in(&self.path)?;
        for name in names.iter().take(names.len().saturating_sub(MAX_FILES)) {
            match fs::remove_file(self.path.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns a recorded pass, or the names of those in a folder, one in a line and the oldest first.
///
/// # Errors
///
/// An error if the path cannot be read, or if its name is not that of a recorded pass.
pub fn read_recorded(path: &Path) -> io::Result<String> {
    if path.is_dir() {
        return Ok(recorded_in(path)?.into_iter().map(|name| name + "\n").collect());
    }
    let name = path.file_name().and_then(|name| name.to_str());
    match name.is_some_and(is_recorded_pass) {
        true => fs::read_to_string(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file of a recorded pass")),
    }
}

/// The names of the recorded passes in a folder, the oldest first.
fn recorded_in(folder: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| is_recorded_pass(name)).collect();
    names.sort_unstable();
    Ok(names)
}

/// Returns a name that no other process uses: in two containers, the ids of the processes may be equal.
fn unfinished_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{UNFINISHED}{}-{number}-{}", std::process::id(), now().as_nanosecond())
}

/// Writes a new file, which has the right mode, and is not a link.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = private_file().open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
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
    use std::time::{Duration, SystemTime};

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
            folder.clone().write(facts(second), Box::new(RecordedPass::default));
            written(&folder).await;
            fs::write(path.join("notes.json"), "another file").unwrap();
        }
        let names = names(&path);
        assert_eq!((names.len(), names[20].as_str()), (MAX_FILES + 1, "notes.json"));
        assert_eq!(names[0], "1970-01-01T00-00-01.000000Z_webs.example.com_shop_..-a-b.json");
        assert_eq!(Vec::from_iter(folder.files(|_| true)), names[..MAX_FILES]);
        fs::remove_file(path.join(&names[0])).unwrap();
        assert_eq!(Vec::from_iter(folder.files(|_| true)), names[1..MAX_FILES]);
        assert!(folder.files(|facts| facts.key.name == "another").is_empty());
        #[cfg(unix)]
        for (path, mode) in
            [(path.clone(), 0o700), (parent.path().join("a"), 0o700), (path.join(&names[1]), 0o600)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
        }
    }

    #[test]
    fn two_processes_can_write_to_one_folder() {
        let folder = tempfile::tempdir().unwrap();
        let threads = [0, 100].map(|first| {
            let path = folder.path().to_owned();
            std::thread::spawn(move || {
                let process = Folder::new(&path);
                let name = |second| file_name(&facts(second));
                (0..100).try_for_each(|n| process.write_file(&name(first + n), &mut RecordedPass::default()))
            })
        });
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
        let names = names(folder.path());
        assert!(names.iter().all(|name| is_recorded_pass(name)), "{names:?}");
        assert_eq!(names.len(), MAX_FILES);
    }

    #[test]
    fn the_remains_of_a_killed_process_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["1-1", "1-2"].map(|id| folder.path().join(format!("{UNFINISHED}{id}")));
        let file = fs::File::create(&old).unwrap();
        file.set_modified(SystemTime::now() - 2 * MAX_UNFINISHED).unwrap();
        fs::write(&new, "").unwrap();
        Folder::new(folder.path()).write_file(&file_name(&facts(1)), &mut RecordedPass::default()).unwrap();
        assert_eq!((old.exists(), new.exists()), (false, true));
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_written_is_warned_of_once() {
        let log = Log::start();
        let file = tempfile::NamedTempFile::new().unwrap();
        let folder = Arc::new(Folder::new(&file.path().join("passes")));
        for second in 0..3 {
            let contents: Contents = Box::new(RecordedPass::default);
            folder.pending.lock().passes.push_back((facts(second), contents));
            folder.write_pending();
        }
        assert_eq!(log.lines("failed to record a failed pass").len(), 1);
        assert!(folder.has_failed.load(Ordering::Relaxed));
        assert!(folder.files(|_| true).is_empty());
    }

    #[test]
    fn a_volume_that_does_not_answer_delays_one_reader() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::new(parent.path());
        fs::write(parent.path().join(file_name(&facts(0))), "{}").unwrap();
        folder.add_written(facts(0));
        let reading = folder.reading.lock();
        assert!(folder.files(|_| true).is_empty());
        drop(reading);
        assert_eq!(folder.files(|_| true).len(), 1);
    }

    #[test]
    fn a_file_that_is_too_large_is_cut_and_says_so() {
        let object = json!({"data": "x".repeat(10_000)});
        let mut pass = RecordedPass { objects: vec![object; 150], ..RecordedPass::default() };
        let text = pass.text().unwrap();
        assert!(text.len() <= 1 << 20, "{}", text.len());
        assert!(pass.objects.len() > 50 && !pass.left_out.is_empty(), "{:?}", pass.left_out);

        let settings = [("lines".to_owned(), "\n".repeat(1 << 20))].into();
        let config_maps = [("config-lines".to_owned(), Some(settings))].into();
        let mut pass =
            RecordedPass { config_maps, result: "\u{1}".repeat(1 << 20), ..RecordedPass::default() };
        let text = pass.text().unwrap();
        assert!(text.len() <= 1 << 20 && text.contains("1 ConfigMaps"), "{}", text.len());
    }
}
