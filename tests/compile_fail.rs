//! What must not compile, and what the compiler says to whoever tries.

#[test]
fn what_must_not_compile_says_why() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
