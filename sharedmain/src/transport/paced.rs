//! A socket that is looked at once in a while, rather than each time that it brings something.
use std::{
    io::{self, ErrorKind, IoSlice, Read},
    mem, net,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};

/// What comes at shorter intervals than this is taken in together, and so waits for that long at most.
const REST: Duration = Duration::from_millis(10);

/// What comes later than this after the last question is no answer that somebody waits for: it is told, as events are.
const ANSWERED: Duration = Duration::from_secs(1);

/// A TCP connection by which much that is told in quick succession, as by a busy watch, wakes the process every ten
/// milliseconds and not each time, as network cards do with interrupts.
///
/// While a controller writes one status after the other, each write comes back as an event. Woken for each, a process
/// with two workers takes a fifth more processor time.
pub(super) struct Paced {
    socket: Socket,
    asked: Instant,
    /// When all that had come was taken in, most recently. Nothing is noted while it rests.
    drained: Instant,
    /// Something was read since it last had nothing to read.
    brought: bool,
}

enum Socket {
    /// The kernel says when there is something to read.
    Woken(TcpStream),
    /// It is looked at when this has elapsed. The kernel says nothing: tokio does not know of it.
    Resting(net::TcpStream, Pin<Box<Sleep>>),
    /// It could not be handed over.
    Lost,
}

impl Paced {
    pub(super) fn new(socket: TcpStream) -> Self {
        let now = Instant::now();
        Self { socket: Socket::Woken(socket), asked: now, drained: now, brought: false }
    }

    /// Something has been taken in, and now there is no more. Whether that was soon after the last time, and unasked for.
    fn is_busy(&mut self) -> bool {
        let now = Instant::now();
        let soon = now - mem::replace(&mut self.drained, now) < REST;
        soon && now - self.asked >= ANSWERED
    }

    fn rest(&mut self) -> io::Result<()> {
        self.socket = match mem::replace(&mut self.socket, Socket::Lost) {
            Socket::Woken(socket) => Socket::Resting(socket.into_std()?, Box::pin(sleep(REST))),
            other => other,
        };
        Ok(())
    }

    fn wake(&mut self) -> io::Result<&mut TcpStream> {
        self.socket = match mem::replace(&mut self.socket, Socket::Lost) {
            Socket::Resting(socket, _) => Socket::Woken(TcpStream::from_std(socket)?),
            other => other,
        };
        match &mut self.socket {
            Socket::Woken(socket) => Ok(socket),
            _ => Err(ErrorKind::NotConnected.into()),
        }
    }

    fn ask(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.asked = Instant::now();
        self.wake().map(Pin::new)
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let read = match &mut self.socket {
                Socket::Woken(socket) => Pin::new(socket).poll_read(cx, buffer),
                Socket::Resting(socket, rested) => {
                    ready!(rested.as_mut().poll(cx));
                    read(socket, buffer)
                }
                Socket::Lost => Poll::Ready(Err(ErrorKind::NotConnected.into())),
            };
            if read.is_ready() {
                self.brought = true;
                return read;
            }
            let brought = mem::take(&mut self.brought);
            match &mut self.socket {
                Socket::Resting(_, rested) if brought => rested.as_mut().reset(Instant::now() + REST),
                Socket::Resting(..) => drop(self.wake()?),
                _ => match brought && self.is_busy() {
                    true => self.rest()?,
                    false => return Poll::Pending,
                },
            }
        }
    }
}

/// What there is; pending where there is nothing, without a waker.
fn read(socket: &mut net::TcpStream, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    match socket.read(buffer.initialize_unfilled()) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
        read => Poll::Ready(read.map(|read| buffer.advance(read))),
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.ask()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.ask()?.poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true // as every TCP stream
    }

    /// There is nothing to flush in TCP.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ask()?.poll_shutdown(cx)
    }
}

impl Connection for Paced {
    fn connected(&self) -> Connected {
        match &self.socket {
            Socket::Woken(socket) => socket.connected(),
            _ => Connected::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        time::advance,
    };

    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);
    /// Timers are exact to a millisecond.
    const RESTED: Duration = Duration::from_millis(11);

    /// Both ends of a connection on which nothing was asked lately.
    async fn telling() -> (TcpStream, Paced) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (accepted, connected) =
            tokio::join!(listener.accept(), TcpStream::connect(listener.local_addr().unwrap()));
        let (told, paced) = (accepted.unwrap().0, Paced::new(connected.unwrap()));
        told.set_nodelay(true).unwrap();
        tokio::time::pause();
        advance(ANSWERED).await;
        (told, paced)
    }

    /// What whoever waits for it is given now; nothing where he waits.
    fn given(paced: &mut Paced) -> Option<String> {
        let mut bytes = [0; 16];
        let mut buffer = ReadBuf::new(&mut bytes);
        match Pin::new(paced).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer) {
            Poll::Ready(read) => {
                read.map(|()| Some(String::from_utf8_lossy(buffer.filled()).into())).unwrap()
            }
            Poll::Pending => None,
        }
    }

    async fn tell(told: &mut TcpStream, text: &str) {
        told.write_all(text.as_bytes()).await.unwrap();
        tokio::task::yield_now().await; // the kernel has said so then, if it is to
    }

    /// Tells and takes in two events, one soon after the other.
    async fn busy() -> (TcpStream, Paced) {
        let (mut told, mut paced) = telling().await;
        for text in ["a", "b"] {
            assert_eq!(given(&mut paced), None);
            tell(&mut told, text).await;
            assert_eq!(given(&mut paced).as_deref(), Some(text));
            advance(MOMENT).await;
        }
        assert_eq!(given(&mut paced), None);
        (told, paced)
    }

    #[tokio::test]
    async fn what_comes_in_quick_succession_is_taken_in_together() {
        let (mut told, mut paced) = busy().await;
        for _ in 0..3 {
            for text in ["c", "d"] {
                tell(&mut told, text).await;
                advance(MOMENT).await;
                assert_eq!(given(&mut paced), None);
            }
            advance(RESTED).await;
            assert_eq!(given(&mut paced).as_deref(), Some("cd"));
            assert_eq!(given(&mut paced), None);
        }
    }

    #[tokio::test]
    async fn whoever_waits_is_woken_when_the_rest_is_over() {
        let (mut told, mut paced) = busy().await;
        tell(&mut told, "c").await;
        let begun = Instant::now();
        assert_eq!(paced.read_u8().await.unwrap(), b'c');
        assert!(begun.elapsed() <= RESTED, "{:?}", begun.elapsed());
        drop(told);
        assert_eq!(paced.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn what_comes_after_a_while_is_taken_in_at_once() {
        let (mut told, mut paced) = busy().await;
        advance(RESTED).await;
        assert_eq!(given(&mut paced), None);
        for text in ["c", "d"] {
            tell(&mut told, text).await;
            assert_eq!(given(&mut paced).as_deref(), Some(text));
            assert_eq!(given(&mut paced), None);
            advance(RESTED).await;
        }
    }

    #[tokio::test]
    async fn an_answer_is_taken_in_as_it_comes() {
        let (mut told, mut paced) = busy().await;
        paced.write_all(b"question").await.unwrap();
        for text in ["c", "d", "e", "f"] {
            tell(&mut told, text).await;
            assert_eq!(given(&mut paced).as_deref(), Some(text));
            assert_eq!(given(&mut paced), None);
            advance(MOMENT).await;
        }
        let mut asked = [0; 8];
        told.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"question");
    }
}
