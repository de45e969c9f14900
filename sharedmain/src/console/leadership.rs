//! The view of leader election: the leader of each bucket, and the last handovers.
use std::{collections::VecDeque, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use reknit_apis::Key;
use reknit_injection::internal::now;
use reknit_leadership::{Leadership, internal::BucketState};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Running, State};

/// The maximum number of handovers that are kept.
const MAX_HANDOVERS: usize = 100;

/// The last handovers from and to this process, the newest first.
#[derive(Clone, Default)]
pub(crate) struct Handovers(Arc<Mutex<VecDeque<Handover>>>);

#[derive(Clone, Serialize)]
struct Handover {
    time: Timestamp,
    controller: String,
    gained: Vec<Arc<str>>,
    lost: Vec<Arc<str>>,
}

impl Handovers {
    /// Records the handovers of a controller until the process ends.
    pub(super) async fn follow(self, controller: String, mut leadership: Leadership) {
        loop {
            let change = leadership.changed().await;
            let controller = controller.clone();
            let handover = Handover { time: now(), controller, gained: change.gained, lost: change.lost };
            let mut handovers = self.0.lock();
            handovers.push_front(handover);
            handovers.truncate(MAX_HANDOVERS);
        }
    }
}

pub(super) fn view(state: &State) -> Value {
    let Some(running) = state.running.get() else { return json!({ "buckets": [], "handovers": [] }) };
    let buckets = running.controllers.iter().flat_map(|(health, leadership)| {
        leadership.buckets().into_iter().map(|(name, state)| bucket(running, health.name(), &name, state))
    });
    let unknown = running.controllers.iter().filter_map(|(_, leadership)| leadership.reason_unknown()).next();
    json!({
        "buckets": buckets.collect::<Vec<_>>(),
        "unknown_because": unknown,
        "handovers": &*running.handovers.0.lock(),
    })
}

fn bucket(running: &Running, controller: &str, name: &str, state: BucketState) -> Value {
    let lease =
        running.leases.as_ref().and_then(|(leases, namespace)| leases.get(&Key::new(&**namespace, name)));
    let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
    json!({
        "controller": controller,
        "bucket": name,
        "state": match state {
            BucketState::Unknown { .. } => "unknown",
            BucketState::Led { .. } => "led here",
            BucketState::Draining { .. } => "draining",
            BucketState::Other => "led elsewhere",
        },
        "holder": spec.and_then(|spec| spec.holder_identity.as_deref()).filter(|holder| !holder.is_empty()),
        "renewed": spec.and_then(|spec| spec.renew_time.as_ref()),
        "transitions": spec.and_then(|spec| spec.lease_transitions),
    })
}
