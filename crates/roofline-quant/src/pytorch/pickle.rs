//! A machine for the pickles of state dicts. It builds values and runs nothing: a function of Python's is a name that is
//! known or refused.
//!
//! Values are numbers, ranges of the pickle or of a pool, so nothing nests and nothing is copied; every instruction adds
//! at most one, and instructions are counted.

use std::collections::HashMap;

use crate::Dtype;

/// The most instructions that are followed; a tensor takes about fifty.
const MOST_STEPS: usize = 4 << 20;
/// The most dimensions of a tensor.
const MOST_DIMENSIONS: usize = 8;
/// How deep a state dict may be packed into others.
const DEEPEST: usize = 3;
/// What a state dict is called by programs that save more than one.
const STATES: [&str; 4] = ["state_dict", "model_state_dict", "model", "module"];

/// A value on the stack.
#[derive(Clone, Copy, Debug)]
enum Value<'p> {
    /// None, a fraction, a list: nothing that a tensor is made of.
    Other,
    Int(i64),
    Text(&'p str),
    /// A range of the pool.
    Tuple(usize, usize),
    Dict(usize),
    Global(Global),
    Storage(usize),
    Tensor(usize),
}

/// A name of Python's that is known.
#[derive(Clone, Copy, Debug)]
enum Global {
    OrderedDict,
    /// The type of numbers comes with the storage.
    RebuildTensor,
    /// The type of numbers comes last.
    RebuildTensorOfType,
    RebuildParameter,
    /// Numbers of a type, or bytes.
    Storage(Option<Dtype>),
    Type(Dtype),
}

impl Global {
    fn named(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => Self::RebuildTensor,
            ("torch._utils", "_rebuild_tensor_v3") => Self::RebuildTensorOfType,
            ("torch._utils", "_rebuild_parameter") => Self::RebuildParameter,
            ("torch.storage", "UntypedStorage") => Self::Storage(None),
            ("torch", _) => match name.strip_suffix("Storage") {
                Some("Float") => Self::Storage(Some(Dtype::F32)),
                Some("Half") => Self::Storage(Some(Dtype::F16)),
                Some("BFloat16") => Self::Storage(Some(Dtype::Bf16)),
                Some("Double") => Self::Storage(Some(Dtype::F64)),
                Some("Long") => Self::Storage(Some(Dtype::I64)),
                Some("Int") => Self::Storage(Some(Dtype::I32)),
                Some("Short") => Self::Storage(Some(Dtype::I16)),
                Some("Char") => Self::Storage(Some(Dtype::I8)),
                Some("Byte") => Self::Storage(Some(Dtype::U8)),
                Some("Bool") => Self::Storage(Some(Dtype::Bool)),
                Some("Untyped") => Self::Storage(None),
                _ => Self::Type(match name {
                    "float8_e4m3fn" => Dtype::F8E4M3,
                    "float8_e5m2" => Dtype::F8E5M2,
                    "float8_e8m0fnu" => Dtype::F8E8M0,
                    "uint16" => Dtype::U16,
                    "uint32" => Dtype::U32,
                    "uint64" => Dtype::U64,
                    "float32" => Dtype::F32,
                    "float16" => Dtype::F16,
                    "bfloat16" => Dtype::Bf16,
                    _ => return None,
                }),
            },
            _ => return None,
        })
    }
}

/// Where a storage is.
#[derive(Clone, Copy, Debug)]
struct Storage<'p> {
    dtype: Option<Dtype>,
    key: &'p str,
}

/// A tensor, before anybody has looked whether the file has room for it.
#[derive(Clone, Debug)]
pub(super) struct Tensor<'p> {
    /// Which member of the archive it lies in.
    pub(super) key: &'p str,
    pub(super) dtype: Dtype,
    /// How many numbers lie before it.
    pub(super) offset: u64,
    pub(super) shape: Vec<u64>,
    pub(super) strides: Vec<u64>,
}

/// What a pickle built.
pub(super) struct Pickle<'p> {
    pool: Vec<Value<'p>>,
    dicts: Vec<Vec<(Value<'p>, Value<'p>)>>,
    storages: Vec<Storage<'p>>,
    tensors: Vec<Tensor<'p>>,
    top: Value<'p>,
}

