//! Independent readers of what is exported.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "test code"
)]

use std::env;
use std::path::PathBuf;

/// Where a program is, if it is installed.
pub fn installed(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}

/// A protobuf message, by field numbers.
pub struct Protobuf<'b>(Vec<(u64, Field<'b>)>);

enum Field<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return value;
        }
    }
    panic!("a varint of more than 64 bits");
}

impl<'b> Protobuf<'b> {
    pub fn parse(mut bytes: &'b [u8]) -> Self {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let field = match tag & 7 {
                0 => Field::Number(varint(&mut bytes)),
                2 => {
                    let length = usize::try_from(varint(&mut bytes)).unwrap();
                    let (field, rest) = bytes.split_at(length);
                    bytes = rest;
                    Field::Bytes(field)
                }
                other => panic!("wire type {other}"),
            };
            fields.push((tag >> 3, field));
        }
        Self(fields)
    }

    /// A number; 0, which is not written, when it is missing.
    pub fn number(&self, id: u64) -> u64 {
        self.0
            .iter()
            .find_map(|(field, value)| match value {
                Field::Number(number) if *field == id => Some(*number),
                _ => None,
            })
            .unwrap_or(0)
    }

    /// Strings or messages.
    pub fn all(&self, id: u64) -> impl Iterator<Item = &'b [u8]> {
        self.0.iter().filter_map(move |(field, value)| match value {
            Field::Bytes(bytes) if *field == id => Some(*bytes),
            _ => None,
        })
    }

    /// Repeated numbers, packed.
    pub fn numbers(&self, id: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for mut bytes in self.all(id) {
            while !bytes.is_empty() {
                numbers.push(varint(&mut bytes));
            }
        }
        numbers
    }
}

/// A table with a header line.
pub struct Csv {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Csv {
    pub fn parse(text: &str) -> Self {
        let mut rows = vec![vec![String::new()]];
        let (mut quoted, mut chars) = (false, text.chars().peekable());
        while let Some(c) = chars.next() {
            let row = rows.last_mut().unwrap();
            match c {
                '"' if quoted && chars.peek() == Some(&'"') => {
                    chars.next();
                    row.last_mut().unwrap().push('"');
                }
                '"' => quoted = !quoted,
                ',' if !quoted => row.push(String::new()),
                '\r' if !quoted => {
                    assert_eq!(chars.next(), Some('\n'));
                    rows.push(vec![String::new()]);
                }
                c => row.last_mut().unwrap().push(c),
            }
        }
        assert!(!quoted);
        assert_eq!(rows.pop(), Some(vec![String::new()]));
        let columns = rows.remove(0);
        assert!(rows.iter().all(|row| row.len() == columns.len()));
        Self { columns, rows }
    }

    /// The sum of a column's whole numbers; an empty field is none.
    pub fn sum(&self, column: &str) -> u64 {
        let at = self.columns.iter().position(|name| name == column).unwrap();
        self.rows
            .iter()
            .map(|row| &row[at])
            .filter(|field| !field.is_empty())
            .map(|field| field.parse::<u64>().unwrap())
            .sum()
    }
}
