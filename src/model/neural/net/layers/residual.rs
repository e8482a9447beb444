//! The shortcut of residual blocks.
//!
//! If the layers halve the image and add channels, the shortcut takes every second row and column and adds channels of
//! zeros: option A of He et al. 2016, which has no parameters.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::host::{contiguous, read};

/// The first of every `stride` rows and columns, with channels of zeros appended to the channels of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortcut {
    /// The number of output channels, at least that of the input.
    pub(crate) to: usize,
    /// The distance between two rows (or columns) that are taken.
    pub(crate) stride: usize,
}

impl Shortcut {
    /// The output.
    pub(crate) fn forward(self, x: &Tensor, backend: Backend) -> Result<Tensor> {
        if backend == Backend::Host {
            return x.contiguous()?.apply_op1(self);
        }
        let x = strided(x, self.stride)?;
        let (_, from, _, _) = x.dims4()?;
        x.pad_with_zeros(1, 0, self.to.saturating_sub(from))
    }

    /// For every row `[row, column, image]` of the output, the row of the input that it takes.
    fn taken(self, images: usize, height: usize, width: usize) -> impl Iterator<Item = usize> {
        let columns = move |y| (0..width).step_by(self.stride).map(move |x| y * width + x);
        let pixels = (0..height).step_by(self.stride).flat_map(columns);
        pixels.flat_map(move |pixel| pixel * images..(pixel + 1) * images)
    }
}

impl CustomOp1 for Shortcut {
    fn name(&self) -> &'static str {
        "shortcut"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (height, width, images, from) = layout.shape().dims4()?;
        let (high, wide) = (height.div_ceil(self.stride), width.div_ceil(self.stride));
        let x = contiguous(x.as_slice()?, layout)?;
        let mut out = vec![0.0; high * wide * images * self.to];
        let rows = out.chunks_exact_mut(self.to).zip(self.taken(images, height, width));
        rows.for_each(|(out, row)| out[..from].copy_from_slice(&x[row * from..][..from]));
        Ok((CpuStorage::F32(out), Shape::from((high, wide, images, self.to))))
    }

    /// The gradient is zero for pixels that the shortcut does not take.
    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let (height, width, images, from) = x.dims4()?;
        let mut of_input = vec![0.0; height * width * images * from];
        read([&gradient.contiguous()?], |[gradient]| {
            let rows = gradient.chunks_exact(self.to).zip(self.taken(images, height, width));
            rows.for_each(|(g, row)| of_input[row * from..][..from].copy_from_slice(&g[..from]));
        })?;
        Tensor::from_vec(of_input, x.dims(), x.device()).map(Some)
    }
}

