//! hack/setup-envtest.sh, which installs a control plane from the official archive, or else builds it.
//!
//! A server on 127.0.0.1 serves the archives. `go` is a fake that writes a placeholder program, so that a build takes
//! no time.

use std::{
    error::Error,
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A URL at which nothing listens.
const UNREACHABLE: &str = "http://127.0.0.1:1";

type TestResult = Result<(), Box<dyn Error>>;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hack/setup-envtest.sh");
/// The fake `go`. Its environment controls it: `FAKE_FAILS` makes builds fail, `FAKE_ENDLESS` names a file to which a
/// build writes its process id before it hangs, `FAKE_SECONDS` is the duration of a build, and `FAKE_MODULE` is the
/// folder of kwok's module.
const FAKE_GO: &str = r#"#!/bin/sh
case "$1 $2" in
  "env GOVERSION") echo go1.26.0 ;;
  "build "*)
    [ -z "$FAKE_FAILS" ] || exit 1
    [ -z "$FAKE_ENDLESS" ] || { echo $$ >"$FAKE_ENDLESS"; exec sleep 600; }
    sleep "${FAKE_SECONDS:-0}"
    while [ "$1" != -o ]; do shift; done
    echo built >"$2"
    chmod +x "$2"
    ;;
  "list -m") echo "$FAKE_MODULE" ;;
esac
"#;

/// The folder of one test, with the cache, the fake `go` in `bin`, and kwok's module.
struct TestFolder {
    folder: PathBuf,
}

impl TestFolder {
    fn new(name: &str) -> io::Result<Self> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let test_folder = Self { folder };
        test_folder.write_program("bin/go", FAKE_GO)?;
        for stage in ["node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease"] {
            test_folder.write_stage(stage)?;
        }
        for stage in ["pod/fast/pod-ready", "pod/fast/pod-complete", "pod/fast/pod-delete"] {
            test_folder.write_stage(stage)?;
        }
        Ok(test_folder)
    }

    /// Writes a stage of kwok's module.
    fn write_stage(&self, stage: &str) -> io::Result<()> {
        let path = self.folder.join(format!("module/kustomize/stage/{stage}.yaml"));
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, "kind: Stage\n")
    }

    fn write_program(&self, path: &str, content: &str) -> io::Result<()> {
        let path = self.folder.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    }

    /// Packs an archive as the controller-tools project does, and returns it with its SHA-512 checksum.
    fn archive(&self) -> Result<(Vec<u8>, String), Box<dyn Error>> {
        for program in ["kube-apiserver", "etcd", "kubectl"] {
            self.write_program(&format!("controller-tools/envtest/{program}"), "downloaded\n")?;
        }
        let packed = Command::new("tar")
            .arg("-C")
            .arg(&self.folder)
            .args(["-czf", "-", "controller-tools"])
            .output()?;
        let file = self.folder.join("archive.tar.gz");
        fs::write(&file, &packed.stdout)?;
        let checksum = Command::new("sh")
            .args(["-c", "sha512sum \"$1\" 2>/dev/null || shasum -a 512 \"$1\"", "checksum"])
            .arg(&file)
            .output()?;
        let checksum =
            String::from_utf8(checksum.stdout)?.split_whitespace().next().ok_or("no checksum")?.to_owned();
        Ok((packed.stdout, checksum))
    }

    /// The command that runs the script with an index of releases at this URL.
    fn command(&self, releases: &str, arguments: &[&str]) -> Command {
        self.command_of(Path::new(SCRIPT), releases, arguments)
    }

    /// The same command with a copy of the script.
    fn command_of(&self, script: &Path, releases: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("bash");
        command
            .arg(script)
            .args(arguments)
            .env("PATH", format!("{}:/usr/bin:/bin", self.folder.join("bin").display()))
            .env("XDG_CACHE_HOME", self.folder.join("cache"))
            .env("FAKE_MODULE", self.folder.join("module"))
            .env("ENVTEST_RELEASES_URL", releases)
            .env_remove("KUBEBUILDER_ASSETS")
            .env("no_proxy", "127.0.0.1")
            .stdin(Stdio::null());
        command
    }

    /// Copies the script, for which this checksum of an archive is pinned. Returns the path of the copy.
    fn pin(&self, checksum: &str, archive: &str) -> io::Result<PathBuf> {
        let (hack, copy) = (Path::new(SCRIPT).parent().unwrap_or(Path::new("")), self.folder.join("hack"));
        fs::create_dir_all(copy.join("envtest"))?;
        for file in ["setup-envtest.sh", "help.sh", "find-go.sh", "envtest/go.mod"] {
            fs::copy(hack.join(file), copy.join(file))?;
        }
        fs::write(copy.join("envtest/archives.sha512"), format!("{checksum}  {archive}\n"))?;
        Ok(copy.join("setup-envtest.sh"))
    }

    fn run(&self, releases: &str, arguments: &[&str]) -> Result<Installation, Box<dyn Error>> {
        Installation::from_output(self.command(releases, arguments).output()?)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// The result of a successful run of the script: the folder that it printed, and its log.
#[derive(Debug)]
struct Installation {
    folder: PathBuf,
    log: String,
}

impl Installation {
    fn from_output(output: Output) -> Result<Self, Box<dyn Error>> {
        let log = String::from_utf8(output.stderr)?;
        if !output.status.success() {
            return Err(format!("{}: {log}", output.status).into());
        }
        Ok(Self { folder: String::from_utf8(output.stdout)?.trim_end().into(), log })
    }

    /// The content of a program, which names its origin: `downloaded`, `built`, or `own` for the user's.
    fn origin_of(&self, program: &str) -> String {
        let content = fs::read_to_string(self.folder.join(program));
        content.map_or_else(|error| error.to_string(), |content| content.trim().to_owned())
    }
}

/// The server's response to a request for the archive.
enum ArchiveResponse {
    /// The connection is closed after this number of bytes of the content.
    Sent { content: Vec<u8>, bytes: usize },
    /// The connection stays open, and nothing is sent.
    Never,
}

impl ArchiveResponse {
    fn complete(content: Vec<u8>) -> Self {
        Self::Sent { bytes: content.len(), content }
    }
}

/// Serves an index of releases, in which `ADDRESS` is replaced by the address of the server, and the same archive for
/// every release. Returns the address.
fn serve(index: &str, archive: ArchiveResponse) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    let index = index.replace("ADDRESS", &address);
    thread::spawn(move || {
        let mut unanswered = Vec::new();
        for mut connection in listener.incoming().flatten() {
            // An error means that the client has closed the connection.
            drop(respond(&mut connection, &index, &archive));
            unanswered.extend(matches!(archive, ArchiveResponse::Never).then_some(connection));
        }
    });
    Ok(address)
}

