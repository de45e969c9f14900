use reknit::prelude::*;
fn c(_: &Context) -> Result<Controller> {
    todo!()
}
fn main() {
    let n = 3;
    sharedmain::main(
        "x",
        &[c, move |cx: &Context| {
            let _ = n;
            c(cx)
        }],
    );
}
