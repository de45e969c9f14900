//! The error of a failed pass.

#[cfg(test)]
mod tests;

use std::{error::Error as StdError, fmt, ops::RangeInclusive, time::Duration};

use kube::core::Status;
use reknit_injection::internal::retry_after_of_status;

use crate::tracker::NotListedYet;

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// The longest backoff of a pass whose request the API server has refused or not answered.
const RETRY_OF_FAILED_REQUEST: Duration = Duration::from_secs(60);

/// The error of a failed pass. The pass is retried with backoff, unless the error is [permanent](Error::permanent).
///
/// Any [`std::error::Error`] and any text converts to it by `?`. To allow this, it does not implement that trait
/// itself.
///
/// ```
/// use reknit_reconciler::{Error, Result, ResultExt};
///
/// fn port(text: &str) -> Result<u16> {
///     if text.is_empty() {
///         return Err("no port is given".into());
///     }
///     text.parse().permanent() // a retry would not help
/// }
/// assert!(!port("").unwrap_err().is_permanent());
///
/// let error = port("x").context("failed to read spec.port").unwrap_err();
/// assert!(error.is_permanent());
/// assert_eq!(error.to_string(), "failed to read spec.port");
/// assert_eq!(error.in_full(), "failed to read spec.port: invalid digit found in string");
///
/// let refused = Error::permanent("the name is taken").reason("NameTaken");
/// assert_eq!(refused.to_string(), "the name is taken");
/// ```
#[derive(derive_more::Debug)]
#[debug("{source:?}")]
pub struct Error {
    source: BoxError,
    permanent: bool,
    reason: Option<String>,
    retry_within: Option<Duration>,
    /// True if the error is reported although it is a conflict.
    is_lasting: bool,
}

/// A result whose error is an [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Methods of [`Error`] that can be called on any `Result`. They leave an `Ok` as it is.
///
/// ```
/// use std::time::Duration;
/// use reknit_reconciler::{Result, ResultExt};
///
/// async fn connect(address: &str) -> Result<()> {
///     let connected = tokio::net::TcpStream::connect(address).await;
///     connected
///         .reason("NotReachable")
///         .retry_within(Duration::from_secs(30))
///         .context(format_args!("failed to connect to {address}"))?;
///     Ok(())
/// }
/// # let _ = connect;
/// ```
pub trait ResultExt<T>: Sized {
    /// Puts a text before the error, as [`Error::context`] does. The text is formatted only if there is an error.
    ///
    /// # Errors
    ///
    /// Returns the error with the text before it.
    fn context(self, text: impl fmt::Display) -> Result<T>;

    /// Makes the error permanent, for an error that a retry would not fix: the key is not retried, but waits for the
    /// next change. A [conflict](Error::is_conflict) is retried nevertheless.
    ///
    /// # Errors
    ///
    /// Returns the error, which is now permanent.
    fn permanent(self) -> Result<T>;

    /// Sets the reason of the Warning event for the error, as [`Error::reason`] does.
    ///
    /// # Errors
    ///
    /// Returns the error with this reason.
    fn reason(self, reason: &str) -> Result<T>;

    /// Limits the time until the retry, as [`Error::retry_within`] does.
    ///
    /// # Errors
    ///
    /// Returns the error with this limit.
    fn retry_within(self, limit: Duration) -> Result<T>;
}

impl<T, E: Into<Error>> ResultExt<T> for Result<T, E> {
    fn context(self, text: impl fmt::Display) -> Result<T> {
        self.map_err(|error| error.into().context(text))
    }

    fn permanent(self) -> Result<T> {
        self.map_err(Error::permanent)
    }

    fn reason(self, reason: &str) -> Result<T> {
        self.map_err(|error| error.into().reason(reason))
    }

    fn retry_within(self, limit: Duration) -> Result<T> {
        self.map_err(|error| error.into().retry_within(limit))
    }
}

impl<E: Into<BoxError>> From<E> for Error {
    fn from(source: E) -> Self {
        Self { source: source.into(), permanent: false, reason: None, retry_within: None, is_lasting: false }
    }
}

impl Error {
    /// Creates an error that is not retried.
    pub fn permanent(source: impl Into<Error>) -> Self {
        Self { permanent: true, ..source.into() }
    }

    /// Puts a text before this error, as anyhow's `context` does: [`Display`](fmt::Display) shows the text alone, and
    /// [`in_full`](Self::in_full) shows the text and this error. Permanence, reason and retry limit are kept, and so is
    /// a [conflict](Self::is_conflict).
    ///
    /// ```
    /// # use reknit_reconciler::Error;
    /// let refused = Error::permanent("the quota is used up").reason("QuotaExceeded");
    /// let error = refused.context("failed to create the topic");
    /// assert!(error.is_permanent());
    /// assert_eq!(error.event_reason(), "QuotaExceeded");
    /// assert_eq!(error.in_full(), "failed to create the topic: the quota is used up");
    /// ```
    #[must_use]
    pub fn context(self, text: impl fmt::Display) -> Self {
        let source = Box::new(WithContext { text: text.to_string(), source: self.source });
        Self { source, ..self }
    }

