#!/usr/bin/env bash
# Writes a new controller project into the current folder, which must be empty: a Kind, its controller, a table test,
# and the manifests and Dockerfile that deploy it.
#
#   hack/new-kind.sh [--path] GROUP VERSION KIND    for example: example.com v1 Greeting
#
# The project depends on reknit by git, or with --path on this checkout.
set -euo pipefail

reknit=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# refuse MESSAGE: prints the message and exits with the status of a usage error.
refuse() {
  echo "new-kind.sh: $1" >&2
  exit 2
}

dependency='git = "https://github.com/reknit/reknit"'
if [ "${1-}" = --path ]; then
  dependency="path = \"$reknit\""
  shift
fi
[ $# -eq 3 ] || refuse "usage: hack/new-kind.sh [--path] GROUP VERSION KIND, for example: example.com v1 Greeting"
group=$1 version=$2 kind=$3

label='[a-z0-9]([-a-z0-9]*[a-z0-9])?'
[[ $group =~ ^$label(\.$label)+$ && ${#group} -le 253 ]] ||
  refuse "invalid group \"$group\": use a domain name in lower case, for example example.com"
case $group in
  k8s.io | *.k8s.io | kubernetes.io | *.kubernetes.io)
    refuse "reserved group \"$group\": Kubernetes protects its own groups; use a domain of yours" ;;
esac
[[ $version =~ ^v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?$ ]] ||
  refuse "invalid version \"$version\": use one like v1 or v1alpha1"
[[ $kind =~ ^[A-Z][A-Za-z0-9]*$ && ${#kind} -le 40 ]] ||
  refuse "invalid Kind \"$kind\": use a singular name in CamelCase of at most 40 letters, for example Greeting"
case $kind in
  Box | ConditionSet | Context | Controller | CustomResource | Deserialize | DuckStatus | Err | Event | ExitCode | \
    JsonSchema | KRShaped | None | Ok | Option | Outcome | ReconcileKind | Reconciler | Result | Self | Serialize | \
    Some | String | Vec | Want)
    refuse "reserved Kind \"$kind\": the generated code uses this name; choose another Kind" ;;
esac
[ -z "$(find . -mindepth 1 -maxdepth 1 ! -name .git -print -quit)" ] ||
  refuse "$PWD is not empty: run this script in an empty folder"

singular=$(tr '[:upper:]' '[:lower:]' <<<"$kind")
case $singular in
  *[sxz] | *ch | *sh) plural=${singular}es ;;
  *[!aeiou]y) plural=${singular%y}ies ;;
  *) plural=${singular}s ;;
esac
name=$singular-controller
crate=${singular}_controller

# file PATH: writes the standard input to the file, and prints its path.
file() {
  mkdir -p "$(dirname "$1")"
  cat >"$1"
  echo "$1"
}

file Cargo.toml <<END
[package]
name = "$name"
version = "0.1.0"
edition = "2024"
rust-version = "1.95"
publish = false
default-run = "$name"

[dependencies]
reknit = { $dependency }
# The dependencies of a Kind. kube 4 and k8s-openapi 0.28 belong together.
k8s-openapi = { version = "0.28", features = ["latest"] }
kube = { version = "4.2", default-features = false, features = ["client", "derive", "ring", "rustls-tls"] }
schemars = "1"
serde = { version = "1", features = ["derive"] }
serde_json = "1"
serde_yaml_ng = "0.10"

[dev-dependencies]
tokio = { version = "1", features = ["macros", "rt"] }

# Builds more slowly, and makes the program a quarter smaller.
[profile.release]
codegen-units = 1
lto = "fat"
END

# The versions that reknit is tested with. Cargo removes the packages that this project does not need.
cp "$reknit/Cargo.lock" Cargo.lock
echo Cargo.lock

file .gitignore <<END
/target
END

file src/main.rs <<END
//! The $kind controller.

use std::process::ExitCode;

use ${crate}::controller;
use reknit::prelude::*;

fn main() -> ExitCode {
    sharedmain::main("$name", &[controller])
}
END

file src/bin/crd.rs <<END
//! Prints the CustomResourceDefinition: \`cargo run --bin crd > config/300-$singular.yaml\`.

use ${crate}::$kind;
use kube::CustomResourceExt;
use reknit::apis::kubernetes_schema;

fn main() -> Result<(), serde_yaml_ng::Error> {
    print!("{}", serde_yaml_ng::to_string(&kubernetes_schema($kind::crd()))?);
    Ok(())
}
END

file src/lib.rs <<END
//! The Kind $kind and its controller.

mod controller;
mod kind;

pub use controller::controller;
pub use kind::{$kind, ${kind}Spec};
END

file src/kind.rs <<END
//! The Kind $kind.

use kube::CustomResource;
use reknit::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "$group", version = "$version", kind = "$kind", plural = "$plural", namespaced, status = "DuckStatus")]
#[kube(printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"))]
#[serde(rename_all = "camelCase")]
pub struct ${kind}Spec {
    /// A first field.
    pub text: String,
}

kind!($kind { status: DuckStatus, conditions: knative() });
END

file src/controller.rs <<END
//! The controller of ${kind}s.

use reknit::prelude::*;

use crate::$kind;

/// Watches ${kind}s.
pub fn controller(cx: &Context) -> Result<Controller> {
    Ok(Controller::of::<$kind>(cx).reconciler(Reconciler).build())
}

struct Reconciler;

impl ReconcileKind for Reconciler {
    type Kind = $kind;