impl<'p> Pickle<'p> {
    /// Follows a pickle to its end.
    pub(super) fn read(bytes: &'p [u8]) -> Result<Self, String> {
        let built =
            Self { pool: Vec::new(), dicts: Vec::new(), storages: Vec::new(), tensors: Vec::new(), top: Value::Other };
        let mut machine = Machine { left: bytes, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new(), built };
        for _ in 0..MOST_STEPS {
            if machine.step()? {
                return Ok(machine.built);
            }
        }
        Err(format!("its pickle has more than {MOST_STEPS} instructions"))
    }

    /// The tensors of the state dict: what was saved, or what a program's own checkpoint calls one.
    pub(super) fn state(&self) -> Result<Vec<(&'p str, Tensor<'p>)>, String> {
        let mut top = self.top;
        for _ in 0..DEEPEST {
            let Value::Dict(dict) = top else { break };
            let found = self.tensors_of(&self.dicts[dict])?;
            if !found.is_empty() {
                return Ok(found);
            }
            let named = self.dicts[dict].iter().filter(
                |(key, value)| matches!((key, value), (Value::Text(key), Value::Dict(_)) if STATES.contains(key)),
            );
            match &named.collect::<Vec<_>>()[..] {
                [(_, one)] => top = *one,
                _ => break,
            }
        }
        Err(format!("it holds no state dict: names with tensors, alone or as {}", STATES.join(", ")))
    }

    /// The tensors of a dict. Numbers and texts among them are no weights; dicts would be left out silently.
    fn tensors_of(&self, dict: &[(Value<'p>, Value<'p>)]) -> Result<Vec<(&'p str, Tensor<'p>)>, String> {
        let mut found = Vec::new();
        for (key, value) in dict {
            match (key, value) {
                (Value::Text(name), Value::Tensor(at)) => found.push((*name, self.tensors[*at].clone())),
                (_, Value::Tensor(_)) => return Err("it holds a tensor without a name".to_owned()),
                _ => {}
            }
        }
        let nested = dict.iter().find(|(_, value)| matches!(value, Value::Dict(_) | Value::Tuple(..)));
        match nested {
            Some((Value::Text(name), _)) if !found.is_empty() => {
                Err(format!("`{name}` is no tensor, and lies among tensors"))
            }
            _ => Ok(found),
        }
    }

    fn tuple(&self, value: Value<'p>) -> Option<&[Value<'p>]> {
        match value {
            Value::Tuple(from, until) => Some(&self.pool[from..until]),
            _ => None,
        }
    }

    /// A tuple of sizes.
    fn sizes(&self, value: Value<'p>) -> Option<Vec<u64>> {
        let size = |value: &Value<'p>| match value {
            Value::Int(size) => u64::try_from(*size).ok(),
            _ => None,
        };
        // Sizes are copied, so one long tuple must not be worth many.
        self.tuple(value).filter(|sizes| sizes.len() <= MOST_DIMENSIONS)?.iter().map(size).collect()
    }

    /// What a known function makes of its arguments.
    fn call(&mut self, function: Global, arguments: Value<'p>) -> Option<Value<'p>> {
        let arguments = self.tuple(arguments)?;
        match function {
            // With pairs to begin with it would be another way to write a dict, which `torch.save` does not use.
            Global::OrderedDict if arguments.is_empty() => {
                self.dicts.push(Vec::new());
                Some(Value::Dict(self.dicts.len() - 1))
            }
            Global::RebuildParameter => arguments.first().copied().filter(|value| matches!(value, Value::Tensor(_))),
            Global::RebuildTensor | Global::RebuildTensorOfType => {
                let [Value::Storage(storage), Value::Int(offset), shape, strides, more @ ..] = arguments else {
                    return None;
                };
                let storage = self.storages[*storage];
                let dtype = match (function, more) {
                    (Global::RebuildTensor, _) => storage.dtype?,
                    (_, [_, _, Value::Global(Global::Type(dtype)), ..]) => *dtype,
                    _ => return None,
                };
                let (shape, strides) = (self.sizes(*shape)?, self.sizes(*strides)?);
                if shape.len() != strides.len() {
                    return None;
                }
                let offset = u64::try_from(*offset).ok()?;
                self.tensors.push(Tensor { key: storage.key, dtype, offset, shape, strides });
                Some(Value::Tensor(self.tensors.len() - 1))
            }
            _ => None,
        }
    }

    /// A storage, by what stands in the pickle for it.
    fn storage(&mut self, id: Value<'p>) -> Option<Value<'p>> {
        let [Value::Text("storage"), Value::Global(Global::Storage(dtype)), Value::Text(key), ..] = self.tuple(id)?
        else {
            return None;
        };
        let storage = Storage { dtype: *dtype, key };
        self.storages.push(storage);
        Some(Value::Storage(self.storages.len() - 1))
    }
}

/// A pickle on its way.
struct Machine<'p> {
    left: &'p [u8],
    stack: Vec<Value<'p>>,
    /// Where on the stack what is gathered begins.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'p>>,
    built: Pickle<'p>,
}

