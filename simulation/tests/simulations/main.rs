//! Simulations of small controllers: good ones, and ones with a planted bug.

mod deletions;
mod determinism;
mod good;
mod greeter;
mod kinds;
mod outside;
mod own_writes;
mod planted;
mod references;
mod snapshots;
mod widgets;
