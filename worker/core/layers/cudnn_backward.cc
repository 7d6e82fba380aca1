#include "worker/core/layers/cudnn_backward.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

// cuDNN is the one that libtorch has loaded.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <ATen/ops/empty.h>

#include "worker/core/base/error.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace coat::layers {
namespace {

namespace fe = cudnn_frontend;

constexpr std::int64_t kMostWorkspace = std::int64_t{1} << 30;

std::int64_t parts(std::int64_t size, std::int64_t part) { return (size + part - 1) / part; }

// The ordered way keeps the probabilities' gradient, [length, length] a head, in BF16: a call takes some
// sequences, or some heads of one.
struct Piece {
  std::int64_t sequences = 0, heads = 0;
};

// Beside it the sums of d_out * out, and dk and dv of every query head where those share one.
std::int64_t workspace_of_a_head(const AttentionShape& shape) {
  const std::int64_t length = parts(shape.length, 128) * 128;
  const std::int64_t expanded = shape.kv_heads < shape.heads ? 4 * length * shape.head_dim : 0;
  return 2 * length * length + 4 * length + expanded;
}

// As equal as may be. No heads: not one key-value head's fit.
Piece piece_of(const AttentionShape& shape) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  const std::int64_t groups = std::min(shape.kv_heads, kMostWorkspace / (group * workspace_of_a_head(shape)));
  if (groups == 0) return {};
  if (groups < shape.kv_heads) return {1, group * parts(shape.kv_heads, parts(shape.kv_heads, groups))};
  const std::int64_t sequences =
      std::min(shape.sequences, kMostWorkspace / (shape.heads * workspace_of_a_head(shape)));
  return {parts(shape.sequences, parts(shape.sequences, sequences)), shape.heads};
}

void check(fe::error_t error) {
  if (error.is_bad()) throw DeviceFaultError("attention: cuDNN: " + error.get_message());
}
void check(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const std::string message = std::string("attention: cuDNN: ") + fe::detail::get_error_string(status);
  if (status == CUDNN_STATUS_ALLOC_FAILED) throw OutOfDeviceMemoryError(message);
  throw DeviceFaultError(message);
}

cudnnHandle_t handle_of(const LayerContext& context) {
  static auto& handles = *new std::map<int, cudnnHandle_t>();
  cudnnHandle_t& handle = handles[context.device.index()];
  if (handle == nullptr) {
    constexpr const char* kLibrary = "libcudnn.so.9";
    if (fe::cudnn_dlhandle == nullptr) fe::cudnn_dlhandle = dlopen(kLibrary, RTLD_NOW);
    if (fe::cudnn_dlhandle == nullptr) throw DeviceFaultError(std::string("attention: ") + dlerror());
    check(fe::detail::create_handle(&handle));
  }
  check(fe::detail::set_stream(handle, static_cast<cudaStream_t>(context.stream.handle)));
  return handle;
}

enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kDOut, kStats, kDq, kDk, kDv };

// What cuDNN runs for a piece of a shape.
class Plan {
 public:
  // Of matrices of the whole shape's width.
  Plan(cudnnHandle_t handle, const AttentionShape& shape, const Piece& piece) {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const std::int64_t kv_heads = piece.heads * shape.kv_heads / shape.heads;
    using Dimensions = std::vector<std::int64_t>;
    const auto dimensions = [&](std::int64_t heads) -> Dimensions {
      return {piece.sequences, heads, shape.length, shape.head_dim};
    };
    const auto strides = [&](std::int64_t width) -> Dimensions {
      return {shape.length * width, shape.head_dim, width, 1};
    };
    const auto input = [&](Uid uid, std::int64_t heads, std::int64_t width) {
      return graph_.tensor(
          fe::graph::Tensor_attributes().set_uid(uid).set_dim(dimensions(heads)).set_stride(strides(width)));
    };
    const auto q = input(kQ, piece.heads, shape.width()), out = input(kOut, piece.heads, shape.width()),
               d_out = input(kDOut, piece.heads, shape.width()), k = input(kK, kv_heads, shape.kv_width()),
               v = input(kV, kv_heads, shape.kv_width());
    const auto stats = graph_.tensor(fe::graph::Tensor_attributes()
                                         .set_uid(kStats)
                                         .set_dim({piece.sequences, piece.heads, shape.length, 1})
                                         .set_stride({shape.heads * shape.length, shape.length, 1, 1})
                                         .set_data_type(fe::DataType_t::FLOAT));
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_causal_mask(true)
                       .set_attn_scale(1.0f / std::sqrt(static_cast<float>(shape.head_dim)))
                       .set_deterministic_algorithm(true);
    const auto gradients = graph_.sdpa_backward(q, k, v, out, d_out, stats, options);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const bool of_q = i == 0;
      gradients[i]
          ->set_output(true)
          .set_uid(kDq + static_cast<std::int64_t>(i))
          .set_dim(dimensions(of_q ? piece.heads : kv_heads))
          .set_stride(strides(of_q ? shape.width() : shape.kv_width()));
    }
    usable_ = graph_.build(handle, {fe::HeurMode_t::A}).is_good();
    if (usable_) check(graph_.get_workspace_size(workspace_));
  }
  bool is_usable() const { return usable_; }
  std::int64_t workspace_bytes() const { return workspace_; }
  void run(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& tensors, void* workspace) const {
    check(graph_.execute(handle, tensors, workspace));
  }

 private:
  fe::graph::Graph graph_;
  bool usable_ = false;
  std::int64_t workspace_ = 0;
};

