//! Code that must not compile, and the error messages of the compiler.

#[test]
fn code_that_must_not_compile_has_these_errors() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*/*.rs");
}
