//! Facts of the running kernel and machine. Parsers work over bytes and are
//! tested on fixtures; nothing here attaches anything.

mod btf;
mod cmdline;
mod config;
mod facts;
mod hz;
mod kallsyms;
mod live;
mod model;
mod root;
mod symbol_names;

pub use btf::{Btf, MemberOffset, Param, ParamKind, Unavailable};
pub use cmdline::BootParameters;
pub use config::{INFERRED, find_config, infer_config};
pub use facts::{
    Config, KernelFacts, Lockdown, LockdownState, MachineFacts, Model, PreemptModel, Release,
};
pub use hz::find_hz;
pub use kallsyms::{Kallsyms, Section, SymbolRef};
pub use live::KernelMemory;
pub use model::{ModelInputs, preempt_model};
pub use symbol_names::base_name;
