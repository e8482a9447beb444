//! Batch normalisation.

use candle_core::{DType, Tensor, Var};

use super::layer_builder::LayerBuilder;
use crate::error::Result;
use crate::model::neural::device::from_candle;
use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::forward_pass::mode::Mode;
use crate::model::neural::net::gpu::layers::channels::channel_statistics;
use crate::model::neural::net::gpu::layers::norm::{NormSettings, move_running, normalised};
use crate::model::neural::net::host::norm::{Normed, NormedColumns, statistics};
use crate::model::neural::net::host::read;

/// Batch normalisation of each column, or of each channel of images; its parameters have PyTorch's names.
pub struct BatchNorm {
    scale_and_shift: Option<(Tensor, Tensor)>,
    mean: Var,
    variance: Var,
}

/// The weight of a batch in the running statistics.
const NORM_MOMENTUM: f64 = 0.1;

/// Added to a variance before its square root is taken.
pub(crate) const NORM_EPSILON: f64 = 1e-5;

impl BatchNorm {
    /// A batch norm of `n` columns or channels; with `affine`, a learned scale and shift follow.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn new(layer: &LayerBuilder, n: usize, affine: bool) -> Result<Self> {
        let scale_and_shift = if affine {
            Some((layer.constant("weight", n, 1.0)?, layer.constant("bias", n, 0.0)?))
        } else {
            None
        };
        let running = |name, value| from_candle(Var::from_tensor(&layer.constant(name, n, value)?));
        let (mean, variance) = (running("running_mean", 0.0)?, running("running_var", 1.0)?);
        Ok(Self { scale_and_shift, mean, variance })
    }

    /// The number of columns or channels.
    pub(crate) fn width(&self) -> usize {
        self.mean.elem_count()
    }

    /// The running mean of each column or channel.
    pub(crate) fn running_mean(&self) -> &Tensor {
        self.mean.as_tensor()
    }

    /// Whether a learned scale and shift follow.
    pub(crate) fn is_affine(&self) -> bool {
        self.scale_and_shift.is_some()
    }

    /// The output, followed by ReLU if `relu`.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        mode: &Mode<'_>,
        backend: Backend,
        relu: bool,
    ) -> candle_core::Result<Tensor> {
        match backend {
            Backend::Host => self.on_host(x, mode, relu),
            Backend::Device(_) => self.on_gpu(x, mode, relu),
        }
    }

    fn on_gpu(&self, x: &Tensor, mode: &Mode<'_>, relu: bool) -> candle_core::Result<Tensor> {
        let (precision, dims) = (x.dtype(), x.dims());
        let pixels = x.to_dtype(DType::F32)?.contiguous()?.reshape((dims[0], dims[1], ()))?;
        let count = (pixels.elem_count() / dims[1].max(1)) as f64;
        let is_of_batch = matches!(mode, Mode::Training(_)) && count > 1.0;
        let statistics = if is_of_batch {
            let seen = channel_statistics(&pixels.detach())?;
            for (running, row, factor) in
                [(&self.mean, 0, 1.0), (&self.variance, 1, count / (count - 1.0))]
            {
                let seen = seen.narrow(0, row, 1)?.reshape(self.width())?;
                move_running(running, &seen, NORM_MOMENTUM, factor)?;
            }
            seen
        } else {
            Tensor::stack(&[&self.mean, &self.variance].map(Var::as_detached_tensor), 0)?
        };
        let (scale, shift) = if let Some((scale, shift)) = &self.scale_and_shift {
            (mode.parameter(scale), mode.parameter(shift))
        } else {
            let constant = |value: f32| Tensor::full(value, self.width(), x.device());
            (constant(1.0)?, constant(0.0)?)
        };
        let settings = NormSettings { is_of_batch, relu, epsilon: NORM_EPSILON as f32 };
        let out = normalised(&pixels, [&scale, &shift], statistics, settings)?;
        out.reshape(dims)?.to_dtype(precision)
    }

    /// Updates the running statistics with those of a batch.
    fn update_running(&self, mean: &Tensor, unbiased_variance: &Tensor) -> candle_core::Result<()> {
        for (running, seen) in [(&self.mean, mean), (&self.variance, unbiased_variance)] {
            let kept = (running.as_detached_tensor() * (1.0 - NORM_MOMENTUM))?;
            running.set(&(kept + (seen.reshape(self.width())? * NORM_MOMENTUM)?)?)?;
        }
        Ok(())
    }

    fn on_host(&self, x: &Tensor, mode: &Mode<'_>, relu: bool) -> candle_core::Result<Tensor> {
        let (x, n) = (x.contiguous()?, self.width());
        let rows = x.elem_count() / n.max(1);
        let uses_batch_statistics = matches!(mode, Mode::Training(_)) && rows > 1;
        let [mean, variance] = if uses_batch_statistics {
            let [mean, variance] = read([&x], |[x]| statistics(x, n))?;
            let unbiased = rows as f64 / (rows as f64 - 1.0);
            let tensor = |values: &[f64], factor: f64| {
                Tensor::from_iter(values.iter().map(|v| (v * factor) as f32), x.device())
            };
            self.update_running(&tensor(&mean, 1.0)?, &tensor(&variance, unbiased)?)?;
            [mean, variance]
        } else {
            let numbers = |var: &Var| -> candle_core::Result<Vec<f64>> {
                Ok(var.to_vec1::<f32>()?.into_iter().map(f64::from).collect())
            };
            [numbers(&self.mean)?, numbers(&self.variance)?]
        };
        let (scale, shift) = match &self.scale_and_shift {
            Some((scale, shift)) => (scale.to_vec1::<f32>()?, shift.to_vec1::<f32>()?),
            None => (vec![1.0; n], vec![0.0; n]),
        };
        let inverse: Vec<f64> = variance.iter().map(|v| 1.0 / (v + NORM_EPSILON).sqrt()).collect();
        let factor = inverse.iter().zip(&scale).map(|(i, s)| (i * f64::from(*s)) as f32).collect();
        let mean = mean.iter().map(|mean| *mean as f32).collect();
        let columns = NormedColumns { mean, factor, shift, relu };
        let normed = Normed { columns, inverse, uses_batch_statistics };
        match &self.scale_and_shift {
            Some((scale, shift)) => {
                x.apply_op3(&mode.parameter(scale), &mode.parameter(shift), normed)
            }
            None => x.apply_op1(normed),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::host::format::{by_image, by_pixel};
    use crate::model::neural::net::parameters::{Initialisation, Parameters};
    use crate::model::neural::net::testing::{
        assert_near, counted, device_of, gradients, numbers, on_device_of, on_host_again,
    };

    fn forward(
        norm: &BatchNorm,
        x: &Tensor,
        training: bool,
        backend: Backend,
        relu: bool,
    ) -> Tensor {
        let mut rng = JobContext::new(1).rng("none");
        let mode = if training { Mode::Training(&mut rng) } else { Mode::Fixed };
        on_host_again(&norm.forward(&on_device_of(backend, x), &mode, backend, relu).unwrap())
    }

    fn on_host(norm: &BatchNorm, x: &Tensor, training: bool, relu: bool) -> Tensor {
        by_image(&forward(norm, &by_pixel(x).unwrap(), training, Backend::Host, relu)).unwrap()
    }

    fn built(n: usize, affine: bool, device: &Device) -> (BatchNorm, Parameters) {
        let all = Parameters::new(&JobContext::new(1), device, Initialisation::Uniform);
        all.build(|layers| BatchNorm::new(&layers.pp("norm"), n, affine)).unwrap()
    }

    /// The mean of 1 and 3 is 2, and their unbiased variance 2. The running statistics move from 0 and 1 to `0.1 * 2`
    /// and `0.9 + 0.1 * 2`.
    #[test]
    fn running_statistics_follow_the_unbiased_variance() {
        let (norm, _) = built(1, false, &Device::Cpu);
        let x = Tensor::new(&[[1.0_f32], [3.0]], &Device::Cpu).unwrap();
        let out = on_host(&norm, &x, true, false);
        let near = |got: &[f32], want: f32| assert!((got[0] - want).abs() < 1e-5, "{got:?}");
        near(&numbers(&out), -1.0);
        near(&numbers(&norm.mean), 0.2);
        near(&numbers(&norm.variance), 1.1);
        // A prediction uses these statistics, (2.2 - 0.2) / sqrt(1.1), and does not change them.
        let x = Tensor::new(&[[2.2_f32], [0.2]], &Device::Cpu).unwrap();
        near(&numbers(&on_host(&norm, &x, false, false)), 1.906_917);
        near(&numbers(&norm.mean), 0.2);
    }

    /// Two images of two channels of two pixels: 1, 3, 5, 7 with the variance 5, and 0, 0, 2, 2 with 1.
    #[test]
    fn channels_are_normalised_over_images_and_pixels() {
        let (norm, _) = built(2, true, &Device::Cpu);
        let values = vec![1.0_f32, 3.0, 0.0, 0.0, 5.0, 7.0, 2.0, 2.0];
        let x = Tensor::from_vec(values, (2, 2, 1, 2), &Device::Cpu).unwrap();
        let out = on_host(&norm, &x, true, false);
        let near = |got: Vec<f32>, want: &[f32]| {
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 1e-5, "{got}, expected {want}");
            }
        };
        let (far, close) = (1.341_641, 0.447_214);
        near(numbers(&out), &[-far, -close, -1.0, -1.0, close, far, 1.0, 1.0]);
        near(numbers(&norm.mean), &[0.4, 0.1]);
        near(numbers(&norm.variance), &[0.9 + 0.1 * 20.0 / 3.0, 0.9 + 0.1 * 4.0 / 3.0]);
    }

    /// A norm whose columns have scales 1.5, 1.2 and so on, and shifts 0.2, -0.1 and so on.
    fn uneven(columns: usize, backend: Backend) -> BatchNorm {
        let device = device_of(backend);
        let (norm, all) = built(columns, true, &device);
        for (name, first) in [("norm.weight", 1.5), ("norm.bias", 0.2)] {
            let values = (0..columns).map(|n| first - 0.3 * n as f32);
            let values = Tensor::from_iter(values, &device).unwrap();
            all.var(name).unwrap().set(&values).unwrap();
        }
        norm
    }

    fn near(what: &str, got: &Tensor, want: &Tensor) {
        assert_near(what, got, want, |want| 1e-4 * want.abs().max(1.0));
    }

    /// The variance of -1, 0 and 1 is 2/3, so that x is -1.2247, 0 and 1.2247 after the norm. The gradient g = (1, 0,
    /// 0) has the mean 1/3, and its product with x has the mean -0.40825: the result is 1.2247 (g - 1/3 + 0.40825 x).
    #[test]
    fn the_gradient_on_the_host_is_that_by_hand() {
        let (norm, _) = built(1, true, &Device::Cpu);
        let column = |values: [f32; 3]| Tensor::new(&values, &Device::Cpu).unwrap().reshape((3, 1));
        let x = Var::from_tensor(&column([-1.0, 0.0, 1.0]).unwrap()).unwrap();
        let out = on_host(&norm, &x, true, false);
        near("output", &out, &column([-1.224_73, 0.0, 1.224_73]).unwrap());
        near("running variance", norm.variance.as_tensor(), &counted(&[1], 1).ones_like().unwrap());
        let found = gradients(&out, &column([1.0, 0.0, 0.0]).unwrap());
        near("input", found.get(&x).unwrap(), &column([0.204_12, -0.408_25, 0.204_12]).unwrap());
        let (scale, shift) = norm.scale_and_shift.as_ref().unwrap();
        let of = |parameter| numbers(found.get(parameter).unwrap())[0];
        assert!((of(scale) + 1.224_73).abs() < 1e-4 && (of(shift) - 1.0).abs() < 1e-6);
    }

    /// Images, and rows of more than one block (and, on a GPU, part), with and without ReLU, and without a learned scale and
    /// shift, when a value at the mean is at the kink of a ReLU; a single row, which has no variance.
    #[test]
    fn the_host_and_a_gpu_agree() {
        const CASES: [(bool, bool, bool); 6] = [
            (true, true, true),
            (true, false, true),
            (true, false, false),
            (false, true, true),
            (false, false, true),
            (false, false, false),
        ];
        for dims in
            [&[7, 3, 5, 6][..], &[1300, 5], &[5000, 3], &[1, 4], &[40, 6, 1, 3], &[2, 1, 8, 9]]
        {
            for (training, relu, affine) in CASES {
                let (x, slopes) = (counted(dims, 7), counted(dims, 5));
                let what = format!("{dims:?}, {training}, {relu}, {affine}");
                let norm = |backend| {
                    let norm = uneven(dims[1], backend);
                    BatchNorm { scale_and_shift: norm.scale_and_shift.filter(|_| affine), ..norm }
                };
                let candle = Backend::Device(DType::F32);
                let (gpu, host) = (norm(candle), norm(Backend::Host));
                let var = Var::from_tensor(&x).unwrap();
                let wanted = forward(&gpu, &var, training, candle, relu);
                let out = on_host(&host, &var, training, relu);
                near(&what, &out, &wanted);
                near(&what, host.mean.as_tensor(), gpu.mean.as_tensor());
                near(&what, host.variance.as_tensor(), gpu.variance.as_tensor());
                let (wanted, found) = (gradients(&wanted, &slopes), gradients(&out, &slopes));
                near(&what, found.get(&var).unwrap(), wanted.get(&var).unwrap());
                if !training || !affine {
                    continue;
                }
                let (of_host, of_gpu) = (&host.scale_and_shift, &gpu.scale_and_shift);
                let ((scale, shift), (wanted_scale, wanted_shift)) =
                    (of_host.as_ref().unwrap(), of_gpu.as_ref().unwrap());
                near(&what, found.get(scale).unwrap(), wanted.get(wanted_scale).unwrap());
                near(&what, found.get(shift).unwrap(), wanted.get(wanted_shift).unwrap());
            }
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let (x, slopes) = (counted(&[1300, 5], 7), counted(&[1300, 5], 3));
        let all = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let norm = uneven(5, Backend::Host);
                let x = Var::from_tensor(&x).unwrap();
                let out = on_host(&norm, &x, true, true);
                let found = gradients(&out, &slopes);
                [numbers(&out), numbers(found.get(&x).unwrap()), numbers(&norm.variance)]
            })
        };
        assert_eq!(all(1), all(4));
    }
}
