//! The credentials and authorities of an API server, which change while the process runs. All clients share them.
//!
//! Files are read again every ten seconds, and after the API server refused the credentials. An exec plugin runs again
//! before its credentials expire and after they were refused, at most three times a minute.
use std::{collections::VecDeque, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue, Request, StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Config,
    client::{ConfigExt, middleware::AuthLayer},
    config::AuthInfo,
};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reknit_injection::internal::{LogLimit, now};
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::{
    auth_provider,
    certificate::{self, Pem},
    error::{CredentialError, root_cause},
    exec_plugin::{ExecPlugin, PluginCredentials},
    kubeconfig::Access,
    refusals::Refusals,
    token_file::TokenFile,
};

/// The age at which files are read again.
const MAX_AGE: Duration = Duration::from_secs(10);
/// The age at which files are read again after the API server refused the credentials.
const MAX_AGE_IF_REFUSED: Duration = Duration::from_secs(1);
/// The maximum number of runs of a plugin in a minute.
const RUNS_PER_MINUTE: usize = 3;
const MINUTE: Duration = Duration::from_secs(60);
/// The longest time before their expiry at which credentials are replaced. Short-lived ones are replaced after three
/// quarters of their life.
const MAX_MARGIN: SignedDuration = SignedDuration::from_secs(60);

/// The characters that are escaped in the name of a header.
const NOT_IN_HEADER_NAMES: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'!').remove(b'*');

/// The credentials of a process for its API server.
pub(crate) struct Credentials {
    /// The configuration as found, without what the files and the plugin supply.
    base: Config,
    pems: Pems,
    plugin: Option<ExecPlugin>,
    token: Option<TokenFile>,
    refusals: Refusals,
    state: Mutex<State>,
    /// Locked while files are read and the plugin runs, also after the request that began it was given up.
    renewal: Arc<tokio::sync::Mutex<()>>,
}

/// A configuration with the credentials of one moment.
pub(crate) struct Login {
    pub(super) config: Config,
    /// Sets the header of a token or a password. Refreshes the token of an auth-provider, for all clients and logins.
    pub(super) auth: Option<Arc<AuthLayer>>,
}

/// The sources of certificates and keys.
struct Pems {
    authorities: Option<Pem>,
    certificate: Option<Pem>,
    key: Option<Pem>,
}

/// The contents of the sources at the last read.
#[derive(Clone, Default, PartialEq, Eq)]
struct Contents {
    authorities: Option<Vec<u8>>,
    certificate: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
}

struct State {
    login: Arc<Login>,
    contents: Contents,
    plugin: PluginState,
    read: Instant,
    /// True once the API server has accepted credentials. Before that, the process ends with an error that says the same.
    is_accepted: bool,
    is_refused: bool,
    log_limit: LogLimit<String>,
    refusal_log_limit: LogLimit,
}

/// The last credentials of a plugin, and its last runs.
#[derive(Default)]
struct PluginState {
    credentials: Option<PluginCredentials>,
    /// The time at which to replace the credentials.
    renew_at: Option<Timestamp>,
    runs: VecDeque<Instant>,
    failure: Option<String>,
}

/// Removes the credentials if the server is reached without TLS, as kubectl does: everybody on the path could read and use
/// them. Warns of this, and of a server whose certificate is not verified.
fn without_plain_text(config: &mut Config) {
    let server = &config.cluster_url;
    if server.scheme() == Some(&http::uri::Scheme::HTTPS) {
        if config.accept_invalid_certs {
            tracing::warn!(
                %server,
                "insecure-skip-tls-verify is set: the certificate of the API server is not verified, so another server \
                 at this address would get the credentials; set certificate-authority-data instead"
            );
        }
        return;
    }
    let AuthInfo {
        username, password, token, token_file, client_certificate, client_certificate_data, ..
    } = &config.auth_info;
    let has_text =
        [username, token_file, client_certificate, client_certificate_data].iter().any(|s| s.is_some());
    let has_secret = token.is_some() || password.is_some();
    if has_text || has_secret || config.auth_info.exec.is_some() || config.auth_info.auth_provider.is_some() {
        tracing::warn!(
            %server,
            "the credentials are not sent to the API server, because its URL has no TLS: use an https URL"
        );
    }
    config.auth_info = AuthInfo::default();
}

