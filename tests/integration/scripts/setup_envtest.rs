//! hack/setup-envtest.sh, which uses an official archive only if its checksum is the published one.
//!
//! A server on 127.0.0.1 serves the archives. `go` is a fake that writes an empty program, so that programs that are
//! not in the archive are built at once.

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

/// An address without a listener.
const NOWHERE: &str = "http://127.0.0.1:1";

type Outcome = Result<(), Box<dyn Error>>;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hack/setup-envtest.sh");
const GO: &str = r#"#!/bin/sh
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

/// The folder of one test: a cache, a PATH with the fake `go`, and an archive.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn new(name: &str) -> io::Result<Self> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let place = Self { folder };
        fs::create_dir_all(place.folder.join("bin"))?;
        place.write_program("bin/go", GO)?;
        for stage in ["node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease"] {
            place.write_stage(stage)?;
        }
        for stage in ["pod/fast/pod-ready", "pod/fast/pod-complete", "pod/fast/pod-delete"] {
            place.write_stage(stage)?;
        }
        Ok(place)
    }

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

    /// Packs an archive as the controller-tools project does, and returns it with its checksum.
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

    fn command(&self, releases: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("bash");
        command
            .arg(SCRIPT)
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

    fn run(&self, releases: &str, arguments: &[&str]) -> Result<Ran, Box<dyn Error>> {
        Ran::of(self.command(releases, arguments).output()?)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// The output of a run of the script.
#[derive(Debug)]
struct Ran {
    folder: PathBuf,
    log: String,
}

impl Ran {
    fn of(output: Output) -> Result<Self, Box<dyn Error>> {
        let log = String::from_utf8(output.stderr)?;
        match output.status.success() {
            true => Ok(Self { folder: String::from_utf8(output.stdout)?.trim_end().into(), log }),
            false => Err(format!("{}: {log}", output.status).into()),
        }
    }

    /// The origin of a program: `downloaded` or `built`.
    fn source_of(&self, program: &str) -> String {
        let content = fs::read_to_string(self.folder.join(program));
        content.map_or_else(|error| error.to_string(), |content| content.trim().to_owned())
    }
}

/// The server's response to a request for the archive.
enum Archive {
    Sent { content: Vec<u8>, bytes: usize },
    NeverAnswered,
}

impl Archive {
    fn whole(content: Vec<u8>) -> Self {
        Self::Sent { bytes: content.len(), content }
    }
}

/// Serves an index of releases, with its own address in place of `ADDRESS`, and the archive for all of them.
fn serve(index: &str, archive: Archive) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    let index = index.replace("ADDRESS", &address);
    thread::spawn(move || {
        let mut open = Vec::new();
        for mut connection in listener.incoming().flatten() {
            // Some tests are about a client that goes away.
            drop(answer(&mut connection, &index, &archive));
            open.extend(matches!(archive, Archive::NeverAnswered).then_some(connection));
        }
    });
    Ok(address)
}

fn answer(connection: &mut TcpStream, index: &str, archive: &Archive) -> io::Result<()> {
    let mut lines = BufReader::new(connection.try_clone()?).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    while lines.next().transpose()?.is_some_and(|header| !header.is_empty()) {}
    let (content, bytes) = match archive {
        _ if request.contains("/envtest-releases.yaml ") => (index.as_bytes(), index.len()),
        Archive::Sent { content, bytes } => (content.as_slice(), *bytes),
        Archive::NeverAnswered => return Ok(()),
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

/// An index of these versions, each for this platform and for another one.
fn index(versions: &[&str], checksum: &str) -> String {
    let archive = |version: &str, platform: &str| {
        let name = format!("envtest-{version}-{platform}.tar.gz");
        format!("    {name}:\n      hash: {checksum}\n      selfLink: ADDRESS/{version}/{name}\n")
    };
    let release = |version: &&str| {
        let (other, ours) = (archive(version, "windows-amd64"), archive(version, &platform()));
        format!("  {version}:\n{other}{ours}")
    };
    format!("releases:\n{}", versions.iter().map(release).collect::<String>())
}

#[test]
fn the_published_archive_is_used_and_cached() -> Outcome {
    let place = Place::new("published")?;
    let (archive, checksum) = place.archive()?;
    let versions = ["v1.28.0", "v1.36.0", "v1.36.10", "v1.36.9", "v1.36.11-rc.0", "v1.37.0"];
    let releases = serve(&index(&versions, &checksum), Archive::whole(archive))?;
    let ran = place.run(&releases, &["--control-plane"])?;
    assert_eq!(ran.source_of("kube-apiserver"), "downloaded");
    assert_eq!(ran.source_of("etcd"), "downloaded");
    assert!(ran.log.contains("from the official archive of v1.36.10: kube-apiserver"), "{}", ran.log);
    let again = place.run(NOWHERE, &["--control-plane"])?;
    assert_eq!(
        (again.folder, again.log.as_str()),
        (ran.folder, "setup-envtest: from the cache: all of them\n")
    );
    Ok(())
}

#[test]
fn the_exact_version_is_preferred_to_a_newer_one() -> Outcome {
    let place = Place::new("version")?;
    let (archive, checksum) = place.archive()?;
    let releases = serve(&index(&["v1.36.2", "v1.36.3", "v1.36.4"], &checksum), Archive::whole(archive))?;
    let ran = place.run(&releases, &["--control-plane"])?;
    assert!(ran.log.contains("from the official archive of v1.36.3: etcd"), "{}", ran.log);
    Ok(())
}

#[test]
fn programs_missing_in_the_archive_are_built() -> Outcome {
    let place = Place::new("lacking")?;
    let (archive, checksum) = place.archive()?;
    let releases = serve(&index(&["v1.36.3"], &checksum), Archive::whole(archive))?;
    let ran = place.run(&releases, &[])?;
    assert_eq!(ran.source_of("etcd"), "downloaded");
    for program in ["kube-controller-manager", "kube-scheduler", "kwok"] {
        assert_eq!(ran.source_of(program), "built", "{program}: {}", ran.log);
    }
    assert_eq!(fs::read_dir(ran.folder.join("kwok-stages"))?.count(), 5);
    Ok(())
}

#[test]
fn an_archive_with_a_wrong_checksum_is_not_used() -> Outcome {
    let place = Place::new("checksum")?;
    let (archive, checksum) = place.archive()?;
    let wrong = checksum.replace(['0', '1'], "2");
    let releases = serve(&index(&["v1.36.3"], &wrong), Archive::whole(archive))?;
    let ran = place.run(&releases, &["--control-plane"])?;
    assert_eq!(ran.source_of("kube-apiserver"), "built");
    assert!(ran.log.contains(&format!("its checksum is not the published {wrong}: not used")), "{}", ran.log);
    Ok(())
}

#[test]
fn an_archive_that_is_cut_off_is_not_used() -> Outcome {
    let place = Place::new("cut-off")?;
    let (archive, checksum) = place.archive()?;
    let bytes = archive.len() / 2;
    let releases = serve(&index(&["v1.36.3"], &checksum), Archive::Sent { content: archive, bytes })?;
    let ran = place.run(&releases, &["--control-plane"])?;
    assert_eq!(ran.source_of("kube-apiserver"), "built");
    assert!(ran.log.contains("the download failed or was cut off: not used"), "{}", ran.log);
    Ok(())
}

#[test]
fn a_server_that_does_not_answer_costs_less_than_five_seconds() -> Outcome {
    let place = Place::new("unreachable")?;
    // Accepts connections and never answers.
    let deaf = TcpListener::bind("127.0.0.1:0")?;
    let deaf_address = format!("http://{}", deaf.local_addr()?);
    let half_deaf = serve(&index(&["v1.36.3"], "0"), Archive::NeverAnswered)?;
    for (releases, outcome) in [(deaf_address, "not reached"), (half_deaf, "the download failed")] {
        let mut command = place.command(&releases, &["--control-plane"]);
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(run.stderr.take().ok_or("no stderr")?).lines();
        let mut until = |text: &str| lines.by_ref().map_while(Result::ok).any(|line| line.contains(text));
        assert!(until("asking"));
        let asked = Instant::now();
        assert!(until(outcome), "no line says {outcome:?}");
        assert!(asked.elapsed() < Duration::from_secs(5), "{outcome}: {:?}", asked.elapsed());
        lines.by_ref().for_each(drop);
        assert!(run.wait()?.success());
        fs::remove_dir_all(place.folder.join("cache"))?;
    }
    Ok(())
}

#[test]
fn two_runs_at_once_build_once() -> Outcome {
    let place = Place::new("race")?;
    let spawn = || {
        let mut command = place.command(NOWHERE, &["--control-plane"]);
        command.env("FAKE_SECONDS", "1").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let (first, second) = (spawn()?, spawn()?);
    let (first, second) = (Ran::of(first.wait_with_output()?)?, Ran::of(second.wait_with_output()?)?);
    assert_eq!(first.folder, second.folder);
    assert_eq!(first.source_of("etcd"), "built");
    let builds = first.log.matches("building etcd").count() + second.log.matches("building etcd").count();
    assert_eq!(builds, 1, "{}{}", first.log, second.log);
    Ok(())
}

#[test]
fn an_interrupted_run_leaves_no_folder_and_the_next_one_makes_it() -> Outcome {
    let place = Place::new("interrupted")?;
    let mut command = place.command(NOWHERE, &["--control-plane"]);
    let pid = place.folder.join("pid");
    let mut run = command.env("FAKE_ENDLESS", &pid).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut go = String::new();
    until("it builds", || {
        go = fs::read_to_string(&pid).unwrap_or_default();
        go.ends_with('\n')
    });
    assert!(Command::new("kill").arg(run.id().to_string()).status()?.success());
    assert!(!run.wait()?.success());
    until("the build has ended too", || !is_running(go.trim()));
    let versions = || {
        fs::read_dir(place.folder.join("cache/reknit/envtest")).map(|entries| {
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with('v')).count()
        })
    };
    assert_eq!(versions()?, 0);
    place.run(NOWHERE, &["--control-plane"])?;
    assert_eq!(versions()?, 1);
    Ok(())
}

/// Waits for a condition, for half a minute.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(30), "not within half a minute: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn is_running(pid: &str) -> bool {
    Command::new("kill").args(["-0", pid]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn cached_programs_stay_if_the_rest_cannot_be_installed() -> Outcome {
    let place = Place::new("kept")?;
    let ran = place.run(NOWHERE, &["--control-plane"])?;
    fs::remove_file(ran.folder.join("etcd"))?;
    let failed = place.command(NOWHERE, &["--control-plane"]).env("FAKE_FAILS", "yes").output()?;
    assert!(!failed.status.success());
    assert_eq!(ran.source_of("kube-apiserver"), "built");
    assert_eq!(place.run(NOWHERE, &["--control-plane"])?.source_of("etcd"), "built");
    Ok(())
}

#[test]
fn programs_missing_in_the_users_folder_are_added_in_another_folder() -> Outcome {
    let place = Place::new("assets")?;
    for program in ["kube-apiserver", "etcd", "kubectl"] {
        place.write_program(&format!("assets/{program}"), "own\n")?;
    }
    let assets = place.folder.join("assets");
    let run =
        |arguments| Ran::of(place.command(NOWHERE, arguments).env("KUBEBUILDER_ASSETS", &assets).output()?);
    assert_eq!(run(&["--control-plane"])?.folder, assets, "nothing is missing");
    let all = run(&[])?;
    assert_ne!(all.folder, assets);
    assert_eq!((all.source_of("etcd"), all.source_of("kwok")), ("own".into(), "built".into()));
    assert_eq!(fs::read_dir(&assets)?.count(), 3, "the user's folder stays as it was");
    Ok(())
}
