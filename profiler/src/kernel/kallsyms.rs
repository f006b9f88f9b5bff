//! The kernel's symbol table, from the text of `/proc/kallsyms`.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Range;

use memchr::memchr;

use super::symbol_names::{base_name, is_section_end, is_section_marker, leading_underscores};

/// Longest symbol name taken. `KSYM_NAME_LEN` is 512 since 6.1 and was 128 before.
const MAX_NAME: usize = 4096;

/// Most symbols taken: far above the largest kernel with all its modules.
const MAX_SYMBOLS: usize = 8_000_000;

/// `/proc/kallsyms` does not say where the last symbol before a gap ends. Text of
/// modules and BPF programs is mapped in pages, so it is taken to end with its page.
const PAGE: u64 = 4096;

/// Symbols of one module or BPF pack farther apart than a huge page are in different
/// mappings, with a gap between them.
const HUGE_PAGE: u64 = 2 << 20;

/// A compact, immutable symbol table.
///
/// Lookups by address see text only. Everything else stays reachable by name, so
/// the address of a variable can be asked for where `CONFIG_KALLSYMS_ALL` lists it.
#[derive(Debug, Default)]
pub struct Kallsyms {
    /// All names, back to back.
    names: String,
    /// Names in brackets; index 0 is vmlinux, whose name is empty.
    modules: Vec<String>,
    /// By address, the best name of each address first; then, from `absolute` on,
    /// the absolute symbols (constants and offsets into per-CPU areas).
    entries: Vec<Entry>,
    absolute: usize,
    /// `hash(base name) << 32 | index into entries`, sorted.
    by_name: Vec<u64>,
    hidden: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    name: u32,
    name_len: u16,
    module: u16,
    /// Of the base name.
    hash: u32,
    kind: u8,
}

impl Entry {
    fn is_text(&self) -> bool {
        matches!(self.kind, b't' | b'T' | b'w' | b'W')
    }

    fn is_absolute(&self) -> bool {
        matches!(self.kind, b'a' | b'A')
    }
}

/// A symbol, seen from the address or the name that was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolRef<'a> {
    /// The name as the kernel lists it, except that the padding in front of a
    /// function (`__pfx_f`, `__cfi_f`) goes by the name of the function.
    pub name: &'a str,
    /// Empty for vmlinux, else a module's name, `bpf`, or `__builtin__ftrace` and
    /// the like.
    pub module: &'a str,
    /// The type letter of `nm`; upper case is global.
    pub kind: char,
    /// Address of the first byte.
    pub start: u64,
    /// Bytes to the next symbol, padding included; at most to the end of the page
    /// where the next symbol belongs to another module.
    pub size: u64,
    /// How far the address that was looked up is behind `start`; 0 for a symbol
    /// found by its name.
    pub offset: u64,
}

impl SymbolRef<'_> {
    /// The name without what the compiler appended to it.
    pub fn base_name(&self) -> &str {
        base_name(self.name)
    }

    /// The addresses from the first byte to the next symbol.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.size)
    }
}

/// A part of the kernel's text with a rule of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `.noinstr.text`: no kprobe, no ftrace, no hardware breakpoint.
    Noinstr,
    /// `.entry.text`: the first instructions after a system call or interrupt.
    Entry,
    /// `.cpuidle.text`: where an idle CPU sleeps.
    CpuIdle,
    /// `.sched.text`: skipped when the kernel asks where a task waits.
    Sched,
}

impl Section {
    fn markers(self) -> (&'static str, &'static str) {
        match self {
            Self::Noinstr => ("__noinstr_text_start", "__noinstr_text_end"),
            Self::Entry => ("__entry_text_start", "__entry_text_end"),
            Self::CpuIdle => ("__cpuidle_text_start", "__cpuidle_text_end"),
            Self::Sched => ("__sched_text_start", "__sched_text_end"),
        }
    }
}