/// Adds the headers of an impersonated user that kube does not send: the uid and the further attributes.
fn add_impersonation(config: &mut Config) -> Result<(), String> {
    let auth = &config.auth_info;
    let (uid, extra) = (&auth.impersonate_uid, auth.impersonate_user_extra.iter().flatten());
    let extra: Vec<_> =
        extra.flat_map(|(key, values)| values.iter().map(move |value| (key, value))).collect();
    let has_groups = auth.impersonate_groups.as_ref().is_some_and(|groups| !groups.is_empty());
    if auth.impersonate.is_none() && (uid.is_some() || has_groups || !extra.is_empty()) {
        return Err("as-uid, as-groups and as-user-extra of a user need as: set the name of the user".into());
    }
    let uid = uid.iter().map(|uid| ("impersonate-uid".to_owned(), uid));
    let extra = extra.into_iter().map(|(key, value)| {
        (
            format!("impersonate-extra-{}", utf8_percent_encode(&key.to_lowercase(), NOT_IN_HEADER_NAMES)),
            value,
        )
    });
    for (name, value) in uid.chain(extra) {
        let invalid = |e: &dyn std::fmt::Display| format!("the user to impersonate is invalid: {e}");
        let name = HeaderName::try_from(name).map_err(|e| invalid(&e))?;
        config.headers.push((name, HeaderValue::try_from(value).map_err(|e| invalid(&e))?));
    }
    Ok(())
}

impl Credentials {
    /// Reads the files, and runs the plugin if there is one. `agent` is the user agent of each request.
    pub(crate) fn load(access: &Access, agent: &str) -> Result<Arc<Self>, String> {
        // rustls cannot choose a crypto provider if dependencies enable several. If the program has installed a
        // provider, this call fails, and that provider is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut base = access.config.clone();
        base.headers.push((header::USER_AGENT, HeaderValue::try_from(agent).map_err(|e| e.to_string())?));
        without_plain_text(&mut base);
        add_impersonation(&mut base)?;
        auth_provider::complete(&mut base.auth_info)?;
        let plugin = ExecPlugin::from_config(&base);
        let auth = &mut base.auth_info;
        let token = auth.token_file.take().map(TokenFile::open).transpose()?;
        auth.exec = None;
        let pems = Pems {
            authorities: access.authorities.clone(),
            certificate: Pem::take(
                "client-certificate",
                auth.client_certificate_data.take(),
                auth.client_certificate.take(),
            )?,
            key: Pem::take(
                "client-key",
                auth.client_key_data.take().map(|data| data.expose_secret().to_owned()),
                auth.client_key.take(),
            )?,
        };
        let contents = pems.read()?;
        let mut plugin_state = PluginState::default();
        if let Some(plugin) = &plugin {
            plugin_state.start_run(Instant::now());
            plugin_state.end_run(plugin.run(contents.authorities.as_deref())).map_err(|e| e.to_string())?;
        }
        let login = login(&base, &pems, &contents, plugin_state.credentials.as_ref(), None)?;
        let state = State {
            login: Arc::new(login),
            contents,
            plugin: plugin_state,
            read: Instant::now(),
            is_accepted: false,
            is_refused: false,
            log_limit: LogLimit::default(),
            refusal_log_limit: LogLimit::default(),
        };
        let (refusals, state) = (Refusals::default(), Mutex::new(state));
        Ok(Arc::new(Self { base, pems, plugin, token, refusals, state, renewal: Arc::default() }))
    }

    /// Returns the credentials of this moment. Renews them first if that is due.
    ///
    /// # Errors
    ///
    /// Fails if the plugin fails and the last credentials have expired or were refused, until it may run again.
    pub(super) async fn current(self: &Arc<Self>) -> Result<Arc<Login>, CredentialError> {
        if self.is_due() && self.state.lock().has_valid_credentials() {
            // No request waits for the plugin before the credentials have expired.
            if let Ok(renewal) = self.renewal.clone().try_lock_owned() {
                drop(self.start_renewal(renewal));
            }
        } else if self.is_due() {
            let renewal = self.renewal.clone().lock_owned().await;
            if self.is_due() {
                let renewed = self.start_renewal(renewal).await;
                renewed.map_err(|e| CredentialError(e.to_string()))??;
            }
        }
        let state = self.state.lock();
        match &state.plugin.failure {
            Some(failure) if state.is_plugin_due() && !state.has_valid_credentials() => {
                Err(CredentialError(failure.clone()))
            }
            _ => Ok(state.login.clone()),
        }
    }

