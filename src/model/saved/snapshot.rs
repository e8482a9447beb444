//! A trained model, or the state of a training, as named arrays in the safetensors format.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use crate::error::{Error, Result};
use crate::frame::Dims;
use crate::model::posterior::Posterior;

/// Named arrays, sorted by name, so that equal states give equal bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot(BTreeMap<String, Array>);

#[derive(Debug, Clone, PartialEq)]
struct Array {
    shape: Vec<usize>,
    numbers: TypedNumbers,
}

#[derive(Debug, Clone, PartialEq)]
enum TypedNumbers {
    F32s(Vec<f32>),
    F64s(Vec<f64>),
    U32s(Vec<u32>),
    /// UTF-8.
    Text(Vec<u8>),
}

impl Snapshot {
    /// Adds f32s of this shape.
    pub fn f32s(&mut self, name: String, shape: Vec<usize>, values: Vec<f32>) {
        self.0.insert(name, Array { shape, numbers: TypedNumbers::F32s(values) });
    }

    /// Adds numbers that need 64 bits.
    pub fn f64s(&mut self, name: String, values: Vec<f64>) {
        let shape = vec![values.len()];
        self.0.insert(name, Array { shape, numbers: TypedNumbers::F64s(values) });
    }

    /// Adds unsigned integers.
    pub fn u32s(&mut self, name: String, values: Vec<u32>) {
        let shape = vec![values.len()];
        self.0.insert(name, Array { shape, numbers: TypedNumbers::U32s(values) });
    }

    /// Adds a text.
    pub fn text(&mut self, name: String, text: &str) {
        let bytes = text.as_bytes().to_vec();
        let shape = vec![bytes.len()];
        self.0.insert(name, Array { shape, numbers: TypedNumbers::Text(bytes) });
    }

    /// Adds all arrays of another snapshot, with `prefix` in front of each name.
    pub fn merge(&mut self, prefix: &str, other: &Self) {
        self.0
            .extend(other.0.iter().map(|(name, array)| (format!("{prefix}{name}"), array.clone())));
    }

    /// The arrays that [`Snapshot::merge`] added with `prefix`, with the prefix removed.
    #[must_use]
    pub fn part(&self, prefix: &str) -> Self {
        let own = self.0.iter().filter_map(|(name, array)| {
            Some((name.strip_prefix(prefix)?.to_owned(), array.clone()))
        });
        Self(own.collect())
    }

    /// All arrays but those that [`Snapshot::merge`] added with this prefix.
    #[must_use]
    pub fn without(mut self, prefix: &str) -> Self {
        self.0.retain(|name, _| !name.starts_with(prefix));
        self
    }

    /// The names of all arrays, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces all f32s `v` by `v + share (o - v)`, where `o` is the same value in another snapshot of the same model.
    pub fn approach(&mut self, other: &Self, share: f64) {
        for (array, other) in self.0.values_mut().zip(other.0.values()) {
            if let (TypedNumbers::F32s(values), TypedNumbers::F32s(others)) =
                (&mut array.numbers, &other.numbers)
            {
                values.iter_mut().zip(others).for_each(|(v, o)| *v += share as f32 * (o - *v));
            }
        }
    }

    /// How many f32s there are in all.
    #[must_use]
    pub fn n_f32s(&self) -> usize {
        let f32s = |array: &Array| match &array.numbers {
            TypedNumbers::F32s(values) => values.len(),
            _ => 0,
        };
        self.0.values().map(f32s).sum()
    }

    /// The f32s of that name, if there are any.
    #[must_use]
    pub fn find_f32s(&self, name: &str) -> Option<&[f32]> {
        match &self.0.get(name)?.numbers {
            TypedNumbers::F32s(values) => Some(values),
            _ => None,
        }
    }

