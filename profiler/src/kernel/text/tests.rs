use std::io;

use proptest::prelude::*;

use super::*;

const BASE: u64 = 0xffff_ffff_8100_0000;

/// Memory that cannot be read.
#[derive(Debug)]
struct Nothing;

impl KernelMemory for Nothing {
    fn read(&self, _address: u64, _buffer: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

fn symbols(names: &[(u64, &str)]) -> Kallsyms {
    let text: String = names
        .iter()
        .map(|(offset, name)| format!("{:016x} T {name}\n", BASE + offset))
        .collect();
    Kallsyms::parse(text.as_bytes())
}

/// `call` or `jmp` at an offset to another one.
fn branch(opcode: u8, from: u64, to: u64) -> Vec<u8> {
    let distance = to.wrapping_sub(from + 5) as i32;
    [&[opcode][..], &distance.to_le_bytes()].concat()
}

/// Text with pieces of code at offsets, and int3 between them.
fn text(pieces: &[(u64, &[u8])]) -> Vec<u8> {
    let mut text = vec![0xcc; 0x200];
    for (offset, code) in pieces {
        let at = *offset as usize;
        text[at..at + code.len()].copy_from_slice(code);
    }
    text
}

fn path(text: &[u8], conditions: &Conditions) -> Option<Path> {
    walk(
        &Snapshot::new(text, BASE, &Nothing),
        BASE,
        conditions,
        &|_| false,
    )
}

#[test]
fn calls_and_tail_calls_are_found_and_loops_are_none() {
    let text = text(&[
        (0x10, &branch(0xe8, 0x10, 0x100)),
        (0x20, &branch(0xe9, 0x20, 0x100)),
        // Into the padding in front of it, as with call depth tracking.
        (0x30, &branch(0xe8, 0x30, 0xf4)),
        (0x40, &branch(0xe8, 0x40, 0x101)),
        (0x108, &branch(0xe9, 0x108, 0x100)),
    ]);
    let symbols = symbols(&[(0, "caller"), (0x100, "target"), (0x180, "_etext")]);
    let snapshot = Snapshot::new(&text, BASE, &Nothing);
    let sites = call_sites(Arch::X86, &snapshot, &[BASE + 0x100], &symbols);
    let found: Vec<(u64, bool)> = sites
        .iter()
        .map(|site| (site.address - BASE, site.tail))
        .collect();
    assert_eq!(found, [(0x10, false), (0x20, true), (0x30, false)]);
}

#[test]
fn a_short_function_right_before_a_target_is_not_its_padding() {
    let text = text(&[(0x10, &branch(0xe8, 0x10, 0xf0))]);
    let symbols = symbols(&[(0, "caller"), (0xf0, "tiny"), (0x100, "target")]);
    let snapshot = Snapshot::new(&text, BASE, &Nothing);
    assert_eq!(
        call_sites(Arch::X86, &snapshot, &[BASE + 0x100], &symbols),
        []
    );
}

#[test]
fn arm64_branches_go_both_ways() {
    // bl .+0x100; b .-8; nop; bl .-0x10
    let words: [u32; 4] = [0x9400_0040, 0x17ff_fffe, 0xd503_201f, 0x97ff_fffc];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut found = Vec::new();
    Arch::Arm64.branches(&bytes, BASE, &mut |at, to, tail| {
        found.push((at - BASE, to.wrapping_sub(BASE) as i64, tail));
    });
    assert_eq!(found, [(0, 0x100, false), (4, -4, true), (12, -4, false)]);
    // Text that does not begin at a word.
    let mut count = 0;
    Arch::Arm64.branches(&[&[0], &bytes[..]].concat(), BASE - 1, &mut |at, _, _| {
        assert_eq!(at % 4, 0);
        count += 1;
    });
    assert_eq!(count, 3);
}

/// Returns when preempt_count is not 0, or interrupts are off; else traps.
const CHECK: &[u8] = &[
    0x65, 0x8b, 0x04, 0x25, 0x00, 0x01, 0x00, 0x00, // mov %gs:0x100,%eax
    0xa9, 0xff, 0xff, 0xff, 0x7f, // test $0x7fffffff,%eax
    0x74, 0x01, // je 1f
    0xc3, // ret
    0x9c, 0x58, // 1: pushf; pop %rax
    0xf6, 0xc4, 0x02, // test $2,%ah
    0x74, 0x02, // je 2f
    0x0f, 0x0b, // ud2
    0xc3, // 2: ret
];

#[test]
fn a_check_takes_the_way_that_its_conditions_say() {
    let text = text(&[(0, CHECK)]);
    let percpu = 0xffff_8880_0000_0000;
    let at = |count: u32, interrupts: bool| Conditions {
        percpu: Some(percpu),
        preempt_count: Some(percpu + 0x100),
        count,
        interrupts,
        ..Conditions::default()
    };
    let instructions = |path: Option<Path>| path.map(|path| (path.instructions, path.guesses));
    assert_eq!(instructions(path(&text, &at(1, true))), Some((4, 0)));
    assert_eq!(instructions(path(&text, &at(1 << 31, false))), Some((8, 0)));
    // The check would fail: no way that a passing one takes.
    assert_eq!(path(&text, &at(0, true)), None);
    // A count that is not known: the shorter way.
    let unknown = Conditions::default();
    assert_eq!(instructions(path(&text, &unknown)), Some((4, 1)));
}

#[test]
fn what_is_not_known_takes_the_shorter_way() {
    // test %rdi,%rdi; je 1f; nop; nop; 1: ret
    let text = text(&[(0, &[0x48, 0x85, 0xff, 0x74, 0x02, 0x90, 0x90, 0xc3])]);
    let known = Conditions {
        argument: Some(1),
        ..Conditions::default()
    };
    assert_eq!(path(&text, &known).unwrap().instructions, 5);
    let unknown = path(&text, &Conditions::default()).unwrap();
    assert_eq!((unknown.instructions, unknown.guesses), (3, 1));
}

#[test]
fn calls_are_followed_unless_they_are_counted_elsewhere() {
    let mut code = branch(0xe8, 0, 0x40);
    code.push(0xc3);
    let text = text(&[(0, &code), (0x40, &[0x90, 0xc3])]);
    let snapshot = Snapshot::new(&text, BASE, &Nothing);
    let conditions = Conditions::default();
    let all = walk(&snapshot, BASE, &conditions, &|_| false).unwrap();
    assert_eq!(all.instructions, 4);
    let own = walk(&snapshot, BASE, &conditions, &|at| at == BASE + 0x40).unwrap();
    assert_eq!(own.instructions, 2);
}

#[test]
fn endless_code_is_no_way() {
    for code in [
        &[0xeb, 0xfe][..],                           // jmp .
        &[0xff, 0xe0],                               // jmp *%rax
        &[0x0f, 0x05],                               // syscall
        &[0x90; 0x200],                              // off the end
        &[0x48, 0x85, 0xff, 0x75, 0xfb, 0xeb, 0xf9], // loops on what is not known
    ] {
        let mut text = vec![0xcc; 0x200];
        text[..code.len()].copy_from_slice(code);
        assert_eq!(path(&text, &Conditions::default()), None, "{code:x?}");
    }
}

fn cost(pieces: &[(u64, &[u8])], site: u64, ours: &[u64]) -> CallerCost {
    let text = text(pieces);
    let symbols = symbols(&[(0, "caller"), (0x100, "target"), (0x140, "other")]);
    let snapshot = Snapshot::new(&text, BASE, &Nothing);
    let caller = symbols.lookup(BASE + site).unwrap();
    caller_cost(&snapshot, &caller, BASE + site, &|at| {
        ours.contains(&(at - BASE))
    })
    .unwrap()
}

#[test]
fn a_call_costs_its_arguments_and_what_follows_from_it() {
    // mov $1,%edi; call target; mov %gs:0x100,%eax; test %eax,%eax; ret, in a
    // function that also calls another one.
    let mut code = vec![0xbf, 1, 0, 0, 0];
    code.extend(branch(0xe8, 5, 0x100));
    code.extend([0x65, 0x8b, 0x04, 0x25, 0, 1, 0, 0, 0x85, 0xc0]);
    code.extend(branch(0xe8, 20, 0x140));
    code.push(0xc3);
    let sub = cost(&[(0, &code)], 5, &[0x100]);
    assert_eq!(
        (sub.arguments, sub.call, sub.after, sub.frame),
        (1, 1, 2, 0)
    );
    assert_eq!((sub.argument, sub.instructions()), (Some(1), 4));

    // call target; mov %eax,%eax; mov table(,%rax,8),%rbx; ret: a per-CPU access.
    let mut code = branch(0xe8, 0, 0x100);
    code.extend([0x89, 0xc0, 0x48, 0x8b, 0x1c, 0xc5, 0, 0, 0, 0]);
    code.extend(branch(0xe8, 15, 0x140));
    let id = cost(&[(0, &code)], 0, &[0x100]);
    assert_eq!((id.arguments, id.call, id.after), (0, 1, 2));
}

#[test]
fn a_leaf_but_for_the_call_saves_registers_for_it() {
    // push %rbx; call target; pop %rbx; ret
    let mut code = vec![0x53];
    code.extend(branch(0xe8, 1, 0x100));
    code.extend([0x5b, 0xc3]);
    assert_eq!(cost(&[(0, &code)], 1, &[0x100]).frame, 3);
    // Where it calls another function too, it would save them anyway.
    assert_eq!(cost(&[(0, &code)], 1, &[0x140]).frame, 0);
}

#[test]
fn blocks_end_at_branches_and_begin_where_they_lead() {
    // nop; je 1f; nop; call other; nop; 1: ret
    let mut code = vec![0x90, 0x74, 0x07, 0x90];
    code.extend(branch(0xe8, 4, 0x100));
    code.extend([0x90, 0xc3]);
    let text = text(&[(0, &code)]);
    let symbols = symbols(&[(0, "caller"), (0x20, "_etext")]);
    let snapshot = Snapshot::new(&text, BASE, &Nothing);
    let function = symbols.lookup(BASE).unwrap();
    let blocks = Blocks::of(&snapshot, &function);
    let starts: Vec<u64> = blocks
        .starts()
        .iter()
        .map(|start| start - BASE)
        .filter(|start| *start < 0x0b)
        .collect();
    assert_eq!(starts, [0, 3, 0xa]);
}

proptest! {
    #[test]
    fn any_bytes_end_in_some_answer(bytes in proptest::collection::vec(any::<u8>(), 1..400), at in 0..400u64) {
        let symbols = symbols(&[(0, "f"), (0x80, "g"), (0x190, "_etext")]);
        let snapshot = Snapshot::new(&bytes, BASE, &Nothing);
        for arch in [Arch::X86, Arch::Arm64] {
            for site in call_sites(arch, &snapshot, &[BASE, BASE + 0x80], &symbols) {
                prop_assert!(site.address >= BASE && site.target < 2);
            }
        }
        if let Some(path) = walk(&snapshot, BASE + at, &Conditions::default(), &|_| false) {
            prop_assert!(path.instructions > 0);
        }
        let function = symbols.lookup(BASE).unwrap();
        caller_cost(&snapshot, &function, BASE + at, &|_| true);
        let blocks = Blocks::of(&snapshot, &function);
        prop_assert!(!blocks.starts().is_empty());
        prop_assert_eq!(blocks.class(function.start), Some(0));
    }
}
