// Attention on the device against ATen's on the CPU, and against itself.
#include <cmath>

#include "tests/gpu/paired.h"
#include "worker/core/base/cuda_device.h"
#include "worker/core/layers/attention_core.h"

namespace coat::gpu_test {
namespace {

using layers::AttentionCore;
using layers::AttentionShape;
using layers::LayerContext;

std::string describe(const AttentionShape& shape) {
  std::string text;
  for (const std::int64_t size :
       {shape.sequences, shape.length, shape.heads, shape.kv_heads, shape.head_dim}) {
    text += (text.empty() ? "" : " x ") + std::to_string(size);
  }
  return text;
}

double relative_distance(const std::vector<float>& values, const std::vector<float>& reference) {
  double difference = 0, sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double distance = double{values[i]} - double{reference[i]};
    difference += distance * distance;
    sum += double{reference[i]} * double{reference[i]};
  }
  return std::sqrt(difference / sum);
}

// Some neighbouring sequences, and some neighbouring heads of them.
struct Part {
  std::int64_t sequence = 0, sequences = 0, kv_head = 0, kv_heads = 0;
};

std::vector<float> part_of(const std::vector<float>& all, const AttentionShape& shape, std::int64_t heads,
                           const Part& part) {
  const std::int64_t shared = heads / shape.kv_heads;  // by a key-value head
  std::vector<float> out;
  for (std::int64_t row = part.sequence * shape.length; row < (part.sequence + part.sequences) * shape.length;
       ++row) {
    const auto first = all.begin() + (row * heads + part.kv_head * shared) * shape.head_dim;
    out.insert(out.end(), first, first + part.kv_heads * shared * shape.head_dim);
  }
  return out;
}

// One attention's matrices on both sides.
class Attention {
 public:
  explicit Attention(const AttentionShape& shape)
      : Attention(shape, random(shape.tokens() * shape.width(), 1),
                  random(shape.tokens() * shape.kv_width(), 2), random(shape.tokens() * shape.kv_width(), 3),
                  random(shape.tokens() * shape.width(), 4)) {}

  void run_on_cpu() { run(kernels::cpu_kernels(), at::Device(at::kCPU), {}, &PairedMatrix::host); }
  void run_on_cuda() {
    const at::Device device(at::kCUDA, 0);
    run(kernels::cuda_kernels(), device, {cuda_device::current_stream(device)}, &PairedMatrix::device);
  }

  PairedMatrix& out() { return out_; }
  std::vector<PairedMatrix*> gradients() { return {&dq_, &dk_, &dv_}; }
  std::vector<std::vector<float>> gradients_from_device() {
    std::vector<std::vector<float>> all;
    for (PairedMatrix* gradient : gradients()) all.push_back(gradient->decoded_device());
    return all;
  }
  // A part as an attention of its own.
  Attention alone(const Part& part) {
    AttentionShape shape = shape_;
    shape.sequences = part.sequences;
    shape.kv_heads = part.kv_heads;
    shape.heads = part.kv_heads * shape_.heads / shape_.kv_heads;
    const auto of = [&](PairedMatrix& matrix, std::int64_t heads) {
      return part_of(matrix.decoded_host(), shape_, heads, part);
    };
    return {shape, of(q_, shape_.heads), of(k_, shape_.kv_heads), of(v_, shape_.kv_heads),
            of(d_out_, shape_.heads)};
  }

 private:
  Attention(const AttentionShape& shape, const std::vector<float>& q, const std::vector<float>& k,
            const std::vector<float>& v, const std::vector<float>& d_out)
      : shape_(shape),
        q_(kBf16, shape.tokens(), shape.width(), q),
        k_(kBf16, shape.tokens(), shape.kv_width(), k),
        v_(kBf16, shape.tokens(), shape.kv_width(), v),
        d_out_(kBf16, shape.tokens(), shape.width(), d_out),
        out_(kBf16, shape.tokens(), shape.width()),
        dq_(kBf16, shape.tokens(), shape.width()),
        dk_(kBf16, shape.tokens(), shape.kv_width()),
        dv_(kBf16, shape.tokens(), shape.kv_width()) {}
  static std::vector<float> random(std::int64_t count, std::uint64_t seed) {
    return values(count, Fill::kSpread, seed);
  }
  void run(const kernels::Kernels& kernels, at::Device device, kernels::Stream stream,
           Matrix (PairedMatrix::*side)()) {
    const LayerContext context{kernels, stream, device, recipe("coat"), nullptr};
    const AttentionCore& core = layers::attention_core(device.type());
    const at::Tensor log_sum_exp = layers::empty_fp32(context, {shape_.tokens(), shape_.heads});
    const Matrix q = (q_.*side)(), k = (k_.*side)(), v = (v_.*side)(), out = (out_.*side)();
    core.forward(context, {shape_, q, k, v, out, log_sum_exp});
    core.backward(context, {shape_, q, k, v, out, log_sum_exp, (d_out_.*side)(), (dq_.*side)(), (dk_.*side)(),
                            (dv_.*side)()});
  }

