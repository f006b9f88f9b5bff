//! `cargo xtask`: everything a developer runs that is not `cargo build`.

fn main() {}
