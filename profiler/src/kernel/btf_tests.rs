use std::path::Path;

use proptest::prelude::*;

use super::*;

/// Writes BTF, one type after the other; ids count from 1.
struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    next: u32,
}

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const FLOAT: u32 = 16;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;
const FLAG: u32 = 0x80;

impl Builder {
    fn new() -> Self {
        Self {
            types: Vec::new(),
            strings: vec![0],
            next: 1,
        }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        at
    }

    fn add(&mut self, kind: u32, name: &str, count: usize, size: u32, trailer: &[u32]) -> u32 {
        let name = self.string(name);
        for word in [name, (kind << 24) | count as u32, size]
            .iter()
            .chain(trailer)
        {
            self.types.extend_from_slice(&word.to_le_bytes());
        }
        self.next += 1;
        self.next - 1
    }

    fn int(&mut self, name: &str, size: u32, encoding: u32) -> u32 {
        self.add(INT, name, 0, size, &[(encoding << 24) | (size * 8)])
    }

    fn structure(&mut self, kind: u32, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let mut trailer = Vec::new();
        for &(name, id, bits) in members {
            trailer.extend([self.string(name), id, bits]);
        }
        self.add(kind, name, members.len(), size, &trailer)
    }

    fn proto(&mut self, params: &[(&str, u32)]) -> u32 {
        let mut trailer = Vec::new();
        for &(name, id) in params {
            trailer.extend([self.string(name), id]);
        }
        self.add(FUNC_PROTO, "", params.len(), 0, &trailer)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [
            24,
            0,
            self.types.len() as u32,
            self.types.len() as u32,
            self.strings.len() as u32,
        ] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.types);
        bytes.extend_from_slice(&self.strings);
        bytes
    }

    fn btf(&self) -> Btf {
        Btf::parse(self.bytes()).unwrap()
    }
}

fn kernel() -> Builder {
    let mut b = Builder::new();
    let int = b.int("int", 4, 1);
    let u64_ = b.int("long unsigned int", 8, 0);
    let bool_ = b.int("_Bool", 1, 4);
    let char_ = b.int("char", 1, 1);
    b.add(VAR, "jiffies", 0, u64_, &[1]);
    b.add(DATASEC, ".data", 1, 8, &[5, 0, 8]);
    let float = b.add(FLOAT, "double", 0, 8, &[]);
    b.add(DECL_TAG, "kfunc", 0, int, &[0xffff_ffff]);
    b.add(FWD, "opaque", 0, 0, &[]);
    let e32 = b.add(ENUM, "state", 1, 4, &[0, 7]);
    let e64 = b.add(ENUM64, "big", 1, 8, &[0, 1, 1]);
    let pid_t = b.add(TYPEDEF, "pid_t", 0, int, &[]);
    let constant = b.add(CONST, "", 0, pid_t, &[]);
    let volatile = b.add(VOLATILE, "", 0, constant, &[]);
    let comm = b.add(ARRAY, "", 0, 0, &[char_, int, 16]);
    let grid = b.add(ARRAY, "", 0, 0, &[comm, int, 3]);
    let inner = b.structure(STRUCT, "", 16, &[("utime", u64_, 0), ("stime", u64_, 64)]);
    let either = b.structure(UNION, "", 16, &[("", inner, 0), ("raw", u64_, 0)]);
    let se = b.structure(
        STRUCT,
        "sched_entity",
        24,
        &[("load", u64_, 0), ("vruntime", u64_, 128)],
    );
    let task = b.structure(
        STRUCT | FLAG,
        "task_struct",
        256,
        &[
            ("pid", volatile, 32),
            ("", either, 64),
            ("comm", comm, 192),
            ("grid", grid, 320),
            ("se", se, 704),
            ("flag", int, (2 << 24) | 1024),
            ("whole", int, 1056),
            ("e", e64, 1088),
        ],
    );
    let task_tag = b.add(TYPE_TAG, "rcu", 0, task, &[]);
    let task_ptr = b.add(PTR, "", 0, task_tag, &[]);
    let void_ptr = b.add(PTR, "", 0, 0, &[]);
    let name_ptr = b.add(PTR, "", 0, char_, &[]);
    let proto = b.proto(&[
        ("", void_ptr),
        ("preempt", bool_),
        ("prev", task_ptr),
        ("prev_state", u64_),
        ("state", e32),
        ("big", e64),
        ("name", name_ptr),
        ("by_value", se),
        ("real", float),
    ]);
    let pointer = b.add(PTR, "", 0, proto, &[]);
    b.add(TYPEDEF, "btf_trace_sched_switch", 0, pointer, &[]);
    let variadic = b.proto(&[("fmt", name_ptr), ("", 0)]);
    b.add(FUNC, "_printk", 1, variadic, &[]);
    b.add(TYPEDEF, "task_t", 0, task, &[]);
    b
}

fn offset(btf: &Btf, structure: &str, member: &str) -> Result<(u32, u32), String> {
    btf.member_offset(structure, member)
        .map(|found| (found.bytes, found.size))
        .map_err(|error| error.to_string())
}

