//! How a pass fails.

use std::{error::Error as StdError, fmt, time::Duration};

use kube::core::Status;

pub(crate) type Source = Box<dyn StdError + Send + Sync>;

/// What went wrong in a pass. It is retried with backoff, unless it is [permanent](Error::permanent).
///
/// Any error becomes one through `?`, and so do texts. It is not itself a [`std::error::Error`]: that is what lets
/// `?` take all the others.
///
/// ```
/// use reknit_reconciler::{Error, Permanent, Result};
///
/// fn port(text: &str) -> Result<u16> {
///     if text.is_empty() {
///         return Err("no port is given".into());
///     }
///     Ok(text.parse().permanent()?) // no retry makes a number of it
/// }
/// assert!(!port("").unwrap_err().is_permanent());
/// assert!(port("x").unwrap_err().is_permanent());
///
/// let refused = Error::permanent("the name is taken").reason("NameTaken");
/// assert_eq!(refused.to_string(), "the name is taken");
/// ```
pub struct Error {
    source: Source,
    permanent: bool,
    reason: Option<String>,
    retry_within: Option<Duration>,
}

/// What fails with an [`Error`] unless another is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Marks what no retry can mend: `text.parse().permanent()?`.
pub trait Permanent<T> {
    /// The same result, its error permanent: the key is not retried, only looked at again once something changes. A
    /// [conflict](Error::is_conflict) is retried all the same.
    ///
    /// # Errors
    ///
    /// Whatever error was there before.
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
    /// The same error, not to be retried.
    pub fn permanent(source: impl Into<Error>) -> Self {
        Self { permanent: true, ..source.into() }
    }

    /// The reason of the Warning event that tells of it, instead of `InternalError`.
    #[must_use]
    pub fn reason(mut self, reason: &str) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Whether it is not to be retried. A [conflict](Self::is_conflict) is, whatever this says: it passes by itself.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// Whether the API server answered 409, anywhere down the chain of sources, also where that comes through a type
    /// such as anyhow's that hides what it was made of: somebody else was faster. Such a pass is retried without
    /// event or error in the log. Of two errors in one pass both have to be conflicts. What is answered with 409 too
    /// but may last is none, since then somebody has to know: that an object already exists, and that another field
    /// manager owns what was applied without force.
    pub fn is_conflict(&self) -> bool {
        if let Some(Both { first, then }) = self.source.downcast_ref() {
            return first.is_conflict() && then.is_conflict();
        }
        chain(&*self.source)
            .filter_map(answer)
            .any(|status| status.code == 409 && !status.is_already_exists() && !is_owned_by_others(status))
    }

    /// The error as others know it, for its own sources.
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// The error as others know it, to be the source of another, or to be returned where another type is wanted. That it
    /// is permanent, and its reason, are known only here.
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

    /// The whole chain of sources in one line, each that its predecessor does not quote already: what the event says,
    /// for a condition that is to say the same. Of an answer of the API server it holds message, code and reason.
    pub fn in_full(&self) -> String {
        in_full(&*self.source)
    }

    /// The reason of the Warning event that tells of it.
    pub fn event_reason(&self) -> &str {
        self.reason.as_deref().unwrap_or("InternalError")
    }

    /// Both errors: what user code said and what the framework failed at after it. Retried, since the second may
    /// pass, and no later than either says.
    pub(crate) fn and(self, then: Error) -> Self {
        let reason = self.reason.clone();
        let retry_within = [self.retry_within, then.retry_within].into_iter().flatten().min();
        Self { source: Box::new(Both { first: self, then }), permanent: false, reason, retry_within }
    }

    /// The same error, retried after this long at the latest: sooner where its backoff is shorter, which goes on counting
    /// as for any other error. For what passes by itself and is told by no watch. A [permanent](Self::permanent) error
    /// is not retried all the same.
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

    /// After how long it is retried at the latest, whatever its backoff.
    pub(crate) fn latest_retry(&self) -> Option<Duration> {
        self.retry_within
    }
}

