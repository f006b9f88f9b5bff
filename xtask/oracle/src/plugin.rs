//! The entry points QEMU calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs;
use std::path::PathBuf;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi::{self, Info, Insn, PluginId, Tb};
use crate::args;
use crate::branch::{self, Branch};
use crate::counters::Counters;
use crate::symbols::SymbolTable;

/// The API version this plugin wants; QEMU reads it before it calls anything.
// SAFETY: the name is the ABI's, and nothing else in a plugin defines it.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = abi::API_VERSION;

struct State {
    counters: Counters,
    mark: String,
    mark_address: u64,
    out: PathBuf,
}

static STATE: OnceLock<Mutex<State>> = OnceLock::new();

/// The state, when installation succeeded. The emulator runs one CPU thread,
/// so nobody waits here.
fn state() -> Option<MutexGuard<'static, State>> {
    Some(STATE.get()?.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Called by QEMU once, before the machine starts. Returns 0, or 1 after an
/// error message on stderr, upon which QEMU exits.
///
/// # Safety
///
/// `info` points to a valid `qemu_info_t`, and `argv` to `argc` C strings, as
/// the ABI promises.
// SAFETY: the name is the ABI's, and nothing else in a plugin defines it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: PluginId,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes a valid structure for the duration of the call.
    let info = unsafe { &*info };
    let argc = usize::try_from(argc).unwrap_or(0);
    let words = (0..argc).map(|index| {
        // SAFETY: `argv` has `argc` entries, each a C string that lives as
        // long as the plugin.
        unsafe { CStr::from_ptr(*argv.add(index)) }
            .to_string_lossy()
            .into_owned()
    });
    match install(info, &words.collect::<Vec<_>>()) {
        Ok(()) => {
            // SAFETY: `id` is the handle of this plugin, and the callbacks are
            // functions of the types that the ABI asks for.
            unsafe {
                abi::qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
                abi::qemu_plugin_register_atexit_cb(id, at_exit, ptr::null_mut());
            }
            0
        }
        Err(message) => {
            eprintln!("error: oracle: {message}");
            1
        }
    }
}

fn install(info: &Info, words: &[String]) -> Result<(), String> {
    if info.version_current != abi::API_VERSION {
        return Err(format!(
            "this QEMU has plugin API {}, the oracle is written for {}\n\
             hint: QEMU 7.2 to 8.2 have it",
            info.version_current,
            abi::API_VERSION
        ));
    }
    // SAFETY: the ABI promises a C string.
    let target = unsafe { CStr::from_ptr(info.target_name) }.to_string_lossy();
    if !info.system_emulation || target != "x86_64" {
        return Err(format!(
            "it counts in qemu-system-x86_64 only, and this is {} emulation of {target}",
            if info.system_emulation {
                "system"
            } else {
                "user-mode"
            }
        ));
    }
    // Inline additions are not atomic, so a second CPU would lose some.
    if info.max_vcpus != 1 {
        return Err(format!(
            "the machine may have {} CPUs, and counts are exact for one only\n\
             hint: start it with -smp 1",
            info.max_vcpus
        ));
    }
    let args = args::parse(words.iter().map(String::as_str))?;
    let text = fs::read_to_string(&args.map)
        .map_err(|error| format!("cannot read {}: {error}", args.map.display()))?;
    let table =
        SymbolTable::parse(&text).map_err(|error| format!("{}: {error}", args.map.display()))?;
    let mark = table.named(&args.mark).ok_or_else(|| {
        format!(
            "no function `{}` in {}\nhint: mark=SYMBOL names another one",
            args.mark,
            args.map.display()
        )
    })?;
    // Found out now rather than after an hour of emulation.
    fs::write(&args.out, "")
        .map_err(|error| format!("cannot write {}: {error}", args.out.display()))?;
    let mark_address = table.functions()[mark].start;
    let state = State {
        counters: Counters::new(table, args.functions, args.sites),
        mark: args.mark,
        mark_address,
        out: args.out,
    };
    STATE
        .set(Mutex::new(state))
        .map_err(|_| "loaded twice into one QEMU".to_owned())
}

/// A block was translated: attaches the counters to its instructions.
///
/// Each instruction adds to its function by itself. One addition per block
/// would be cheaper, and wrong: a block is left early on a fault, and under
/// `-icount` also at each access to a device.
extern "C" fn translated(_id: PluginId, tb: *mut Tb) {
    let Some(mut state) = state() else { return };
    // SAFETY: QEMU passes the block that it is translating.
    let count = unsafe { abi::qemu_plugin_tb_n_insns(tb) };
    for index in 0..count {
        // SAFETY: `index` is below the number of instructions of `tb`.
        let insn = unsafe { abi::qemu_plugin_tb_get_insn(tb, index) };
        // SAFETY: `insn` belongs to the block being translated.
        let address = unsafe { abi::qemu_plugin_insn_vaddr(insn) };
        let (instructions, calls) = state.counters.instruction(address);
        if address == state.mark_address {
            // SAFETY: as above; the callback has the type the ABI asks for.
            unsafe {
                abi::qemu_plugin_register_vcpu_insn_exec_cb(
                    insn,
                    marked,
                    abi::CB_NO_REGS,
                    ptr::null_mut(),
                );
            }
        }
        add_one(insn, instructions);
        if let Some(calls) = calls {
            add_one(insn, calls);
        }
        if let Some(branch) = branch_of(insn, address)
            && let Some(site) = state.counters.site(address, branch)
        {
            add_one(insn, site);
        }
    }
}

fn branch_of(insn: *mut Insn, address: u64) -> Option<Branch> {
    // SAFETY: `insn` belongs to the block being translated; QEMU keeps as many
    // bytes of it as it says.
    let bytes = unsafe {
        let data: *const u8 = abi::qemu_plugin_insn_data(insn).cast();
        std::slice::from_raw_parts(data, abi::qemu_plugin_insn_size(insn))
    };
    branch::decode(address, bytes)
}

fn add_one(insn: *mut Insn, counter: &'static std::sync::atomic::AtomicU64) {
    // SAFETY: `insn` belongs to the block being translated, and the counter
    // lives as long as the process. Generated code adds to it on the only CPU
    // thread, which is also the one that runs the callbacks that read it.
    unsafe {
        abi::qemu_plugin_register_vcpu_insn_exec_inline(
            insn,
            abi::INLINE_ADD_U64,
            counter.as_ptr().cast(),
            1,
        );
    }
}

/// The marking function was called.
extern "C" fn marked(_cpu: c_uint, _data: *mut c_void) {
    if let Some(mut state) = state() {
        state.counters.mark();
    }
}

/// The machine stopped: writes the document.
extern "C" fn at_exit(_id: PluginId, _data: *mut c_void) {
    let Some(state) = state() else { return };
    let document = state.counters.document(&state.mark);
    let written = serde_json::to_vec(&document)
        .map_err(std::io::Error::other)
        .and_then(|text| fs::write(&state.out, text));
    if let Err(error) = written {
        eprintln!(
            "error: oracle: cannot write {}: {error}",
            state.out.display()
        );
    }
}