impl Kallsyms {
    /// Reads the text of `/proc/kallsyms`, or of a `System.map`. Lines that are not
    /// symbols are skipped, their order does not matter.
    pub fn parse(text: &[u8]) -> Self {
        let mut table = Self {
            names: String::with_capacity(text.len() / 2),
            entries: Vec::with_capacity(text.len() / 40),
            ..Self::default()
        };
        let mut modules = Modules::default();
        let mut some_address = false;
        let mut rest = text;
        while !rest.is_empty() && table.entries.len() < MAX_SYMBOLS {
            let end = memchr(b'\n', rest).unwrap_or(rest.len());
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            let Some(line) = Line::parse(line) else {
                continue;
            };
            let Some(module) = modules.index(line.module) else {
                continue;
            };
            let (Ok(name), Ok(name_len)) = (
                u32::try_from(table.names.len()),
                u16::try_from(line.name.len()),
            ) else {
                continue;
            };
            table.names.push_str(line.name);
            let entry = Entry {
                address: line.address,
                name,
                name_len,
                module,
                hash: line.hash,
                kind: line.kind,
            };
            some_address |= entry.address != 0 && !entry.is_absolute();
            table.entries.push(entry);
        }
        table.modules = modules.names;
        table.hidden = !table.entries.is_empty() && !some_address;
        table.sort();
        table.names.shrink_to_fit();
        table.entries.shrink_to_fit();
        table
    }

    fn sort(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        // Stable and fast on input that is mostly in order, which vmlinux's part is.
        entries.sort_by(|a, b| {
            (a.is_absolute(), a.address)
                .cmp(&(b.is_absolute(), b.address))
                .then_with(|| {
                    // Without addresses every symbol is an alias of every other.
                    if self.hidden {
                        Ordering::Equal
                    } else {
                        self.preference(a).cmp(&self.preference(b))
                    }
                })
        });
        self.absolute = entries.partition_point(|entry| !entry.is_absolute());
        self.entries = entries;
        self.by_name = (0u64..)
            .zip(&self.entries)
            .map(|(index, entry)| (u64::from(entry.hash) << 32) | index)
            .collect();
        self.by_name.sort_unstable();
    }

    /// Which of several names of one address stands for it: smallest wins. A
    /// function beats data and section markers; the name without the underscores
    /// that mark an inner variant (`memcpy`, not `__memcpy`) beats the other.
    fn preference(&self, entry: &Entry) -> (bool, bool, usize, u8, u16, &str) {
        let name = self.name_of(entry);
        let binding = match entry.kind {
            b'T' => 0,
            b'W' | b'w' => 1,
            _ => 2,
        };
        (
            !entry.is_text(),
            is_section_marker(name),
            leading_underscores(name),
            binding,
            entry.name_len,
            name,
        )
    }

    fn name_of(&self, entry: &Entry) -> &str {
        let start = entry.name as usize;
        self.names
            .get(start..start + usize::from(entry.name_len))
            .unwrap_or_default()
    }

    fn module_of(&self, entry: &Entry) -> &str {
        self.modules
            .get(usize::from(entry.module))
            .map_or("", String::as_str)
    }

    /// Number of symbols.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no symbol at all: no such file, or `CONFIG_KALLSYMS=n`.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the kernel listed names with every address zero, as it does for a
    /// reader who may not see them. See [`super::explain_hidden_symbols`].
    pub fn hidden(&self) -> bool {
        self.hidden
    }

