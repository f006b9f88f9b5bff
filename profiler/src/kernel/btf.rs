//! A reader of the kernel's BTF: offsets of structure members and prototypes of
//! functions and tracepoints.
//!
//! The format is `Documentation/bpf/btf.rst` and `include/uapi/linux/btf.h`. The
//! BTF of a running kernel is `/sys/kernel/btf/vmlinux` since 5.4, with
//! `CONFIG_DEBUG_INFO_BTF`. Nothing is ever guessed: what cannot be known for
//! certain is [`Unavailable`], with the reason.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use memchr::memmem;

use super::btf_kind::Kind;
use super::root;

const MAGIC: u16 = 0xeb9f;
const HEADER: usize = 24;

/// Longest chain of typedefs, qualifiers, array dimensions or nested anonymous
/// structures followed. The kernel's own limit on nesting is 32.
const MAX_DEPTH: u32 = 32;

/// Most members looked at in one search; `task_struct` has about 300.
const MAX_MEMBERS: u32 = 100_000;

/// Bytes of a pointer: BPF runs on other widths too, but this profiler does not.
const POINTER: u64 = 8;

/// Why BTF does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

fn unavailable<T>(reason: impl Into<String>) -> Result<T, Unavailable> {
    Err(Unavailable(reason.into()))
}

/// Where a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberOffset {
    /// Bytes from the start of the outermost structure.
    pub bytes: u32,
    /// Bytes of the member itself.
    pub size: u32,
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name; empty where the prototype gives none.
    pub name: String,
    /// What is passed.
    pub kind: ParamKind,
}

/// The type of a parameter, without typedefs and qualifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// `bool`.
    Bool,
    /// An integer.
    Int {
        /// Whether it is signed. Plain `char` counts as what the compiler says.
        signed: bool,
        /// Its bytes.
        size: u32,
    },
    /// An enumeration.
    Enum {
        /// Its tag; empty for an anonymous one.
        name: String,
        /// Its bytes.
        size: u32,
    },
    /// A pointer, with the name of the structure, union, enum or integer it points
    /// to; `void` for `void *`, empty for what has no name.
    Pointer(String),
    /// A structure or union passed by value.
    Struct {
        /// Its tag; empty for an anonymous one.
        name: String,
        /// Its bytes.
        size: u32,
    },
    /// A floating-point number.
    Float {
        /// Its bytes.
        size: u32,
    },
    /// The `...` at the end of a variadic function.
    Variadic,
}

/// One type: its head, and where its elements are.
#[derive(Clone, Copy, Debug)]
struct Type {
    kind: Kind,
    name: u32,
    elements: usize,
    flag: bool,
    /// The size, or the id of the type it is about.
    size_or_type: u32,
    trailer: usize,
}

/// Parsed BTF.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    strings: Range<usize>,
    /// How long each kind is, four bytes a kind; empty in BTF that does not tell.
    layout: Range<usize>,
    /// Position of each type; ids count from 1, so id 1 is at index 0.
    types: Vec<u32>,
    /// Why types behind the last of `types` could not be read.
    cut: Option<String>,
    /// `offset of the name << 32 | id` of every named type, sorted.
    by_name: OnceLock<Vec<u64>>,
}

impl Btf {
    /// Reads `/sys/kernel/btf/vmlinux` below `root`. Needs 5.4 and
    /// `CONFIG_DEBUG_INFO_BTF`.
    pub fn load(root: &Path) -> Result<Self, Unavailable> {
        const PATH: &str = "/sys/kernel/btf/vmlinux";
        match root::read(root, PATH) {
            Ok(bytes) => Self::parse(bytes),
            Err(error) => unavailable(format!(
                "{PATH}: {error} (needs Linux 5.4 and CONFIG_DEBUG_INFO_BTF)"
            )),
        }
    }