  AttentionShape shape_;
  PairedMatrix q_, k_, v_, d_out_, out_, dq_, dk_, dv_;
};

using AttentionTest = GpuTest;

// Probabilities, their gradients, both factors of d_out * out and each result are rounded to BF16 on the
// device, by 2^-9 in the root mean square at most; probabilities' gradients are differences, which doubles
// what is lost.
constexpr double kBound = 0x1p-7;

TEST_F(AttentionTest, IsThatOfTheCpu) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 64, 4, 2, 32}, AttentionShape{3, 1, 2, 2, 64}, AttentionShape{2, 17, 4, 1, 64},
        AttentionShape{2, 129, 6, 3, 40}, AttentionShape{1, 1000, 4, 4, 128},
        AttentionShape{5, 300, 8, 2, 64}, AttentionShape{1, 2048, 32, 8, 128}}) {
    SCOPED_TRACE(describe(shape));
    Attention attention(shape);
    attention.run_on_cpu();
    attention.run_on_cuda();
    EXPECT_LT(relative_distance(attention.out().decoded_device(), attention.out().decoded_host()), kBound);
    for (PairedMatrix* gradient : attention.gradients()) {
      EXPECT_TRUE(gradient->guards_are_intact());
      const std::vector<float> cpu = gradient->decoded_host(), cuda = gradient->decoded_device();
      if (shape.length == 1 && gradient != attention.gradients().back()) {
        for (const float value : cuda)
          EXPECT_NEAR(value, 0.0f, 0x1p-6) << "one key: nothing depends on scores";
      } else {
        EXPECT_LT(relative_distance(cuda, cpu), kBound)
            << "gradient " << gradient - attention.gradients().front();
      }
    }
  }
}

TEST_F(AttentionTest, EqualRunsGiveEqualBits) {
  for (const AttentionShape& shape :
       {AttentionShape{8, 1024, 16, 4, 128}, AttentionShape{4, 2048, 16, 16, 64}}) {
    SCOPED_TRACE(describe(shape));
    Attention attention(shape);
    attention.run_on_cuda();
    const auto first = attention.gradients_from_device();
    for (int again = 0; again < 5; ++again) {
      attention.run_on_cuda();
      EXPECT_TRUE(attention.gradients_from_device() == first);
    }
  }
}

std::int64_t workspace_bytes(const AttentionShape& shape) {
  return layers::attention_core(at::kCUDA).backward_workspace_bytes(shape);
}

TEST_F(AttentionTest, WorkspaceIsBounded) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  for (const AttentionShape& shape : {AttentionShape{2, 256, 4, 2, 64}, AttentionShape{8, 2048, 32, 8, 128},
                                      AttentionShape{1, 8192, 8, 4, 64}}) {
    EXPECT_GT(workspace_bytes(shape), 0) << describe(shape);
    EXPECT_LE(workspace_bytes(shape), kMost) << describe(shape);
  }
}

// What would take more is done in pieces, of sequences or of heads: each has what it has alone, where cuDNN
// may choose another kernel.
TEST_F(AttentionTest, PiecesAreWhatTheyAreAlone) {
  const std::pair<AttentionShape, Part> cases[] = {{{5, 2048, 32, 8, 128}, {3, 2, 1, 3}},
                                                   {{1, 8192, 8, 4, 64}, {0, 1, 1, 2}}};
  for (const auto& [shape, part] : cases) {
    SCOPED_TRACE(describe(shape));
    ASSERT_LT(workspace_bytes(shape), 2 * shape.sequences * shape.heads * shape.length * shape.length)
        << "it is one piece";
    Attention whole(shape);
    Attention alone = whole.alone(part);
    whole.run_on_cuda();
    alone.run_on_cuda();
    const auto all = whole.gradients_from_device(), one = alone.gradients_from_device();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::int64_t heads = i == 0 ? shape.heads : shape.kv_heads;
      EXPECT_LT(relative_distance(one[i], part_of(all[i], shape, heads, part)), kBound) << "gradient " << i;
    }
  }
}

}  // namespace
}  // namespace coat::gpu_test
