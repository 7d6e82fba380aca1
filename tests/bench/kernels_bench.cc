// Every CUDA kernel at the sizes of a 7-billion-parameter Llama (16,384 tokens, hidden 4096, intermediate
// 11008): time, bytes that it must move at least, and the share of a copy's bandwidth measured in the same
// run. Products and attention: TFLOP/s.
//
//   kernels_bench [FILTER]     only lines whose name contains FILTER
#include <cstdio>
#include <functional>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/version.h>

#include "tests/bench/device_timer.h"
#include "worker/core/base/cuda_device.h"
#include "worker/core/kernels/cuda/cuda_kernels.h"
#include "worker/core/layers/attention_core.h"
#include "worker/core/layers/context.h"

namespace coat::bench {
namespace {

constexpr std::int64_t kTokens = 16384, kHidden = 4096, kIntermediate = 11008, kVocab = 32000;
constexpr TensorFormat kFp32{Format::kFp32, Scaling::kNone};
constexpr TensorFormat kBf16{Format::kBf16, Scaling::kNone};
constexpr TensorFormat kE4M3{Format::kE4M3, Scaling::kTensor};
constexpr TensorFormat kE5M2{Format::kE5M2, Scaling::kTensor};
constexpr TensorFormat kSaved{Format::kE4M3, Scaling::kGroup, 16, ScaleFormat::kBf16};
const at::Device kDevice(at::kCUDA, 0);

class Bench {
 public:
  explicit Bench(std::string filter)
      : filter_(std::move(filter)),
        stream_{cuda_device::current_stream(kDevice)},
        copy_(copy_bandwidth(queue())) {
    std::printf("copy of 2 GiB: %.0f GB/s\n\n%-44s %10s %10s %10s %8s\n", copy_, "kernel", "ms", "GB", "GB/s",
                "of copy");
  }
  void* queue() const { return stream_.handle; }

  void bytes(const char* name, std::int64_t moved, const std::function<void()>& call) {
    if (!wanted(name)) return;
    const double ms = median_ms(call, 15, queue()), gb = static_cast<double>(moved) / 1e9;
    std::printf("%-44s %10.4f %10.3f %10.0f %7.1f%%\n", name, ms, gb, 1e3 * gb / ms,
                100 * (1e3 * gb / ms) / copy_);
    std::fflush(stdout);
  }
  void flops(const char* name, double count, const std::function<void()>& call) {
    if (!wanted(name)) return;
    const double ms = median_ms(call, 15, queue());
    std::printf("%-44s %10.4f %32.1f TFLOP/s\n", name, ms, count / ms / 1e9);
    std::fflush(stdout);
  }
  bool wanted(const std::string& name) const {
    return filter_.empty() || name.find(filter_) != std::string::npos;
  }

  void quantization();
  void norms();
  void mlp();
  void made_again();
  void layer_norm_and_gelu();
  void others();
  void products();
  void attention();

