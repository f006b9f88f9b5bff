//! How many instructions a call of a small function executes: its code is
//! walked, with the memory of the running kernel, under given conditions.
//!
//! Where a branch depends on what is not known, both ways are walked and the
//! shorter one is taken: the checks of a debug option are there to pass. A way
//! that traps (`ud2`), or gets long, is none that a passing check takes.

use std::collections::HashMap;

use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register,
};

use super::Snapshot;

/// What a call finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The first argument, when it is known.
    pub argument: Option<u64>,
    /// Where the call returns to.
    pub return_address: u64,
    /// `gs` base of the CPU: where per-CPU variables lie.
    pub percpu: Option<u64>,
    /// The address of the CPU's preempt_count.
    pub preempt_count: Option<u64>,
    /// Its value.
    pub count: u32,
    /// Whether interrupts are on.
    pub interrupts: bool,
}

/// What a call executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Instructions, from the function's first to its return.
    pub instructions: u32,
    /// Branches on the way that depend on what is not known.
    pub guesses: u32,
}

/// No check that passes is longer.
const LONGEST: u32 = 300;
/// Instructions walked on all ways together.
const MOST_STEPS: u32 = 20_000;
/// The longest instruction of x86.
const MAX_INSTRUCTION: u64 = 15;
/// Where the walk's stack begins: no kernel address.
const STACK: u64 = 0x7000_0000_0000;
/// Kernel addresses are in the upper half.
const KERNEL: u64 = 1 << 63;

/// Walks a call of the function at `entry`. Calls of functions that
/// `is_separate` names are not followed: they are accounted for elsewhere.
/// `None` when no way through it is short and free of traps, or its instructions
/// are not understood.
pub fn walk(
    snapshot: &Snapshot<'_>,
    entry: u64,
    conditions: &Conditions,
    is_separate: &dyn Fn(u64) -> bool,
) -> Option<Path> {
    let mut walker = Walker {
        snapshot,
        is_separate,
        percpu: conditions.percpu,
        interrupts: conditions.interrupts,
        steps: 0,
        info: InstructionInfoFactory::new(),
    };
    let mut state = State::default();
    state.set(Register::RSP, Some(STACK));
    state.set(Register::RDI, conditions.argument);
    if let Some(address) = conditions.preempt_count {
        state.store(Some(address), 4, Some(u64::from(conditions.count)));
    }
    state.push(Some(conditions.return_address));
    walker.follow(entry, state)
}

type Value = Option<u64>;

/// The flags that conditions are made of.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    zero: bool,
    sign: bool,
    carry: bool,
    overflow: bool,
}

#[derive(Clone, Debug, Default)]
struct State {
    registers: [Value; 16],
    flags: Option<Flags>,
    /// Bytes that were written; absent values are unknown.
    written: HashMap<u64, Option<u8>>,
    path: Path,
    depth: u32,
}

impl State {
    fn set(&mut self, register: Register, value: Value) {
        if let Some(slot) = self
            .registers
            .get_mut(register.full_register() as usize - Register::RAX as usize)
        {
            *slot = value;
        }
    }

    fn get(&self, register: Register) -> Value {
        let full = register.full_register() as usize;
        let index = full.checked_sub(Register::RAX as usize)?;
        *self.registers.get(index)?
    }

    fn store(&mut self, address: Value, size: usize, value: Value) {
        // A store to an unknown place changes nothing that is known here: checks
        // keep what they need in registers and on the stack.
        let Some(address) = address else { return };
        for byte in 0..size as u64 {
            let part = value.map(|value| (value >> (8 * byte)) as u8);
            self.written.insert(address.wrapping_add(byte), part);
        }
    }

    fn push(&mut self, value: Value) {
        let top = self.get(Register::RSP).map(|top| top.wrapping_sub(8));
        self.set(Register::RSP, top);
        self.store(top, 8, value);
    }
}

struct Walker<'a, 's> {
    snapshot: &'a Snapshot<'s>,
    is_separate: &'a dyn Fn(u64) -> bool,
    percpu: Option<u64>,
    interrupts: bool,
    steps: u32,
    info: InstructionInfoFactory,
}

