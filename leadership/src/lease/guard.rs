//! A client for kube-leader-election's lock, which prevents the lock from taking a lease that another process holds.
//!
//! The lock reads a Lease, decides by the wall clock whether it has expired, and writes without a precondition. So two
//! candidates that read the same expired lease would both acquire it. The guard adds the resourceVersion that was read
//! to every update, as a precondition. It also replaces the `renewTime` that the lock reads, so that the lock decides
//! by the monotonic clock, as [`LeaseState`](super::LeaseState) does. A holder renews with one request: the lock
//! reads the answer to its last write. So it does after a refused write, which it repeats with the same precondition. And
//! a lease that the watch has reported is acquired with one request: if the watch is late, the precondition fails, and
//! the lock reads the lease from the API server.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header::CONTENT_LENGTH};
use http_body_util::{BodyExt, Full};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{Client, client::Body, core::Status};
use kube_leader_election::{LeaseLock, LeaseLockParams};
use parking_lot::Mutex;
use reknit_injection::internal::{is_absence, now};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::BoxError;

use super::{
    LeaseState, LeaseWatch,
    observed::{KnownLease, ObservedLease},
};
use crate::{config::LeaderElectionConfig, last_writes::LastWrites};

/// The part of a lock between its client and the API server.
pub(crate) struct Guard {
    client: Client,
    /// The identity of this process as a holder.
    identity: String,
    /// The name of the Lease.
    lease: String,
    watch: LeaseWatch,
    /// Metadata to add to the Lease with every write, or null.
    metadata: Value,
    last_writes: Arc<LastWrites>,
    observed: Mutex<ObservedLease>,
}

/// The error of a request that is not answered within the timeout.
#[derive(Debug, thiserror::Error)]
#[error("no complete answer from the API server within {0:?}")]
struct NoAnswer(Duration);

/// The error of a write that the API server has not stored as it was sent. Other candidates would see the lease as free
/// while this process leads.
#[derive(Debug, thiserror::Error)]
#[error(
    "the API server stored {0} instead of what was sent: an admission webhook or policy, or a proxy, changes the leases of \
     this namespace; exclude them from it"
)]
struct NotAsSent(Value);

/// The error of a 404 that does not say that the lease or its namespace does not exist.
#[derive(Debug, thiserror::Error)]
#[error("the answer with status 404 is not about the lease: does a proxy answer in place of the API server?")]
struct NotAboutLease;

type GuardResponse = Response<Full<Bytes>>;

impl Guard {
    pub(crate) fn new(
        client: Client,
        lease: &str,
        identity: &str,
        watch: LeaseWatch,
        metadata: Value,
        last_writes: Arc<LastWrites>,
    ) -> Self {
        let observed = Mutex::new(ObservedLease::new(identity));
        Self {
            client,
            identity: identity.into(),
            lease: lease.into(),
            watch,
            metadata,
            last_writes,
            observed,
        }
    }

    /// Creates a lock on the Lease in this namespace. Call this function within a tokio runtime.
    pub(crate) fn lock(self, namespace: &str, config: &LeaderElectionConfig) -> LeaseLock {
        let params = LeaseLockParams {
            lease_name: self.lease.clone(),
            holder_id: self.identity.clone(),
            lease_ttl: config.lease_duration,
        };
        // A read and a write have to fit into the renew deadline, with time left for another attempt.
        LeaseLock::new(self.guarded_client(config.renew_deadline / 3), namespace, params)
    }

    /// Creates a client for exactly one lock on one Lease, with a timeout of each request, the body of the answer
    /// included. No other code may use the client: its reads would permit the lock to overwrite a state that the lock
    /// has not read.
    fn guarded_client(self, timeout: Duration) -> Client {
        let (namespace, guard) = (self.client.default_namespace().to_owned(), Arc::new(self));
        let service = move |request| {
            let guard = guard.clone();
            async move {
                let answer = tokio::time::timeout(timeout, guard.answer(request));
                answer.await.map_err(|_| NoAnswer(timeout))?
            }
        };
        Client::new(tower::service_fn(service), namespace)
    }

