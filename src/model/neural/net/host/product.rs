//! Matrix products of layers.
//!
//! # Why
//! Before every matrix product on the host, candle counts the processors. On Linux it reads `/proc/cpuinfo` for that,
//! which the kernel generates for each reader: this takes a quarter of an epoch of small batches, and more on many
//! processors. Here the same kernels run with the run's number of threads, and give the same bits. The bias is added in
//! place, and rows are summed one after the other, while candle computes a division for every term of a sum. candle-nn's
//! linear layer takes 1.2 to 1.5 times as long (`benches/networks.md`).

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use gemm::Parallelism;

use crate::model::neural::net::host::{contiguous, f32s, read};

/// `x W + b`
pub(crate) fn affine(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op3(weight, bias, Affine)
}

struct Affine;

impl CustomOp3 for Affine {
    fn name(&self) -> &'static str {
        "affine"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        weight: &CpuStorage,
        of_weight: &Layout,
        bias: &CpuStorage,
        of_bias: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let x = MatrixView::new(x.as_slice()?, of_x)?;
        let weight = MatrixView::new(weight.as_slice()?, of_weight)?;
        let bias: &[f32] = contiguous(bias.as_slice()?, of_bias)?;
        if bias.len() != weight.columns {
            candle_core::bail!("{} biases of {} columns", bias.len(), weight.columns);
        }
        let mut out = multiply(&x, &weight)?;
        for row in out.chunks_exact_mut(bias.len().max(1)) {
            row.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
        Ok((CpuStorage::F32(out), Shape::from((x.rows, weight.columns))))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        // The training data are no variable, and need no gradient.
        let of_x = x.track_op().then(|| product(gradient, &weight.t()?)).transpose()?;
        Ok((of_x, Some(product(&x.t()?, gradient)?), Some(row_sum(gradient)?)))
    }
}

/// `a b`, outside candle's graph.
fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let out = {
        let ((a, of_a), (b, of_b)) = (a.storage_and_layout(), b.storage_and_layout());
        multiply(&MatrixView::new(f32s(&a)?, of_a)?, &MatrixView::new(f32s(&b)?, of_b)?)?
    };
    Tensor::from_vec(out, (a.dims2()?.0, b.dims2()?.1), a.device())
}

/// The sum of the rows of a matrix, outside candle's graph.
fn row_sum(matrix: &Tensor) -> Result<Tensor> {
    let mut sum = vec![0.0_f32; matrix.dims2()?.1];
    read([&matrix.contiguous()?], |[matrix]| add_rows(matrix, &mut sum))?;
    let columns = sum.len();
    Tensor::from_vec(sum, columns, matrix.device())
}

/// Adds the rows of a matrix to `sum`, one after the other.
pub(crate) fn add_rows(matrix: &[f32], sum: &mut [f32]) {
    for row in matrix.chunks_exact(sum.len().max(1)) {
        sum.iter_mut().zip(row).for_each(|(s, x)| *s += x);
    }
}

/// The row-major product on the host, with the threads of the run.
fn multiply(a: &MatrixView<'_>, b: &MatrixView<'_>) -> Result<Vec<f32>> {
    if b.rows != a.columns {
        let (rows, inner) = (a.rows, a.columns);
        candle_core::bail!("{rows} x {inner} by {} x {} is no product", b.rows, b.columns);
    }
    let threads = match rayon::current_num_threads() {
        1 => Parallelism::None,
        threads => Parallelism::Rayon(threads),
    };
    let mut product = vec![0.0; a.rows * b.columns];
    gemm(&mut product, a, b, false, threads);
    Ok(product)
}

/// A view of a matrix on the host with any strides.
pub(crate) struct MatrixView<'a> {
    /// The values from the first cell on; all cells lie within.
    values: &'a [f32],
    rows: usize,
    columns: usize,
    /// The strides of rows and columns.
    steps: (isize, isize),
}

impl<'a> MatrixView<'a> {
    fn new(values: &'a [f32], layout: &Layout) -> Result<Self> {
        let ((rows, columns), stride) = (layout.shape().dims2()?, layout.stride());
        let last = rows.saturating_sub(1) * stride[0] + columns.saturating_sub(1) * stride[1];
        let values = values.get(layout.start_offset()..).unwrap_or_default();
        if rows * columns > 0 && last >= values.len() {
            candle_core::bail!("a matrix of {rows} x {columns} ends behind its {}", values.len());
        }
        Ok(Self {
            values,
            rows,
            columns,
            steps: (stride[0].cast_signed(), stride[1].cast_signed()),
        })
    }

