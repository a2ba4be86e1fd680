//! The types of stored numbers that tensor files name.

use std::fmt;

/// What the bytes of a stored tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Dtype {
    Bool,
    U8,
    I8,
    F8E4M3,
    F8E5M2,
    F8E8M0,
    U16,
    I16,
    F16,
    Bf16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
}

impl Dtype {
    const NAMES: [(Self, &'static str, usize); 16] = [
        (Self::Bool, "BOOL", 1),
        (Self::U8, "U8", 1),
        (Self::I8, "I8", 1),
        (Self::F8E4M3, "F8_E4M3", 1),
        (Self::F8E5M2, "F8_E5M2", 1),
        (Self::F8E8M0, "F8_E8M0", 1),
        (Self::U16, "U16", 2),
        (Self::I16, "I16", 2),
        (Self::F16, "F16", 2),
        (Self::Bf16, "BF16", 2),
        (Self::U32, "U32", 4),
        (Self::I32, "I32", 4),
        (Self::F32, "F32", 4),
        (Self::U64, "U64", 8),
        (Self::I64, "I64", 8),
        (Self::F64, "F64", 8),
    ];

    /// The name in a safetensors header.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        Self::NAMES[self as usize].2
    }

    /// The type of that name in a safetensors header.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known, _)| *known == name).map(|(dtype, ..)| *dtype)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_types() {
        for (at, (dtype, name, _)) in Dtype::NAMES.iter().enumerate() {
            assert_eq!(*dtype as usize, at);
            assert_eq!(Dtype::named(name), Some(*dtype));
        }
    }
}
