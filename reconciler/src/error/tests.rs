use super::*;

#[derive(Debug, thiserror::Error)]
#[error("creating the pod failed")]
struct WrappedKubeError(#[source] kube::Error);

#[derive(Debug, thiserror::Error)]
#[error("creating the pod failed")]
struct BoxedKubeError(#[source] Box<kube::Error>);

#[derive(Debug, thiserror::Error)]
#[error("creating the pod failed")]
struct WrappedStatus(#[source] Box<Status>);

/// Has the text and the source of kube's error, like `anyhow::Error`.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct TransparentKubeError(kube::Error);

fn conflict() -> kube::Error {
    kube::Error::Api(Box::new(kube::core::Status::failure("stale", "Conflict").with_code(409)))
}

#[test]
fn a_conflict_is_found_in_the_sources_of_a_users_error() {
    assert!(Error::from(WrappedKubeError(conflict())).is_conflict());
    assert!(Error::from(BoxedKubeError(Box::new(conflict()))).is_conflict());
    assert!(Error::from(TransparentKubeError(conflict())).is_conflict());
    assert!(!Error::from("no API error").is_conflict());
    let taken = kube::core::Status::failure("a name is taken", "AlreadyExists").with_code(409);
    assert!(!Error::from(kube::Error::Api(Box::new(taken))).is_conflict());
}

#[test]
fn a_field_of_another_manager_is_not_a_conflict() {
    let apply_failed = r#"{"status": "Failure", "reason": "Conflict", "code": 409, "message": "Apply failed",
        "details": {"causes": [{"reason": "FieldManagerConflict", "field": ".spec.replicas"}]}}"#;
    let error = kube::Error::Api(Box::new(serde_json::from_str(apply_failed).unwrap()));
    assert!(!Error::from(error).is_conflict());
}

#[test]
fn the_question_mark_operator_keeps_an_error_permanent() {
    let fails = || -> Result<()> { Err(Error::permanent("no"))? };
    assert!(fails().unwrap_err().is_permanent());
}

#[test]
fn an_error_converts_back_to_its_source() {
    let fails = || -> Result<()> { Err(WrappedKubeError(conflict())).permanent() };
    let fails_boxed = || -> Result<(), Box<dyn StdError + Send + Sync>> {
        fails().map_err(Error::into_source)?;
        Ok(())
    };
    assert!(fails_boxed().unwrap_err().is::<WrappedKubeError>());
}

#[test]
fn the_full_text_contains_each_source_once() {
    let text = Error::from(WrappedKubeError(conflict())).in_full();
    assert_eq!(text, "creating the pod failed: stale (409 Conflict)");
    assert_eq!(Error::from(TransparentKubeError(conflict())).in_full(), "stale (409 Conflict)");
    let kube::Error::Api(status) = conflict() else { unreachable!() };
    let text = Error::from(WrappedStatus(status)).in_full();
    assert_eq!(text, "creating the pod failed: stale (409 Conflict)");
}

#[test]
fn context_keeps_permanence_reason_retry_limit_and_conflicts() {
    let limit = Duration::from_secs(30);
    let fails = || -> Result<()> { Err(Error::permanent("no").reason("Refused").retry_within(limit)) };
    let error = fails().context("asking").context("beginning").unwrap_err();
    assert!(error.is_permanent());
    assert_eq!(error.event_reason(), "Refused");
    assert_eq!(*error.retry_wait().end(), limit);
    assert_eq!(
        (error.to_string(), format!("{error:#}")),
        ("beginning".into(), "beginning: asking: no".into())
    );

    let late: Result<()> = Err("no").context("asking").reason("Refused").retry_within(limit).permanent();
    let late = late.unwrap_err();
    assert_eq!(
        (late.event_reason(), *late.retry_wait().end(), late.is_permanent()),
        ("Refused", limit, true)
    );

    let stale = Error::from(conflict()).context("writing");
    assert!(stale.is_conflict());
    assert_eq!(stale.in_full(), "writing: stale (409 Conflict)");
    let half_stale = Error::from(conflict()).followed_by("no".into()).context("writing");
    assert!(!half_stale.is_conflict());
}

#[test]
fn the_retry_waits_at_least_as_long_as_the_server_asked() {
    let refused = || {
        let status = r#"{"message": "slow down", "code": 429, "details": {"retryAfterSeconds": 60}}"#;
        Error::from(kube::Error::Api(Box::new(serde_json::from_str(status).unwrap())))
    };
    let (asked, limit) = (Duration::from_secs(60), Duration::from_secs(30));
    assert_eq!(refused().context("writing").retry_wait(), asked..=asked);
    assert_eq!(refused().retry_within(limit).retry_wait(), asked..=asked);
    assert_eq!(Error::from("no").followed_by(refused()).retry_wait(), asked..=asked);
    assert_eq!(Error::from("no").retry_within(limit).retry_wait(), Duration::ZERO..=limit);
}

#[test]
fn a_failed_request_is_retried_within_a_minute_unless_the_error_says_otherwise() {
    let refusal = |code| kube::Error::Api(Box::new(Status::failure("no", "Reason").with_code(code)));
    let refusals = [403, 404, 409, 422, 500, 504].map(refusal);
    let unanswered = kube::Error::Service("connection refused".into());
    for error in refusals.into_iter().chain([unanswered]) {
        let failed = Error::from(error).context("creating the pod");
        assert_eq!(*failed.retry_wait().end(), Duration::from_secs(60), "{failed:?}");
        let failed = Error::from("no").followed_by(failed);
        assert_eq!(*failed.retry_wait().end(), Duration::from_secs(60), "{failed:?}");
        let limit = Duration::from_secs(600);
        assert_eq!(*failed.retry_within(limit).retry_wait().end(), limit);
    }
    assert_eq!(*Error::from("the disk is full").retry_wait().end(), Duration::MAX);
}

#[test]
fn a_lasting_conflict_is_an_error_that_is_reported_and_retried() {
    let lasting = Error::permanent(conflict()).context("writing").into_lasting_conflict();
    assert!(!lasting.is_conflict() && !lasting.is_permanent());
    assert_eq!(lasting.in_full(), "the conflict does not resolve itself: writing: stale (409 Conflict)");
    assert_eq!(lasting.event_reason(), "ConflictPersists");
    let named = Error::from(conflict()).reason("Stale").into_lasting_conflict();
    assert_eq!(named.event_reason(), "Stale");
}

#[test]
fn two_errors_are_a_conflict_only_if_both_are() {
    assert!(!Error::from(conflict()).followed_by("the disk is full".into()).is_conflict());
    assert!(!Error::from("no").followed_by(conflict().into()).is_conflict());
    assert!(Error::from(conflict()).followed_by(conflict().into()).is_conflict());
}

#[test]
fn two_errors_are_both_reported_and_retried() {
    let limit = Duration::from_secs(30);
    let first = Error::permanent("the first").reason("FirstReason").retry_within(limit);
    let both = first.followed_by("the second".into());
    assert_eq!(*both.retry_wait().end(), limit);
    assert_eq!(both.to_string(), "the first; then: the second");
    assert!(!both.is_permanent());
    assert_eq!(both.event_reason(), "FirstReason");
}
