//! The error of a failed pass.

use std::{error::Error as StdError, fmt, time::Duration};

use kube::core::Status;

pub(crate) type Source = Box<dyn StdError + Send + Sync>;

/// The error of a failed pass. The pass is retried with backoff, unless the error is [permanent](Error::permanent).
///
/// Any other error and any text converts to it by `?`. To allow this, it does not implement [`std::error::Error`] itself.
///
/// ```
/// use reknit_reconciler::{Error, Permanent, Result};
///
/// fn port(text: &str) -> Result<u16> {
///     if text.is_empty() {
///         return Err("no port is given".into());
///     }
///     Ok(text.parse().permanent()?) // a retry would not help
/// }
/// assert!(!port("").unwrap_err().is_permanent());
/// assert!(port("x").unwrap_err().is_permanent());
///
/// let refused = Error::permanent("the name is taken").reason("NameTaken");
/// assert_eq!(refused.to_string(), "the name is taken");
/// ```
#[derive(derive_more::Debug)]
#[debug("{source:?}")]
pub struct Error {
    source: Source,
    permanent: bool,
    reason: Option<String>,
    retry_within: Option<Duration>,
}

/// A result whose error is an [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Marks errors that a retry would not fix: `text.parse().permanent()?`.
pub trait Permanent<T> {
    /// Makes the error permanent: the key is not retried, but waits for the next change. A
    /// [conflict](Error::is_conflict) is retried nevertheless.
    ///
    /// # Errors
    ///
    /// Returns the same error as before, if there is one.
    fn permanent(self) -> Result<T>;
}

impl<T, E: Into<Error>> Permanent<T> for Result<T, E> {
    fn permanent(self) -> Result<T> {
        self.map_err(Error::permanent)
    }
}

impl<E: Into<Source>> From<E> for Error {
    fn from(source: E) -> Self {
        Self { source: source.into(), permanent: false, reason: None, retry_within: None }
    }
}

impl Error {
    /// Creates an error that is not retried.
    pub fn permanent(source: impl Into<Error>) -> Self {
        Self { permanent: true, ..source.into() }
    }

    /// Sets the reason of the Warning event for this error. The default is `InternalError`.
    #[must_use]
    pub fn reason(mut self, reason: &str) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Returns true if it is not retried. A [conflict](Self::is_conflict) is always retried, since it resolves itself.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// Returns true if another client was faster: the API server answered 409, anywhere in the chain of sources, even behind a
    /// type such as `anyhow::Error`. Such a pass is retried without an event or an error in the log.
    ///
    /// If two errors occurred in one pass, both have to be conflicts. Two answers with 409 are not conflicts, since they
    /// may persist: that an object already exists, and that another field manager owns a field applied without force.
    pub fn is_conflict(&self) -> bool {
        if let Some(Both { first, then }) = self.source.downcast_ref() {
            return first.is_conflict() && then.is_conflict();
        }
        chain(&*self.source)
            .filter_map(answer)
            .any(|status| status.code == 409 && !status.is_already_exists() && !is_field_conflict(status))
    }

    /// The source of this error, as a [`std::error::Error`].
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// Converts to a [`std::error::Error`], to be the source of another error or to be returned as another type. Whether it
    /// is permanent, and its reason, are lost.
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

    /// The chain of sources in one line, without those that their predecessor quotes. The event has this message, so a
    /// condition can have the same. An answer of the API server is shown by message, code and reason.
    pub fn in_full(&self) -> String {
        in_full(&*self.source)
    }

    /// The reason of the Warning event for this error.
    pub fn event_reason(&self) -> &str {
        self.reason.as_deref().unwrap_or("InternalError")
    }

    /// Combines the error of the reconciler with a later one of the framework. The result is retried, since the second
    /// error may be temporary, and no later than either error asks for.
    pub(crate) fn and(self, then: Error) -> Self {
        let reason = self.reason.clone();
        let retry_within = [self.retry_within, then.retry_within].into_iter().flatten().min();
        Self { source: Box::new(Both { first: self, then }), permanent: false, reason, retry_within }
    }

    /// Limits the time until the retry, for a temporary fault whose end no watch reports. The backoff still applies if it
    /// is shorter. A [permanent](Self::permanent) error is not retried.
    ///
    /// ```
    /// use std::time::Duration;
    /// use reknit_reconciler::{Error, Result};
    ///
    /// async fn answers(address: &str) -> Result<()> {
    ///     let connected = tokio::net::TcpStream::connect(address).await;
    ///     connected.map_err(|error| Error::from(error).retry_within(Duration::from_secs(30)))?;
    ///     Ok(())
    /// }
    /// # let _ = answers;
    /// ```
    #[must_use]
    pub fn retry_within(mut self, limit: Duration) -> Self {
        self.retry_within = Some(limit);
        self
    }

    /// The longest time until the retry.
    pub(crate) fn latest_retry(&self) -> Option<Duration> {
        self.retry_within
    }
}