#[test]
fn members_are_found_through_typedefs_qualifiers_and_anonymous_members() {
    let btf = kernel().btf();
    assert_eq!(offset(&btf, "task_struct", "pid"), Ok((4, 4)));
    assert_eq!(offset(&btf, "task_struct", "stime"), Ok((16, 8)));
    assert_eq!(offset(&btf, "task_struct", "raw"), Ok((8, 8)));
    assert_eq!(offset(&btf, "task_struct", "comm"), Ok((24, 16)));
    assert_eq!(offset(&btf, "task_struct", "grid"), Ok((40, 48)));
    assert_eq!(offset(&btf, "task_struct", "se.vruntime"), Ok((104, 8)));
    assert_eq!(offset(&btf, "task_struct", "whole"), Ok((132, 4)));
    assert_eq!(offset(&btf, "task_struct", "e"), Ok((136, 8)));
    assert_eq!(offset(&btf, "task_t", "pid"), Ok((4, 4)));
    assert_eq!(btf.struct_size("task_struct"), Ok(256));
}

#[test]
fn what_is_not_certain_is_refused_with_the_reason() {
    let btf = kernel().btf();
    let reason = |structure: &str, member: &str| offset(&btf, structure, member).unwrap_err();
    assert_eq!(reason("task_struct", "flag"), "flag is a bit field");
    assert_eq!(
        reason("task_struct", "nope"),
        "task_struct has no member nope"
    );
    assert_eq!(
        reason("task_struct", "se.nope"),
        "task_struct has no member se.nope"
    );
    assert_eq!(reason("task_struct", ""), "task_struct has no member ");
    assert_eq!(
        reason("nope", "pid"),
        "this kernel's BTF has no structure nope"
    );
    assert_eq!(
        reason("_printk", "pid"),
        "this kernel's BTF has no structure _printk"
    );
    assert_eq!(
        btf.func_params("nope").unwrap_err().to_string(),
        "this kernel's BTF has no function nope"
    );
    assert_eq!(
        btf.func_proto_params("pid_t").unwrap_err().to_string(),
        "typedef pid_t is no pointer to a function"
    );
}

#[test]
fn the_end_of_a_name_is_not_the_name() {
    let btf = kernel().btf();
    for name in ["struct", "entity", "", "task", "task_struc"] {
        assert!(btf.struct_size(name).is_err(), "{name}");
        assert!(!btf.typedef_exists(name) && !btf.has_func(name), "{name}");
    }
}

#[test]
fn structures_of_one_name_must_agree() {
    let mut b = kernel();
    b.structure(
        STRUCT,
        "sched_entity",
        24,
        &[("load", 2, 0), ("vruntime", 2, 64)],
    );
    let btf = b.btf();
    assert_eq!(offset(&btf, "sched_entity", "load"), Ok((0, 8)));
    assert_eq!(
        offset(&btf, "sched_entity", "vruntime").unwrap_err(),
        "this kernel has several structures sched_entity and they disagree about vruntime"
    );
}

#[test]
fn old_style_bit_fields_are_refused() {
    let mut b = Builder::new();
    let three_bits = b.add(INT, "", 0, 4, &[3]);
    b.structure(STRUCT, "old", 4, &[("bits", three_bits, 8)]);
    assert_eq!(
        offset(&b.btf(), "old", "bits").unwrap_err(),
        "bits is a bit field"
    );
}

#[test]
fn prototypes_give_the_kind_of_each_parameter() {
    let btf = kernel().btf();
    let kinds: Vec<_> = btf
        .func_proto_params("btf_trace_sched_switch")
        .unwrap()
        .into_iter()
        .map(|param| (param.name, param.kind))
        .collect();
    let named = |name: &str| name.to_owned();
    assert_eq!(
        kinds,
        [
            (named(""), ParamKind::Pointer(named("void"))),
            (named("preempt"), ParamKind::Bool),
            (named("prev"), ParamKind::Pointer(named("task_struct"))),
            (
                named("prev_state"),
                ParamKind::Int {
                    signed: false,
                    size: 8
                }
            ),
            (
                named("state"),
                ParamKind::Enum {
                    name: named("state"),
                    size: 4
                }
            ),
            (
                named("big"),
                ParamKind::Enum {
                    name: named("big"),
                    size: 8
                }
            ),
            (named("name"), ParamKind::Pointer(named("char"))),
            (
                named("by_value"),
                ParamKind::Struct {
                    name: named("sched_entity"),
                    size: 24
                }
            ),
            (named("real"), ParamKind::Float { size: 8 }),
        ]
    );
    let printk = btf.func_params("_printk").unwrap();
    assert_eq!(printk[1].kind, ParamKind::Variadic);
    assert!(btf.has_func("_printk") && !btf.has_func("task_struct"));
    assert!(btf.typedef_exists("pid_t") && !btf.typedef_exists("_printk"));
}

