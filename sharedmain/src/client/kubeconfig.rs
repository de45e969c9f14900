//! The search for the API server and its credentials, in the order of kubectl and client-go.
use std::{
    env, fmt,
    path::{Path, PathBuf},
};

use kube::{
    Config,
    config::{Cluster, InClusterError, KubeConfigOptions, Kubeconfig},
};

use super::{
    certificate::Pem,
    kubeconfig_file,
    proxy::{self, ProxySettings},
};
use crate::{
    cli::flags::{Flags, PathList},
    process::failure::Failure,
};

/// An API server with credentials, and the source of both for error messages.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    /// The configuration without the authorities.
    pub(crate) config: Config,
    /// The authorities that issue the certificate of the server. `None`: those of the system.
    pub(crate) authorities: Option<Pem>,
    pub(crate) origin: Origin,
}

impl Access {
    pub(crate) fn without_credentials(server: http::Uri) -> Self {
        Self { config: Config::new(server), authorities: None, origin: Origin::ServerFlag }
    }
}

/// The source of a configuration.
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

/// Searches, in this order: `--kubeconfig`, `KUBECONFIG`, `~/.kube/config`, `--server` alone, the pod's service
/// account. The search ends at the first source that is set or exists. An error of that source is returned.
pub(crate) async fn find(flags: &Flags) -> Result<Access, Failure> {
    let explicit = flags.kubeconfig.clone().filter(|list| !list.0.is_empty());
    let mut access = match (explicit.or_else(home_kubeconfig), &flags.server) {
        (Some(list), _) => from_files(&list, flags).await?,
        (None, server) => {
            refuse_context_and_cluster(flags)?;
            let from_server = |server: &String| Ok(Access::without_credentials(url(server)?));
            server.as_ref().map_or_else(in_cluster, from_server)?
        }
    };
    if let Some(server) = &flags.server {
        access.config.cluster_url = url(server)?;
        access.config.tls_server_name = None; // that of the kubeconfig is the name of another server
    }
    let authority = access.config.cluster_url.authority();
    if authority.is_some_and(|authority| authority.as_str().contains('@')) {
        let origin = &access.origin;
        return Err(Failure::new(format!(
            "{origin}: the URL of the API server contains a user or a password, which would appear in logs and traces: \
             set them as the kubeconfig's user"
        )));
    }
    if let Some(user) = &flags.as_user {
        let auth = &mut access.config.auth_info;
        (auth.impersonate, auth.impersonate_groups) = (Some(user.clone()), Some(flags.as_group.clone()));
        (auth.impersonate_uid, auth.impersonate_user_extra) = (None, None);
    }
    // As in kubectl, the cluster's proxy applies to the URL of --server, too. The proxy of the environment is chosen
    // for the final URL.
    if access.config.proxy_url.is_none() {
        access.config.proxy_url = ProxySettings::from_env().for_url(&access.config.cluster_url)?;
    }
    let proxy = access.config.proxy_url.take().map(proxy::checked).transpose();
    access.config.proxy_url = proxy.map_err(|why| Failure::new(format!("{}: {why}", access.origin)))?;
    Ok(access)
}

/// `~/.kube/config`, if it exists.
fn home_kubeconfig() -> Option<PathList> {
    Some(PathList(vec![home_path()?])).filter(|list| list.0[0].exists())
}

fn home_path() -> Option<PathBuf> {
    env::home_dir().map(|home| home.join(".kube").join("config"))
}

