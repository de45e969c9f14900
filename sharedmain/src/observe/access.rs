//! Decides who may read the metrics: clients whose bearer token passes a TokenReview, and whose user may `get` the path by
//! a SubjectAccessReview, as in kubebuilder's projects.
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
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use reknit_injection::internal::LogLimit;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

/// The time for which an answer of the API server is used again.
const VALIDITY: Duration = Duration::from_secs(60);
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
        if let Some(status) = self.remembered(hash) {
            return status;
        }
        let Ok(permit) = self.reviews.clone().acquire_owned().await else {
            return StatusCode::SERVICE_UNAVAILABLE;
        };
        // Another request with the token may have been answered meanwhile.
        if let Some(status) = self.remembered(hash) {
            return status;
        }
        let (token, path) = (token.to_owned(), path.to_owned());
        // In a task of its own, since a client that closes its connection would end the pause too.
        let review = tokio::spawn(async move {
            let status = self.answer(&token, &path, hash).await;
            let requests = if status == StatusCode::FORBIDDEN { 2 } else { 1 };
            if status != StatusCode::OK {
                sleep(REFUSAL_PAUSE * requests).await;
            }
            drop(permit);
            status
        });
        review.await.unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
    }

    /// Asks the API server, and remembers the answer.
    async fn answer(&self, token: &str, path: &str, hash: [u64; 2]) -> StatusCode {
        let timed_out = |_| Err(kube::Error::Service("the API server did not answer in time".into()));
        match timeout(TIMEOUT, self.review(token, path)).await.unwrap_or_else(timed_out) {
            Ok(status) => {
                self.remember(Answer { token: hash, status, since: Instant::now() });
                status
            }
            Err(error) => {
                if self.failures.lock().allows(&()) {
                    tracing::warn!(
                        error = error.to_string(),
                        "cannot check who reads the metrics: the service account needs `create` on tokenreviews and \
                         subjectaccessreviews; this warning is repeated once a minute"
                    );
                }
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// Remembers an answer. A refusal makes room, before any acceptance: else a client with many tokens would have the
    /// token of the scraper forgotten.
    fn remember(&self, answer: Answer) {
        let mut answers = self.answers.lock();
        if answers.len() >= MAX_ANSWERS {
            let refused = answers.iter().position(|answer| answer.status != StatusCode::OK);
            answers.remove(refused.unwrap_or(0));
        }
        answers.push(answer);
    }

    fn remembered(&self, token: [u64; 2]) -> Option<StatusCode> {
        let mut answers = self.answers.lock();
        answers.retain(|answer| answer.since.elapsed() < VALIDITY);
        answers.iter().find(|answer| answer.token == token).map(|answer| answer.status)
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
}
