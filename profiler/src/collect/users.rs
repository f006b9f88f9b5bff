//! Names for user-space addresses, found while the process still lives.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use object::read::ReadCache;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};

use crate::recording::Symbol;

/// Processes and files remembered.
const REMEMBERED: usize = 4096;
/// Times the mappings of one process are read again because an address was not
/// in them.
const REREADS: u32 = 16;
/// Symbols taken of one file.
const MAX_SYMBOLS: usize = 1 << 20;

/// Looks up addresses of processes.
#[derive(Debug, Default)]
pub(super) struct UserSymbols {
    processes: HashMap<u32, Process>,
    files: HashMap<(String, u64), Option<SymbolTable>>,
}

#[derive(Debug, Default)]
struct Process {
    mappings: Vec<Mapping>,
    reads: u32,
}

/// One line of /proc/PID/maps that is executable.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    device: String,
    inode: u64,
    path: String,
}

impl UserSymbols {
    /// The symbol of an address and the bytes past its start; `None` when the
    /// process or the mapping is gone.
    pub(super) fn lookup(&mut self, tgid: u32, address: u64) -> Option<(Symbol, u32)> {
        if self.processes.len() >= REMEMBERED && !self.processes.contains_key(&tgid) {
            self.processes.clear();
        }
        let process = self.processes.entry(tgid).or_default();
        if process.find(address).is_none() && process.reads < REREADS {
            process.reads += 1;
            if let Ok(maps) = fs::read(format!("/proc/{tgid}/maps")) {
                process.mappings = parse_maps(&maps);
            }
        }
        let mapping = process.find(address)?;
        let module = mapping.path.clone();
        let unnamed = |module: String| {
            let symbol = Symbol {
                name: "[unknown]".to_owned(),
                module,
            };
            Some((symbol, 0))
        };
        if mapping.inode == 0 {
            return unnamed(module);
        }
        let key = (mapping.device.clone(), mapping.inode);
        if self.files.len() >= REMEMBERED && !self.files.contains_key(&key) {
            self.files.clear();
        }
        let table = self.files.entry(key).or_insert_with(|| {
            // The process may see another file system than we do.
            let path = PathBuf::from(format!("/proc/{tgid}/root{}", mapping.path));
            SymbolTable::read(&path)
        });
        let in_file = address - mapping.start + mapping.offset;
        match table.as_ref().and_then(|table| table.lookup(in_file)) {
            Some((name, offset)) => Some((
                Symbol {
                    name: format!("{:#}", rustc_demangle::demangle(name)),
                    module,
                },
                offset,
            )),
            None => unnamed(module),
        }
    }
}

impl Process {
    fn find(&self, address: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|map| map.start <= address);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        (address < mapping.end).then_some(mapping)
    }
}

/// The executable mappings of a process, by address.
fn parse_maps(maps: &[u8]) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = String::from_utf8_lossy(maps)
        .lines()
        .filter_map(parse_mapping)
        .collect();
    mappings.sort_by_key(|mapping| mapping.start);
    mappings
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let executable = fields.next()?.as_bytes().get(2) == Some(&b'x');
    let offset = fields.next()?;
    let device = fields.next()?;
    let inode = fields.next()?;
    let path = fields.next().unwrap_or_default().trim_start();
    let mapping = Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        device: device.to_owned(),
        inode: inode.parse().ok()?,
        path: path.to_owned(),
    };
    (executable && mapping.start < mapping.end).then_some(mapping)
}

/// The functions of an ELF file.
#[derive(Debug, Default)]
struct SymbolTable {
    /// Start in the file, size, name; by start.
    functions: Vec<(u64, u64, String)>,
}

impl SymbolTable {
    /// Reads the symbols of a file; `None` when it is no ELF file or has none.
    fn read(path: &std::path::Path) -> Option<Self> {
        // The process may have put anything there: a FIFO would block.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
            .open(path)
            .ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let cache = ReadCache::new(file);
        let file = object::File::parse(&cache).ok()?;
        let segments: Vec<(u64, u64, u64)> = file
            .segments()
            .map(|segment| (segment.address(), segment.size(), segment.file_range().0))
            .collect();
        let in_file = |address: u64| {
            segments
                .iter()
                .find(|(start, size, _)| address >= *start && address - start < *size)
                .map(|(start, _, offset)| address - start + offset)
        };
        let mut functions: Vec<(u64, u64, String)> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
            .take(MAX_SYMBOLS)
            .filter_map(|symbol| {
                let start = in_file(symbol.address())?;
                Some((start, symbol.size(), symbol.name().ok()?.to_owned()))
            })
            .collect();
        functions.sort();
        functions.dedup_by_key(|(start, ..)| *start);
        (!functions.is_empty()).then_some(Self { functions })
    }

    fn lookup(&self, in_file: u64) -> Option<(&str, u32)> {
        let after = self
            .functions
            .partition_point(|(start, ..)| *start <= in_file);
        let (start, size, name) = self.functions.get(after.checked_sub(1)?)?;
        let offset = in_file - start;
        // Hand-written assembly has no size; it lasts until the next symbol.
        if *size != 0 && offset >= *size {
            return None;
        }
        Some((name, u32::try_from(offset).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn a_function_of_this_test() -> u64 {
        std::hint::black_box(7)
    }

    #[test]
    fn a_function_of_this_process_is_found() {
        let address = a_function_of_this_test as *const () as u64;
        let (symbol, offset) = UserSymbols::default()
            .lookup(std::process::id(), address)
            .unwrap();
        assert_eq!(
            (symbol.name.as_str(), offset),
            ("a_function_of_this_test", 0)
        );
        assert!(symbol.module.starts_with('/'));
        assert_eq!(a_function_of_this_test(), 7);
    }

    #[test]
    fn a_pipe_in_the_place_of_a_program_does_not_block() {
        use std::os::unix::ffi::OsStrExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a valid string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(SymbolTable::read(&path).is_none());
        assert!(SymbolTable::read(folder.path()).is_none());
    }

    #[test]
    fn what_is_not_there_has_no_name() {
        let mut users = UserSymbols::default();
        assert_eq!(users.lookup(u32::MAX, 0x1000), None);
        assert_eq!(users.lookup(std::process::id(), 0x10), None);
    }

    #[test]
    fn mappings_are_read_whatever_their_path() {
        let maps = b"55d0-55e0 r-xp 00001000 fd:00 42   /a b/(deleted)\n\
            7000-6000 r-xp 0 0:0 1 /backwards\n\
            garbage\n\xff\xfe\n\
            1000-2000 r--p 0 0:0 1 /data\n\
            2000-3000 r-xp 0 00:00 0 [vdso]";
        let mappings = parse_maps(maps);
        let paths: Vec<&str> = mappings.iter().map(|map| map.path.as_str()).collect();
        assert_eq!(paths, ["[vdso]", "/a b/(deleted)"]);
        assert_eq!(mappings[1].offset, 0x1000);
    }
}
