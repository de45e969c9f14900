//! Code that must not compile, and the messages that the compiler answers with.

#[test]
fn what_must_not_compile_says_why() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*/*.rs");
}
