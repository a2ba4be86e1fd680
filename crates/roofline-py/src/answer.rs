//! An answer as Python's plain objects, straight from its type.
//!
//! What comes out equals what a reader of the answer in JSON has, to the last bit: fields in their order, numbers of 64 bit as
//! they are, and nothing where JSON has no number for a value. Texts are written for whoever calls.

use std::fmt;

use pyo3::{
    IntoPyObjectExt,
    prelude::*,
    types::{PyDict, PyList, PyString},
};
use roofline_core::wording;
use serde::{
    Serialize, Serializer,
    ser::{
        Error as _, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
        SerializeTupleStruct, SerializeTupleVariant,
    },
};

/// A value as an object.
pub(crate) fn object<'py, T: Serialize + ?Sized>(py: Python<'py>, value: &T) -> PyResult<Bound<'py, PyAny>> {
    value.serialize(Objects(py)).map_err(|Broken(error)| error)
}

/// What Python refused.
#[derive(Debug)]
pub(crate) struct Broken(PyErr);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Broken {}

impl serde::ser::Error for Broken {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(pyo3::exceptions::PyRuntimeError::new_err(message.to_string()))
    }
}

impl From<PyErr> for Broken {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}

type Made<'py> = Result<Bound<'py, PyAny>, Broken>;

/// Makes objects.
#[derive(Clone, Copy)]
struct Objects<'py>(Python<'py>);

impl<'py> Objects<'py> {
    fn list(self, variant: Option<&'static str>) -> List<'py> {
        List { objects: self, items: Vec::new(), variant }
    }

    fn fields(self, variant: Option<&'static str>) -> Fields<'py> {
        Fields { objects: self, held: PyDict::new(self.0), name: None, variant }
    }

    /// A value under the name of the variant that it is of.
    fn of_variant(self, value: Bound<'py, PyAny>, variant: Option<&'static str>) -> Made<'py> {
        let Some(variant) = variant else { return Ok(value) };
        let fields = PyDict::new(self.0);
        fields.set_item(PyString::intern(self.0, variant), value)?;
        Ok(fields.into_any())
    }
}

impl<'py> Serializer for Objects<'py> {
    type Ok = Bound<'py, PyAny>;
    type Error = Broken;
    type SerializeSeq = List<'py>;
    type SerializeTuple = List<'py>;
    type SerializeTupleStruct = List<'py>;
    type SerializeTupleVariant = List<'py>;
    type SerializeMap = Fields<'py>;
    type SerializeStruct = Fields<'py>;
    type SerializeStructVariant = Fields<'py>;

    fn serialize_bool(self, value: bool) -> Made<'py> {
        Ok(value.into_bound_py_any(self.0)?)
    }

    fn serialize_i8(self, value: i8) -> Made<'py> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Made<'py> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Made<'py> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Made<'py> {
        Ok(value.into_bound_py_any(self.0)?)
    }

    fn serialize_u8(self, value: u8) -> Made<'py> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Made<'py> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Made<'py> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Made<'py> {
        Ok(value.into_bound_py_any(self.0)?)
    }

