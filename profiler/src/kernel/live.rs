//! The preemption model as the running kernel's own memory has it.

use std::fmt;
use std::io;

use super::{Kallsyms, Model};

/// Reads the memory of the running kernel.
pub trait KernelMemory: fmt::Debug {
    /// Fills `buffer` from kernel address `address`. An address that is not mapped
    /// is an error, as is one the kernel does not let be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// What memory says: one model, or the ones it leaves possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LiveModel {
    pub(super) possible: Vec<Model>,
    pub(super) source: String,
}

impl LiveModel {
    fn new(possible: &[Model], source: impl Into<String>) -> Self {
        Self {
            possible: possible.to_vec(),
            source: source.into(),
        }
    }
}

/// Asks, best first, the variable `preempt_dynamic_mode` (listed only with
/// `CONFIG_KALLSYMS_ALL`), the static keys (arm64), the static calls (x86). All are
/// of kernel/sched/core.c since 5.12 to 5.19; `lazy` since 6.13.
pub(super) fn live_model(memory: &dyn KernelMemory, symbols: &Kallsyms) -> Option<LiveModel> {
    let kernel = Kernel { memory, symbols };
    kernel
        .mode_variable()
        .or_else(|| kernel.static_calls())
        .or_else(|| kernel.static_keys())
}

struct Kernel<'a> {
    memory: &'a dyn KernelMemory,
    symbols: &'a Kallsyms,
}

impl Kernel<'_> {
    fn i32(&self, symbol: &str) -> Option<i32> {
        let mut bytes = [0; 4];
        self.memory
            .read(self.symbols.address(symbol)?, &mut bytes)
            .ok()?;
        Some(i32::from_le_bytes(bytes))
    }

    fn mode_variable(&self) -> Option<LiveModel> {
        const NAME: &str = "preempt_dynamic_mode";
        let model = match self.i32(NAME)? {
            0 => Model::None,
            1 => Model::Voluntary,
            2 => Model::Full,
            3 => Model::Lazy,
            _ => return None,
        };
        Some(LiveModel::new(
            &[model],
            format!("variable {NAME} in kernel memory"),
        ))
    }

    /// x86: the trampolines that `preempt_schedule` and `might_resched` go through.
    fn static_calls(&self) -> Option<LiveModel> {
        const SCHEDULE: &str = "__SCT__preempt_schedule";
        const MIGHT: &str = "__SCT__might_resched";
        let preemptible = match self.trampoline(SCHEDULE)? {
            Target::Return => false,
            Target::Function(name) if name.starts_with("preempt_schedule") => true,
            // Rather no answer than one from code that is not understood.
            Target::Function(_) => return None,
        };
        if preemptible {
            let source = format!("target of {SCHEDULE} in kernel memory");
            return Some(self.full_or_lazy(source));
        }
        let source = format!("targets of {SCHEDULE} and {MIGHT} in kernel memory");
        let possible: &[Model] = match self.trampoline(MIGHT) {
            Some(Target::Function("__cond_resched")) => &[Model::Voluntary],
            Some(Target::Function("__static_call_return0") | Target::Return) => &[Model::None],
            _ => &[Model::None, Model::Voluntary],
        };
        Some(LiveModel::new(possible, source))
    }

    /// arm64: static keys, whose first member is the count of users.
    fn static_keys(&self) -> Option<LiveModel> {
        const SCHEDULE: &str = "sk_dynamic_preempt_schedule";
        const MIGHT: &str = "sk_dynamic_might_resched";
        if self.i32(SCHEDULE)? > 0 {
            let source = format!("static key {SCHEDULE} in kernel memory");
            return Some(self.full_or_lazy(source));
        }
        let source = format!("static keys {SCHEDULE} and {MIGHT} in kernel memory");
        let possible: &[Model] = match self.i32(MIGHT) {
            Some(users) if users > 0 => &[Model::Voluntary],
            Some(_) => &[Model::None],
            None => &[Model::None, Model::Voluntary],
        };
        Some(LiveModel::new(possible, source))
    }

    /// Since 6.13 a static key tells `lazy` from `full`; before, there is no `lazy`.
    fn full_or_lazy(&self, source: String) -> LiveModel {
        const LAZY: &str = "sk_dynamic_preempt_lazy";
        match self.i32(LAZY) {
            Some(users) => {
                let model = if users > 0 { Model::Lazy } else { Model::Full };
                LiveModel::new(&[model], format!("{source}, static key {LAZY}"))
            }
            None => LiveModel::new(&[Model::Full, Model::Lazy], source),
        }
    }

    /// Where a static call trampoline of x86 goes.
    fn trampoline(&self, symbol: &str) -> Option<Target<'_>> {
        let address = self.symbols.address(symbol)?;
        let mut code = [0; 5];
        self.memory.read(address, &mut code).ok()?;
        match code {
            [0xc3, ..] => Some(Target::Return),
            [0xe9, offset @ ..] => {
                let offset = i64::from(i32::from_le_bytes(offset));
                let target = address.wrapping_add(5).wrapping_add_signed(offset);
                let name = self.symbols.lookup(target)?.name;
                // With the mitigations for retbleed, SRSO or ITS a return is a jump
                // to a return thunk.
                if name.contains("return_thunk") {
                    Some(Target::Return)
                } else {
                    Some(Target::Function(name))
                }
            }
            _ => None,
        }
    }
}