async fn from_files(list: &PathList, flags: &Flags) -> Result<Access, Failure> {
    let paths = list.0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let failed = |why: String| Failure::new(format!("kubeconfig {paths}: {why}"));
    let mut files = read_all(list)?;
    let options =
        KubeConfigOptions { context: flags.context.clone(), cluster: flags.cluster.clone(), user: None };
    let (context, cluster) = select_context(&mut files, &options).map_err(failed)?;
    let has_proxy = cluster.proxy_url.is_some();
    let (data, path) = (cluster.certificate_authority_data.take(), cluster.certificate_authority.take());
    let authorities = Pem::take("certificate-authority", data, path).map_err(failed)?;
    warn_of_unknown_user(&files, &context);
    let mut config =
        Config::from_custom_kubeconfig(files, &options).await.map_err(|e| failed(e.to_string()))?;
    // If the cluster has no proxy, kube has set the proxy of the environment, and ignored NO_PROXY.
    if !has_proxy {
        config.proxy_url = None;
    }
    // A token file is rotated, so its token is newer than a token in the kubeconfig.
    if config.auth_info.token_file.is_some() {
        config.auth_info.token = None;
    }
    Ok(Access { config, authorities, origin: Origin::Files { paths, context } })
}

/// Merges the files. As in kubectl, missing files are skipped unless all are missing.
fn read_all(list: &PathList) -> Result<Kubeconfig, Failure> {
    let mut merged: Option<Kubeconfig> = None;
    let mut missing = None;
    for path in &list.0 {
        let failed = |why: &dyn fmt::Display| Failure::new(format!("kubeconfig {}: {why}", path.display()));
        match std::fs::read(path) {
            Ok(bytes) => {
                let folder = path.parent().unwrap_or(Path::new(""));
                let file = kubeconfig_file::parse(&bytes, folder).map_err(|e| failed(&e))?;
                merged = Some(merged.unwrap_or_default().merge(file).map_err(|e| failed(&e))?);
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => missing = Some(failed(&e)),
            Err(e) => return Err(failed(&e)),
        }
    }
    merged.ok_or_else(|| missing.unwrap_or_else(|| Failure::new("the list of kubeconfig paths is empty")))
}

/// Returns the name of the context, and the cluster of `--cluster` or else of the context. An error lists the names
/// that exist.
fn select_context<'a>(
    files: &'a mut Kubeconfig,
    options: &KubeConfigOptions,
) -> Result<(String, &'a mut Cluster), String> {
    let contexts = files.contexts.iter().map(|c| c.name.as_str());
    let name = options.context.as_ref().or(files.current_context.as_ref()).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| {
        format!("current-context is not set: pass --context, one of: {}", list_of(contexts.clone()))
    })?;
    let context = files.contexts.iter().find(|c| c.name == *name).and_then(|c| c.context.as_ref());
    let context =
        context.ok_or_else(|| format!("context {name:?} does not exist, only: {}", list_of(contexts)))?;
    let (name, cluster_name) = (name.clone(), options.cluster.as_ref().unwrap_or(&context.cluster).clone());
    let clusters = list_of(files.clusters.iter().map(|c| c.name.as_str()));
    let cluster = files.clusters.iter_mut().find(|c| c.name == cluster_name).and_then(|c| c.cluster.as_mut());
    let cluster =
        cluster.ok_or_else(|| format!("cluster {cluster_name:?} does not exist, only: {clusters}"))?;
    Ok((name, cluster))
}

/// Warns if the user of the context does not exist. As in kubectl, requests have no credentials then.
fn warn_of_unknown_user(files: &Kubeconfig, context: &str) {
    let context = files.contexts.iter().find(|named| named.name == context);
    let user = context.and_then(|named| named.context.as_ref()?.user.as_ref());
    if let Some(user) = user.filter(|user| files.auth_infos.iter().all(|named| named.name != **user)) {
        let users = list_of(files.auth_infos.iter().map(|named| named.name.as_str()));
        tracing::warn!(user, users, "the user of the context does not exist: requests have no credentials");
    }
}

fn list_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    if names.is_empty() { "(none)".into() } else { names.join(", ") }
}

fn url(server: &str) -> Result<http::Uri, Failure> {
    // The part before an `@` may contain a password.
    let shown = server.rsplit('@').next().unwrap_or_default();
    let wrong = || Failure::new(format!("--server {shown:?} is not a URL such as https://host:6443"));
    let uri: http::Uri = server.parse().map_err(|_| wrong())?;
    if matches!(uri.scheme_str(), Some("http" | "https")) { Ok(uri) } else { Err(wrong()) }
}

