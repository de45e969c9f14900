//! The stack of a pending future, as a goroutine dump shows it.
//!
//! A future that waits is on no stack. But its innermost future holds a waker, and when it is polled with another one it
//! drops the old one within its `poll`. So the future is polled twice, first with a [`CapturingWaker`] and then with the
//! waker of the task: the first one captures the stack on which it is dropped.

use std::{
    backtrace::Backtrace,
    fmt,
    ops::ControlFlow,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::ThreadId,
};

use parking_lot::Mutex;
use reknit_injection::internal::WaitPlace;

/// The maximum number of frames of a [`Stack`].
const MAX_FRAMES: usize = 16;
/// The maximum length of the name of a function or a file in bytes.
const MAX_NAME: usize = 200;
/// Crates whose functions are not the place at which user code waits, for programs without debug information. With it,
/// the path of the file tells dependencies from the code of the program.
const LIBRARIES: [&str; 22] = [
    "alloc",
    "core",
    "futures",
    "futures_channel",
    "futures_util",
    "h2",
    "http_body_util",
    "hyper",
    "hyper_util",
    "kube",
    "kube_client",
    "reqwest",
    "rustls",
    "std",
    "tokio",
    "tokio_rustls",
    "tokio_stream",
    "tokio_util",
    "tonic",
    "tower",
    "tower_http",
    "tracing",
];

/// The slot for the stack of one future.
struct Slot {
    thread: ThreadId,
    /// True while the future is polled with the waker of the task.
    is_open: AtomicBool,
    /// True if the future has woken its task.
    is_woken: AtomicBool,
    stack: Mutex<Option<Backtrace>>,
}

/// Wakes the task, and captures the stack on which its last clone is dropped.
struct CapturingWaker {
    task: Waker,
    slot: Weak<Slot>,
}

impl Wake for CapturingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.slot.upgrade().iter().for_each(|slot| slot.is_woken.store(true, Ordering::Relaxed));
        self.task.wake_by_ref();
    }
}

impl Drop for CapturingWaker {
    fn drop(&mut self) {
        let Some(slot) = self.slot.upgrade() else { return };
        if slot.is_open.load(Ordering::Relaxed) && slot.thread == std::thread::current().id() {
            *slot.stack.lock() = Some(capture_stack());
        }
    }
}

/// Never inlined, so that its name is on the stack.
#[inline(never)]
fn capture_stack() -> Backtrace {
    Backtrace::force_capture()
}

/// Polls a future, and returns its output, or else the place at which it waits: one of them if there are several.
pub(crate) async fn poll_with_stack<F: Future + Unpin>(future: &mut F) -> ControlFlow<F::Output, WaitPlace> {
    std::future::poll_fn(|cx| Poll::Ready(poll_twice(Pin::new(future), cx))).await
}

/// Never inlined, so that its name is on the stack.
#[inline(never)]
fn poll_twice<F: Future>(mut future: Pin<&mut F>, cx: &mut Context<'_>) -> ControlFlow<F::Output, WaitPlace> {
    let slot = Arc::new(Slot {
        thread: std::thread::current().id(),
        is_open: AtomicBool::new(false),
        is_woken: AtomicBool::new(false),
        stack: Mutex::default(),
    });
    let waker =
        Waker::from(Arc::new(CapturingWaker { task: cx.waker().clone(), slot: Arc::downgrade(&slot) }));
    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
        return ControlFlow::Break(output);
    }
    drop(waker);
    let is_held = Arc::weak_count(&slot) > 0;
    slot.is_open.store(true, Ordering::Relaxed);
    match future.poll(cx) {
        Poll::Ready(output) => ControlFlow::Break(output),
        Poll::Pending => ControlFlow::Continue(match slot.stack.lock().take() {
            Some(stack) => WaitPlace::Stack(stack),
            None if is_held || slot.is_woken.load(Ordering::Relaxed) => WaitPlace::Unknown,
            None => WaitPlace::Nowhere,
        }),
    }
}

/// The functions of the program that wait, the innermost first. Formats as the innermost function with its file and line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// The function of a library that the program awaits. Empty if it awaits its own code.
    pub awaited: Frame,
    /// The functions of the program itself.
    pub program: Vec<Frame>,
}

/// A function on a stack. Formats as `lamps::probe at src/probe.rs:41`, or as the file and the line if the debug information
/// lacks the name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    function: String,
    /// The file and the line. Empty if the program has no debug information.
    place: String,
}

