//! The QEMU plugin that counts: building it, checking that this QEMU loads it,
//! and reading what it wrote.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::error::hinted;
use crate::host;

#[path = "../../oracle/src/document.rs"]
pub(crate) mod document;

pub(crate) use document::{Document, Window};

/// QEMU versions with plugin API 1 that the oracle was written for: from the
/// oldest that Debian 12 ships up to the last before the ABI changed.
const OLDEST: (u32, u32) = (7, 2);
const NEWEST: (u32, u32) = (8, 2);

/// The plugin and the guest's programs.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    /// The plugin.
    pub(crate) plugin: PathBuf,
    /// `mark`, a static program.
    pub(crate) mark: PathBuf,
    /// `preemptprof`, a static program: the workloads, and what is scored.
    pub(crate) preemptprof: PathBuf,
}

/// Builds the plugin and `mark`, and checks QEMU.
///
/// # Errors
///
/// When QEMU is missing or has another plugin ABI, or a build fails.
pub(crate) fn prepare(preemptprof: PathBuf) -> Result<Tools> {
    check_qemu()?;
    Ok(Tools {
        plugin: build(&["--lib"], &[], "cdylib")?,
        mark: build(&["--bin", "mark"], STATIC, "bin")?,
        preemptprof,
    })
}

/// The guest has no libraries.
const STATIC: &[&str] = &["-C", "target-feature=+crt-static"];

fn build(what: &[&str], rustc: &[&str], kind: &str) -> Result<PathBuf> {
    let mut command = host::cargo();
    command
        .args([
            "rustc",
            "--release",
            "--quiet",
            "--package",
            "preemptprof-oracle",
        ])
        .args(what)
        .arg("--message-format=json-render-diagnostics")
        .arg("--")
        .args(rustc)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command
        .output()
        .with_context(|| format!("cannot run `{}`", host::shown(&command)))?;
    if !output.status.success() {
        bail!("`{}`: {}", host::shown(&command), output.status);
    }
    artifact(&String::from_utf8_lossy(&output.stdout), kind)
        .with_context(|| format!("`{}` made no {kind}", host::shown(&command)))
}

/// The file of the last artifact of `kind` that cargo reports.
fn artifact(messages: &str, kind: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| {
            message["reason"] == "compiler-artifact"
                && message["target"]["kind"]
                    .as_array()
                    .is_some_and(|kinds| kinds.iter().any(|k| k == kind))
        })
        .filter_map(|message| message["filenames"][0].as_str().map(PathBuf::from))
        .last()
}

fn check_qemu() -> Result<()> {
    let program = "qemu-system-x86_64";
    if host::find(program).is_none() {
        return Err(hinted(
            format!("no {program}"),
            ["apt-get install --no-install-recommends qemu-system-x86"],
        ));
    }
    let text = host::read(Command::new(program).arg("--version"))?;
    check_version(&text)
}

/// Accepts the versions whose plugin ABI the oracle speaks.
fn check_version(text: &str) -> Result<()> {
    let version = text
        .split_ascii_whitespace()
        .skip_while(|word| *word != "version")
        .nth(1)
        .unwrap_or_default();
    let mut parts = version.split('.').map(|part| part.parse().ok());
    let (Some(Some(major)), Some(Some(minor))) = (parts.next(), parts.next()) else {
        bail!(
            "cannot tell the version of QEMU from `{}`",
            text.lines().next().unwrap_or_default()
        );
    };
    if (OLDEST..=NEWEST).contains(&(major, minor)) {
        return Ok(());
    }
    Err(hinted(
        format!("the oracle speaks the plugin ABI of QEMU 7.2 to 8.2, and this is QEMU {version}"),
        ["Debian 12 has QEMU 7.2"],
    ))
}

/// Reads what the plugin wrote.
///
/// # Errors
///
/// When the file is missing, damaged or of another schema, or when a window
/// was begun and never ended.
pub(crate) fn read(path: &Path) -> Result<Document> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    if text.is_empty() {
        bail!("the oracle wrote nothing: QEMU did not stop by itself");
    }
    let document: Document = serde_json::from_str(&text)
        .with_context(|| format!("{} is not what the oracle writes", path.display()))?;
    if document.schema != document::SCHEMA {
        bail!(
            "{} has schema {}, not {}",
            path.display(),
            document.schema,
            document::SCHEMA
        );
    }
    if document.marks % 2 == 1 {
        bail!(
            "the guest set {} marks: a window never ended",
            document.marks
        );
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_qemu() {
        let line =
            |v: &str| format!("QEMU emulator version {v} (Debian 1:{v}+dfsg-1)\nCopyright\n");
        for good in ["7.2.22", "8.0.0", "8.2.50"] {
            assert!(check_version(&line(good)).is_ok(), "{good}");
        }
        for bad in ["6.2.0", "7.1.0", "9.0.2", "10.0.0"] {
            let error = check_version(&line(bad)).unwrap_err().to_string();
            assert!(error.contains(bad), "{error}");
        }
        for nonsense in ["", "QEMU", "QEMU emulator version x"] {
            assert!(check_version(nonsense).is_err());
        }
    }

    #[test]
    fn the_artifact_of_a_kind() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"kind":["lib"]},"filenames":["/t/libserde.rlib"]}
not json
{"reason":"compiler-artifact","target":{"kind":["cdylib"]},"filenames":["/t/libo.so"]}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(artifact(messages, "cdylib"), Some("/t/libo.so".into()));
        assert_eq!(artifact(messages, "bin"), None);
    }

    #[test]
    fn documents_that_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("o.json");
        let check = |text: &str, word: &str| {
            fs::write(&path, text).unwrap();
            let error = format!("{:#}", read(&path).unwrap_err());
            assert!(error.contains(word), "{error}");
        };
        check("", "wrote nothing");
        check("{", "not what the oracle writes");
        check(
            r#"{"schema":"x/2","mark":"m","marks":0,"windows":[]}"#,
            "x/2",
        );
        check(
            r#"{"schema":"preemptprof/oracle/1","mark":"m","marks":3,"windows":[]}"#,
            "never ended",
        );
        fs::write(
            &path,
            r#"{"schema":"preemptprof/oracle/1","mark":"m","marks":2,"windows":[{
                "instructions":{"total":3,"user":1,"kernel":2,"kernel_unnamed":0},
                "functions":[{"symbol":"f","address":18446744071578845184,"instructions":2,"calls":1}],
                "sites":[{"address":18446744071578845184,"caller":"f","offset":0,"calls":1}]}]}"#,
        )
        .unwrap();
        assert_eq!(read(&path).unwrap().windows[0].functions[0].calls, 1);
    }
}
