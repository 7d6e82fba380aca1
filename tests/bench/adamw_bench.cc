// The optimizer step over the parameters of Llama-2-7B, 291 tensors in one launch: time, the bytes that it
// must move at least, and the share of a copy's bandwidth measured in the same run. In the end torch's fused
// AdamW, all in BF16.
//
//   adamw_bench [FILTER]     only lines whose name contains FILTER
#include <cstdio>
#include <string>
#include <vector>

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/version.h>

#include "tests/bench/device_timer.h"
#include "worker/core/base/cuda_device.h"
#include "worker/core/kernels/cuda/cuda_kernels.h"
#include "worker/core/quant/moment_table.h"

namespace coat::bench {
namespace {

const at::Device kDevice(at::kCUDA, 0);

std::vector<std::int64_t> llama2_7b() {
  constexpr std::int64_t kHidden = 4096, kIntermediate = 11008, kVocab = 32000;
  std::vector<std::int64_t> sizes = {kVocab * kHidden};
  for (int layer = 0; layer < 32; ++layer) {
    for (int i = 0; i < 4; ++i) sizes.push_back(kHidden * kHidden);
    for (int i = 0; i < 3; ++i) sizes.push_back(kHidden * kIntermediate);
    for (int i = 0; i < 2; ++i) sizes.push_back(kHidden);
  }
  sizes.push_back(kHidden);
  sizes.push_back(kVocab * kHidden);
  return sizes;
}

struct Formats {
  const char* name;
  MomentFormat m, v;
  WeightFormat weights;
  Format gradient;
};

at::ScalarType type_of(Format format) { return format == Format::kFp32 ? at::kFloat : at::kBFloat16; }
Format value_format(WeightFormat weights) {
  return weights == WeightFormat::kFp32 ? Format::kFp32 : Format::kBf16;
}

class Bench {
 public:
  explicit Bench(std::string filter)
      : filter_(std::move(filter)),
        stream_{cuda_device::current_stream(kDevice)},
        copy_(copy_bandwidth(queue())),
        sizes_(llama2_7b()) {
    for (const std::int64_t size : sizes_) elements_ += size;
    std::printf("parameters %lld in %zu tensors\ncopy of 2 GiB: %.0f GB/s\n\n%-52s %9s %9s %9s %8s\n",
                static_cast<long long>(elements_), sizes_.size(), copy_, "step", "ms", "B/param", "GB/s",
                "of copy");
  }

  void ours(const Formats& formats);
  void torchs();

 private:
  void* queue() const { return stream_.handle; }
  bool wanted(const std::string& name) const { return name.find(filter_) != std::string::npos; }
  at::Tensor array(std::int64_t count, at::ScalarType type) const {
    return at::zeros({count}, at::TensorOptions(kDevice).dtype(type));
  }
  at::Tensor random(at::ScalarType type, double size) const {
    return array(elements_, type).normal_(0.0, size);
  }
  void print(const char* name, double ms, double bytes_a_parameter) const {
    const double rate = bytes_a_parameter * static_cast<double>(elements_) / ms / 1e6;
    std::printf("%-52s %9.3f %9.3f %9.0f %7.1f%%\n", name, ms, bytes_a_parameter, rate, 100 * rate / copy_);
    std::fflush(stdout);
  }

