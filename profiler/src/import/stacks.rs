//! From names of frames to ids of a recording.

use crate::recording::{Frame, FrameId, Sink, StackId, Symbol};

/// Frames of one stack that are kept; a recording cuts deeper ones.
pub(super) const MAX_DEPTH: usize = 16_384;

/// One frame as a tool prints it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Printed<'a> {
    pub(super) addr: u64,
    /// Empty when it is not known.
    pub(super) symbol: &'a str,
    pub(super) offset: u32,
    /// Kernel module, `bpf` or a binary's path; empty for the kernel itself.
    pub(super) module: &'a str,
}

/// Stands for a symbol, or a user-mode object, that is not known.
pub(super) const UNKNOWN: &str = "[unknown]";

/// Puts stacks into a sink. One that is used again and again allocates nothing
/// but for new symbols.
#[derive(Debug, Default)]
pub(super) struct Interner {
    symbol: Symbol,
}

impl Interner {
    pub(super) fn frame(&mut self, sink: &mut impl Sink, printed: &Printed<'_>) -> FrameId {
        self.symbol.name.clear();
        self.symbol.name.push_str(match printed.symbol {
            "" => UNKNOWN,
            name => name,
        });
        self.symbol.module.clear();
        self.symbol.module.push_str(printed.module);
        let symbol = sink.intern_symbol(&self.symbol);
        sink.intern_frame(&Frame {
            addr: printed.addr,
            symbol,
            offset: printed.offset,
        })
    }
}

/// The two stacks of a sample, innermost frame first.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    pub(super) kernel: Vec<FrameId>,
    pub(super) user: Vec<FrameId>,
}

impl Stacks {
    pub(super) fn clear(&mut self) {
        self.kernel.clear();
        self.user.clear();
    }

    /// The ids of both, kernel first.
    pub(super) fn intern(&self, sink: &mut impl Sink) -> (StackId, StackId) {
        (
            sink.intern_stack(&self.kernel),
            sink.intern_stack(&self.user),
        )
    }
}
