use reknit::{prelude::*, sharedmain::Task};
fn serve(cx: &Context) -> impl Future<Output = Result<()>> + Send {
    let down = cx.shutdown().wait();
    async move {
        down.await;
        Ok(())
    }
}
fn task(cx: &Context) -> Result<Task> {
    Ok(Task::new("grpc", serve(cx)))
}
fn main() {
    Main::new("x").task(task).run();
}