const Plan& plan_of(const LayerContext& context, cudnnHandle_t handle, const AttentionShape& shape,
                    const Piece& piece) {
  using Key = std::array<std::int64_t, 7>;
  static auto& plans = *new std::map<Key, std::unique_ptr<Plan>>();
  std::unique_ptr<Plan>& plan = plans[{context.device.index(), shape.length, shape.heads, shape.kv_heads,
                                       shape.head_dim, piece.sequences, piece.heads}];
  if (plan == nullptr) plan = std::make_unique<Plan>(handle, shape, piece);
  return *plan;
}

void* bf16_at(const void* data, std::int64_t element) {
  return const_cast<char*>(static_cast<const char*>(data)) + 2 * element;  // the pack is writable by type
}

}  // namespace

bool cudnn_backward(const LayerContext& context, const CudnnBackwardArgs& args) {
  const AttentionShape& shape = args.shape;
  const Piece most = piece_of(shape);
  if (most.heads == 0) return false;
  cudnnHandle_t handle = handle_of(context);
  at::Tensor workspace;
  for (std::int64_t sequence = 0; sequence < shape.sequences; sequence += most.sequences) {
    for (std::int64_t head = 0; head < shape.heads; head += most.heads) {
      const Piece piece{std::min(most.sequences, shape.sequences - sequence),
                        std::min(most.heads, shape.heads - head)};
      const Plan& plan = plan_of(context, handle, shape, piece);
      if (!plan.is_usable())
        return false;  // the last piece's alone is not, if any: the caller does all again
      if (!workspace.defined() || workspace.numel() < plan.workspace_bytes()) {
        workspace = at::empty({std::max(plan.workspace_bytes(), std::int64_t{1})},
                              at::TensorOptions(context.device).dtype(at::kByte));
      }
      const std::int64_t row = sequence * shape.length;
      const std::int64_t q = row * shape.width() + head * shape.head_dim,
                         kv = row * shape.kv_width() + head * shape.kv_heads / shape.heads * shape.head_dim;
      std::unordered_map<std::int64_t, void*> tensors = {
          {kQ, bf16_at(args.q, q)},
          {kK, bf16_at(args.k, kv)},
          {kV, bf16_at(args.v, kv)},
          {kOut, bf16_at(args.out, q)},
          {kDOut, bf16_at(args.d_out, q)},
          {kDq, bf16_at(args.dq, q)},
          {kDk, bf16_at(args.dk, kv)},
          {kDv, bf16_at(args.dv, kv)},
          {kStats, const_cast<float*>(args.log_sum_exp) + (sequence * shape.heads + head) * shape.length}};
      plan.run(handle, tensors, workspace.mutable_data_ptr());
    }
  }
  return true;
}

std::int64_t cudnn_backward_workspace_bytes(const AttentionShape& shape) {
  const Piece piece = piece_of(shape);
  return piece.sequences * piece.heads * workspace_of_a_head(shape);
}

}  // namespace coat::layers
