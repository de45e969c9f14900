//! A socket that is looked at once in a while, rather than each time that it brings something.
use std::{
    io::{self, ErrorKind, IoSlice, Read},
    mem, net,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    runtime::Handle,
    time::{Instant, Sleep, sleep},
};

/// What goes on coming at shorter intervals than this is taken in together, and so waits for about that long at most.
const REST: Duration = Duration::from_millis(10);

/// For so long after a question, what comes is an answer that somebody waits for. Later it is told, as events are.
const AWAKE: Duration = Duration::from_secs(1);

/// Where so many bytes come at once, being woken costs little beside taking them in, and the kernel may have no room for more.
const MUCH: usize = 32 << 10;

/// A TCP connection by which much that is told in quick succession, as by a busy watch, wakes the process every ten
/// milliseconds and not each time, as network cards do with interrupts.
///
/// While a controller writes one status after the other, each write comes back as an event. Woken for each, a process
/// with two workers takes an eighth more processor time; with ten it is awake anyway.
pub(super) struct Paced {
    socket: Socket,
    awake_until: Instant,
    /// When all that had come was last taken in, and since when that goes on in quick succession.
    drained: Instant,
    busy_since: Instant,
    /// How many bytes were read since there was last nothing more.
    brought: usize,
    /// Somebody waits for room for what is to be written.
    is_full: bool,
}

enum Socket {
    /// The kernel says when there is something to read.
    Awake(TcpStream),
    /// The kernel says nothing: tokio does not know of it.
    Resting(Resting),
    /// It could not be handed over.
    Lost,
}

struct Resting {
    socket: net::TcpStream,
    over: Pin<Box<Sleep>>,
    /// Whose clock that is by.
    runtime: Handle,
    reader: Waker,
}

impl Paced {
    pub(super) fn new(socket: TcpStream) -> Self {
        let now = Instant::now();
        Self {
            socket: Socket::Awake(socket),
            awake_until: now,
            drained: now,
            busy_since: now,
            brought: 0,
            is_full: false,
        }
    }

    /// Something has been taken in, and now there is no more. Whether that has been going on in quick succession, in pieces
    /// that are worth waiting for, and nobody waits for an answer.
    fn is_busy(&mut self) -> bool {
        let (now, brought) = (Instant::now(), mem::take(&mut self.brought));
        if brought >= MUCH {
            self.awake_until = now + AWAKE;
        }
        if now - mem::replace(&mut self.drained, now) >= REST && matches!(self.socket, Socket::Awake(_)) {
            self.busy_since = now;
        }
        now - self.busy_since >= REST && now >= self.awake_until && !self.is_full
    }

    fn rest(&mut self, runtime: Handle) -> io::Result<()> {
        self.socket = match mem::replace(&mut self.socket, Socket::Lost) {
            Socket::Awake(socket) => Socket::Resting(Resting {
                socket: socket.into_std()?,
                over: Box::pin(sleep(REST)),
                runtime,
                reader: Waker::noop().clone(),
            }),
            Socket::Resting(mut resting) => {
                resting.over.as_mut().reset(Instant::now() + REST);
                Socket::Resting(resting)
            }
            Socket::Lost => Socket::Lost,
        };
        Ok(())
    }

