//! The command lines of the programs of a control plane.

use std::{fs, path::Path};

use super::programs::Programs;
use crate::{
    Error,
    control_plane::credentials::{CERTIFICATE, KEY, SIGNING_KEY, TOKENS, VERIFYING_KEY},
};

/// The file of the socket for clients of etcd, in the folder, which is etcd's working directory. Etcd insists on a host
/// and a port.
pub(in crate::control_plane) const ETCD_SOCKET: &str = "clients:1";

const ETCD: &str = "etcd";
const API_SERVER: &str = "kube-apiserver";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";
const KWOK: &str = "kwok";
/// The programs of every control plane, in the order to start them.
pub(super) const CORE: [&str; 2] = [ETCD, API_SERVER];
/// The additional programs of a control plane with nodes, in the order to start them.
pub(super) const NODES: [&str; 3] = [CONTROLLER_MANAGER, SCHEDULER, KWOK];
pub(super) const ALL: [&str; 5] = [ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK];

/// The controllers that run and scale workloads and delete dependents. The others cost memory and requests, and some of
/// them create objects in each new namespace.
const CONTROLLERS: &str = "--controllers=clusterrole-aggregation-controller,cronjob-controller,\
    daemonset-controller,deployment-controller,endpointslice-controller,garbage-collector-controller,\
    horizontal-pod-autoscaler-controller,job-controller,namespace-controller,node-lifecycle-controller,\
    replicaset-controller,statefulset-controller";

pub(in crate::control_plane) const AUDIT_LOG: &str = "audit.log";
const AUDIT_POLICY_FILE: &str = "audit-policy.yaml";
/// Logs every request, without its body.
const AUDIT_POLICY: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";

/// Writes the commands of etcd and the API server into the folder, where the guard reads them.
pub(super) fn write(
    folder: &Path,
    programs: &Programs,
    port: u16,
    audited: bool,
    extra_arguments: &[String],
) -> Result<(), Error> {
    let mut api_server = api_server(folder, port);
    if audited {
        write_file(&folder.join(AUDIT_POLICY_FILE), AUDIT_POLICY)?;
        api_server.push(format!("--audit-policy-file={}", folder.join(AUDIT_POLICY_FILE).display()));
        api_server.push(format!("--audit-log-path={}", folder.join(AUDIT_LOG).display()));
    }
    api_server.extend_from_slice(extra_arguments);
    write_command(folder, ETCD, programs, &etcd())?;
    write_command(folder, API_SERVER, programs, &api_server)
}

/// Etcd asks nobody for a password, so it listens only on sockets in the folder, which other users cannot enter. A port
/// on 127.0.0.1 would be open to all users of the machine, and to the websites in their browsers.
fn etcd() -> Vec<String> {
    let (clients, peers) = (format!("unix://{ETCD_SOCKET}"), "unix://peers:1");
    vec![
        "--data-dir=etcd".into(),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
        "--unsafe-no-fsync".into(),
    ]
}

fn api_server(folder: &Path, port: u16) -> Vec<String> {
    let in_folder = |name| folder.join(name).display().to_string();
    vec![
        format!("--etcd-servers=unix://{}", in_folder(ETCD_SOCKET)),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={}", in_folder(CERTIFICATE)),
        format!("--tls-private-key-file={}", in_folder(KEY)),
        format!("--token-auth-file={}", in_folder(TOKENS)),
        format!("--service-account-signing-key-file={}", in_folder(SIGNING_KEY)),
        format!("--service-account-key-file={}", in_folder(VERIFYING_KEY)),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        "--bind-address=127.0.0.1".into(),
        // By default the API server looks for an interface with a route to the internet, and fails if there is none.
        "--advertise-address=127.0.0.1".into(),
        "--endpoint-reconciler-type=none".into(),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        "--authorization-mode=RBAC".into(),
        "--allow-privileged=true".into(),
        // This plugin refuses pods until a controller has created their service account, and no controller runs here.
        "--disable-admission-plugins=ServiceAccount".into(),
    ]
}

/// Writes the commands of the programs of the nodes. None of these programs listens on a port.
pub(super) fn write_nodes(folder: &Path, programs: &Programs, kubeconfig: &Path) -> Result<(), Error> {
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let common = [kubeconfig.clone(), "--leader-elect=false".into(), "--secure-port=0".into()];
    let mut controllers = common.to_vec();
    controllers.push(CONTROLLERS.into());
    // The nodes have no leases, and kwok writes their status every twenty minutes.
    controllers.push("--node-monitor-grace-period=1h".into());
    controllers.extend(["--kube-api-qps=200".into(), "--kube-api-burst=400".into()]);
    write_command(folder, CONTROLLER_MANAGER, programs, &controllers)?;
    write_command(folder, SCHEDULER, programs, &common)?;
    let mut kwok = vec![kubeconfig, "--manage-all-nodes".into(), "--node-lease-duration-seconds=0".into()];
    kwok.extend(stage_arguments(&programs.find("kwok-stages")?)?);
    write_command(folder, KWOK, programs, &kwok)
}

/// The arguments that name kwok's stages: each file describes how nodes or pods change from one state to the next.
fn stage_arguments(folder: &Path) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let mut paths: Vec<_> = entries
        .map_err(Error::cannot(format!("read {}", folder.display())))?
        .into_iter()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    Ok(paths.iter().map(|path| format!("--config={}", path.display())).collect())
}

fn write_command(
    folder: &Path,
    name: &'static str,
    programs: &Programs,
    arguments: &[String],
) -> Result<(), Error> {
    let program = shell_quoted(&programs.find(name)?.display().to_string());
    let mut command = match name {
        ETCD => format!("cd \"$(dirname \"$0\")\" && exec {program}"), // to the folder of this script
        _ => format!("exec {program}"),
    };
    for argument in arguments {
        command.push_str(" \\\n  ");
        command.push_str(&shell_quoted(argument));
    }
    command.push('\n');
    write_file(&folder.join(format!("{name}.command")), &command)
}

fn write_file(path: &Path, content: &str) -> Result<(), Error> {
    fs::write(path, content).map_err(Error::cannot(format!("write {}", path.display())))
}

/// Quotes a word for the shell.
fn shell_quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_with_special_characters_stays_one_word() {
        assert_eq!(shell_quoted("--a=b c$d"), "'--a=b c$d'");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
    }
}
