//! Recorded passes, which run again.

use std::{
    collections::BTreeMap,
    error::Error as StdError,
    fs,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use reknit_apis::{KReference, Key};
use reknit_injection::{
    Clock, Config, FromConfigMap, Informer,
    internal::{Recordings, redaction},
};
use reknit_reconciler::{Kinds, ResultExt, TrackedAny};

use super::*;
use crate::eventually;

const PASSWORD: &str = "correct horse";
const PASSWORD_BASE64: &str = "Y29ycmVjdCBob3JzZQ==";

#[derive(Default)]
struct Settings {
    color: String,
}

impl FromConfigMap for Settings {
    const NAME: &'static str = "config-colors";

    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn StdError + Send + Sync>> {
        Ok(Self { color: data.get("color").cloned().unwrap_or_default() })
    }
}

/// Applies a copy of the password to the ConfigMap `copy`.
struct Copier {
    secrets: Informer<Secret>,
    maps: Informer<ConfigMap>,
    copies: Owned<ConfigMap>,
    settings: Config<Settings>,
    clock: Clock,
    /// The name of a ConfigMap that is read.
    reads: &'static str,
    suffix: &'static str,
}

impl ReconcileKind for Copier {
    type Kind = Namespace;

    async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
        let secret = self.secrets.get(&Key::new("shop", "db")).ok_or("there is no Secret")?;
        let encoded = secret.data.as_ref().ok_or("it is empty")?["password"].clone();
        let password = String::from_utf8(encoded.0.clone())?;
        let present = self.maps.get(&Key::new("shop", self.reads)).is_some();
        let time = self.clock.now().to_string();
        let text = format!("{password} {} {present} {time}{}", self.settings.get().color, self.suffix);
        let mut copy = config_map("copy", &text);
        copy.data.get_or_insert_default().insert("base64".into(), json!(encoded).as_str().unwrap().into());
        self.copies.apply(shop, copy).await.context(format_args!("failed to copy {password}"))?;
        Ok(Outcome::done())
    }
}

fn copier(reads: &'static str, suffix: &'static str) -> impl Fn(&Context) -> Result<Controller> {
    move |cx| {
        let mut build = Controller::of::<Namespace>(cx);
        let copies = build.owns();
        let (secrets, maps, settings, clock) = (cx.get(), cx.get(), build.config(), cx.get());
        Ok(build.reconciler(Copier { secrets, maps, copies, settings, clock, reads, suffix }).build())
    }
}

fn state() -> Given {
    let applied = json!({"data": {"password": PASSWORD_BASE64}}).to_string();
    let secret = json!({
        "metadata": {
            "name": "db", "namespace": "shop",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": applied},
        },
        "data": {"password": PASSWORD_BASE64, "port": "NTQzMg=="},
    });
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let mut settings = config_map("config-colors", "v");
    settings.metadata.namespace = Some("system".into());
    settings.data.get_or_insert_default().insert("color".into(), "blue".into());
    given(shop()).and(secret).and(settings).system_namespace("system").failing(Verb::Patch, "configmaps", 403)
}

/// Runs the pass and returns the file in which it is recorded, and its result.
async fn record(
    folder: &Path,
    given: Given,
    controller: impl Fn(&Context) -> Result<Controller>,
) -> (PathBuf, Effects) {
    let constructor = |cx: &Context| {
        let recordings: Recordings = cx.get();
        redaction(&cx.informers()).set(&["/data/color".into()]);
        recordings.set_folder(Some(folder));
        controller(cx)
    };
    let effects = given.reconcile(constructor, "shop").await;
    let file = eventually("the recorded pass", Duration::from_secs(60), async || {
        let mut entries = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        entries.find(|path| path.extension().is_some_and(|extension| extension == "json"))
    })
    .await;
    (file, effects)
}

#[tokio::test]
async fn a_recorded_pass_fails_again_with_the_same_error_until_it_is_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let (file, effects) = record(folder.path(), state(), copier("absent", "")).await;
    let error = effects.result.unwrap_err().in_full();

    let pass = recorded(&file);
    assert_eq!(pass.error(), error.replace(PASSWORD, "redacted"));
    let again = pass.reconcile(copier("absent", "")).await;
    assert_eq!(again.result.as_ref().unwrap_err().in_full(), error.replace(PASSWORD, "redacted"));
    assert_eq!(again.writes(), ["patch configmaps shop/copy"]);
    assert!(again.write(0).body["data"]["k"].as_str().unwrap().starts_with("redacted redacted false 2"));

    // The answer was that to another body.
    let repaired = recorded(&file).reconcile(copier("absent", "!")).await;
    assert!(repaired.result.is_ok(), "{:?}", repaired.result);
    assert!(repaired.object::<ConfigMap>("shop/copy").is_some());
}