    /// JSON has the shortest digits that tell it from other numbers of 32 bit, and those are read as 64 bit.
    fn serialize_f32(self, value: f32) -> Made<'py> {
        let digits = serde_json::to_string(&value).ok().and_then(|digits| digits.parse().ok());
        self.serialize_f64(digits.unwrap_or_else(|| value.into()))
    }

    fn serialize_f64(self, value: f64) -> Made<'py> {
        if value.is_finite() { Ok(value.into_bound_py_any(self.0)?) } else { self.serialize_none() }
    }

    fn serialize_char(self, value: char) -> Made<'py> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Made<'py> {
        Ok(PyString::new(self.0, &wording::arguments(value)).into_any())
    }

    fn serialize_bytes(self, value: &[u8]) -> Made<'py> {
        Ok(PyList::new(self.0, value)?.into_any())
    }

    fn serialize_none(self) -> Made<'py> {
        Ok(self.0.None().into_bound(self.0))
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Made<'py> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Made<'py> {
        self.serialize_none()
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Made<'py> {
        self.serialize_none()
    }

    fn serialize_unit_variant(self, _name: &'static str, _at: u32, variant: &'static str) -> Made<'py> {
        Ok(PyString::intern(self.0, variant).into_any())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Made<'py> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _at: u32,
        variant: &'static str,
        value: &T,
    ) -> Made<'py> {
        self.of_variant(value.serialize(self)?, Some(variant))
    }

    fn serialize_seq(self, _length: Option<usize>) -> Result<List<'py>, Broken> {
        Ok(self.list(None))
    }

    fn serialize_tuple(self, _length: usize) -> Result<List<'py>, Broken> {
        Ok(self.list(None))
    }

    fn serialize_tuple_struct(self, _name: &'static str, _length: usize) -> Result<List<'py>, Broken> {
        Ok(self.list(None))
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _at: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<List<'py>, Broken> {
        Ok(self.list(Some(variant)))
    }

    fn serialize_map(self, _length: Option<usize>) -> Result<Fields<'py>, Broken> {
        Ok(self.fields(None))
    }

    fn serialize_struct(self, _name: &'static str, _length: usize) -> Result<Fields<'py>, Broken> {
        Ok(self.fields(None))
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _at: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Fields<'py>, Broken> {
        Ok(self.fields(Some(variant)))
    }
}

/// A list that is being filled.
struct List<'py> {
    objects: Objects<'py>,
    items: Vec<Bound<'py, PyAny>>,
    variant: Option<&'static str>,
}

impl<'py> List<'py> {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Broken> {
        self.items.push(value.serialize(self.objects)?);
        Ok(())
    }

    fn done(self) -> Made<'py> {
        let list = PyList::new(self.objects.0, self.items)?.into_any();
        self.objects.of_variant(list, self.variant)
    }
}

/// A dictionary that is being filled.
struct Fields<'py> {
    objects: Objects<'py>,
    held: Bound<'py, PyDict>,
    /// The key whose value comes next.
    name: Option<Bound<'py, PyString>>,
    variant: Option<&'static str>,
}

impl<'py> Fields<'py> {
    fn put<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Broken> {
        let value = value.serialize(self.objects)?;
        // The same few names over and over: one object for each.
        Ok(self.held.set_item(PyString::intern(self.objects.0, name), value)?)
    }

    fn done(self) -> Made<'py> {
        self.objects.of_variant(self.held.into_any(), self.variant)
    }
}

impl<'py> SerializeMap for Fields<'py> {
    type Ok = Bound<'py, PyAny>;
    type Error = Broken;

    /// Keys of JSON are texts; a number is written as one.
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Broken> {
        self.name = Some(key.serialize(self.objects)?.str()?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Broken> {
        let name = self.name.take().ok_or_else(|| Broken::custom("a value without a key"))?;
        Ok(self.held.set_item(name, value.serialize(self.objects)?)?)
    }

    fn end(self) -> Made<'py> {
        self.done()
    }
}

macro_rules! lists {
    ($($filled:ident :: $method:ident),*) => {
        $(impl<'py> $filled for List<'py> {
            type Ok = Bound<'py, PyAny>;
            type Error = Broken;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Broken> {
                self.push(value)
            }

            fn end(self) -> Made<'py> {
                self.done()
            }
        })*
    };
}

lists!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);

macro_rules! dictionaries {
    ($($filled:ident),*) => {
        $(impl<'py> $filled for Fields<'py> {
            type Ok = Bound<'py, PyAny>;
            type Error = Broken;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Broken> {
                self.put(name, value)
            }

            fn end(self) -> Made<'py> {
                self.done()
            }
        })*
    };
}

dictionaries!(SerializeStruct, SerializeStructVariant);
