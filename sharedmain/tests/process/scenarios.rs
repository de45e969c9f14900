//! The process under test. An environment variable selects the scenario: its controllers, tasks and faults.
use std::{
    env,
    process::ExitCode,
    thread,
    time::{Duration, SystemTime},
};

use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{ConfigMap, Secret},
        networking::v1::NetworkPolicy,
    },
};
use kube::{
    Api, Client, CustomResource, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::ApiResource,
};
use reknit_apis::{ConversionError, Convertible, Key, kind};
use reknit_injection::{Context, Selection, select};
use reknit_reconciler::{
    Controller, Outcome, Owned, OwnedOptions, Queue, ReconcileKey, ReconcileKind, Result,
};
use reknit_sharedmain::{Main, Task};
use reknit_webhook::{Limits, Webhook};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{io::AsyncReadExt, net::TcpStream, runtime::Runtime};

const SCENARIO: &str = "FAULTY";
/// The label of the ConfigMaps that are reconciled.
pub(crate) const LABEL: &str = "process.reknit.dev/reconciled";

/// Returns whether this executable was started as the process under test.
pub(crate) fn is_process_under_test() -> bool {
    env::var_os(SCENARIO).is_some()
}

/// Returns the environment variable that selects a scenario.
pub(crate) fn scenario_variable(scenario: &str) -> (&'static str, String) {
    (SCENARIO, scenario.to_owned())
}

#[derive(Debug, Clone, clap::Args)]
struct OwnFlags {
    /// A flag of the program
    #[arg(long, default_value = "hello")]
    greeting: String,
}

#[derive(Debug, Clone, clap::Args)]
struct ClashingFlags {
    #[arg(long)]
    server: Option<String>,
}

/// A Kind whose CustomResourceDefinition only some tests install.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(group = "process.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
pub(crate) struct LampSpec {}

kind!(Lamp {});

/// A Kind with two versions, of which no test installs the CustomResourceDefinition.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "process.reknit.dev", version = "v1", kind = "Oven", namespaced)]
pub(crate) struct OvenSpec {
    degrees: u32,
}

kind!(Oven {});

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "process.reknit.dev", version = "v1alpha1", kind = "Oven", namespaced, root = "OldOven")]
pub(crate) struct OldOvenSpec {
    degrees: i32,
}

kind!(OldOven {});

impl Convertible for OldOven {
    type Hub = Oven;

    fn into_hub(self) -> Result<Oven, ConversionError> {
        assert_ne!(self.spec.degrees, 0, "as planned");
        let degrees = self.spec.degrees.try_into().map_err(|_| "an oven does not freeze")?;
        Ok(Oven { metadata: self.metadata, spec: OvenSpec { degrees } })
    }

    fn from_hub(hub: Oven) -> Result<Self, ConversionError> {
        let degrees = hub.spec.degrees.try_into().map_err(|_| "an oven does not melt")?;
        Ok(Self { metadata: hub.metadata, spec: OldOvenSpec { degrees } })
    }
}

pub(crate) fn run() -> ExitCode {
    let main = Main::new("faulty").version("1.2.3").flags::<OwnFlags>().task(|cx| {
        let (flags, shutdown) = (cx.provided::<OwnFlags>()?, cx.shutdown());
        Ok(Task::new("greeter", async move {
            tracing::info!(greeting = flags.greeting, "greeter runs");
            shutdown.wait().await;
            tracing::info!("greeter ends");
            Ok(())
        }))
    });
    match env::var(SCENARIO).unwrap_or_default().as_str() {
        "within a runtime" => Runtime::new().unwrap().block_on(async { main.run() }), // as with #[tokio::main]
        scenario => add_scenario(main, scenario).run(),
    }
}

