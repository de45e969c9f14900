//! Cuts off clients that take too long to say what they want, or to take what they asked for.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::{Sleep, sleep},
};

/// Nothing is asked: the client may wait for long.
const IDLE: u8 = 0;
/// A request has begun to come in: its head must be complete soon.
const RECEIVING: u8 = 1;
/// The head is there: how long the rest may take is decided elsewhere.
const ANSWERING: u8 = 2;

/// Where the requests of a connection are.
#[derive(Clone, Debug)]
pub(crate) struct Pace(Arc<Requests>);

#[derive(Debug)]
struct Requests {
    phase: AtomicU8,
    asked: Notify,
}

/// A connection whose reads and writes fail when its client is too slow.
#[derive(Debug)]
pub(crate) struct Paced<T> {
    io: T,
    pace: Pace,
    seen: u8,
    limits: [Duration; 2],
    timer: Pin<Box<Sleep>>,
    /// Since when what is written has not been taken.
    writing: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    /// The head of a request is there.
    pub(crate) fn answering(&self) {
        self.0.phase.store(ANSWERING, Ordering::Release);
        self.0.asked.notify_one();
    }

    /// The request is answered.
    pub(crate) fn idle(&self) {
        self.0.phase.store(IDLE, Ordering::Release);
    }

    /// Returns once the head of a request is there, or has been.
    pub(crate) async fn asked(&self) {
        self.0.asked.notified().await;
    }

    /// The first byte after a while.
    fn begin(&self) -> bool {
        self.0.phase.compare_exchange(IDLE, RECEIVING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl<T> Paced<T> {
    /// A client has `receive` for a head, counted from its first byte, and `idle` before that byte; and `receive` to take an
    /// answer.
    pub(crate) fn new(io: T, receive: Duration, idle: Duration) -> (Self, Pace) {
        let requests = Requests { phase: AtomicU8::new(RECEIVING), asked: Notify::new() };
        let pace = Pace(Arc::new(requests));
        let paced = Self {
            io,
            pace: pace.clone(),
            seen: RECEIVING,
            limits: [idle, receive],
            timer: Box::pin(sleep(receive)),
            writing: None,
        };
        (paced, pace)
    }

    fn enter(&mut self, phase: u8) {
        if self.seen != phase {
            self.seen = phase;
            if let Some(limit) = self.limits.get(usize::from(phase)) {
                self.timer.set(sleep(*limit));
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Paced<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let phase = self.pace.0.phase.load(Ordering::Acquire);
        self.enter(phase);
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.io).poll_read(cx, buffer) {
            if buffer.filled().len() > before && self.pace.begin() {
                self.enter(RECEIVING);
            }
            return Poll::Ready(read);
        }
        if self.seen == ANSWERING {
            return Poll::Pending;
        }
        self.timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Paced<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = Pin::new(&mut self.io).poll_write(cx, bytes) {
            return Poll::Ready(written);
        }
        let [_, limit] = self.limits;
        let writing = self.writing.get_or_insert_with(|| Box::pin(sleep(limit)));
        writing.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Called once everything is written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writing = None;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