    async fn reconcile_kind(&self, object: &$kind, status: &mut DuckStatus) -> Result<Outcome> {
        let mut conditions = $kind::CONDITIONS.manage(status);
        if object.spec.text.is_empty() {
            conditions.mark_false("Ready", "NoText", "spec.text is empty");
        } else {
            conditions.mark_true("Ready");
        }
        Ok(Outcome::done())
    }
}
END

file tests/passes.rs <<END
//! Table tests of single reconciles.

use ${crate}::{$kind, ${kind}Spec, controller};
use reknit::{
    prelude::*,
    testing::{Want, given, nothing, table},
};

fn object_with_text(text: &str) -> $kind {
    let mut object = $kind::new("x", ${kind}Spec { text: text.into() });
    object.metadata.namespace = Some("default".into());
    object
}

fn ready(mut object: $kind) -> $kind {
    let status = object.status.get_or_insert_default();
    $kind::CONDITIONS.manage(status).mark_true("Ready");
    object
}

fn unready(mut object: $kind) -> $kind {
    let status = object.status.get_or_insert_default();
    $kind::CONDITIONS.manage(status).mark_false("Ready", "NoText", "spec.text is empty");
    object
}

#[tokio::test]
async fn an_object_with_text_is_ready() {
    let (full, empty) = (object_with_text("hello"), object_with_text(""));
    table(controller)
        .row("with text", "default/x", given(full.clone()), Want::done().status(&ready(full)))
        .row("without text", "default/x", given(empty.clone()), Want::done().status(&unready(empty)))
        .row("absent", "default/x", nothing(), Want::skip())
        .run()
        .await;
}
END

file config/100-namespace.yaml <<END
apiVersion: v1
kind: Namespace
metadata:
  name: $name
  labels:
    pod-security.kubernetes.io/enforce: restricted
END

file config/200-rbac.yaml <<END
apiVersion: v1
kind: ServiceAccount
metadata:
  name: controller
  namespace: $name
---
# The permissions of the controller in all namespaces.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: $name
rules:
  - apiGroups: ["$group"]
    resources: ["$plural"]
    verbs: ["get", "list", "watch"] # and "patch", once the controller is .finalizing()
  - apiGroups: ["$group"]
    resources: ["$plural/status"]
    verbs: ["patch"]
  # The admission plugin OwnerReferencesPermissionEnforcement, as in OpenShift, requires this to create owned objects.
  - apiGroups: ["$group"]
    resources: ["$plural/finalizers"]
    verbs: ["update"]
  - apiGroups: ["events.k8s.io"]
    resources: ["events"]
    verbs: ["create", "patch"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: $name
subjects:
  - kind: ServiceAccount
    name: controller
    namespace: $name
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: $name
---
# The permissions of the controller in its own namespace: its configuration, and the leases of leader election.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: controller
  namespace: $name
rules:
  - apiGroups: [""]
    resources: ["configmaps"]
    resourceNames: ["config-leader-election", "config-logging", "config-observability"] # and your own
    verbs: ["get", "list", "watch"]
  - apiGroups: ["coordination.k8s.io"]
    resources: ["leases"]
    verbs: ["get", "create", "patch"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: controller
  namespace: $name
subjects:
  - kind: ServiceAccount
    name: controller
    namespace: $name
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: controller
END

file config/500-controller.yaml <<END
apiVersion: apps/v1
kind: Deployment
metadata:
  name: controller
  namespace: $name
spec:
  replicas: 1
  selector:
    matchLabels: {app: controller}
  template:
    metadata:
      labels: {app: controller}
    spec:
      serviceAccountName: controller
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: controller
          # A placeholder. Build the image from the Dockerfile, push it, and write its name here.
          image: registry.example.com/$name:latest
          ports:
            - {name: probes, containerPort: 8080}
            - {name: metrics, containerPort: 9090}
            - {name: profiling, containerPort: 8008}
          env:
            - name: SYSTEM_NAMESPACE
              valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
          resources:
            requests: {cpu: 100m, memory: 100Mi}
            limits: {memory: 500Mi}
          readinessProbe:
            httpGet: {path: /readiness, port: probes}
          livenessProbe:
            httpGet: {path: /health, port: probes}
            failureThreshold: 6
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: ["ALL"]}
          volumeMounts:
            # The CPU profiler stores its samples there.
            - {name: tmp, mountPath: /tmp}
      volumes:
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
END

file example.yaml <<END
apiVersion: $group/$version
kind: $kind
metadata:
  name: hello
spec:
  text: hello
END

file Dockerfile <<END
# docker build -t IMAGE .
#
# reknit has to be a git dependency, because a path leads out of the build context. Cargo.lock has to be up to date:
# \`cargo check\` updates it.
FROM docker.io/library/rust:1.95.0-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --locked --release --bin $name

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/release/$name /controller
USER 65532:65532
ENTRYPOINT ["/controller"]
END

file .dockerignore <<END
target
END

file .vscode/launch.json <<END
{
  // Needs the extensions rust-analyzer and CodeLLDB. Works on the cluster of the current context of ~/.kube/config.
  "version": "0.2.0",
  "configurations": [
    {
      "name": "controller",
      "type": "lldb",
      "request": "launch",
      "cargo": { "args": ["build", "--bin=$name"], "filter": { "name": "$name", "kind": "bin" } },
      "args": ["--disable-ha", "--bind-address=127.0.0.1"],
      "cwd": "\${workspaceFolder}",
      "env": { "RUST_BACKTRACE": "1" }
    }
  ]
}
END

# The names that were inserted above may change the order and the length of lines.
if command -v rustfmt >/dev/null; then
  rustfmt --edition 2024 src/main.rs src/lib.rs src/bin/crd.rs tests/passes.rs
fi
