//! The lab kernels: the table that describes them, and finding built ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::error::hinted;
use crate::kernels::Kernel;

/// The table itself, part of the program.
const TABLE: &str = include_str!("../../lab.toml");
/// What every lab kernel starts from.
const BASE: &str = include_str!("../../lab/base.config");

/// `lab.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    sources: BTreeMap<String, Source>,
    /// Fragment name to the options it sets.
    fragments: BTreeMap<String, Config>,
    kernels: BTreeMap<String, Spec>,
    /// Pair name to the two kernels that differ in one option.
    pairs: BTreeMap<String, Pair>,
}

/// Sources of a kernel line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    /// The Debian package.
    package: String,
    /// What holds for all kernels of this source.
    options: Config,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    source: String,
    fragments: Vec<String>,
}

/// Two kernels that differ in one option.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pair {
    /// The option, as the report of the profiler names it.
    pub(crate) option: String,
    /// The kernel that has it.
    pub(crate) with: String,
    /// The kernel that does not.
    pub(crate) without: String,
    /// The functions that only the option calls; empty when not known.
    #[serde(default)]
    pub(crate) owns: Vec<String>,
}

/// Values of options, `CONFIG_X` to `y`, `n` or anything else.
pub(crate) type Config = BTreeMap<String, String>;

/// Reads a kernel configuration; `# CONFIG_X is not set` is the value `n`.
pub(crate) fn parse_config(text: &str) -> Config {
    text.lines()
        .filter_map(|line| {
            if let Some(rest) = line.strip_prefix("# ") {
                let option = rest.strip_suffix(" is not set")?;
                return option
                    .starts_with("CONFIG_")
                    .then(|| (option.to_owned(), "n".to_owned()));
            }
            let (option, value) = line.split_once('=')?;
            option
                .starts_with("CONFIG_")
                .then(|| (option.to_owned(), value.to_owned()))
        })
        .collect()
}

/// The assignments of `wanted` that do not hold in `actual`, as text. An
/// absent option is `n`.
pub(crate) fn unmet(wanted: &Config, actual: &Config) -> Vec<String> {
    wanted
        .iter()
        .filter(|(option, value)| actual.get(*option).map_or("n", String::as_str) != value.as_str())
        .map(|(option, value)| {
            let is = actual.get(option).map_or("n", String::as_str);
            format!("{option} is {is}, not {value}")
        })
        .collect()
}

impl Table {
    /// The table of the repository.
    ///
    /// # Errors
    ///
    /// When it is malformed or names something that it does not define.
    pub(crate) fn load() -> Result<Self> {
        Self::parse(TABLE)
    }

    fn parse(text: &str) -> Result<Self> {
        let table: Self = toml::from_str(text).context("xtask/lab.toml is malformed")?;
        for (name, spec) in &table.kernels {
            if !table.sources.contains_key(&spec.source) {
                bail!(
                    "xtask/lab.toml: kernel {name} has an unknown source {}",
                    spec.source
                );
            }
            if let Some(missing) = spec
                .fragments
                .iter()
                .find(|f| !table.fragments.contains_key(*f))
            {
                bail!("xtask/lab.toml: kernel {name} has an unknown fragment {missing}");
            }
        }
        for (name, pair) in &table.pairs {
            for kernel in [&pair.with, &pair.without] {
                if !table.kernels.contains_key(kernel) {
                    bail!("xtask/lab.toml: pair {name} has an unknown kernel {kernel}");
                }
            }
        }
        Ok(table)
    }

    fn spec(&self, name: &str) -> Result<&Spec> {
        self.kernels.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.kernels.keys().map(String::as_str).collect();
            hinted(
                format!("no lab kernel `{name}`"),
                [format!("there are {}", names.join(", "))],
            )
        })
    }

    /// The Debian package with the sources of kernel `name`.
    ///
    /// # Errors
    ///
    /// When the table has no such kernel.
    pub(crate) fn source_package(&self, name: &str) -> Result<&str> {
        Ok(&self.sources[&self.spec(name)?.source].package)
    }

    /// Everything the table asks of kernel `name`: the base, the options of its
    /// source, its fragments, and off whatever only other kernels' fragments switch on.
    ///
    /// # Errors
    ///
    /// When the table has no such kernel.
    pub(crate) fn config(&self, name: &str) -> Result<Config> {
        let spec = self.spec(name)?;
        let base = parse_config(BASE);
        let mut config: Config = self
            .fragments
            .values()
            .flatten()
            .filter(|(_, value)| *value == "y")
            .map(|(option, _)| (option.clone(), "n".to_owned()))
            .collect();
        config.extend(base);
        config.extend(self.sources[&spec.source].options.clone());
        for fragment in &spec.fragments {
            config.extend(self.fragments[fragment].clone());
        }
        Ok(config)
    }

    /// The pair of that name.
    ///
    /// # Errors
    ///
    /// When the table has no such pair.
    pub(crate) fn pair(&self, name: &str) -> Result<&Pair> {
        self.pairs.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.pairs.keys().map(String::as_str).collect();
            hinted(
                format!("no pair `{name}`"),
                [format!("there are {}", names.join(", "))],
            )
        })
    }
}