    async fn answer(&self, request: Request<Body>) -> Result<GuardResponse, BoxError> {
        match *request.method() {
            Method::GET => self.read(request).await,
            Method::POST => self.create(request).await,
            Method::PATCH => self.update(request).await,
            _ => Ok(conflict_response("a lock on a lease only reads, creates and patches it")),
        }
    }

    async fn read(&self, request: Request<Body>) -> Result<GuardResponse, BoxError> {
        let watched = self.watch.is_synced().then(|| self.watch.state(&self.lease));
        let known = self.observed.lock().start_read(watched);
        match known {
            Some(KnownLease::Found(lease)) => return self.lease_response(lease, None),
            Some(KnownLease::Absent) => return Ok(self.absent_response()),
            None => {}
        }
        let answer = self.send(request).await?;
        let watched = self.watch.state(&self.lease);
        if let Some(watched) = watched.clone() {
            self.observed.lock().adopt(watched);
        }
        match answer.status() {
            StatusCode::OK => self.lease_response(serde_json::from_slice(answer.body())?, watched),
            status => {
                if status == StatusCode::NOT_FOUND {
                    self.observed.lock().record_absent(Instant::now());
                }
                Ok(answer.map(Full::new))
            }
        }
    }

    /// Records that the lease does not exist, and returns the answer of an API server.
    fn absent_response(&self) -> GuardResponse {
        self.observed.lock().record_absent(Instant::now());
        refusal(StatusCode::NOT_FOUND, "NotFound", "the watch has reported no such lease")
    }

    /// Records the lease, and returns the lease that the lock has to see.
    fn lease_response(&self, lease: Value, watched: Option<LeaseState>) -> Result<GuardResponse, BoxError> {
        let lease = self.observed.lock().record_found(lease, watched, Instant::now());
        Ok(Response::new(Full::from(serde_json::to_vec(&lease)?)))
    }

    async fn create(&self, request: Request<Body>) -> Result<GuardResponse, BoxError> {
        if !self.observed.lock().take_create_permit() {
            return Ok(conflict_response(
                "the lease was deleted, and its holder's lease duration has not passed yet",
            ));
        }
        self.write(request, None, &Value::Null).await
    }

    async fn update(&self, request: Request<Body>) -> Result<GuardResponse, BoxError> {
        let Some((version, lease)) = self.observed.lock().take_update_permit() else {
            return Ok(conflict_response("the lease was not read since it was last written"));
        };
        let answer = self.write(request, Some(version), &lease).await?;
        if answer.status() == StatusCode::TOO_MANY_REQUESTS || answer.status().is_server_error() {
            self.observed.lock().record_refusal(lease);
        }
        Ok(answer)
    }

    /// Sends a write with this resourceVersion as precondition, and records the answer if it was applied. Fails if the API
    /// server stored another holder or a shorter duration. `read` is the lease that the lock has read.
    async fn write(
        &self,
        request: Request<Body>,
        version: Option<String>,
        read: &Value,
    ) -> Result<GuardResponse, BoxError> {
        let (request, sent) = self.with_metadata(request, version.as_deref(), read).await?;
        let is_own = |lease: &Value| lease["spec"]["holderIdentity"] == self.identity;
        if is_own(&sent) && !is_own(read) {
            self.last_writes.inherit(read); // before the answer, which may be lost
        }
        let answer = self.send(request).await?;
        if answer.status().is_success()
            && let Ok(lease) = serde_json::from_slice::<Value>(answer.body())
        {
            if version.is_some() && lease["metadata"]["resourceVersion"].as_str() == version.as_deref() {
                return Ok(conflict_response("the write changed nothing, so the lease was not renewed"));
            }
            if !self.is_stored(&sent["spec"], &lease["spec"]) {
                return Err(NotAsSent(lease["spec"].clone()).into());
            }
            self.observed.lock().record_own_write(lease, Instant::now());
        }
        Ok(answer.map(Full::new))
    }

