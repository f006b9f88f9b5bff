use proptest::prelude::*;

use super::*;

const FIXTURE: &[u8] = include_bytes!("../../tests/fixtures/kernel/kallsyms");

fn fixture() -> Kallsyms {
    Kallsyms::parse(FIXTURE)
}

#[track_caller]
fn assert_name(table: &Kallsyms, address: u64, expected: Option<&str>) {
    assert_eq!(
        table.lookup(address).map(|symbol| symbol.name),
        expected,
        "{address:#x}"
    );
}

#[test]
fn a_function_is_found_from_its_first_to_its_last_byte() {
    let table = fixture();
    let symbol = table.lookup(0xffffffff81000372).unwrap();
    assert_eq!(
        symbol,
        SymbolRef {
            name: "schedule",
            module: "",
            kind: 'T',
            start: 0xffffffff81000350,
            size: 0xb0,
            offset: 0x22,
        }
    );
    assert_name(&table, 0xffffffff810003ff, Some("schedule"));
    assert_name(&table, 0xffffffff81000400, Some("task_work.isra.0"));
}

#[test]
fn padding_goes_by_the_name_of_its_function() {
    let symbol = fixture();
    let symbol = symbol.lookup(0xffffffff81000345).unwrap();
    assert_eq!(
        (symbol.name, symbol.start),
        ("schedule", 0xffffffff81000340)
    );
}

#[test]
fn functions_beat_markers_and_aliases_resolve_the_same_way_every_time() {
    let table = fixture();
    assert_name(&table, 0xffffffff81000010, Some("asm_exc_divide_error"));
    assert_name(&table, 0xffffffff81000700, Some("__this_cpu_preempt_check"));
    assert_name(&table, 0xffffffff81000790, Some("default_idle"));
    assert_name(&table, 0xffffffff81000500, Some("memcpy"));
    let reversed: Vec<&[u8]> = FIXTURE.rsplit(|&byte| byte == b'\n').collect();
    let reversed = Kallsyms::parse(&reversed.join(&b'\n'));
    assert!(table.iter().eq(reversed.iter()));
}

#[test]
fn addresses_outside_text_have_no_symbol() {
    let table = fixture();
    for address in [
        0,
        0x1000,
        0x1000010,
        0x7fff_ffff_ffff,
        0xffffffff80ffffff,
        0xffffffff81000280, // behind the entry text
        0xffffffff810007d0, // behind the noinstr text
        0xffffffff81000988, // _etext
        0xffffffff81000a00,
        0xffffffff81a00000, // data
        0xffffffff81b00000, // absolute
        0xffffffff81c00200,
        0xffffffff82000000,
        0xffffffffc0301000, // page after the last function of a module
        0xffffffffc0102000,
        0xffffffffffffffff,
    ] {
        assert_name(&table, address, None);
    }
}

#[test]
fn modules_and_programs_are_found_though_listed_out_of_order() {
    let table = fixture();
    let symbol = table.lookup(0xffffffffc0300050).unwrap();
    assert_eq!((symbol.name, symbol.module), ("nf_last", "nf_tables"));
    let symbol = table.lookup(0xffffffffc0100180).unwrap();
    assert_eq!(
        (symbol.name, symbol.module),
        ("bpf_trampoline_6442450944", "bpf")
    );
    let symbol = table.lookup(0xffffffffc0201020).unwrap();
    assert_eq!(symbol.module, "__builtin__ftrace");
}

#[test]
fn names_resolve_to_all_their_addresses() {
    let table = fixture();
    assert_eq!(
        table.addresses("check_flags").collect::<Vec<_>>(),
        [0xffffffff81000300, 0xffffffff810004c0]
    );
    assert_eq!(table.address("check_flags"), None);
    assert_eq!(table.range("check_flags"), None);
    assert_eq!(
        table.range("schedule"),
        Some(0xffffffff81000350..0xffffffff81000400)
    );
    assert_eq!(
        table.address("preempt_dynamic_mode"),
        Some(0xffffffff81a00000)
    );
    assert_eq!(table.address("task_work"), None);
    assert_eq!(table.address("task_work.isra.0"), Some(0xffffffff81000400));
    assert_eq!(
        table
            .variants("task_work")
            .map(|s| s.name)
            .collect::<Vec<_>>(),
        ["task_work.isra.0", "task_work.cold"]
    );
    assert!(table.contains("task_work"));
    assert!(table.contains("descriptor.3"));
    assert!(!table.contains("descriptor"));
    assert!(!table.contains("task_wor"));
}

#[test]
fn sections_are_known_by_their_markers() {
    let table = fixture();
    assert_eq!(
        table.text_range(),
        Some(0xffffffff81000000..0xffffffff81000988)
    );
    assert_eq!(
        table.section(Section::Noinstr),
        Some(0xffffffff81000700..0xffffffff810007c5)
    );
    assert_eq!(
        table.section(Section::CpuIdle),
        Some(0xffffffff81000780..0xffffffff810007c5)
    );
    assert_eq!(
        table.section(Section::Entry),
        Some(0xffffffff81000010..0xffffffff81000200)
    );
    assert_eq!(table.section(Section::Sched), None);
}

