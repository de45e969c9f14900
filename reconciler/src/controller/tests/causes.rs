//! The causes for which keys are queued.

use std::io;

use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::{
    Resource,
    api::{ObjectMeta, Patch, PatchParams},
};
use reknit_injection::{Features, internal::CurrentPass, select};
use reknit_leadership::Leadership;
use reknit_testing::InformerExt;
use tracing_subscriber::fmt::MakeWriter;

use super::*;
use crate::{Owned, Tracked, owned::controller_reference, queue::Cause};

fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some("default".into()),
        resource_version: Some("7".into()),
        ..ObjectMeta::default()
    }
}

/// Takes all queued keys, with their causes as text.
fn take_causes(queue: &Queue) -> Vec<(String, String)> {
    let mut taken = Vec::new();
    while let Some(claimed) = queue.next().now_or_never().flatten() {
        let Some(claimed) = queue.begin_or_hold(claimed) else { continue };
        taken.push((claimed.name.clone(), claimed.causes.to_string()));
    }
    taken.sort();
    taken
}

fn causes_of_a(queue: &Queue) -> String {
    let taken = take_causes(queue);
    let [(name, causes)] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!(name, "a");
    causes.clone()
}

#[tokio::test(start_paused = true)]
async fn a_queued_key_knows_what_led_to_it() {
    let builder = Context::builder("test", ApiServer::new().client());
    let cx = builder.preloaded(vec![map("a")]).system_namespace(Some("system".into())).build();
    let mut build = Controller::of::<ConfigMap>(&cx);
    let services: Tracked<Service> = build.track();
    let _secrets: Owned<Secret> = build.owns();
    build.watch(&cx.get::<Informer<Pod>>()).keys(|_| [key("a")]);
    let _config = build.config::<Features>();
    let queue = build.queue();
    let passes = Passes::default();
    let act = |_| at_once(|| Ok(Outcome::done()));
    let _controller = build.reconciler(TestReconciler { act, passes }).build();
    let a: ConfigMap = serde_json::from_value(map("a")).unwrap();
    let maps: Informer<ConfigMap> = cx.get();

    maps.insert(ConfigMap { metadata: meta("a"), ..ConfigMap::default() });
    assert_eq!(causes_of_a(&queue), "the object changed (7)");
    maps.remove(&key("a"));
    assert_eq!(causes_of_a(&queue), "the object deleted");
    maps.insert(a.clone());
    assert_eq!(causes_of_a(&queue), "the object added (1)");

    services.get(&a, "web");
    let informer: Informer<Service> = cx.get();
    informer.insert(Service { metadata: meta("web"), ..Service::default() });
    assert_eq!(causes_of_a(&queue), "services default/web added (7), tracked");
    informer.remove(&key("web"));
    assert_eq!(causes_of_a(&queue), "services default/web deleted, tracked");

    let mut secret = Secret { metadata: meta("s"), ..Secret::default() };
    let mut owner = a.clone();
    owner.meta_mut().uid = Some("uid-a".into());
    secret.metadata.owner_references = Some(vec![controller_reference(&owner)]);
    cx.get::<Informer<Secret>>().insert(secret);
    assert_eq!(causes_of_a(&queue), "secrets default/s added (7), owned");

    cx.get::<Informer<Pod>>().insert(Pod { metadata: meta("p"), ..Pod::default() });
    assert_eq!(causes_of_a(&queue), "pods default/p added (7), watched");

    let features =
        json!({"metadata": {"namespace": "system", "name": "config-features"}, "data": {"x": "Enabled"}});
    let selection = select().namespace("system").field("metadata.name", "config-features");
    cx.informer(selection).insert(serde_json::from_value::<ConfigMap>(features).unwrap());
    assert!(take_causes(&queue).contains(&("a".into(), "config-features changed".into())));

    queue.resync_where(|key| key.name == "a");
    assert_eq!(causes_of_a(&queue), "resync");
    queue.add_after(key("a"), Duration::from_secs(1));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(causes_of_a(&queue), "after a wait");
    queue.add_because(key("a"), "the probe ended");
    queue.add(key("a"));
    queue.add_slow(key("a"));
    assert_eq!(causes_of_a(&queue), "added to the queue: the probe ended; added to the queue");

    let counted = cx.metrics().gather();
    let family = counted.iter().find(|family| family.name() == "reknit_reconcile_causes_total").unwrap();
    let labels = |metric: &prometheus::proto::Metric| -> Vec<String> {
        metric.get_label().iter().map(|label| label.value().to_owned()).collect()
    };
    let of_services =
        family.get_metric().iter().find(|metric| labels(metric).contains(&"services".to_owned()));
    assert_eq!(labels(of_services.unwrap()), ["tracked", "configmaps", "services"]);
    assert_eq!(of_services.unwrap().get_counter().get_value(), 2.0);
}

