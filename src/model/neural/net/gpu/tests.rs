//! Layers in `bf16`, on a GPU where the build is for CUDA and the machine has one; and large tensors, which need one.

#[cfg(feature = "cuda")]
use candle_core::Device;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::cudarc::driver::result::mem_get_info;
use candle_core::{DType, Tensor, Var};

use super::layers::conv::convolution;
#[cfg(feature = "cuda")]
use super::layers::conv::in_groups;
use super::layers::dense::affine;
use super::layers::dropout::dropout;
use super::layers::max_pool::max_pool;
use super::layers::relu::relu;
use crate::job_context::JobContext;
use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::layers::conv_shape::ConvShape;
use crate::model::neural::net::layers::dropout::Mask;
use crate::model::neural::net::testing::{
    assert_near, counted, gradients, largest, on_device_of, on_host_again,
};
#[cfg(feature = "cuda")]
use crate::model::neural::net::testing::{device_of, numbers};

/// Compares the output of an operation in `bf16`, and the gradients of all its inputs, with those in `f32` on the
/// CPU: up to 2^-7 of the largest value, twice the rounding of a number of eight bits.
fn is_near_f32(name: &str, dims: &[&[usize]], operation: impl Fn(&[Tensor]) -> Tensor) {
    const GPU: Backend = Backend::Device(DType::BF16);
    let near = |what: &str, got: &Tensor, want: &Tensor| {
        let allowed = largest(want, 1e-3) / 128.0;
        assert_near(&format!("{name}, {what}"), got, want, |_| allowed);
    };
    let exact = |step, dims: &&[usize]| {
        let rounded = counted(dims, step).to_dtype(DType::BF16).unwrap();
        Var::from_tensor(&rounded.to_dtype(DType::F32).unwrap()).unwrap()
    };
    let inputs: Vec<Var> =
        dims.iter().zip([7, 5, 11]).map(|(dims, step)| exact(step, dims)).collect();
    let on_gpu = |x: &Var| on_device_of(GPU, &x.to_dtype(DType::BF16).unwrap());
    let out = operation(&inputs.iter().map(on_gpu).collect::<Vec<_>>());
    assert_eq!(out.dtype(), DType::BF16, "{name}");
    let out = on_host_again(&out.to_dtype(DType::F32).unwrap());
    let want = operation(&inputs.iter().map(|x| x.as_tensor().clone()).collect::<Vec<_>>());
    near("output", &out, &want);
    let slopes = exact(3, &want.dims()).as_detached_tensor();
    let (found, wanted) = (gradients(&out, &slopes), gradients(&want, &slopes));
    for (n, x) in inputs.iter().enumerate() {
        near(&format!("input {n}"), found.get(x).unwrap(), wanted.get(x).unwrap());
    }
}

#[test]
fn layers_in_bf16_are_near_those_in_f32() {
    is_near_f32("relu", &[&[7, 33]], |x| relu(&x[0]).unwrap());
    is_near_f32("max pool", &[&[2, 3, 5, 4]], |x| max_pool(&x[0]).unwrap());
    is_near_f32("affine", &[&[9, 6], &[6, 5], &[5]], |x| affine(&x[0], &x[1], &x[2]).unwrap());
    let shape = ConvShape {
        images: 3,
        in_channels: 2,
        out_channels: 4,
        kernel: 3,
        padding: 1,
        stride: 2,
        height: 5,
        width: 4,
        out_height: 3,
        out_width: 2,
    };
    let dims: [&[usize]; 3] = [&[3, 2, 5, 4], &[4, 2, 3, 3], &[4]];
    is_near_f32("convolution", &dims, |x| convolution(&x[0], &x[1], &x[2], shape).unwrap());
    // The second mask begins inside a block of the stream.
    let rng = &mut JobContext::new(1).rng("dropout");
    for dims in [[7, 33], [129, 65]] {
        let mask = Mask::draw(rng, dims[0] * dims[1], 0.3);
        is_near_f32("dropout", &[&dims], |x| dropout(&x[0], mask.clone()).unwrap());
    }
}

/// Eight images of 64 channels and 86 x 86 pixels, repeated 128 times: the patches of 1 024 images have 4.4e9 values, more
/// than 32 bits can number. Each image has the output and the gradient that it has among eight, and the weights have 128
/// times their gradient. All sums are of -1, 0 and 1, at most 7.6e6 of them, and so are exact in every order. In groups of
/// images, as networks are trained, and all at once, where the GPU has 60 GiB of free memory.
#[cfg(feature = "cuda")]
#[test]
fn a_convolution_of_a_thousand_large_images_is_that_of_each() {
    const COPIES: usize = 128;
    const BYTES_AT_ONCE: usize = 60 << 30;
    let Device::Cuda(gpu) = device_of(Backend::Device(DType::F32)) else {
        tracing::warn!("SKIPPED, without a GPU: a convolution of large images");
        return;
    };
    let (free, _) = mem_get_info().unwrap();
    let of_images = |images| ConvShape {
        images,
        in_channels: 64,
        out_channels: 64,
        kernel: 3,
        padding: 1,
        stride: 1,
        height: 86,
        width: 86,
        out_height: 86,
        out_width: 86,
    };
    let device = Device::Cuda(gpu);
    let var = |x: &Tensor| Var::from_tensor(&x.to_device(&device).unwrap()).unwrap();
    let signs = |dims: &[usize], step| (counted(dims, step) * 0.8).unwrap().round().unwrap();
    let few = var(&signs(&[8, 64, 86, 86], 7));
    let (weight, bias) = (var(&signs(&[64, 64, 3, 3], 5)), var(&signs(&[64], 11)));
    let slopes = signs(&[8, 64, 86, 86], 3).to_device(&device).unwrap();
    let repeated = |x: &Tensor| Tensor::cat(&[x; COPIES], 0).unwrap();
    let out = convolution(&few, &weight, &bias, of_images(8)).unwrap();
    let wanted = gradients(&out, &slopes);
    let equal = |what: &str, got: &Tensor, want: &Tensor| {
        let [got, want] = [got, want].map(|x| numbers(&on_host_again(x)));
        assert!(got == want, "{what}: {:?}, {:?}", &got[..8], &want[..8]);
    };
    for max_elements in [super::layers::conv::MAX_PATCH_ELEMENTS, usize::MAX] {
        if max_elements == usize::MAX && free < BYTES_AT_ONCE {
            continue;
        }
        let many = var(&repeated(&few));
        let shape = of_images(8 * COPIES);
        let of_many = in_groups(&many, &weight, &bias, shape, max_elements).unwrap();
        let found = gradients(&of_many, &repeated(&slopes));
        for copy in [0, 1, COPIES / 2, COPIES - 1] {
            let part = |x: &Tensor| x.narrow(0, 8 * copy, 8).unwrap();
            equal("output", &part(&of_many), &out);
            equal("input", &part(found.get(&many).unwrap()), wanted.get(&few).unwrap());
        }
        let all = |gradient: &Tensor| (gradient * COPIES as f64).unwrap();
        equal("weight", found.get(&weight).unwrap(), &all(wanted.get(&weight).unwrap()));
        equal("bias", found.get(&bias).unwrap(), &all(wanted.get(&bias).unwrap()));
    }
}