/// What [`Error::in_full`] says, of any error.
pub(crate) fn in_full(error: &(dyn StdError + 'static)) -> String {
    chain(error).map(describe).fold(String::new(), |text, source| match text.as_str() {
        "" => source,
        _ if text.contains(&source) => text,
        _ => format!("{text}: {source}"),
    })
}

fn chain<'a>(first: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(first), |error| match answer(*error) {
        Some(_) => None, // it only repeats itself as its source
        None => (*error).source(),
    })
}

/// An error in words: of an answer of the API server its message and code, where kube would show the whole Status.
pub(crate) fn describe(error: &(dyn StdError + 'static)) -> String {
    match answer(error) {
        Some(status) => format!("{} ({} {})", status.message, status.code, status.reason),
        None => error.to_string(),
    }
}

/// What the API server answered, if that is the error.
fn answer<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Status> {
    match is_or_boxes(error) {
        Some(kube::Error::Api(status)) => Some(status),
        Some(_) => None,
        None => is_or_boxes(error).or_else(|| disguised(error)),
    }
}

/// The answer in an error of kube's that another type hides: it speaks and has sources as kube's, but is none, as an
/// anyhow::Error in a box.
fn disguised<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Status> {
    let status: &Status = is_or_boxes(error.source()?)?;
    error.to_string().starts_with(&format!("ApiError: {status}")).then_some(status)
}

/// A source in a box is the box, as far as its type can be asked for.
fn is_or_boxes<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    error.downcast_ref().or_else(|| error.downcast_ref::<Box<E>>().map(|error| &**error))
}

/// As the API server answers server-side apply of fields that other managers own.
fn is_owned_by_others(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "FieldManagerConflict")
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, f)
    }
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

    /// Says what kube's error says, and has its source, as the errors of anyhow do.
    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Hidden(kube::Error);

    fn conflict() -> kube::Error {
        kube::Error::Api(Box::new(kube::core::Status::failure("stale", "Conflict").with_code(409)))
    }

    #[test]
    fn a_conflict_is_found_below_the_users_own_error() {
        assert!(Error::from(Wrapped(conflict())).is_conflict());
        assert!(Error::from(Boxed(Box::new(conflict()))).is_conflict());
        assert!(Error::from(Hidden(conflict())).is_conflict());
        assert!(!Error::from("words").is_conflict());
        let taken = kube::core::Status::failure("a name is taken", "AlreadyExists").with_code(409);
        assert!(!Error::from(kube::Error::Api(Box::new(taken))).is_conflict());
    }

    #[test]
    fn fields_of_another_manager_stay_its_own_until_somebody_sees_to_it() {
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
    fn an_error_goes_on_as_what_it_was_made_of_where_another_type_is_wanted() {
        let pass = || -> Result<()> { Err(Wrapped(conflict())).permanent() };
        let boxed = || -> Result<(), Box<dyn StdError + Send + Sync>> {
            pass().map_err(Error::into_source)?;
            Ok(())
        };
        assert!(boxed().unwrap_err().is::<Wrapped>());
    }

    #[test]
    fn the_line_in_the_log_holds_each_source_once() {
        let said = Error::from(Wrapped(conflict())).in_full();
        assert_eq!(said, "creating the pod failed: stale (409 Conflict)");
        assert_eq!(Error::from(Hidden(conflict())).in_full(), "stale (409 Conflict)");
        let kube::Error::Api(status) = conflict() else { unreachable!() };
        let said = Error::from(Answered(status)).in_full();
        assert_eq!(said, "creating the pod failed: stale (409 Conflict)");
    }

    #[test]
    fn of_two_errors_both_have_to_be_conflicts() {
        assert!(!Error::from(conflict()).and("the disk is full".into()).is_conflict());
        assert!(!Error::from("no").and(conflict().into()).is_conflict());
        assert!(Error::from(conflict()).and(conflict().into()).is_conflict());
    }

    #[test]
    fn two_errors_are_both_told_and_retried() {
        let limit = Duration::from_secs(30);
        let first = Error::permanent("the first").reason("Mine").retry_within(limit);
        let both = first.and("the second".into());
        assert_eq!(both.latest_retry(), Some(limit));
        assert_eq!(both.to_string(), "the first; then: the second");
        assert!(!both.is_permanent());
        assert_eq!(both.event_reason(), "Mine");
    }
}