  std::string filter_;
  const kernels::Kernels& kernels_ = kernels::cuda_kernels();
  kernels::Stream stream_;
  double copy_;
  std::vector<std::int64_t> sizes_;
  std::int64_t elements_ = 0;
};

// A moment of all parameters, one after the other.
struct Moments {
  Moments(const MomentFormat& moment_format, const std::vector<std::int64_t>& sizes) : format(moment_format) {
    std::int64_t elements = 0, groups = 0;
    for (const std::int64_t size : sizes) {
      elements += size;
      groups += format.groups(size);
    }
    const at::TensorOptions device(kDevice);
    codes = at::zeros({elements}, device.dtype(format.is_quantized() ? at::kByte : at::kFloat));
    amax = at::zeros({groups}, device.dtype(type_of(format.amax_format)));
    row = at::full({groups}, kLastRow, device.dtype(at::kByte));
  }
  // Of the next tensor.
  kernels::MomentData next(std::int64_t size) {
    kernels::MomentData data{at(codes, done), at(amax, groups_done),
                             static_cast<std::uint8_t*>(at(row, groups_done))};
    done += size;
    groups_done += format.groups(size);
    return data;
  }
  static void* at(const at::Tensor& tensor, std::int64_t index) {
    return static_cast<char*>(tensor.data_ptr()) + index * static_cast<std::int64_t>(tensor.element_size());
  }
  MomentFormat format;
  at::Tensor codes, amax, row;
  std::int64_t done = 0, groups_done = 0;
};

void Bench::ours(const Formats& formats) {
  if (!wanted(formats.name)) return;
  const Format stored = value_format(formats.weights);
  const bool residual = formats.weights == WeightFormat::kBf16Residual;
  at::Tensor value = random(type_of(stored), 0.02), gradient = random(type_of(formats.gradient), 1e-3);
  const at::Tensor residuals = array(residual ? elements_ : 0, at::kChar);
  Moments m(formats.m, sizes_), v(formats.v, sizes_);
  kernels::AdamWArgs args{};
  std::int64_t done = 0;
  for (const std::int64_t size : sizes_) {
    args.tensors.push_back({.value = Moments::at(value, done),
                            .residual = residual ? residuals.data_ptr<std::int8_t>() + done : nullptr,
                            .gradient = Moments::at(gradient, done),
                            .elements = size,
                            .m = m.next(size),
                            .v = v.next(size),
                            .id = static_cast<std::uint32_t>(args.tensors.size())});
    done += size;
  }
  args.moment1 = formats.m;
  args.moment2 = formats.v;
  args.weights = formats.weights;
  args.gradient = formats.gradient;
  args.learning_rate = 1e-4f;
  args.beta1 = 0.9f;
  args.beta2 = 0.95f;
  args.eps = 1e-8f;
  args.weight_decay = 0.1f;
  args.bias_correction1 = args.bias_correction2 = 0.5;
  const auto step = [&] {
    ++args.step;
    kernels_.adamw(args, stream_);
  };
  // Moments as after some steps of training: of several gradients.
  for (int i = 0; i < 4; ++i) {
    gradient.normal_(0.0, 1e-3);
    step();
  }
  const double moments =
      static_cast<double>(formats.m.total_bytes(elements_) + formats.v.total_bytes(elements_));
  const int value_bytes = bytes_of(stored) + (residual ? 1 : 0);
  print(formats.name, median_ms(step, 7, queue()),
        2 * value_bytes + bytes_of(formats.gradient) + 2 * moments / static_cast<double>(elements_));
}

void Bench::torchs() {
  constexpr const char* kName = "torch fused, bf16 weights, gradients and moments";
  if (!wanted(kName)) return;
  const at::Tensor flat[] = {random(at::kBFloat16, 0.02), random(at::kBFloat16, 1e-3),
                             array(elements_, at::kBFloat16), array(elements_, at::kBFloat16)};
  std::vector<at::Tensor> lists[4], steps;
  std::int64_t done = 0;
  for (const std::int64_t size : sizes_) {
    for (int i = 0; i < 4; ++i) lists[i].push_back(flat[i].narrow(0, done, size));
    steps.push_back(at::full({}, 10.0, at::TensorOptions(kDevice).dtype(at::kFloat)));
    done += size;
  }
  const auto step = [&] {
    at::_fused_adamw_(lists[0], lists[1], lists[2], lists[3], {}, steps, 1e-4, 0.9, 0.95, 0.1, 1e-8, false,
                      false);
  };
  print(kName, median_ms(step, 7, queue()), 14);
}

int run(const std::string& filter) {
  cuda_device::use(kDevice);
  std::printf("date      %s\ndevice    %s\nversions  libtorch %s\n", date_line().c_str(),
              device_line().c_str(), TORCH_VERSION);
  Bench bench(filter);
  const auto stochastic = [](MomentCode code) {
    return moment_format(code, true, 128, Rounding::kStochastic);
  };
  const MomentFormat e4m3 = stochastic(MomentCode::kE4M3), octave = stochastic(MomentCode::kOctave8),
                     octave_v = stochastic(MomentCode::kOctave8Unsigned);
  constexpr auto kFp32 = WeightFormat::kFp32, kBf16 = WeightFormat::kBf16Stochastic,
                 kResidual = WeightFormat::kBf16Residual;
  bench.ours({"e4m3 + e4m3, bf16 weights and gradients", e4m3, e4m3, kBf16, Format::kBf16});
  bench.ours({"e4m3 + octave8, bf16 weights and gradients", e4m3, octave_v, kBf16, Format::kBf16});
  bench.ours({"octave8 + octave8, bf16 weights and gradients", octave, octave_v, kBf16, Format::kBf16});
  bench.ours(
      {"octave8 + octave8, residual weights, bf16 gradients", octave, octave_v, kResidual, Format::kBf16});
  bench.ours({"octave8 + octave8, fp32 weights, bf16 gradients", octave, octave_v, kFp32, Format::kBf16});
  bench.ours({"octave8 + octave8, fp32 weights and gradients", octave, octave_v, kFp32, Format::kFp32});
  bench.ours({"e4m3 + e4m3, fp32 weights and gradients", e4m3, e4m3, kFp32, Format::kFp32});
  bench.ours({"e4m3 + e4m3 to nearest, bf16 weights and gradients",
              moment_format(MomentCode::kE4M3, true, 128, Rounding::kNearestEven),
              moment_format(MomentCode::kE4M3, true, 128, Rounding::kNearestEven), kBf16, Format::kBf16});
  bench.ours({"fp32 moments, bf16 weights and gradients", {}, {}, kBf16, Format::kBf16});
  bench.torchs();
  return 0;
}

}  // namespace
}  // namespace coat::bench

int main(int argc, char** argv) { return coat::bench::run(argc > 1 ? argv[1] : ""); }
