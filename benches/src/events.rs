//! Watch lines that are generated on demand.

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use serde_json::Value;

use crate::{
    addressable_service, ready_status,
    server::{namespace_and_name, with_server_fields},
    service,
};

const LINES_PER_CHUNK: usize = 32;
/// The resourceVersion of the next event. It is higher than that of the empty lists before.
static VERSION: AtomicUsize = AtomicUsize::new(10);

/// Splits a range of objects' numbers into the ranges that form one chunk of lines each.
pub fn chunks(numbers: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = numbers.end;
    numbers.step_by(LINES_PER_CHUNK).map(move |begin| begin..end.min(begin + LINES_PER_CHUNK))
}

/// The lines of the Services with these numbers, added or changed.
pub fn services(numbers: &Range<usize>) -> Bytes {
    lines(numbers, service)
}

/// The lines of the Ready AddressableServices that name the Services with these numbers.
pub fn addressable_services(numbers: &Range<usize>) -> Bytes {
    lines(numbers, |namespace, name| {
        let mut object = addressable_service(namespace, name);
        object["status"] = ready_status(namespace, name)["status"].take();
        object
    })
}

fn lines(numbers: &Range<usize>, object: impl Fn(&str, &str) -> Value) -> Bytes {
    let line = |number| {
        let (namespace, name) = namespace_and_name(number);
        let mut object = with_server_fields(object(&namespace, &name), number);
        object["metadata"]["resourceVersion"] = VERSION.fetch_add(1, Ordering::Relaxed).to_string().into();
        format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n")
    };
    numbers.clone().map(line).collect::<String>().into()
}
