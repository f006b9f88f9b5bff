//! The functions of a kernel, from its `System.map`.

use std::collections::HashMap;

/// Index of a function in its [`SymbolTable`].
pub(crate) type FunctionIndex = usize;

/// One function: a text symbol up to the next symbol of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// The name that is shown; other names of the address still resolve.
    pub(crate) name: String,
    /// Address of its first byte.
    pub(crate) start: u64,
    /// Address after its last byte.
    pub(crate) end: u64,
}

/// The functions of a kernel by address and by name.
#[derive(Debug, Default)]
pub(crate) struct SymbolTable {
    functions: Vec<Function>,
    by_name: HashMap<String, FunctionIndex>,
}

/// Kernel text lies in the top 2 GiB of the address space on x86-64
/// (Documentation/arch/x86/x86_64/mm.rst); below are per-CPU offsets and
/// absolute symbols.
const KERNEL_TEXT: u64 = 0xffff_ffff_8000_0000;

impl SymbolTable {
    /// Reads the text of a `System.map`: `address type name` on each line.
    ///
    /// # Errors
    ///
    /// A message with the line number for a line that is not of that form, and
    /// one for a file without any kernel function.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut symbols = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                return Err(format!("line {}: not `address type name`", index + 1));
            };
            let address = u64::from_str_radix(address, 16).map_err(|_| {
                format!(
                    "line {}: `{address}` is not a hexadecimal address",
                    index + 1
                )
            })?;
            if address >= KERNEL_TEXT {
                symbols.push((address, kind.to_owned(), name.to_owned()));
            }
        }
        symbols.sort_by_key(|(address, ..)| *address);

        let mut table = Self::default();
        let mut rest = symbols.as_slice();
        while let Some((address, ..)) = rest.first() {
            let same = rest.partition_point(|(a, ..)| a <= address);
            let (here, after) = rest.split_at(same);
            let end = after.first().map_or(*address, |(next, ..)| *next);
            let index = table.functions.len();
            let texts = here
                .iter()
                .filter(|(_, kind, _)| matches!(kind.as_str(), "t" | "T" | "w" | "W"));
            if let Some((_, _, best)) = texts.clone().max_by_key(|(_, kind, name)| rank(kind, name))
            {
                for (_, _, name) in texts {
                    // The first of several static functions of one name keeps it.
                    table.by_name.entry(name.clone()).or_insert(index);
                }
                table.functions.push(Function {
                    name: best.clone(),
                    start: *address,
                    end,
                });
            }
            rest = after;
        }
        if table.functions.is_empty() {
            return Err("no kernel function in it".to_owned());
        }
        Ok(table)
    }

    /// All functions by ascending address.
    pub(crate) fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The function `address` lies in.
    pub(crate) fn at(&self, address: u64) -> Option<FunctionIndex> {
        let after = self.functions.partition_point(|f| f.start <= address);
        let index = after.checked_sub(1)?;
        (address < self.functions[index].end).then_some(index)
    }

    /// The function that begins at `address`.
    pub(crate) fn starting_at(&self, address: u64) -> Option<FunctionIndex> {
        self.functions
            .binary_search_by_key(&address, |f| f.start)
            .ok()
    }

    /// The function of that name, an alias included.
    pub(crate) fn named(&self, name: &str) -> Option<FunctionIndex> {
        self.by_name.get(name).copied()
    }
}

/// Which of several names of one address is shown: a function before a section
/// marker, then global before local, then the plainer name.
fn rank(kind: &str, name: &str) -> (bool, bool, std::cmp::Reverse<usize>) {
    let marker = name.starts_with("__pfx_")
        || name.starts_with("__cfi_")
        || name.ends_with("_start")
        || name.ends_with("_begin")
        || name.ends_with("_end")
        || matches!(
            name,
            "_stext" | "_text" | "_etext" | "_sinittext" | "_einittext"
        );
    (!marker, kind == "T", std::cmp::Reverse(name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAP: &str = "\
0000000000000000 A __per_cpu_start
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000040 t helper
ffffffff81000050 T alias_long_name
ffffffff81000050 T alias
ffffffff81000080 T _etext
ffffffff81001000 D data
ffffffff81002000 t helper
ffffffff81002010 D end
";

    #[test]
    fn ranges_end_at_the_next_symbol() {
        let table = SymbolTable::parse(MAP).unwrap();
        let helper = table.at(0xffff_ffff_8100_004f).unwrap();
        assert_eq!(table.functions()[helper].name, "helper");
        assert_eq!(table.starting_at(0xffff_ffff_8100_0040), Some(helper));
        assert_eq!(table.starting_at(0xffff_ffff_8100_0041), None);
        assert_eq!(table.at(0xffff_ffff_8100_1004), None, "data is no function");
        assert_eq!(table.at(0), None);
        assert_eq!(table.at(u64::MAX), None);
    }

    #[test]
    fn a_function_beats_a_marker_and_aliases_resolve() {
        let table = SymbolTable::parse(MAP).unwrap();
        let first = table.at(0xffff_ffff_8100_0000).unwrap();
        assert_eq!(table.functions()[first].name, "startup_64");
        assert_eq!(table.named("_stext"), Some(first));
        let alias = table.named("alias_long_name").unwrap();
        assert_eq!(table.functions()[alias].name, "alias");
        assert_eq!(table.named("alias"), Some(alias));
        assert_eq!(table.named("data"), None);
    }

    #[test]
    fn bad_lines_are_named() {
        assert!(
            SymbolTable::parse("zz t a\n")
                .unwrap_err()
                .contains("line 1")
        );
        assert!(SymbolTable::parse("0 t\n").unwrap_err().contains("line 1"));
        assert!(
            SymbolTable::parse("")
                .unwrap_err()
                .contains("no kernel function")
        );
        assert!(SymbolTable::parse("10 A x\n").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_an_error_or_a_table(text in "\\PC*") {
            let _ = SymbolTable::parse(&text);
        }

        #[test]
        fn every_address_inside_is_found(starts in proptest::collection::btree_set(0u64..0x10_0000, 2..50)) {
            let map: String = starts
                .iter()
                .map(|s| format!("{:x} t f{s}\n", KERNEL_TEXT + s))
                .collect();
            let table = SymbolTable::parse(&map).unwrap();
            for pair in table.functions().windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                let found = table.at(pair[1].start - 1).unwrap();
                prop_assert_eq!(&table.functions()[found].name, &pair[0].name);
            }
        }
    }
}
