//! The requests of replicas: their way to the API server, and the responses.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use serde_json::{Value, json};

use super::{Event, Process, STALE, World, deliveries::Delivery};
use crate::{
    admission::Attempt,
    faults::{Fate, Single},
    link::{Outgoing, Reply, full},
    oracles,
    server::Answer,
    time::Time,
    trace::{RequestId, Sent},
};

pub(super) struct InFlight {
    pub(super) id: RequestId,
    pub(super) process: Process,
    pub(super) request: Request<Bytes>,
    pub(super) reply: Reply,
    pub(super) fate: Fate,
}

impl World<'_> {
    pub(super) fn send(&mut self, process: Process, at: Time, outgoing: Outgoing) {
        let Outgoing { head, body, pass, reply, .. } = outgoing;
        let id = self.trace.requests.len();
        let sent = Sent {
            at,
            replica: process.replica,
            incarnation: process.incarnation,
            pass,
            method: head.method.clone(),
            uri: head.uri.to_string(),
            body: body.clone(),
            info: reknit_apiserver::RequestInfo::of(&head.method, &head.uri),
            handled: None,
            answered: None,
            stored: None,
        };
        let is_cut = at < self.slots[process.replica].cut_until;
        let fate = match self.faults.fate(&sent, at) {
            _ if is_cut => Fate::RequestLost { after: Duration::from_secs(5) },
            fate => fate,
        };
        let is_effect = sent.is_effect();
        self.kubelet.observe(&sent);
        self.trace.requests.push(sent);
        self.schedule(at, Event::Sent(id));
        let fate = match is_effect {
            true => {
                let fate = self.apply_single(process, at, fate);
                self.interrupt(process.replica, at, fate)
            }
            false => fate,
        };
        let flight = InFlight { id, process, request: Request::from_parts(head, body), reply, fate };
        match fate {
            Fate::RequestLost { after } => self.answer_lost(flight, at + after),
            Fate::Refused { code, after } => {
                let response = refusal(code, &self.trace.requests[id]);
                self.answer(flight, at + after, response);
            }
            Fate::Handled { up, .. } | Fate::ResponseLost { up, .. } | Fate::FailsAfterEffect { up, .. } => {
                self.schedule(at + up, Event::Handle(flight));
            }
        }
    }

    /// Counts a write, and injects the single fault that is planned for it.
    pub(super) fn apply_single(&mut self, process: Process, at: Time, fate: Fate) -> Fate {
        self.writes += 1;
        match (self.faults.single(), fate) {
            (Some(Single::LoseResponse(n)), Fate::Handled { up, .. }) if n == self.writes => {
                // With fresh caches, most controllers would see what they wrote.
                self.slots[process.replica].stale_until = at + STALE;
                let text = "fault: the response to the next write is lost, and watches report it late";
                self.trace.note(at, Some(process.replica), text);
                Fate::ResponseLost { up, after: Duration::from_millis(100) }
            }
            (Some(Single::CrashAfterWrite(n)), Fate::Handled { up, .. }) if n == self.writes => {
                self.schedule(at + up, Event::Crash(process.replica));
                Fate::ResponseLost { up, after: Duration::from_secs(60) }
            }
            (Some(Single::ChangeLeader(n)), _) if n == self.writes => {
                let election = &self.scenario.election;
                self.slots[process.replica].cut_until = at + election.lease_duration * 2;
                self.trace.note(
                    at,
                    Some(process.replica),
                    "fault: the replica is cut off from the API server",
                );
                Fate::RequestLost { after: Duration::from_secs(5) }
            }
            (_, fate) => fate,
        }
    }

    pub(super) fn answer_lost(&mut self, flight: InFlight, at: Time) {
        let InFlight { id, process, reply, .. } = flight;
        let response = Err("the connection was reset".into());
        let text = "lost".into();
        self.schedule(at, Event::Answer(Delivery::Response { id, process, reply, response, text }));
    }

    pub(super) fn answer(&mut self, flight: InFlight, at: Time, response: Response<Bytes>) {
        let InFlight { id, process, reply, .. } = flight;
        let text = response.status().as_u16().to_string();
        let response = Ok(response.map(full));
        self.schedule(at, Event::Answer(Delivery::Response { id, process, reply, response, text }));
    }

    /// The answer of admission to a write, if it refuses.
    fn refusal_of(&self, id: RequestId) -> Option<Response<Bytes>> {
        let sent = &self.trace.requests[id];
        if self.scenario.admission.is_empty() || !sent.is_effect() {
            return None;
        }
        let attempt = Attempt::of(sent)?;
        let mut refusals =
            self.scenario.admission.iter().filter_map(|check| check(&self.cluster, &attempt).err());
        refusals.next().map(|message| status(403, &message))
    }

    pub(super) fn handle(&mut self, flight: InFlight) {
        let id = flight.id;
        self.trace.requests[id].handled = Some(self.now);
        let pod = self.kubelet.answer(&flight.request, self.now).map(Answer::Response);
        let answer = pod.or_else(|| self.refusal_of(id).map(Answer::Response));
        let answer = answer.unwrap_or_else(|| self.cluster.server().handle(&flight.request));
        match answer {
            Answer::Watch(head, watch) => self.open_watch(flight, head, watch),
            Answer::Response(response) => {
                let is_success = response.status().is_success();
                let sent = &mut self.trace.requests[id];
                let is_write = is_success && sent.is_write();
                if is_write && sent.is_of_leases() {
                    self.terms.record(sent, response.body(), self.now);
                } else if is_write && sent.is_effect() {
                    sent.stored = oracles::stored(response.body());
                    self.violations.extend(self.successions.record_write(&self.trace, id, self.now));
                }
                match flight.fate {
                    Fate::ResponseLost { after, .. } => self.answer_lost(flight, self.now + after),
                    Fate::FailsAfterEffect { code, down, .. } => {
                        let response = refusal(code, &self.trace.requests[id]);
                        self.answer(flight, self.now + down, response);
                    }
                    Fate::Handled { down, .. } => self.answer(flight, self.now + down, response),
                    // These have not reached the server.
                    Fate::RequestLost { .. } | Fate::Refused { .. } => {}
                }
                if is_write {
                    self.changed();
                }
            }
        }
    }
}

/// The response of an overloaded or failing API server.
fn refusal(code: u16, sent: &Sent) -> Response<Bytes> {
    status(code, &format!("the simulation answers {} with {code}", sent.summary()))
}

/// A `Status` of failure.
pub(super) fn failure(code: u16, message: &str) -> Value {
    let reason = match code {
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code})
}

fn status(code: u16, message: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(failure(code, message).to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if code == 429 {
        response.headers_mut().insert(RETRY_AFTER, http::HeaderValue::from_static("1"));
    }
    response
}