impl Walker<'_, '_> {
    fn follow(&mut self, mut at: u64, mut state: State) -> Option<Path> {
        loop {
            self.steps += 1;
            if self.steps > MOST_STEPS || state.path.instructions > LONGEST {
                return None;
            }
            let code = self.snapshot.text(at..at.checked_add(MAX_INSTRUCTION)?)?;
            let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                return None;
            }
            state.path.instructions += 1;
            let next = instruction.next_ip();
            at = match instruction.flow_control() {
                FlowControl::Next => {
                    self.execute(&instruction, &mut state);
                    next
                }
                FlowControl::UnconditionalBranch => {
                    let target = instruction.near_branch_target();
                    if (self.is_separate)(target) {
                        match self.leave(&mut state)? {
                            Some(back) => back,
                            None => return Some(state.path),
                        }
                    } else {
                        target
                    }
                }
                FlowControl::ConditionalBranch => {
                    let target = instruction.near_branch_target();
                    match holds(instruction.condition_code(), state.flags) {
                        Some(true) => target,
                        Some(false) => next,
                        None => {
                            state.path.guesses += 1;
                            let taken = self.follow(target, state.clone());
                            let passed = self.follow(next, state);
                            return shorter(taken, passed);
                        }
                    }
                }
                FlowControl::Call => {
                    let target = instruction.near_branch_target();
                    if (self.is_separate)(target) {
                        state.set(Register::RAX, None);
                        next
                    } else {
                        state.push(Some(next));
                        state.depth += 1;
                        target
                    }
                }
                FlowControl::Return => match self.leave(&mut state)? {
                    Some(back) => back,
                    None => return Some(state.path),
                },
                // Traps, system calls, indirect branches.
                _ => return None,
            };
        }
    }

    /// Returns from a function: where to, or nowhere when it is the one that is
    /// walked.
    fn leave(&self, state: &mut State) -> Option<Option<u64>> {
        if state.depth == 0 {
            return Some(None);
        }
        state.depth -= 1;
        let top = state.get(Register::RSP)?;
        state.set(Register::RSP, Some(top.wrapping_add(8)));
        Some(Some(self.load(state, Some(top), 8)?))
    }

    fn load(&self, state: &State, address: Value, size: usize) -> Value {
        let address = address?;
        let mut value = 0;
        let mut from_kernel = None;
        for byte in 0..size as u64 {
            let at = address.wrapping_add(byte);
            let part = match state.written.get(&at) {
                Some(written) => (*written)?,
                None if at >= KERNEL => {
                    let whole = match from_kernel {
                        Some(whole) => whole,
                        None => self.snapshot.read(address, size)?,
                    };
                    from_kernel = Some(whole);
                    (whole >> (8 * byte)) as u8
                }
                None => return None,
            };
            value |= u64::from(part) << (8 * byte);
        }
        Some(value)
    }

    fn address(&self, instruction: &Instruction, state: &State) -> Value {
        let segment = match instruction.memory_segment() {
            Register::GS => self.percpu?,
            _ => 0,
        };
        if instruction.is_ip_rel_memory_operand() {
            return Some(segment.wrapping_add(instruction.ip_rel_memory_address()));
        }
        let mut address = segment.wrapping_add(instruction.memory_displacement64());
        if instruction.memory_base() != Register::None {
            address = address.wrapping_add(state.get(instruction.memory_base())?);
        }
        if instruction.memory_index() != Register::None {
            let scale = u64::from(instruction.memory_index_scale());
            address =
                address.wrapping_add(state.get(instruction.memory_index())?.wrapping_mul(scale));
        }
        Some(address)
    }

    /// Bytes of an operand.
    fn size(instruction: &Instruction, operand: u32) -> usize {
        match instruction.op_kind(operand) {
            OpKind::Register => instruction.op_register(operand).size(),
            OpKind::Memory => instruction.memory_size().size(),
            _ if operand > 0 => Self::size(instruction, 0),
            _ => 8,
        }
    }

    fn operand(&self, instruction: &Instruction, state: &State, operand: u32) -> Value {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let register = instruction.op_register(operand);
                let value = state.get(register)?;
                let high = matches!(
                    register,
                    Register::AH | Register::BH | Register::CH | Register::DH
                );
                Some(truncate(
                    if high { value >> 8 } else { value },
                    register.size(),
                ))
            }
            OpKind::Memory => self.load(
                state,
                self.address(instruction, state),
                instruction.memory_size().size(),
            ),
            _ => Some(instruction.try_immediate(operand).ok()?),
        }
    }

    fn write(&self, instruction: &Instruction, state: &mut State, operand: u32, value: Value) {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let register = instruction.op_register(operand);
                let old = state.get(register);
                let merged = match register.size() {
                    8 => value,
                    // A 32-bit write clears the upper half.
                    4 => value.map(|value| truncate(value, 4)),
                    size => match (old, value) {
                        (Some(old), Some(value)) if !is_high(register) => {
                            let kept = old & !truncate(u64::MAX, size);
                            Some(kept | truncate(value, size))
                        }
                        (Some(old), Some(value)) => Some(old & !0xff00 | (value & 0xff) << 8),
                        _ => None,
                    },
                };
                state.set(register, merged);
            }
            OpKind::Memory => {
                let address = self.address(instruction, state);
                state.store(address, instruction.memory_size().size(), value);
            }
            _ => {}
        }
    }

    /// What an instruction does, as far as it can matter to a check.
    fn execute(&mut self, instruction: &Instruction, state: &mut State) {
        let size = Self::size(instruction, 0);
        let read = |operand| self.operand(instruction, state, operand);
        match instruction.mnemonic() {
            Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Pause => {}
            Mnemonic::Mov | Mnemonic::Movzx => {
                let value = read(1);
                self.write(instruction, state, 0, value);
            }
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                let from = Self::size(instruction, 1);
                let value = read(1).map(|value| sign_extend(value, from));
                self.write(instruction, state, 0, value);
            }
            Mnemonic::Lea => {
                let value = self.address(instruction, state);
                self.write(instruction, state, 0, value);
            }
            Mnemonic::Push => {
                let value = read(0).map(|value| match instruction.op_kind(0) {
                    OpKind::Register | OpKind::Memory => value,
                    _ => sign_extend(value, 4),
                });
                state.push(value);
            }
            Mnemonic::Pop => {
                let top = state.get(Register::RSP);
                let value = self.load(state, top, 8);
                state.set(Register::RSP, top.map(|top| top.wrapping_add(8)));
                self.write(instruction, state, 0, value);
            }
            Mnemonic::Leave => {
                let top = state.get(Register::RBP);
                let value = self.load(state, top, 8);
                state.set(Register::RSP, top.map(|top| top.wrapping_add(8)));
                state.set(Register::RBP, value);
            }
            Mnemonic::Pushfq => {
                const INTERRUPTS: u64 = 1 << 9;
                state.push(Some(2 | if self.interrupts { INTERRUPTS } else { 0 }));
            }
            Mnemonic::Cmp | Mnemonic::Sub => {
                let (a, b) = (read(0), read(1));
                let result = a
                    .zip(b)
                    .map(|(a, b)| (a.wrapping_sub(b), subtraction(a, b, size)));
                state.flags = result.map(|(_, flags)| flags);
                if instruction.mnemonic() == Mnemonic::Sub {
                    let same = instruction.op_kind(1) == OpKind::Register
                        && instruction.op0_register() == instruction.op1_register();
                    let value = if same {
                        Some(0)
                    } else {
                        result.map(|(value, _)| value)
                    };
                    self.write(instruction, state, 0, value);
                }
            }
            Mnemonic::Add => {
                let (a, b) = (read(0), read(1));
                let result = a
                    .zip(b)
                    .map(|(a, b)| (a.wrapping_add(b), addition(a, b, size)));
                state.flags = result.map(|(_, flags)| flags);
                self.write(instruction, state, 0, result.map(|(value, _)| value));
            }
            Mnemonic::Inc | Mnemonic::Dec => {
                let down = instruction.mnemonic() == Mnemonic::Dec;
                let result = read(0).map(|a| {
                    if down {
                        (a.wrapping_sub(1), subtraction(a, 1, size))
                    } else {
                        (a.wrapping_add(1), addition(a, 1, size))
                    }
                });
                state.flags = result.map(|(_, flags)| flags);
                self.write(instruction, state, 0, result.map(|(value, _)| value));
            }
            Mnemonic::Neg => {
                let result = read(0).map(|a| (a.wrapping_neg(), subtraction(0, a, size)));
                state.flags = result.map(|(_, flags)| flags);
                self.write(instruction, state, 0, result.map(|(value, _)| value));
            }
            Mnemonic::Not => {
                let value = read(0).map(|value| !value);
                self.write(instruction, state, 0, value);
            }
            mnemonic @ (Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test) => {
                let cleared = mnemonic == Mnemonic::Xor
                    && instruction.op_kind(1) == OpKind::Register
                    && instruction.op0_register() == instruction.op1_register();
                let (a, b) = (read(0), read(1));
                let value = match mnemonic {
                    Mnemonic::Xor if cleared => Some(0),
                    Mnemonic::And | Mnemonic::Test if a == Some(0) || b == Some(0) => Some(0),
                    _ => a.zip(b).map(|(a, b)| match mnemonic {
                        Mnemonic::Or => a | b,
                        Mnemonic::Xor => a ^ b,
                        _ => a & b,
                    }),
                };
                state.flags = value.map(|value| logical(value, size));
                if mnemonic != Mnemonic::Test {
                    self.write(instruction, state, 0, value);
                }
            }
            mnemonic @ (Mnemonic::Shl | Mnemonic::Shr | Mnemonic::Sar) => {
                let value = read(0).zip(read(1)).map(|(a, by)| {
                    let by = by as u32 & if size == 8 { 63 } else { 31 };
                    match mnemonic {
                        Mnemonic::Shl => a << by,
                        Mnemonic::Shr => a >> by,
                        _ => (sign_extend(a, size) as i64 >> by) as u64,
                    }
                });
                state.flags = value.map(|value| logical(truncate(value, size), size));
                self.write(instruction, state, 0, value);
            }
            _ if is_conditional(instruction) && instruction.op_count() == 1 => {
                let value = holds(instruction.condition_code(), state.flags).map(u64::from);
                self.write(instruction, state, 0, value);
            }
            _ if is_conditional(instruction) => {
                let value = match holds(instruction.condition_code(), state.flags) {
                    Some(true) => read(1),
                    Some(false) => read(0),
                    None => None,
                };
                self.write(instruction, state, 0, value);
            }
            _ => self.forget(instruction, state),
        }
    }

    /// An instruction that is not understood: what it writes is unknown.
    fn forget(&mut self, instruction: &Instruction, state: &mut State) {
        let memory = self.address(instruction, state);
        let info = self.info.info(instruction);
        let writes = |access| {
            matches!(
                access,
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            )
        };
        for used in info.used_registers() {
            if writes(used.access()) {
                state.set(used.register(), None);
            }
        }
        if info.used_memory().iter().any(|used| writes(used.access())) {
            state.store(memory, instruction.memory_size().size(), None);
        }
        if instruction.code() != Code::INVALID && instruction.rflags_modified() != 0 {
            state.flags = None;
        }
    }
}

