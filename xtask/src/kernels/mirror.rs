//! Which Debian mirror this machine uses, as its own apt sources say.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::error::hinted;
use crate::host;

/// Names a mirror where the system's sources have none.
const VARIABLE: &str = "PREEMPTPROF_DEBIAN_MIRROR";

/// The base addresses of Debian's archive and of its security archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mirror {
    main: String,
    security: String,
}

impl Mirror {
    /// The one of this system.
    pub(super) fn of_system() -> Result<Self> {
        if let Some(named) = host::variable(VARIABLE) {
            return Ok(Self::from_main(&named.to_string_lossy()));
        }
        let mut text = fs::read_to_string("/etc/apt/sources.list").unwrap_or_default();
        let mut files: Vec<_> = fs::read_dir("/etc/apt/sources.list.d")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        files.sort();
        for file in files {
            let known = matches!(
                file.extension().and_then(|name| name.to_str()),
                Some("list" | "sources")
            );
            if known && let Ok(more) = fs::read_to_string(&file) {
                text.push('\n');
                text.push_str(&more);
            }
        }
        Self::parse(&text).ok_or_else(|| {
            hinted(
                "no Debian mirror in /etc/apt/sources.list or sources.list.d",
                [format!(
                    "name one: {VARIABLE}=http://HOST/debian (its security archive is taken to be http://HOST/debian-security)"
                )],
            )
        })
    }

    /// Where a suite is.
    pub(super) fn of_suite(&self, suite: &str) -> &str {
        if suite.ends_with("-security") {
            &self.security
        } else {
            &self.main
        }
    }

    fn from_main(main: &str) -> Self {
        let main = main.trim_end_matches('/').to_owned();
        let security = match main.strip_suffix("debian") {
            Some(host) => format!("{host}debian-security"),
            None => format!("{main}-security"),
        };
        Self { main, security }
    }

    /// Finds the archives among one-line and deb822 sources.
    fn parse(text: &str) -> Option<Self> {
        let mut main = None;
        let mut security = None;
        for line in text.lines().map(str::trim) {
            let one_line = line.strip_prefix("deb ");
            let Some(rest) = one_line.or_else(|| line.strip_prefix("URIs:")) else {
                continue;
            };
            for address in rest.split_whitespace().filter(|word| word.contains(":/")) {
                let address = address.trim_end_matches('/');
                // Cloud images list their mirrors in a file of such a name.
                let name = Path::new(address.trim_end_matches(".list")).file_name();
                match name.and_then(|name| name.to_str()) {
                    Some("debian") => main.get_or_insert_with(|| address.to_owned()),
                    Some("debian-security") => security.get_or_insert_with(|| address.to_owned()),
                    _ => continue,
                };
            }
        }
        let main = main?;
        let security = security.unwrap_or_else(|| Self::from_main(&main).security);
        Some(Self { main, security })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(main: &str, security: &str) -> Option<Mirror> {
        Some(Mirror {
            main: main.to_owned(),
            security: security.to_owned(),
        })
    }

    #[test]
    fn reads_both_forms() {
        let deb822 = "Types: deb\n# http://old.example/archive\nURIs: http://a.example/debian/\n\
            Suites: bookworm\n\nTypes: deb\nURIs: http://b.example/debian-security\n";
        assert_eq!(
            Mirror::parse(deb822),
            mirror(
                "http://a.example/debian",
                "http://b.example/debian-security"
            )
        );
        let one_line = "deb [arch=amd64 signed-by=/x] http://a.example/debian bookworm main\n\
            deb https://other.example/repo stable main\n";
        let found = Mirror::parse(one_line);
        assert_eq!(
            found,
            mirror(
                "http://a.example/debian",
                "http://a.example/debian-security"
            )
        );
        let found = found.unwrap();
        assert_eq!(found.of_suite("trixie"), "http://a.example/debian");
        assert_eq!(
            found.of_suite("bullseye-security"),
            "http://a.example/debian-security"
        );
    }

    #[test]
    fn reads_mirror_lists() {
        let text = "URIs: mirror+file:///etc/apt/mirrors/debian.list\n\
            URIs: mirror+file:///etc/apt/mirrors/debian-security.list\n";
        assert_eq!(
            Mirror::parse(text),
            mirror(
                "mirror+file:///etc/apt/mirrors/debian.list",
                "mirror+file:///etc/apt/mirrors/debian-security.list"
            )
        );
    }

    #[test]
    fn finds_nothing_where_nothing_is() {
        assert_eq!(
            Mirror::parse("deb http://archive.example/ubuntu noble main\n"),
            None
        );
        assert_eq!(
            Mirror::parse("# deb http://a.example/debian x main\n"),
            None
        );
        assert_eq!(Mirror::parse(""), None);
    }
}
