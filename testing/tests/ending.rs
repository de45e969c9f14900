//! Nothing of a control plane is left once the test that started it is gone.

use std::{
    error::Error,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use reknit_testing::{ControlPlane, eventually};

const SOON: Duration = Duration::from_secs(30);

fn processes(folder: &Path) -> io::Result<Vec<String>> {
    let process = |program| std::fs::read_to_string(folder.join(format!("{program}.pid")));
    ["etcd", "kube-apiserver"].map(process).into_iter().map(|text| Ok(text?.trim().to_owned())).collect()
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

fn holder() -> io::Result<Command> {
    let test = std::env::current_exe()?;
    let target = test.ancestors().nth(2).ok_or(io::ErrorKind::NotFound)?;
    Ok(Command::new(target.join("examples/holds_a_control_plane")))
}

/// Starts a process that holds a control plane, and returns it with the folder it says.
fn start_holder() -> io::Result<(Child, PathBuf)> {
    let mut holder = holder()?.stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(holder.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).read_line(&mut line)?;
    let folder = Path::new(line.trim()).parent().ok_or(io::ErrorKind::NotFound)?;
    Ok((holder, folder.to_owned()))
}

#[tokio::test]
async fn a_process_that_is_killed_leaves_nothing_running() -> Result<(), Box<dyn Error>> {
    let (mut holder, folder) = start_holder()?;
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
        let folder = plane.kubeconfig().parent().unwrap().to_owned();
        std::panic::panic_any((processes(&folder).unwrap(), folder));
    });
    let payload = test.await.unwrap_err().into_panic();
    let (processes, folder) = *payload.downcast::<(Vec<String>, PathBuf)>().unwrap();
    gone(&folder, &processes).await;
}

#[tokio::test]
async fn without_programs_the_error_names_what_brings_them() -> Result<(), Box<dyn Error>> {
    let nothing = tempfile::tempdir()?;
    let output =
        holder()?.env("KUBEBUILDER_ASSETS", nothing.path()).env("XDG_CACHE_HOME", nothing.path()).output()?;
    let error = String::from_utf8(output.stderr)?;
    assert!(!output.status.success());
    for part in ["found no etcd", "hack/setup-envtest.sh", "KUBEBUILDER_ASSETS"] {
        assert!(error.contains(part), "{error} names no {part}");
    }
    Ok(())
}