fn add_scenario(main: Main, scenario: &str) -> Main {
    match scenario {
        "maps" => main.controller(maps),
        "webhook alone" => main.webhook(|_| Ok(Webhook::new("process.reknit.dev"))),
        "ovens" => main.webhook(|_| Ok(Webhook::new("process.reknit.dev").conversion::<OldOven>())),
        "maps and a webhook" => main.controller(maps).webhook(webhook),
        "maps and lamps" => main.controller(maps).controller(lamps),
        "maps, lamps and a webhook" => main.controller(maps).controller(lamps).webhook(webhook),
        "slow maps" => main.controller(slow_maps),
        "children" => main.controller(children),
        "busy" => main.controller(busy),
        "painter" => main.controller(painter).plannable(),
        "painter with hidden colors" => {
            main.controller(painter).plannable().redact(["/spec/podSelector/matchLabels/color"])
        }
        "stamper" => main.controller(stamper).plannable(),
        "metrics" => crate::metrics::add_controllers(main),
        "traps" => main.controller(crate::traps::controller).plannable(),
        "burns" => main.controller(maps).task(|_| {
            thread::spawn(|| {
                loop {
                    burn_cpu();
                }
            });
            Ok(Task::new("burner", async { Ok(()) }))
        }),
        "long name" => main.controller(maps).controller(long_name),
        "twins" => main.controller(maps).controller(maps),
        "task fails" => main.task(|_| Ok(Task::new("wrong", async { Err("no luck".into()) }))),
        "task panics" => main.task(|_| Ok(Task::new("wrong", async { panic!("no luck at all") }))),
        "task fails late" => main.task(|cx| {
            let shutdown = cx.shutdown();
            Ok(Task::new("wrong", async move {
                shutdown.wait().await;
                Err("no luck".into())
            }))
        }),
        "task ends" => main.task(|_| Ok(Task::new("short", async { Ok(()) }))),
        "task hangs" => main.task(|_| Ok(Task::new("hung", std::future::pending()))),
        "task blocks" => main.task(|_| {
            Ok(Task::new("blocking", async {
                tracing::info!("blocking");
                loop {
                    thread::sleep(Duration::from_secs(1));
                }
            }))
        }),
        "constructor fails" => main.task(|_| Err("no such file".into())),
        "constructor panics" => main.task(|_| panic!("cyclic Inject: A → B → A")),
        "flags clash" => main.flags::<ClashingFlags>(),
        _ => main,
    }
}

/// Selects the objects in the namespace of the test.
pub(crate) fn selection() -> Selection {
    select().namespace(&env::var("WATCHED").unwrap_or_default())
}

fn maps(cx: &Context) -> Result<Controller> {
    let build = Controller::selected::<ConfigMap>(cx, selection().label(LABEL, "yes"));
    Ok(build.name("maps").reconciler(Maps(cx.client())).build())
}

/// A controller whose passes are slow after a second.
fn slow_maps(cx: &Context) -> Result<Controller> {
    let build = Controller::selected::<ConfigMap>(cx, selection().label(LABEL, "yes"));
    Ok(build.name("maps").slow_after(Duration::from_secs(1)).reconciler(Maps(cx.client())).build())
}

/// A version of a controller that gives each ConfigMap a child, whose color the environment sets. The color `changing` is another
/// one in each pass.
fn children(cx: &Context) -> Result<Controller> {
    let mut build = Controller::selected::<ConfigMap>(cx, selection().label(LABEL, "yes")).name("maps");
    let children = build.owns_in(&cx.informer(selection().label("color", "")), OwnedOptions::default());
    Ok(build.reconciler(ChildPainter { children, color: env::var("COLOR")? }).build())
}

struct ChildPainter {
    children: Owned<ConfigMap>,
    color: String,
}

impl ReconcileKind for ChildPainter {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _status: &mut ()) -> Result<Outcome> {
        let name = format!("{}-child", map.name_any());
        let color = match &*self.color {
            "changing" => format!("{:?}", SystemTime::now()),
            color => color.to_owned(),
        };
        let child = json!({"metadata": {"name": name, "labels": {"color": ""}}, "data": {"color": color}});
        self.children.apply(map, serde_json::from_value(child)?).await?;
        tracing::info!("reconcile of {} ends", map.name_any());
        Ok(Outcome::done())
    }
}

/// A controller whose name is too long for a lease.
fn long_name(cx: &Context) -> Result<Controller> {
    Ok(Controller::selected::<ConfigMap>(cx, selection())
        .name(&"x".repeat(300))
        .reconciler(Maps(cx.client()))
        .build())
}

pub(crate) fn lamps(cx: &Context) -> Result<Controller> {
    Ok(Controller::selected::<Lamp>(cx, selection()).reconciler(Lamps).build())
}

/// A controller that reconciles a hundred keys again and again.
fn busy(cx: &Context) -> Result<Controller> {
    let build = Controller::named("busy", cx);
    let queue = build.queue();
    (0..100).for_each(|n| queue.add(Key::new("busy", &format!("key-{n}"))));
    Ok(build.reconciler(Busy(queue)))
}

/// A controller that gives each ConfigMap children in the color of this version, and its value as an annotation.
fn painter(cx: &Context) -> Result<Controller> {
    let mut build = Controller::selected::<ConfigMap>(cx, selection().label(LABEL, "yes")).name("painter");
    let (policies, secrets) = (build.owns::<NetworkPolicy>(), build.owns::<Secret>());
    let color = env::var("COLOR").unwrap_or_default();
    Ok(build.reconciler(Painter { policies, secrets, color }).build())
}