impl Stack {
    /// Reads the names of the functions, which may take a second in a large program. `None` if there are none.
    pub fn resolve(backtrace: &Backtrace) -> Option<Self> {
        let frames = frames(&backtrace.to_string());
        let inner = frames.iter().rposition(|frame| {
            frame.function.contains("CapturingWaker") || frame.function.contains("capture_stack")
        })?;
        let outer =
            frames.iter().position(|frame| frame.function.contains("poll_twice")).unwrap_or(frames.len());
        let waiting = frames.get(inner + 1..outer)?;
        let first = waiting.iter().position(Frame::is_of_program).unwrap_or(waiting.len());
        let is_awaited =
            |frame: &&Frame| !frame.krate().is_empty() && !frame.is_of(&["alloc", "core", "std"]);
        let awaited = waiting[..first].iter().rfind(is_awaited).map(Frame::bounded).unwrap_or_default();
        let program = waiting.iter().filter(|frame| frame.is_of_program());
        let program: Vec<_> = program.take(MAX_FRAMES).map(Frame::bounded).collect();
        (awaited != Frame::default() || !program.is_empty()).then_some(Self { awaited, program })
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program.first().unwrap_or(&self.awaited).fmt(f)
    }
}

/// Parses the text of a backtrace: lines of `3: function`, each with a line of `at file:line:column` if that is known.
fn frames(text: &str) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(place) = line.strip_prefix("at ") {
            if let Some(frame) = frames.last_mut() {
                frame.place = place.rsplit_once(':').map_or(place, |(place, _column)| place).into();
            }
        } else if let Some((_, function)) = line.split_once(": ") {
            frames.push(Frame { function: function.replace("::{{closure}}", ""), place: String::new() });
        }
    }
    frames
}

impl Frame {
    /// Returns true for a function of the program, rather than of a library or of reknit.
    fn is_of_program(&self) -> bool {
        let is_in_library =
            ["/.cargo/registry/", "/.cargo/git/", "/rustc/"].iter().any(|root| self.place.contains(root));
        let is_known = !self.place.is_empty() || !self.krate().is_empty();
        is_known && !is_in_library && !self.krate().starts_with("reknit") && !self.is_of(&LIBRARIES)
    }

    fn is_of(&self, crates: &[&str]) -> bool {
        self.place.starts_with("/rustc/") || crates.contains(&self.krate())
    }

    /// The crate of a function such as `<lamps::Switch as reknit::ReconcileKind>::reconcile_kind`. Empty if the name does
    /// not tell it.
    fn krate(&self) -> &str {
        let path = self
            .function
            .trim_start_matches(['<', '&', '*'])
            .trim_start_matches("mut ")
            .trim_start_matches("dyn ");
        path.split_once("::").map_or("", |(first, _)| first)
    }

    /// Cuts long names, and the directory in which the program was built.
    fn bounded(&self) -> Self {
        let source = self.place.rfind("/src/").map_or(0, |index| index + 1);
        let cut = |text: &str| text[..text.floor_char_boundary(MAX_NAME)].to_owned();
        Self { function: cut(&self.function), place: cut(&self.place[source..]) }
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.place.is_empty(), self.function.starts_with('{')) {
            (true, _) => f.write_str(&self.function),
            (false, true) => f.write_str(&self.place),
            (false, false) => write!(f, "{} at {}", self.function, self.place),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicU32, time::Duration};

    use futures::FutureExt;
    use tokio::{
        io::AsyncReadExt,
        net::{TcpListener, TcpStream},
        sync::{Mutex as AsyncMutex, oneshot},
        time::sleep,
    };

    use super::*;

    async fn stack_of(future: impl Future<Output = ()>) -> Option<Stack> {
        let mut future = std::pin::pin!(future);
        assert!((&mut future).now_or_never().is_none());
        match poll_with_stack(&mut future).await {
            ControlFlow::Continue(WaitPlace::Stack(backtrace)) => Stack::resolve(&backtrace),
            ControlFlow::Continue(_) => None,
            ControlFlow::Break(()) => panic!("the future has ended"),
        }
    }

    const LOCK_LINE: u32 = line!() + 2;
    async fn waits_for_a_lock(lock: &AsyncMutex<()>) {
        drop(lock.lock().await);
    }

    const ANSWER_LINE: u32 = line!() + 2;
    async fn waits_for_an_answer(address: std::net::SocketAddr) {
        TcpStream::connect(address).await.unwrap().read_u8().await.unwrap();
    }

