//! Decides who may read the metrics: clients whose bearer token passes a TokenReview, and whose user may `get` the path by
//! a SubjectAccessReview, as in kubebuilder's projects.
//!
//! The metrics have to report an API server that gives no answers. So a client that it accepted within the last hour goes on
//! reading until it answers about that client again.
use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use futures::FutureExt;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use reknit_injection::internal::LogLimit;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout},
};

use crate::client::error::root_cause;

/// The time for which an answer of the API server is used again.
const VALIDITY: Duration = Duration::from_secs(60);
/// The time after which an acceptance is forgotten, if the API server has given no answer about the client since.
const MAX_AGE: Duration = Duration::from_secs(3_600);
/// The time between two reviews of an accepted client without an answer to the first one.
const REVIEW_INTERVAL: Duration = Duration::from_secs(30);
/// The time for which an accepted client waits for an answer. A scrape may take ten seconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// The maximum number of remembered answers. Any client can send tokens, but few are accepted.
const MAX_ANSWERS: usize = 64;
/// The number of reviews that are sent at once: any client can cause them.
const MAX_REVIEWS: usize = 4;
/// The time for which a client that is refused takes the place of another review, for each request to the API server that it
/// has caused. It limits them to 40 a second.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(10);

/// Requires that the clients of these routes may read them. Other paths are not found, without a review: many accounts may
/// `get` paths of the API server, and an answer for each path would displace those for the metrics.
pub(crate) fn require_access(router: Router, client: Client) -> Router {
    let access = Access {
        client,
        answers: Mutex::default(),
        hashers: [RandomState::new(), RandomState::new()],
        reviews: Arc::new(Semaphore::new(MAX_REVIEWS)),
        failures: Mutex::default(),
    };
    router.route_layer(from_fn_with_state(Arc::new(access), check))
}

struct Access {
    client: Client,
    answers: Mutex<Vec<Answer>>,
    hashers: [RandomState; 2],
    reviews: Arc<Semaphore>,
    failures: Mutex<LogLimit>,
}

/// The remembered status for a token, of which only a hash is kept.
struct Answer {
    token: [u64; 2],
    status: StatusCode,
    since: Instant,
    /// The time of the last review.
    reviewed: Instant,
}

impl Answer {
    fn is_valid(&self) -> bool {
        self.since.elapsed() < VALIDITY
    }

    fn is_kept(&self) -> bool {
        self.is_valid() || self.is_acceptance() && self.since.elapsed() < MAX_AGE
    }

    fn is_acceptance(&self) -> bool {
        self.status == StatusCode::OK
    }
}

/// The meaning of the last answer about a client for its next request.
enum Remembered {
    Status(StatusCode),
    /// The API server accepted the client, and is to be asked again.
    ReviewDue,
}