    /// The text symbol that `address` lies in.
    ///
    /// `None` outside text: in data, behind the end of a section, in the user half,
    /// in a gap between modules, or when addresses are hidden.
    pub fn lookup(&self, address: u64) -> Option<SymbolRef<'_>> {
        // The user half: kernel addresses have the top bit set on every 64-bit
        // architecture Linux runs BPF on, except s390 which is not supported.
        if self.hidden || address >> 63 == 0 {
            return None;
        }
        let first = self.group_of(address)?;
        let entry = self.entries.get(first)?;
        if !entry.is_text() {
            return None;
        }
        let listed = self.name_of(entry);
        if is_section_end(listed) {
            return None;
        }
        let symbol = self.symbol(first, entry);
        let offset = address - entry.address;
        if offset >= symbol.size {
            return None;
        }
        Some(SymbolRef {
            name: padded_function(listed).unwrap_or(listed),
            offset,
            ..symbol
        })
    }

    /// Index of the best entry at the greatest address not above `address`.
    fn group_of(&self, address: u64) -> Option<usize> {
        let relative = self.entries.get(..self.absolute)?;
        let after = relative.partition_point(|entry| entry.address <= address);
        let last = relative.get(after.checked_sub(1)?)?;
        Some(
            relative
                .get(..after)?
                .partition_point(|entry| entry.address < last.address),
        )
    }

    fn symbol<'a>(&'a self, index: usize, entry: &Entry) -> SymbolRef<'a> {
        SymbolRef {
            name: self.name_of(entry),
            module: self.module_of(entry),
            kind: char::from(entry.kind),
            start: entry.address,
            size: self.size(index, entry),
            offset: 0,
        }
    }

    fn size(&self, index: usize, entry: &Entry) -> u64 {
        if self.hidden || entry.is_absolute() {
            return 0;
        }
        let rest = self.entries.get(index..self.absolute).unwrap_or_default();
        let next = rest.get(rest.partition_point(|other| other.address <= entry.address));
        let page_end = (entry.address | (PAGE - 1)).saturating_add(1);
        let end = match next {
            Some(next)
                if next.module == entry.module
                    && (entry.module == 0 || next.address - entry.address <= HUGE_PAGE) =>
            {
                next.address
            }
            Some(next) => next.address.min(page_end),
            None => page_end,
        };
        end - entry.address
    }

    /// The symbols of exactly this name. Static functions of the same name are
    /// common (`check_flags`, `lookup_object`), so there may be several; one that
    /// was split by the compiler has none of the bare name, see [`Self::variants`].
    pub fn symbols<'a>(&'a self, name: &'a str) -> impl Iterator<Item = SymbolRef<'a>> {
        self.variants(base_name(name))
            .filter(move |symbol| symbol.name == name)
    }

    /// The symbols with this [`base_name`]: the function itself and its `.isra.0`,
    /// `.constprop.0`, `.part.0` and `.cold` pieces, in address order.
    pub fn variants<'a>(&'a self, base: &'a str) -> impl Iterator<Item = SymbolRef<'a>> {
        let wanted = u64::from(hash(base)) << 32;
        let from = self.by_name.partition_point(|&key| key < wanted);
        self.by_name
            .get(from..)
            .unwrap_or_default()
            .iter()
            .take_while(move |&&key| key >> 32 == wanted >> 32)
            .filter_map(|&key| {
                let index = (key & u64::from(u32::MAX)) as usize;
                Some(self.symbol(index, self.entries.get(index)?))
            })
            .filter(move |symbol| symbol.base_name() == base)
    }

    /// The addresses of exactly this name; none when addresses are hidden.
    pub fn addresses<'a>(&'a self, name: &'a str) -> impl Iterator<Item = u64> + 'a {
        let hidden = self.hidden;
        self.symbols(name)
            .filter(move |_| !hidden)
            .map(|symbol| symbol.start)
    }

    /// The address of this name when there is exactly one.
    pub fn address(&self, name: &str) -> Option<u64> {
        let mut found = self.addresses(name);
        let address = found.next()?;
        found.next().is_none().then_some(address)
    }

    /// The addresses from this symbol to the next when there is exactly one symbol
    /// of this name and addresses are visible.
    pub fn range(&self, name: &str) -> Option<Range<u64>> {
        let mut found = self.symbols(name).filter(|_| !self.hidden);
        let range = found.next()?.range();
        found.next().is_none().then_some(range)
    }

    /// Whether a symbol with this [`base_name`] exists, also when its address is hidden.
    pub fn contains(&self, base: &str) -> bool {
        self.variants(base).next().is_some()
    }

    /// All symbols: by address, the preferred one of an address first, absolute
    /// symbols last.
    pub fn iter(&self) -> impl Iterator<Item = SymbolRef<'_>> {
        self.entries
            .iter()
            .enumerate()
            .map(|(index, entry)| self.symbol(index, entry))
    }

    /// `_stext.._etext`: the text of vmlinux that stays after boot.
    pub fn text_range(&self) -> Option<Range<u64>> {
        self.between("_stext", "_etext")
    }

    /// Where a section of the text lies; `None` where this kernel has no such
    /// section. On x86 `.cpuidle.text` is inside `.noinstr.text` since 6.3.
    pub fn section(&self, section: Section) -> Option<Range<u64>> {
        let (start, end) = section.markers();
        self.between(start, end)
    }

    fn between(&self, start: &str, end: &str) -> Option<Range<u64>> {
        let range = self.address(start)?..self.address(end)?;
        (!range.is_empty()).then_some(range)
    }
}

