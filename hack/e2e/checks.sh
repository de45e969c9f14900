# shellcheck shell=bash disable=SC2154 # $here, $work, $image and $commit are set by e2e.sh
# The checks of hack/e2e.sh, in their order. The functions k, run_client, on_node and lose_node come from the cluster.

system=knative-samples
table=$work/result.md

now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }

# row CHECK RESULT: adds a line to the table.
row() {
  printf '| %s | %s |\n' "$1" "$2" >>"$table"
  say "$1: $2"
}

ks() { k --namespace "$system" "$@"; }
# pods COMPONENT PATH: prints a field of each running pod of the component.
pods() {
  ks get pod --selector "app.kubernetes.io/component=$1" --field-selector status.phase=Running \
    -o "jsonpath={range .items[*]}{$2}{'\n'}{end}"
}
wait_available() { ks wait --for=condition=Available deployment/controller deployment/webhook --timeout=180s >/dev/null; }

# Both replicas of both programs are ready: the state in which each check begins.
settle() {
  ks rollout status deployment/controller --timeout=180s >/dev/null
  ks rollout status deployment/webhook --timeout=180s >/dev/null
  wait_for_buckets
}

# Waits until all objects can be reconciled: until a new object becomes Ready within five seconds.
wait_for_buckets() {
  local attempt
  for ((attempt = 0; attempt < 40; attempt++)); do
    [ "$(field not_ready <<<"$(load 1 20)")" != 0 ] || return 0
  done
  die "objects do not become Ready"
}

# within CHECK SECONDS LIMIT: fails the check if it took more seconds than the limit allows on this machine.
within() {
  local limit=$(($3 * ${REKNIT_E2E_LIMITS:-1}))
  awk -v took="$2" -v limit="$limit" 'BEGIN { exit took > limit }' || die "$1: $2 s, more than $limit s"
}

# load SECONDS RATE: the result of load.py.
load() { run_client python3 "$here/e2e/load.py" "$(kubectl_path)" "$1" "$2"; }
field() { sed -n "s/.*\"$1\": \([^,}]*\).*/\1/p"; }

# under_load CHECK SECONDS ALLOWED LIMIT COMMAND...: runs the command while 20 objects a second are created, half of them
# invalid, and adds a row. More failed admissions than ALLOWED, or an object that is not Ready after LIMIT seconds, fail the
# check.
under_load() {
  local check=$1 seconds=$2 allowed=$3 limit=$4 result loader
  shift 4
  settle
  load "$seconds" 20 >"$work/load.json" &
  loader=$!
  sleep 3 # the load before the disturbance
  "$@" >/dev/null || die "$check: the command failed"
  wait "$loader" || die "$check: load.py failed"
  result=$(cat "$work/load.json")
  row "$check" "$(describe_load "$result")"
  [ "$(field failed <<<"$result")" -le "$allowed" ] || die "$check: more than $allowed failed admissions: $result"
  [ "$(field not_ready <<<"$result")" = 0 ] || die "$check: objects are not Ready: $result"
  within "$check: the slowest object was Ready after" "$(field slowest_ready <<<"$result")" "$limit"
}

describe_load() {
  local created refused failed
  created=$(field created <<<"$1") refused=$(field refused <<<"$1") failed=$(field failed <<<"$1")
  printf '%d of %d admissions failed, slowest %s s; slowest object Ready after %s s' "$failed" \
    "$((created + refused + failed))" "$(field slowest_admission <<<"$1")" "$(field slowest_ready <<<"$1")"
}

# expect_refusal CHECK TEXT COMMAND...: the command has to fail with the text.
expect_refusal() {
  local check=$1 text=$2 printed
  shift 2
  if printed=$("$@" 2>&1); then die "$check: was accepted"; fi
  [[ $printed == *"$text"* ]] || die "$check: $printed"
  row "$check" "refused: $text"
}

