//! The layout of a tracepoint's record, from its `format` file in tracefs.

use std::path::Path;

/// No tracepoint has more fields.
const MAX_FIELDS: usize = 1024;

/// A tracepoint's id and the layout of its record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracepointFormat {
    /// The event's name.
    pub name: String,
    /// What `perf_event_open` takes as `config` for `PERF_TYPE_TRACEPOINT`.
    pub id: u64,
    /// The fields in order, those common to all events first.
    pub fields: Vec<TracepointField>,
}

/// A field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracepointField {
    /// Its name, without dimensions.
    pub name: String,
    /// Its type as declared, with dimensions behind, e.g. `char[16]`.
    pub kind: String,
    /// Bytes from the start of the record.
    pub offset: u32,
    /// Its bytes; 4 for `__data_loc`, whose word tells where the contents are.
    pub size: u32,
    /// Whether it is a signed integer.
    pub signed: bool,
}

impl TracepointField {
    /// Whether the field is a word that holds offset (low 16 bits) and length (high
    /// 16 bits) of contents elsewhere in the record.
    pub fn is_data_loc(&self) -> bool {
        self.kind.starts_with("__data_loc ") || self.kind.starts_with("__rel_loc ")
    }
}

impl TracepointFormat {
    /// Reads `events/GROUP/NAME/format` in the tracefs directory `tracefs`.
    pub fn load(tracefs: &Path, group: &str, name: &str) -> std::io::Result<Self> {
        let path = tracefs.join("events").join(group).join(name).join("format");
        let bytes = std::fs::read(&path)?;
        Self::parse(&String::from_utf8_lossy(&bytes)).ok_or_else(|| {
            std::io::Error::other(format!("{} is no tracepoint format", path.display()))
        })
    }

    /// Reads the text of a `format` file. A field that is not understood makes the
    /// whole unusable: better no layout than a wrong one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut format = Self::default();
        let mut id = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("name:") {
                format.name = name.trim().to_owned();
            } else if let Some(number) = line.strip_prefix("ID:") {
                id = Some(number.trim().parse().ok()?);
            } else if line.starts_with("print fmt:") {
                break;
            } else if let Some(field) = line.trim_start().strip_prefix("field:") {
                if format.fields.len() == MAX_FIELDS {
                    return None;
                }
                format.fields.push(parse_field(field)?);
            }
        }
        format.id = id?;
        (!format.name.is_empty()).then_some(format)
    }

    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&TracepointField> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// `char prev_comm[16]; offset:8; size:16; signed:0;`, with tabs between.
fn parse_field(text: &str) -> Option<TracepointField> {
    let mut parts = text.split(';').map(str::trim);
    let (name, kind) = parse_declaration(parts.next()?)?;
    let (mut offset, mut size, mut signed) = (None, None, false);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", number)) => offset = Some(number.parse().ok()?),
            Some(("size", number)) => size = Some(number.parse().ok()?),
            Some(("signed", number)) => signed = number == "1",
            _ => {}
        }
    }
    Some(TracepointField {
        name,
        kind,
        offset: offset?,
        size: size?,
        signed,
    })
}

/// Splits a C declaration in name and type: the name is the last word, dimensions
/// behind it belong to the type.
fn parse_declaration(text: &str) -> Option<(String, String)> {
    let (plain, dimensions) = match text.find('[') {
        // `__data_loc char[] name` has its brackets in the type.
        Some(at) if text.ends_with(']') => text.split_at(at),
        _ => (text, ""),
    };
    let plain = plain.trim_end();
    let start = plain
        .rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .map_or(0, |at| at + 1);
    let (kind, name) = plain.split_at_checked(start)?;
    let kind = kind.trim();
    if name.is_empty() || kind.is_empty() {
        return None;
    }
    Some((name.to_owned(), format!("{kind}{dimensions}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SWITCH: &str = include_str!("../../tests/fixtures/kernel/sched_switch.format");

    #[test]
    fn the_format_of_sched_switch_is_read() {
        let format = TracepointFormat::parse(SWITCH).unwrap();
        assert_eq!((format.name.as_str(), format.id), ("sched_switch", 316));
        assert_eq!(format.fields.len(), 11);
        let comm = format.field("prev_comm").unwrap();
        assert_eq!(
            (comm.kind.as_str(), comm.offset, comm.size),
            ("char[16]", 8, 16)
        );
        let state = format.field("prev_state").unwrap();
        assert_eq!(
            (state.kind.as_str(), state.offset, state.size, state.signed),
            ("long", 32, 8, true)
        );
        assert_eq!(format.field("nothing"), None);
    }

    #[test]
    fn declarations_of_every_shape_are_split() {
        for (text, name, kind) in [
            (
                "unsigned short common_type",
                "common_type",
                "unsigned short",
            ),
            ("unsigned long args[6]", "args", "unsigned long[6]"),
            ("const char * name", "name", "const char *"),
            ("void *ptr", "ptr", "void *"),
            ("__data_loc char[] str", "str", "__data_loc char[]"),
            ("struct x arr[2][3]", "arr", "struct x[2][3]"),
        ] {
            assert_eq!(
                parse_declaration(text),
                Some((name.to_owned(), kind.to_owned())),
                "{text}"
            );
        }
        for text in ["", "int", "[4]", "int *", "*x["] {
            assert_eq!(parse_declaration(text), None, "{text}");
        }
    }

    #[test]
    fn a_layout_that_is_not_understood_is_refused() {
        for damaged in [
            SWITCH.replace("ID: 316", "ID: x"),
            SWITCH.replace("ID: 316", ""),
            SWITCH.replace("offset:8;", "offset:-8;"),
            SWITCH.replace("size:16;", ""),
            String::new(),
        ] {
            assert_eq!(TracepointFormat::parse(&damaged), None);
        }
    }

    proptest! {
        #[test]
        fn hostile_text_never_panics(text in "(\tfield:[a-z *\\[\\];:0-9]{0,60}\n|\\PC{0,30}\n|ID: 1\n){0,8}") {
            let _ = TracepointFormat::parse(&text);
        }
    }
}