#[test]
fn hidden_addresses_are_noticed_and_never_used() {
    let zeroed = "0000000000000000 T _stext\n0000000000000000 T schedule\n\
                  0000000000000000 T __memcpy\n0000000000000000 T _etext\n";
    let table = Kallsyms::parse(zeroed.as_bytes());
    assert!(table.hidden());
    assert_eq!(table.len(), 4);
    assert!(table.contains("schedule"));
    assert_eq!(table.addresses("schedule").count(), 0);
    assert_eq!(table.range("schedule"), None);
    assert_eq!(table.text_range(), None);
    assert_name(&table, 0, None);
    assert!(!fixture().hidden());
    assert!(!Kallsyms::parse(b"").hidden());
}

#[test]
fn lines_that_are_no_symbols_are_skipped() {
    let text = b"\n\nffffffff81000000\nT schedule\nffffffff81000000 T\n\
                 ffffffff81000000 T \nfffffffff81000000 T too_long\n\
                 ffffffff81000000 T name [module\nffffffff81000000 TT name\n\
                 ffffffff81000000 T \xff\xfe\nffffffff81000040 t good\t[mod]\r\n\
                 ffffffff82000000 ? __nosave_begin";
    let names: Vec<_> = Kallsyms::parse(text)
        .iter()
        .map(|symbol| (symbol.name.to_owned(), symbol.module.to_owned()))
        .collect();
    assert_eq!(
        names,
        [
            ("good".to_owned(), "mod".to_owned()),
            ("__nosave_begin".to_owned(), String::new())
        ]
    );
}

#[test]
fn the_running_kernel_resolves_to_what_it_lists() {
    let Ok(text) = std::fs::read("/proc/kallsyms") else {
        eprintln!("skipped: no /proc/kallsyms");
        return;
    };
    let table = Kallsyms::parse(&text);
    let lines = text
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty());
    assert_eq!(table.len(), lines.count());
    if table.hidden() {
        eprintln!("skipped: kernel addresses are hidden from this user");
        return;
    }
    let text_range = table.text_range().unwrap();
    assert!(table.section(Section::Noinstr).is_some());
    for symbol in table
        .iter()
        .filter(|symbol| text_range.contains(&symbol.start))
    {
        if let Some(found) = table.lookup(symbol.start) {
            assert_eq!(found.start, symbol.start);
            assert!(found.offset == 0 && found.size > 0, "{found:?}");
            let last = table.lookup(symbol.range().end - 1).unwrap();
            assert_eq!(last.name, found.name);
        } else {
            assert!(is_section_end(symbol.name), "{symbol:?}");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(text in prop::collection::vec(any::<u8>(), 0..2000), address: u64) {
        let table = Kallsyms::parse(&text);
        let _ = table.lookup(address);
        let _ = table.iter().count();
    }

    #[test]
    fn lookups_agree_with_a_linear_search(
        symbols in prop::collection::vec(
            (0u64..64, prop::sample::select(vec!['t', 'T', 'W', 'd', 'A']), "[a-c]{1,2}(\\.cold)?", prop::bool::ANY),
            0..60,
        ),
        address in 0u64..80,
    ) {
        const BASE: u64 = 0xffff_ffff_8100_0000;
        let text: String = symbols
            .iter()
            .map(|(at, kind, name, module)| {
                let module = if *module { "\t[m]" } else { "" };
                format!("{:016x} {kind} {name}{module}\n", BASE + at)
            })
            .collect();
        let table = Kallsyms::parse(text.as_bytes());
        prop_assert_eq!(table.len(), symbols.len());
        let nearest = symbols
            .iter()
            .filter(|(at, kind, ..)| *at <= address && *kind != 'A')
            .map(|(at, ..)| *at)
            .max();
        let text_there = symbols
            .iter()
            .any(|(at, kind, ..)| Some(*at) == nearest && !matches!(kind, 'd' | 'A'));
        let found = table.lookup(BASE + address);
        prop_assert_eq!(found.is_some(), text_there);
        if let Some(found) = found {
            prop_assert_eq!(Some(found.start - BASE), nearest);
            prop_assert_eq!(found.start + found.offset, BASE + address);
        }
        for (_, _, name, _) in &symbols {
            let mut expected: Vec<u64> = symbols
                .iter()
                .filter(|(_, _, other, _)| other == name)
                .map(|(at, ..)| BASE + at)
                .collect();
            expected.sort_unstable();
            let mut found: Vec<u64> = table.addresses(name).collect();
            found.sort_unstable();
            let all_absolute = symbols.iter().all(|(_, kind, ..)| *kind == 'A');
            prop_assert_eq!(found, if all_absolute { Vec::new() } else { expected });
        }
    }
}