struct Painter {
    policies: Owned<NetworkPolicy>,
    secrets: Owned<Secret>,
    color: String,
}

impl ReconcileKind for Painter {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let value = map.data.as_ref().and_then(|data| data.get("value"));
        let metadata = json!({"name": map.name_any(), "annotations": {"value": value}});
        let selector = json!({"podSelector": {"matchLabels": {"color": self.color}}});
        let policy = serde_json::from_value(json!({"metadata": metadata, "spec": selector}))?;
        self.policies.apply(map, policy).await?;
        let data = json!({ "color": ByteString(self.color.clone().into_bytes()) });
        let secret = serde_json::from_value(json!({"metadata": {"name": map.name_any()}, "data": data}))?;
        self.secrets.apply(map, secret).await?;
        Ok(Outcome::done())
    }
}

/// A Kind without a status subresource, which only some tests install.
pub(crate) fn stamps() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("process.reknit.dev", "v1", "Stamp"), "stamps")
}

fn stamper(cx: &Context) -> Result<Controller> {
    let build = Controller::selected::<ConfigMap>(cx, selection().label(LABEL, "yes")).name("stamper");
    let color = env::var("COLOR").unwrap_or_default();
    Ok(build.reconciler(Stamper { client: cx.client(), color }).build())
}

/// Writes the status of the stamp of a map, by one request for each field.
struct Stamper {
    client: Client,
    color: String,
}

impl ReconcileKind for Stamper {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let namespace = map.namespace().unwrap_or_default();
        let stamps: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &namespace, &stamps());
        for field in ["color", "shade"] {
            let patch = Patch::Merge(json!({"status": {field: self.color}}));
            stamps.patch(&map.name_any(), &PatchParams::default(), &patch).await?;
        }
        Ok(Outcome::done())
    }
}

/// Lets a task that is no part of the pass add the key again.
struct Busy(Queue);

impl ReconcileKey for Busy {
    async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
        let (queue, key) = (self.0.clone(), key.clone());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            queue.add(key);
        });
        Ok(Outcome::done())
    }
}

/// Burns CPU time. The test of profiles looks for the name of this function.
#[inline(never)]
fn burn_cpu() {
    let burnt = (0..100_000_u64).fold(0, |sum: u64, n| std::hint::black_box(sum.wrapping_mul(31) ^ n));
    std::hint::black_box(burnt);
}

/// Waits for a byte from a server.
pub(crate) async fn ask(address: &str) -> Result<u8> {
    Ok(TcpStream::connect(address).await?.read_u8().await?)
}

/// A reconciler that reads a Secret, asks a server, sleeps, blocks its thread or panics as the data of the ConfigMap says.
struct Maps(Client);

impl ReconcileKind for Maps {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _status: &mut ()) -> Result<Outcome> {
        let name = map.name_any();
        tracing::info!("reconcile of {name} begins");
        tracing::debug!("a debug message");
        let value = |key: &str| map.data.as_ref().and_then(|data| data.get(key));
        if let Some(why) = value("panic") {
            panic!("{why}");
        }
        if let Some(secret) = value("secret") {
            let namespace = map.namespace().unwrap_or_default();
            Api::<Secret>::namespaced(self.0.clone(), &namespace).get(secret).await?;
        }
        if let Some(address) = value("ask") {
            ask(address).await?;
        }
        if let Some(milliseconds) = value("sleep") {
            tokio::time::sleep(Duration::from_millis(milliseconds.parse()?)).await;
        }
        if let Some(milliseconds) = value("block") {
            thread::sleep(Duration::from_millis(milliseconds.parse()?));
        }
        tracing::info!("reconcile of {name} ends");
        Ok(Outcome::done())
    }
}

/// A webhook that refuses invalid content of the ConfigMaps that configure the process.
fn webhook(_: &Context) -> Result<Webhook> {
    let limits = Limits { quiet_period: Duration::from_millis(100), ..Limits::default() };
    Ok(Webhook::new(&env::var("WATCHED")?).limits(limits))
}

struct Lamps;

impl ReconcileKind for Lamps {
    type Kind = Lamp;

    async fn reconcile_kind(&self, lamp: &Lamp, _status: &mut ()) -> Result<Outcome> {
        tracing::info!("lamp {} seen", lamp.name_any());
        Ok(Outcome::done())
    }
}