# process_of POD: prints node and process id of the program in the pod.
process_of() {
  local node uid program
  read -r node uid program <<<"$(ks get pod "$1" -o 'jsonpath={.spec.nodeName} {.metadata.uid} {.spec.containers[0].command[0]}')"
  program=${program##*/}
  # shellcheck disable=SC2016 # expanded by the shell in the node
  echo "$node" "$(on_node "$node" sh -c '
    for process in $(grep -lE "$1" /proc/[0-9]*/cgroup 2>/dev/null); do
      [ "$(cat "${process%/cgroup}/comm" 2>/dev/null)" != "$2" ] || basename "${process%/cgroup}"
    done' - "$uid|${uid//-/_}" "$program" | head -n 1)"
}

kill_process() {
  local node process
  read -r node process <<<"$(process_of "$1")"
  [ -n "$process" ] || die "no process in pod $1"
  on_node "$node" kill -KILL "$process"
}

# Lets the kernel end the process, as if its container had reached its memory limit. On cgroup v1, which lowers no limit below
# what is used, another process that the kernel spares fills the memory of the container.
# shellcheck disable=SC2016 # expanded by the shells in the node
exhaust_memory() {
  local node process
  read -r node process <<<"$(process_of "$1")"
  [ -n "$process" ] || die "no process in pod $1"
  on_node "$node" sh -euc '
    v2=/sys/fs/cgroup$(sed -n "s/^0:://p" /proc/$1/cgroup)
    v1=/sys/fs/cgroup/memory$(sed -nE "s/^[0-9]+:memory://p" /proc/$1/cgroup)
    fill="echo \$\$ >\$0/cgroup.procs; echo -1000 >/proc/self/oom_score_adj; exec tail /dev/zero"
    filler=
    if [ -e "$v2/memory.max" ]; then echo 1 >"$v2/memory.max"; else sh -c "$fill" "$v1" & filler=$!; fi
    for attempt in $(seq 100); do [ -d "/proc/$1" ] || break; sleep 0.1; done
    [ -z "$filler" ] || kill -KILL "$filler" || true
    [ ! -d "/proc/$1" ]' - "$process"
}

# Kills the process of the pod, and the next one as soon as it runs. The kubelet then waits before it restarts it.
kill_twice() {
  local before after attempt
  before=$(process_of "$1")
  kill_process "$1"
  for ((attempt = 0; attempt < 200; attempt++)); do
    after=$(process_of "$1")
    [ "$after" = "$before" ] || [[ $after != *" "[0-9]* ]] || break
    sleep 0.1
  done
  kill_process "$1"
}

check_deploy() {
  local began took
  write_layer
  began=$(now)
  k apply -k "$work/layer" >/dev/null
  wait_available
  took=$(since "$began")
  row "\`kubectl apply -k\`" "Available after $took s"
  within "kubectl apply -k: Available after" "$took" 10
  began=$(now)
  k apply -f config/example/ >/dev/null
  k wait addressableservice/hello --for=condition=Ready --timeout=30s >/dev/null
  row "AddressableService" "Ready after $(since "$began") s"
  k wait simpledeployment/hello --for=condition=Ready --timeout=120s >/dev/null
  row "SimpleDeployment, 3 pods" "Ready after $(since "$began") s"
}

# The kustomization of a user, with the image that was built. It is relative to the repository.
write_layer() {
  rm -rf "$work/layer"
  mkdir -p "$work/layer"
  cp -r config "$work/layer/config"
  cat >"$work/layer/kustomization.yaml" <<END
resources: [config]
images:
  - {name: registry.example.com/reknit/sample-controller, newName: "${image%:*}", newTag: "${image##*:}"}
END
}

# kubectl always reports a PodDisruptionBudget as configured, because the selector has the patch strategy "replace".
check_second_apply() {
  local changed
  settle
  changed=$(k apply -k "$work/layer" | grep -v -e ' unchanged$' -e '^poddisruptionbudget' || true)
  [ -z "$changed" ] || die "the second apply changed: $changed"
  k apply --server-side -k "$work/layer" >/dev/null
  row "second apply, and \`--server-side\`" "0 objects changed, no conflict"
}

check_events() {
  local unhealthy
  unhealthy=$(ks get events --field-selector reason=Unhealthy -o name | wc -l)
  row "events of failed probes after the first start" "$unhealthy"
}

check_refusals() {
  expect_refusal "invalid object" "spec.serviceName" k create -f - <<<'{"apiVersion": "samples.knative.dev/v1alpha1",
    "kind": "AddressableService", "metadata": {"name": "nameless", "namespace": "default"}, "spec": {"serviceName": ""}}'
  expect_refusal "invalid ConfigMap" "validation failed: buckets" \
    ks patch configmap config-leader-election --type=merge --patch '{"data": {"buckets": "99"}}'
}