    /// Sets the reason of the Warning event for this error. The default is `InternalError`.
    #[must_use]
    pub fn reason(mut self, reason: &str) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Returns true if the error was made [permanent](Self::permanent), so that the pass is not retried. The exception
    /// is a permanent error that is a [conflict](Self::is_conflict): it is retried, since a conflict resolves itself.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// Returns true if another client changed the object first: the API server answered 409. The whole chain of sources
    /// is searched for that answer, even behind a type such as `anyhow::Error`. A pass that fails with a conflict is
    /// retried without an event or an error in the log, unless the key has failed ten times in a row. A failure before the
    /// retry is due does not count.
    ///
    /// If two errors occurred in one pass, both have to be conflicts. Two kinds of 409 do not count, since a retry may
    /// not resolve them: the object already exists, or another field manager owns a field applied without force.
    pub fn is_conflict(&self) -> bool {
        !self.is_lasting && self.has_source(|error| api_status(error).is_some_and(is_conflict))
    }

    /// Turns a conflict that does not resolve itself into an error that is reported, and retried like any other.
    pub(crate) fn into_lasting_conflict(self) -> Self {
        let error = self.context("the conflict does not resolve itself");
        let reason = error.reason.or_else(|| Some("ConflictPersists".into()));
        Self { permanent: false, is_lasting: true, reason, ..error }
    }

    /// Returns true if the API server refused a request for a reason that a retry does not resolve.
    pub(crate) fn is_refused(&self) -> bool {
        self.has_answer(|status| matches!(status.code, 400 | 403 | 404 | 413 | 422) || is_too_large(status))
    }

    /// Returns true if the API server answered a request with a status that meets the condition.
    fn has_answer(&self, condition: fn(&Status) -> bool) -> bool {
        sources(&*self.source).any(|error| api_status(error).is_some_and(condition))
    }

    /// Returns true if a request to the API server was refused, or got no answer that can be used. Of two errors, one
    /// suffices.
    fn has_failed_request(&self) -> bool {
        sources(&*self.source).any(|error| match error.downcast_ref() {
            Some(TwoErrors { first, second }) => first.has_failed_request() || second.has_failed_request(),
            None => api_status(error).is_some() || downcast::<kube::Error>(error).is_some(),
        })
    }

    /// Returns true if the pass read objects of a Kind that is not listed yet, through
    /// [`TrackedAny`](crate::TrackedAny) or [`OwnedAny`](crate::OwnedAny). Return such an error: the pass then ends
    /// without a status, an event or a retry, and the object stays as it is until the list enqueues its key.
    pub fn is_waiting(&self) -> bool {
        self.has_source(|error| error.is::<NotListedYet>())
    }

    /// Returns true if a pass with this error is recorded. A conflict, or a wait for the first list of a Kind, is not: it
    /// resolves itself.
    pub(crate) fn is_recorded(&self) -> bool {
        !self.is_conflict() && !self.is_waiting()
    }