fn respond(connection: &mut TcpStream, index: &str, archive: &ArchiveResponse) -> io::Result<()> {
    let mut lines = BufReader::new(connection.try_clone()?).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    while lines.next().transpose()?.is_some_and(|header| !header.is_empty()) {}
    let (content, bytes) = match archive {
        _ if request.contains("/envtest-releases.yaml ") => (index.as_bytes(), index.len()),
        ArchiveResponse::Sent { content, bytes } => (content.as_slice(), *bytes),
        ArchiveResponse::Never => return Ok(()),
    };
    write!(connection, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len())?;
    connection.write_all(&content[..bytes])?;
    connection.shutdown(Shutdown::Both)
}

fn platform() -> String {
    let os = if cfg!(target_os = "macos") { "darwin" } else { "linux" };
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    format!("{os}-{arch}")
}

/// An index of these versions, each with an archive for this platform and one for another platform.
fn index(versions: &[&str], checksum: &str) -> String {
    let archive = |version: &str, platform: &str| {
        let name = format!("envtest-{version}-{platform}.tar.gz");
        format!("    {name}:\n      hash: {checksum}\n      selfLink: ADDRESS/{version}/{name}\n")
    };
    let release = |version: &&str| {
        let (other, this) = (archive(version, "windows-amd64"), archive(version, &platform()));
        format!("  {version}:\n{other}{this}")
    };
    format!("releases:\n{}", versions.iter().map(release).collect::<String>())
}

#[test]
fn the_published_archive_is_used_and_cached() -> TestResult {
    let test_folder = TestFolder::new("published")?;
    let (archive, checksum) = test_folder.archive()?;
    let versions = ["v1.28.0", "v1.36.0", "v1.36.10", "v1.36.9", "v1.36.11-rc.0", "v1.37.0"];
    let releases = serve(&index(&versions, &checksum), ArchiveResponse::complete(archive))?;
    let installation = test_folder.run(&releases, &["--control-plane"])?;
    assert_eq!(installation.origin_of("kube-apiserver"), "downloaded");
    assert_eq!(installation.origin_of("etcd"), "downloaded");
    assert!(installation.log.contains("is not pinned, and comes from its own index"), "{}", installation.log);
    assert!(
        installation.log.contains("from the official archive of v1.36.10: kube-apiserver"),
        "{}",
        installation.log
    );
    let cached = test_folder.run(UNREACHABLE, &["--control-plane"])?;
    assert_eq!(
        (cached.folder, cached.log.as_str()),
        (installation.folder, "setup-envtest: from the cache: all of them\n")
    );
    Ok(())
}