#[tokio::test]
async fn no_value_of_a_secret_and_none_at_a_named_path_is_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = record(folder.path(), state(), copier("absent", "")).await;
    let text = fs::read_to_string(file).unwrap();
    for value in [PASSWORD, PASSWORD_BASE64, "5432", "NTQzMg==", "blue", "Bearer"] {
        assert!(!text.contains(value), "{value} in {text}");
    }
    assert!(text.contains(r#""name": "db""#) && text.contains(r#""formatVersion": 1"#), "{text}");
}

#[tokio::test]
#[should_panic(expected = "ConfigMap shop/other of v1")]
async fn a_read_that_the_file_does_not_know_fails_the_test() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = record(folder.path(), state(), copier("absent", "")).await;
    recorded(file).reconcile(copier("other", "")).await;
}

/// The objects that a pass reads before it fails.
#[derive(Clone, Copy)]
enum Reads {
    Nothing,
    List,
    Kind,
    Settings,
    Pod,
}

struct Reader {
    reads: Reads,
    client: Client,
    maps: Informer<ConfigMap>,
    sinks: TrackedAny,
    settings: Config<Settings>,
}

impl ReconcileKind for Reader {
    type Kind = Namespace;

    async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
        match self.reads {
            Reads::Nothing => {}
            Reads::List => drop(self.maps.list().count()),
            Reads::Kind => drop(self.sinks.get(shop, &KReference::of(&lamp())).await?),
            Reads::Settings => drop(self.settings.get()),
            Reads::Pod => drop(Api::<Pod>::namespaced(self.client.clone(), "shop").get_opt("web").await?),
        }
        Err("as planned".into())
    }
}

fn reader(reads: Reads) -> impl Fn(&Context) -> Result<Controller> {
    move |cx| {
        let mut build = Controller::of::<Namespace>(cx);
        build.allows(everything("", "pods"));
        let (client, sinks, settings) = (build.client(), build.track_any(Kinds::any()), build.config());
        Ok(build.reconciler(Reader { reads, client, maps: cx.get(), sinks, settings }).build())
    }
}

#[tokio::test]
async fn lists_kinds_config_maps_and_requests_that_the_file_does_not_know_fail_the_test() {
    let folder = tempfile::tempdir().unwrap();
    let given = given(shop()).system_namespace("system");
    let (file, _) = record(folder.path(), given, reader(Reads::Nothing)).await;
    assert_eq!(recorded(&file).reconcile(reader(Reads::Nothing)).await.causes_of("shop"), "");
    let mut accepted = Vec::new();
    for (reads, unknown) in [
        (Reads::List, "the list of ConfigMap of v1"),
        (Reads::Kind, "the Kind Lamp of demo.reknit.dev/v1"),
        (Reads::Settings, "ConfigMap config-colors"),
        (Reads::Pod, "GET /api/v1/namespaces/shop/pods/web"),
    ] {
        let panic = AssertUnwindSafe(recorded(&file).reconcile(reader(reads))).catch_unwind().await.err();
        let message = panic.and_then(|panic| panic.downcast::<String>().ok()).unwrap_or_default();
        if !message.lines().any(|line| line.trim() == unknown) {
            accepted.push((unknown, message));
        }
    }
    assert!(accepted.is_empty(), "{accepted:?}");
}

#[tokio::test]
async fn a_test_can_add_what_the_repaired_controller_reads() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = record(folder.path(), state(), copier("absent", "")).await;
    let effects = recorded(file).and(config_map("other", "v")).reconcile(copier("other", "!")).await;
    assert!(effects.result.is_ok(), "{:?}", effects.result);
}

#[tokio::test]
async fn a_test_can_add_what_the_repaired_controller_gets_without_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    let given = given(shop()).system_namespace("system");
    let (file, _) = record(folder.path(), given, reader(Reads::Nothing)).await;
    let web = json!({"metadata": {"namespace": "shop", "name": "web"}});
    let web: Pod = serde_json::from_value(web).unwrap();
    let effects = recorded(file).and(web).reconcile(reader(Reads::Pod)).await;
    assert_eq!(effects.result.unwrap_err().in_full(), "as planned");
}

#[tokio::test]
#[should_panic(expected = "the file records a pass of the controller ")]
async fn the_file_of_another_controller_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = record(folder.path(), state(), copier("absent", "")).await;
    let other = |cx: &Context| {
        Ok(Controller::of::<Namespace>(cx).name("other").reconciler(AllWrites(cx.client())).build())
    };
    recorded(file).reconcile(other).await;
}

/// Sends these requests of its test, and fails.
struct Requester(Client, Requests);

type Requests = fn(Client) -> BoxFuture<'static, kube::Result<()>>;

impl ReconcileKind for Requester {
    type Kind = Namespace;

    async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
        match (self.1)(self.0.clone()).await {
            Ok(()) => Err("as planned".into()),
            Err(error) => Err(error.into()),
        }
    }
}

fn requester(requests: Requests) -> impl Fn(&Context) -> Result<Controller> {
    move |cx| {
        let mut build = Controller::of::<Namespace>(cx);
        build.allows(everything("", "configmaps"));
        let client = build.client();
        Ok(build.reconciler(Requester(client, requests)).build())
    }
}

fn maps(client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, "shop")
}

