//! What a call costs its caller beside the function called: instructions around
//! the call that are there because of it.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::Snapshot;
use crate::kernel::SymbolRef;

/// Instructions in the caller because of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallerCost {
    /// Setting up arguments.
    pub arguments: u32,
    /// The call itself.
    pub call: u32,
    /// Making something of the result, or reading again what the call left in
    /// memory: code that the inlined replacement does not need.
    pub after: u32,
    /// Saving registers that the call may change, for functions that would not
    /// call anything else.
    pub frame: u32,
    /// The first argument, when it is a constant.
    pub argument: Option<u64>,
}

impl CallerCost {
    /// All of them.
    pub const fn instructions(&self) -> u32 {
        self.arguments + self.call + self.after + self.frame
    }
}

/// Instructions of a function that are decoded at most.
const MAX_INSTRUCTIONS: usize = 4096;
/// How far before a call its argument may be set.
const REACH: usize = 6;

/// What the call at `site` costs `caller`. `is_ours` tells the functions that go
/// with the option: a caller that calls nothing else would be a leaf without it.
/// `None` when the instructions up to the site are not understood.
pub fn caller_cost(
    snapshot: &Snapshot<'_>,
    caller: &SymbolRef<'_>,
    site: u64,
    is_ours: &dyn Fn(u64) -> bool,
) -> Option<CallerCost> {
    let code = snapshot.text(caller.range())?;
    let decoder = Decoder::with_ip(64, code, caller.start, DecoderOptions::NONE);
    let instructions: Vec<Instruction> = decoder.into_iter().take(MAX_INSTRUCTIONS).collect();
    let at = instructions
        .iter()
        .position(|instruction| instruction.ip() == site)?;
    let call = &instructions[at];
    let (arguments, argument) = arguments(&instructions[..at]);
    Some(CallerCost {
        arguments,
        // A tail call replaces the return, which the function called makes.
        call: u32::from(call.flow_control() == FlowControl::Call),
        after: after(&instructions[at + 1..]),
        frame: frame(&instructions, is_ours),
        argument,
    })
}

/// Instructions right before a call that set its first argument, with its value.
fn arguments(before: &[Instruction]) -> (u32, Option<u64>) {
    for instruction in before.iter().rev().take(REACH) {
        if instruction.flow_control() != FlowControl::Next {
            break;
        }
        if instruction.op_count() == 0
            || instruction.op_kind(0) != OpKind::Register
            || instruction.op0_register().full_register() != Register::RDI
        {
            continue;
        }
        return match instruction.mnemonic() {
            Mnemonic::Mov => {
                let constant = match instruction.op_kind(1) {
                    OpKind::Register | OpKind::Memory => None,
                    _ => instruction.try_immediate(1).ok(),
                };
                (1, constant)
            }
            Mnemonic::Lea => (1, None),
            Mnemonic::Xor if instruction.op1_register() == instruction.op0_register() => {
                (1, Some(0))
            }
            _ => (0, None),
        };
    }
    (0, None)
}

/// Instructions right after a call that the inlined code does without: the
/// result extended and used as an index (per-CPU addressing is one instruction
/// inline), or preempt_count read again and tested (a decrement sets the flags).
fn after(rest: &[Instruction]) -> u32 {
    let mut count = 0;
    let mut rest = rest.iter();
    let Some(first) = rest.next() else { return 0 };
    let is_eax = |register: Register| register.full_register() == Register::RAX;
    match first.mnemonic() {
        Mnemonic::Mov
            if first.op_kind(0) == OpKind::Register
                && first.op_kind(1) == OpKind::Register
                && first.op0_register() == Register::EAX
                && first.op1_register() == Register::EAX =>
        {
            count += 1;
            if let Some(second) = rest.next()
                && second.mnemonic() == Mnemonic::Mov
                && second.op_kind(1) == OpKind::Memory
                && is_eax(second.memory_index())
            {
                count += 1;
            }
        }
        Mnemonic::Mov
            if first.op_kind(1) == OpKind::Memory && first.memory_segment() == Register::GS =>
        {
            if let Some(second) = rest.next()
                && second.mnemonic() == Mnemonic::Test
            {
                count += 2;
            }
        }
        Mnemonic::Cmp
            if first.op_kind(0) == OpKind::Memory && first.memory_segment() == Register::GS =>
        {
            count += 1;
        }
        _ => {}
    }
    count
}

/// Pushes, and as many pops, of a function that would be a leaf, for each of
/// the option's calls in it.
fn frame(instructions: &[Instruction], is_ours: &dyn Fn(u64) -> bool) -> u32 {
    let mut ours = 0_u32;
    let mut pushes = 0_u32;
    for instruction in instructions {
        match instruction.flow_control() {
            FlowControl::Call => {
                if !is_ours(instruction.near_branch_target()) {
                    return 0;
                }
                ours += 1;
            }
            FlowControl::IndirectCall => return 0,
            _ if instruction.mnemonic() == Mnemonic::Push => pushes += 1,
            _ => {}
        }
    }
    // What a register is saved for is moved into it and back.
    (3 * pushes).checked_div(ours).unwrap_or(0)
}
