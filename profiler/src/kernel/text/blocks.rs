//! Basic blocks: stretches of code of which all is executed, or none.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl};

use super::Snapshot;
use crate::kernel::SymbolRef;

/// Instructions of a function that are decoded at most.
const MAX_INSTRUCTIONS: usize = 16_384;

/// Where the basic blocks of a function begin, in ascending order. Calls do not
/// end a block, as they come back. Blocks that only an indirect jump leads to
/// (jump tables) begin after the jump or return in front of them.
pub fn block_starts(snapshot: &Snapshot<'_>, function: &SymbolRef<'_>) -> Vec<u64> {
    let mut starts = BTreeSet::from([function.start]);
    let Some(code) = snapshot.text(function.range()) else {
        return Vec::from_iter(starts);
    };
    let decoder = Decoder::with_ip(64, code, function.start, DecoderOptions::NONE);
    for instruction in decoder.into_iter().take(MAX_INSTRUCTIONS) {
        match instruction.flow_control() {
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                starts.insert(instruction.near_branch_target());
                starts.insert(instruction.next_ip());
            }
            FlowControl::Return
            | FlowControl::IndirectBranch
            | FlowControl::Interrupt
            | FlowControl::Exception => {
                starts.insert(instruction.next_ip());
            }
            _ => {}
        }
    }
    let range = function.range();
    starts.into_iter().filter(|at| range.contains(at)).collect()
}
