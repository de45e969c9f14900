//! `cargo reknit dev`, which runs a project against a control plane of its own.

use std::{
    io::{BufRead, BufReader},
    net::TcpStream,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use reknit_testing::eventually;
use rustix::process::{Pid, Signal, kill_process};

use serde_json::json;

use crate::project::Project;

/// For a line of the output, before which the project may have to compile: nine minutes beside six busy processes.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// The time without requests that a deployed webhook waits for before it stops.
const QUIET_PERIOD: Duration = Duration::from_secs(10);

/// A running `cargo reknit dev` and the lines that it prints.
struct Dev {
    child: Child,
    lines: Receiver<String>,
    printed: Vec<String>,
}

impl Dev {
    fn start(project: &Project) -> Self {
        // The program itself rather than cargo, so that SIGINT reaches it.
        let mut command = project.reknit(&["dev"]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        let errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let to_errors = sender.clone();
        thread::spawn(move || out.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        thread::spawn(move || errors.map_while(Result::ok).try_for_each(|line| to_errors.send(line)));
        Self { child, lines, printed: Vec::new() }
    }

    /// Waits for a line that contains the text, and returns it.
    fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(rest) else {
                panic!("no {text:?} within {TIMEOUT:?} after\n{}", self.printed.join("\n"))
            };
            self.printed.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Sends SIGINT as Ctrl-C does, and asserts that the command then succeeds.
    fn interrupt(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let status = self.child.wait().unwrap();
        self.printed.extend(self.lines.try_iter());
        assert!(status.success(), "{status}:\n{}", self.printed.join("\n"));
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Asserts that a binding is deleted with its manifest, and a ConfigMap is not.
async fn assert_withdraws_rights(project: &Project, kubeconfig: &Path, dev: &mut Dev) {
    let (file, first) = ("config/500-controller.yaml", "apiVersion: apps/v1\n");
    let extra = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: extra}\n\
                 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\n---\n\
                 apiVersion: v1\nkind: ConfigMap\nmetadata: {name: extra}\n---\n";
    project.edit(file, first, &format!("{extra}{first}"));
    let client = client(kubeconfig).await;
    let bindings = Api::<ClusterRoleBinding>::all(client.clone());
    eventually("the binding", TIMEOUT, async || bindings.get_opt("extra").await.unwrap().is_some()).await;
    project.edit(file, extra, "");
    dev.wait_for("deleted ClusterRoleBinding extra");
    assert!(bindings.get_opt("extra").await.unwrap().is_none());
    assert!(Api::<ConfigMap>::namespaced(client, "default").get_opt("extra").await.unwrap().is_some());
}

/// Deletes a Namespace with an object in it, and waits until both are gone.
async fn assert_deletes_namespaces(kubeconfig: &Path) {
    let client = client(kubeconfig).await;
    let (namespaces, maps) =
        (Api::<Namespace>::all(client.clone()), Api::<ConfigMap>::namespaced(client, "left"));
    let namespace = serde_json::from_value(json!({"metadata": {"name": "left"}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let map = serde_json::from_value(json!({"metadata": {"name": "x"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    namespaces.delete("left", &Default::default()).await.unwrap();
    eventually("the deletion of a Namespace", Duration::from_secs(60), async || {
        let namespace = namespaces.get_opt("left").await.map_err(|error| error.to_string())?;
        namespace.map_or(Ok(()), |namespace| Err(format!("{:?}", namespace.status)))
    })
    .await;
    assert_eq!(maps.get_opt("x").await.unwrap(), None);
}

#[tokio::test]
async fn programs_follow_the_sources_and_end_with_the_command() {
    let project = Project::new("notes", &["--group", "notes.example.com", "--kind", "Note"]);
    project.cargo(&["reknit", "add", "webhook", "Note", "--validation"]);
    let mut dev = Dev::start(&project);
    let kubeconfig = dev.wait_for("export KUBECONFIG=");
    let kubeconfig =
        kubeconfig.split(['=', ' ']).find(|word| word.ends_with("/kubeconfig")).map(PathBuf::from).unwrap();
    assert!(kubeconfig.exists(), "{}", kubeconfig.display());
    let ready = dev.wait_for("ready Note/hello");
    assert!(ready.contains("s after the build"), "{ready}");
    assert_deletes_namespaces(&kubeconfig).await;
    assert_withdraws_rights(&project, &kubeconfig, &mut dev).await;

    project.edit("src/note/controller.rs", "Ok(Outcome::done())", "Ok(Outcome::unknown())");
    dev.wait_for("error[E0599]");
    dev.wait_for("the project does not compile; the running programs are kept");

    project.edit("src/note/controller.rs", "Ok(Outcome::unknown())", "Ok(Outcome::done())");
    project.edit(
        "src/note/controller.rs",
        "mark_true(\"Ready\")",
        "mark_false(\"Ready\", \"Changed\", \"by the test\")",
    );
    dev.wait_for("received SIGTERM");
    let stopping = Instant::now();
    dev.wait_for("running notes as notes/controller");
    dev.wait_for("console http://127.0.0.1:");
    assert!(stopping.elapsed() < QUIET_PERIOD, "{:?}", stopping.elapsed());
    dev.wait_for("False");

    let (account, other) = ("serviceAccountName: controller", "serviceAccountName: other");
    project.edit("config/500-controller.yaml", account, other);
    dev.wait_for("config/ has no such ServiceAccount");
    dev.wait_for("running notes as notes/other");
    project.edit("config/500-controller.yaml", other, account);
    dev.wait_for("running notes as notes/controller");

    let (replicas, misspelt) = ("  replicas: 2", "  replica: 2");
    project.edit("config/500-controller.yaml", replicas, misspelt);
    project.edit("src/note/controller.rs", "by the test", "by the second test");
    dev.wait_for("cannot apply config/");
    project.edit("config/500-controller.yaml", misspelt, replicas);
    dev.wait_for("running notes as notes/controller");

    dev.interrupt();
    let is_removed = async || match kubeconfig.exists() {
        true => Err("it exists"),
        false => Ok(()),
    };
    eventually("the removal of the control plane's folder", Duration::from_secs(20), is_removed).await;

    let mut killed = Dev::start(&project);
    let console = killed.wait_for("console http://127.0.0.1:");
    let port = console.rsplit_once(':').unwrap().1.trim_matches(|letter: char| !letter.is_ascii_digit());
    let port: u16 = port.parse().unwrap();
    let limit = Duration::from_secs(30);
    eventually("the console", limit, async || TcpStream::connect(("127.0.0.1", port))).await;
    drop(killed);
    let has_ended = async || match TcpStream::connect(("127.0.0.1", port)) {
        Ok(_) => Err("it serves its console"),
        Err(_) => Ok(()),
    };
    eventually("the end of the program", limit, has_ended).await;

    project.edit("config/500-webhook.yaml", "--only=webhook", "--only=webhook\", \"--unknown");
    let failed = project.reknit(&["dev", "--once"]).output().unwrap();
    let errors = String::from_utf8_lossy(&failed.stderr);
    let message = "a program exited before these examples were ready: Note/hello";
    assert!(failed.status.code() == Some(1) && errors.contains(message), "{errors}");
}
