//! Watch lines that are generated on demand.

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use serde_json::Value;

use crate::{
    addressable_service, ready_status,
    server::{place, stored},
    service,
};

/// The number of lines in a chunk of a response.
const LINES: usize = 32;
static VERSION: AtomicUsize = AtomicUsize::new(10);

/// Splits the numbers into parts, each for one chunk of lines.
pub fn chunks(numbers: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = numbers.end;
    numbers.step_by(LINES).map(move |begin| begin..end.min(begin + LINES))
}

/// The lines of added or changed Services.
pub fn services(numbers: &Range<usize>) -> Bytes {
    lines(numbers, service)
}

/// The lines of the Ready AddressableServices that name these Services.
pub fn addressable_services(numbers: &Range<usize>) -> Bytes {
    lines(numbers, |namespace, name| {
        let mut object = addressable_service(namespace, name);
        object["status"] = ready_status(namespace, name)["status"].take();
        object
    })
}

fn lines(numbers: &Range<usize>, object: impl Fn(&str, &str) -> Value) -> Bytes {
    let line = |number| {
        let (namespace, name) = place(number);
        let mut object = stored(object(&namespace, &name), number);
        object["metadata"]["resourceVersion"] = VERSION.fetch_add(1, Ordering::Relaxed).to_string().into();
        format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n")
    };
    numbers.clone().map(line).collect::<String>().into()
}
