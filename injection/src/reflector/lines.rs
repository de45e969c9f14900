//! The lines of a watch.

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use kube::{client::DynBody, core::Status};
use reknit_apis::Key;
use tower::BoxError;

use super::{
    Failure,
    page::{Item, text},
};
use crate::{
    client::into_kube_error,
    object::{RawObject, Scanner},
};

/// The size limit of a line. A line contains one object, and etcd stores no object larger than a few MiB.
const MAX_LINE: usize = 64 << 20;

/// A line of a watch: one event.
pub(super) struct Line<'a> {
    pub(super) event: Cow<'a, str>,
    pub(super) object: Item<'a>,
    /// The object as it is written in the line.
    text: &'a str,
}

impl<'a> Line<'a> {
    pub(super) fn read(line: &'a [u8]) -> Result<Self, Failure> {
        let (mut event, mut object) = (None, None);
        let read = |scanner: &mut Scanner<'a>| {
            scanner.object(|name, scanner| {
                match &*name {
                    "type" => event = Some(scanner.string()?),
                    "object" => object = Some(scanner.attempt(RawObject::scan)?),
                    _ => drop(scanner.value()?),
                }
                Ok(())
            })
        };
        Scanner::over(text(line)?, read).map_err(Failure::malformed)?;
        match (event, object) {
            (Some(event), Some((object, text))) => Ok(Self { event, object, text }),
            _ => Err(Failure::malformed("the line is not an event")),
        }
    }

    /// The failure in an `ERROR` event.
    pub(super) fn failure(&self) -> Failure {
        match serde_json::from_str::<Status>(self.text) {
            Ok(status) => Failure::from_event(&status),
            Err(_) => Failure::Watch("the error event contains no status".into()),
        }
    }
}

/// The lines of a watch.
pub(super) struct Lines {
    body: Box<DynBody>,
    buffer: Vec<u8>,
    /// The position of the last returned line. The bytes after it have not been returned yet.
    line: Range<usize>,
}

impl Lines {
    pub(super) fn of(body: Box<DynBody>) -> Self {
        Self { body, buffer: Vec::new(), line: 0..0 }
    }

    /// The next line; `None` once the server has ended the watch. An incomplete last line is dropped.
    pub(super) async fn next(&mut self) -> Result<Option<&[u8]>, Failure> {
        let mut start = self.line.end;
        let mut searched = start;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer[searched..]) {
                let end = searched + end;
                self.line = start..end + 1;
                return Ok(Some(&self.buffer[start..end]));
            }
            self.buffer.drain(..start);
            (start, self.line) = (0, 0..0);
            searched = self.buffer.len();
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// Appends the next bytes to the buffer. False once the server has ended the watch.
    async fn read_more(&mut self) -> Result<bool, Failure> {
        tokio::task::consume_budget().await;
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        if let Some(data) = frame.map_err(into_kube_error)?.data_ref() {
            self.buffer.extend_from_slice(data);
        }
        if self.buffer.len() > MAX_LINE {
            return Err(Failure::Broken(format!("an event is longer than {MAX_LINE} bytes")));
        }
        Ok(true)
    }
}

/// Reads the events of a watch that arrives in these frames.
pub async fn read_watch(frames: Vec<Vec<u8>>) -> Vec<Option<(String, Key)>> {
    let frames = frames.into_iter().map(|frame| Ok::<_, BoxError>(Frame::data(Bytes::from(frame))));
    let mut lines = Lines::of(Box::new(StreamBody::new(stream::iter(frames))));
    let mut events = Vec::new();
    while let Ok(Some(line)) = lines.next().await {
        let event = |line: Line<'_>| Some((line.event.into_owned(), line.object.ok()?.key()));
        events.push(Line::read(line).ok().and_then(event));
    }
    events
}
