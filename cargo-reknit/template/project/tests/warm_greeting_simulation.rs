//! A simulation of the controller of WarmGreeting objects, with crashes, lost responses and stale caches.

use std::time::Duration;

use hello_world::warm_greeting::{WarmGreeting, controller};
use reknit::{prelude::*, simulation::simulation};

#[test]
fn an_object_gets_ready_whatever_fails() {
    let example = include_str!("../config/example/warm_greeting.yaml");
    let mut object: WarmGreeting = serde_saphyr::from_str(example).unwrap();
    object.metadata.namespace = Some("default".into());
    simulation([controller])
        .at(Duration::from_secs(1), move |cluster| {
            cluster.create(object.clone());
        })
        .finally("it is ready", |cluster| {
            let object = cluster.get::<WarmGreeting>("default/hello");
            let mut status = object.and_then(|object| object.status).unwrap_or_default();
            WarmGreeting::CONDITIONS.manage(&mut status).is_happy()
        })
        .each_write()
        .run();
}