/// A buffer for log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// While a process has only one subscriber, tracing does not ask it for code that another thread reaches first.
fn other_subscriber() -> tracing::Dispatch {
    tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default())
}

#[tokio::test(start_paused = true)]
async fn the_log_lines_of_a_pass_name_its_causes_and_a_retry_names_the_error() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(lines.clone()).finish();
    let _guards = (tracing::subscriber::set_default(subscriber), other_subscriber());
    let act = |n| at_once(move || if n < 2 { Err("as planned".into()) } else { Ok(Outcome::done()) });
    let running = start(&context(&["a"]), Leadership::always(), act, |build| build);
    running.queue.add_because(key("a"), "the test began");
    running.wait_for_passes(3).await;
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    let failures: Vec<_> = text.lines().filter(|line| line.contains("the pass failed")).collect();
    assert_eq!(failures.len(), 2, "{text}");
    assert!(failures[0].contains("causes=added to the queue: the test began"), "{text}");
    assert!(failures[1].contains("causes=retry 1 after: as planned"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_start_and_a_promotion_are_causes() {
    let mut build = Controller::named("keys", &context(&[]));
    build.add_key(key("a"));
    assert_eq!(causes_of_a(&build.queue()), "start");

    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(lines.clone()).finish();
    let _guards = (tracing::subscriber::set_default(subscriber), other_subscriber());
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let act = |_| at_once(|| Err(Error::permanent("as planned")));
    let running = start(&context(&["a"]), leadership, act, |build| build);
    writers[0].lead(Instant::now() + Duration::from_secs(1000), "test");
    running.wait_for_passes(1).await;
    tokio::task::yield_now().await;
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    assert!(text.contains("causes=leadership changed"), "{text}");
}

/// The keys of the next passes, and whether they are prompted.
fn take_prompts(queue: &Queue) -> Vec<(String, bool)> {
    let mut taken = Vec::new();
    while let Some(claimed) = queue.next().now_or_never().flatten() {
        taken.push((claimed.name.clone(), claimed.causes.is_prompted()));
    }
    taken
}

#[tokio::test(start_paused = true)]
async fn what_continues_a_pass_is_prompted_if_the_pass_was() {
    let server = ApiServer::new();
    let stored =
        ConfigMap { metadata: ObjectMeta { resource_version: None, ..meta("a") }, ..ConfigMap::default() };
    let cx = Context::preloaded("test", server.client(), vec![server.insert(&stored)]);
    let build = Controller::of::<ConfigMap>(&cx);
    let queue = build.queue();
    let act = |_| at_once(|| Ok(Outcome::done()));
    let _controller = build.reconciler(TestReconciler { act, passes: Passes::default() }).build();
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(cx.client(), "default");
    for prompted in [false, true] {
        let writes = async {
            queue.add(key("a"));
            assert_eq!(take_prompts(&queue), [("a".into(), prompted)], "added within a pass");
            queue.resync();
            assert_eq!(take_prompts(&queue), [("a".into(), prompted)], "a resync within a pass");
            queue.add_after(key("a"), Duration::from_secs(1));
            let write = json!({"data": {"prompted": prompted.to_string()}});
            maps.patch("a", &PatchParams::default(), &Patch::Merge(write)).await.unwrap();
            assert_eq!(take_prompts(&queue), [("a".into(), prompted)], "an own write");
        };
        CurrentPass::begin(&"web".into(), &key("a").into(), prompted).scope(writes).await;
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(take_prompts(&queue), [("a".into(), prompted)], "after a wait");
        queue.add_continuing(key("a"), Cause::Start, prompted);
        let claimed = queue.next().await.unwrap();
        queue.retry(&claimed, Duration::ZERO..=Duration::ZERO, "no");
        drop(claimed);
        assert_eq!(take_prompts(&queue), [("a".into(), prompted)], "a retry");
        queue.forget(&key("a"));
    }
    let pass = CurrentPass::begin(&"web".into(), &key("b").into(), false);
    let by = format!(" by pass {} of web default/b", pass.number);
    let write = Patch::Merge(json!({"data": {"by": "a pass"}}));
    pass.scope(async { maps.patch("a", &PatchParams::default(), &write).await.unwrap() }).await;
    let causes = causes_of_a(&queue);
    assert!(causes.starts_with("the object changed (") && causes.ends_with(&by), "{causes}");
    queue.resync_for(&Cause::resync());
    assert_eq!(take_prompts(&queue), [("a".into(), false)]);
    queue.resync_for(&Cause::resync());
    maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"by": "a user"}}))).await.unwrap();
    assert_eq!(take_prompts(&queue), [("a".into(), true)], "a write outside of passes");
}
