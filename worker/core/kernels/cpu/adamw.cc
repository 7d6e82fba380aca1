#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/moment_codec.h"
#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/quant/bf16.h"

namespace coat::kernels::cpu {
namespace {

// What is left of a moment is relative * scale; its new value takes the place of `relative`.
struct OldMoment {
  float* __restrict relative;
  const float* __restrict scale;
};

void update(const UpdateScalars& s, float gradient_factor, float kept, std::int64_t n,
            const float* __restrict gradient, float* __restrict value, const OldMoment& old_m,
            const OldMoment& old_v) {
  float* __restrict m = old_m.relative;
  float* __restrict v = old_v.relative;
  const float* __restrict m_scale = old_m.scale;
  const float* __restrict v_scale = old_v.scale;
  for (std::int64_t i = 0; i < n; ++i) {
    const float h = gradient_factor * gradient[i];
    m[i] = std::fma(m[i], m_scale[i], h);
    v[i] = std::fma(v[i], v_scale[i], s.square * h * h);
    value[i] = std::fma(-m[i], 1.0f / std::fma(std::sqrt(v[i]), s.inverse_step, s.eps), kept * value[i]);
  }
}

// The span as FP32: where it lies, or copied into `copy`.
const float* as_fp32(const void* data, Format format, std::int64_t first, std::int64_t n, float* copy) {
  if (format == Format::kFp32) return static_cast<const float*>(data) + first;
  const auto* codes = static_cast<const std::uint16_t*>(data) + first;
  for (std::int64_t i = 0; i < n; ++i) copy[i] = decode_bf16(codes[i]);
  return copy;
}

// One span of elements, FP32, and what it takes to make it.
struct Buffers {
  explicit Buffers(std::int64_t width) {
    for (std::vector<float>* buffer : {&m, &v, &m_scale, &v_scale, &value, &gradient, &stored_m, &stored_v}) {
      buffer->resize(static_cast<std::size_t>(width));
    }
  }
  std::vector<float> m, v, m_scale, v_scale, value, gradient, stored_m, stored_v, ratio;
  std::vector<std::uint32_t> random;
};

struct Span {
  std::int64_t first, n;
};

// *sums += the error of m / (sqrt(v) + eps).
void measure_update(const Buffers& b, std::int64_t n, double eps, ErrorSums* sums) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const double reference = double{b.m[i]} / (std::sqrt(double{b.v[i]}) + eps);
    const double kept = double{b.stored_m[i]} / (std::sqrt(double{b.stored_v[i]}) + eps);
    sums->error_squared += (kept - reference) * (kept - reference);
    sums->reference_squared += reference * reference;
    sums->underflowed += reference != 0.0 && kept == 0.0 ? 1.0 : 0.0;
  }
  sums->elements += static_cast<double>(n);
}

// All tensors of a step, cut into tiles that are numbered through. A tile fits the first-level cache and
// splits no group; what it computes does not depend on the number of threads.
class Step {
 public:
  explicit Step(const AdamWArgs& args)
      : args_(args),
        scalars_(update_scalars(args)),
        gradient_factor_(scalars_.rest1 * (args.gradient_scale != nullptr ? *args.gradient_scale : 1.0f)),
        moment1_(args.moment1, MomentUse::kFirst),
        moment2_(args.moment2, MomentUse::kSecond),
        draws_(moment1_.is_stochastic() || moment2_.is_stochastic() ||
               args.weights == WeightFormat::kBf16Stochastic) {
    if (args.gradient != Format::kFp32 && args.gradient != Format::kBf16) {
      throw std::logic_error("adamw: gradients must be FP32 or BF16");
    }
    constexpr std::int64_t kTileElements = 1024;
    const auto unit_of = [](const MomentFormat& format) { return format.is_quantized() ? format.group : 1; };
    const std::int64_t unit =
        std::lcm(std::int64_t{unit_of(args.moment1)}, std::int64_t{unit_of(args.moment2)});
    width_ = unit * std::max<std::int64_t>(1, kTileElements / unit);
    for (const AdamWTensor& tensor : args.tensors) {
      first_tile_.push_back(tiles_);
      tiles_ += (tensor.elements + width_ - 1) / width_;
    }
  }

  bool is_skipped() const { return std::isnan(gradient_factor_); }
  std::int64_t tiles() const { return tiles_; }

