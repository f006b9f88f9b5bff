//! Command lines that make no sense whatever the files are like: one status, and
//! what was asked for is not done in part.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;
mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use command::{Finished, finish, folder, preemptprof};
use profiler::recording::save;

/// Two recordings, folded stacks and a configuration.
fn files() -> tempfile::TempDir {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    save(&common::messaging(), &path("a.pprec"), false).unwrap();
    save(&common::messaging(), &path("b.pprec"), false).unwrap();
    fs::write(path("a.folded"), "a;b_[k] 3\n").unwrap();
    fs::write(path("config"), "CONFIG_HZ=250\n").unwrap();
    symlink("a.pprec", path("link.svg")).unwrap();
    folder
}

fn run(folder: &Path, arguments: &str) -> Finished {
    let mut command = preemptprof(arguments.split_whitespace());
    command.current_dir(folder);
    finish(command)
}

#[test]
fn misuse_has_a_status_of_its_own_and_a_hint() {
    let folder = files();
    let before = fs::read_dir(folder.path()).unwrap().count();
    for (arguments, why) in [
        ("export a.pprec", "which format?"),
        ("export a.pprec -o out", "which format for out?"),
        ("export a.pprec -o out.png", "which format for out.png?"),
        ("export a.pprec -o out.svg -o out.svg", "given twice"),
        ("export a.pprec -o ./out.svg -o out.svg", "given twice"),
        ("export a.pprec -o out.csv --by rcu", "would change nothing"),
        (
            "export a.pprec -o a.csv -o b.csv --format svg",
            "more than one",
        ),
        ("export a.pprec --listen nonsense", "`nonsense`"),
        ("export a.pprec --listen 127.0.0.1:99999", "99999"),
        ("export a.pprec --listen 127.0.0.1", "`127.0.0.1`"),
        (
            "export a.pprec --listen 127.0.0.1:0 --format svg",
            "metrics",
        ),
        ("export a.pprec --listen 127.0.0.1:0 -o a.prom", "--output"),
        ("diff a.pprec", "--vs"),
        ("diff a.pprec --vs b.pprec -o out.png", "which format?"),
        ("diff a.pprec --vs b.pprec -o out.svg -o out.svg", "twice"),
        (
            "diff a.pprec --vs b.pprec --fail-above -1",
            "not a percentage",
        ),
        ("diff a.pprec --vs b.pprec --callers -1", "--callers"),
        ("report a.pprec --force", "--html"),
        ("report a.pprec --callers -1", "--callers"),
        ("report a.pprec b.pprec", "b.pprec"),
        ("import perf-data - -o out", "stdin"),
        ("import perf-script - -o out --weight 2", "--weight"),
        ("import folded a.folded -o out -F 0", "--freq"),
        ("import folded a.folded -o out --kernel=", "--kernel"),
        ("import perf a.folded -o out", "perf-script"),
        ("top --window 61", "1..=60"),
        ("top --window -1", "--window"),
        ("bench messaging -g -1", "--group"),
        ("options --format yaml", "json"),
    ] {
        let refused = run(folder.path(), arguments).refuses_with_hint(2, why);
        assert!(refused.stdout.is_empty(), "{arguments}");
        let after = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(after, before, "{arguments}");
    }
}

#[test]
fn what_is_read_is_never_written() {
    let folder = files();
    let path = |name: &str| folder.path().join(name);
    for (arguments, input) in [
        ("export a.pprec -o a.pprec --format svg --force", "a.pprec"),
        ("export a.pprec -o link.svg --force", "a.pprec"),
        ("report a.pprec --html ./a.pprec --force", "a.pprec"),
        ("import folded a.folded -o a.folded --force", "a.folded"),
        (
            "import folded a.folded -o config --config config --force",
            "config",
        ),
    ] {
        let before = fs::read(path(input)).unwrap();
        run(folder.path(), arguments).refuses_with_hint(2, "it cannot be written");
        assert_eq!(fs::read(path(input)).unwrap(), before, "{arguments}");
    }
    // Whatever its name says.
    fs::rename(path("a.pprec"), path("a.json")).unwrap();
    let before = fs::read(path("a.json")).unwrap();
    for arguments in [
        "diff a.json --vs b.pprec -o a.json --force",
        "diff b.pprec --vs a.json -o a.json --force",
    ] {
        run(folder.path(), arguments).refuses_with_hint(2, "it cannot be written");
        assert_eq!(fs::read(path("a.json")).unwrap(), before, "{arguments}");
    }
}

#[test]
fn what_cannot_be_read_is_no_misuse() {
    let folder = files();
    for arguments in [
        "import folded . -o out",
        "import folded none -o out",
        "import folded a.folded -o out --config none",
        "import folded a.folded -o out --config .",
        "export none -o out.svg",
        "diff a.pprec --vs none",
        "report none",
    ] {
        run(folder.path(), arguments).refuses_with_hint(1, "cannot read");
    }
}
