//! The entry point: `Main`.
use std::process::ExitCode;

use reknit::{prelude::*, sharedmain::Task};

fn main() -> ExitCode {
    main_with_builder(1).run()
}
fn main_with_builder(size: usize) -> Main {
    Main::new("controller")
        .provide(String::from("a value for constructors"))
        .controller(crate::addressable_service::controller)
        .controller(move |cx| {
            let _captured = size;
            crate::cluster_scoped::controller(cx)
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
async fn construct_returns_controllers_and_tasks_that_are_send() {
    let (controllers, tasks) = {
        let cx = Context::new("test", crate::unreachable_client());
        main_with_builder(3).construct(&cx).unwrap()
    };
    assert_eq!((controllers.len(), tasks.len()), (2, 1));
    fn assert_send<T: Send>(_: T) {}
    assert_send((controllers, tasks));
}
