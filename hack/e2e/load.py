#!/usr/bin/env python3
"""load.py KUBECTL SECONDS RATE: creates RATE AddressableServices a second, every second one invalid, and prints as JSON how
many were created, refused and failed, the slowest admission, and the longest time until a created object was Ready.

A failed admission is any response but these two: a created valid object, or the webhook's refusal of an invalid one. The
cluster is the one of KUBECONFIG, which kubectl reads. Its certificate of the API server has to name the server's address."""

import base64, collections, http.client, json, ssl, subprocess, sys, tempfile, threading, time, urllib.parse

PATH = "/apis/samples.knative.dev/v1alpha1/namespaces/default/addressableservices"
WORKERS = 4
READY_TIMEOUT = 120

kubectl, seconds, rate = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
run = str(time.time_ns())
created, ready, failures = {}, {}, collections.Counter()
counts, slowest = collections.Counter(), 0.0
lock = threading.Lock()


def api_server():
    """The address of the API server, and a TLS context with the client certificate of the kubeconfig."""
    view = subprocess.check_output([kubectl, "config", "view", "--raw", "--flatten", "--minify", "-o", "json"])
    config = json.loads(view)
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    decode = lambda text: base64.b64decode(text).decode()
    context = ssl.create_default_context(cadata=decode(cluster["certificate-authority-data"]))
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(decode(user["client-certificate-data"]) + "\n" + decode(user["client-key-data"]))
        file.flush()
        context.load_cert_chain(file.name)
    return urllib.parse.urlparse(cluster["server"]), context


server, context = api_server()


def connect(timeout):
    return http.client.HTTPSConnection(server.hostname, server.port, context=context, timeout=timeout)


def body(number, valid):
    spec = {"serviceName": "hello" if valid else ""}
    metadata = {"name": f"load-{run}-{number}", "labels": {"e2e": "load"}}
    return {"apiVersion": "samples.knative.dev/v1alpha1", "kind": "AddressableService", "metadata": metadata, "spec": spec}


def outcome(status, text, valid):
    if valid and status == 201:
        return "created"
    if not valid and status == 422 and "spec.serviceName" in text:
        return "refused"
    return "failed"


def create(connection, number):
    valid = number % 2 == 0
    connection.request("POST", PATH, json.dumps(body(number, valid)), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    result = outcome(response.status, text, valid)
    if result == "created":
        with lock:
            created[json.loads(text)["metadata"]["name"]] = time.monotonic()
    return result, f"{response.status} {text[:300]}"


def worker(first, stop):
    global slowest
    connection, number = None, first
    while time.monotonic() < stop:
        began = time.monotonic()
        try:
            connection = connection or connect(40)
            result, detail = create(connection, number)
        except (OSError, http.client.HTTPException) as error:
            connection, result, detail = None, "failed", repr(error)
        took = time.monotonic() - began
        with lock:
            counts[result] += 1
            failures[detail] += result == "failed"
            slowest = max(slowest, took)
        number += WORKERS
        time.sleep(max(0, WORKERS / rate - took))


def is_ready(item):
    conditions = item.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def watch():
    """Records when each object of this run is first seen Ready. A watch that ends is opened again, from the beginning."""
    while True:
        try:
            connection = connect(300)
            connection.request("GET", PATH + "?watch=true&labelSelector=e2e%3Dload")
            for line in connection.getresponse():
                item = json.loads(line)["object"]
                if item.get("metadata", {}).get("name", "").startswith(f"load-{run}-") and is_ready(item):
                    with lock:
                        ready.setdefault(item["metadata"]["name"], time.monotonic())
        except (OSError, http.client.HTTPException):
            time.sleep(0.5)


def unready():
    with lock:
        return [name for name in created if name not in ready]


threading.Thread(target=watch, daemon=True).start()
stop = time.monotonic() + seconds
threads = [threading.Thread(target=worker, args=(number, stop)) for number in range(WORKERS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
deadline = time.monotonic() + READY_TIMEOUT
while unready() and time.monotonic() < deadline:
    time.sleep(0.1)
with lock:
    latencies = sorted(ready[name] - began for name, began in created.items() if name in ready)
for detail, count in failures.most_common():
    if count:
        print(count, detail, file=sys.stderr)
print(json.dumps({
    "created": counts["created"], "refused": counts["refused"], "failed": counts["failed"],
    "slowest_admission": round(slowest, 2), "not_ready": len(unready()),
    "median_ready": round(latencies[len(latencies) // 2], 3) if latencies else None,
    "slowest_ready": round(latencies[-1], 2) if latencies else None,
}))