    const CALL_LINE: u32 = line!() + 2;
    async fn calls(inner: impl Future<Output = ()>) {
        inner.await;
    }

    fn assert_waits_at(stack: Option<Stack>, line: u32) {
        let stack = stack.unwrap();
        assert!(stack.to_string().ends_with(&format!("src/stack.rs:{line}")), "{stack:#?}");
        let caller = format!("src/stack.rs:{CALL_LINE}");
        assert!(stack.program.iter().any(|frame| frame.place == caller), "{stack:#?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_stack_of_a_waiting_future_names_the_function_and_its_callers() {
        let lock = AsyncMutex::new(());
        let guard = lock.lock().await;
        assert_waits_at(stack_of(calls(waits_for_a_lock(&lock))).await, LOCK_LINE);
        drop(guard);
        let sleeping = async { sleep(Duration::from_secs(60)).await };
        assert_waits_at(stack_of(calls(sleeping)).await, line!() - 1);
        let (_sender, receiver) = oneshot::channel::<()>();
        let spawned = tokio::spawn(async { drop(receiver.await) });
        let joining = async { spawned.await.unwrap() };
        assert_waits_at(stack_of(calls(joining)).await, line!() - 1);
    }

    #[tokio::test]
    async fn the_stack_of_a_future_that_reads_from_a_silent_server_is_found() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let mut future = std::pin::pin!(calls(waits_for_an_answer(address)));
        let accepted = tokio::select! {
            biased;
            () = &mut future => unreachable!(),
            accepted = server.accept() => accepted.unwrap(),
        };
        tokio::time::timeout(Duration::from_millis(100), &mut future).await.unwrap_err();
        let ControlFlow::Continue(WaitPlace::Stack(backtrace)) = poll_with_stack(&mut future).await else {
            panic!()
        };
        assert_waits_at(Stack::resolve(&backtrace), ANSWER_LINE);
        drop(accepted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_continues_after_its_stack_was_taken() {
        let polls = AtomicU32::new(0);
        let mut future = std::pin::pin!(async {
            sleep(Duration::from_secs(1)).await;
            polls.fetch_add(1, Ordering::Relaxed);
        });
        assert!(matches!(poll_with_stack(&mut future).await, ControlFlow::Continue(_)));
        future.as_mut().await;
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        let mut ready = std::future::ready(7);
        assert!(matches!(poll_with_stack(&mut ready).await, ControlFlow::Break(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_that_keeps_no_waker_waits_nowhere_unless_it_wakes_itself() {
        let mut pending = std::pin::pin!(calls(std::future::pending()));
        assert!(matches!(poll_with_stack(&mut pending).await, ControlFlow::Continue(WaitPlace::Nowhere)));
        let mut woken = std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert!(matches!(poll_with_stack(&mut woken).await, ControlFlow::Continue(WaitPlace::Unknown)));
        let mut elsewhere = std::pin::pin!(async {
            let sleeping = sleep(Duration::from_secs(60));
            futures::future::join(sleeping, std::future::pending::<()>()).await
        });
        assert!(matches!(poll_with_stack(&mut elsewhere).await, ControlFlow::Continue(WaitPlace::Stack(_))));
    }

    #[test]
    fn functions_are_told_from_libraries_with_and_without_files() {
        let text = "   0: <tokio::time::sleep::Sleep as core::future::future::Future>::poll\n   \
                    1: core::pin::Pin<P>::poll\n             at /rustc/59807/library/core/src/pin.rs:3:1\n   \
                    2: <lamps::Switch as reknit_reconciler::roles::ReconcileKind>::reconcile_kind::{{closure}}\n   \
                    3: inlined\n             at /home/ci/.cargo/registry/src/index/backoff-1.0.0/src/lib.rs:7:9\n   \
                    4: lamps::probe\n             at /home/ci/lamps/src/probe.rs:41:20\n   5: <unknown>\n";
        let frames = frames(text);
        let program: Vec<_> = frames.iter().filter(|frame| frame.is_of_program()).collect();
        let names: Vec<_> = program.iter().map(|frame| frame.bounded().to_string()).collect();
        let expected = [
            "<lamps::Switch as reknit_reconciler::roles::ReconcileKind>::reconcile_kind",
            "lamps::probe at src/probe.rs:41",
        ];
        assert_eq!(names, expected);
    }
}
