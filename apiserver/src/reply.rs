//! Replies to requests, and the bodies of their HTTP responses.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Response,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use tokio::time::{Instant, Interval, Sleep, interval_at, sleep};

use crate::{response, watch::Watch};

/// The time between two bookmarks, as on the real API server.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);

/// The reply to a request: a complete response, or a watch that has been opened.
#[must_use]
pub enum Reply {
    /// A response.
    Response(Response<Bytes>),
    /// A watch, whose response has the code 200.
    Watch(Watch),
}

/// The body of a response.
pub struct ResponseBody(Kind);

enum Kind {
    Full(Full<Bytes>),
    Stream(Box<Stream>),
}

/// A watch that sends its events, bookmarks every minute if the client allows them, and ends after the client's timeout.
struct Stream {
    watch: Watch,
    bookmarks: Option<Interval>,
    timeout: Option<Pin<Box<Sleep>>>,
}

impl Reply {
    /// Encodes a response.
    pub(crate) fn of((code, body): response::Response) -> Self {
        let body = Bytes::from(body.to_string());
        let length = body.len();
        let mut response = Response::new(body);
        *response.status_mut() = code;
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        Self::Response(response)
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The body of a watch sends the events as they come, and uses the timers of tokio.
impl From<Reply> for Response<ResponseBody> {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Response(response) => response.map(|body| ResponseBody(Kind::Full(Full::new(body)))),
            Reply::Watch(watch) => {
                let mut response = Self::new(ResponseBody(Kind::Stream(Box::new(Stream::of(watch)))));
                response.headers_mut().insert(CONTENT_TYPE, JSON);
                response
            }
        }
    }
}

impl Stream {
    fn of(watch: Watch) -> Self {
        let bookmarks =
            watch.bookmark().map(|_| interval_at(Instant::now() + BOOKMARK_PERIOD, BOOKMARK_PERIOD));
        let timeout = watch.timeout().map(|timeout| Box::pin(sleep(timeout)));
        Self { watch, bookmarks, timeout }
    }

    fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<Option<String>> {
        if let Poll::Ready(event) = self.watch.poll_event(cx) {
            return Poll::Ready(event.map(|event| event.to_string()));
        }
        if self.timeout.as_mut().is_some_and(|timeout| timeout.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(None);
        }
        match self.bookmarks.as_mut().is_some_and(|bookmarks| bookmarks.poll_tick(cx).is_ready()) {
            true => Poll::Ready(self.watch.bookmark().map(|event| event.to_string())),
            false => Poll::Pending,
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Kind::Full(body) => Pin::new(body).poll_frame(cx),
            Kind::Stream(stream) => {
                stream.poll_line(cx).map(|line| line.map(|line| Ok(Frame::data(line.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Full(body) => body.is_end_stream(),
            Kind::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Full(body) => body.size_hint(),
            Kind::Stream(_) => SizeHint::default(),
        }
    }
}
