//! How a process finds its API server and its credentials there.
use std::{env, fmt, path::PathBuf};

use kube::{
    Config,
    config::{Cluster, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use crate::{
    cli::flags::{Flags, PathList},
    client::proxy::Proxy,
    process::failure::Failure,
};

/// An API server with credentials, and where they were found: errors name it.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) config: Config,
    pub(crate) origin: Origin,
}

/// Where the configuration came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Files { paths: String, context: String },
    ServerFlag,
    Pod,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files { paths, context } => write!(f, "kubeconfig {paths}, context {context:?}"),
            Self::ServerFlag => f.write_str("--server, without credentials"),
            Self::Pod => f.write_str("the service account of this pod"),
        }
    }
}

/// In this order: `--kubeconfig`, `KUBECONFIG`, `~/.kube/config`, `--server` alone, the pod's service account.
/// What is given explicitly has to be right: nothing is tried after it.
pub(crate) async fn find(flags: &Flags) -> Result<Access, Failure> {
    let given = flags.kubeconfig.clone().filter(|list| !list.0.is_empty());
    let mut access = match (given.or_else(home_kubeconfig), &flags.server) {
        (Some(list), _) => from_files(&list, flags).await?,
        (None, server) => {
            named(flags)?;
            server.as_deref().map_or_else(from_pod, from_server)?
        }
    };
    if let Some(server) = &flags.server {
        access.config.cluster_url = url(server)?;
    }
    let authority = access.config.cluster_url.authority();
    if authority.is_some_and(|authority| authority.as_str().contains('@')) {
        let origin = &access.origin;
        return Err(Failure::new(format!(
            "{origin}: the address of the API server holds a user or a password, which would stand in logs and \
             traces: give them as the kubeconfig's user"
        )));
    }
    // As kubectl: the cluster's own proxy is for whatever address is used, those of the environment for this one.
    if access.config.proxy_url.is_none() {
        access.config.proxy_url = Proxy::of_environment().for_url(&access.config.cluster_url)?;
    }
    Ok(access)
}

/// `~/.kube/config`, if there is one.
fn home_kubeconfig() -> Option<PathList> {
    Some(PathList(vec![home_path()?])).filter(|list| list.0[0].exists())
}

fn home_path() -> Option<PathBuf> {
    env::home_dir().map(|home| home.join(".kube").join("config"))
}

async fn from_files(list: &PathList, flags: &Flags) -> Result<Access, Failure> {
    let paths = list.0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let failed = |why: String| Failure::new(format!("kubeconfig {paths}: {why}"));
    let files = read_all(list)?;
    let options =
        KubeConfigOptions { context: flags.context.clone(), cluster: flags.cluster.clone(), user: None };
    let (context, cluster) = select(&files, &options).map_err(failed)?;
    let own_proxy = cluster.proxy_url.as_deref().is_some_and(|proxy| !proxy.is_empty());
    let mut config =
        Config::from_custom_kubeconfig(files, &options).await.map_err(|e| failed(explain(&e)))?;
    // kube has taken that of the environment then, whatever NO_PROXY says.
    if !own_proxy {
        config.proxy_url = None;
    }
    // A token file that rotates is newer than the token written beside it.
    if config.auth_info.token_file.is_some() {
        config.auth_info.token = None;
    }
    Ok(Access { config, origin: Origin::Files { paths, context } })
}

/// As kubectl: of several files those that do not exist are passed over, as long as there is one.
fn read_all(list: &PathList) -> Result<Kubeconfig, Failure> {
    let mut merged: Option<Kubeconfig> = None;
    let mut missing = None;
    for path in &list.0 {
        let failed =
            |e: KubeconfigError| Failure::new(format!("kubeconfig {}: {}", path.display(), explain(&e)));
        match Kubeconfig::read_from(path) {
            Ok(file) => {
                merged = Some(match merged {
                    Some(before) => before.merge(file).map_err(failed)?,
                    None => file,
                });
            }
            Err(e) if is_missing(&e) => missing = Some(failed(e)),
            Err(e) => return Err(failed(e)),
        }
    }
    merged.ok_or_else(|| missing.unwrap_or_else(|| Failure::new("no path of a kubeconfig is given")))
}

fn is_missing(error: &KubeconfigError) -> bool {
    matches!(error, KubeconfigError::ReadConfig(io, _) if io.kind() == std::io::ErrorKind::NotFound)
}