/// The function behind `__pfx_f` (padding for call thunks, since 6.2) or `__cfi_f`
/// (its type hash under kCFI, since 6.1).
fn padded_function(name: &str) -> Option<&str> {
    name.strip_prefix("__pfx_")
        .or_else(|| name.strip_prefix("__cfi_"))
        .filter(|function| !function.is_empty())
}

/// FNV-1a, one step and the fold to 32 bits. Only the speed of a lookup depends on it.
const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;

fn hash_step(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
}

fn hash_fold(hash: u64) -> u32 {
    (hash ^ (hash >> 32)) as u32
}

fn hash(name: &str) -> u32 {
    hash_fold(name.bytes().fold(HASH_START, hash_step))
}

/// Numbers for the names in brackets.
struct Modules {
    names: Vec<String>,
    by_name: HashMap<String, u16>,
    /// Symbols of one module follow each other.
    last: u16,
}

impl Default for Modules {
    fn default() -> Self {
        Self {
            names: vec![String::new()],
            by_name: HashMap::from([(String::new(), 0)]),
            last: 0,
        }
    }
}

impl Modules {
    /// `None` when there are more modules than a kernel can have.
    fn index(&mut self, name: &str) -> Option<u16> {
        if self.names.get(usize::from(self.last))? != name {
            self.last = match self.by_name.get(name) {
                Some(&known) => known,
                None => {
                    let index = u16::try_from(self.names.len()).ok()?;
                    self.names.push(name.to_owned());
                    self.by_name.insert(name.to_owned(), index);
                    index
                }
            };
        }
        Some(self.last)
    }
}

struct Line<'a> {
    address: u64,
    kind: u8,
    name: &'a str,
    module: &'a str,
    hash: u32,
}

impl<'a> Line<'a> {
    /// `ffffffff81000000 T _stext`, or with a tab and `[module]` behind it.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut address = 0u64;
        let mut digits = 0;
        for &byte in line {
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                b'A'..=b'F' => byte - b'A' + 10,
                _ => break,
            };
            digits += 1;
            address = (address << 4) | u64::from(digit);
        }
        if digits == 0 || digits > 16 {
            return None;
        }
        let &[b' ', kind, b' ', ref rest @ ..] = line.get(digits..)? else {
            return None;
        };
        // nm(1) prints `?` for what it cannot name, e.g. `__nosave_begin`.
        if !kind.is_ascii_graphic() {
            return None;
        }
        // One pass finds the end of the name, its hash, and whether it has a suffix.
        let mut hashed = HASH_START;
        let mut dotted = false;
        let mut end = 0;
        for &byte in rest {
            if !byte.is_ascii_graphic() {
                break;
            }
            hashed = hash_step(hashed, byte);
            dotted |= byte == b'.';
            end += 1;
        }
        let (name, tail) = rest.split_at_checked(end)?;
        let separated = matches!(tail.first(), None | Some(b'\t' | b' ' | b'\r'));
        if name.is_empty() || name.len() > MAX_NAME || !separated {
            return None;
        }
        let name = std::str::from_utf8(name).ok()?;
        let tail = tail.trim_ascii();
        let module = match tail {
            [] => "",
            [b'[', module @ .., b']'] if module.len() <= MAX_NAME => {
                std::str::from_utf8(module).ok()?
            }
            _ => return None,
        };
        Some(Self {
            address,
            kind,
            hash: if dotted {
                hash(base_name(name))
            } else {
                hash_fold(hashed)
            },
            name,
            module,
        })
    }
}

#[cfg(test)]
#[path = "kallsyms_tests.rs"]
mod tests;
