//! Deliveries to replicas: responses, watch events, and the ends of watches.

use bytes::Bytes;
use reknit_injection::internal::HttpResponse;
use tower::BoxError;

use super::{Process, World};
use crate::{
    link::{EventSender, Reply},
    trace::RequestId,
};

/// Something that reaches a replica.
pub(super) enum Delivery {
    Response {
        id: RequestId,
        process: Process,
        reply: Reply,
        response: Result<HttpResponse, BoxError>,
        text: String,
    },
    Events {
        process: Process,
        sender: EventSender,
        events: Bytes,
    },
    /// The end of the stream, when the sender is dropped.
    End {
        process: Process,
        sender: EventSender,
    },
}

impl Delivery {
    pub(super) fn process(&self) -> Process {
        match self {
            Self::Response { process, .. } | Self::Events { process, .. } | Self::End { process, .. } => {
                *process
            }
        }
    }
}

impl World<'_> {
    /// Hands something to a replica, which finds it when it runs next. A process that has ended gets nothing, and a
    /// paused one gets it when it goes on.
    pub(super) fn deliver(&mut self, delivery: Delivery) {
        let process = delivery.process();
        let slot = &mut self.slots[process.replica];
        if slot.incarnation != process.incarnation || slot.replica.is_none() {
            return;
        }
        if slot.is_paused {
            slot.mailbox.push(delivery);
            return;
        }
        match delivery {
            Delivery::Response { id, reply, response, text, .. } => {
                self.trace.requests[id].answered = Some((self.now, text));
                reply.send(response).ok();
            }
            Delivery::Events { sender, events, .. } => drop(sender.send(Ok(events))),
            Delivery::End { sender, .. } => drop(sender),
        }
    }
}
