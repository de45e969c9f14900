//! Both forms of main.
use std::process::ExitCode;

use reknit::{prelude::*, sharedmain::Task};

fn main() -> ExitCode {
    sharedmain::main("controller", &[crate::case0_addressable::controller, crate::case1_cluster::controller])
}
fn with_a_closure() -> ExitCode {
    sharedmain::main(
        "controller",
        &[crate::case0_addressable::controller, |cx| crate::case1_cluster::controller(cx)],
    )
}
fn built(size: usize) -> sharedmain::Main {
    sharedmain::Main::new("controller")
        .provide(String::from("what a constructor may ask for"))
        .controller(crate::case0_addressable::controller)
        .controller(move |cx| {
            let _captured = size;
            crate::case1_cluster::controller(cx)
        })
        .task(|cx| {
            let client = cx.client();
            Ok(Task::new("warm", async move {
                drop(client);
                Ok(())
            }))
        })
}
#[tokio::test]
async fn everything_is_constructed_before_anything_runs() {
    let (controllers, tasks) = {
        let cx = Context::new("test", crate::nowhere());
        built(3).construct(&cx).unwrap()
    };
    assert_eq!((controllers.len(), tasks.len()), (2, 1));
    fn sendable<T: Send>(_: T) {}
    sendable((controllers, tasks));
}