    fn wake(&mut self) -> io::Result<&mut TcpStream> {
        self.socket = match mem::replace(&mut self.socket, Socket::Lost) {
            Socket::Resting(Resting { socket, runtime, .. }) => {
                let _within = Handle::try_current().is_err().then(|| runtime.enter());
                Socket::Awake(TcpStream::from_std(socket)?)
            }
            other => other,
        };
        match &mut self.socket {
            Socket::Awake(socket) => Ok(socket),
            _ => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Whoever waits for the end of a rest waits for the kernel from then on.
    fn write<T>(
        &mut self,
        write: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        self.awake_until = Instant::now() + AWAKE;
        if let Socket::Resting(resting) = &self.socket {
            resting.reader.wake_by_ref();
        }
        let written = write(Pin::new(self.wake()?));
        self.is_full = written.is_pending();
        written
    }
}

impl Resting {
    /// The clock of the runtime that it rests by may stand still.
    fn is_elsewhere(&self) -> bool {
        Handle::try_current().is_ok_and(|runtime| runtime.id() != self.runtime.id())
    }

    /// What there is once the rest is over: an error of its own where there is nothing.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.over.as_mut().poll(cx).is_pending() {
            self.reader.clone_from(cx.waker());
            return Poll::Pending;
        }
        let read = self.socket.read(buffer.initialize_unfilled())?;
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let before = buffer.filled().len();
            let is_resting = matches!(self.socket, Socket::Resting(_));
            let read = match &mut self.socket {
                Socket::Awake(socket) => Pin::new(socket).poll_read(cx, buffer),
                Socket::Resting(resting) if resting.is_elsewhere() => {
                    self.wake()?;
                    continue;
                }
                Socket::Resting(resting) => match ready!(resting.poll_read(cx, buffer)) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
                    read => Poll::Ready(read),
                },
                Socket::Lost => Poll::Ready(Err(ErrorKind::NotConnected.into())),
            };
            if read.is_ready() {
                self.brought += buffer.filled().len() - before;
                return read;
            }
            if self.brought > 0
                && self.is_busy()
                && let Ok(runtime) = Handle::try_current()
            {
                self.rest(runtime)?;
            } else if is_resting {
                self.wake()?;
            } else {
                return Poll::Pending;
            }
        }
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(|socket| socket.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(|socket| socket.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true // as every TCP stream
    }

    /// There is nothing to flush in TCP.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(|socket| socket.poll_shutdown(cx))
    }
}

