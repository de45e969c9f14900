//! The end of a control plane: nothing is left when the test that started it is gone.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use reknit_testing::{ControlPlane, eventually};

const SOON: Duration = Duration::from_secs(30);
const START: Duration = Duration::from_secs(120);
const HOLD: &str = "REKNIT_TESTING_HOLD_A_CONTROL_PLANE";

fn processes(folder: &Path) -> io::Result<Vec<String>> {
    let process = |program| std::fs::read_to_string(folder.join(format!("{program}.pid")));
    let programs = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"];
    programs.map(process).into_iter().map(|text| Ok(text?.trim().to_owned())).collect()
}

fn is_alive(process: &str) -> bool {
    Command::new("kill")
        .args(["-0", process])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

async fn gone(folder: &Path, processes: &[String]) {
    eventually("the end of the programs and their folder", SOON, async || {
        let left: Vec<_> = processes.iter().filter(|process| is_alive(process)).collect();
        match left.is_empty() && !folder.exists() {
            true => Ok(()),
            false => Err(format!("processes {left:?} are left, the folder {}", folder.exists())),
        }
    })
    .await;
}

/// Runs this test program again, with only the test that holds a control plane and writes its folder to the file.
fn holder(file: &Path) -> io::Result<Command> {
    let mut holder = Command::new(std::env::current_exe()?);
    holder
        .args(["--exact", "ending::a_control_plane_is_held_until_the_process_ends", "--nocapture"])
        .env(HOLD, file);
    Ok(holder)
}

#[tokio::test]
async fn a_control_plane_is_held_until_the_process_ends() -> Result<(), Box<dyn Error>> {
    let Some(file) = std::env::var_os(HOLD) else { return Ok(()) };
    let plane = ControlPlane::start().await?;
    plane.nodes(1).await?;
    std::fs::write(file, format!("{}\n", plane.folder().display()))?;
    std::future::pending().await
}

#[tokio::test]
async fn a_process_that_is_killed_leaves_nothing_running() -> Result<(), Box<dyn Error>> {
    let own = tempfile::tempdir()?;
    let file = own.path().join("folder");
    let mut holder = holder(&file)?.spawn()?;
    let started = eventually("a control plane in another process", START, async || {
        std::fs::read_to_string(&file).ok().filter(|folder| folder.ends_with('\n'))
    });
    let folder = PathBuf::from(started.await.trim_end());
    let processes = processes(&folder)?;
    assert!(processes.iter().all(|process| is_alive(process)), "{processes:?} in {}", folder.display());
    holder.kill()?;
    holder.wait()?;
    gone(&folder, &processes).await;
    Ok(())
}

#[tokio::test]
async fn a_test_that_panics_leaves_nothing_running() {
    let test = tokio::spawn(async {
        let plane = ControlPlane::start().await.unwrap();
        plane.nodes(1).await.unwrap();
        let folder = plane.folder().to_owned();
        std::panic::panic_any((processes(&folder).unwrap(), folder));
    });
    let payload = test.await.unwrap_err().into_panic();
    let (processes, folder) = *payload.downcast::<(Vec<String>, PathBuf)>().unwrap();
    gone(&folder, &processes).await;
}

#[tokio::test]
async fn an_error_without_programs_names_the_script_that_installs_them() -> Result<(), Box<dyn Error>> {
    let nothing = tempfile::tempdir()?;
    assert_named("etcd", &refusal(nothing.path())?);
    Ok(())
}

#[tokio::test]
async fn an_error_without_node_programs_names_the_script_that_installs_them() -> Result<(), Box<dyn Error>> {
    let plane = ControlPlane::start().await?;
    let archive = tempfile::tempdir()?;
    for program in ["etcd", "kube-apiserver"] {
        let command = std::fs::read_to_string(plane.folder().join(format!("{program}.command")))?;
        let path = command.split('\'').nth(1).ok_or("a quoted path")?;
        std::os::unix::fs::symlink(path, archive.path().join(program))?;
    }
    assert_named("kube-controller-manager", &refusal(archive.path())?);
    Ok(())
}

#[tokio::test]
async fn a_missing_assets_folder_is_an_error() -> Result<(), Box<dyn Error>> {
    let absent = tempfile::tempdir()?.path().join("absent");
    let said = refusal(&absent)?;
    let expected = format!("KUBEBUILDER_ASSETS names {}, which is no folder", absent.display());
    assert!(said.contains(&expected), "{said}");
    Ok(())
}

/// The output of the holder when only this folder has programs.
fn refusal(folder: &Path) -> Result<String, Box<dyn Error>> {
    let mut holder = holder(&folder.join("folder"))?;
    let output = holder.env("KUBEBUILDER_ASSETS", folder).env("XDG_CACHE_HOME", folder).output()?;
    assert!(!output.status.success());
    Ok(String::from_utf8([output.stdout, output.stderr].concat())?)
}

fn assert_named(program: &str, error: &str) {
    let found_no = format!("found no {program}");
    for part in [&found_no, "hack/setup-envtest.sh", "KUBEBUILDER_ASSETS"] {
        assert!(error.contains(part), "{error} names no {part}");
    }
}