# Prints the first value of a line of /proc/PID/status, which is in $state.
status() { awk -v name="$1:" '$1 == name { print $2 }' <<<"$state"; }

# User, capabilities and seccomp mode of each process, and its memory.
check_processes() {
  local program pod node process state
  for program in controller webhook; do
    for pod in $(pods $program .metadata.name); do
      read -r node process <<<"$(process_of "$pod")"
      state=$(on_node "$node" cat "/proc/$process/status")
      [ "$(status CapEff)/$(status NoNewPrivs)/$(status Seccomp)" = 0000000000000000/1/2 ] || die "$pod: $state"
      row "process of a $program pod" "user $(status Uid), no capabilities, seccomp; $(status VmRSS) kB resident"
    done
  done
}

check_metrics() {
  local program pod count token forward port=19090
  ks create clusterrolebinding metrics-of-the-sample --clusterrole "$system-metrics-reader" \
    --serviceaccount "$system:default" >/dev/null
  token=$(ks create token default)
  for program in controller webhook; do
    pod=$(pods $program .metadata.name | sed -n 1p)
    expect_refusal "metrics of the $program without a token" "must be logged in" \
      k get --raw "/api/v1/namespaces/$system/pods/https:$pod:9090/proxy/metrics"
    port=$((port + 1))
    ks port-forward "pod/$pod" "$port:9090" >/dev/null &
    forward=$!
    count=$(run_client curl --silent --fail --insecure --retry 10 --retry-connrefused \
      --header "Authorization: Bearer $token" "https://localhost:$port/metrics" | grep -c '^[a-z]') ||
      die "no metrics of the $program"
    pkill -P "$forward" || true
    row "metrics of the $program" "$count series"
  done
}

# A security context that names a user, as OpenShift sets it.
check_any_user() {
  local node process state
  local patch='{"spec": {"template": {"spec": {"securityContext": {"runAsUser": 1000660000, "runAsGroup": 0}}}}}'
  local undo='{"spec": {"template": {"spec": {"securityContext": {"runAsUser": null, "runAsGroup": null}}}}}'
  ks patch deployment controller webhook --patch "$patch" >/dev/null
  settle
  read -r node process <<<"$(process_of "$(leader)")"
  state=$(on_node "$node" cat "/proc/$process/status")
  [ "$(status Uid)" = 1000660000 ] || die "the leading controller runs as user $(status Uid)"
  row "as user 1000660000" "both programs become ready"
  ks patch deployment controller webhook --patch "$undo" >/dev/null
  settle
}

rollout() { ks rollout restart "$1" && ks rollout status "$1" --timeout=180s; }
delete_pod() { ks delete pod "$1"; }
# Prints the identity of the process that holds a Lease of AddressableServices.
holder() {
  ks get lease -o 'jsonpath={range .items[*]}{.metadata.name} {.spec.holderIdentity}{"\n"}{end}' |
    sed -n 's/^[^ ]*addressableservices[^ ]* //p' | sed -n 1p
}
# Prints the pod of that process.
leader() { holder | sed 's/_.*//'; }
any_webhook() { pods webhook .metadata.name | head -n 1; }
drain() {
  local node
  node=$(pods webhook .spec.nodeName | head -n 1)
  k drain "$node" --ignore-daemonsets --delete-emptydir-data --timeout=120s
  k uncordon "$node"
}

