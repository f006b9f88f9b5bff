//! Builds the BPF object.

fn main() {}