/// What a damaged pickle is called.
const BROKEN: &str = "its pickle is damaged";

impl<'p> Machine<'p> {
    /// Follows one instruction; true at the end. Their names are those of Python's `pickletools`.
    fn step(&mut self) -> Result<bool, String> {
        let code = self.take(1)?[0];
        match code {
            // PROTO: what later protocols add is refused where it is used.
            0x80 => drop(self.take(1)?),
            // FRAME.
            0x95 => drop(self.take(8)?),
            b'.' => {
                self.built.top = self.pop()?;
                return Ok(true);
            }
            b'(' => self.marks.push(self.stack.len()),
            // NONE, NEWTRUE, NEWFALSE, and lists, whose content nobody asks for.
            b'N' | 0x88 | 0x89 | b']' => self.stack.push(Value::Other),
            b'G' => {
                self.take(8)?;
                self.stack.push(Value::Other);
            }
            b'K' => self.integer(1)?,
            b'M' => self.integer(2)?,
            b'J' => {
                let value = i32::from_le_bytes(self.array()?);
                self.stack.push(Value::Int(i64::from(value)));
            }
            // LONG1.
            0x8a => self.long()?,
            // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, and Python 2's SHORT_BINSTRING.
            b'X' => self.text(4)?,
            0x8c | b'U' => self.text(1)?,
            0x8d => self.text(8)?,
            b')' => self.tuple(0)?,
            0x85..=0x87 => self.tuple(usize::from(code - 0x84))?,
            b't' => {
                let from = self.mark()?;
                self.tuple(self.stack.len() - from)?;
            }
            b'}' => {
                self.built.dicts.push(Vec::new());
                self.stack.push(Value::Dict(self.built.dicts.len() - 1));
            }
            // POP, and APPEND and APPENDS to a list.
            b'0' | b'a' => drop(self.pop()?),
            b'e' => {
                let from = self.mark()?;
                self.stack.truncate(from);
            }
            b's' => self.set(self.stack.len().checked_sub(2).ok_or(BROKEN)?)?,
            b'u' => {
                let from = self.mark()?;
                self.set(from)?;
            }
            b'q' | b'h' | b'r' | b'j' | 0x94 => self.remember(code)?,
            b'c' | 0x93 => self.global(code)?,
            // REDUCE, BUILD, BINPERSID.
            b'R' | b'b' | b'Q' => self.build(code)?,
            other => return Err(format!("its pickle has the instruction {other:#04x}, which no state dict needs")),
        }
        Ok(false)
    }

