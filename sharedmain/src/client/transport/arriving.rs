//! The rest of an answer.
use std::{
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tower::BoxError;

use super::{connection::Connection, idle::Idle};

/// The body of an answer, with the connection that it arrives by. Dropped before its end it closes the connection.
pub(super) struct Arriving {
    body: Incoming,
    connection: Option<Connection>,
    idle: Idle,
}

impl Arriving {
    pub(super) fn new(body: Incoming, connection: Connection, idle: Idle) -> Self {
        let mut arriving = Self { body, connection: Some(connection), idle };
        if arriving.body.is_end_stream() {
            arriving.end();
        }
        arriving
    }

    fn end(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.idle.keep(connection);
        }
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body, connection, .. } = &mut *self;
        let Some(connection) = connection else { return Poll::Ready(None) };
        let frame = ready!(connection.drive(cx, pin!(body.frame())));
        if frame.is_none() || self.body.is_end_stream() {
            self.end();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
