//! The `Status` in the response to a refused request.

use bytes::Bytes;
use http::{
    HeaderValue, Response,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};

use super::{
    retry_after::retry_after,
    transport::{HttpResponse, collect_body, error_status, full_body},
};

/// Puts the wait that the headers of a refusal ask for into its `Status`, where callers of a kube client find it.
pub async fn with_retry_after_in_status(response: HttpResponse) -> kube::Result<HttpResponse> {
    let is_refused = response.status().is_client_error() || response.status().is_server_error();
    if !is_refused || retry_after(response.headers()).is_none() {
        return Ok(response);
    }
    let (mut head, body) = response.into_parts();
    let status = error_status(&head, &collect_body(body).await?);
    let body = serde_json::to_vec(&status).map_err(kube::Error::SerdeError)?;
    head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    head.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(head, full_body(Bytes::from(body))))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::header::RETRY_AFTER;
    use kube::core::Status;

    use super::*;
    use crate::client::retry_after_of_status;

    #[tokio::test]
    async fn a_refusal_has_the_wait_of_its_header_in_its_status() {
        for body in ["Too many requests, please try again later.", r#"{"message":"slow down","code":429}"#] {
            let response = Response::builder().status(429).header(RETRY_AFTER, "10");
            let response = response.body(full_body(Bytes::from_static(body.as_bytes()))).unwrap();
            let body =
                collect_body(with_retry_after_in_status(response).await.unwrap().into_body()).await.unwrap();
            let status: Status = serde_json::from_slice(&body).unwrap();
            assert_eq!(
                (status.code, retry_after_of_status(&status)),
                (429, Some(Duration::from_secs(10))),
                "{status:?}"
            );
        }
    }
}