#[test]
fn the_exact_version_is_preferred_to_a_newer_one() -> TestResult {
    let test_folder = TestFolder::new("version")?;
    let (archive, checksum) = test_folder.archive()?;
    let releases =
        serve(&index(&["v1.36.2", "v1.36.3", "v1.36.4"], &checksum), ArchiveResponse::complete(archive))?;
    let installation = test_folder.run(&releases, &["--control-plane"])?;
    assert!(installation.log.contains("from the official archive of v1.36.3: etcd"), "{}", installation.log);
    Ok(())
}

#[test]
fn programs_missing_in_the_archive_are_built() -> TestResult {
    let test_folder = TestFolder::new("lacking")?;
    let (archive, checksum) = test_folder.archive()?;
    let releases = serve(&index(&["v1.36.3"], &checksum), ArchiveResponse::complete(archive))?;
    let installation = test_folder.run(&releases, &[])?;
    assert_eq!(installation.origin_of("etcd"), "downloaded");
    for program in ["kube-controller-manager", "kube-scheduler", "kwok"] {
        assert_eq!(installation.origin_of(program), "built", "{program}: {}", installation.log);
    }
    assert_eq!(fs::read_dir(installation.folder.join("kwok-stages"))?.count(), 5);
    Ok(())
}

#[test]
fn an_archive_with_a_wrong_checksum_is_not_used() -> TestResult {
    let test_folder = TestFolder::new("checksum")?;
    let (archive, checksum) = test_folder.archive()?;
    let wrong = checksum.replace(['0', '1'], "2");
    let releases = serve(&index(&["v1.36.3"], &wrong), ArchiveResponse::complete(archive))?;
    let installation = test_folder.run(&releases, &["--control-plane"])?;
    assert_eq!(installation.origin_of("kube-apiserver"), "built");
    assert!(
        installation.log.contains(&format!("its checksum is not the published {wrong}: not used")),
        "{}",
        installation.log
    );
    Ok(())
}

#[test]
fn a_pinned_checksum_outweighs_that_of_the_index() -> TestResult {
    let test_folder = TestFolder::new("pinned")?;
    let (archive, checksum) = test_folder.archive()?;
    let wrong = checksum.replace(['0', '1'], "2");
    for (pinned, published, origin) in [(&checksum, &wrong, "downloaded"), (&wrong, &checksum, "built")] {
        let releases = serve(&index(&["v1.36.3"], published), ArchiveResponse::complete(archive.clone()))?;
        let address = format!("{releases}/v1.36.3/envtest-v1.36.3-{}.tar.gz", platform());
        let script = test_folder.pin(pinned, &address)?;
        let output = test_folder.command_of(&script, &releases, &["--control-plane"]).output()?;
        let installation = Installation::from_output(output)?;
        assert_eq!(installation.origin_of("kube-apiserver"), origin, "{}", installation.log);
        assert!(!installation.log.contains("is not pinned"), "{}", installation.log);
        fs::remove_dir_all(test_folder.folder.join("cache"))?;
    }
    Ok(())
}

#[test]
fn an_archive_that_is_cut_off_is_not_used() -> TestResult {
    let test_folder = TestFolder::new("cut-off")?;
    let (archive, checksum) = test_folder.archive()?;
    let bytes = archive.len() / 2;
    let releases = serve(&index(&["v1.36.3"], &checksum), ArchiveResponse::Sent { content: archive, bytes })?;
    let installation = test_folder.run(&releases, &["--control-plane"])?;
    assert_eq!(installation.origin_of("kube-apiserver"), "built");
    assert!(
        installation.log.contains("the download failed or was cut off: not used"),
        "{}",
        installation.log
    );
    Ok(())
}