/// A configuration as text that `make olddefconfig` reads.
pub(crate) fn config_text(config: &Config) -> String {
    config
        .iter()
        .map(|(option, value)| match value.as_str() {
            "n" => format!("# {option} is not set\n"),
            value => format!("{option}={value}\n"),
        })
        .collect()
}

/// Finds the built kernel `name` in `folders`: the first whose configuration is
/// what the table asks for. A name with a slash is the path of a `.bzImage` with
/// its `.System.map` beside it.
///
/// # Errors
///
/// When there is no such kernel in the table, or none built; says why those
/// that there are were not taken.
pub(crate) fn find(table: &Table, name: &str, folders: &[PathBuf]) -> Result<Kernel> {
    if name.contains('/') {
        let kernel = Kernel::from_image(name, name);
        kernel.check()?;
        system_map(&kernel)?;
        return Ok(kernel);
    }
    let wanted = table.config(name)?;
    let mut hints = vec![format!("cargo xtask lab build {name}")];
    for folder in folders {
        let kernel = Kernel::from_image(name, folder.join(format!("{name}.bzImage")));
        if !kernel.image.is_file() {
            continue;
        }
        let (Some(config), Some(_)) = (&kernel.config, &kernel.system_map) else {
            hints.push(format!(
                "{} was not taken: no .config or .System.map beside it",
                kernel.image.display()
            ));
            continue;
        };
        let text = fs::read_to_string(config)
            .with_context(|| format!("cannot read {}", config.display()))?;
        let unmet = unmet(&wanted, &parse_config(&text));
        if unmet.is_empty() {
            return Ok(kernel);
        }
        hints.push(format!(
            "{} was not taken: {}",
            kernel.image.display(),
            unmet.join(", ")
        ));
    }
    Err(hinted(format!("lab kernel {name} is not built"), hints))
}

/// The symbol at which the oracle looks for marks.
const MARK: &str = "__x64_sys_sethostname";

/// The symbols of a kernel, for the oracle.
///
/// # Errors
///
/// When there is no file, or it is not the list of a kernel's symbols.
pub(crate) fn system_map(kernel: &Kernel) -> Result<&Path> {
    let path = kernel.system_map.as_deref().ok_or_else(|| {
        hinted(
            format!("no System.map of {}", kernel.name),
            ["the oracle needs the symbols: X.System.map beside X.bzImage"],
        )
    })?;
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    check_symbols(&String::from_utf8_lossy(&text)).map_err(|what| {
        hinted(
            format!("{}: {what}", path.display()),
            ["it must be the System.map that the build of the kernel wrote"],
        )
    })?;
    Ok(path)
}

/// Says what is missing in a `System.map`.
fn check_symbols(text: &str) -> Result<(), String> {
    let mut functions = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (_, kind, name) = (words.next()?, words.next()?, words.next()?);
        ["t", "T"].contains(&kind).then_some(name)
    });
    let mut any = false;
    if functions.any(|name| {
        any = true;
        name == MARK
    }) {
        return Ok(());
    }
    Err(if any {
        format!("no function {MARK} in it, which marks what is counted")
    } else {
        "no kernel function in it".to_owned()
    })
}