fn in_cluster() -> Result<Access, Failure> {
    match Config::incluster() {
        Ok(mut config) => {
            let path = config.root_cert_file.take();
            let authorities = path.map(|path| Pem::File { field: "certificate-authority", path });
            Ok(Access { config, authorities, origin: Origin::Pod })
        }
        Err(InClusterError::ReadEnvironmentVariable(_)) => Err(Failure::new(format!(
            "no configuration has been provided: set --kubeconfig or KUBECONFIG, create {}, or run in a cluster \
             (unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be \
             defined)",
            home_path().unwrap_or_else(|| "~/.kube/config".into()).display()
        ))),
        Err(e) => Err(Failure::new(format!(
            "unable to load in-cluster configuration: {e}; the pod needs the files of its service account in \
             /var/run/secrets/kubernetes.io/serviceaccount, which automountServiceAccountToken mounts"
        ))),
    }
}

/// Refuses `--context` and `--cluster`, because without a kubeconfig there are no contexts and clusters.
fn refuse_context_and_cluster(flags: &Flags) -> Result<(), Failure> {
    match [("context", &flags.context), ("cluster", &flags.cluster)] {
        [(flag, Some(name)), _] | [_, (flag, Some(name))] => {
            Err(Failure::new(format!("--{flag} {name:?} needs a kubeconfig: pass --kubeconfig")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};
    use std::slice::from_ref;

    const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: a, cluster: {server: 'https://a.example.com:6443'}}
- name: b
  cluster:
    server: https://b.example.com:6443
    tls-server-name: b.internal
    proxy-url: http://proxy.example.com:3128
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

    /// Searches with these paths as `--kubeconfig`, and these other flags.
    async fn find_in(paths: &[PathBuf], args: &[&str]) -> Result<Access, String> {
        let matches = Flags::augment_args(Command::new("x"))
            .get_matches_from(std::iter::once(&"x").chain(args).collect::<Vec<_>>());
        let mut flags = Flags::from_arg_matches(&matches).unwrap();
        flags.kubeconfig = Some(PathList(paths.to_vec()));
        find(&flags).await.map_err(|failure| failure.to_string())
    }

    #[tokio::test]
    async fn the_current_context_is_used_unless_another_is_named() {
        let files = Files::new();
        let path = files.add("config", KUBECONFIG);
        let one = find_in(from_ref(&path), &[]).await.unwrap();
        assert_eq!(one.config.cluster_url.host(), Some("a.example.com"));
        assert_eq!(one.origin.to_string(), format!("kubeconfig {}, context \"one\"", path.display()));
        let two = find_in(from_ref(&path), &["--context", "two"]).await.unwrap();
        assert_eq!(two.config.cluster_url.host(), Some("b.example.com"));
        let cluster = find_in(&[path], &["--cluster", "b"]).await.unwrap();
        assert_eq!(cluster.config.cluster_url.host(), Some("b.example.com"));
    }

    #[tokio::test]
    async fn the_server_flag_overrides_the_kubeconfig() {
        let files = Files::new();
        let path = files.add("config", KUBECONFIG);
        let access = find_in(from_ref(&path), &["--server", "https://127.0.0.1:1"]).await.unwrap();
        assert_eq!(access.config.cluster_url.port_u16(), Some(1));
        let named = |access: Access| access.config.tls_server_name;
        assert_eq!(
            named(find_in(from_ref(&path), &["--cluster", "b"]).await.unwrap()).as_deref(),
            Some("b.internal")
        );
        let other = ["--cluster", "b", "--server", "https://127.0.0.1:1"];
        assert_eq!(named(find_in(from_ref(&path), &other).await.unwrap()), None);
        let wrong = find_in(&[path], &["--server", "127.0.0.1"]).await.unwrap_err();
        assert_eq!(wrong, "--server \"127.0.0.1\" is not a URL such as https://host:6443");
    }

    #[tokio::test]
    async fn a_url_with_a_password_is_refused_and_not_shown() {
        let files = Files::new();
        let path = files.add("config", KUBECONFIG);
        let with_password = KUBECONFIG.replace("https://b.example.com", "https://me:hunter2@b.example.com");
        assert_ne!(with_password, KUBECONFIG);
        for (path, args) in [
            (&path, &["--server", "https://me:hunter2@host:6443"][..]),
            (&path, &["--server", "me:hunter2@host"]),
            (&files.add("with-password", &with_password), &["--cluster", "b"]),
        ] {
            let refused = find_in(from_ref(path), args).await.unwrap_err();
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }

    #[tokio::test]
    async fn the_proxy_of_the_cluster_is_used() {
        let files = Files::new();
        let path = files.add("config", KUBECONFIG);
        for args in [&["--context", "two"][..], &["--context", "two", "--server", "https://127.0.0.1:1"]] {
            let access = find_in(from_ref(&path), args).await.unwrap();
            assert_eq!(access.config.proxy_url.unwrap().host(), Some("proxy.example.com"), "{args:?}");
        }
    }

    #[tokio::test]
    async fn a_token_file_overrides_the_token_and_its_path_is_relative_to_the_kubeconfig() {
        let files = Files::new();
        let path = files.add("config", KUBECONFIG);
        let auth = find_in(from_ref(&path), &[]).await.unwrap().config.auth_info;
        assert!(auth.token.is_none());
        assert_eq!(auth.token_file, Some(path.with_file_name("rotating").display().to_string()));
    }

    #[tokio::test]
    async fn an_unknown_context_or_cluster_is_an_error_that_lists_the_known_ones() {
        let files = Files::new();
        let path = files.add("config", KUBECONFIG);
        let failure = find_in(from_ref(&path), &["--context", "three"]).await.unwrap_err();
        assert!(failure.ends_with("context \"three\" does not exist, only: one, two, lost"), "{failure}");
        assert!(failure.contains(&path.display().to_string()), "{failure}");
        let failure = find_in(&[path], &["--context", "lost"]).await.unwrap_err();
        assert!(failure.ends_with("cluster \"c\" does not exist, only: a, b"), "{failure}");
        let empty = files.add("empty", "");
        let failure = find_in(&[empty], &[]).await.unwrap_err();
        assert!(failure.ends_with("pass --context, one of: (none)"), "{failure}");
    }

    #[tokio::test]
    async fn the_error_of_a_malformed_file_does_not_quote_it() {
        let files = Files::new();
        let path = files.add("config", "users:\n- name: u\n  user:\n    token: hunter2\n    exec: [\n");
        let failure = find_in(from_ref(&path), &[]).await.unwrap_err();
        assert!(
            failure.starts_with(&format!("kubeconfig {}: malformed YAML: ", path.display())),
            "{failure}"
        );
        assert!(!failure.contains("hunter2"), "{failure}");
    }

    #[tokio::test]
    async fn missing_files_are_skipped_unless_all_are_missing() {
        let files = Files::new();
        let path = files.add("config", KUBECONFIG);
        let missing = path.with_file_name("missing");
        assert!(find_in(&[missing.clone(), path], &[]).await.is_ok());
        let failure = find_in(from_ref(&missing), &[]).await.unwrap_err();
        assert!(failure.starts_with(&format!("kubeconfig {}: No such file", missing.display())), "{failure}");
    }

    #[tokio::test]
    async fn the_first_file_that_sets_a_value_determines_it() {
        let files = Files::new();
        let first = files.add("first", "current-context: two\n");
        let second = files.add("second", KUBECONFIG);
        let empty = files.add("empty", "current-context: ''\nclusters: null\n");
        let access = find_in(&[empty, first, second], &[]).await.unwrap();
        assert_eq!(access.config.cluster_url.host(), Some("b.example.com"));
    }
}
