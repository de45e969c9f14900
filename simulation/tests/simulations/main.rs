//! Simulations of small controllers: good ones, and ones with a planted bug.

mod deletions;
mod determinism;
mod good;
mod greeter;
mod planted;
mod widgets;