    /// Returns true if the lease names the holder that was sent, or this process after a renewal, for at least the duration
    /// that was sent.
    fn is_stored(&self, sent: &Value, stored: &Value) -> bool {
        let holder = sent["holderIdentity"].as_str().unwrap_or(&self.identity);
        let duration = |spec: &Value| spec["leaseDurationSeconds"].as_u64();
        stored["holderIdentity"].as_str().unwrap_or_default() == holder && duration(stored) >= duration(sent)
    }

    /// Adds the metadata of this lease and the current time to a write, and the resourceVersion as a precondition of a
    /// patch. Also returns the lease that is sent.
    async fn with_metadata(
        &self,
        request: Request<Body>,
        version: Option<&str>,
        read: &Value,
    ) -> Result<(Request<Body>, Value), BoxError> {
        let (mut parts, body) = request.into_parts();
        let mut lease: Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        let is_release = lease["spec"]["holderIdentity"] == "";
        let metadata = lease.pointer_mut("/metadata").and_then(Value::as_object_mut);
        let metadata = metadata.ok_or("the written lease has no metadata")?;
        if let Some(annotations) = self.last_writes.annotations(is_release, read) {
            metadata.insert("annotations".into(), annotations);
        }
        metadata.extend(self.metadata.as_object().cloned().unwrap_or_default());
        if let Some(version) = version {
            metadata.insert("resourceVersion".into(), json!(version));
        }
        let now = json!(MicroTime(now()));
        for time in ["/spec/acquireTime", "/spec/renewTime"] {
            if let Some(time) = lease.pointer_mut(time) {
                time.clone_from(&now); // the lock does not know the clock of a simulation
            }
        }
        parts.headers.remove(CONTENT_LENGTH);
        Ok((Request::from_parts(parts, Body::from(serde_json::to_vec(&lease)?)), lease))
    }

    /// Sends the request, and returns the whole answer.
    async fn send(&self, request: Request<Body>) -> Result<Response<Bytes>, BoxError> {
        let (parts, body) = self.client.send(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        match parts.status == StatusCode::NOT_FOUND && !shows_absence(&body) {
            true => Err(NotAboutLease.into()),
            false => Ok(Response::from_parts(parts, body)),
        }
    }
}

/// Returns true if the body of a 404 is that of an API server about an object.
fn shows_absence(body: &[u8]) -> bool {
    let status = serde_json::from_slice::<Status>(body).map(|status| kube::Error::Api(status.boxed()));
    status.is_ok_and(|error| is_absence(&error))
}

/// A conflict like those of the API server, after which the lock reads the lease again.
fn conflict_response(message: &str) -> GuardResponse {
    refusal(StatusCode::CONFLICT, "Conflict", message)
}

fn refusal(code: StatusCode, reason: &str, message: &str) -> GuardResponse {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16()});
    let mut answer = Response::new(Full::from(status.to_string()));
    *answer.status_mut() = code;
    answer
}

#[cfg(test)]
mod tests {
    use kube::Api;
    use kube_leader_election::LeaseLockResult;
    use reknit_injection::internal::{Seeded, within};

    use super::*;
    use crate::fake::{FakeApi, Fault};

    const TIMEOUT: Duration = Duration::from_secs(3);

    fn guard(api: &FakeApi, identity: &str) -> Guard {
        Guard::new(api.client(), "lease", identity, LeaseWatch::default(), Value::Null, Arc::default())
    }

    fn guarded_client(api: &FakeApi, identity: &str) -> Client {
        guard(api, identity).guarded_client(TIMEOUT)
    }

    fn lock(api: &FakeApi, identity: &str) -> LeaseLock {
        let config = LeaderElectionConfig {
            lease_duration: Duration::from_secs(15),
            renew_deadline: TIMEOUT * 3,
            ..Default::default()
        };
        guard(api, identity).lock("ns", &config)
    }

    async fn acquires(lock: &LeaseLock) -> bool {
        matches!(lock.try_acquire_or_renew().await, Ok(LeaseLockResult::Acquired(_)))
    }

