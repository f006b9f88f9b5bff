//! Facts of the running kernel and machine. Parsers work over bytes and are
//! tested on fixtures; nothing here attaches anything.
//!
//! Every reader takes the directory that holds `proc`, `sys` and `boot`: `/` for
//! the running kernel. Start with [`collect()`].

mod btf;
mod btf_kind;
mod capabilities;
pub mod causes;
mod cgroup;
mod cmdline;
mod collect;
mod config;
mod cpulist;
mod facts;
mod flavour;
mod format;
mod hypervisor;
mod hz;
mod idle;
mod kallsyms;
mod live;
mod lockdown;
mod machine;
mod model;
mod mounts;
mod notes;
mod procstat;
mod root;
mod symbol_names;
pub mod text;

pub use btf::{Btf, MemberOffset, Param, ParamKind, Unavailable};
pub use capabilities::Capabilities;
pub use cgroup::cgroup_cpu_limit;
pub use cmdline::BootParameters;
pub use collect::{Facts, Wanted, collect, explain_hidden_symbols};
pub use config::{INFERRED, find_config, infer_config};
pub use cpulist::{CpuList, CpuListError};
pub use facts::{
    Config, KernelFacts, Lockdown, LockdownState, MachineFacts, Model, PreemptModel, Release,
};
pub use flavour::{RcuFacts, TickFacts, how_to_change_model};
pub use format::{TracepointField, TracepointFormat};
pub use hypervisor::hypervisor;
pub use hz::find_hz;
pub use idle::{idle_texts, waits_for_work};
pub use kallsyms::{Kallsyms, Section, SymbolRef};
pub use live::KernelMemory;
pub use lockdown::lockdown;
pub use machine::machine_facts;
pub use model::{ModelInputs, preempt_model};
pub use mounts::{debugfs, tracefs};
pub use notes::kernel_build_id;
pub use procstat::{CpuTimes, ProcStat};
pub use symbol_names::base_name;