    /// The first `rows * columns` values as a row-major matrix. Panics if there are fewer.
    pub(crate) fn by_rows(values: &'a [f32], rows: usize, columns: usize) -> Self {
        let values = &values[..rows * columns];
        Self { values, rows, columns, steps: (columns.cast_signed(), 1) }
    }
}

/// Writes the row-major product to `out`, or adds it to `out`; on this thread alone.
///
/// Panics if the sizes do not fit a product.
pub(crate) fn multiply_into(out: &mut [f32], a: &MatrixView<'_>, b: &MatrixView<'_>, adds: bool) {
    gemm(out, a, b, adds, Parallelism::None);
}

#[allow(unsafe_code)]
fn gemm(out: &mut [f32], a: &MatrixView<'_>, b: &MatrixView<'_>, adds: bool, threads: Parallelism) {
    let (rows, columns, inner) = (a.rows, b.columns, a.columns);
    assert!(out.len() == rows * columns && b.rows == inner, "these are not the sizes of a product");
    // SAFETY: the assertion above checks the length of `out`; the constructors of both matrices checked that all cells
    // lie within their slices; and `out` is borrowed mutably, so nothing else refers to it.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            out.as_mut_ptr(),
            1,
            columns.cast_signed(),
            adds,
            a.values.as_ptr(),
            a.steps.1,
            a.steps.0,
            b.values.as_ptr(),
            b.steps.1,
            b.steps.0,
            if adds { 1.0 } else { 0.0 },
            1.0,
            false,
            false,
            false,
            threads,
        );
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Integers, so that every order of summation gives the same result.
    fn counted(rows: usize, columns: usize) -> Tensor {
        let values: Vec<f32> = (0..rows * columns).map(|n| (n * 7 % 11) as f32 - 5.0).collect();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
    }

    #[test]
    fn products_of_any_view_are_those_by_hand() {
        for (rows, inner, columns) in [(1, 1, 1), (3, 5, 2), (17, 33, 9), (64, 128, 70), (4, 0, 3)]
        {
            let (a, b) = (counted(rows + 2, inner), counted(columns, inner));
            let (a, b) = (a.narrow(0, 1, rows).unwrap(), b.t().unwrap());
            let got = product(&a, &b).unwrap().to_vec2::<f32>().unwrap();
            let (a, b) = (a.to_vec2::<f32>().unwrap(), b.to_vec2::<f32>().unwrap());
            for (left, got) in a.iter().zip(&got) {
                for (column, got) in got.iter().enumerate() {
                    let want: f32 = left.iter().zip(&b).map(|(x, y)| x * y[column]).sum();
                    assert_eq!(*got, want, "{rows} x {inner} x {columns}");
                }
            }
        }
    }

    #[test]
    fn affine_maps_and_sums_of_rows_are_those_of_candle() {
        let (x, weight, bias) =
            (counted(7, 5), counted(5, 4), counted(1, 4).flatten_all().unwrap());
        let candle = x.matmul(&weight).unwrap().broadcast_add(&bias).unwrap();
        let rows = |t: &Tensor| t.to_vec2::<f32>().unwrap();
        assert_eq!(rows(&affine(&x, &weight, &bias).unwrap()), rows(&candle));
        let sum = |t: Tensor| t.to_vec1::<f32>().unwrap();
        for matrix in [&x, &x.t().unwrap()] {
            assert_eq!(sum(row_sum(matrix).unwrap()), sum(matrix.sum(0).unwrap()));
        }
    }

    #[test]
    fn a_matrix_that_ends_behind_its_values_is_refused() {
        let layout = Layout::new(Shape::from((2, 3)), vec![3, 1], 1);
        assert!(MatrixView::new(&[0.0; 6], &layout).is_err());
        assert!(MatrixView::new(&[0.0; 7], &layout).is_ok());
        let (a, b) = (counted(2, 3), counted(2, 3));
        assert!(product(&a, &b).is_err());
        assert!(affine(&a, &counted(3, 2), &counted(1, 3)).is_err());
    }
}