  // Tiles [begin, end); `errors` holds one entry a tile, or is nullptr.
  void run(std::int64_t begin, std::int64_t end, AdamWErrors* errors) const {
    Buffers buffers(width_);
    std::size_t tensor = 0;
    for (std::int64_t index = begin; index < end; ++index) {
      while (tensor + 1 < first_tile_.size() && first_tile_[tensor + 1] <= index) ++tensor;
      const std::int64_t first = (index - first_tile_[tensor]) * width_;
      const Span span{first, std::min(width_, args_.tensors[tensor].elements - first)};
      run_tile(args_.tensors[tensor], span, buffers);
      if (errors != nullptr) measure_tile(args_.tensors[tensor], span, buffers, errors[index]);
    }
  }

 private:
  void run_tile(const AdamWTensor& tensor, const Span& span, Buffers& b) const {
    const auto [first, n] = span;
    moment1_.load_relative(tensor.m, first, n, scalars_.beta1, b.m.data(), b.m_scale.data());
    moment2_.load_relative(tensor.v, first, n, scalars_.beta2, b.v.data(), b.v_scale.data());
    const float* gradient = as_fp32(tensor.gradient, args_.gradient, first, n, b.gradient.data());
    float* value = load_value(tensor, span, b);
    update(scalars_, gradient_factor_, value_kept(args_, tensor.decay), n, gradient, value,
           {b.m.data(), b.m_scale.data()}, {b.v.data(), b.v_scale.data()});
    const std::uint32_t* random = nullptr;
    if (draws_) {
      random =
          fill_rounding_bits({args_.seed, args_.step, tensor.id}, tensor.first_index + first, n, b.random);
    }
    store_value(tensor, span, value, random);
    moment1_.store(tensor.m, first, n, b.m.data(), random, b.ratio);
    moment2_.store(tensor.v, first, n, b.v.data(), random, b.ratio);
  }

  // FP32 values are updated where they lie.
  float* load_value(const AdamWTensor& tensor, const Span& span, Buffers& b) const {
    if (args_.weights == WeightFormat::kFp32) return static_cast<float*>(tensor.value) + span.first;
    const auto* codes = static_cast<const std::uint16_t*>(tensor.value) + span.first;
    for (std::int64_t i = 0; i < span.n; ++i) {
      const bool residual = args_.weights == WeightFormat::kBf16Residual;
      b.value[static_cast<std::size_t>(i)] =
          residual ? join_weight(codes[i], tensor.residual[span.first + i]) : decode_bf16(codes[i]);
    }
    return b.value.data();
  }

  void store_value(const AdamWTensor& tensor, const Span& span, const float* value,
                   const std::uint32_t* random) const {
    if (args_.weights == WeightFormat::kFp32) return;
    auto* codes = static_cast<std::uint16_t*>(tensor.value) + span.first;
    if (args_.weights == WeightFormat::kBf16Stochastic) {
      for (std::int64_t i = 0; i < span.n; ++i) {
        codes[i] = round_bf16_stochastic(value[i], weight_rounding_bits(random[i]));
      }
      return;
    }
    for (std::int64_t i = 0; i < span.n; ++i) {
      const SplitWeight split = split_weight(value[i]);
      codes[i] = split.bf16;
      tensor.residual[span.first + i] = split.residual;
    }
  }

  // Of the tile that has just been stored.
  void measure_tile(const AdamWTensor& tensor, const Span& span, Buffers& b, AdamWErrors& errors) const {
    moment1_.load(tensor.m, span.first, span.n, b.stored_m.data());
    moment2_.load(tensor.v, span.first, span.n, b.stored_v.data());
    moment1_.measure(tensor.m, span.first, span.n, b.m.data(), b.stored_m.data(), &errors.moment1);
    moment2_.measure(tensor.v, span.first, span.n, b.v.data(), b.stored_v.data(), &errors.moment2);
    measure_update(b, span.n, double{args_.eps}, &errors.update);
  }

  const AdamWArgs& args_;
  UpdateScalars scalars_;
  float gradient_factor_;
  MomentCodec moment1_, moment2_;
  bool draws_;  // random numbers
  std::int64_t width_ = 0, tiles_ = 0;
  std::vector<std::int64_t> first_tile_;
};

}  // namespace

void adamw(const AdamWArgs& args, AdamWErrors* errors) {
  const Step step(args);
  if (step.is_skipped()) return;
  std::vector<AdamWErrors> parts(errors != nullptr ? static_cast<std::size_t>(step.tiles()) : 0);
  at::parallel_for(0, step.tiles(), 8, [&](std::int64_t begin, std::int64_t end) {
    step.run(begin, end, errors != nullptr ? parts.data() : nullptr);
  });
  for (const AdamWErrors& part : parts) {
    errors->moment1.add(part.moment1);
    errors->moment2.add(part.moment2);
    errors->update.add(part.update);
  }
}

}  // namespace coat::kernels::cpu
