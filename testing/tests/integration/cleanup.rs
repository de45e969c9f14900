//! Cleanup: no process and no file of a control plane is left when the test that started it has ended.

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
/// The environment variable with the file to which [`hold_a_control_plane_until_the_process_ends`] writes its folder.
const FOLDER_FILE: &str = "REKNIT_TESTING_HOLD_A_CONTROL_PLANE";

/// The process ids of the programs of a control plane.
fn process_ids(folder: &Path) -> io::Result<Vec<String>> {
    let read_id = |program| std::fs::read_to_string(folder.join(format!("{program}.pid")));
    let programs = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"];
    programs.map(read_id).into_iter().map(|text| Ok(text?.trim().to_owned())).collect()
}

fn is_alive(process_id: &str) -> bool {
    Command::new("kill")
        .args(["-0", process_id])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

async fn wait_until_removed(folder: &Path, process_ids: &[String]) {
    eventually("the end of the programs and their folder", SOON, async || {
        let alive: Vec<_> = process_ids.iter().filter(|process_id| is_alive(process_id)).collect();
        match alive.is_empty() && !folder.exists() {
            true => Ok(()),
            false => Err(format!("running processes: {alive:?}; the folder exists: {}", folder.exists())),
        }
    })
    .await;
}

/// The command that runs only the test [`hold_a_control_plane_until_the_process_ends`] in another process, with this
/// file.
fn holder(file: &Path) -> io::Result<Command> {
    let mut holder = Command::new(std::env::current_exe()?);
    holder
        .args(["--exact", "cleanup::hold_a_control_plane_until_the_process_ends", "--nocapture"])
        .env(FOLDER_FILE, file);
    Ok(holder)
}

#[tokio::test]
async fn hold_a_control_plane_until_the_process_ends() -> Result<(), Box<dyn Error>> {
    let Some(file) = std::env::var_os(FOLDER_FILE) else { return Ok(()) };
    let plane = ControlPlane::start().await?;
    plane.nodes(1).await?;
    std::fs::write(file, format!("{}\n", plane.folder().display()))?;
    std::future::pending().await
}

#[tokio::test]
async fn a_killed_test_process_leaves_no_program_and_no_folder() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let file = temporary.path().join("path-of-folder");
    let mut holder = holder(&file)?.spawn()?;
    let started = eventually("a control plane in another process", START, async || {
        std::fs::read_to_string(&file).ok().filter(|folder| folder.ends_with('\n'))
    });
    let folder = PathBuf::from(started.await.trim_end());
    let process_ids = process_ids(&folder)?;
    assert!(
        process_ids.iter().all(|process_id| is_alive(process_id)),
        "{process_ids:?} in {}",
        folder.display()
    );
    holder.kill()?;
    holder.wait()?;
    wait_until_removed(&folder, &process_ids).await;
    Ok(())
}

#[tokio::test]
async fn a_panic_leaves_no_program_and_no_folder() {
    let test = tokio::spawn(async {
        let plane = ControlPlane::start().await.unwrap();
        plane.nodes(1).await.unwrap();
        let folder = plane.folder().to_owned();
        std::panic::panic_any((process_ids(&folder).unwrap(), folder));
    });
    let payload = test.await.unwrap_err().into_panic();
    let (process_ids, folder) = *payload.downcast::<(Vec<String>, PathBuf)>().unwrap();
    wait_until_removed(&folder, &process_ids).await;
}

#[tokio::test]
async fn the_error_about_missing_programs_names_the_script_that_installs_them() -> Result<(), Box<dyn Error>>
{
    let empty = tempfile::tempdir()?;
    assert_names_program_and_script(&holder_error(empty.path())?, "etcd");
    Ok(())
}

#[tokio::test]
async fn the_error_about_missing_node_programs_names_the_script_that_installs_them()
-> Result<(), Box<dyn Error>> {
    let plane = ControlPlane::start().await?;
    // A folder with two of the five programs.
    let archive = tempfile::tempdir()?;
    for program in ["etcd", "kube-apiserver"] {
        let command = std::fs::read_to_string(plane.folder().join(format!("{program}.command")))?;
        let path = command.split('\'').nth(1).ok_or("no quoted path in the command")?;
        std::os::unix::fs::symlink(path, archive.path().join(program))?;
    }
    assert_names_program_and_script(&holder_error(archive.path())?, "kube-controller-manager");
    Ok(())
}

#[tokio::test]
async fn a_missing_assets_folder_is_an_error() -> Result<(), Box<dyn Error>> {
    let absent = tempfile::tempdir()?.path().join("absent");
    let error = holder_error(&absent)?;
    let expected = format!("KUBEBUILDER_ASSETS names {}, which is not a folder", absent.display());
    assert!(error.contains(&expected), "{error}");
    Ok(())
}

/// The output of the holder, which fails because it finds only the programs of this folder.
fn holder_error(folder: &Path) -> Result<String, Box<dyn Error>> {
    let mut holder = holder(&folder.join("path-of-folder"))?;
    let output = holder.env("KUBEBUILDER_ASSETS", folder).env("XDG_CACHE_HOME", folder).output()?;
    assert!(!output.status.success());
    Ok(String::from_utf8([output.stdout, output.stderr].concat())?)
}

fn assert_names_program_and_script(error: &str, program: &str) {
    let found_no = format!("found no {program}");
    for part in [&found_no, "hack/setup-envtest.sh", "KUBEBUILDER_ASSETS"] {
        assert!(error.contains(part), "no {part} in {error}");
    }
}
