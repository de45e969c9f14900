//! Recording of the requests of passes.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use http::{Request, Response};
use kube::client::Body;

use super::transport::{HttpResponse, Transport, collect_body, full_body, into_kube_error};
use crate::{
    pass::CurrentPass,
    recording::{Reads, Recording, RequestSent},
};

/// Wraps a transport so that the requests of a recorded pass are added to its recording.
pub(crate) fn record_exchanges(transport: &Transport) -> Transport {
    let inner = transport.clone();
    transport.with_send(move |request| {
        let inner = inner.clone();
        // The pass is known only to the task that awaits the response: a kube client calls this function in another.
        async move {
            match CurrentPass::recording() {
                Some(recording) => send(&inner, request, &recording).await,
                None => inner.send(request).await,
            }
        }
        .boxed()
    })
}

async fn send(
    transport: &Transport,
    request: Request<Body>,
    recording: &Arc<Recording>,
) -> kube::Result<HttpResponse> {
    let (head, body) = request.into_parts();
    let body = body.collect_bytes().await.map_err(|error| into_kube_error(error.into()))?;
    let (method, uri) = (head.method.to_string(), head.uri.to_string());
    recording.add(Reads::begin_request);
    let mut in_flight = InFlight { recording, request: Some((method, uri.clone(), body.clone())) };
    let response = transport.send(Request::from_parts(head, Body::from(body.to_vec()))).await;
    let response = match response {
        Ok(response) => read(response, &uri).await.map(|(response, code, body)| (response, (code, body))),
        Err(error) => Err(error),
    };
    let (response, answer) = match response {
        Ok((response, answer)) => (Ok(response), Ok(answer)),
        Err(error) => {
            let text = error.to_string();
            (Err(error), Err(text))
        }
    };
    in_flight.end(answer, Reads::add_request);
    response
}

/// A request without an answer. If it is dropped, the pass has given it up or is dropped itself. In the second case, it may be
/// the request on which the pass hung.
struct InFlight<'a> {
    recording: &'a Arc<Recording>,
    /// The method, the URI and the body; `None` once the request is recorded.
    request: Option<(String, String, Bytes)>,
}

impl InFlight<'_> {
    /// Adds the request with its answer to the recording, unless it has been added.
    fn end(&mut self, answer: Result<(u16, Bytes), String>, add: fn(&mut Reads, RequestSent)) {
        if let Some((method, uri, body)) = self.request.take() {
            let is_given_up = false;
            self.recording.add(|reads| add(reads, RequestSent { method, uri, body, answer, is_given_up }));
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.end(Err("the pass was dropped before the answer".into()), Reads::add_dropped);
    }
}

/// Reads the body of a response, unless it is a stream.
async fn read(response: HttpResponse, uri: &str) -> kube::Result<(HttpResponse, u16, Bytes)> {
    let code = response.status().as_u16();
    let is_json = response
        .headers()
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|content_type| content_type.as_bytes().starts_with(b"application/json"));
    if !is_json || uri.contains("watch=") {
        return Ok((response, code, Bytes::new()));
    }
    let (head, body) = response.into_parts();
    let body = collect_body(body).await?;
    Ok((Response::from_parts(head, full_body(body.clone())), code, body))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use kube::Client;
    use reknit_apis::Key;
    use tower::BoxError;

    use super::*;

    #[tokio::test]
    async fn a_request_of_a_dropped_pass_is_recorded_without_an_answer() {
        let hanging = |_: Request<Body>| pending::<Result<Response<Body>, BoxError>>();
        let transport = record_exchanges(&Client::new(tower::service_fn(hanging), "default").into());
        let recording = Arc::<Recording>::default();
        let pass = CurrentPass::begin(&"test".into(), &Key::new(None, "shop").into(), true);
        pass.record(&recording);
        let request = Request::get("/api/v1/namespaces/shop").body(Body::empty()).unwrap();
        let sent = pass.scope(async move { transport.send(request).await }).now_or_never();
        assert!(sent.is_none());
        let recorded = format!("{recording:?}");
        let (uri, answer) = ("/api/v1/namespaces/shop", "the pass was dropped before the answer");
        assert!(recorded.contains(uri) && recorded.contains(answer), "{recorded}");
    }
}