/// The context's name and its cluster; an error lists what there is instead.
fn select<'a>(
    files: &'a Kubeconfig,
    options: &'a KubeConfigOptions,
) -> Result<(String, &'a Cluster), String> {
    let contexts = files.contexts.iter().map(|c| c.name.as_str());
    let name = options.context.as_ref().or(files.current_context.as_ref()).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| {
        format!("it names no current-context: pass --context, one of: {}", list_of(contexts.clone()))
    })?;
    let context = files.contexts.iter().find(|c| c.name == *name).and_then(|c| c.context.as_ref());
    let context =
        context.ok_or_else(|| format!("it has no context {name:?}, only: {}", list_of(contexts)))?;
    let cluster = options.cluster.as_ref().unwrap_or(&context.cluster);
    let found = files.clusters.iter().find(|c| c.name == *cluster).and_then(|c| c.cluster.as_ref());
    let clusters = files.clusters.iter().map(|c| c.name.as_str());
    let found = found.ok_or_else(|| format!("it has no cluster {cluster:?}, only: {}", list_of(clusters)))?;
    Ok((name.clone(), found))
}

fn list_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    if names.is_empty() { "(there is none)".into() } else { names.join(", ") }
}

/// kube's messages, without the lines of the file that its parser shows: they may hold a token.
fn explain(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(io, _) => io.to_string(),
        KubeconfigError::Parse(yaml) => format!("it is malformed: {}", yaml.without_snippet()),
        other => other.to_string(),
    }
}

fn from_server(server: &str) -> Result<Access, Failure> {
    Ok(Access { config: Config::new(url(server)?), origin: Origin::ServerFlag })
}

fn url(server: &str) -> Result<http::Uri, Failure> {
    // What stands before an `@` may be a password.
    let shown = server.rsplit('@').next().unwrap_or_default();
    let wrong = || Failure::new(format!("--server {shown:?} is not an address such as https://host:6443"));
    let uri: http::Uri = server.parse().map_err(|_| wrong())?;
    if matches!(uri.scheme_str(), Some("http" | "https")) { Ok(uri) } else { Err(wrong()) }
}

fn from_pod() -> Result<Access, Failure> {
    match Config::incluster() {
        Ok(config) => Ok(Access { config, origin: Origin::Pod }),
        Err(InClusterError::ReadEnvironmentVariable(_)) => Err(Failure::new(format!(
            "no configuration has been provided: set --kubeconfig or KUBECONFIG, create {}, or run in a cluster \
             (unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be \
             defined)",
            home_path().unwrap_or_else(|| "~/.kube/config".into()).display()
        ))),
        Err(e) => Err(Failure::new(format!("the service account of this pod cannot be used: {e}"))),
    }
}

