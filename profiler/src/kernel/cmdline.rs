//! The parameters the kernel was booted with, split as the kernel splits them
//! (`next_arg` in `lib/cmdline.c`, `parse_args` in `kernel/params.c`).

use std::fmt;

/// Boot parameters in the order given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootParameters(Vec<(String, Option<String>)>);

impl BootParameters {
    /// Splits the text of `/proc/cmdline`. What follows a bare `--` belongs to init
    /// and is left out.
    pub fn parse(text: &str) -> Self {
        let mut parameters = Vec::new();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let (name, value, after) = next_argument(rest);
            rest = after.trim_start();
            if name == "--" && value.is_none() {
                break;
            }
            if !name.is_empty() {
                parameters.push((name.to_owned(), value.map(str::to_owned)));
            }
        }
        Self(parameters)
    }

    /// Every value given for `name`, in order; the empty string where it stands
    /// alone. As for the kernel, `-` and `_` in a name are the same.
    pub fn values<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(given, _)| same_name(given, name))
            .map(|(_, value)| value.as_deref().unwrap_or_default())
    }

    /// The last value given for `name`, which is the one most parameters keep.
    pub fn get<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.values(name).next_back()
    }

    /// All parameters: name, and value where there is a `=`.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
    }
}

impl fmt::Display for BootParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            match value {
                Some(value) if value.contains(char::is_whitespace) => {
                    write!(f, "{space}{name}=\"{value}\"")?;
                }
                Some(value) => write!(f, "{space}{name}={value}")?,
                None => write!(f, "{space}{name}")?,
            }
        }
        Ok(())
    }
}

fn same_name(given: &str, name: &str) -> bool {
    let dash = |byte: u8| if byte == b'-' { b'_' } else { byte };
    given.bytes().map(dash).eq(name.bytes().map(dash))
}

/// The first argument of `text`, and what follows it.
fn next_argument(text: &str) -> (&str, Option<&str>, &str) {
    let (text, quoted) = match text.strip_prefix('"') {
        Some(inner) => (inner, true),
        None => (text, false),
    };
    let mut in_quotes = quoted;
    let mut equals = None;
    let mut end = text.len();
    for (at, character) in text.char_indices() {
        if character.is_ascii_whitespace() && !in_quotes {
            end = at;
            break;
        }
        // A `=` at the very start is not a separator.
        if character == '=' && equals.is_none() && at > 0 {
            equals = Some(at);
        }
        if character == '"' {
            in_quotes = !in_quotes;
        }
    }
    let (argument, after) = text.split_at(end);
    let unquoted = if quoted {
        argument.strip_suffix('"').unwrap_or(argument)
    } else {
        argument
    };
    match equals.and_then(|at| Some((unquoted.get(..at)?, unquoted.get(at + 1..)?))) {
        None => (unquoted, None, after),
        Some((name, value)) => {
            let value = match value.strip_prefix('"') {
                Some(inner) => inner.strip_suffix('"').unwrap_or(inner),
                None => value,
            };
            (name, Some(value), after)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn arguments_are_split_as_the_kernel_does() {
        let text = "BOOT_IMAGE=/vmlinuz root=UUID=1-2 ro quiet \"dyndbg=file a.c +p\" \
                    foo=\"a b\" preempt=full kernel.x-y=1 preempt=none =odd\t empty= -- preempt=lazy";
        let parameters = BootParameters::parse(text);
        assert_eq!(parameters.get("root"), Some("UUID=1-2"));
        assert_eq!(parameters.get("ro"), Some(""));
        assert_eq!(parameters.get("dyndbg"), Some("file a.c +p"));
        assert_eq!(parameters.get("foo"), Some("a b"));
        assert_eq!(
            parameters.values("preempt").collect::<Vec<_>>(),
            ["full", "none"]
        );
        assert_eq!(parameters.get("preempt"), Some("none"));
        assert_eq!(parameters.get("kernel.x_y"), Some("1"));
        assert_eq!(parameters.get("empty"), Some(""));
        assert_eq!(parameters.get("=odd"), Some(""));
        assert_eq!(parameters.get("nothing"), None);
        assert_eq!(BootParameters::parse(" \n"), BootParameters::default());
    }

    proptest! {
        #[test]
        fn any_text_is_split_without_loss_of_plain_words(words in prop::collection::vec("[a-z_.]{1,8}(=[a-z0-9,]{0,8})?", 0..8)) {
            let parameters = BootParameters::parse(&words.join("  "));
            prop_assert_eq!(parameters.to_string(), words.join(" "));
        }

        #[test]
        fn hostile_text_never_panics(text in "\\PC{0,200}|[\"= \\-a]{0,40}") {
            let parameters = BootParameters::parse(&text);
            prop_assert!(parameters.iter().count() <= text.len());
        }
    }
}
