//! The plugin's arguments, `key=value` each.

use std::path::PathBuf;

/// Which functions a list names: all, none, or these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Every function of the symbol table.
    All,
    /// None of them.
    None,
    /// These names, `:` between them on the command line.
    Names(Vec<String>),
}

impl Choice {
    fn parse(text: &str) -> Self {
        match text {
            "all" => Self::All,
            "none" => Self::None,
            names => Self::Names(names.split(':').map(str::to_owned).collect()),
        }
    }

    /// True when `name` is chosen.
    pub(crate) fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Names(names) => names.iter().any(|n| n == name),
        }
    }
}

/// Everything the plugin can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Args {
    /// `map=`: the `System.map` of the guest kernel.
    pub(crate) map: PathBuf,
    /// `out=`: where the JSON document goes when the machine stops.
    pub(crate) out: PathBuf,
    /// `mark=`: the symbol whose first instruction is a mark.
    pub(crate) mark: String,
    /// `functions=`: whose instructions and calls are written out.
    pub(crate) functions: Choice,
    /// `sites=`: the call targets whose sites are counted.
    pub(crate) sites: Choice,
}

/// Reads `key=value` arguments.
///
/// # Errors
///
/// A message that names the argument that is unknown, malformed or missing.
pub(crate) fn parse<'a>(args: impl Iterator<Item = &'a str>) -> Result<Args, String> {
    let mut map = None;
    let mut out = None;
    let mut mark = "__x64_sys_sethostname".to_owned();
    let mut functions = Choice::All;
    let mut sites = Choice::All;
    for arg in args {
        let (key, value) = arg
            .split_once('=')
            .ok_or_else(|| format!("argument `{arg}` is not of the form key=value"))?;
        if value.is_empty() {
            return Err(format!("argument `{key}` is empty"));
        }
        match key {
            "map" => map = Some(PathBuf::from(value)),
            "out" => out = Some(PathBuf::from(value)),
            "mark" => value.clone_into(&mut mark),
            "functions" => functions = Choice::parse(value),
            "sites" => sites = Choice::parse(value),
            _ => {
                return Err(format!(
                    "argument `{key}` is unknown; there are map, out, mark, functions and sites"
                ));
            }
        }
    }
    Ok(Args {
        map: map.ok_or("argument `map` (the guest's System.map) is missing")?,
        out: out.ok_or("argument `out` (the file to write) is missing")?,
        mark,
        functions,
        sites,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults() {
        let args = parse(["map=a", "out=b"].into_iter()).unwrap();
        assert_eq!(args.mark, "__x64_sys_sethostname");
        assert_eq!(args.functions, Choice::All);
        assert!(args.sites.contains("anything"));
    }

    #[test]
    fn lists() {
        let args = parse(["map=a", "out=b", "sites=x:y", "functions=none"].into_iter()).unwrap();
        assert!(args.sites.contains("y"));
        assert!(!args.sites.contains("z"));
        assert!(!args.functions.contains("x"));
    }

    #[test]
    fn errors_name_the_argument() {
        for (given, word) in [
            (vec!["map=a"], "`out`"),
            (vec!["out=a"], "`map`"),
            (vec!["map=a", "out=b", "colour=c"], "`colour`"),
            (vec!["map"], "`map`"),
            (vec!["map="], "`map`"),
        ] {
            let error = parse(given.into_iter()).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