/// `setcc` or `cmovcc`.
fn is_conditional(instruction: &Instruction) -> bool {
    instruction.condition_code() != ConditionCode::None
}

fn shorter(a: Option<Path>, b: Option<Path>) -> Option<Path> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a.instructions <= b.instructions {
            a
        } else {
            b
        }),
        (a, b) => a.or(b),
    }
}

fn is_high(register: Register) -> bool {
    matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    )
}

fn truncate(value: u64, size: usize) -> u64 {
    match size {
        1 => value & 0xff,
        2 => value & 0xffff,
        4 => value & 0xffff_ffff,
        _ => value,
    }
}

fn sign_extend(value: u64, size: usize) -> u64 {
    match size {
        1 => value as u8 as i8 as u64,
        2 => value as u16 as i16 as u64,
        4 => value as u32 as i32 as u64,
        _ => value,
    }
}

fn is_negative(value: u64, size: usize) -> bool {
    (sign_extend(value, size) as i64) < 0
}

fn logical(value: u64, size: usize) -> Flags {
    Flags {
        zero: truncate(value, size) == 0,
        sign: is_negative(value, size),
        carry: false,
        overflow: false,
    }
}

fn subtraction(a: u64, b: u64, size: usize) -> Flags {
    let value = a.wrapping_sub(b);
    Flags {
        carry: truncate(a, size) < truncate(b, size),
        overflow: is_negative((a ^ b) & (a ^ value), size),
        ..logical(value, size)
    }
}

fn addition(a: u64, b: u64, size: usize) -> Flags {
    let value = a.wrapping_add(b);
    Flags {
        carry: truncate(value, size) < truncate(a, size),
        overflow: is_negative(!(a ^ b) & (a ^ value), size),
        ..logical(value, size)
    }
}

/// Whether a condition holds; unknown with unknown flags.
fn holds(condition: ConditionCode, flags: Option<Flags>) -> Option<bool> {
    let Flags {
        zero,
        sign,
        carry,
        overflow,
    } = flags?;
    Some(match condition {
        ConditionCode::o => overflow,
        ConditionCode::no => !overflow,
        ConditionCode::b => carry,
        ConditionCode::ae => !carry,
        ConditionCode::e => zero,
        ConditionCode::ne => !zero,
        ConditionCode::be => carry || zero,
        ConditionCode::a => !carry && !zero,
        ConditionCode::s => sign,
        ConditionCode::ns => !sign,
        ConditionCode::l => sign != overflow,
        ConditionCode::ge => sign == overflow,
        ConditionCode::le => zero || sign != overflow,
        ConditionCode::g => !zero && sign == overflow,
        // Parity.
        _ => return None,
    })
}