/// There is nothing to say of it: who asks is hyper's own pool, which is not used.
impl Connection for Paced {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        time::{advance, timeout},
    };

    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);
    /// Timers are exact to a millisecond.
    const RESTED: Duration = Duration::from_millis(11);

    /// By a real clock: only what never comes takes that long.
    const LONG: Duration = Duration::from_secs(30);

    /// Both ends of a connection on which nothing was asked lately.
    async fn telling() -> (TcpStream, Paced) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (accepted, connected) =
            tokio::join!(listener.accept(), TcpStream::connect(listener.local_addr().unwrap()));
        let (told, paced) = (accepted.unwrap().0, Paced::new(connected.unwrap()));
        told.set_nodelay(true).unwrap();
        tokio::time::pause();
        advance(AWAKE).await;
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

    /// It is taken in at once, and there is no more.
    async fn is_told(told: &mut TcpStream, paced: &mut Paced, text: &str) {
        tell(told, text).await;
        assert_eq!(given(paced).as_deref(), Some(text));
        assert_eq!(given(paced), None);
    }

    /// One thing each millisecond for as long as a rest takes; then a rest begins.
    async fn busy() -> (TcpStream, Paced) {
        let (mut told, mut paced) = telling().await;
        assert_eq!(given(&mut paced), None);
        for _ in 0..REST.as_millis() {
            is_told(&mut told, &mut paced, "a").await;
            advance(MOMENT).await;
        }
        is_told(&mut told, &mut paced, "b").await;
        (told, paced)
    }

    #[tokio::test]
    async fn what_goes_on_coming_is_taken_in_together() {
        let (mut told, mut paced) = busy().await;
        for _ in 0..3 {
            for text in ["c", "d"] {
                tell(&mut told, text).await;
                advance(MOMENT).await;
                assert_eq!(given(&mut paced), None);
            }
            advance(REST).await;
            assert_eq!(given(&mut paced).as_deref(), Some("cd"));
            assert_eq!(given(&mut paced), None);
        }
    }

    #[tokio::test]
    async fn whoever_waits_is_woken_when_the_rest_is_over() {
        let (mut told, mut paced) = busy().await;
        tell(&mut told, "c").await;
        let begun = Instant::now();
        assert_eq!(timeout(AWAKE, paced.read_u8()).await.unwrap().unwrap(), b'c');
        assert!((REST..=RESTED).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert_eq!(given(&mut paced), None);
        drop(told);
        assert_eq!(timeout(AWAKE, paced.read(&mut [0])).await.unwrap().unwrap(), 0);
    }

    #[tokio::test]
    async fn what_comes_by_itself_is_taken_in_at_once_whatever_its_pieces() {
        let (mut told, mut paced) = busy().await;
        advance(RESTED).await;
        assert_eq!(given(&mut paced), None);
        for _ in 0..3 {
            for text in ["c", "d", "e"] {
                is_told(&mut told, &mut paced, text).await;
                advance(MOMENT).await;
            }
            advance(REST).await;
        }
    }

    #[tokio::test]
    async fn much_is_taken_in_as_it_comes() {
        let (mut told, mut paced) = busy().await;
        told.write_all(&[b'c'; MUCH]).await.unwrap();
        paced.read_exact(&mut [0; MUCH]).await.unwrap();
        assert_eq!(given(&mut paced), None);
        for _ in 0..2 * REST.as_millis() {
            is_told(&mut told, &mut paced, "d").await;
            advance(MOMENT).await;
        }
    }

    #[tokio::test]
    async fn an_answer_is_taken_in_as_it_comes() {
        let (mut told, mut paced) = busy().await;
        paced.write_all(b"question").await.unwrap();
        for _ in 0..2 * REST.as_millis() {
            is_told(&mut told, &mut paced, "c").await;
            advance(MOMENT).await;
        }
        let mut asked = [0; 8];
        told.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"question");
    }

    #[tokio::test]
    async fn whoever_reads_is_told_of_an_answer_to_what_somebody_else_asks() {
        let (mut told, paced) = busy().await;
        let (mut reads, mut writes) = tokio::io::split(paced);
        let answer = tokio::spawn(async move { reads.read_u8().await });
        tokio::task::yield_now().await;
        tokio::time::resume();
        writes.write_all(b"?").await.unwrap();
        assert_eq!(told.read_u8().await.unwrap(), b'?');
        tell(&mut told, "!").await;
        assert_eq!(timeout(LONG, answer).await.unwrap().unwrap().unwrap(), b'!');
    }

    #[tokio::test]
    async fn whoever_waits_for_room_to_write_is_told_of_it() {
        let (mut told, paced) = telling().await;
        let (mut reads, mut writes) = tokio::io::split(paced);
        const LARGE: usize = 32 << 20;
        let written = tokio::spawn(async move { writes.write_all(&vec![b'c'; LARGE]).await });
        tokio::task::yield_now().await;
        assert!(!written.is_finished());
        advance(AWAKE).await;
        for _ in 0..2 * REST.as_millis() {
            tell(&mut told, "d").await;
            assert_eq!(reads.read_u8().await.unwrap(), b'd');
            assert!(timeout(MOMENT, reads.read_u8()).await.is_err(), "there is no more");
        }
        tokio::time::resume();
        let mut taken = vec![0; LARGE];
        timeout(LONG, told.read_exact(&mut taken)).await.unwrap().unwrap();
        written.await.unwrap().unwrap();
    }

    #[test]
    fn a_connection_outlives_the_runtime_that_it_rested_in() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (mut told, mut paced) = runtime().block_on(async {
            let (told, paced) = busy().await;
            (told.into_std().unwrap(), paced)
        });
        runtime().block_on(async {
            told.write_all(b"c").unwrap();
            assert_eq!(paced.read_u8().await.unwrap(), b'c');
            drop(told);
            assert_eq!(timeout(LONG, paced.read(&mut [0])).await.unwrap().unwrap(), 0);
        });
    }
}