/// The options that `a` and `b` request differently.
#[cfg(test)]
fn differing(a: &Config, b: &Config) -> std::collections::BTreeSet<String> {
    a.keys()
        .chain(b.keys())
        .filter(|option| a.get(*option) != b.get(*option))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::hints;
    use proptest::prelude::*;

    #[test]
    fn maps_that_are_none() {
        let good = "ffffffff81000000 T _text\nffffffff81000010 T __x64_sys_sethostname\n";
        assert_eq!(check_symbols(good), Ok(()));
        for (text, word) in [
            ("", "no kernel function"),
            (
                "ffffffff81000010 D __x64_sys_sethostname\n",
                "no kernel function",
            ),
            ("\u{0}\u{1}garbage T", "no kernel function"),
            ("ffffffff81000000 T _text\n", MARK),
        ] {
            let error = check_symbols(text).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let mut kernel = Kernel::from_image("k", "/k.bzImage");
        kernel.system_map = None;
        let error = system_map(&kernel).unwrap_err();
        assert!(hints(&error)[0].contains("System.map"), "{error}");
        kernel.system_map = Some("/nonexistent/System.map".into());
        assert!(system_map(&kernel).is_err());
    }

    #[test]
    fn the_table_is_sound() {
        let table = Table::load().unwrap();
        for name in table.kernels.keys() {
            assert!(table.config(name).unwrap().len() > 50);
        }
        for pair in table.pairs.values() {
            let (with, without) = (
                table.config(&pair.with).unwrap(),
                table.config(&pair.without).unwrap(),
            );
            assert!(
                !differing(&with, &without).is_empty(),
                "{pair:?} is no pair"
            );
        }
    }

    #[test]
    fn a_pair_differs_in_its_option_only() {
        let table = Table::load().unwrap();
        let pair = table.pair("debug-preempt").unwrap();
        let differing = differing(
            &table.config(&pair.with).unwrap(),
            &table.config(&pair.without).unwrap(),
        );
        assert_eq!(
            differing.into_iter().collect::<Vec<_>>(),
            ["CONFIG_DEBUG_PREEMPT"]
        );
    }

    #[test]
    fn what_others_switch_on_is_off() {
        let table = Table::load().unwrap();
        let plain = table.config("6.1-plain").unwrap();
        assert_eq!(plain["CONFIG_DEBUG_PREEMPT"], "n");
        assert_eq!(plain["CONFIG_HZ_1000"], "n");
        let hz = table.config("6.1-hz1000").unwrap();
        assert_eq!(hz["CONFIG_HZ_1000"], "y");
        assert_eq!(hz["CONFIG_HZ_100"], "n");
        let kcore = table.config("6.1-kcore").unwrap();
        assert_eq!(kcore["CONFIG_RCU_TRACE"], "y");
    }

    #[test]
    fn unmet_names_option_and_both_values() {
        let wanted = parse_config("CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=8\n");
        assert!(unmet(&wanted, &parse_config("CONFIG_A=y\nCONFIG_C=8\n")).is_empty());
        let unmet = unmet(&wanted, &parse_config("CONFIG_B=y\nCONFIG_C=8\n"));
        assert_eq!(unmet, ["CONFIG_A is n, not y", "CONFIG_B is y, not n"]);
    }

    #[test]
    fn unknown_names_list_the_known() {
        let table = Table::load().unwrap();
        let error = table.config("7.7-plain").unwrap_err().to_string();
        assert!(error.contains("7.7-plain"), "{error}");
        let hints = hints(&table.config("7.7-plain").unwrap_err());
        assert!(hints[0].contains("6.1-plain"), "{hints:?}");
        let hints = crate::error::hints(&table.pair("x").unwrap_err());
        assert!(hints[0].contains("debug-preempt"), "{hints:?}");
    }

    #[test]
    fn a_folder_is_taken_when_its_config_matches() {
        let table = Table::load().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let name = "6.1-plain";
        for kind in ["bzImage", "System.map"] {
            fs::write(folder.path().join(format!("{name}.{kind}")), "x").unwrap();
        }
        let config = folder.path().join(format!("{name}.config"));
        fs::write(&config, config_text(&table.config(name).unwrap())).unwrap();
        let folders = ["/nonexistent".into(), folder.path().to_owned()];
        let found = find(&table, name, &folders).unwrap();
        assert_eq!(found.image, folder.path().join("6.1-plain.bzImage"));

        let other = config_text(&table.config("6.1-debug-preempt").unwrap());
        fs::write(&config, other).unwrap();
        let hints = hints(&find(&table, name, &folders).unwrap_err());
        assert_eq!(hints[0], "cargo xtask lab build 6.1-plain");
        assert!(
            hints[1].contains("CONFIG_DEBUG_PREEMPT is y, not n"),
            "{hints:?}"
        );

        fs::remove_file(&config).unwrap();
        let hints = crate::error::hints(&find(&table, name, &folders).unwrap_err());
        assert!(hints[1].contains("no .config"), "{hints:?}");
    }

    proptest! {
        #[test]
        fn configs_round_trip(config in proptest::collection::btree_map("CONFIG_[A-Z0-9_]{1,12}", "y|n|m|[0-9]{1,4}|\"[a-z ]{0,5}\"", 0..20)) {
            prop_assert_eq!(parse_config(&config_text(&config)), config);
        }

        #[test]
        fn any_text_parses(text in "\\PC*") {
            let _ = parse_config(&text);
        }
    }
}