fn labels(selector: &str) -> ListParams {
    ListParams::default().labels(selector)
}

#[tokio::test]
async fn only_answers_about_an_object_or_a_selection_make_it_known() {
    const MERGE: Requests = |client| {
        async move {
            let change = Patch::Merge(json!({"data": {"k": "w"}}));
            maps(client).patch("web", &PatchParams::default(), &change).await.map(drop)
        }
        .boxed()
    };
    const GET: Requests = |client| async move { maps(client).get_opt("web").await.map(drop) }.boxed();
    const CREATE: Requests = |client| {
        async move { maps(client).create(&PostParams::default(), &config_map("web", "v")).await.map(drop) }
            .boxed()
    };
    const DELETE: Requests =
        |client| async move { maps(client).delete("web", &Default::default()).await.map(drop) }.boxed();
    const LIST: Requests =
        |client| async move { maps(client).list(&ListParams::default()).await.map(drop) }.boxed();
    const LIST_A: Requests =
        |client| async move { maps(client).list(&labels("a=1")).await.map(drop) }.boxed();
    const LIST_B: Requests =
        |client| async move { maps(client).list(&labels("a=2")).await.map(drop) }.boxed();
    let path = "/api/v1/namespaces/shop/configmaps";
    let (get, merge, list) = (format!("GET {path}/web"), format!("PATCH {path}/web"), format!("GET {path}?"));
    let delete = format!("DELETE {path}/web");
    for (verb, sent, repaired, unknown) in [
        (Verb::Patch, MERGE, GET, &*get),
        (Verb::Patch, MERGE, DELETE, &delete),
        (Verb::Create, CREATE, LIST, &list),
        (Verb::Create, CREATE, MERGE, &merge),
        (Verb::Update, LIST_A, LIST_B, &format!("{list}&labelSelector=a%3D2")),
        (Verb::Update, LIST_A, LIST, &list),
        (Verb::Update, LIST, LIST_B, ""),
        (Verb::Update, LIST_A, LIST_A, ""),
        (Verb::Update, GET, MERGE, ""),
        (Verb::Update, DELETE, GET, ""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let given = given(shop()).failing(verb, "configmaps", 422);
        let (file, _) = record(folder.path(), given, requester(sent)).await;
        let replay = recorded(&file).reconcile(requester(repaired));
        let panic = AssertUnwindSafe(replay).catch_unwind().await.err();
        let message = panic.and_then(|panic| panic.downcast::<String>().ok()).unwrap_or_default();
        let named = message.lines().find_map(|line| line.strip_prefix("  ")).unwrap_or_default();
        assert!(named.starts_with(unknown) && named.is_empty() == unknown.is_empty(), "{unknown}: {message}");
    }
}

/// Lists all ConfigMaps and fails.
struct Lister(Informer<ConfigMap>);

impl ReconcileKind for Lister {
    type Kind = Namespace;

    async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
        Err(format!("{} are too many", self.0.list().count()).into())
    }
}

fn lister(cx: &Context) -> Result<Controller> {
    Ok(Controller::of::<Namespace>(cx).reconciler(Lister(cx.get())).build())
}

#[tokio::test]
#[should_panic(expected = "the file leaves out ")]
async fn a_file_that_was_cut_cannot_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let large = |given: Given, n| given.and(config_map(&format!("m{n}"), &"x".repeat(100_000)));
    let (file, effects) = record(folder.path(), (0..30).fold(given(shop()), large), lister).await;
    assert_eq!(effects.result.unwrap_err().in_full(), "30 are too many");
    assert!(fs::metadata(&file).unwrap().len() <= 1 << 20);
    recorded(file).reconcile(lister).await;
}

/// Never ends.
struct Waiter;

impl ReconcileKind for Waiter {
    type Kind = Namespace;

    async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_dropped_pass_is_recorded_and_a_successful_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let constructor = |cx: &Context| {
        cx.get::<Recordings>().set_folder(Some(folder.path()));
        Ok(Controller::of::<Namespace>(cx).reconciler(Waiter).build())
    };
    let pass = given(shop()).reconcile(constructor, "shop");
    assert!(tokio::time::timeout(Duration::from_millis(100), pass).await.is_err());
    let succeeding = |cx: &Context| {
        cx.get::<Recordings>().set_folder(Some(folder.path()));
        copier("absent", "")(cx)
    };
    let effects =
        state().failing_times(Verb::Patch, "configmaps", 500, 0).reconcile(succeeding, "none").await;
    assert!(effects.result.is_ok());
    let files =
        || fs::read_dir(folder.path()).into_iter().flatten().filter_map(Result::ok).collect::<Vec<_>>();
    let is_file = |path: &Path| path.extension().is_some_and(|extension| extension == "json");
    let file = eventually("the recorded pass", Duration::from_secs(60), async || {
        files().into_iter().map(|entry| entry.path()).find(|path| is_file(path))
    });
    assert!(recorded(file.await).error().starts_with("the pass was dropped"));
    assert_eq!(files().len(), 1);
}