/// What only a kubeconfig has must not be named without one.
fn named(flags: &Flags) -> Result<(), Failure> {
    match [("context", &flags.context), ("cluster", &flags.cluster)] {
        [(flag, Some(name)), _] | [_, (flag, Some(name))] => {
            Err(Failure::new(format!("--{flag} {name:?} is given, but no kubeconfig: pass --kubeconfig")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};
    use std::slice::from_ref;

    const TWO: &str = "
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: a, cluster: {server: 'https://a.example.com:6443'}}
- {name: b, cluster: {server: 'https://b.example.com:6443', proxy-url: 'http://proxy.example.com:3128'}}
users:
- {name: u, user: {token: hunter2, tokenFile: rotating}}
contexts:
- {name: one, context: {cluster: a, user: u}}
- {name: two, context: {cluster: b, user: u}}
- {name: lost, context: {cluster: c, user: u}}
";

    struct Files(tempfile::TempDir);
    impl Files {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }
        fn add(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        }
    }

    async fn found(paths: &[PathBuf], args: &[&str]) -> Result<Access, String> {
        let matches = Flags::augment_args(Command::new("x"))
            .get_matches_from(std::iter::once(&"x").chain(args).collect::<Vec<_>>());
        let mut flags = Flags::from_arg_matches(&matches).unwrap();
        flags.kubeconfig = Some(PathList(paths.to_vec()));
        find(&flags).await.map_err(|failure| failure.to_string())
    }

    #[tokio::test]
    async fn the_current_context_is_used_unless_another_is_named() {
        let files = Files::new();
        let path = files.add("config", TWO);
        let one = found(from_ref(&path), &[]).await.unwrap();
        assert_eq!(one.config.cluster_url.host(), Some("a.example.com"));
        assert_eq!(one.origin.to_string(), format!("kubeconfig {}, context \"one\"", path.display()));
        let two = found(from_ref(&path), &["--context", "two"]).await.unwrap();
        assert_eq!(two.config.cluster_url.host(), Some("b.example.com"));
        let cluster = found(&[path], &["--cluster", "b"]).await.unwrap();
        assert_eq!(cluster.config.cluster_url.host(), Some("b.example.com"));
    }

    #[tokio::test]
    async fn the_server_flag_wins_over_the_kubeconfig() {
        let files = Files::new();
        let path = files.add("config", TWO);
        let access = found(from_ref(&path), &["--server", "https://127.0.0.1:1"]).await.unwrap();
        assert_eq!(access.config.cluster_url.port_u16(), Some(1));
        let wrong = found(&[path], &["--server", "127.0.0.1"]).await.unwrap_err();
        assert_eq!(wrong, "--server \"127.0.0.1\" is not an address such as https://host:6443");
    }

    #[tokio::test]
    async fn an_address_with_a_password_is_refused_and_not_shown() {
        let files = Files::new();
        let path = files.add("config", TWO);
        let with = TWO.replace("https://b.example.com", "https://me:hunter2@b.example.com");
        assert_ne!(with, TWO);
        for (path, args) in [
            (&path, &["--server", "https://me:hunter2@host:6443"][..]),
            (&path, &["--server", "me:hunter2@host"]),
            (&files.add("with", &with), &["--cluster", "b"]),
        ] {
            let refused = found(from_ref(path), args).await.unwrap_err();
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_proxy_of_the_cluster_is_kept() {
        let files = Files::new();
        let path = files.add("config", TWO);
        for args in [&["--context", "two"][..], &["--context", "two", "--server", "https://127.0.0.1:1"]] {
            let access = found(from_ref(&path), args).await.unwrap();
            assert_eq!(access.config.proxy_url.unwrap().host(), Some("proxy.example.com"), "{args:?}");
        }
    }

    #[tokio::test]
    async fn a_token_file_wins_over_the_token_beside_it_and_is_found_beside_the_kubeconfig() {
        let files = Files::new();
        let path = files.add("config", TWO);
        let auth = found(from_ref(&path), &[]).await.unwrap().config.auth_info;
        assert!(auth.token.is_none());
        assert_eq!(auth.token_file, Some(path.with_file_name("rotating").display().to_string()));
    }

    #[tokio::test]
    async fn what_is_not_in_the_file_is_named_with_what_is() {
        let files = Files::new();
        let path = files.add("config", TWO);
        let failure = found(from_ref(&path), &["--context", "three"]).await.unwrap_err();
        assert!(failure.ends_with("it has no context \"three\", only: one, two, lost"), "{failure}");
        assert!(failure.contains(&path.display().to_string()), "{failure}");
        let failure = found(&[path], &["--context", "lost"]).await.unwrap_err();
        assert!(failure.ends_with("it has no cluster \"c\", only: a, b"), "{failure}");
        let empty = files.add("empty", "");
        let failure = found(&[empty], &[]).await.unwrap_err();
        assert!(failure.ends_with("pass --context, one of: (there is none)"), "{failure}");
    }

    #[tokio::test]
    async fn a_malformed_file_is_named_without_showing_what_is_in_it() {
        let files = Files::new();
        let path = files.add("config", "users:\n- name: u\n  user:\n    token: hunter2\n    exec: [\n");
        let failure = found(from_ref(&path), &[]).await.unwrap_err();
        assert!(
            failure.starts_with(&format!("kubeconfig {}: it is malformed: ", path.display())),
            "{failure}"
        );
        assert!(!failure.contains("hunter2"), "{failure}");
    }

    #[tokio::test]
    async fn of_several_files_missing_ones_are_passed_over_unless_all_are() {
        let files = Files::new();
        let path = files.add("config", TWO);
        let missing = path.with_file_name("missing");
        assert!(found(&[missing.clone(), path], &[]).await.is_ok());
        let failure = found(from_ref(&missing), &[]).await.unwrap_err();
        assert!(failure.starts_with(&format!("kubeconfig {}: No such file", missing.display())), "{failure}");
    }

    #[tokio::test]
    async fn the_first_of_several_files_that_sets_something_wins() {
        let files = Files::new();
        let first = files.add("first", "current-context: two\n");
        let second = files.add("second", TWO);
        let access = found(&[first, second], &[]).await.unwrap();
        assert_eq!(access.config.cluster_url.host(), Some("b.example.com"));
    }
}
