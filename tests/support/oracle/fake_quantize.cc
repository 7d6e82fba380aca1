#include "tests/support/oracle/fake_quantize.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace coat::oracle {
namespace {

at::ScalarType element_type(Format format) {
  switch (format) {
    case Format::kFp32:
      return at::kFloat;
    case Format::kBf16:
      return at::kBFloat16;
    case Format::kE4M3:
      return at::kFloat8_e4m3fn;
    case Format::kE5M2:
      return at::kFloat8_e5m2;
  }
  return at::kFloat;
}

at::Tensor cast(const at::Tensor& x, Format format) { return x.to(element_type(format)).to(x.scalar_type()); }

// x / scale clamped to the format's range, rounded, times scale (broadcast).
at::Tensor scaled(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& stored_scale,
                  Format format) {
  const double largest = format == Format::kE4M3 ? 448.0 : 57344.0;
  return cast((x / scale).clamp(-largest, largest), format) * stored_scale;
}

at::Tensor scale_of(const at::Tensor& amax, const TensorFormat& format) {
  const double largest = format.format == Format::kE4M3 ? 448.0 : 57344.0;
  return (amax + static_cast<double>(format.rule.added)).clamp_min(1e-35) / largest;
}

at::Tensor stored(const at::Tensor& scale, ScaleFormat format) {
  switch (format) {
    case ScaleFormat::kFp32:
      return scale;
    case ScaleFormat::kBf16:
      return cast(scale, Format::kBf16);
    case ScaleFormat::kBf16Up: {
      const at::Tensor nearest = cast(scale, Format::kBf16);
      return at::where(nearest.lt(scale), cast(nearest * (1 + 0x1p-7), Format::kBf16), nearest);
    }
    case ScaleFormat::kE8M0:
      return at::exp2(at::ceil(at::log2(scale)));
  }
  return scale;
}

at::Tensor by_group(const at::Tensor& x, const TensorFormat& format) {
  const std::int64_t cols = x.size(-1);
  const std::int64_t padding = (format.group - cols % format.group) % format.group;
  const at::Tensor padded = at::constant_pad_nd(x, {0, padding});
  const at::Tensor groups = padded.unflatten(-1, {(cols + padding) / format.group, format.group});
  const at::Tensor scale = scale_of(groups.abs().amax(-1, true), format);
  const at::Tensor kept = stored(scale, format.scale_format);
  const at::Tensor used = format.rule.codes_use_stored_scale ? kept : scale;
  return scaled(groups, used, kept, format.format).flatten(-2).narrow(-1, 0, cols).contiguous();
}

std::vector<std::int64_t> encoded(const TensorFormat& f) {
  return {static_cast<std::int64_t>(f.format),
          static_cast<std::int64_t>(f.scaling),
          f.group,
          static_cast<std::int64_t>(f.scale_format),
          std::bit_cast<std::int32_t>(f.rule.added),
          f.rule.codes_use_stored_scale ? 1 : 0};
}

TensorFormat decoded(const std::vector<std::int64_t>& v) {
  return {static_cast<Format>(v[0]),
          static_cast<Scaling>(v[1]),
          static_cast<int>(v[2]),
          static_cast<ScaleFormat>(v[3]),
          {std::bit_cast<float>(static_cast<std::int32_t>(v[4])), v[5] != 0}};
}

struct RoundThrough : torch::autograd::Function<RoundThrough> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::vector<std::int64_t>& forward_format,
                            const std::vector<std::int64_t>& backward_format) {
    context->saved_data["backward"] = backward_format;
    return fake_quantize(x, decoded(forward_format));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto format = decoded(context->saved_data["backward"].toIntVector());
    return {fake_quantize(gradients[0], format), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor fake_quantize(const at::Tensor& x, const TensorFormat& format) {
  switch (format.scaling) {
    case Scaling::kNone:
      return format.format == Format::kFp32 ? x : cast(x, format.format);
    case Scaling::kTensor: {
      const at::Tensor scale = stored(scale_of(x.abs().amax(), format), format.scale_format);
      return scaled(x, scale, scale, format.format);
    }
    case Scaling::kGroup:
      return by_group(x, format);
    case Scaling::kRow:
    case Scaling::kBlock:
      throw std::logic_error("fake_quantize: no recipe has scales of rows or blocks");
  }
  return x;
}

at::Tensor round_through(const at::Tensor& x, const TensorFormat& forward, const TensorFormat& backward) {
  return RoundThrough::apply(x, encoded(forward), encoded(backward));
}

}  // namespace coat::oracle
