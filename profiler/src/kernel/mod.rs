//! Facts of the running kernel and machine. Parsers work over bytes and are
//! tested on fixtures; nothing here attaches anything.

mod facts;

pub use facts::{
    Config, KernelFacts, Lockdown, LockdownState, MachineFacts, Model, PreemptModel, Release,
};