    fn take(&mut self, count: usize) -> Result<&'p [u8], String> {
        let (taken, left) = self.left.split_at_checked(count).ok_or(BROKEN)?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, left) = self.left.split_first_chunk().ok_or(BROKEN)?;
        self.left = left;
        Ok(*taken)
    }

    /// An unsigned number of so many bytes.
    fn number(&mut self, size: usize) -> Result<u64, String> {
        Ok(self.take(size)?.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn integer(&mut self, size: usize) -> Result<(), String> {
        let value = self.number(size)?;
        self.stack.push(Value::Int(value as i64));
        Ok(())
    }

    /// A signed number of as many bytes as the first says; what does not fit is none that a size could have.
    fn long(&mut self) -> Result<(), String> {
        let size = usize::from(self.take(1)?[0]);
        let bytes = self.take(size)?;
        let fill = if bytes.last().is_some_and(|last| last & 0x80 != 0) { 0xff } else { 0 };
        let mut wide = [fill; 8];
        self.stack.push(match wide.get_mut(..size) {
            Some(low) => {
                low.copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(wide))
            }
            None => Value::Other,
        });
        Ok(())
    }

    fn text(&mut self, size: usize) -> Result<(), String> {
        let length = usize::try_from(self.number(size)?).map_err(|_| BROKEN)?;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| BROKEN)?;
        self.stack.push(Value::Text(text));
        Ok(())
    }

    fn pop(&mut self) -> Result<Value<'p>, String> {
        // What stands before a mark belongs to whoever set it.
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(BROKEN.to_owned());
        }
        self.stack.pop().ok_or_else(|| BROKEN.to_owned())
    }

    fn mark(&mut self) -> Result<usize, String> {
        self.marks.pop().filter(|from| *from <= self.stack.len()).ok_or_else(|| BROKEN.to_owned())
    }

    /// The last `count` values as one.
    fn tuple(&mut self, count: usize) -> Result<(), String> {
        let from = self.stack.len().checked_sub(count).ok_or(BROKEN)?;
        let begin = self.built.pool.len();
        self.built.pool.extend(self.stack.drain(from..));
        self.stack.push(Value::Tuple(begin, self.built.pool.len()));
        Ok(())
    }

    /// Puts the pairs from there on into the dict before them.
    fn set(&mut self, from: usize) -> Result<(), String> {
        let pairs = self.stack.split_off(from);
        let (pairs, rest) = pairs.as_chunks::<2>();
        let Some(Value::Dict(dict)) = self.stack.last().filter(|_| rest.is_empty()) else {
            return Err(BROKEN.to_owned());
        };
        self.built.dicts[*dict].extend(pairs.iter().map(|[key, value]| (*key, *value)));
        Ok(())
    }

    /// BINPUT, BINGET, LONG_BINPUT, LONG_BINGET, MEMOIZE.
    fn remember(&mut self, code: u8) -> Result<(), String> {
        let at = match code {
            b'q' | b'h' => u32::from(self.take(1)?[0]),
            0x94 => self.memo.len() as u32,
            _ => u32::from_le_bytes(self.array()?),
        };
        if matches!(code, b'h' | b'j') {
            self.stack.push(*self.memo.get(&at).ok_or(BROKEN)?);
        } else {
            self.memo.insert(at, *self.stack.last().ok_or(BROKEN)?);
        }
        Ok(())
    }

    /// GLOBAL and STACK_GLOBAL: a name, and nothing that runs.
    fn global(&mut self, code: u8) -> Result<(), String> {
        let (module, name) = if code == b'c' {
            (self.line()?, self.line()?)
        } else {
            let (Value::Text(name), Value::Text(module)) = (self.pop()?, self.pop()?) else {
                return Err(BROKEN.to_owned());
            };
            (module, name)
        };
        let global = Global::named(module, name).ok_or_else(|| {
            let shown: String = format!("{module}.{name}").chars().take(120).collect();
            format!("its pickle asks Python for `{}`, which no state dict needs: it was not run", shown.escape_debug())
        })?;
        self.stack.push(Value::Global(global));
        Ok(())
    }

    fn line(&mut self) -> Result<&'p str, String> {
        let end = self.left.iter().position(|byte| *byte == b'\n').ok_or(BROKEN)?;
        let line = self.take(end)?;
        self.take(1)?;
        std::str::from_utf8(line).map_err(|_| BROKEN.to_owned())
    }

    /// A function's result, an object's attributes, or a storage.
    fn build(&mut self, code: u8) -> Result<(), String> {
        let last = self.pop()?;
        let built = match code {
            b'Q' => self.built.storage(last).ok_or("its pickle has a storage of an unknown kind")?,
            // A state dict has the versions of its modules as an attribute; nothing else has any.
            b'b' => match self.pop()? {
                dict @ Value::Dict(_) => dict,
                _ => return Err("its pickle sets attributes of what is no dict".to_owned()),
            },
            _ => match self.pop()? {
                Value::Global(function) => {
                    self.built.call(function, last).ok_or("its pickle has a tensor of an unknown kind")?
                }
                _ => return Err("its pickle calls what is no function".to_owned()),
            },
        };
        self.stack.push(built);
        Ok(())
    }
}
