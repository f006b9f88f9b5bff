//! Names of functions that a report groups callers by, and that end the walk of
//! a stack.

use std::collections::HashMap;
use std::sync::LazyLock;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::kernel::base_name;

/// Groups of kernel functions by subsystem, for the callers in a report: data in
/// `callers.toml`.
#[derive(Clone, Debug)]
pub struct CallerGroups {
    exact: HashMap<String, usize>,
    /// Longest first, so that the most telling prefix wins.
    prefixes: Vec<(String, usize)>,
    names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    group: Vec<GroupNames>,
    proxy: Vec<Proxy>,
    entry: EntryNames,
}

/// A function that takes no probe, and another that is called as often.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Proxy {
    function: String,
    counted_at: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupNames {
    name: String,
    #[serde(default)]
    prefixes: Vec<String>,
    #[serde(default)]
    functions: Vec<String>,
}

/// The code a stack walk outwards stops at.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryNames {
    prefixes: Vec<String>,
    functions: Vec<String>,
}

struct Builtin {
    groups: CallerGroups,
    proxies: Vec<Proxy>,
    entry: EntryNames,
}

static BUILTIN: LazyLock<Builtin> = LazyLock::new(|| {
    parse(include_str!("callers.toml"))
        .unwrap_or_else(|error| panic!("the built-in caller groups: {error:#}"))
});

fn parse(text: &str) -> anyhow::Result<Builtin> {
    let file: File = toml::from_str(text).context("cannot read the caller groups")?;
    let mut groups = CallerGroups {
        exact: HashMap::new(),
        prefixes: Vec::new(),
        names: Vec::new(),
    };
    for (at, group) in file.group.into_iter().enumerate() {
        ensure!(
            !groups.names.contains(&group.name),
            "group {:?} occurs twice",
            group.name
        );
        for function in group.functions {
            let name = format!("function {function:?}");
            ensure!(groups.exact.insert(function, at).is_none(), "{name} twice");
        }
        for prefix in group.prefixes {
            ensure!(!prefix.is_empty(), "an empty prefix");
            ensure!(
                groups.prefixes.iter().all(|(known, _)| *known != prefix),
                "prefix {prefix:?} twice"
            );
            groups.prefixes.push((prefix, at));
        }
        groups.names.push(group.name);
    }
    groups
        .prefixes
        .sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then(a.cmp(b)));
    Ok(Builtin {
        groups,
        proxies: file.proxy,
        entry: file.entry,
    })
}

impl CallerGroups {
    /// The groups this program was built with.
    ///
    /// # Panics
    ///
    /// When the file it was built with is broken, which a test rules out.
    pub fn builtin() -> &'static Self {
        &BUILTIN.groups
    }

    /// The subsystem that `symbol` belongs to, e.g. `memcg charging`; compiler
    /// suffixes do not matter. Names no group knows belong to none.
    pub fn group(&self, symbol: &str) -> Option<&str> {
        let name = base_name(symbol);
        let at = self.exact.get(name).copied().or_else(|| {
            self.prefixes
                .iter()
                .find(|(prefix, _)| name.starts_with(prefix.as_str()))
                .map(|(_, at)| *at)
        })?;
        self.names.get(at).map(String::as_str)
    }

    /// The groups' names, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

/// The function whose calls stand for those of `function`, which takes no probe.
pub fn proxy(function: &str) -> Option<&'static str> {
    let proxies = &BUILTIN.proxies;
    let proxy = proxies.iter().find(|proxy| proxy.function == function)?;
    Some(&proxy.counted_at)
}

/// Whether `symbol` is entry code: where a task, an interrupt, an exception or a
/// system call begins. What lies outside of an interrupt's or exception's frame
/// is the interrupted code, not its caller. Knows the names of x86 and arm64
/// since 5.8, and the older ones of both where they differ.
pub fn is_entry_frame(symbol: &str) -> bool {
    let entry = &BUILTIN.entry;
    let name = base_name(symbol);
    entry.functions.iter().any(|known| known == name)
        || entry
            .prefixes
            .iter()
            .any(|prefix| name.starts_with(prefix.as_str()))
}