    fn held_by(holder: &str) -> Value {
        json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 1,
            "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z"})
    }

    #[tokio::test(start_paused = true)]
    async fn every_patch_has_the_version_that_was_read_as_a_precondition() {
        let api = FakeApi::default();
        api.put_lease("lease", held_by("me"));
        let lock = lock(&api, "me");
        assert!(acquires(&lock).await);
        assert!(acquires(&lock).await);
        let versions: Vec<_> = api
            .requests(&Method::PATCH)
            .iter()
            .map(|patch| patch["metadata"]["resourceVersion"].clone())
            .collect();
        assert_eq!(versions, [json!("1"), json!("1001")]);
    }

    #[test]
    fn the_times_of_a_written_lease_are_those_of_the_simulation() {
        let api = FakeApi::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let acquired = async { acquires(&lock(&api, "me")).await };
        assert!(within(&Seeded::environment(1), || runtime.block_on(acquired)));
        let spec = &api.requests(&Method::POST)[0]["spec"];
        let epoch = json!("1970-01-01T00:00:00.000000Z");
        assert_eq!((&spec["acquireTime"], &spec["renewTime"]), (&epoch, &epoch));
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_renew_time_alone_does_not_expire_a_lease() {
        let api = FakeApi::default();
        api.put_lease("lease", held_by("other"));
        let lock = lock(&api, "me");
        assert!(!acquires(&lock).await);
        tokio::time::advance(Duration::from_secs(15)).await;
        assert!(!acquires(&lock).await);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(acquires(&lock).await);
        assert_eq!(api.spec("lease")["leaseTransitions"], 2);
    }

    /// Other candidates would see the lease as free while this process leads.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_not_stored_as_it_was_sent_is_not_acquired() {
        for stored in [
            json!({"holderIdentity": "me", "leaseDurationSeconds": 14}),
            json!({"holderIdentity": "me"}),
            json!({"holderIdentity": "another", "leaseDurationSeconds": 15}),
            Value::Null,
        ] {
            let api = FakeApi::default();
            api.store_as(stored.clone());
            let result = lock(&api, "me").try_acquire_or_renew().await;
            let error = crate::lease::LeaseError::from(result.unwrap_err()).to_string();
            assert!(error.contains("instead of what was sent"), "{stored}: {error}");
        }
        let api = FakeApi::default();
        api.store_as(json!({"holderIdentity": "me", "leaseDurationSeconds": 60}));
        assert!(acquires(&lock(&api, "me")).await, "a longer duration is safe");
    }

    #[tokio::test(start_paused = true)]
    async fn a_vacant_lease_is_acquired_at_once() {
        let mut without_duration = held_by("other");
        without_duration["leaseTransitions"] = json!(i32::MAX);
        without_duration["leaseDurationSeconds"] = Value::Null;
        for spec in [Value::Null, json!({}), json!({"holderIdentity": ""}), without_duration] {
            let api = FakeApi::default();
            api.put_lease("lease", spec.clone());
            assert!(acquires(&lock(&api, "me")).await, "{spec}");
            assert_eq!(api.holder("lease"), "me");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn two_candidates_that_read_the_same_vacant_lease_do_not_both_acquire_it() {
        let api = FakeApi::default();
        api.put_lease("lease", json!({}));
        api.inject_fault(Method::PATCH, Fault::Late(Duration::from_secs(1)));
        let (slow, quick) = (lock(&api, "slow"), lock(&api, "quick"));
        let (slow, quick) = tokio::join!(slow.try_acquire_or_renew(), async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            quick.try_acquire_or_renew().await
        });
        assert!(matches!(quick, Ok(LeaseLockResult::Acquired(_))), "{quick:?}");
        assert!(slow.is_err(), "{slow:?}");
        assert_eq!(api.holder("lease"), "quick");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_without_a_read_is_refused_and_not_sent() {
        let api = FakeApi::default();
        api.put_lease("lease", held_by("me"));
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(guarded_client(&api, "me"), "ns");
        let patch =
            kube::api::Patch::Merge(json!({"metadata": {"name": "lease"}, "spec": {"leaseTransitions": 9}}));
        let result = leases.patch("lease", &Default::default(), &patch).await;
        assert!(matches!(&result, Err(kube::Error::Api(status)) if status.code == 409), "{result:?}");
        assert!(api.requests(&Method::PATCH).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_read_revokes_the_permit_of_an_earlier_read() {
        let api = FakeApi::default();
        api.put_lease("lease", held_by("me"));
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(guarded_client(&api, "me"), "ns");
        leases.get("lease").await.unwrap();
        api.inject_fault(Method::GET, Fault::Refused(503));
        leases.get("lease").await.unwrap_err();
        let patch =
            kube::api::Patch::Merge(json!({"metadata": {"name": "lease"}, "spec": {"leaseTransitions": 9}}));
        leases.patch("lease", &Default::default(), &patch).await.unwrap_err();
        assert!(api.requests(&Method::PATCH).is_empty());
    }

    /// It may come from a proxy whose API server is gone. A process that took the lease for absent would not release it.
    #[tokio::test(start_paused = true)]
    async fn a_404_that_is_not_about_the_lease_does_not_show_that_it_is_absent() {
        let api = FakeApi::default();
        api.put_lease("lease", held_by("me"));
        let lock = lock(&api, "me");
        for attempt in ["release", "acquire"] {
            api.inject_fault(Method::GET, Fault::Refused(404));
            let error = match attempt {
                "release" => lock.step_down().await.unwrap_err(),
                _ => lock.try_acquire_or_renew().await.unwrap_err(),
            };
            let error = crate::lease::LeaseError::from(error).to_string();
            assert!(error.contains("not about the lease"), "{attempt}: {error}");
        }
        assert!(api.requests(&Method::POST).is_empty());
        lock.step_down().await.unwrap();
        assert_eq!(api.holder("lease"), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_or_incomplete_answer_times_out() {
        for fault in [Fault::AnswerLost, Fault::BodyLost] {
            let api = FakeApi::default();
            api.put_lease("lease", held_by("me"));
            api.inject_fault(Method::PATCH, fault);
            let lock = lock(&api, "me");
            let start = Instant::now();
            let error = lock.try_acquire_or_renew().await.unwrap_err().to_string();
            assert!(error.contains("no complete answer"), "{error}");
            assert_eq!(start.elapsed(), TIMEOUT);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rewritten_answer_has_no_content_length() {
        let api = FakeApi::default();
        api.put_lease("lease", json!({}));
        let request = || Request::get("/apis/coordination.k8s.io/v1/namespaces/ns/leases/lease");
        let unguarded = api.client().send(request().body(Body::empty()).unwrap()).await.unwrap();
        assert!(unguarded.headers().contains_key(CONTENT_LENGTH));
        let client = guarded_client(&api, "me");
        let guarded = client.send(request().body(Body::empty()).unwrap()).await.unwrap();
        assert!(!guarded.headers().contains_key(CONTENT_LENGTH));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_changed_nothing_does_not_count_as_a_renewal() {
        let api = FakeApi::default();
        api.put_lease("lease", held_by("me"));
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(guarded_client(&api, "me"), "ns");
        leases.get("lease").await.unwrap();
        let patch =
            kube::api::Patch::Merge(json!({"metadata": {"name": "lease"}, "spec": {"leaseTransitions": 1}}));
        let result = leases.patch("lease", &Default::default(), &patch).await;
        assert!(matches!(&result, Err(kube::Error::Api(status)) if status.code == 409), "{result:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_lease_is_created_after_its_holders_lease_duration() {
        let api = FakeApi::default();
        api.put_lease("lease", held_by("other"));
        let lock = lock(&api, "me");
        assert!(!acquires(&lock).await);
        api.delete_lease("lease");
        assert!(!acquires(&lock).await);
        assert!(api.requests(&Method::POST).is_empty());
        tokio::time::advance(Duration::from_secs(16)).await;
        assert!(acquires(&lock).await);
    }
}
