//! Replaces the bytes of JSON responses that are not UTF-8.
//!
//! A user who may write an object of a built-in Kind can put such bytes into its `managedFields`, which the API server stores
//! and returns as they are. JSON is UTF-8, so one such object would make each list of its Kind unreadable. Go reads U+FFFD
//! instead, and so does this module, for each sequence that is no character.

use std::{
    mem,
    pin::Pin,
    str,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use kube::client::DynBody;
use tower::BoxError;

use super::HttpResponse;

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Makes the body of a response UTF-8 if it is JSON. Others, such as the logs of a Pod, stay as they are.
pub(super) fn with_utf8(response: HttpResponse) -> HttpResponse {
    match is_json(response.headers()) {
        true => response.map(|inner| Box::new(Utf8Body { inner, held: Vec::new() }) as Box<DynBody>),
        false => response,
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|media_type| media_type.as_bytes().starts_with(b"application/json"))
}

struct Utf8Body {
    inner: Box<DynBody>,
    /// The begin of a character whose other bytes come with the next frame.
    held: Vec<u8>,
}

impl Utf8Body {
    fn decode(&mut self, data: Bytes) -> Bytes {
        // Nearly all text is ASCII, which takes a fraction of the instructions to find out.
        if self.held.is_empty() && (data.is_ascii() || str::from_utf8(&data).is_ok()) {
            return data;
        }
        let mut bytes = mem::take(&mut self.held);
        bytes.extend_from_slice(&data);
        let (mut text, mut rest) = (Vec::with_capacity(bytes.len()), &*bytes);
        while let Err(error) = str::from_utf8(rest) {
            let (valid, invalid) = rest.split_at(error.valid_up_to());
            text.extend_from_slice(valid);
            let Some(length) = error.error_len() else {
                self.held = invalid.to_vec();
                return text.into();
            };
            text.extend_from_slice(REPLACEMENT);
            rest = &invalid[length..];
        }
        text.extend_from_slice(rest);
        text.into()
    }
}

impl Body for Utf8Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            Some(Ok(frame)) => Some(Ok(match frame.into_data() {
                Ok(data) => Frame::data(self.decode(data)),
                Err(trailers) => trailers,
            })),
            None if !mem::take(&mut self.held).is_empty() => {
                Some(Ok(Frame::data(Bytes::from_static(REPLACEMENT))))
            }
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http::Response;
    use http_body_util::StreamBody;

    use super::*;
    use crate::client::collect_body;

    async fn read(media_type: &str, frames: &[&'static [u8]]) -> Vec<u8> {
        let frames: Vec<_> =
            frames.iter().map(|frame| Ok::<_, BoxError>(Frame::data(Bytes::from_static(frame)))).collect();
        let body: Box<DynBody> = Box::new(StreamBody::new(stream::iter(frames)));
        let response = Response::builder().header(CONTENT_TYPE, media_type).body(body).unwrap();
        collect_body(with_utf8(response).into_body()).await.unwrap().to_vec()
    }

    #[tokio::test]
    async fn bytes_of_json_that_are_not_utf8_are_replaced_and_characters_may_be_cut_by_frames() {
        for (frames, expected) in [
            (&[b"{\"f:\xff\":".as_slice(), b"1}"][..], "{\"f:\u{fffd}\":1}"),
            (&[b"\"\xc3", b"\xa4\xe2\x82", b"\xac\""], "\"\u{e4}\u{20ac}\""),
            (&[b"\"\xe2", b"\"", b"\xf0\x9f"], "\"\u{fffd}\"\u{fffd}"),
        ] {
            assert_eq!(read("application/json;stream=watch", frames).await, expected.as_bytes());
            let whole = frames.concat();
            assert_eq!(read("text/plain", frames).await, whole);
        }
    }
}
