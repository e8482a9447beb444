//! Matrix products of the layers.
//!
//! # Why
//! Before every product on the host candle counts the processors, and on Linux it reads `/proc/cpuinfo` for that, which
//! the kernel writes anew for each reader: a quarter of an epoch of small batches, and more where processors are many.
//! Here the same kernels are called with the threads of the run, and give the same bits.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp2, Layout, Shape, Tensor};
use gemm::Parallelism;

/// A matrix product that computes no gradient which nobody asks for: of a first layer that is half of the backward work.
pub(super) struct Product {
    /// Whether the gradient of the left side is asked for.
    pub needs_input: bool,
}

impl Product {
    /// (1, rows, columns, what is summed over), and the product's shape.
    fn sizes(a: &Layout, b: &Layout) -> candle_core::Result<((usize, usize, usize, usize), Shape)> {
        let ((rows, inner), (_, columns)) = (a.shape().dims2()?, b.shape().dims2()?);
        Ok(((1, rows, columns, inner), Shape::from((rows, columns))))
    }
}

impl CustomOp2 for Product {
    fn name(&self) -> &'static str {
        "product"
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        la: &Layout,
        b: &CpuStorage,
        lb: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (sizes, shape) = Self::sizes(la, lb)?;
        let product = match (a, b) {
            (CpuStorage::F32(a), CpuStorage::F32(b)) => {
                CpuStorage::F32(multiply(&Matrix::new(a, la)?, &Matrix::new(b, lb)?)?)
            }
            _ => a.matmul(b, sizes, la, lb)?,
        };
        Ok((product, shape))
    }

    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        la: &Layout,
        b: &CudaStorage,
        lb: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        let (sizes, shape) = Self::sizes(la, lb)?;
        Ok((a.matmul(b, sizes, la, lb)?, shape))
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        _product: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let of_b = a.t()?.apply_op2_no_bwd(gradient, self)?;
        let of_a = self.needs_input.then(|| gradient.apply_op2_no_bwd(&b.t()?, self));
        Ok((of_a.transpose()?, Some(of_b)))
    }
}

/// A matrix on the host, its rows and columns any number of values apart.
struct Matrix<'a> {
    /// From its first value on; every row and column lies within.
    values: &'a [f32],
    rows: usize,
    columns: usize,
    /// From one row, and one column, to the next.
    steps: (isize, isize),
}

impl<'a> Matrix<'a> {
    fn new(values: &'a [f32], layout: &Layout) -> candle_core::Result<Self> {
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
}

/// The product, row by row.
#[allow(unsafe_code)]
fn multiply(a: &Matrix<'_>, b: &Matrix<'_>) -> candle_core::Result<Vec<f32>> {
    let (rows, columns, inner) = (a.rows, b.columns, a.columns);
    if b.rows != inner {
        candle_core::bail!("{rows} x {inner} by {} x {columns} is no product", b.rows);
    }
    let threads = match rayon::current_num_threads() {
        1 => Parallelism::None,
        threads => Parallelism::Rayon(threads),
    };
    let mut product = vec![0.0; rows * columns];
    // SAFETY: `product` has `rows` x `columns` values, row by row; `Matrix::new` has seen that all
    // values of both sides lie within their slices; and nothing else refers to `product`.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            product.as_mut_ptr(),
            1,
            columns.cast_signed(),
            false,
            a.values.as_ptr(),
            a.steps.1,
            a.steps.0,
            b.values.as_ptr(),
            b.steps.1,
            b.steps.0,
            0.0,
            1.0,
            false,
            false,
            false,
            threads,
        );
    }
    Ok(product)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Whole numbers, so that every order of summing gives the same.
    fn counted(rows: usize, columns: usize) -> Tensor {
        let values: Vec<f32> = (0..rows * columns).map(|n| (n * 7 % 11) as f32 - 5.0).collect();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
    }

    #[test]
    fn products_of_any_view_are_those_by_hand() {
        let product = Product { needs_input: true };
        for (rows, inner, columns) in [(1, 1, 1), (3, 5, 2), (17, 33, 9), (64, 128, 70), (4, 0, 3)]
        {
            let (a, b) = (counted(rows + 2, inner), counted(columns, inner));
            let (a, b) = (a.narrow(0, 1, rows).unwrap(), b.t().unwrap());
            let got = a.apply_op2_no_bwd(&b, &product).unwrap().to_vec2::<f32>().unwrap();
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
    fn a_matrix_that_ends_behind_its_values_is_refused() {
        let layout = Layout::new(Shape::from((2, 3)), vec![3, 1], 1);
        assert!(Matrix::new(&[0.0; 6], &layout).is_err());
        assert!(Matrix::new(&[0.0; 7], &layout).is_ok());
        let (a, b) = (counted(2, 3), counted(2, 3));
        assert!(a.apply_op2_no_bwd(&b, &Product { needs_input: true }).is_err());
    }
}
