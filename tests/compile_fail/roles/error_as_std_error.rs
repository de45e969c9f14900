use reknit::prelude::*;
fn c() -> Result<u8> {
    todo!()
}
fn f() -> std::result::Result<(), Box<dyn std::error::Error>> {
    c()?;
    Ok(())
}
fn main() {
    let _ = f();
}
