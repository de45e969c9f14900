//! The paths of the console.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::Query,
    http::{StatusCode, header},
    middleware::from_fn,
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use reknit_server::HeldByResponse;
use serde_json::{Value, json};

use super::{PATH, Parameters, State, controllers, guard, informers, keys, leadership, passes, webhook};

/// A view: the JSON for these parameters, or the error of a parameter.
type View = fn(&State, &Parameters) -> Result<Value, String>;

const VIEWS: [(&str, View); 8] = [
    ("process", |state, _| Ok(process(state))),
    ("controllers", |state, _| Ok(controllers::view(state))),
    ("keys", |state, _| Ok(keys::view(state))),
    ("passes", |state, _| Ok(passes::view(state))),
    ("key", keys::one),
    ("informers", |state, _| Ok(informers::view(state))),
    ("leadership", |state, _| Ok(leadership::view(state))),
    ("webhook", |state, _| Ok(webhook::view(state))),
];

const FILES: [(&str, &str, &str); 4] = [
    ("", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("console.css", "text/css; charset=utf-8", include_str!("page/console.css")),
    ("console.js", "text/javascript; charset=utf-8", include_str!("page/console.js")),
];

pub(super) fn router(state: Arc<State>) -> Router {
    let mut router = Router::new();
    for path in ["/", PATH.trim_end_matches('/')] {
        router = router.route(path, get(async || Redirect::temporary(PATH)));
    }
    for (name, content_type, text) in FILES {
        let file = ([(header::CONTENT_TYPE, content_type)], text);
        router = router.route(&format!("{PATH}{name}"), get(file));
    }
    for (name, view) in VIEWS {
        let state = state.clone();
        let answer = async move |Query(parameters)| answer(state, view, parameters).await;
        router = router.route(&format!("{PATH}v1/{name}"), get(answer));
    }
    router.layer(from_fn(guard::guard))
}

async fn answer(state: Arc<State>, view: View, parameters: Parameters) -> Response {
    // Never fails: the semaphore is not closed.
    let permit = state.answers.clone().acquire_owned().await.ok();
    // The program's own collectors may block, a large answer takes milliseconds, and electors share the thread.
    let answer = move || view(&state, &parameters).map(|json| Json(json).into_response());
    let mut response = match tokio::task::spawn_blocking(answer).await {
        Ok(Ok(response)) => response,
        Ok(Err(why)) => (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    };
    response.extensions_mut().insert(HeldByResponse::new(permit));
    response
}

/// The process, and whether its controllers have started.
fn process(state: &State) -> Value {
    json!({
        "component": state.component,
        "version": state.version,
        "pod": state.pod,
        "running": state.running.get().is_some(),
        "views": VIEWS.map(|(name, _)| format!("{PATH}v1/{name}")),
    })
}
