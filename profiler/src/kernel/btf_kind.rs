//! The kinds of BTF types and how long each is.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int,
    Ptr,
    Array,
    Struct,
    Union,
    Enum,
    Fwd,
    Typedef,
    /// `volatile`, `const`, `restrict` and type tags: transparent here.
    Qualifier,
    Func,
    FuncProto,
    Var,
    Datasec,
    Float,
    DeclTag,
    Enum64,
    /// One this reader does not know, whose length BTF itself tells.
    Other,
}

impl Kind {
    pub(super) fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Int,
            2 => Self::Ptr,
            3 => Self::Array,
            4 => Self::Struct,
            5 => Self::Union,
            6 => Self::Enum,
            7 => Self::Fwd,
            8 => Self::Typedef,
            9..=11 | 18 => Self::Qualifier,
            12 => Self::Func,
            13 => Self::FuncProto,
            14 => Self::Var,
            15 => Self::Datasec,
            16 => Self::Float,
            17 => Self::DeclTag,
            19 => Self::Enum64,
            _ => return None,
        })
    }

    /// Bytes behind the 12 every type has, for the kinds known here.
    pub(super) fn trailer(self, elements: usize) -> usize {
        match self {
            Self::Int | Self::Var | Self::DeclTag => 4,
            Self::Array => 12,
            Self::Struct | Self::Union | Self::Datasec | Self::Enum64 => 12 * elements,
            Self::Enum | Self::FuncProto => 8 * elements,
            Self::Ptr
            | Self::Fwd
            | Self::Typedef
            | Self::Qualifier
            | Self::Func
            | Self::Float
            | Self::Other => 0,
        }
    }
}