    /// Every array of f32s whose name begins with `prefix`: (the rest of the name, shape, numbers).
    pub fn f32s_with_prefix(&self, prefix: &str) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        self.0.iter().filter_map(move |(name, array)| match &array.numbers {
            TypedNumbers::F32s(values) => {
                Some((name.strip_prefix(prefix)?, array.shape.as_slice(), values.as_slice()))
            }
            _ => None,
        })
    }

    /// The `n` f32s of that name.
    ///
    /// # Errors
    /// When no array has that name, or it has another number of values.
    pub fn take_f32s(&self, name: &str, n: usize) -> Result<Vec<f32>> {
        let found = self.find_f32s(name).filter(|values| values.len() == n);
        found.map(<[f32]>::to_vec).ok_or_else(|| self.another(name, n))
    }

    /// The f32s of that name and shape.
    ///
    /// # Errors
    /// When no array has that name, or it has another shape.
    pub fn take_array(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let n = shape.iter().product();
        match self.0.get(name) {
            Some(array) if array.shape == shape => self.take_f32s(name, n),
            _ => Err(self.another(name, n)),
        }
    }

    /// The numbers of that name.
    ///
    /// # Errors
    /// When no array has that name.
    pub fn take_f64s(&self, name: &str) -> Result<Vec<f64>> {
        match self.0.get(name).map(|array| &array.numbers) {
            Some(TypedNumbers::F64s(values)) => Ok(values.clone()),
            _ => Err(self.another(name, 0)),
        }
    }

    /// The `n` numbers of that name.
    ///
    /// # Errors
    /// When no array has that name, or it has another number of values.
    pub fn take_n_f64s(&self, name: &str, n: usize) -> Result<Vec<f64>> {
        let found = self.take_f64s(name).ok().filter(|values| values.len() == n);
        found.ok_or_else(|| self.another(name, n))
    }

    /// The posterior of that name, for these numbers of instances and classes.
    ///
    /// # Errors
    /// When no array has that name, or it has another shape.
    pub fn take_posterior(&self, name: &str, dims: Dims) -> Result<Posterior> {
        let mut posterior = Posterior::zeros(dims.instances, dims.classes);
        let values = self.take_n_f64s(name, posterior.values().len())?;
        posterior.values_mut().copy_from_slice(&values);
        Ok(posterior)
    }

    /// The text of that name.
    ///
    /// # Errors
    /// When no text has that name.
    pub fn take_text(&self, name: &str) -> Result<String> {
        match self.0.get(name).map(|array| &array.numbers) {
            Some(TypedNumbers::Text(bytes)) => {
                String::from_utf8(bytes.clone()).map_err(|_| self.another(name, 0))
            }
            _ => Err(self.another(name, 0)),
        }
    }

    /// The `n` unsigned integers of that name.
    ///
    /// # Errors
    /// When no array has that name, or it has another number of values.
    pub fn take_u32s(&self, name: &str, n: usize) -> Result<Vec<u32>> {
        let found = self.u32s_of(name).ok().filter(|values| values.len() == n);
        found.ok_or_else(|| self.another(name, n))
    }

    /// The unsigned integers of that name, however many.
    ///
    /// # Errors
    /// When no array has that name.
    pub fn u32s_of(&self, name: &str) -> Result<Vec<u32>> {
        match self.0.get(name).map(|array| &array.numbers) {
            Some(TypedNumbers::U32s(values)) => Ok(values.clone()),
            _ => Err(self.another(name, 0)),
        }
    }

    /// The error for a snapshot that does not hold the `n` numbers of that name.
    pub(crate) fn another(&self, name: &str, n: usize) -> Error {
        let found =
            self.0.get(name).map_or("nothing".to_owned(), |a| format!("shape {:?}", a.shape));
        Error::data("the saved state is of another model")
            .found(format!("{found} for `{name}`, where {n} numbers belong"))
            .help("it was made with other parameters, features or classes")
    }

    /// The bytes of a safetensors file.
    ///
    /// # Errors
    /// Never, unless a shape does not fit its numbers.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let bytes = |numbers: &TypedNumbers| -> (Dtype, Vec<u8>) {
            match numbers {
                TypedNumbers::F32s(v) => {
                    (Dtype::F32, v.iter().flat_map(|x| x.to_le_bytes()).collect())
                }
                TypedNumbers::F64s(v) => {
                    (Dtype::F64, v.iter().flat_map(|x| x.to_le_bytes()).collect())
                }
                TypedNumbers::U32s(v) => {
                    (Dtype::U32, v.iter().flat_map(|x| x.to_le_bytes()).collect())
                }
                TypedNumbers::Text(bytes) => (Dtype::U8, bytes.clone()),
            }
        };
        let all: Vec<_> =
            self.0.iter().map(|(name, array)| (name, array, bytes(&array.numbers))).collect();
        let views = all.iter().map(|(name, array, (dtype, bytes))| {
            Ok((name.as_str(), TensorView::new(*dtype, array.shape.clone(), bytes)?))
        });
        let views: Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
        let failed = |e| Error::bug(format!("a state cannot be written: {e}"));
        serialize(views.map_err(failed)?, None).map_err(failed)
    }

    /// Reads the bytes of a safetensors file.
    ///
    /// # Errors
    /// When the bytes are no safetensors file, or hold other types than [`Snapshot::to_bytes`] writes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let not = |what: String| Error::data(format!("not a saved state of labelmill: {what}"));
        let tensors = SafeTensors::deserialize(bytes).map_err(|e| not(e.to_string()))?;
        let mut all = BTreeMap::new();
        for (name, view) in tensors.iter() {
            let words = view.data().as_chunks::<4>().0;
            let numbers = match view.dtype() {
                Dtype::F32 => {
                    TypedNumbers::F32s(words.iter().map(|w| f32::from_le_bytes(*w)).collect())
                }
                Dtype::U32 => {
                    TypedNumbers::U32s(words.iter().map(|w| u32::from_le_bytes(*w)).collect())
                }
                Dtype::F64 => {
                    let words = view.data().as_chunks::<8>().0;
                    TypedNumbers::F64s(words.iter().map(|w| f64::from_le_bytes(*w)).collect())
                }
                Dtype::U8 => TypedNumbers::Text(view.data().to_vec()),
                other => return Err(not(format!("`{name}` holds {other:?}"))),
            };
            all.insert(name.to_owned(), Array { shape: view.shape().to_vec(), numbers });
        }
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_give_back_what_was_saved() {
        let mut inner = Snapshot::default();
        inner.f32s("w".to_owned(), vec![2, 1], vec![0.1, -3.0]);
        let mut all = Snapshot::default();
        all.u32s("steps".to_owned(), vec![7, 0]);
        all.f64s("loss".to_owned(), vec![0.1]);
        all.text("phases".to_owned(), "heads\nweights");
        all.merge("net.", &inner);
        let back = Snapshot::from_bytes(&all.to_bytes().unwrap()).unwrap();
        assert_eq!((&back, &back.part("net.")), (&all, &inner));
        assert!(back.take_f32s("net.w", 3).unwrap_err().to_string().contains("shape [2, 1]"));
        assert!(Snapshot::from_bytes(b"not it").is_err());
    }
}