/// The first of every `stride` rows, and of every `stride` columns, as nodes of candle's graph.
///
/// # Why
/// An axis of pixels becomes two: whole strides, and pixels within a stride. So the pixels are a view, which is copied
/// once; an index of rows would be copied to a GPU in every pass.
pub(super) fn strided(x: &Tensor, stride: usize) -> Result<Tensor> {
    if stride == 1 {
        return Ok(x.clone());
    }
    let (images, channels, height, width) = x.dims4()?;
    let (rows, columns) = (height.div_ceil(stride), width.div_ceil(stride));
    // The last stride may reach beyond the image.
    let whole = x.pad_with_zeros(2, 0, rows * stride - height)?.pad_with_zeros(
        3,
        0,
        columns * stride - width,
    )?;
    let strides = whole.reshape((images, channels, rows, stride, columns, stride))?;
    strides.narrow(5, 0, 1)?.narrow(3, 0, 1)?.squeeze(5)?.squeeze(3)?.contiguous()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::backbone::{Architecture, BackboneSpec};
    use crate::model::neural::net::forward_pass::mode::Mode;
    use crate::model::neural::net::host::format::{by_image, by_pixel};
    use crate::model::neural::net::layers::{Layer, forward_all};
    use crate::model::neural::net::parameters::{Initialisation, Parameters};
    use crate::model::neural::net::testing::{
        assert_near, counted, counted_var, device_of, gradients, largest, numbers, on_device_of,
        on_host_again,
    };
    use crate::model::saved::snapshot::Snapshot;

    fn near(what: &str, got: &Tensor, want: &Tensor) {
        let allowed = 1e-3 * largest(want, 1e-2);
        assert_near(what, got, want, |_| allowed);
    }

    const GPU: Backend = Backend::Device(DType::F32);

    fn resnet(backend: Backend) -> (Vec<Layer>, Parameters) {
        let device = device_of(backend);
        let parameters = Parameters::new(&JobContext::new(1), &device, Initialisation::Glorot);
        let spec = BackboneSpec { kind: Architecture::Resnet20, ..BackboneSpec::default() };
        let (trunk, parameters) =
            parameters.build(|layers| spec.build(&[3, 5, 6], layers)).unwrap();
        assert_eq!(trunk.width, 64);
        (trunk.layers, parameters)
    }

    /// The names of the trained parameters, and the number of values of each.
    fn trained(parameters: &Parameters) -> Vec<(String, usize)> {
        let mut snapshot = Snapshot::default();
        parameters.save(&mut snapshot).unwrap();
        let arrays = snapshot.f32s_with_prefix("net.");
        let all = arrays.map(|(name, .., values)| (name.replacen("net.", "", 1), values.len()));
        all.filter(|(name, _)| !name.contains(".running_")).collect()
    }

    /// The input has rows 0 to 2 and columns 0 to 3; the output has a third channel of zeros.
    #[test]
    fn a_shortcut_takes_every_second_row_and_column_and_adds_zeros() {
        let x = Tensor::arange(0.0_f32, 24.0, &Device::Cpu).unwrap().reshape((1, 2, 3, 4)).unwrap();
        let (x, shortcut) = (Var::from_tensor(&x).unwrap(), Shortcut { to: 3, stride: 2 });
        let host = shortcut.forward(&by_pixel(&x).unwrap(), Backend::Host).unwrap();
        let candle = shortcut.forward(&on_device_of(GPU, &x), GPU).unwrap();
        for out in [by_image(&host).unwrap(), on_host_again(&candle)] {
            assert_eq!(out.dims(), [1, 3, 2, 2]);
            let want = [0.0, 2.0, 8.0, 10.0, 12.0, 14.0, 20.0, 22.0, 0.0, 0.0, 0.0, 0.0];
            assert_eq!(numbers(&out), want);
            let slopes = Tensor::arange(1.0_f32, 13.0, &Device::Cpu).unwrap();
            let loss = (out * slopes.reshape((1, 3, 2, 2)).unwrap()).unwrap().sum_all().unwrap();
            let mut want = [0.0; 24];
            for (slope, at) in [0, 2, 8, 10, 12, 14, 20, 22].into_iter().enumerate() {
                want[at] = slope as f32 + 1.0;
            }
            assert_eq!(numbers(loss.backward().unwrap().get(&x).unwrap()), want);
        }
    }

    /// 19 convolutions of 3 x 3, with a bias and a norm's scale and shift of each channel: 3 to 16, then 6 of 16, 16 to 32
    /// and 5 of 32, 32 to 64 and 5 of 64. He et al. count 0.27 M with the last layer.
    #[test]
    fn resnet20_has_its_number_of_parameters() {
        let (layers, parameters) = resnet(Backend::Host);
        let n: usize = trained(&parameters).iter().map(|(_, values)| values).sum();
        let weights = 3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64;
        assert_eq!(n, 9 * weights + 3 * (7 * 16 + 6 * 32 + 6 * 64));
        // A stem of three, nine blocks with a ReLU each, and the mean of each channel.
        assert_eq!(layers.len(), 3 + 2 * 9 + 1);
        let halved =
            |layer: &&Layer| matches!(layer, Layer::Residual(block) if block.shortcut.is_some());
        assert_eq!(layers.iter().filter(halved).count(), 2);
    }

    /// Even and odd numbers of rows and columns, with strides that do and do not divide them.
    #[test]
    fn a_stride_takes_the_pixels_of_an_index_with_their_gradients() {
        for (height, width, stride) in [(4, 6, 2), (5, 7, 2), (1, 2, 2), (7, 8, 3), (3, 4, 1)] {
            let x = counted_var(&[2, 3, height, width], 7);
            let every = |size: usize| {
                Tensor::arange_step(0, size as u32, stride as u32, &Device::Cpu).unwrap()
            };
            let rows = x.index_select(&every(height), 2).unwrap();
            let want = rows.index_select(&every(width), 3).unwrap();
            let got = on_host_again(&strided(&on_device_of(GPU, &x), stride).unwrap());
            let what = format!("{height} x {width}, {stride}");
            assert_eq!((got.dims(), numbers(&got)), (want.dims(), numbers(&want)), "{what}");
            let slopes = counted(want.dims(), 5);
            let [got, want] = [got, want].map(|out| {
                let loss = (out * &slopes).unwrap().sum_all().unwrap();
                numbers(loss.backward().unwrap().get(&x).unwrap())
            });
            assert_eq!(got, want, "{what}");
        }
    }

    /// Images of 5 x 6 become 3 x 3 and 2 x 2: every output and gradient on the host equals that of candle's
    /// operations.
    #[test]
    fn gradients_of_resnet20_are_those_of_candle() {
        let [(host_layers, host), (gpu_layers, gpu)] = [Backend::Host, GPU].map(resnet);
        let data = counted_var(&[4, 3, 5, 6], 7).as_detached_tensor();
        let slopes = counted(&[4, 64], 5);
        let mut rng = JobContext::new(1).rng("none");
        let mut all = |layers: &[Layer], x: &Tensor, backend| {
            let out = forward_all(layers, x, &mut Mode::Training(&mut rng), backend).unwrap();
            let found = gradients(&on_host_again(&out), &slopes);
            (out, found)
        };
        let (want, wanted) = all(&gpu_layers, &on_device_of(GPU, &data), GPU);
        let (out, found) = all(&host_layers, &by_pixel(&data).unwrap(), Backend::Host);
        near("output", &out, &want);
        assert!(found.get(&data).is_none());
        let trained = trained(&host);
        assert_eq!(trained.len(), 19 * 4, "weight, bias, scale and shift of each convolution");
        for (name, _) in trained {
            let [host, gpu] = [&host, &gpu].map(|parameters| parameters.var(&name).unwrap());
            near(&name, found.get(&host).unwrap(), wanted.get(&gpu).unwrap());
        }
    }

    /// The gradient of the input, for a block that halves the image and for one that does not, compared with finite
    /// differences of the output. A few values cross the kink of a ReLU, so that the tolerance is a hundredth of the
    /// largest gradient.
    #[test]
    fn gradients_of_blocks_are_the_slopes_of_their_output() {
        const STEP: f32 = 1e-2;
        let (layers, _) = resnet(Backend::Host);
        let blocks: Vec<&Layer> =
            layers.iter().filter(|layer| matches!(layer, Layer::Residual(_))).collect();
        for (block, to) in [(blocks[0], [3, 16, 5, 6]), (blocks[3], [3, 32, 3, 3])] {
            let x = counted_var(&[3, 16, 5, 6], 7);
            let slopes = counted(&to, 5);
            let out = |x: &Tensor| {
                let mut rng = JobContext::new(1).rng("none");
                let mode = &mut Mode::Training(&mut rng);
                let out = block.forward(&by_pixel(x).unwrap(), mode, Backend::Host).unwrap();
                by_image(&out).unwrap()
            };
            let loss = |x: &Tensor| -> f64 {
                let out = out(x).to_dtype(DType::F64).unwrap();
                let weighted = out * slopes.to_dtype(DType::F64).unwrap();
                weighted.unwrap().sum_all().unwrap().to_scalar().unwrap()
            };
            let found = gradients(&out(&x), &slopes);
            let gradient = numbers(found.get(&x).unwrap());
            let largest = gradient.iter().fold(0.0_f32, |most, g| most.max(g.abs()));
            for at in (0..gradient.len()).step_by(37) {
                let moved = |by: f32| {
                    let mut values = numbers(&x);
                    values[at] += by;
                    loss(&Tensor::from_vec(values, x.dims(), &Device::Cpu).unwrap())
                };
                let want = (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP);
                let error = (f64::from(gradient[at]) - want).abs();
                assert!(error < 0.01 * f64::from(largest), "{at}: {}, {want}", gradient[at]);
            }
        }
    }
}
