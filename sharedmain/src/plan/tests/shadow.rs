use std::{
    io,
    sync::{Arc, Mutex},
};

use prometheus::Registry;
use reknit_injection::{Shutdown, internal::Redaction};
use reknit_reconciler::Drained;
use tokio::task::JoinHandle;
use tracing::{
    Dispatch,
    subscriber::{DefaultGuard, NoSubscriber},
};

use super::{
    super::shadow::{QUIET, Shadow},
    *,
};

/// The lines of the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn install(&self) -> (DefaultGuard, Dispatch) {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt().without_time().with_ansi(false);
        let subscriber = subscriber.with_writer(move || log.clone()).finish();
        // While a process has only one subscriber, tracing does not ask it for code that another thread reaches first.
        let other = Dispatch::new(NoSubscriber::default());
        (tracing::subscriber::set_default(subscriber), other)
    }

    /// Takes the lines of the shadows about keys.
    fn take(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        let is_of_a_key = |line: &&str| line.contains("plan::shadow") && line.contains(" key=");
        text.lines().filter(is_of_a_key).map(str::to_owned).collect()
    }

    fn has(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.0.lock().unwrap()).contains(text)
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The shadow of a controller.
struct Running {
    task: JoinHandle<Drained>,
    registry: Registry,
}

impl Running {
    fn start(server: &ApiServer, color: &'static str) -> Self {
        Self::start_controller(server, move |cx| painter(cx, color))
    }

    fn start_controller(server: &ApiServer, controller: impl Fn(&Context) -> Result<Controller>) -> Self {
        Self::start_hiding(server, Redaction::default(), controller)
    }

    fn start_hiding(
        server: &ApiServer,
        redaction: Redaction,
        controller: impl Fn(&Context) -> Result<Controller>,
    ) -> Self {
        let registry = Registry::new();
        let shadow = Shadow::new(guarded(&server.client().into(), "default"), &registry, redaction);
        let (controller, informers) = {
            let cx = Context::builder("test", shadow.transport("default")).without_own_writes().build();
            (controller(&cx).unwrap(), cx.informers())
        };
        informers.start();
        let task = tokio::spawn(async move { shadow.run(controller, Shutdown::never()).await });
        Self { task, registry }
    }

    fn differing(&self) -> f64 {
        self.gauge("reknit_shadow_differing_keys").expect("a value")
    }

    /// The value of a gauge.
    fn gauge(&self, name: &str) -> Option<f64> {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name)?;
        Some(family.get_metric()[0].get_gauge().get_value())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn rest() {
    sleep(QUIET * 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_shadow_logs_its_differences_from_the_running_version_until_they_end() {
    let (server, log) = (server(), Log::default());
    let _guard = log.install();
    paint(&server, "red").await;
    let (objects, _) = (server.objects(), server.take_writes());
    let (same, other) = (Running::start(&server, "red"), Running::start(&server, "blue"));
    rest().await;
    let lines = log.take();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let changes = "  ~ ConfigMap default/desk\\n      ~ data.color: \\\"red\\\" → \\\"blue\\\"\\n";
    assert!(lines[0].contains("key=default/desk") && lines[0].contains(changes), "{}", lines[0]);
    assert_eq!((same.differing(), other.differing()), (0.0, 1.0));
    assert!(server.take_writes().iter().all(|write| write.dry_run));
    assert_eq!(server.objects(), objects);

    paint(&server, "blue").await;
    rest().await;
    let lines = log.take();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("no difference any more")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("~ data.color: \\\"blue\\\" → \\\"red\\\"")), "{lines:#?}");
    assert_eq!((same.differing(), other.differing()), (1.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn a_shadow_masks_the_values_that_the_author_names() {
    let (server, log, redaction) = (server(), Log::default(), Redaction::default());
    let _guard = log.install();
    paint(&server, "red").await;
    redaction.set(&["/data/color".into(), "/status/color".into()]);
    let _running = Running::start_hiding(&server, redaction, |cx| painter(cx, "blue"));
    rest().await;
    let lines = log.take();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(
        lines[0].contains("~ data.color: \\\"(masked value 1)\\\" → \\\"(masked value 2)"),
        "{}",
        lines[0]
    );
    assert!(!log.has("blue"));
}

#[tokio::test(start_paused = true)]
async fn a_key_runs_once_it_is_quiet() {
    // Without a subscriber, the lines of this thread could disable those of the other test.
    let _guard = Log::default().install();
    let server = server();
    let other = Running::start(&server, "blue");
    let lamps: Api<Lamp> = Api::default_namespaced(server.client());
    for n in 0..20 {
        sleep(QUIET / 2).await;
        let change = merge(json!({"metadata": {"labels": {"n": n.to_string()}}}));
        lamps.patch("desk", &PatchParams::default(), &change).await.unwrap();
        assert!(server.take_writes().iter().all(|write| !write.dry_run), "the key was not quiet");
    }
    rest().await;
    assert_eq!(other.differing(), 1.0);
    lamps.delete("desk", &DeleteParams::default()).await.unwrap();
    rest().await;
    assert_eq!(other.differing(), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_shadow_says_when_it_has_compared_each_object_once() {
    const UNCOMPARED: &str = "reknit_shadow_uncompared_keys";
    let (server, log) = (server(), Log::default());
    let _guard = log.install();
    let other = Running::start(&server, "blue");
    sleep(QUIET * 3 / 2).await;
    assert_eq!(other.gauge(UNCOMPARED), Some(1.0), "the difference is not confirmed");
    assert!(!log.has("each object has been compared once"));
    sleep(QUIET).await;
    assert_eq!(other.gauge(UNCOMPARED), Some(0.0));
    assert!(log.has("each object has been compared once"));
}

#[tokio::test(start_paused = true)]
async fn the_uncompared_keys_of_a_controller_that_cannot_list_are_not_zero() {
    let _guard = Log::default().install();
    let server = server();
    server.fail("list", "configmaps", 403);
    let other = Running::start(&server, "blue");
    rest().await;
    assert_eq!(other.gauge("reknit_shadow_uncompared_keys"), Some(-1.0));
    assert_eq!(other.gauge("reknit_shadow_differing_keys"), None);
}

/// Creates a ConfigMap for each Lamp, and fails for those that have a label.
struct Picky(Api<ConfigMap>);

impl ReconcileKind for Picky {
    type Kind = Lamp;

    async fn reconcile_kind(&self, lamp: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        if !lamp.labels().is_empty() {
            return Err(reknit_reconciler::Error::permanent("the lamp has a label"));
        }
        self.0.create(&PostParams::default(), &map("a", json!({}))).await?;
        Ok(Outcome::done())
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_fails_permanently_does_not_differ_any_more() {
    let _guard = Log::default().install();
    let server = server();
    let shadow = Running::start_controller(&server, |cx| {
        let api = Api::default_namespaced(cx.client());
        Ok(Controller::of::<Lamp>(cx).reconciler(Picky(api)).build())
    });
    rest().await;
    assert_eq!(shadow.differing(), 1.0);
    let lamps: Api<Lamp> = Api::default_namespaced(server.client());
    for (label, differing) in [(json!("yes"), 0.0), (Value::Null, 1.0)] {
        let change = merge(json!({"metadata": {"labels": {"a": label}}}));
        lamps.patch("desk", &PatchParams::default(), &change).await.unwrap();
        rest().await;
        assert_eq!(shadow.differing(), differing, "{label}");
    }
}
