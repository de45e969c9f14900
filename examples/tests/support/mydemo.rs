//! The program mydemo, and its object.

#[path = "../../mydemo/main.rs"]
#[expect(dead_code, unreachable_pub, reason = "a program, of which tests use only parts")]
pub(crate) mod program;

use self::program::{Mydemo, MydemoSpec};

pub(crate) fn demo() -> Mydemo {
    Mydemo::new("demo", MydemoSpec { ip: "10.0.0.1".into(), port: 8080 })
}