#[test]
fn loops_end() {
    let mut b = Builder::new();
    b.add(TYPEDEF, "loop", 0, 2, &[]);
    b.add(CONST, "", 0, 1, &[]);
    b.structure(STRUCT, "self", 8, &[("", 3, 0)]);
    b.add(ARRAY, "", 0, 0, &[4, 4, 2]);
    b.structure(STRUCT, "arrays", 8, &[("a", 4, 0), ("t", 1, 0)]);
    let btf = b.btf();
    for (structure, member) in [
        ("self", "x"),
        ("arrays", "a"),
        ("arrays", "t"),
        ("loop", "x"),
    ] {
        assert!(offset(&btf, structure, member).is_err());
    }
    // Each level names the next one twice: 2^32 paths without a bound.
    let mut b = Builder::new();
    for level in 0..32 {
        b.structure(STRUCT, "wide", 8, &[("", level + 2, 0), ("", level + 2, 0)]);
    }
    assert!(offset(&b.btf(), "wide", "x").is_err());
}

#[test]
fn types_before_one_of_an_unknown_kind_stay_usable() {
    let mut b = kernel();
    b.add(42, "future", 0, 0, &[]);
    b.structure(STRUCT, "behind", 8, &[("x", 2, 0)]);
    let btf = b.btf();
    assert_eq!(offset(&btf, "task_struct", "pid"), Ok((4, 4)));
    let reason = offset(&btf, "behind", "x").unwrap_err();
    assert!(reason.ends_with("kind 42 is not known"), "{reason}");
}

#[test]
fn kinds_whose_length_btf_tells_are_passed_over() {
    let mut b = kernel();
    b.add(20, "future", 2, 8, &[1, 2, 3]);
    let int = b.int("u32", 4, 0);
    b.structure(STRUCT, "behind", 8, &[("x", int, 32)]);
    let old = b.bytes();
    let mut layout = vec![0; 4 * 21];
    layout[4 * 20..].copy_from_slice(&[4, 4, 0, 0]);
    let mut bytes = old[..24].to_vec();
    bytes[4] = 32;
    for word in [b.types.len() + b.strings.len(), layout.len()] {
        bytes.extend_from_slice(&(word as u32).to_le_bytes());
    }
    bytes.extend_from_slice(&old[24..]);
    bytes.extend_from_slice(&layout);
    let btf = Btf::parse(bytes).unwrap();
    assert_eq!(btf.cut, None);
    assert_eq!(offset(&btf, "behind", "x"), Ok((4, 4)));
    assert!(offset(&Btf::parse(old).unwrap(), "behind", "x").is_err());
}

#[test]
fn broken_headers_are_refused() {
    let good = kernel().bytes();
    let broken = |change: fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        Btf::parse(bytes).err().map(|error| error.to_string())
    };
    assert_eq!(broken(|_| ()), None);
    assert_eq!(
        broken(|bytes| bytes.truncate(10)).unwrap(),
        "10 bytes are no BTF header"
    );
    assert_eq!(
        broken(|bytes| bytes[..2].reverse()).unwrap(),
        "no little-endian BTF: magic 0x9feb"
    );
    assert_eq!(
        broken(|bytes| bytes[2] = 2).unwrap(),
        "BTF version 2 is not known"
    );
    assert_eq!(
        broken(|bytes| bytes.truncate(bytes.len() - 1)).unwrap(),
        "the BTF string section is cut off"
    );
    assert_eq!(
        broken(|bytes| bytes[15] = 0xff).unwrap(),
        "the BTF type section is cut off"
    );
}

#[test]
fn the_running_kernel_answers() {
    let root = Path::new("/");
    if !root.join("sys/kernel/btf/vmlinux").exists() {
        eprintln!("skipped: no /sys/kernel/btf/vmlinux");
        return;
    }
    let btf = Btf::load(root).unwrap();
    assert_eq!(btf.cut, None);
    let pid = btf.member_offset("task_struct", "pid").unwrap();
    let tgid = btf.member_offset("task_struct", "tgid").unwrap();
    assert_eq!((pid.size, tgid.bytes), (4, pid.bytes + 4));
    assert_eq!(btf.member_offset("task_struct", "comm").unwrap().size, 16);
    assert!(
        btf.member_offset("task_struct", "se.vruntime")
            .unwrap()
            .size
            == 8
    );
    assert!(btf.has_func("schedule"));
    let switch = btf.func_proto_params("btf_trace_sched_switch").unwrap();
    assert_eq!(switch[1].kind, ParamKind::Bool);
    assert_eq!(switch[2].kind, ParamKind::Pointer("task_struct".into()));
    assert!(btf.struct_size("task_struct").unwrap() > pid.bytes);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Btf::parse(bytes);
    }

    #[test]
    fn damaged_btf_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = kernel().bytes();
        for (at, value) in changes {
            // Past the header, so that most cases get to the types.
            let at = 24 + at.index(bytes.len() - 24);
            bytes[at] = value;
        }
        if let Ok(btf) = Btf::parse(bytes) {
            for name in ["task_struct", "task_t", "sched_entity"] {
                for member in ["pid", "stime", "grid", "se.vruntime", "flag", "zzz"] {
                    let _ = btf.member_offset(name, member);
                }
            }
            let _ = btf.func_proto_params("btf_trace_sched_switch");
            let _ = btf.func_params("_printk");
        }
    }
}