# A planned change may delay an object by two seconds, and a crash that the Pod proves by five, or by ten if the kubelet waits
# before the restart. Without a proof, the lease duration of 60 s decides, and five seconds more.
check_disturbances() {
  under_load "rolling restart of the webhook" 40 0 2 rollout deployment/webhook
  under_load "rolling restart of the controller" 40 0 2 rollout deployment/controller
  under_load "the leading controller pod deleted" 30 0 2 delete_pod "$(leader)"
  under_load "a webhook pod deleted" 30 0 2 delete_pod "$(any_webhook)"
  under_load "Secret \`webhook-certs\` deleted" 30 0 2 ks delete secret webhook-certs
  ks get secret webhook-certs >/dev/null || die "the Secret was not created again"
  under_load "node drained" 40 0 2 drain
  under_load "\`kill -9\` of the leading controller" 30 0 5 kill_process "$(leader)"
  under_load "two \`kill -9\` of the leading controller" 50 0 10 kill_twice "$(leader)"
  # The pod of the last check, and its back-off, are replaced.
  rollout deployment/controller >/dev/null
  settle
  under_load "the leading controller out of memory" 30 0 5 exhaust_memory "$(leader)"
  # The kernel closes the connections of the killed process, and an admission in progress fails with them.
  under_load "\`kill -9\` of a webhook" 30 10 5 kill_process "$(any_webhook)"
}

# Kills the leader 20 times while it writes, and checks by the audit log that its last write was complete before the
# first of its successor. A pod that waits for its restart is replaced: the kubelet would wait longer each time.
check_crashes() {
  local crash loader identity writes slowest=0
  if [ -z "$audit_log" ]; then
    row "20 crashes with writes in flight" "not checked: the API server has no audit log"
    return
  fi
  rm -f "$work/crashes"
  for ((crash = 0; crash < 20; crash++)); do
    settle
    load 5 40 >"$work/load.json" &
    loader=$!
    sleep 3
    identity=$(holder)
    echo "$identity $(now)" >>"$work/crashes"
    kill_process "${identity%_*}"
    wait "$loader" || die "crash $crash: load.py failed"
    [ "$(field not_ready <"$work/load.json")" = 0 ] || die "crash $crash: objects are not Ready"
    slowest=$(printf '%s\n' "$slowest" "$(field slowest_ready <"$work/load.json")" | sort -g | tail -n 1)
    [ "$(leader)" = "${identity%_*}" ] || delete_pod "${identity%_*}" >/dev/null
  done
  writes=$("$here/e2e/audit.py" "$audit_log" "$work/crashes") || die "20 crashes: a write came late"
  row "20 crashes with writes in flight" "$writes; slowest object Ready after $slowest s"
}

# The last check but uninstalling: the node does not come back. The other replicas run on the other worker.
check_node_loss() {
  settle
  lost_node=$(ks get pod "$(leader)" -o 'jsonpath={.spec.nodeName}')
  under_load "node of the leading controller lost" 150 600 65 lose_node "$lost_node"
}

# The pods of the lost node would stay until it comes back.
check_uninstall() {
  local left attempt objects=/apis/samples.knative.dev/v1alpha1/namespaces/default/addressableservices
  ks delete pod --field-selector "spec.nodeName=$lost_node" --force --grace-period=0 >/dev/null 2>&1
  wait_available
  # The controller has to remove the finalizers before it is deleted. The request for thousands of objects may time out.
  for ((attempt = 0; attempt < 120; attempt++)); do
    k delete --raw "$objects" >/dev/null 2>&1 || true
    [[ $(k get --raw "$objects?limit=1") == *'"name"'* ]] || break
    sleep 1
  done
  k delete -f config/example/ --ignore-not-found --timeout=60s >/dev/null
  k delete -k "$work/layer" --timeout=120s >/dev/null
  left=$(k get clusterrole,clusterrolebinding,crd,mutatingwebhookconfiguration,validatingwebhookconfiguration,namespace,\
validatingadmissionpolicy,validatingadmissionpolicybinding \
    -o name | grep samples || true)
  [ -z "$left" ] || die "left behind: $left"
  row "uninstalling" "nothing is left"
}

run_checks() {
  printf 'Commit %s, %s UTC; %s processors; %s.\n\n| check | result |\n| --- | --- |\n' "$commit" \
    "$(date -u '+%Y-%m-%d %H:%M')" "$(nproc)" "$(describe_cluster)" >"$table"
  check_deploy
  check_events
  check_second_apply
  check_refusals
  check_processes
  check_metrics
  check_disturbances
  check_crashes
  check_any_user
  check_node_loss
  check_uninstall
}
