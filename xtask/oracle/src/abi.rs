//! The part of QEMU's plugin ABI, version 1, that the oracle uses.
//!
//! Facts of the ABI as QEMU 6.0 to 8.2 export it; the symbols are resolved
//! when QEMU loads the plugin.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The API version this plugin is written for.
pub(crate) const API_VERSION: c_int = 1;

/// QEMU's handle of one loaded plugin.
pub type PluginId = u64;

/// `qemu_info_t`: what QEMU says of itself at installation.
#[repr(C)]
pub struct Info {
    /// Name of the emulated architecture, a C string.
    pub(crate) target_name: *const c_char,
    /// Oldest API version this QEMU loads.
    pub(crate) version_min: c_int,
    /// API version of this QEMU.
    pub(crate) version_current: c_int,
    /// True for a whole machine, false for `qemu-x86_64` and the like.
    pub(crate) system_emulation: bool,
    /// Valid with `system_emulation`: CPUs of the machine at its start.
    pub(crate) smp_vcpus: c_int,
    /// Valid with `system_emulation`: CPUs of the machine at most.
    pub(crate) max_vcpus: c_int,
}

/// A block of guest instructions being translated; valid in its callback only.
#[repr(C)]
pub(crate) struct Tb {
    opaque: [u8; 0],
}

/// One guest instruction of a block; valid in the block's callback only.
#[repr(C)]
pub(crate) struct Insn {
    opaque: [u8; 0],
}

/// `QEMU_PLUGIN_CB_NO_REGS`: the callback does not look at guest registers.
pub(crate) const CB_NO_REGS: c_int = 0;
/// `QEMU_PLUGIN_INLINE_ADD_U64`, the only inline operation there is.
pub(crate) const INLINE_ADD_U64: c_int = 0;

unsafe extern "C" {
    pub(crate) fn qemu_plugin_register_vcpu_tb_trans_cb(
        id: PluginId,
        callback: extern "C" fn(PluginId, *mut Tb),
    );
    pub(crate) fn qemu_plugin_register_atexit_cb(
        id: PluginId,
        callback: extern "C" fn(PluginId, *mut c_void),
        data: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut Insn,
        callback: extern "C" fn(c_uint, *mut c_void),
        flags: c_int,
        data: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_insn_exec_inline(
        insn: *mut Insn,
        op: c_int,
        counter: *mut c_void,
        imm: u64,
    );
    pub(crate) fn qemu_plugin_tb_n_insns(tb: *const Tb) -> usize;
    pub(crate) fn qemu_plugin_tb_get_insn(tb: *const Tb, index: usize) -> *mut Insn;
    pub(crate) fn qemu_plugin_insn_vaddr(insn: *const Insn) -> u64;
    pub(crate) fn qemu_plugin_insn_size(insn: *const Insn) -> usize;
    pub(crate) fn qemu_plugin_insn_data(insn: *const Insn) -> *const c_void;
}
