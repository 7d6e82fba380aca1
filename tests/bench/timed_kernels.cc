#include "tests/bench/timed_kernels.h"

#include <string>

namespace coat::bench {
namespace {

std::string name_of_format(const TensorFormat& format) {
  std::string name = name_of(format.format);
  if (format.scaling == Scaling::kGroup) name += " 1x" + std::to_string(format.group);
  return name;
}

}  // namespace

void TimedKernels::quantize(const kernels::QuantizeArgs& args, kernels::Stream stream) const {
  std::string name = "quantize " + name_of_format(args.in.format) + " to " + name_of_format(args.out.format);
  if (args.out.format.scaling == Scaling::kTensor && args.amax == nullptr) name += ", amax found here";
  if (args.out_transposed.data != nullptr) name += ", transposed too";
  profile_.around(name, [&] { kernels_.quantize(args, stream); });
}

void TimedKernels::gemm(const kernels::GemmArgs& args, kernels::Stream stream) const {
  const std::string name = "gemm " + name_of_format(args.a.format) + " x " + name_of_format(args.b.format) +
                           " to " + name_of_format(args.out.format) + (args.accumulate ? " +=" : "") +
                           (args.round_product ? " rounded" : "");
  profile_.around(name, [&] { kernels_.gemm(args, stream); });
}

}  // namespace coat::bench
