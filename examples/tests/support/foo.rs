//! The program foo, and its objects.

#[path = "../../foo/main.rs"]
#[expect(dead_code, unreachable_pub, reason = "a program, of which tests use only parts")]
pub(crate) mod program;

use self::program::{Foo, FooSpec};

pub(crate) fn foo(name: &str, deployment: &str, replicas: i32) -> Foo {
    Foo::new(name, FooSpec { deployment_name: deployment.into(), replicas })
}