async fn check(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let status = match bearer_token(request.headers()) {
        Some(token) => access.status(token, request.uri().path()).await,
        None => StatusCode::UNAUTHORIZED,
    };
    match status {
        StatusCode::OK => next.run(request).await,
        refusal => (refusal, format!("{refusal}\n")).into_response(),
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

impl Access {
    /// The status for a client with this token: 200, 401 or 403, or 503 if the API server gives no answer.
    async fn status(self: Arc<Self>, token: &str, path: &str) -> StatusCode {
        let hash = self.hashers.each_ref().map(|hasher| hasher.hash_one((token, path)));
        match self.remembered(hash) {
            Some(Remembered::Status(status)) => return status,
            // Takes no permit: other clients can keep all of them, and there is one such review in half a minute.
            Some(Remembered::ReviewDue) => {
                let review = self.clone().spawn_review(token, path, hash, None);
                return timeout(PATIENCE, review).await.unwrap_or_else(|_| self.status_without_answer(hash));
            }
            None => {}
        }
        let Ok(permit) = self.reviews.clone().acquire_owned().await else {
            return StatusCode::SERVICE_UNAVAILABLE;
        };
        // Another request with the token may have been answered meanwhile.
        if let Some(Remembered::Status(status)) = self.remembered(hash) {
            return status;
        }
        self.spawn_review(token, path, hash, Some(permit)).await
    }

    /// Reviews the client in a task of its own: a client that closes its connection ends neither the review nor the pause
    /// after a refusal. Returns the status for the client.
    fn spawn_review(
        self: Arc<Self>,
        token: &str,
        path: &str,
        hash: [u64; 2],
        permit: Option<OwnedSemaphorePermit>,
    ) -> impl Future<Output = StatusCode> + use<> {
        let (token, path) = (token.to_owned(), path.to_owned());
        let review = tokio::spawn(async move {
            let status = self.answer(&token, &path, hash).await;
            let requests = if status == StatusCode::FORBIDDEN { 2 } else { 1 };
            if status != StatusCode::OK {
                sleep(REFUSAL_PAUSE * requests).await;
            }
            drop(permit);
            status
        });
        review.map(|status| status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE))
    }

    /// Asks the API server, and remembers the answer. Without one, the last acceptance counts.
    async fn answer(&self, token: &str, path: &str, hash: [u64; 2]) -> StatusCode {
        let timed_out = |_| Err(kube::Error::Service("the API server did not answer in time".into()));
        match timeout(TIMEOUT, self.review(token, path)).await.unwrap_or_else(timed_out) {
            Ok(status) => {
                self.remember(hash, status);
                status
            }
            Err(error) => {
                if self.failures.lock().allows(&()) {
                    warn_of_failure(&error);
                }
                self.status_without_answer(hash)
            }
        }
    }

    /// The status for a client while the API server gives no answer: that of its last one.
    fn status_without_answer(&self, hash: [u64; 2]) -> StatusCode {
        match self.remembered(hash) {
            Some(Remembered::Status(status)) => status,
            Some(Remembered::ReviewDue) => StatusCode::OK,
            None => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Remembers an answer in place of the last one. A refusal makes room, before any acceptance: else a client with many
    /// tokens would have the token of the scraper forgotten.
    fn remember(&self, token: [u64; 2], status: StatusCode) {
        let (mut answers, now) = (self.answers.lock(), Instant::now());
        answers.retain(|answer| answer.token != token);
        if answers.len() >= MAX_ANSWERS {
            let refused = answers.iter().position(|answer| !answer.is_acceptance());
            answers.remove(refused.unwrap_or(0));
        }
        answers.push(Answer { token, status, since: now, reviewed: now });
    }

    /// Returns what is remembered of a token. A review that is due counts as begun.
    fn remembered(&self, token: [u64; 2]) -> Option<Remembered> {
        let mut answers = self.answers.lock();
        answers.retain(Answer::is_kept);
        let answer = answers.iter_mut().find(|answer| answer.token == token)?;
        if answer.is_valid() || answer.reviewed.elapsed() < REVIEW_INTERVAL {
            return Some(Remembered::Status(answer.status));
        }
        answer.reviewed = Instant::now();
        Some(Remembered::ReviewDue)
    }

    async fn review(&self, token: &str, path: &str) -> kube::Result<StatusCode> {
        #[expect(clippy::useless_conversion, reason = "the token is optional in older versions of the type")]
        let spec = TokenReviewSpec { token: token.to_owned().into(), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviewed = Api::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let status = reviewed.status.unwrap_or_default();
        let Some(UserInfo { username, groups, uid, extra }) =
            status.user.filter(|_| status.authenticated == Some(true))
        else {
            return Ok(StatusCode::UNAUTHORIZED);
        };
        let attributes = NonResourceAttributes { path: Some(path.into()), verb: Some("get".into()) };
        let spec = SubjectAccessReviewSpec {
            user: username,
            groups,
            uid,
            extra,
            non_resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviewed: SubjectAccessReview =
            Api::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let is_allowed = reviewed.status.is_some_and(|status| status.allowed);
        Ok(if is_allowed { StatusCode::OK } else { StatusCode::FORBIDDEN })
    }
}

/// Logs why the API server gave no answer about a client. 403 is an answer about the account of this process.
fn warn_of_failure(error: &kube::Error) {
    let advice = match error {
        kube::Error::Api(status) if status.code == 403 => {
            "the service account needs `create` on tokenreviews and subjectaccessreviews"
        }
        _ => "the API server gives no answer; clients that it accepted within the last hour go on reading",
    };
    tracing::warn!(
        error = root_cause(error),
        "cannot check who reads the metrics: {advice}; this warning is repeated once a minute"
    );
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use axum::{body::Body, routing::get};
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;

    /// The answers of the API server to reviews of the token `reader`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Answers {
        Accept,
        Refuse,
        /// It accepts the client after this time.
        Late(Duration),
        Fail(u16),
        Never,
    }

    /// Metrics behind an API server that answers as the mutex says, and the number of reviews.
    fn metrics_behind(answers: &Arc<Mutex<Answers>>) -> (Router, Arc<AtomicUsize>) {
        let (accepting, _) = api_server();
        let (answers, reviews) = (answers.clone(), Arc::new(AtomicUsize::new(0)));
        let count = reviews.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            let (accepting, answers) = (accepting.clone(), *answers.lock());
            async move {
                match answers {
                    Answers::Accept => {}
                    Answers::Refuse => {
                        return Ok(answer(201, json!({"spec": {}, "status": {"authenticated": false}})));
                    }
                    Answers::Late(delay) => sleep(delay).await,
                    Answers::Fail(code) => return Ok(answer(code, json!({}))),
                    Answers::Never => std::future::pending().await,
                }
                let answered = accepting.send(request).await.unwrap();
                Ok::<_, Infallible>(answered.map(Body::new))
            }
        });
        let client = Client::new(service, "default");
        (require_access(Router::new().route("/metrics", get(async || "values")), client), reviews)
    }

    /// A client of an API server that knows the tokens `reader`, which may read metrics, and `other`, which may not. Also
    /// returns the number of reviews.
    fn api_server() -> (Client, Arc<AtomicUsize>) {
        let reviews = Arc::new(AtomicUsize::new(0));
        let count = reviews.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let mut review: Value = serde_json::from_slice(&body).unwrap();
                review["status"] = match &review["spec"] {
                    spec if spec["token"] == "broken" => return Ok(answer(500, json!({}))),
                    spec if spec["token"].as_str().is_some_and(|token| token.starts_with("unknown")) => {
                        json!({"authenticated": false, "user": {"username": "reader", "groups": ["a"]}})
                    }
                    spec if spec["token"].is_string() => {
                        json!({"authenticated": true, "user": {"username": spec["token"], "groups": ["a"]}})
                    }
                    spec => {
                        let wanted = json!({"path": "/metrics", "verb": "get"});
                        assert_eq!(
                            (&spec["nonResourceAttributes"], &spec["groups"]),
                            (&wanted, &json!(["a"]))
                        );
                        json!({"allowed": spec["user"] == "reader"})
                    }
                };
                Ok::<_, Infallible>(answer(201, review))
            }
        });
        (Client::new(service, "default"), reviews)
    }

    fn answer(code: u16, body: Value) -> http::Response<Body> {
        http::Response::builder().status(code).body(Body::from(body.to_string())).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn only_users_who_may_get_the_path_read_it_and_each_is_reviewed_once_a_minute() {
        let (client, reviews) = api_server();
        let router = require_access(Router::new().route("/metrics", get(async || "values")), client);
        let read = async |authorization: &str| {
            let request = Request::get("/metrics").header(header::AUTHORIZATION, authorization);
            router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status().as_u16()
        };
        for (authorization, status) in [
            ("Bearer reader", 200),
            ("bearer  reader", 200),
            ("Bearer other", 403),
            ("Bearer unknown", 401),
            ("Bearer broken", 503),
            ("Bearer ", 401),
            ("Basic reader", 401),
        ] {
            assert_eq!(read(authorization).await, status, "{authorization}");
        }
        let before = reviews.load(Ordering::Relaxed);
        assert_eq!((read("Bearer reader").await, reviews.load(Ordering::Relaxed)), (200, before));
        tokio::time::advance(VALIDITY).await;
        assert_eq!((read("Bearer reader").await, reviews.load(Ordering::Relaxed)), (200, before + 2));
    }

    fn request(token: &str) -> Request {
        let authorization = format!("Bearer {token}");
        Request::get("/metrics").header(header::AUTHORIZATION, authorization).body(Body::empty()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn many_unknown_tokens_neither_displace_an_accepted_one_nor_flood_the_api_server() {
        let (client, reviews) = api_server();
        let router = require_access(Router::new().route("/metrics", get(async || "values")), client);
        let read = async |token: &str| router.clone().oneshot(request(token)).await.unwrap().status();
        assert_eq!(read("reader").await, StatusCode::OK);
        let start = Instant::now();
        let strangers = (0..400).map(|number| router.clone().oneshot(request(&format!("unknown-{number}"))));
        futures::future::join_all(strangers).await;
        assert!(start.elapsed() >= Duration::from_secs(10), "40 a second: {:?}", start.elapsed());
        let before = reviews.load(Ordering::Relaxed);
        assert_eq!((read("reader").await, reviews.load(Ordering::Relaxed)), (StatusCode::OK, before));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_closes_its_connection_or_asks_for_unknown_paths_floods_no_more_than_others() {
        let (client, reviews) = api_server();
        let router = require_access(Router::new().route("/metrics", get(async || "values")), client);
        for number in 0..200 {
            let unknown =
                Request::get(format!("/api/{number}")).header(header::AUTHORIZATION, "Bearer reader");
            let unknown = router.clone().oneshot(unknown.body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
        }
        assert_eq!(reviews.load(Ordering::Relaxed), 0);
        let start = Instant::now();
        for number in 0..400 {
            let stranger = router.clone().oneshot(request(&format!("unknown-{number}")));
            let _ = timeout(Duration::from_millis(5), stranger).await;
        }
        let (reviews, seconds) = (reviews.load(Ordering::Relaxed), start.elapsed().as_secs_f64());
        assert!(seconds > 1.0 && reviews as f64 <= 40.0 * seconds + 4.0, "{reviews} in {seconds} s");
    }

    #[tokio::test(start_paused = true)]
    async fn an_accepted_client_reads_for_an_hour_while_the_api_server_gives_no_answer() {
        let answers = Arc::new(Mutex::new(Answers::Accept));
        for silence in [Answers::Never, Answers::Fail(403), Answers::Fail(429), Answers::Fail(500)] {
            let (router, reviews) = metrics_behind(&answers);
            let read = async |token: &str| {
                let start = Instant::now();
                let status = router.clone().oneshot(request(token)).await.unwrap().status();
                (status.as_u16(), start.elapsed())
            };
            assert_eq!(read("reader").await.0, 200);
            *answers.lock() = silence;
            let (accepted, before) = (Instant::now(), reviews.load(Ordering::Relaxed));
            tokio::time::advance(VALIDITY).await;
            while accepted.elapsed() < Duration::from_secs(3_500) {
                let (status, took) = read("reader").await;
                assert!(status == 200 && took <= PATIENCE, "{silence:?}: {status} after {took:?}");
                sleep(Duration::from_secs(15)).await;
            }
            let asked = reviews.load(Ordering::Relaxed) - before;
            assert!((80..=116).contains(&asked), "{silence:?}: {asked} reviews");
            assert_eq!(read("unknown").await.0, 503, "{silence:?}");
            tokio::time::advance(MAX_AGE - accepted.elapsed()).await;
            assert_eq!(read("reader").await.0, 503, "{silence:?}");
            *answers.lock() = Answers::Accept;
            assert_eq!(read("reader").await.0, 200, "{silence:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_about_an_accepted_client_counts_at_once_also_if_it_is_late() {
        let answers = Arc::new(Mutex::new(Answers::Accept));
        let (router, reviews) = metrics_behind(&answers);
        let read = async || router.clone().oneshot(request("reader")).await.unwrap().status().as_u16();
        assert_eq!(read().await, 200);
        tokio::time::advance(VALIDITY).await;
        *answers.lock() = Answers::Late(PATIENCE);
        let (start, before) = (Instant::now(), reviews.load(Ordering::Relaxed));
        assert_eq!((read().await, start.elapsed()), (200, PATIENCE));
        sleep(PATIENCE * 2).await;
        tokio::time::advance(REVIEW_INTERVAL).await;
        assert_eq!((read().await, reviews.load(Ordering::Relaxed)), (200, before + 2), "the answer is used");
        tokio::time::advance(VALIDITY).await;
        *answers.lock() = Answers::Refuse;
        assert_eq!(read().await, 401);
        *answers.lock() = Answers::Never;
        assert_eq!(read().await, 401);
        tokio::time::advance(VALIDITY).await;
        assert_eq!(read().await, 503, "a refused client is a stranger");
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_do_not_keep_an_accepted_client_waiting_while_the_api_server_gives_no_answer() {
        let answers = Arc::new(Mutex::new(Answers::Accept));
        let (router, _) = metrics_behind(&answers);
        let read = |token: &str| router.clone().oneshot(request(token));
        assert_eq!(read("reader").await.unwrap().status(), 200);
        *answers.lock() = Answers::Never;
        tokio::time::advance(VALIDITY).await;
        let strangers: Vec<_> =
            (0..100).map(|number| tokio::spawn(read(&format!("unknown-{number}")))).collect();
        tokio::task::yield_now().await;
        let start = Instant::now();
        assert_eq!((read("reader").await.unwrap().status().as_u16(), start.elapsed()), (200, PATIENCE));
        assert!(strangers.iter().all(|stranger| !stranger.is_finished()));
    }
}
