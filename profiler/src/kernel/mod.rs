//! Facts of the running kernel and machine. Parsers work over bytes and are
//! tested on fixtures; nothing here attaches anything.

mod btf;
mod facts;
mod kallsyms;
mod root;
mod symbol_names;

pub use btf::{Btf, MemberOffset, Param, ParamKind, Unavailable};
pub use facts::{
    Config, KernelFacts, Lockdown, LockdownState, MachineFacts, Model, PreemptModel, Release,
};
pub use kallsyms::{Kallsyms, Section, SymbolRef};
pub use symbol_names::base_name;
