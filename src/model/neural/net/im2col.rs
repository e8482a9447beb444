//! The patches of images as the columns of a matrix (im2col), and back (col2im), for convolutions on the host.

use crate::model::neural::net::host::product::{MatrixView, multiply_into};

/// The largest number of groups of images in a backward pass, each with its own gradient of the weights.
pub(super) const GROUPS: usize = 16;

/// The least number of output positions in one product, so that reading the weights pays.
const ENOUGH_PLACES: usize = 256;

/// The shapes of a convolution of one batch.
#[derive(Clone, Copy)]
pub(super) struct ConvShape {
    pub(super) images: usize,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) kernel: usize,
    pub(super) padding: usize,
    pub(super) stride: usize,
    pub(super) height: usize,
    pub(super) width: usize,
    /// Rows and columns of the output.
    pub(super) high: usize,
    pub(super) wide: usize,
}

impl ConvShape {
    /// The length of an image.
    pub(super) fn input(&self) -> usize {
        self.from * self.height * self.width
    }

    /// The length of an image's output.
    pub(super) fn output(&self) -> usize {
        self.to * self.places()
    }

    /// Positions of an image's output.
    pub(super) fn places(&self) -> usize {
        self.high * self.wide
    }

    /// The length of a patch.
    pub(super) fn patch(&self) -> usize {
        self.from * self.kernel * self.kernel
    }

    /// Images whose patches have at most `max_addressed` elements, or one image; the patches of the backward pass, over
    /// the output's channels, count too.
    pub(super) fn images_addressed(&self, max_addressed: usize) -> usize {
        let channels = self.from.max(self.to);
        let places = self.places().max(self.height * self.width);
        let patches = channels * self.kernel * self.kernel * places;
        (max_addressed / patches.max(1)).max(1)
    }

    /// Images whose patches share one matrix.
    pub(super) fn images_per_product(&self) -> usize {
        let enough = ENOUGH_PLACES.div_ceil(self.places());
        enough.min(self.images.div_ceil(GROUPS)).max(1)
    }

    /// The output positions, of `0..n` along one axis, for which row or column `k` of the kernel reads inside an image of
    /// `size`: the first of them, their pixel, and the index that the first reads.
    pub(super) fn inside(&self, k: usize, n: usize, size: usize) -> (usize, usize, usize) {
        let first = self.padding.saturating_sub(k).div_ceil(self.stride).min(n);
        let end = (size + self.padding).saturating_sub(k).div_ceil(self.stride).min(n);
        let reads = (first * self.stride + k).saturating_sub(self.padding);
        (first, end.saturating_sub(first), reads)
    }

    /// Calls `each(place, pixel, n)` for every run of `n` consecutive entries of `cols` and the first pixel of it; the
    /// others are `stride` pixels apart.
    pub(super) fn runs(&self, images: usize, mut each: impl FnMut(usize, usize, usize)) {
        let (kernel, columns) = (self.kernel, images * self.places());
        for patch in 0..self.patch() {
            let (channel, cell) = (patch / (kernel * kernel), patch % (kernel * kernel));
            let (top, rows, from_row) = self.inside(cell / kernel, self.high, self.height);
            let (left, n, from_column) = self.inside(cell % kernel, self.wide, self.width);
            for image in 0..images {
                let place = patch * columns + image * self.places() + left;
                let origin = (image * self.from + channel) * self.height * self.width;
                for row in 0..rows {
                    let pixel = origin + (from_row + row * self.stride) * self.width + from_column;
                    each(place + (top + row) * self.wide, pixel, n);
                }
            }
        }
    }

    /// im2col: writes the patches `[patch, place]` of a group of images to `cols`; returns the number of places.
    pub(super) fn unfold(&self, x: &[f32], cols: &mut Vec<f32>) -> usize {
        let images = x.len() / self.input();
        cols.clear();
        cols.resize(self.patch() * images * self.places(), 0.0);
        self.runs(images, |place, pixel, n| {
            let cols = &mut cols[place..place + n];
            if self.stride == 1 {
                cols.copy_from_slice(&x[pixel..pixel + n]);
                return;
            }
            let x = x[pixel..].iter().step_by(self.stride);
            cols.iter_mut().zip(x).for_each(|(col, x)| *col = *x);
        });
        images * self.places()
    }

    /// col2im: adds `cols` to the pixels of the patches.
    pub(super) fn fold(&self, cols: &[f32], x: &mut [f32]) {
        self.runs(x.len() / self.input(), |place, pixel, n| {
            let cols = &cols[place..place + n];
            if self.stride == 1 {
                x[pixel..pixel + n].iter_mut().zip(cols).for_each(|(x, col)| *x += col);
                return;
            }
            let x = x[pixel..].iter_mut().step_by(self.stride);
            x.zip(cols).for_each(|(x, col)| *x += col);
        });
    }

    /// Transposes `[channel, image x place]` to `[image, channel, place]` and adds the channel's bias.
    pub(super) fn by_image(&self, by_channel: &[f32], bias: &[f32], out: &mut [f32]) {
        let (places, images) = (self.places(), out.len() / self.output());
        for (n, out) in out.chunks_exact_mut(places).enumerate() {
            let (image, channel) = (n / self.to, n % self.to);
            let own = &by_channel[(channel * images + image) * places..][..places];
            out.iter_mut().zip(own).for_each(|(out, x)| *out = x + bias[channel]);
        }
    }

    /// Transposes `[image, channel, place]` to `[channel, image x place]`.
    pub(super) fn by_channel(&self, images: &[f32]) -> Vec<f32> {
        let (places, n_images) = (self.places(), images.len() / self.output());
        let mut by_channel = vec![0.0; images.len()];
        for (n, own) in images.chunks_exact(places).enumerate() {
            let (image, channel) = (n / self.to, n % self.to);
            by_channel[(channel * n_images + image) * places..][..places].copy_from_slice(own);
        }
        by_channel
    }

    /// The gradients by weight and bias of a group of images; the gradient by the images is added to `of_input`, unless
    /// that is empty.
    pub(super) fn back(
        &self,
        weight: &[f32],
        x: &[f32],
        gradient: &[f32],
        of_input: &mut [f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let (patch, together) = (self.patch(), self.images_per_product());
        let mut of_weight = vec![0.0; self.to * patch];
        let mut of_bias = vec![0.0; self.to];
        let weight = MatrixView::by_rows(weight, self.to, patch).transpose();
        let (mut cols, mut of_cols) = (Vec::new(), Vec::new());
        let blocks =
            x.chunks(together * self.input()).zip(gradient.chunks(together * self.output()));
        for (block, (x, gradient)) in blocks.enumerate() {
            let places = self.unfold(x, &mut cols);
            let by_channel = self.by_channel(gradient);
            for (sum, own) in of_bias.iter_mut().zip(by_channel.chunks_exact(places)) {
                *sum += own.iter().sum::<f32>();
            }
            let gradient = MatrixView::by_rows(&by_channel, self.to, places);
            let cols = MatrixView::by_rows(&cols, patch, places);
            multiply_into(&mut of_weight, &gradient, &cols.transpose(), true);
            if !of_input.is_empty() {
                of_cols.resize(patch * places, 0.0);
                multiply_into(&mut of_cols, &weight, &gradient, false);
                self.fold(&of_cols, &mut of_input[block * together * self.input()..][..x.len()]);
            }
        }
        (of_weight, of_bias)
    }
}
