//! Observes the passes of all replicas of a thread, by the tracing spans that reknit opens.

use std::{cell::RefCell, collections::BTreeMap, fmt, sync::Arc};

use tokio::{runtime::Handle, time::Instant};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_core::span::Current;

use crate::watchdog;

/// The number of a pass in its simulation.
pub(crate) type PassId = u64;

/// The beginning or the end of a pass.
#[derive(Clone, Debug)]
pub(crate) struct PassEvent {
    pub(crate) pass: PassId,
    pub(crate) replica: usize,
    pub(crate) change: PassChange,
    /// The instant on the clock of the replica. `None` if the runtime of the replica was being dropped.
    pub(crate) at: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(crate) enum PassChange {
    Begins { controller: String, key: String },
    Ends { result: Option<String>, error: Option<String> },
}

#[derive(Default)]
struct Observed {
    next: PassId,
    replica: usize,
    spans: BTreeMap<u64, Span>,
    entered: Vec<u64>,
    events: Vec<PassEvent>,
}

struct Span {
    references: usize,
    name: Arc<str>,
    replica: usize,
    metadata: &'static Metadata<'static>,
    result: Option<String>,
    error: Option<String>,
}

thread_local! {
    static OBSERVED: RefCell<Observed> = RefCell::default();
}

/// Forgets all passes, at the start of a simulation.
pub(crate) fn reset() {
    OBSERVED.take();
}

/// Attributes new passes to this replica.
pub(crate) fn set_replica(replica: usize) {
    OBSERVED.with_borrow_mut(|observed| observed.replica = replica);
}

/// The pass in whose span this code runs.
pub(crate) fn current_pass() -> Option<PassId> {
    OBSERVED.try_with(|observed| observed.borrow().entered.last().copied()).ok().flatten()
}

pub(crate) fn take_events() -> Vec<PassEvent> {
    OBSERVED.with_borrow_mut(|observed| std::mem::take(&mut observed.events))
}

/// The subscriber of a thread that simulates. It is interested in the spans of passes and in the errors that they log.
pub(crate) struct Observer;

impl Subscriber for Observer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_wanted = match metadata.is_span() {
            true => metadata.name() == "reconcile",
            false => metadata.fields().field("error").is_some(),
        };
        is_wanted && metadata.target().starts_with("reknit")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        OBSERVED.with_borrow_mut(|observed| {
            observed.next += 1;
            let (pass, replica) = (observed.next, observed.replica);
            let name = format!("{} {}", fields.controller, fields.key).into();
            let change = PassChange::Begins { controller: fields.controller, key: fields.key };
            observed.events.push(PassEvent { pass, replica, change, at: now() });
            let metadata = attributes.metadata();
            let span = Span { references: 1, name, replica, metadata, result: None, error: None };
            observed.spans.insert(pass, span);
            Id::from_u64(pass)
        })
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        OBSERVED.with_borrow_mut(|observed| {
            if let (Some(span), Some(result)) = (observed.spans.get_mut(&id.into_u64()), fields.result) {
                span.result = Some(result);
            }
        });
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        OBSERVED.with_borrow_mut(|observed| {
            if let Some(span) = observed.entered.last().and_then(|pass| observed.spans.get_mut(pass)) {
                span.error = fields.error;
            }
        });
    }

    fn enter(&self, id: &Id) {
        OBSERVED.with_borrow_mut(|observed| {
            observed.entered.push(id.into_u64());
            if let Some(span) = observed.spans.get(&id.into_u64()) {
                watchdog::set_pass(&span.name);
            }
        });
    }

    fn exit(&self, id: &Id) {
        OBSERVED.with_borrow_mut(|observed| {
            if let Some(index) = observed.entered.iter().rposition(|entered| *entered == id.into_u64()) {
                observed.entered.remove(index);
            }
        });
    }

    fn clone_span(&self, id: &Id) -> Id {
        OBSERVED.with_borrow_mut(|observed| {
            if let Some(span) = observed.spans.get_mut(&id.into_u64()) {
                span.references += 1;
            }
        });
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        OBSERVED
            .try_with(|observed| {
                let mut observed = observed.borrow_mut();
                let pass = id.into_u64();
                let Some(span) = observed.spans.get_mut(&pass) else { return false };
                span.references -= 1;
                if span.references > 0 {
                    return false;
                }
                if let Some(Span { replica, result, error, .. }) = observed.spans.remove(&pass) {
                    observed.events.push(PassEvent {
                        pass,
                        replica,
                        change: PassChange::Ends { result, error },
                        at: now(),
                    });
                }
                true
            })
            .unwrap_or(true)
    }

    fn current_span(&self) -> Current {
        OBSERVED.with_borrow(|observed| {
            let entered = observed.entered.last().and_then(|id| Some((id, observed.spans.get(id)?)));
            entered.map_or_else(Current::none, |(id, span)| Current::new(Id::from_u64(*id), span.metadata))
        })
    }
}

/// The time of the runtime whose task runs.
fn now() -> Option<Instant> {
    Handle::try_current().is_ok().then(Instant::now)
}

#[derive(Default)]
struct Fields {
    controller: String,
    key: String,
    result: Option<String>,
    error: Option<String>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "knative.dev/controller" => self.controller = value.into(),
            "knative.dev/key" => self.key = value.into(),
            "result" => self.result = Some(value.into()),
            "error" => self.error = Some(value.into()),
            _ => {}
        }
    }
}
