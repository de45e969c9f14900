#!/usr/bin/env python3
"""audit.py LOG CRASHES: checks by the audit log of the API server that each crashed leader had written its last before
another process took the first of its Leases, which comes before the first pass of a successor. A line of CRASHES is the
identity of a leader, and the time right before it was killed.

A process is known by its user agent, which ends with its identity. Prints a summary, or fails with the late writes."""

import collections, datetime, json, re, sys

Write = collections.namedtuple("Write", "identity resource name received completed holder version")
OBJECTS = "addressableservices"


def seconds(time):
    return datetime.datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def parse(event):
    identity = re.search(r"\((\S+_\S+)\)$", event.get("userAgent", ""))
    target, answer = event["objectRef"], event.get("responseObject", {})
    times = [seconds(event[field]) for field in ("requestReceivedTimestamp", "stageTimestamp")]
    # Only answers about Leases are in the log.
    metadata, holder = answer.get("metadata", {}), answer.get("spec", {}).get("holderIdentity")
    name, version = target.get("name") or metadata.get("name", ""), int(metadata.get("resourceVersion", 0))
    return Write(identity and identity[1], target["resource"], name, *times, holder, version)


def takeovers(writes):
    """The first write of each Lease of a bucket that names another holder, by the holder before it. Not those that were
    released in between."""
    holders, taken = {}, collections.defaultdict(list)
    of_buckets = (write for write in writes if write.version and ".member." not in write.name)
    for write in sorted(of_buckets, key=lambda write: write.version):
        before = holders.get(write.name)
        if before and write.holder and write.holder != before:
            taken[before].append(write)
        holders[write.name] = write.holder
    return taken


log, crashes = sys.argv[1:]
writes = [parse(json.loads(line)) for line in open(log)]
taken = takeovers(writes)
margins, buckets, same_pod, objects = [], 0, 0, 0
for dead, killed in (line.split() for line in open(crashes)):
    killed = float(killed)
    own = [write for write in writes if write.identity == dead]
    recent = [write for write in own if write.resource == OBJECTS and write.received > killed - 1]
    if not recent or not taken[dead]:
        sys.exit(f"{dead} wrote {len(recent)} objects before it was killed, and lost {len(taken[dead])} Leases")
    first = min(taken[dead], key=lambda write: write.received)
    late = [write for write in own if write.completed >= first.received]
    if late:
        sys.exit(f"{len(late)} writes of {dead} after the first of {first.identity}: {late[:3]}, {first}")
    margins.append(first.received - max(write.completed for write in own))
    buckets += len(taken[dead])
    same_pod += sum(write.identity.split("_")[0] == dead.split("_")[0] for write in taken[dead])
    objects += len(recent)
print(f"no write came late: the {len(margins)} dead leaders had written their last {min(margins):.1f} to {max(margins):.1f} s "
      f"before the first of their {buckets} Leases was taken, {same_pod} by the next process of the same pod; "
      f"{objects} writes of objects in the last second")