 private:
  StoredTensor random(const TensorFormat& format, std::int64_t rows, std::int64_t cols) const {
    const at::TensorOptions options = at::TensorOptions(kDevice).dtype(at::kBFloat16);
    const StoredTensor source = as_stored(at::randn({rows, cols}, options));
    if (format == kBf16) return source;
    StoredTensor stored = empty(format, rows, cols);
    kernels_.quantize({.in = source.view(), .out = stored.view()}, stream_);
    return stored;
  }
  static StoredTensor empty(const TensorFormat& format, std::int64_t rows, std::int64_t cols) {
    return empty_stored(format, rows, cols, kDevice);
  }
  static at::Tensor floats(std::int64_t count) {
    return at::randn({count}, at::TensorOptions(kDevice).dtype(at::kFloat));
  }
  static float* data(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

  std::string filter_;
  const kernels::Kernels& kernels_ = kernels::cuda_kernels();
  kernels::Stream stream_;
  double copy_;
};

void Bench::quantization() {
  const at::Tensor amax = floats(1);
  const auto convert = [&](const char* name, const TensorFormat& from, const TensorFormat& to,
                           bool transposed, bool known) {
    if (!wanted(name)) return;
    StoredTensor in = random(from, kTokens, kIntermediate), out = empty(to, kTokens, kIntermediate);
    StoredTensor turned = transposed ? empty(to, kIntermediate, kTokens) : StoredTensor{};
    kernels::QuantizeArgs args{.in = in.view(), .out = out.view(), .amax = known ? data(amax) : nullptr};
    if (transposed) args.out_transposed = turned.view();
    const std::int64_t again = known || to.scaling != Scaling::kTensor ? 0 : in.bytes();
    bytes(name, in.bytes() + again + out.bytes() + (transposed ? turned.bytes() : 0),
          [&] { kernels_.quantize(args, stream_); });
  };
  kernels_.amax(random(kBf16, kTokens, kIntermediate).view(), data(amax), stream_);
  convert("quantize bf16 to e4m3, amax known", kBf16, kE4M3, false, true);
  convert("quantize bf16 to e4m3, amax found", kBf16, kE4M3, false, false);
  convert("quantize bf16 to e4m3 and transposed", kBf16, kE4M3, true, true);
  convert("quantize bf16 to e5m2 and transposed", kBf16, kE5M2, true, true);
  convert("quantize bf16 to e4m3 1x16", kBf16, kSaved, false, true);
  convert("quantize fp32 to e4m3, amax found", kFp32, kE4M3, false, false);
  convert("quantize fp32 to e4m3 and transposed, found", kFp32, kE4M3, true, false);
  convert("quantize fp32 to bf16", kFp32, kBf16, false, true);
}

void Bench::norms() {
  const at::Tensor weight = floats(kHidden), rstd = floats(kTokens), dweight = floats(kHidden),
                   amax = floats(1);
  for (const TensorFormat& format : {kSaved, kBf16}) {
    const bool saved = format == kSaved;
    StoredTensor x = random(format, kTokens, kHidden), y = empty(kBf16, kTokens, kHidden),
                 dy = random(kBf16, kTokens, kHidden), dx = empty(kBf16, kTokens, kHidden);
    bytes(saved ? "rms_norm_forward, e4m3 1x16" : "rms_norm_forward, bf16", x.bytes() + y.bytes(), [&] {
      kernels_.rms_norm_forward({x.view(), data(weight), 1e-5f, y.view(), data(rstd), data(amax)}, stream_);
    });
    bytes(saved ? "rms_norm_backward, e4m3 1x16" : "rms_norm_backward, bf16",
          x.bytes() + dy.bytes() + dx.bytes(), [&] {
            kernels_.rms_norm_backward(
                {x.view(), data(weight), data(rstd), dy.view(), dx.view(), data(dweight)}, stream_);
          });
  }
}

void Bench::mlp() {
  const at::Tensor amax = floats(2);
  for (const TensorFormat& format : {kSaved, kBf16}) {
    const bool saved = format == kSaved;
    StoredTensor gate = random(format, kTokens, kIntermediate), up = random(format, kTokens, kIntermediate),
                 product = empty(kBf16, kTokens, kIntermediate),
                 active = empty(kBf16, kTokens, kIntermediate),
                 dproduct = random(kBf16, kTokens, kIntermediate),
                 dgate = empty(kBf16, kTokens, kIntermediate), dup = empty(kBf16, kTokens, kIntermediate);
    const Matrix activation = saved ? Matrix{} : active.view();
    bytes(
        saved ? "swiglu_forward, e4m3 1x16" : "swiglu_forward, bf16, activation kept",
        gate.bytes() + up.bytes() + product.bytes() + (saved ? 0 : active.bytes()), [&] {
          kernels_.swiglu_forward({gate.view(), up.view(), product.view(), activation, data(amax)}, stream_);
        });
    bytes(saved ? "swiglu_backward, e4m3 1x16" : "swiglu_backward, bf16, activation kept",
          gate.bytes() + up.bytes() + dproduct.bytes() + dgate.bytes() + dup.bytes() +
              (saved ? 0 : active.bytes()),
          [&] {
            kernels_.swiglu_backward({gate.view(), up.view(), dproduct.view(), activation, dgate.view(),
                                      dup.view(), data(amax), data(amax) + 1},
                                     stream_);
          });
  }
}

// Operands of backward from what was saved, transposed alone, as FP8 tensor cores read them.
void Bench::made_again() {
  const at::Tensor weight = floats(kHidden), rstd = floats(kTokens),
                   amax = at::full({1}, 4.0f, at::TensorOptions(kDevice).dtype(at::kFloat));
  StoredTensor x = random(kSaved, kTokens, kHidden), y = empty(kE4M3, kHidden, kTokens);
  bytes("rms_norm_recompute, e4m3 1x16", x.bytes() + y.bytes(), [&] {
    kernels_.rms_norm_recompute({x.view(), data(weight), data(rstd), data(amax), {{}, y.view()}}, stream_);
  });
  StoredTensor gate = random(kSaved, kTokens, kIntermediate), up = random(kSaved, kTokens, kIntermediate),
               product = empty(kE4M3, kIntermediate, kTokens);
  bytes("swiglu_recompute, e4m3 1x16", gate.bytes() + up.bytes() + product.bytes(), [&] {
    kernels_.swiglu_recompute({gate.view(), up.view(), data(amax), {{}, product.view()}}, stream_);
  });
}

void Bench::layer_norm_and_gelu() {
  const at::Tensor mean = floats(kTokens), rstd = floats(kTokens), amax = floats(1);
  StoredTensor x = random(kSaved, kTokens, kHidden), y = empty(kBf16, kTokens, kHidden),
               dy = random(kBf16, kTokens, kHidden);
  bytes("layer_norm_forward, e4m3 1x16", x.bytes() + y.bytes(), [&] {
    kernels_.layer_norm_forward({x.view(), 1e-5f, y.view(), data(mean), data(rstd), data(amax)}, stream_);
  });
  bytes("layer_norm_backward, e4m3 1x16", x.bytes() + dy.bytes() + y.bytes(), [&] {
    kernels_.layer_norm_backward({x.view(), data(mean), data(rstd), dy.view(), y.view()}, stream_);
  });
  bytes("gelu_forward, e4m3 1x16", x.bytes() + y.bytes(), [&] {
    kernels_.gelu_forward({x.view(), y.view(), data(amax)}, stream_);
  });
  bytes("gelu_backward, e4m3 1x16", x.bytes() + dy.bytes() + y.bytes(), [&] {
    kernels_.gelu_backward({x.view(), dy.view(), y.view(), data(amax)}, stream_);
  });
}

void Bench::others() {
  StoredTensor a = random(kBf16, kTokens, kHidden), b = random(kBf16, kTokens, kHidden),
               sum = empty(kBf16, kTokens, kHidden), saved = empty(kSaved, kTokens, kHidden);
  const at::Tensor amax = floats(1);
  bytes("rope", 2 * a.bytes(), [&] { kernels_.rope({a.view(), 32, 128, 2048, 1e4f, false}, stream_); });
  bytes("residual_add, quantized 1x16 too", 3 * a.bytes() + saved.bytes(), [&] {
    kernels_.residual_add({a.view(), b.view(), sum.view(), saved.view(), nullptr}, stream_);
  });
  bytes("residual_add, amax", 3 * a.bytes(), [&] {
    kernels_.residual_add({a.view(), b.view(), sum.view(), Matrix{}, data(amax)}, stream_);
  });
  const at::Tensor tokens = at::randint(kVocab, {kTokens}, at::TensorOptions(kDevice).dtype(at::kInt));
  const at::Tensor table = floats(kVocab * kHidden);
  const auto* ids = tokens.const_data_ptr<std::int32_t>();
  const ConstMatrix weight{table.const_data_ptr(), nullptr, kFp32, kVocab, kHidden};
  bytes("embedding_forward, quantized 1x16 too", 3 * a.bytes() + saved.bytes(), [&] {
    kernels_.embedding_forward({ids, weight, sum.view(), saved.view()}, stream_);
  });
  // Rows of the table that some token names are read and written once: about 12,800 of the 16,384.
  bytes("embedding_backward", a.bytes() + 12800 * kHidden * 8, [&] {
    kernels_.embedding_backward({ids, a.view(), kVocab, data(table)}, stream_);
  });
  constexpr std::int64_t kRows = 1024;  // what the head makes at once with this vocabulary
  const at::Tensor logits = floats(kRows * kVocab);
  const at::Tensor loss = at::zeros({1}, at::TensorOptions(kDevice).dtype(at::kDouble));
  for (const std::int64_t count : {std::int64_t{256}, kRows}) {
    const Matrix rows{data(logits), nullptr, kFp32, count, kVocab};
    bytes(("cross_entropy, " + std::to_string(count) + " rows").c_str(), 2 * 4 * count * kVocab, [&] {
      kernels_.cross_entropy({rows, ids, nullptr, 1e-4f, loss.mutable_data_ptr<double>()}, stream_);
    });
  }
  bytes("sum_of_squares, 131M", table.numel() * 4, [&] {
    kernels_.sum_of_squares({{data(table), Format::kFp32, table.numel()}}, loss.mutable_data_ptr<double>(),
                            stream_);
  });
}

void Bench::products() {
  const double flop = 2.0 * kTokens * kHidden * kIntermediate;
  const auto product = [&](const char* name, const TensorFormat& operand, const TensorFormat& out) {
    if (!wanted(name)) return;
    StoredTensor x = random(operand, kTokens, kHidden), w = random(operand, kIntermediate, kHidden),
                 y = empty(out, kTokens, kIntermediate);
    flops(name, flop, [&] { kernels_.gemm({.a = x.view(), .b = w.view(), .out = y.view()}, stream_); });
  };
  product("gemm e4m3 x e4m3 to bf16", kE4M3, kBf16);
  product("gemm e4m3 x e4m3 to e4m3 1x16", kE4M3, kSaved);
  product("gemm bf16 x bf16 to bf16", kBf16, kBf16);
}

void Bench::attention() {
  const layers::AttentionShape shape{8, 2048, 32, 32, 128};
  const layers::LayerContext context{kernels_, stream_, kDevice, recipe("coat"), nullptr};
  StoredTensor q = random(kBf16, kTokens, kHidden), k = random(kBf16, kTokens, kHidden),
               v = random(kBf16, kTokens, kHidden), out = empty(kBf16, kTokens, kHidden),
               d_out = random(kBf16, kTokens, kHidden), dq = empty(kBf16, kTokens, kHidden),
               dk = empty(kBf16, kTokens, kHidden), dv = empty(kBf16, kTokens, kHidden);
  const at::Tensor log_sum_exp = layers::empty_fp32(context, {kTokens, 32});
  const layers::AttentionCore& core = layers::attention_core(at::kCUDA);
  const double flop = 2.0 * kTokens * 2048 * kHidden;  // half of the scores, two products
  flops("attention forward, 8 x 2048, 32 heads of 128", flop, [&] {
    core.forward(context, {shape, q.view(), k.view(), v.view(), out.view(), log_sum_exp});
  });
  core.forward(context, {shape, q.view(), k.view(), v.view(), out.view(), log_sum_exp});
  flops("attention backward", 2.5 * flop, [&] {
    core.backward(context, {shape, q.view(), k.view(), v.view(), out.view(), log_sum_exp, d_out.view(),
                            dq.view(), dk.view(), dv.view()});
  });
}

int run(const std::string& filter) {
  cuda_device::use(kDevice);
  std::printf("date      %s\ndevice    %s\nversions  libtorch %s\n", date_line().c_str(),
              device_line().c_str(), TORCH_VERSION);
  Bench bench(filter);
  bench.quantization();
  bench.norms();
  bench.mlp();
  bench.made_again();
  bench.layer_norm_and_gelu();
  bench.others();
  bench.products();
  bench.attention();
  return 0;
}

}  // namespace
}  // namespace coat::bench

int main(int argc, char** argv) { return coat::bench::run(argc > 1 ? argv[1] : ""); }
