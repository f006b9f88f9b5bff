//! The `preemptprof` command.

fn main() {}
