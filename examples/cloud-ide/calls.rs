//! The limit of open calls, with a share for each client.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use axum::{
    extract::{Extension, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use reknit_server::{Activity, HeldByResponse};
use tonic::Status;

/// The limit of calls on all connections.
const MAX_CALLS: usize = 10_000;

/// The open calls of all clients. A client has at most as many as it leaves free, so that it shuts out no other one.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    all: usize,
    of_clients: HashMap<IpAddr, usize>,
}

/// An open call, until it is dropped.
struct Call {
    calls: Calls,
    client: IpAddr,
}

impl Calls {
    fn open(&self, client: IpAddr) -> Option<Call> {
        let mut open = self.0.lock();
        let of_client = open.of_clients.get(&client).copied().unwrap_or_default();
        if of_client >= MAX_CALLS - open.all {
            return None;
        }
        open.all += 1;
        open.of_clients.insert(client, of_client + 1);
        drop(open);
        Some(Call { calls: self.clone(), client })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut open = self.calls.0.lock();
        open.all -= 1;
        let of_client = open.of_clients.entry(self.client).or_default();
        *of_client -= 1;
        if *of_client == 0 {
            open.of_clients.remove(&self.client);
        }
    }
}

/// Answers RESOURCE_EXHAUSTED to a call beyond the limit. It would hold memory if it waited.
pub(crate) async fn limit(
    State(calls): State<Calls>,
    Extension(activity): Extension<Activity>,
    request: Request,
    next: Next,
) -> Response {
    let Some(call) = calls.open(activity.client()) else {
        let reason = "the client has too many open calls: end some, and retry";
        return Status::resource_exhausted(reason).into_http::<axum::body::Body>().into_response();
    };
    let mut response = next.run(request).await;
    response.extensions_mut().insert(HeldByResponse::new(Arc::new(call)));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_at_most_as_many_calls_as_it_leaves_free() {
        let (calls, mut open) = (Calls::default(), Vec::new());
        let mut fill = |client: [u8; 4]| {
            let before = open.len();
            open.extend(std::iter::from_fn(|| calls.open(client.into())));
            open.len() - before
        };
        assert_eq!([fill([10, 0, 0, 1]), fill([10, 0, 0, 2]), fill([10, 0, 0, 1])], [5_000, 2_500, 0]);
        open.clear();
        let left = calls.0.lock();
        assert!(left.all == 0 && left.of_clients.is_empty());
    }
}