    /// Returns the last credentials.
    pub(super) fn last(&self) -> Arc<Login> {
        self.state.lock().login.clone()
    }

    /// Sets the header with the token of a file, if there is one.
    pub(super) fn authorize<B>(&self, request: Request<B>) -> Request<B> {
        match &self.token {
            Some(token) => token.authorize(request),
            None => request,
        }
    }

    /// Records whether the API server accepted these credentials.
    pub(super) fn record(&self, login: &Arc<Login>, status: StatusCode) {
        self.refusals.record(status);
        let mut state = self.state.lock();
        state.is_accepted |= status.is_success();
        if status == StatusCode::UNAUTHORIZED {
            state.is_refused |= Arc::ptr_eq(login, &state.login);
            let is_logged = state.is_accepted && state.refusal_log_limit.allows(&());
            drop(state);
            if is_logged {
                self.warn_of_refusal();
            }
        }
    }

    /// Warns of refused credentials that the process cannot renew itself. The caller limits the number of lines.
    fn warn_of_refusal(&self) {
        let advice = self.advice();
        if !advice.is_empty() {
            tracing::warn!("the API server refuses the credentials with 401 (Unauthorized){advice}");
        }
    }

    /// Returns the problem of the client certificate, if any, and the way out of refused credentials.
    fn advice(&self) -> String {
        let why = self.validity_error().map_or_else(String::new, |why| format!(": {why}"));
        let is_read_again = self.token.is_some()
            || self.plugin.is_some()
            || self.base.auth_info.auth_provider.is_some()
            || self.pems.certificate.as_ref().is_some_and(Pem::is_file);
        match is_read_again {
            true => why,
            false => format!(
                "{why}; the kubeconfig is read only at the start: replace them there and restart the process"
            ),
        }
    }

    /// Returns a message if the client certificate is expired or not yet valid.
    pub(crate) fn validity_error(&self) -> Option<String> {
        certificate::validity_error(&self.last().config)
    }

    /// Returns the problem if the API server has refused the credentials of every request for minutes.
    pub(crate) fn problem(&self) -> Option<String> {
        let (refused_for, advice) = (self.refusals.duration()?.as_secs(), self.advice());
        Some(format!(
            "the API server has answered every request with 401 (Unauthorized) for {refused_for}s{advice}"
        ))
    }

    fn is_due(&self) -> bool {
        let (state, now) = (self.state.lock(), Instant::now());
        let max_age = if state.is_refused { MAX_AGE_IF_REFUSED } else { MAX_AGE };
        let may_run = self.plugin.is_some() && state.is_plugin_due() && state.may_run_plugin(now);
        may_run || self.pems.has_files() && now - state.read >= max_age
    }

    /// Renews the credentials in a thread of its own, even if the result is not awaited.
    fn start_renewal(
        self: &Arc<Self>,
        renewal: tokio::sync::OwnedMutexGuard<()>,
    ) -> tokio::task::JoinHandle<Result<(), CredentialError>> {
        let this = self.clone();
        tokio::task::spawn_blocking(move || {
            let _renewal = renewal;
            this.renew()
        })
    }

    /// Reads the files, and runs the plugin if that is due. Blocks the thread.
    fn renew(&self) -> Result<(), CredentialError> {
        let (plugin, authorities, has_valid_credentials) = {
            let (mut state, now) = (self.state.lock(), Instant::now());
            state.read = now;
            let has_valid_credentials = state.has_valid_credentials();
            let plugin = self.plugin.as_ref().filter(|_| state.is_plugin_due() && state.may_run_plugin(now));
            state.is_refused &= self.plugin.is_some() && plugin.is_none();
            if plugin.is_some() {
                state.plugin.start_run(now);
            }
            (plugin, state.contents.authorities.clone(), has_valid_credentials)
        };
        let run = plugin.map(|plugin| plugin.run(authorities.as_deref()));
        let contents = self.pems.read();
        let mut state = self.state.lock();
        let state = &mut *state;
        let has_run = match run.map(|run| state.plugin.end_run(run)) {
            Some(Ok(())) => Ok(true),
            // The plugin runs before they expire, so that one that fails for a short time disturbs nothing.
            Some(Err(error)) if has_valid_credentials => Err(error.to_string()),
            Some(Err(error)) => return Err(error),
            None => Ok(false),
        };
        let renewed = has_run.and_then(|has_run| {
            let contents = contents?;
            if has_run || contents != state.contents {
                let plugin = state.plugin.credentials.as_ref();
                let login = login(&self.base, &self.pems, &contents, plugin, Some(&state.login))?;
                (state.login, state.contents) = (Arc::new(login), contents);
            }
            Ok(())
        });
        match renewed {
            Err(why) if state.log_limit.allows(&why) => {
                tracing::warn!("{why}; the last credentials stay in use");
            }
            Err(_) => {}
            Ok(()) => drop(state.log_limit.reset()),
        }
        Ok(())
    }
}