enum Target<'a> {
    Return,
    Function(&'a str),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Default)]
    pub(in crate::kernel) struct FakeMemory(BTreeMap<u64, Vec<u8>>);

    impl KernelMemory for FakeMemory {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            let bytes = self.0.get(&address).ok_or(io::ErrorKind::InvalidInput)?;
            buffer.copy_from_slice(&bytes[..buffer.len()]);
            Ok(())
        }
    }

    const SCHEDULE: u64 = 0xffffffff81000800;
    const MIGHT: u64 = 0xffffffff81000808;
    const COND: u64 = 0xffffffff81000100;
    const THUNK: u64 = 0xffffffff81000200;
    const RETURN0: u64 = 0xffffffff81000300;
    const RETURN_THUNK: u64 = 0xffffffff81000400;
    const MODE: u64 = 0xffffffff81a00000;
    const LAZY: u64 = 0xffffffff81a00010;
    const KEY_SCHEDULE: u64 = 0xffffffff81a00020;
    const KEY_MIGHT: u64 = 0xffffffff81a00030;

    fn symbols(names: &[(u64, &str)]) -> Kallsyms {
        let text: String = names
            .iter()
            .map(|(address, name)| format!("{address:016x} T {name}\n"))
            .collect();
        Kallsyms::parse(text.as_bytes())
    }

    fn x86() -> Vec<(u64, &'static str)> {
        vec![
            (COND, "__cond_resched"),
            (THUNK, "preempt_schedule_thunk"),
            (RETURN0, "__static_call_return0"),
            (RETURN_THUNK, "srso_return_thunk"),
            (RETURN_THUNK + 0x40, "other"),
            (SCHEDULE, "__SCT__preempt_schedule"),
            (MIGHT, "__SCT__might_resched"),
            (MIGHT + 8, "_etext"),
        ]
    }

    fn jump(from: u64, to: u64) -> Vec<u8> {
        let offset = to.wrapping_sub(from + 5) as i32;
        [&[0xe9][..], &offset.to_le_bytes()].concat()
    }

    fn model(names: &[(u64, &str)], memory: &[(u64, Vec<u8>)]) -> Option<Vec<Model>> {
        let memory = FakeMemory(memory.iter().cloned().collect());
        live_model(&memory, &symbols(names)).map(|live| live.possible)
    }

    #[test]
    fn the_mode_variable_decides_alone() {
        let names = [&x86()[..], &[(MODE, "preempt_dynamic_mode")]].concat();
        for (value, expected) in [
            (0, Model::None),
            (1, Model::Voluntary),
            (2, Model::Full),
            (3, Model::Lazy),
        ] {
            let memory = [(MODE, i32::to_le_bytes(value).to_vec())];
            assert_eq!(model(&names, &memory), Some(vec![expected]));
        }
        let undefined = [(MODE, (-1i32).to_le_bytes().to_vec())];
        assert_eq!(model(&names, &undefined), None);
    }

    #[test]
    fn trampolines_tell_the_models_apart_with_and_without_return_thunks() {
        let returns = [
            vec![0xc3, 0xcc, 0xcc, 0xcc, 0xcc],
            jump(SCHEDULE, RETURN_THUNK),
        ];
        for schedule in returns {
            for (might, expected) in [
                (jump(MIGHT, COND), vec![Model::Voluntary]),
                (jump(MIGHT, RETURN0), vec![Model::None]),
                (vec![0x90; 5], vec![Model::None, Model::Voluntary]),
            ] {
                let memory = [(SCHEDULE, schedule.clone()), (MIGHT, might)];
                assert_eq!(model(&x86(), &memory), Some(expected));
            }
        }
        let preemptible = (SCHEDULE, jump(SCHEDULE, THUNK));
        let both = Some(vec![Model::Full, Model::Lazy]);
        assert_eq!(model(&x86(), std::slice::from_ref(&preemptible)), both);
        let names = [&x86()[..], &[(LAZY, "sk_dynamic_preempt_lazy")]].concat();
        for (users, expected) in [(0i32, Model::Full), (1, Model::Lazy)] {
            let key = (LAZY, users.to_le_bytes().to_vec());
            let memory = [preemptible.clone(), key];
            assert_eq!(model(&names, &memory), Some(vec![expected]));
        }
    }

    #[test]
    fn code_that_is_not_understood_gives_no_answer() {
        for code in [
            jump(SCHEDULE, RETURN_THUNK + 0x40),
            jump(SCHEDULE, 0x1000),
            vec![0x90; 5],
        ] {
            assert_eq!(model(&x86(), &[(SCHEDULE, code)]), None);
        }
        assert_eq!(model(&x86(), &[]), None);
        assert_eq!(model(&[], &[(SCHEDULE, vec![0xc3; 5])]), None);
    }

    #[test]
    fn static_keys_tell_the_models_apart() {
        let names = [
            (KEY_SCHEDULE, "sk_dynamic_preempt_schedule"),
            (KEY_MIGHT, "sk_dynamic_might_resched"),
        ];
        let key = |address, users: i32| (address, users.to_le_bytes().to_vec());
        for (schedule, might, expected) in [
            (0, 0, vec![Model::None]),
            (0, 1, vec![Model::Voluntary]),
            (1, 0, vec![Model::Full, Model::Lazy]),
        ] {
            let memory = [key(KEY_SCHEDULE, schedule), key(KEY_MIGHT, might)];
            assert_eq!(model(&names, &memory), Some(expected));
        }
    }
}