    /// Returns true if the condition holds for the error or one of its sources. Of two errors, it has to hold for both.
    fn has_source(&self, condition: fn(&(dyn StdError + 'static)) -> bool) -> bool {
        for error in sources(&*self.source) {
            if let Some(TwoErrors { first, second }) = error.downcast_ref() {
                return first.has_source(condition) && second.has_source(condition);
            }
            if condition(error) {
                return true;
            }
        }
        false
    }

    /// Returns the error that this one wraps, as a [`std::error::Error`]. Its own `source` is the next cause.
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// Converts to a [`std::error::Error`], to be the source of another error or to be returned as another type.
    /// Permanence, reason and retry limit are lost. Where they matter, return an `Error` with
    /// [`context`](Self::context) instead.
    ///
    /// ```
    /// use std::error::Error as StdError;
    /// use reknit_reconciler::{Error, Result};
    ///
    /// fn port(text: &str) -> Result<u16> {
    ///     Ok(text.parse()?)
    /// }
    ///
    /// fn from_environment() -> Result<u16, Box<dyn StdError + Send + Sync>> {
    ///     Ok(port(&std::env::var("PORT")?).map_err(Error::into_source)?)
    /// }
    /// # let _ = from_environment;
    /// ```
    pub fn into_source(self) -> Box<dyn StdError + Send + Sync> {
        self.source
    }

    /// Returns the error and its chain of sources in one line. A source whose text is already in the line is left out.
    /// A `Status` of the API server is shown by its message, code and reason. The event of a failed pass has this text
    /// as its message; use it for a condition too.
    pub fn in_full(&self) -> String {
        in_full(&*self.source)
    }

    /// The reason of the Warning event for this error.
    pub fn event_reason(&self) -> &str {
        self.reason.as_deref().unwrap_or("InternalError")
    }

    /// Combines the error of the reconciler with a later one of the framework. The result is retried, since the second
    /// error may be temporary. The shorter of both retry limits applies.
    pub(crate) fn followed_by(self, second: Error) -> Self {
        let reason = self.reason.clone();
        let retry_within = [self.retry_within, second.retry_within].into_iter().flatten().min();
        Self { reason, retry_within, ..Self::from(TwoErrors { first: self, second }) }
    }

    /// Limits the backoff until the retry, for a temporary fault whose end no watch reports. A
    /// [permanent](Self::permanent) error is not retried. If an overloaded API server asked for a longer wait, the key
    /// waits for that. The rate of all retries still applies, so if a hundred keys of a namespace fail, they may wait
    /// longer.
    ///
    /// ```
    /// use std::time::Duration;
    /// use reknit_reconciler::Error;
    ///
    /// let error = Error::from("the broker is starting").retry_within(Duration::from_secs(30));
    /// # let _ = error;
    /// ```
    #[must_use]
    pub fn retry_within(mut self, limit: Duration) -> Self {
        self.retry_within = Some(limit);
        self
    }

    /// The limits of the wait for the retry: at least as long as an overloaded API server asked, otherwise at most as
    /// long as [`retry_within`](Self::retry_within) says. After a failed request to the API server, at most a minute by
    /// default: no watch reports the end of most causes, such as a missing permission, an exceeded quota or an admission
    /// webhook that is down.
    pub(crate) fn retry_wait(&self) -> RangeInclusive<Duration> {
        let least = self.retry_after().unwrap_or_default();
        let most = self.retry_within.or(self.has_failed_request().then_some(RETRY_OF_FAILED_REQUEST));
        least..=most.unwrap_or(Duration::MAX).max(least)
    }

    /// The wait that the API server asked for when it refused a request (`Retry-After`).
    fn retry_after(&self) -> Option<Duration> {
        let asked = |error: &(dyn StdError + 'static)| match error.downcast_ref() {
            Some(TwoErrors { first, second }) => first.retry_after().max(second.retry_after()),
            None => api_status(error).and_then(retry_after_of_status),
        };
        sources(&*self.source).find_map(asked)
    }
}

/// The text of [`Error::in_full`] for an error of any type.
pub(crate) fn in_full(error: &(dyn StdError + 'static)) -> String {
    sources(error).map(describe).fold(String::new(), |text, source| match text.as_str() {
        "" => source,
        _ if text.contains(&source) => text,
        _ => format!("{text}: {source}"),
    })
}

fn sources<'a>(first: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(first), |error| match api_status(*error) {
        Some(_) => None, // the source of kube's error is this status again
        None => (*error).source(),
    })
}

/// The text of one error. For an answer of the API server, message and code instead of the whole Status.
pub(crate) fn describe(error: &(dyn StdError + 'static)) -> String {
    match api_status(error) {
        Some(status) if status.reason.is_empty() => format!("{} ({})", status.message, status.code),
        Some(status) => format!("{} ({} {})", status.message, status.code, status.reason),
        None => error.to_string(),
    }
}

/// The status that the API server answered, if the error is such an answer.
fn api_status<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Status> {
    match downcast(error) {
        Some(kube::Error::Api(status)) => Some(status),
        Some(_) => None,
        None => downcast(error).or_else(|| hidden_api_status(error)),
    }
}

/// The status of a `kube::Error` in a wrapper that cannot be downcast to it, but has its text and its source, such as a
/// boxed `anyhow::Error`.
fn hidden_api_status<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Status> {
    let status: &Status = downcast(error.source()?)?;
    error.to_string().starts_with(&format!("ApiError: {status}")).then_some(status)
}

/// Downcasts an error, or the boxed error behind it.
fn downcast<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    error.downcast_ref().or_else(|| error.downcast_ref::<Box<E>>().map(|error| &**error))
}

/// Returns true if the API server refused a request because another client changed the object first.
fn is_conflict(status: &Status) -> bool {
    status.code == 409 && !status.is_already_exists() && !is_field_conflict(status)
}

/// Returns true if the object is too large for etcd, or for the request that stores it. The API server answers 500 then, as
/// for a fault that passes by itself, and only the text of etcd or gRPC shows the difference.
fn is_too_large(status: &Status) -> bool {
    ["request is too large", "message larger than max"].iter().any(|text| status.message.contains(text))
}

/// Returns true if server-side apply without force was refused because other managers own the fields.
fn is_field_conflict(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "FieldManagerConflict")
}

/// Shows the wrapped error without its causes. The alternate form `{:#}` shows it [in full](Error::in_full).
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match f.alternate() {
            true => f.write_str(&self.in_full()),
            false => fmt::Display::fmt(&self.source, f),
        }
    }
}

/// The source of an error with [context](Error::context).
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct WithContext {
    text: String,
    source: BoxError,
}

/// The source of an error that combines two errors of one pass.
#[derive(Debug)]
struct TwoErrors {
    first: Error,
    second: Error,
}

impl fmt::Display for TwoErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; then: {}", self.first.in_full(), self.second.in_full())
    }
}

impl StdError for TwoErrors {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.first.source)
    }
}