    /// Indexes the types of BTF in its raw form.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, Unavailable> {
        let Some(header) = bytes.get(..HEADER) else {
            return unavailable(format!("{} bytes are no BTF header", bytes.len()));
        };
        let word = |at: usize| u32_at(header, at).unwrap_or_default() as usize;
        let magic = u16::from_le_bytes([header[0], header[1]]);
        if magic != MAGIC {
            return unavailable(format!("no little-endian BTF: magic {magic:#06x}"));
        }
        if header[2] != 1 {
            return unavailable(format!("BTF version {} is not known", header[2]));
        }
        let section = |name: &str, offset: usize, length: usize| {
            let start = word(4).checked_add(offset).filter(|_| word(4) >= HEADER);
            start
                .and_then(|start| Some(start..start.checked_add(length)?))
                .filter(|range| range.end <= bytes.len() && bytes.len() <= u32::MAX as usize)
                .ok_or_else(|| Unavailable(format!("the BTF {name} section is cut off")))
        };
        let type_section = section("type", word(8), word(12))?;
        let strings = section("string", word(16), word(20))?;
        let layout = match word(4) {
            32.. => {
                let at = |at| u32_at(&bytes, at).unwrap_or_default() as usize;
                section("layout", at(24), at(28))?
            }
            _ => 0..0,
        };
        let mut btf = Self {
            types: Vec::with_capacity(type_section.len() / 24),
            bytes,
            strings,
            layout,
            cut: None,
            by_name: OnceLock::new(),
        };
        let mut at = type_section.start;
        while at < type_section.end {
            let id = btf.types.len() + 1;
            match btf.type_at(at) {
                Ok(found) => {
                    let next = found.trailer.saturating_add(btf.trailer(at, &found));
                    if next > type_section.end {
                        btf.cut = Some(format!("BTF type {id} is cut off"));
                        break;
                    }
                    btf.types.push(at as u32);
                    at = next;
                }
                Err(reason) => {
                    btf.cut = Some(format!("BTF type {id}: {reason}"));
                    break;
                }
            }
        }
        Ok(btf)
    }

    fn type_at(&self, at: usize) -> Result<Type, Unavailable> {
        let word = |index: usize| u32_at(&self.bytes, at + 4 * index);
        let (Some(name), Some(info), Some(size_or_type)) = (word(0), word(1), word(2)) else {
            return unavailable("cut off");
        };
        // Bits 16-23, 29 and 30 are zero up to 7.0; they have been reserved to widen
        // the count of elements and the kind, and are read so.
        let number = (info >> 24) & 0x7f;
        let kind = match Kind::from_number(number) {
            Some(kind) => kind,
            None if self.layout_of(number).is_some() => Kind::Other,
            None => return unavailable(format!("kind {number} is not known")),
        };
        Ok(Type {
            kind,
            name,
            elements: (info & 0x00ff_ffff) as usize,
            flag: info >> 31 == 1,
            size_or_type,
            trailer: at + 12,
        })
    }

    /// Bytes behind the head of the type at `at`.
    fn trailer(&self, at: usize, found: &Type) -> usize {
        if found.kind != Kind::Other {
            return found.kind.trailer(found.elements);
        }
        let info = u32_at(&self.bytes, at + 4).unwrap_or_default();
        let [fixed, element] = self.layout_of((info >> 24) & 0x7f).unwrap_or_default();
        usize::from(fixed) + usize::from(element) * found.elements
    }

    /// Fixed bytes and bytes an element of a kind, from the layout section that BTF
    /// can have so that readers can pass over kinds that are newer than they are.
    fn layout_of(&self, kind: u32) -> Option<[u8; 2]> {
        let layout = self.bytes.get(self.layout.clone())?;
        let entry = layout.get(4 * kind as usize..)?;
        match entry {
            [fixed, element, _, _, ..] => Some([*fixed, *element]),
            _ => None,
        }
    }

    fn get(&self, id: u32) -> Result<Type, Unavailable> {
        let index = (id as usize).checked_sub(1);
        match index.and_then(|index| self.types.get(index)) {
            Some(&at) => self.type_at(at as usize),
            None if id == 0 => unavailable("void where a type is needed"),
            None => unavailable(format!("BTF refers to a type {id} that it does not have")),
        }
    }

    fn string(&self, offset: u32) -> &str {
        let bytes = self.bytes.get(self.strings.clone()).unwrap_or_default();
        let bytes = bytes.get(offset as usize..).unwrap_or_default();
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(0);
        std::str::from_utf8(&bytes[..end]).unwrap_or_default()
    }

    /// The ids of types of this name.
    fn ids<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (u32, Type)> + 'a {
        let index = self.by_name.get_or_init(|| {
            let mut index: Vec<u64> = (1..)
                .zip(&self.types)
                .filter_map(|(id, &at)| {
                    let name = u32_at(&self.bytes, at as usize)?;
                    (name != 0).then_some((u64::from(name) << 32) | id)
                })
                .collect();
            index.sort_unstable();
            index
        });
        self.offsets(name)
            .flat_map(move |offset| {
                let from = index.partition_point(|key| key >> 32 < offset);
                let rest = index.get(from..).unwrap_or_default();
                rest.iter().take_while(move |&&key| key >> 32 == offset)
            })
            .filter_map(|&key| {
                let id = key as u32;
                Some((id, self.get(id).ok()?))
            })
    }

    /// Where `name` is among the strings. The kernel's BTF has each string once, but
    /// nothing demands that, nor that a name does not end another.
    fn offsets<'a>(&'a self, name: &'a str) -> impl Iterator<Item = u64> + 'a {
        let strings = self.bytes.get(self.strings.clone()).unwrap_or_default();
        // An empty name would be everywhere.
        let strings = if name.is_empty() { &[] } else { strings };
        memmem::find_iter(strings, name)
            .filter(move |at| strings.get(at + name.len()) == Some(&0))
            .map(|at| at as u64)
    }

    fn missing<T>(&self, what: &str, name: &str) -> Result<T, Unavailable> {
        match &self.cut {
            Some(cut) => unavailable(format!("no {what} {name} in the BTF read so far: {cut}")),
            None => unavailable(format!("this kernel's BTF has no {what} {name}")),
        }
    }

    /// Follows typedefs and qualifiers to the type behind them; 0 is `void`.
    fn resolve(&self, mut id: u32) -> Result<(u32, Option<Type>), Unavailable> {
        for _ in 0..MAX_DEPTH {
            if id == 0 {
                return Ok((0, None));
            }
            let found = self.get(id)?;
            if !matches!(found.kind, Kind::Typedef | Kind::Qualifier) {
                return Ok((id, Some(found)));
            }
            id = found.size_or_type;
        }
        unavailable(format!("the chain of typedefs from type {id} has no end"))
    }

    fn size_of(&self, id: u32) -> Result<u64, Unavailable> {
        let mut id = id;
        let mut count = 1u64;
        for _ in 0..MAX_DEPTH {
            let (_, Some(found)) = self.resolve(id)? else {
                return unavailable("void has no size");
            };
            let size = match found.kind {
                Kind::Ptr => POINTER,
                Kind::Int
                | Kind::Struct
                | Kind::Union
                | Kind::Enum
                | Kind::Enum64
                | Kind::Float
                | Kind::Datasec => u64::from(found.size_or_type),
                Kind::Array => {
                    let element = u32_at(&self.bytes, found.trailer);
                    let length = u32_at(&self.bytes, found.trailer + 8);
                    let (Some(element), Some(length)) = (element, length) else {
                        return unavailable("an array type is cut off");
                    };
                    count = match count.checked_mul(u64::from(length)) {
                        Some(count) => count,
                        None => return unavailable("an array is larger than memory"),
                    };
                    id = element;
                    continue;
                }
                _ => return unavailable(format!("a {:?} has no size", found.kind)),
            };
            return match count.checked_mul(size) {
                Some(bytes) => Ok(bytes),
                None => unavailable("an array is larger than memory"),
            };
        }
        unavailable("an array has too many dimensions")
    }

    /// Where `member` is in `structure`, a structure, union, or a typedef of one.
    ///
    /// Members of anonymous structures and unions count as members of the one
    /// around them, as in C. `member` may be a path through named members, e.g.
    /// `se.vruntime`. Bit fields are refused: they have no byte offset.
    pub fn member_offset(
        &self,
        structure: &str,
        member: &str,
    ) -> Result<MemberOffset, Unavailable> {
        let mut answer = None;
        let mut declared = false;
        for (id, found) in self.ids(structure) {
            if !matches!(found.kind, Kind::Struct | Kind::Union | Kind::Typedef) {
                continue;
            }
            declared = true;
            let here = self.member_of_type(id, structure, member)?;
            match answer {
                None => answer = Some(here),
                Some(before) if before != here => {
                    return unavailable(format!(
                        "this kernel has several structures {structure} and they \
                         disagree about {member}"
                    ));
                }
                Some(_) => {}
            }
        }
        match answer {
            Some(offset) => Ok(offset),
            None if declared => unavailable(format!("{structure} has no member {member}")),
            None => self.missing("structure", structure),
        }
    }

    fn member_of_type(
        &self,
        id: u32,
        structure: &str,
        member: &str,
    ) -> Result<MemberOffset, Unavailable> {
        let mut id = id;
        let mut bits = 0u64;
        for part in member.split('.') {
            let mut search = Search {
                name: part,
                members: 0,
            };
            let Some((inner, offset)) = self.find(id, &mut search, 0)? else {
                return unavailable(format!("{structure} has no member {member}"));
            };
            bits += offset;
            id = inner;
        }
        if !bits.is_multiple_of(8) {
            return unavailable(format!("{structure}.{member} is not on a byte boundary"));
        }
        let size = self.size_of(id)?;
        let (Ok(bytes), Ok(size)) = (u32::try_from(bits / 8), u32::try_from(size)) else {
            return unavailable(format!("{structure}.{member} is out of range"));
        };
        Ok(MemberOffset { bytes, size })
    }

    /// Type and offset in bits of a member, down through anonymous members.
    fn find(
        &self,
        id: u32,
        search: &mut Search<'_>,
        depth: u32,
    ) -> Result<Option<(u32, u64)>, Unavailable> {
        if depth > MAX_DEPTH {
            return unavailable("anonymous structures are nested too deeply");
        }
        let (_, Some(found)) = self.resolve(id)? else {
            return Ok(None);
        };
        if !matches!(found.kind, Kind::Struct | Kind::Union) {
            return Ok(None);
        }
        for index in 0..found.elements {
            search.members += 1;
            if search.members > MAX_MEMBERS {
                return unavailable("the structure has too many members");
            }
            let at = found.trailer + 12 * index;
            let word = |index: usize| u32_at(&self.bytes, at + 4 * index);
            let (Some(name), Some(inner), Some(position)) = (word(0), word(1), word(2)) else {
                return unavailable("a structure is cut off");
            };
            // With the flag set, the upper byte is the width of a bit field.
            let (bits, width) = match found.flag {
                true => (position & 0x00ff_ffff, position >> 24),
                false => (position, 0),
            };
            let name = self.string(name);
            if name == search.name && !name.is_empty() {
                if width != 0 || self.is_narrow_int(inner) {
                    return unavailable(format!("{name} is a bit field"));
                }
                return Ok(Some((inner, u64::from(bits))));
            }
            if name.is_empty()
                && width == 0
                && let Some((member, offset)) = self.find(inner, search, depth + 1)?
            {
                return Ok(Some((member, offset + u64::from(bits))));
            }
        }
        Ok(None)
    }

    /// Whether the type is an integer of fewer bits than its bytes hold, which is
    /// how bit fields were written before 4.20.
    fn is_narrow_int(&self, id: u32) -> bool {
        let Ok((_, Some(found))) = self.resolve(id) else {
            return false;
        };
        found.kind == Kind::Int
            && u32_at(&self.bytes, found.trailer).is_some_and(|int| {
                let bits = u64::from(int & 0xff);
                (int >> 16) & 0xff != 0 || bits != u64::from(found.size_or_type) * 8
            })
    }

    /// Bytes of a structure or union.
    pub fn struct_size(&self, name: &str) -> Result<u32, Unavailable> {
        let mut sizes = self
            .ids(name)
            .filter(|(_, found)| matches!(found.kind, Kind::Struct | Kind::Union))
            .map(|(_, found)| found.size_or_type);
        let Some(size) = sizes.next() else {
            return self.missing("structure", name);
        };
        if sizes.any(|other| other != size) {
            return unavailable(format!("this kernel has several structures {name}"));
        }
        Ok(size)
    }

    /// Whether a function of this name has BTF, which fentry and fexit need.
    pub fn has_func(&self, name: &str) -> bool {
        self.ids(name).any(|(_, found)| found.kind == Kind::Func)
    }

    /// Whether a typedef of this name exists: `btf_trace_<name>` does for each
    /// tracepoint that a BPF program can attach to.
    pub fn typedef_exists(&self, name: &str) -> bool {
        self.ids(name).any(|(_, found)| found.kind == Kind::Typedef)
    }

    /// The parameters of a function.
    pub fn func_params(&self, name: &str) -> Result<Vec<Param>, Unavailable> {
        let found = self.only(name, Kind::Func, "function")?;
        match self.get(found.size_or_type)? {
            proto if proto.kind == Kind::FuncProto => self.params(&proto),
            _ => unavailable(format!("the BTF of function {name} has no prototype")),
        }
    }

    /// The parameters of the function that a typedef points to. Those of a
    /// tracepoint are those of `btf_trace_<name>`, where the first is the `void *`
    /// that a program does not see.
    pub fn func_proto_params(&self, typedef: &str) -> Result<Vec<Param>, Unavailable> {
        let found = self.only(typedef, Kind::Typedef, "typedef")?;
        if let (_, Some(pointer)) = self.resolve(found.size_or_type)?
            && pointer.kind == Kind::Ptr
            && let (_, Some(proto)) = self.resolve(pointer.size_or_type)?
            && proto.kind == Kind::FuncProto
        {
            return self.params(&proto);
        }
        unavailable(format!("typedef {typedef} is no pointer to a function"))
    }

    fn only(&self, name: &str, kind: Kind, what: &str) -> Result<Type, Unavailable> {
        let mut found = self.ids(name).filter(|(_, found)| found.kind == kind);
        let Some((_, first)) = found.next() else {
            return self.missing(what, name);
        };
        match found.next() {
            None => Ok(first),
            Some(_) => unavailable(format!("this kernel has more than one {what} {name}")),
        }
    }

    fn params(&self, proto: &Type) -> Result<Vec<Param>, Unavailable> {
        (0..proto.elements)
            .map(|index| {
                let at = proto.trailer + 8 * index;
                let word = |index: usize| u32_at(&self.bytes, at + 4 * index);
                let (Some(name), Some(id)) = (word(0), word(1)) else {
                    return unavailable("a prototype is cut off");
                };
                let kind = match self.resolve(id)? {
                    (_, Some(found)) => self.param_kind(&found)?,
                    (_, None) if index + 1 == proto.elements => ParamKind::Variadic,
                    (_, None) => return unavailable("a parameter is void"),
                };
                Ok(Param {
                    name: self.string(name).to_owned(),
                    kind,
                })
            })
            .collect()
    }

    fn param_kind(&self, found: &Type) -> Result<ParamKind, Unavailable> {
        let name = || self.string(found.name).to_owned();
        let size = found.size_or_type;
        Ok(match found.kind {
            Kind::Int => {
                let Some(int) = u32_at(&self.bytes, found.trailer) else {
                    return unavailable("an integer is cut off");
                };
                match (int >> 24) & 0xf {
                    encoding if encoding & 4 != 0 => ParamKind::Bool,
                    encoding => ParamKind::Int {
                        signed: encoding & 1 != 0,
                        size,
                    },
                }
            }
            Kind::Enum | Kind::Enum64 => ParamKind::Enum { name: name(), size },
            Kind::Struct | Kind::Union => ParamKind::Struct { name: name(), size },
            Kind::Float => ParamKind::Float { size },
            // C passes neither by value; what arrives is a pointer.
            Kind::Array | Kind::FuncProto => ParamKind::Pointer(String::new()),
            Kind::Ptr => ParamKind::Pointer(match self.resolve(found.size_or_type)? {
                (_, None) => "void".to_owned(),
                (_, Some(target)) => self.string(target.name).to_owned(),
            }),
            kind => return unavailable(format!("a parameter cannot be a {kind:?}")),
        })
    }
}

struct Search<'a> {
    name: &'a str,
    members: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

#[cfg(test)]
#[path = "btf_tests.rs"]
mod tests;
