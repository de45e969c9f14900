//! What the programs of a control plane are told on their command lines.

use std::{fs, path::Path};

use super::{
    Error,
    credentials::{SIGNING_KEY, TOKENS, VERIFYING_KEY},
    ports::Ports,
    programs::Programs,
};

pub(super) const ETCD: &str = "etcd";
pub(super) const API_SERVER: &str = "kube-apiserver";
/// In the order to start them.
pub(super) const ALL: [&str; 2] = [ETCD, API_SERVER];

pub(super) const CERTIFICATES: &str = "certificates";
pub(super) const AUDIT_LOG: &str = "audit.log";
const AUDIT_POLICY: &str = "audit-policy.yaml";
const EVERYTHING: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";

/// Writes the command of each program into the folder, where the guard finds it.
pub(super) fn write(
    folder: &Path,
    programs: &Programs,
    ports: Ports,
    audited: bool,
    more: &[String],
) -> Result<(), Error> {
    let mut api_server = api_server(folder, ports);
    if audited {
        write_file(&folder.join(AUDIT_POLICY), EVERYTHING)?;
        api_server.push(format!("--audit-policy-file={}", folder.join(AUDIT_POLICY).display()));
        api_server.push(format!("--audit-log-path={}", folder.join(AUDIT_LOG).display()));
    }
    api_server.extend_from_slice(more);
    write_command(folder, ETCD, &programs.etcd, &etcd(folder, ports))?;
    write_command(folder, API_SERVER, &programs.api_server, &api_server)
}

fn etcd(folder: &Path, ports: Ports) -> Vec<String> {
    let clients = format!("http://127.0.0.1:{}", ports.etcd);
    let peers = format!("http://127.0.0.1:{}", ports.etcd_peers);
    vec![
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
        "--unsafe-no-fsync".into(),
    ]
}

fn api_server(folder: &Path, ports: Ports) -> Vec<String> {
    let in_folder = |name| folder.join(name).display().to_string();
    vec![
        format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd),
        format!("--secure-port={}", ports.api_server),
        format!("--cert-dir={}", in_folder(CERTIFICATES)),
        format!("--token-auth-file={}", in_folder(TOKENS)),
        format!("--service-account-signing-key-file={}", in_folder(SIGNING_KEY)),
        format!("--service-account-key-file={}", in_folder(VERIFYING_KEY)),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        "--bind-address=127.0.0.1".into(),
        // Otherwise it looks for an interface that leads out, and there may be none.
        "--advertise-address=127.0.0.1".into(),
        "--endpoint-reconciler-type=none".into(),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        "--authorization-mode=RBAC".into(),
        "--allow-privileged=true".into(),
        // It refuses pods until a controller has made their service account; no controllers run here.
        "--disable-admission-plugins=ServiceAccount".into(),
    ]
}

fn write_command(folder: &Path, name: &str, program: &Path, arguments: &[String]) -> Result<(), Error> {
    let mut command = format!("exec {}", quoted(&program.display().to_string()));
    for argument in arguments {
        command.push_str(" \\\n  ");
        command.push_str(&quoted(argument));
    }
    command.push('\n');
    write_file(&folder.join(format!("{name}.command")), &command)
}

fn write_file(path: &Path, content: &str) -> Result<(), Error> {
    fs::write(path, content).map_err(Error::file("write", path))
}

/// As the shell reads it as one word.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_stays_one_word_whatever_is_in_it() {
        assert_eq!(quoted("--a=b c$d"), "'--a=b c$d'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
