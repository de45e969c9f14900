//! Exec credential plugins of a kubeconfig, run as client-go runs them.
//!
//! kube runs a plugin as well, but for every request if its tokens live for less than a minute, and it keeps using a
//! client certificate after the certificate has expired.
use std::{
    io::{self, IsTerminal, Read, stdin},
    process::{Command, Output, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use kube::{
    Config,
    config::{AuthInfo, ExecAuthCluster, ExecConfig, ExecInteractiveMode},
};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::json;

use super::error::{CredentialError, plugin_failure};
use crate::process::open_files::restore_limit;

/// The time after which a plugin is killed that cannot ask the user, since all requests wait for it. It is long enough for
/// a login in a browser.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The interval at which a running plugin is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time for the rest of the output after a plugin has ended. A program that it has started may keep the pipes.
const REST_OF_OUTPUT: Duration = Duration::from_secs(1);
/// The part of each output that is kept. Credentials are much shorter.
const MAX_OUTPUT: usize = 4 << 20;

/// The first second of the year 1.
const FIRST_SECOND: i64 = -62_135_596_800;
/// The last days of the year 9999, on which the range of [`Timestamp`] ends.
const LAST_DAYS: &str = "9999-12-3";

/// A credential plugin: a program that prints credentials.
pub(super) struct ExecPlugin(ExecConfig);

#[derive(Deserialize)]
struct ExecCredential {
    status: Option<PluginCredentials>,
}

/// The credentials that a plugin printed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PluginCredentials {
    #[serde(default, deserialize_with = "read_expiry")]
    expiration_timestamp: Option<Timestamp>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Reads the time of the expiry. As for client-go, the first second of the year 1 is none, which programs in Go print for an
/// unset time. Neither is the last day of the year 9999, which others print, and which a [`Timestamp`] cannot hold.
fn read_expiry<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    match text.parse::<Timestamp>() {
        Ok(time) => Ok(Some(time).filter(|time| time.as_second() != FIRST_SECOND)),
        Err(_) if text.starts_with(LAST_DAYS) => Ok(None),
        Err(error) => Err(Error::custom(error)),
    }
}

impl PluginCredentials {
    pub(super) fn expires(&self) -> Option<Timestamp> {
        self.expiration_timestamp
    }

    pub(super) fn has_certificate(&self) -> bool {
        self.client_certificate_data.is_some()
    }

    /// Sets the credentials of a user.
    pub(super) fn apply(&self, auth: &mut AuthInfo) {
        auth.token = self.token.clone().map(Into::into);
        if let (Some(certificate), Some(key)) = (&self.client_certificate_data, &self.client_key_data) {
            auth.client_certificate_data = Some(STANDARD.encode(certificate));
            auth.client_key_data = Some(STANDARD.encode(key).into());
        }
    }

    /// Returns the credentials, unless they are incomplete. As in Go, an empty one counts as absent.
    fn checked(mut self) -> Result<Self, CredentialError> {
        for text in [&mut self.token, &mut self.client_certificate_data, &mut self.client_key_data] {
            text.take_if(|text| text.is_empty());
        }
        let problem = match (&self.token, &self.client_certificate_data, &self.client_key_data) {
            (None, None, None) => "neither a token nor a client certificate with its key",
            (_, Some(_), None) => "a client certificate without its key",
            (_, None, Some(_)) => "a key without its client certificate",
            _ => return Ok(self),
        };
        Err(CredentialError(format!("the credential plugin printed {problem}")))
    }
}

impl ExecPlugin {
    /// Returns the plugin of the configuration, unless the configuration has credentials that take precedence.
    pub(super) fn from_config(config: &Config) -> Option<Self> {
        let auth = &config.auth_info;
        let has_other_credentials = auth.auth_provider.is_some()
            || auth.username.is_some() && auth.password.is_some()
            || auth.token.is_some()
            || auth.token_file.is_some();
        auth.exec.clone().filter(|_| !has_other_credentials).map(Self)
    }

    /// Runs the plugin, which gets the authorities of the cluster if it asks for the cluster. Blocks the thread.
    pub(super) fn run(&self, authorities: Option<&[u8]>) -> Result<PluginCredentials, CredentialError> {
        let failed = |why: String| CredentialError(format!("the credential plugin {why}"));
        let is_interactive = self.is_interactive(stdin().is_terminal()).map_err(failed)?;
        let name = self.0.command.as_deref().unwrap_or_default();
        let mut command = self.command(is_interactive, authorities);
        let output = output_within(&mut command, (!is_interactive).then_some(TIMEOUT));
        let output = output.map_err(|e| {
            if e.kind() == io::ErrorKind::TimedOut {
                return failed(format!("{name} {e}"));
            }
            let hint = self.0.install_hint.as_deref().unwrap_or_default();
            let hint = if hint.is_empty() { String::new() } else { format!(". {hint}") };
            failed(format!("{name} cannot be run: {e}{hint}"))
        })?;
        if !output.status.success() {
            return Err(CredentialError(plugin_failure(&output)));
        }
        // client-go decodes YAML as well, and some plugins print it.
        let credential: ExecCredential = serde_saphyr::from_slice(&output.stdout)
            .map_err(|e| failed(format!("printed a malformed ExecCredential: {}", e.without_snippet())))?;
        credential
            .status
            .ok_or_else(|| failed("printed an ExecCredential without a status".into()))?
            .checked()
    }

    /// Returns whether the plugin may ask the user, who is there if the standard input is a terminal.
    fn is_interactive(&self, has_terminal: bool) -> Result<bool, String> {
        match self.0.interactive_mode {
            Some(ExecInteractiveMode::Never) => Ok(false),
            Some(ExecInteractiveMode::Always) if !has_terminal => {
                Err("needs a terminal (interactiveMode: Always), but the standard input is none".into())
            }
            _ => Ok(has_terminal),
        }
    }

    fn command(&self, is_interactive: bool, authorities: Option<&[u8]>) -> Command {
        let exec = &self.0;
        let mut command = Command::new(exec.command.as_deref().unwrap_or_default());
        command.args(exec.args.iter().flatten());
        let variables = exec.env.iter().flatten();
        command.envs(variables.filter_map(|variable| Some((variable.get("name")?, variable.get("value")?))));
        match is_interactive {
            true => command.stdin(Stdio::inherit()).stderr(Stdio::inherit()),
            false => command.stdin(Stdio::null()).stderr(Stdio::piped()),
        };
        let cluster = exec.cluster.clone().filter(|_| exec.provide_cluster_info).map(|cluster| {
            ExecAuthCluster { certificate_authority_data: authorities.map(Into::into), ..cluster }
        });
        let info = json!({
            "apiVersion": exec.api_version, "kind": "ExecCredential",
            "spec": {"interactive": is_interactive, "cluster": cluster},
        });
        command.env("KUBERNETES_EXEC_INFO", info.to_string());
        command
    }
}

/// Runs a program, and returns what it prints. Kills it after the limit.
fn output_within(command: &mut Command, limit: Option<Duration>) -> io::Result<Output> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    restore_limit(&child);
    let (stdout, stderr) = (Reader::start(child.stdout.take()), Reader::start(child.stderr.take()));
    let mut waited = Duration::ZERO;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Some(limit) = limit.filter(|limit| waited >= *limit) {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("was killed after {limit:?}")));
        }
        thread::sleep(POLL_INTERVAL);
        waited += POLL_INTERVAL;
    };
    Ok(Output { status, stdout: stdout.finish(), stderr: stderr.finish() })
}