/// The text of [`Error::in_full`] for any error.
pub(crate) fn in_full(error: &(dyn StdError + 'static)) -> String {
    chain(error).map(describe).fold(String::new(), |text, source| match text.as_str() {
        "" => source,
        _ if text.contains(&source) => text,
        _ => format!("{text}: {source}"),
    })
}

fn chain<'a>(first: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(first), |error| match answer(*error) {
        Some(_) => None, // its source repeats it
        None => (*error).source(),
    })
}

/// The text of one error. For an answer of the API server, message and code instead of the whole Status.
pub(crate) fn describe(error: &(dyn StdError + 'static)) -> String {
    match answer(error) {
        Some(status) => format!("{} ({} {})", status.message, status.code, status.reason),
        None => error.to_string(),
    }
}

/// The answer of the API server, if the error is one.
fn answer<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Status> {
    match downcast(error) {
        Some(kube::Error::Api(status)) => Some(status),
        Some(_) => None,
        None => downcast(error).or_else(|| hidden(error)),
    }
}

/// The answer in a `kube::Error` behind another type, such as a boxed `anyhow::Error`, which has the same text and
/// sources but another type.
fn hidden<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Status> {
    let status: &Status = downcast(error.source()?)?;
    error.to_string().starts_with(&format!("ApiError: {status}")).then_some(status)
}

/// Downcasts an error, also one in a box, whose type is that of the box.
fn downcast<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    error.downcast_ref().or_else(|| error.downcast_ref::<Box<E>>().map(|error| &**error))
}

/// Returns true if the answer is that of server-side apply without force for fields of other managers.
fn is_field_conflict(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "FieldManagerConflict")
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)
    }
}

#[derive(Debug)]
struct Both {
    first: Error,
    then: Error,
}

impl fmt::Display for Both {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; then: {}", self.first.in_full(), self.then.in_full())
    }
}

impl StdError for Both {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.first.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("creating the pod failed")]
    struct Wrapped(#[source] kube::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("creating the pod failed")]
    struct Boxed(#[source] Box<kube::Error>);

    #[derive(Debug, thiserror::Error)]
    #[error("creating the pod failed")]
    struct Answered(#[source] Box<Status>);

    /// Has the text and the source of kube's error, like `anyhow::Error`.
    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Hidden(kube::Error);

    fn conflict() -> kube::Error {
        kube::Error::Api(Box::new(kube::core::Status::failure("stale", "Conflict").with_code(409)))
    }

    #[test]
    fn a_conflict_is_found_in_the_sources_of_a_users_error() {
        assert!(Error::from(Wrapped(conflict())).is_conflict());
        assert!(Error::from(Boxed(Box::new(conflict()))).is_conflict());
        assert!(Error::from(Hidden(conflict())).is_conflict());
        assert!(!Error::from("words").is_conflict());
        let taken = kube::core::Status::failure("a name is taken", "AlreadyExists").with_code(409);
        assert!(!Error::from(kube::Error::Api(Box::new(taken))).is_conflict());
    }

    #[test]
    fn a_field_of_another_manager_is_not_a_conflict() {
        let owned = r#"{"status": "Failure", "reason": "Conflict", "code": 409, "message": "Apply failed",
            "details": {"causes": [{"reason": "FieldManagerConflict", "field": ".spec.replicas"}]}}"#;
        let owned = kube::Error::Api(Box::new(serde_json::from_str(owned).unwrap()));
        assert!(!Error::from(owned).is_conflict());
    }

    #[test]
    fn an_error_through_question_mark_stays_permanent() {
        let again = || -> Result<()> { Err(Error::permanent("no"))? };
        assert!(again().unwrap_err().is_permanent());
    }

    #[test]
    fn an_error_converts_back_to_its_source() {
        let pass = || -> Result<()> { Err(Wrapped(conflict())).permanent() };
        let boxed = || -> Result<(), Box<dyn StdError + Send + Sync>> {
            pass().map_err(Error::into_source)?;
            Ok(())
        };
        assert!(boxed().unwrap_err().is::<Wrapped>());
    }

    #[test]
    fn the_full_text_contains_each_source_once() {
        let said = Error::from(Wrapped(conflict())).in_full();
        assert_eq!(said, "creating the pod failed: stale (409 Conflict)");
        assert_eq!(Error::from(Hidden(conflict())).in_full(), "stale (409 Conflict)");
        let kube::Error::Api(status) = conflict() else { unreachable!() };
        let said = Error::from(Answered(status)).in_full();
        assert_eq!(said, "creating the pod failed: stale (409 Conflict)");
    }

    #[test]
    fn two_errors_are_a_conflict_only_if_both_are() {
        assert!(!Error::from(conflict()).and("the disk is full".into()).is_conflict());
        assert!(!Error::from("no").and(conflict().into()).is_conflict());
        assert!(Error::from(conflict()).and(conflict().into()).is_conflict());
    }

    #[test]
    fn two_errors_are_both_reported_and_retried() {
        let limit = Duration::from_secs(30);
        let first = Error::permanent("the first").reason("Mine").retry_within(limit);
        let both = first.and("the second".into());
        assert_eq!(both.latest_retry(), Some(limit));
        assert_eq!(both.to_string(), "the first; then: the second");
        assert!(!both.is_permanent());
        assert_eq!(both.event_reason(), "Mine");
    }
}