/// Returns the configuration with these certificates and the credentials of a plugin.
fn login(
    base: &Config,
    pems: &Pems,
    contents: &Contents,
    plugin: Option<&PluginCredentials>,
    last: Option<&Login>,
) -> Result<Login, String> {
    let mut config = base.clone();
    if let (Some(source), Some(pem)) = (&pems.authorities, &contents.authorities) {
        config.root_cert = Some(certificate::authorities(source, pem)?);
    }
    let auth = &mut config.auth_info;
    auth.client_certificate_data = contents.certificate.as_ref().map(|pem| STANDARD.encode(pem));
    auth.client_key_data = contents.key.as_ref().map(|pem| STANDARD.encode(pem).into());
    if let Some(plugin) = plugin {
        plugin.apply(auth);
    }
    let (certificate, key) = pems.names(plugin);
    certificate::check(&config, certificate.as_deref(), key.as_deref())?;
    let auth = match last.filter(|_| config.auth_info.auth_provider.is_some()) {
        Some(last) => last.auth.clone(), // a refreshed token is nowhere else
        None => config.auth_layer().map_err(|e| root_cause(&e))?.map(Arc::new),
    };
    Ok(Login { config, auth })
}

impl Pems {
    fn has_files(&self) -> bool {
        [&self.authorities, &self.certificate, &self.key].into_iter().flatten().any(Pem::is_file)
    }

    /// Returns the names of the client certificate and of its key in errors.
    fn names(&self, plugin: Option<&PluginCredentials>) -> (Option<String>, Option<String>) {
        let name = |field| format!("the {field} of the credential plugin");
        match plugin {
            Some(plugin) if plugin.has_certificate() => {
                (Some(name("clientCertificateData")), Some(name("clientKeyData")))
            }
            _ => [&self.certificate, &self.key].map(|pem| pem.as_ref().map(Pem::to_string)).into(),
        }
    }

    fn read(&self) -> Result<Contents, String> {
        let read = |pem: &Option<Pem>| pem.as_ref().map(Pem::read).transpose();
        Ok(Contents {
            authorities: read(&self.authorities)?,
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
        })
    }
}

impl State {
    /// Returns whether the plugin has to run, if it may.
    fn is_plugin_due(&self) -> bool {
        self.is_refused || self.plugin.renew_at.is_some_and(|time| time <= now())
    }

    /// Returns whether the plugin may run now. While the last credentials can be used, its runs are spread over the minute.
    fn may_run_plugin(&self, now: Instant) -> bool {
        let interval =
            if self.has_valid_credentials() { MINUTE / RUNS_PER_MINUTE as u32 } else { Duration::ZERO };
        self.plugin.may_run(now) && self.plugin.runs.back().is_none_or(|run| now - *run >= interval)
    }

    /// Returns whether the last credentials of the plugin can still be used.
    fn has_valid_credentials(&self) -> bool {
        let expires = self.plugin.credentials.as_ref().map(PluginCredentials::expires);
        !self.is_refused && expires.is_some_and(|expires| expires.is_none_or(|time| time > now()))
    }
}

impl PluginState {
    fn may_run(&self, now: Instant) -> bool {
        self.runs.len() < RUNS_PER_MINUTE || self.runs.front().is_none_or(|run| now - *run >= MINUTE)
    }

    fn start_run(&mut self, now: Instant) {
        if self.runs.len() == RUNS_PER_MINUTE {
            self.runs.pop_front();
        }
        self.runs.push_back(now);
    }

    fn end_run(&mut self, run: Result<PluginCredentials, CredentialError>) -> Result<(), CredentialError> {
        match run {
            Ok(credentials) => {
                self.renew_at = credentials.expires().map(|expires| {
                    let life = expires.duration_since(now());
                    expires - (life / 4).clamp(SignedDuration::ZERO, MAX_MARGIN)
                });
                (self.credentials, self.failure) = (Some(credentials), None);
                Ok(())
            }
            Err(error) => {
                self.failure = Some(error.to_string());
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