/// Reads a pipe in a thread of its own, so that the program does not wait for a full pipe.
struct Reader {
    kept: Arc<Mutex<Vec<u8>>>,
    /// Closes when the thread ends.
    end: mpsc::Receiver<()>,
}

impl Reader {
    fn start(pipe: Option<impl Read + Send + 'static>) -> Self {
        let (kept, (open, end)) = (Arc::<Mutex<Vec<u8>>>::default(), mpsc::channel());
        let reader = Self { kept: kept.clone(), end };
        thread::spawn(move || {
            let _open = open;
            let (mut pipe, mut buffer) = (pipe?, [0; 8192]);
            loop {
                match pipe.read(&mut buffer) {
                    Ok(length @ 1..) => keep(&mut kept.lock(), &buffer[..length]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    _ => return Some(()),
                }
            }
        });
        reader
    }

    /// Returns what was read, once the pipe is closed, or after a second: another program may have inherited the pipe.
    fn finish(self) -> Vec<u8> {
        let _ = self.end.recv_timeout(REST_OF_OUTPUT);
        std::mem::take(&mut *self.kept.lock())
    }
}

/// Appends output up to [`MAX_OUTPUT`].
fn keep(kept: &mut Vec<u8>, output: &[u8]) {
    let room = MAX_OUTPUT.saturating_sub(kept.len());
    kept.extend_from_slice(&output[..output.len().min(room)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_killed_and_one_that_prints_much_is_read() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::null()).stderr(Stdio::piped());
            command
        };
        let limit = Some(Duration::from_secs(60));
        let error =
            output_within(&mut shell("exec sleep 1000"), Some(Duration::from_millis(100))).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (io::ErrorKind::TimedOut, "was killed after 100ms".into())
        );
        let much = "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; exit 3";
        let output = output_within(&mut shell(much), limit).unwrap();
        assert_eq!((output.stdout.len(), output.stderr.len()), (1_000_000, 1_000_000));
        assert_eq!(output.status.code(), Some(3));
        let endless = "head -c 10000000 /dev/zero; head -c 10000000 /dev/zero >&2";
        let output = output_within(&mut shell(endless), limit).unwrap();
        assert_eq!((output.stdout.len(), output.stderr.len()), (MAX_OUTPUT, MAX_OUTPUT));
    }

    #[test]
    fn a_program_that_a_plugin_leaves_behind_is_not_waited_for() {
        let started = std::time::Instant::now();
        let printed = "sleep 30 & printf '{status: {token: t}}'";
        assert_eq!(run("sh", &["-c", printed]).unwrap().token.as_deref(), Some("t"));
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }

    #[test]
    fn empty_credentials_count_as_absent() {
        let printed = "status:\n  token: ''\n  clientCertificateData: c\n  clientKeyData: k\n";
        assert_eq!(run("printf", &[printed]).unwrap().token, None);
        let printed = "status:\n  token: ''\n  clientCertificateData: ''\n";
        let error = run("printf", &[printed]).map(drop).unwrap_err();
        assert!(error.contains("neither a token nor"), "{error}");
    }

    fn run(command: &str, args: &[&str]) -> Result<PluginCredentials, String> {
        let exec = ExecConfig {
            command: Some(command.into()),
            args: Some(args.iter().map(ToString::to_string).collect()),
            interactive_mode: Some(ExecInteractiveMode::Never),
            install_hint: Some("install it".into()),
            ..ExecConfig::default()
        };
        ExecPlugin(exec).run(None).map_err(|e| e.to_string())
    }

    #[test]
    fn yaml_is_decoded_as_by_client_go() {
        let printed = "status:\n  token: hunter2\n  expirationTimestamp: 2030-01-01T00:00:00Z\n";
        let credentials = run("printf", &[printed]).unwrap();
        assert_eq!(credentials.token.as_deref(), Some("hunter2"));
        assert_eq!(credentials.expiration_timestamp, Some("2030-01-01T00:00:00Z".parse().unwrap()));
    }

    #[test]
    fn a_time_that_means_never_is_no_expiry() {
        for time in ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999Z"] {
            let printed = format!("status: {{token: hunter2, expirationTimestamp: '{time}'}}");
            assert_eq!(run("printf", &[&printed]).unwrap().expires(), None, "{time}");
        }
        let printed = "status: {token: hunter2, expirationTimestamp: '9999-13-01T00:00:00Z'}";
        assert!(run("printf", &[printed]).is_err());
    }

    #[test]
    fn the_error_of_malformed_output_does_not_quote_it() {
        for printed in ["status: {token: hunter2", "{kind: hunter2}"] {
            let error = run("printf", &[printed]).map(drop).unwrap_err();
            assert!(error.contains("printed a") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn incomplete_credentials_are_refused() {
        for (status, part) in [
            ("expirationTimestamp: 2030-01-01T00:00:00Z", "neither a token nor"),
            ("clientCertificateData: c", "a client certificate without its key"),
            ("clientKeyData: k", "a key without its client certificate"),
        ] {
            let error = run("printf", &[&format!("status:\n  {status}\n")]).map(drop).unwrap_err();
            assert!(error.contains(part), "{status}: {error}");
        }
    }

    #[test]
    fn a_plugin_asks_the_user_only_at_a_terminal() {
        let mode = |interactive_mode| ExecPlugin(ExecConfig { interactive_mode, ..ExecConfig::default() });
        for (interactive_mode, at_terminal) in [
            (None, true),
            (Some(ExecInteractiveMode::IfAvailable), true),
            (Some(ExecInteractiveMode::Never), false),
        ] {
            assert_eq!(mode(interactive_mode.clone()).is_interactive(true), Ok(at_terminal));
            assert_eq!(mode(interactive_mode).is_interactive(false), Ok(false));
        }
        assert!(mode(Some(ExecInteractiveMode::Always)).is_interactive(false).is_err());
    }

    #[test]
    fn the_error_of_a_missing_plugin_has_the_install_hint() {
        let error = run("/nowhere/plugin", &[]).map(drop).unwrap_err();
        assert!(
            error.starts_with("the credential plugin /nowhere/plugin cannot be run: No such file"),
            "{error}"
        );
        assert!(error.ends_with("install it"), "{error}");
    }
}
