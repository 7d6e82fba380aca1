#include "worker/core/kernels/api/kernels.h"

#include <string>

#include "worker/core/base/error.h"

namespace coat::kernels {

void Kernels::unsupported(const char* operation) const {
  throw UnsupportedError(std::string("the operation '") + operation + "' has no " + device_name() +
                         " version yet; set resources.device: cpu");
}

void Kernels::dequantize(ConstMatrix, Matrix, Stream) const { unsupported("dequantize"); }
void Kernels::amax(ConstMatrix, float*, Stream) const { unsupported("amax"); }
void Kernels::adamw_measured(const AdamWArgs&, AdamWErrors*, Stream) const { unsupported("adamw_measured"); }
void Kernels::sum_of_squares(const std::vector<SquaredArray>&, double*, Stream) const {
  unsupported("sum_of_squares");
}
void Kernels::quantization_error(ConstMatrix, ConstMatrix, ErrorSums*, Stream) const {
  unsupported("quantization_error");
}

}  // namespace coat::kernels