#[test]
fn a_server_that_does_not_respond_is_given_up() -> TestResult {
    let test_folder = TestFolder::new("unreachable")?;
    // One server accepts connections and responds to nothing, the other responds only to requests for the index.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let without_index = format!("http://{}", listener.local_addr()?);
    let without_archive = serve(&index(&["v1.36.3"], "0"), ArchiveResponse::Never)?;
    for (releases, message) in [(without_index, "not reached"), (without_archive, "the download failed")] {
        let mut command = test_folder.command(&releases, &["--control-plane"]);
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(run.stderr.take().ok_or("no stderr")?).lines();
        let mut read_until =
            |text: &str| lines.by_ref().map_while(Result::ok).any(|line| line.contains(text));
        assert!(read_until("asking"));
        // Without limits of its own, curl would wait for as long as the server does, and so for ever.
        assert!(read_until(message), "no line contains {message:?}");
        lines.by_ref().for_each(drop);
        assert!(run.wait()?.success());
        fs::remove_dir_all(test_folder.folder.join("cache"))?;
    }
    Ok(())
}

#[test]
fn two_runs_at_once_build_once() -> TestResult {
    let test_folder = TestFolder::new("race")?;
    let spawn = || {
        let mut command = test_folder.command(UNREACHABLE, &["--control-plane"]);
        command.env("FAKE_SECONDS", "1").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let (first, second) = (spawn()?, spawn()?);
    let (first, second) = (
        Installation::from_output(first.wait_with_output()?)?,
        Installation::from_output(second.wait_with_output()?)?,
    );
    assert_eq!(first.folder, second.folder);
    assert_eq!(first.origin_of("etcd"), "built");
    let builds = first.log.matches("building etcd").count() + second.log.matches("building etcd").count();
    assert_eq!(builds, 1, "{}{}", first.log, second.log);
    Ok(())
}

#[test]
fn an_interrupted_run_installs_nothing_and_the_next_run_succeeds() -> TestResult {
    let test_folder = TestFolder::new("interrupted")?;
    let mut command = test_folder.command(UNREACHABLE, &["--control-plane"]);
    let pid_file = test_folder.folder.join("pid");
    let mut run =
        command.env("FAKE_ENDLESS", &pid_file).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut go_pid = String::new();
    wait_until("the build has started", || {
        go_pid = fs::read_to_string(&pid_file).unwrap_or_default();
        go_pid.ends_with('\n')
    });
    assert!(Command::new("kill").arg(run.id().to_string()).status()?.success());
    assert!(!run.wait()?.success());
    wait_until("the build has ended", || !is_running(go_pid.trim()));
    let count_folders = || {
        fs::read_dir(test_folder.folder.join("cache/reknit/envtest")).map(|entries| {
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with('v')).count()
        })
    };
    assert_eq!(count_folders()?, 0);
    test_folder.run(UNREACHABLE, &["--control-plane"])?;
    assert_eq!(count_folders()?, 1);
    Ok(())
}

/// Waits for a condition. Fails the test after half a minute.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(30), "not within half a minute: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn is_running(pid: &str) -> bool {
    Command::new("kill").args(["-0", pid]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn cached_programs_are_kept_if_missing_ones_cannot_be_built() -> TestResult {
    let test_folder = TestFolder::new("kept")?;
    let installation = test_folder.run(UNREACHABLE, &["--control-plane"])?;
    fs::remove_file(installation.folder.join("etcd"))?;
    let failed = test_folder.command(UNREACHABLE, &["--control-plane"]).env("FAKE_FAILS", "yes").output()?;
    assert!(!failed.status.success());
    assert_eq!(installation.origin_of("kube-apiserver"), "built");
    assert_eq!(test_folder.run(UNREACHABLE, &["--control-plane"])?.origin_of("etcd"), "built");
    Ok(())
}

#[test]
fn programs_missing_in_the_users_folder_are_installed_in_another_folder() -> TestResult {
    let test_folder = TestFolder::new("assets")?;
    for program in ["kube-apiserver", "etcd", "kubectl"] {
        test_folder.write_program(&format!("assets/{program}"), "own\n")?;
    }
    let assets = test_folder.folder.join("assets");
    let run = |arguments| {
        Installation::from_output(
            test_folder.command(UNREACHABLE, arguments).env("KUBEBUILDER_ASSETS", &assets).output()?,
        )
    };
    assert_eq!(
        run(&["--control-plane"])?.folder,
        assets,
        "another folder is used although no program is missing"
    );
    let all = run(&[])?;
    assert_ne!(all.folder, assets);
    assert_eq!((all.origin_of("etcd"), all.origin_of("kwok")), ("own".into(), "built".into()));
    assert_eq!(fs::read_dir(&assets)?.count(), 3, "the user's folder was changed");
    Ok(())
}
