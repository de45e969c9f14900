//! Recording of the requests of passes.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use http::{Request, Response};
use kube::client::Body;

use super::transport::{HttpResponse, Transport, collect_body, full_body, into_kube_error};
use crate::{
    pass::CurrentPass,
    recording::{Recording, RequestSent},
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
    let response = transport.send(Request::from_parts(head, Body::from(body.to_vec()))).await;
    let (response, answer) = match response {
        Ok(response) => {
            let (response, code, body) = read(response, &uri).await?;
            (Ok(response), Ok((code, body)))
        }
        Err(error) => {
            let text = error.to_string();
            (Err(error), Err(text))
        }
    };
    recording.add(|reads| reads.add_request(RequestSent { method, uri, body, answer }));
    response
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
